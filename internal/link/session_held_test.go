package link

import (
	"io"
	"net"
	"testing"
)

// What ends like a token begins is delivered at once: it may be the end of a
// message, after which nothing comes until it is answered.
func TestSessionHoldsNothingBack(t *testing.T) {
	const token = "TOKEN-TOKEN-2"
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	s := NewSessions(theirs, token)
	conn := s.First()
	buf := make([]byte, 64)
	for i := range len(token) {
		message := "message " + token[:i]
		go func() { _, _ = ours.Write([]byte(message)) }() // what was written is looked at
		got := make([]byte, len(message))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != message {
			t.Fatalf("read %q, %v; want %q", got, err, message)
		}
	}
	// The token still ends the session, however it is cut, also right behind
	// what looked like one, and what follows is the next session's.
	for cut := range len(token) {
		for _, before := range []string{"", "x", "TOKEN-", "TOKEN-TOKEN-"} {
			text := before + token + "next"
			at := len(before) + cut
			go func() {
				_, _ = ours.Write([]byte(text[:at]))
				_, _ = ours.Write([]byte(text[at:]))
			}()
			var got []byte
			for {
				n, err := conn.Read(buf)
				got = append(got, buf[:n]...)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if n := len(got); n < len(before) || n >= len(before)+len(token) || string(got) != text[:n] {
				t.Errorf("%q cut at %d: the session got %q", text, at, got)
			}
			echo := make(chan error, 1)
			go func() {
				_, err := io.ReadFull(ours, make([]byte, len(token)))
				echo <- err
			}()
			next, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if err := <-echo; err != nil {
				t.Fatal(err)
			}
			conn = next
			if _, err := io.ReadFull(conn, buf[:4]); err != nil || string(buf[:4]) != "next" {
				t.Fatalf("the next session got %q, %v", buf[:4], err)
			}
		}
	}
}
