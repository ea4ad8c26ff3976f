package guest

import (
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/link"
)

// A guest that was restored from a checkpoint remembers a session with a keeper
// that is gone. The new keeper must be able to begin again, whatever point the
// old session had reached.
func TestANewSessionAfterAnOldOne(t *testing.T) {
	const token = "0123456789ABCDEFGHIJ"
	s := New(Options{})
	ours, theirs := newLink(t)
	served := make(chan error, 1)
	go func() { served <- s.ServeLink(theirs, token) }()

	// An old session, in the middle of a frame.
	if _, err := ours.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	old := http2.NewFramer(ours, ours)
	if err := old.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := old.WritePing(false, [8]byte{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Write([]byte{0, 0, 8, 6}); err != nil {
		t.Fatal(err)
	}

	conn, err := link.NewSessions(ours, token).Restart()
	if err != nil {
		t.Fatal(err)
	}
	c := guestapi.NewLinkClient(conn)
	if _, err := c.Process.List(testContext(t), connect.NewRequest(&process.ListRequest{})); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
