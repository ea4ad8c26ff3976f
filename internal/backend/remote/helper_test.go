package remote

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/hashicorp/yamux"

	"ravi/internal/backend"
)

// memory is a session within this process.
type memory struct{ *yamux.Session }

func (m memory) Open(context.Context) (net.Conn, error) { return m.Session.Open() }
func (m memory) Done() <-chan struct{}                  { return m.CloseChan() }
func (m memory) Err() error {
	select {
	case <-m.CloseChan():
		return errors.New("the wire was cut")
	default:
		return nil
	}
}

// sessions are the two ends of one.
func sessions(t testing.TB) (home, runner memory) {
	t.Helper()
	a, b := net.Pipe()
	c := yamux.DefaultConfig()
	c.LogOutput, c.EnableKeepAlive = io.Discard, false
	ours, err := yamux.Client(a, c)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := yamux.Server(b, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return memory{ours}, memory{theirs}
}

// streams are the two ends of a stream.
func streams(t testing.TB) (home, runner net.Conn) {
	t.Helper()
	a, b := sessions(t)
	ours, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := b.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return Wire(ours), Wire(theirs)
}

// runnerThat answers the first stream by say, and each later one by answer.
func runnerThat(t testing.TB, s memory, say, answer func(Head, net.Conn)) {
	t.Helper()
	go func() {
		for first := true; ; first = false {
			c, err := s.Accept()
			if err != nil {
				return
			}
			do := answer
			if first {
				do = say
			}
			go func() {
				var h Head
				if err := ReadLine(bufio.NewReader(c), MaxHead, &h); err == nil {
					do(h, c)
				}
			}()
		}
	}()
}

func spec() backend.Spec {
	return backend.Spec{ID: "sbx01", Image: "host", CPUs: 1, Memory: 1 << 30, Disk: 1 << 30, Processes: 10}
}
