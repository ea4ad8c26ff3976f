package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/daemon"
	"ravi/internal/porttest"
	"ravi/internal/procid"
)

// asRaviEnv makes this test program the ravi program, so that a daemon can start it again as it would itself.
const asRaviEnv = "RAVI_TEST_AS_RAVI"

func init() {
	if os.Getenv(asRaviEnv) != "" {
		os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
}

// daemonHome is a home whose daemon ends with the test.
type daemonHome struct {
	t   *testing.T
	dir string
}

func newDaemonHome(t *testing.T, gateway map[string]any) daemonHome {
	t.Helper()
	h := daemonHome{t, filepath.Join(t.TempDir(), "home")}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.configure(gateway)
	t.Cleanup(func() {
		if s, err := daemon.ReadState(h.dir); err == nil {
			h.kill(s.Process)
		}
	})
	return h
}

func (h daemonHome) configure(gateway map[string]any) {
	h.t.Helper()
	b, err := json.Marshal(map[string]any{"gateway": gateway})
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, "config.json"), b, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// kill ends the daemon as nothing can resist.
func (h daemonHome) kill(id procid.ID) {
	h.t.Helper()
	if err := procid.Signal(id, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		h.t.Error(err)
	}
	if err := procid.Wait(context.Background(), id); err != nil {
		h.t.Error(err)
	}
}

// ravi runs a command to its end.
func (h daemonHome) ravi(args ...string) (code int, stdout, stderr string) {
	h.t.Helper()
	program, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), asRaviEnv+"=1", "RAVI_HOME="+h.dir, "HOME="+filepath.Dir(h.dir))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// want runs a command that must end so.
func (h daemonHome) want(code int, args ...string) (stdout, stderr string) {
	h.t.Helper()
	got, stdout, stderr := h.ravi(args...)
	if got != code {
		h.t.Fatalf("ravi %v ended with %d, want %d:\n%s\n%s", args, got, code, stdout, stderr)
	}
	return stdout, stderr
}

