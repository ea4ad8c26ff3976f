package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ravi/internal/adapter"
)

func step(t *testing.T) func(string) func(error) {
	return func(name string) func(error) {
		start := time.Now()
		return func(err error) { t.Logf("%s: %v, %v", name, time.Since(start).Round(time.Millisecond), err) }
	}
}

// A program from the registry: installed without a script having run, found again, and what it is.
func TestInstall(t *testing.T) {
	home := t.TempDir()
	p, ok := adapter.Lookup("claude")
	if !ok {
		t.Fatal("claude is unknown")
	}
	if _, err := Find(home, p); !errors.Is(err, ErrMissing) {
		t.Errorf("before: %v", err)
	}
	i, err := Install(t.Context(), p, Options{Home: home, Step: step(t), Note: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	found, err := Find(home, p)
	if err != nil || found != i {
		t.Errorf("found %+v, %v; installed %+v", found, err, i)
	}
	st, err := os.Lstat(filepath.Join(i.Dir, i.Path))
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 || st.Size() < 1<<20 {
		t.Errorf("the program: %v, %v", st, err)
	}
	left, err := filepath.Glob(filepath.Join(home, "agents", "claude", "new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
