package dispatch

import (
	"os"
	"path/filepath"
	"testing"
)

// A bus that takes nothing at first is asked again, also when the run is over by then.
func TestOutputWaitsForTheBus(t *testing.T) {
	_, nc := newBus(t, t.TempDir())
	asked, err := nc.SubscribeSync("$JS.API.STREAM.INFO." + RunsStream)
	if err != nil {
		t.Fatal(err)
	}
	js := newJetStream(t, nc)
	path := filepath.Join(t.TempDir(), "stdout.log")
	if err := os.WriteFile(path, []byte("said"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := tail{js: js, subject: "run.run1.log.stdout", path: path}
	over, ended := make(chan struct{}), make(chan error, 1)
	close(over)
	go func() { ended <- f.run(t.Context(), over) }()
	if _, err := asked.NextMsgWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), streams[2])
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), f.subject)
	if err != nil || string(m.Data) != "said" || m.Sequence != 1 {
		t.Errorf("%+v %v", m, err)
	}
}
