// Package leaktest looks for goroutines that tests leave behind, as goleak does, which gives them less than half a second to
// end: too little on a machine that does much else. Here they have a minute, of which nothing is waited for when none is left.
//
// The package is for tests only. It ends nothing, and changes nothing.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines have to end.
const patience = time.Minute

// Main is a package's TestMain: it runs the tests, and says that they failed when goroutines are left.
func Main(m *testing.M, but ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := Find(but...); err != nil {
			fmt.Fprintln(os.Stderr, "the tests passed, but:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// None says that a test failed when goroutines are left.
func None(t testing.TB, but ...goleak.Option) {
	t.Helper()
	if err := Find(but...); err != nil {
		t.Error(err)
	}
}

// Find is the goroutines that are left, as an error.
func Find(but ...goleak.Option) error { return find(patience, but...) }

func find(patience time.Duration, but ...goleak.Option) error {
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(but...) // which takes its own time, so that there is no haste in this
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
