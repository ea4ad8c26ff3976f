package link

import (
	"bytes"
	"io"
	"net"
	"testing"

	"pgregory.net/rapid"
)

// A session delivers what lies before the token, however the bytes are cut, and the next session what lies behind it.
func TestSessionsAreCutAtTheToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const token = "abab#"
		// Bytes that make near misses likely.
		part := rapid.Map(rapid.SliceOf(rapid.SampledFrom([]byte("ab#x"))), func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(token), nil)
		})
		first, second := part.Draw(t, "first"), part.Draw(t, "second")
		all := append(append(append([]byte{}, first...), token...), second...)
		cuts := rapid.SliceOf(rapid.IntRange(1, 7)).Draw(t, "cuts")
		keeper, guest := net.Pipe()
		answered := make(chan []byte, 1)
		go func() {
			for _, n := range cuts {
				n = min(n, len(all))
				if n > 0 {
					keeper.Write(all[:n])
				}
				all = all[n:]
			}
			keeper.Write(all)
		}()
		go func() {
			b := make([]byte, len(token))
			io.ReadFull(keeper, b)
			answered <- b
		}()
		s := NewSessions(guest, token)
		got, err := io.ReadAll(s.First())
		// The token's own beginning may come as well, but never all of it.
		most := append(bytes.Clone(first), token[:len(token)-1]...)
		if err != nil || !bytes.HasPrefix(got, first) || !bytes.HasPrefix(most, got) {
			t.Fatalf("first session: %q, %v, want %q", got, err, first)
		}
		next, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if b := <-answered; string(b) != token {
			t.Fatalf("answered %q", b)
		}
		b := make([]byte, len(second))
		if _, err := io.ReadFull(next, b); err != nil || !bytes.Equal(b, second) {
			t.Fatalf("second session: %q, %v, want %q", b, err, second)
		}
		guest.Close()
	})
}

func TestRestartDropsTheOldSession(t *testing.T) {
	const token = "0123456789abcdef"
	keeper, guest := net.Pipe()
	defer keeper.Close()
	defer guest.Close()
	go func() {
		old := NewSessions(guest, token)
		c := old.First()
		io.Copy(io.Discard, c)
		n, err := old.Next()
		if err == nil {
			n.Write([]byte("new"))
		}
	}()
	c, err := NewSessions(keeper, token).Restart()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 3)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "new" {
		t.Fatalf("%q %v", b, err)
	}
}

func TestTheLinksEndIsTheLastSessionsEnd(t *testing.T) {
	keeper, guest := net.Pipe()
	keeper.Close()
	s := NewSessions(guest, "token")
	if _, err := io.ReadAll(s.First()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); err != io.EOF {
		t.Fatalf("got %v, want EOF", err)
	}
}
