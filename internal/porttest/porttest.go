// Package porttest finds ports for tests that have to know one before somebody listens on it.
//
// The package is for tests only. It listens on loopback for a moment, and keeps nothing open.
package porttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
)

// Free is a TCP port of 127.0.0.1 that nobody listens on. It is below those that the kernel gives to whoever asks for any
// (ip_local_port_range), as everybody does who runs beside a test.
func Free(t testing.TB) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp4", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return l.Addr().(*net.TCPAddr).Port
	}
}
