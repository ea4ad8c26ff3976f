package dispatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// One line of five megabytes is far beyond what a message may have, and arrives whole all the same.
func TestALongLineComesInPieces(t *testing.T) {
	line := strings.Repeat("0123456789", 500_000) + "\n"
	for name, lines := range map[string]bool{"event": true, "log.stdout": false} {
		t.Run(name, func(t *testing.T) {
			_, nc := newBus(t, t.TempDir())
			js := newJetStream(t, nc)
			if _, err := js.CreateStream(t.Context(), streams[2]); err != nil {
				t.Fatal(err)
			}
			sub, err := nc.SubscribeSync("run.run1." + name)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
				t.Fatal(err)
			}
			f := tail{js: js, subject: sub.Subject, path: path, lines: lines}
			over := make(chan struct{})
			close(over)
			if err := f.run(t.Context(), over); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for got.Len() < len(line) {
				m, err := sub.NextMsg(time.Minute)
				if err != nil {
					t.Fatalf("after %d bytes: %v", got.Len(), err)
				}
				if len(m.Data) > longestMessage {
					t.Fatalf("a message has %d bytes", len(m.Data))
				}
				got.Write(m.Data)
			}
			if got.String() != line {
				t.Error("the line is another one")
			}
		})
	}
}