func (h daemonHome) state() daemon.State {
	h.t.Helper()
	s, err := daemon.ReadState(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// The life of daemons: of twenty that are started at once there is one; one that was killed leaves nothing that keeps the
// next from starting; an end is asked for once or more often.
func TestDaemonsLife(t *testing.T) {
	h := newDaemonHome(t, map[string]any{"port": 0})
	if out, _ := h.want(exitNotRunning, "daemon", "status"); out != "no daemon runs\n" {
		t.Errorf("before: %q", out)
	}
	var racing sync.WaitGroup
	pids := make([]string, 20)
	for i := range pids {
		racing.Go(func() {
			code, out, stderr := h.ravi("daemon", "start", "-q")
			if pids[i] = strings.TrimSpace(out); code != 0 || pids[i] == "" {
				t.Errorf("start ended with %d: %q %s", code, out, stderr)
			}
		})
	}
	racing.Wait()
	first := h.state()
	for _, pid := range pids {
		if pid != fmt.Sprint(first.Process.PID) {
			t.Errorf("one speaks of process %s, another runs: %d", pid, first.Process.PID)
		}
	}
	if log, err := os.ReadFile(filepath.Join(h.dir, daemon.LogFile)); err != nil || bytes.Count(log, []byte(`"ready"`)) != 1 {
		t.Errorf("more than one was ready: %v\n%s", err, log)
	}
	if _, stderr := h.want(1, "daemon", "run"); !strings.Contains(stderr, fmt.Sprintf("process %d", first.Process.PID)) || !strings.Contains(stderr, "ravi daemon status") {
		t.Errorf("a second one: %s", stderr)
	}

	var shown daemonShown
	var out string
	eventually(t, func() bool { // it may be slow to answer, which is no fault of its own
		out, _ = h.want(0, "daemon", "status", "--json")
		shown = daemonShown{}
		if err := json.Unmarshal([]byte(out), &shown); err != nil {
			t.Fatal(err)
		}
		return shown.Problem == ""
	})
	if !shown.Running || shown.Info == nil || shown.State.Process != first.Process || shown.State.Address != "" || shown.Info.AuditRows == 0 {
		t.Errorf("status: %s", out)
	}
	// One of another version is told.
	b, err := os.ReadFile(filepath.Join(h.dir, daemon.StateFile))
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte(`"version": "`), []byte(`"version": "0.0.1 `), 1)
	if err := os.WriteFile(filepath.Join(h.dir, daemon.StateFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr := h.want(0, "daemon", "start"); !strings.Contains(stderr, "the daemon is ravi 0.0.1") {
		t.Errorf("a daemon of another version: %s", stderr)
	}

	h.kill(first.Process)
	if _, err := os.Lstat(filepath.Join(h.dir, daemon.Socket)); err != nil {
		t.Fatalf("the one that was killed left no socket, so this tests nothing: %v", err)
	}
	h.want(exitNotRunning, "daemon", "status")
	h.want(0, "daemon", "start")
	second := h.state()
	if second.Process == first.Process {
		t.Error("the dead one is taken for the new one")
	}
	if out, _ := h.want(0, "daemon", "status"); !strings.Contains(out, fmt.Sprintf("process %d", second.Process.PID)) {
		t.Errorf("after a kill: %s", out)
	}
	h.want(0, "daemon", "stop", "--keep-sandboxes")
	h.want(0, "daemon", "stop")
	if procid.Alive(second.Process) {
		t.Error("it was stopped, and lives")
	}
	if out, _ := h.want(0, "daemon", "logs"); !strings.Contains(out, `"keep_sandboxes":true`) || !strings.Contains(out, `"stopped"`) {
		t.Errorf("the log: %s", out)
	}
	if out, _ := h.want(0, "daemon", "logs", "-n", "1"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"stopped"`) {
		t.Errorf("its last line: %q", out)
	}
	for _, name := range []string{daemon.Socket, daemon.StateFile} {
		if _, err := os.Lstat(filepath.Join(h.dir, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

// What keeps a daemon from starting is told by the command that started it, with what mends it.
func TestDaemonThatCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	for name, c := range map[string]struct {
		gateway map[string]any
		says    []string
	}{
		"a port that is not free": {map[string]any{"port": port}, []string{fmt.Sprint(port), "gateway.port in config.json"}},
		"open to all without TLS": {map[string]any{"host": "0.0.0.0"}, []string{"without TLS", "gateway.tls_cert"}},
		"no certificate":          {map[string]any{"tls_cert": "/nowhere", "tls_key": "/nowhere"}, []string{"gateway.tls_cert"}},
	} {
		h := newDaemonHome(t, c.gateway)
		for _, command := range []string{"start", "run"} {
			_, stderr := h.want(1, "daemon", command)
			for _, want := range c.says {
				if !strings.Contains(stderr, want) {
					t.Errorf("%s, daemon %s: no %q in\n%s", name, command, want, stderr)
				}
			}
		}
		h.want(exitNotRunning, "daemon", "status")
	}
}

// A disk without room: no daemon, no crash, and a word about what is wrong. Once there is room it starts.
func TestDaemonOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: only root can mount a small disk")
	}
	h := newDaemonHome(t, map[string]any{"port": 0})
	if err := unix.Mount("ravi-test", h.dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("SKIP-FEATURE: no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if s, err := daemon.ReadState(h.dir); err == nil {
			h.kill(s.Process)
		}
		if err := unix.Unmount(h.dir, 0); err != nil {
			t.Error(err)
		}
	})
	h.configure(map[string]any{"port": 0})
	fill := filepath.Join(h.dir, "fill")
	full := func() {
		f, err := os.Create(fill)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
	}
	full()
	for _, what := range []string{"with nothing there", "with a database there"} {
		_, stderr := h.want(1, "daemon", "start")
		if !strings.Contains(stderr, "full") || !strings.Contains(stderr, "make room") {
			t.Errorf("%s: %s", what, stderr)
		}
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
		h.want(0, "daemon", "start")
		h.want(0, "daemon", "stop")
		full()
	}
}

// What is in the daemon's way of a key is in no log, and calls at work end when it is asked to end.
func TestDaemonAnswersOverItsPort(t *testing.T) {
	h := newDaemonHome(t, map[string]any{"port": porttest.Free(t)})
	h.want(0, "daemon", "start")
	url := "http://" + h.state().Address + "/api/v1/daemon/info"
	for name, key := range map[string]string{"no key": "", "a key of nobody": "rctx_AAAAAAAAAAAAAAAAAAAAAAAA"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
	h.want(0, "daemon", "stop")
	if log, err := os.ReadFile(filepath.Join(h.dir, daemon.LogFile)); err != nil || bytes.Contains(log, []byte("rctx_A")) {
		t.Errorf("the log: %v\n%s", err, log)
	}
}
