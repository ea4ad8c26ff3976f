package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/daemon"
	"ravi/internal/guard"
)

// A daemon in the foreground is asked to end while a stream is open: the stream is told, and the daemon ends well, with a
// log of lines of JSON.
func TestDaemonEndsWhileItIsListenedTo(t *testing.T) {
	h := newDaemonHome(t, map[string]any{"port": 0})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "daemon", "run", "--drain", "5m")
	cmd.Env = append(os.Environ(), asRaviEnv+"=1", "RAVI_HOME="+h.dir)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all went well
	socket := filepath.Join(h.dir, daemon.Socket)
	ask := func() error { return daemon.Ask(context.Background(), socket, "daemon/info", nil, nil) }
	for deadline := time.Now().Add(4 * time.Minute); ask() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not answer: %v", ask())
		}
	}

	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return guard.DialUnix(ctx, socket) }}}
	defer client.CloseIdleConnections()
	stream, err := client.Get("http://localhost/api/v1/_stream/events")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if stream.StatusCode != http.StatusOK {
		t.Fatalf("the stream: %s", stream.Status)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(stream.Body); err != nil || !strings.Contains(string(body), "event: end\n") {
		t.Errorf("the stream was not told: %v\n%s", err, body)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	for line := range strings.Lines(log.String()) {
		if err := json.Unmarshal([]byte(line), new(map[string]any)); err != nil {
			t.Errorf("in the log: %v: %s", err, line)
		}
	}
	if !strings.Contains(log.String(), `"stopped"`) {
		t.Errorf("the log: %s", &log)
	}
}
