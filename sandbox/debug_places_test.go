package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"ravi/sandbox"
)

// Who is in another world is told nothing, be it the same user.
func TestDebugStrangers(t *testing.T) {
	home := t.TempDir()
	sb := debugOpen(t, home)
	c := debugAt(t, home)
	ask := func(attr *syscall.SysProcAttr) string {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), debugRole+"="+c.path), attr
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := ask(nil); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, sb.ID) {
		t.Errorf("another process of this user: %s", got)
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: namespaces are made by root here")
	}
	for name, flags := range map[string]uintptr{"process": syscall.CLONE_NEWPID, "mount": syscall.CLONE_NEWNS, "network": syscall.CLONE_NEWNET} {
		got := ask(&syscall.SysProcAttr{Cloneflags: flags})
		if !strings.HasPrefix(got, "403 ") || !strings.Contains(got, name+" namespace") || strings.Contains(got, sb.ID) {
			t.Errorf("from another %s namespace: %s", name, got)
		}
	}
}

// Of two programs with one socket the second says so, and has no sandbox; a socket that a killed one left is replaced.
func TestDebugTwoPrograms(t *testing.T) {
	home := t.TempDir()
	other := exec.Command("/proc/self/exe")
	other.Env = append(os.Environ(), debugRole+"=open "+home)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	defer stop()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatal(line, err)
	}
	c := debugAt(t, home)
	theirs := c.list()
	_, err = sandbox.Open(t.Context(), debugConfig(), "", sandbox.WithHome(home))
	var init *sandbox.InitError
	if !errors.Is(err, sandbox.ErrInUse) || !errors.As(err, &init) || init.Stage != "config" || init.Hint == "" || !strings.Contains(err.Error(), c.path) {
		t.Fatalf("the second: %v", err)
	}
	dirs, err := os.ReadDir(filepath.Join(home, "sandboxes"))
	if err != nil || len(dirs) != 1 || len(theirs) != 1 || dirs[0].Name() != theirs[0].ID {
		t.Errorf("there is more than the first one's: %v %v, %+v", dirs, err, theirs)
	}
	if seen := c.list(); len(seen) != 1 {
		t.Errorf("the first is asked no more: %+v", seen)
	}
	stop()
	sb := debugOpen(t, home)
	if seen := c.list(); len(seen) != 1 || seen[0].ID != sb.ID {
		t.Errorf("after the first was killed: %+v", seen)
	}
	nothingRemains(t, home, theirs[0].ID)
}

// debugAuditor writes down what is asked for, or refuses it.
type debugAuditor struct {
	sandbox.Recorder
	mu    sync.Mutex
	calls []string
	no    error
}

func (a *debugAuditor) DebugCall(_ context.Context, action, id string, args []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, fmt.Sprint(action, " ", id, " ", args))
	return a.no
}

// What is not written down does not happen.
func TestDebugAudit(t *testing.T) {
	home := t.TempDir()
	a := &debugAuditor{Recorder: &pidKeeper{}}
	sb := debugOpen(t, home, sandbox.WithRecorder(a))
	c := debugAt(t, home)
	c.run(t.Context(), "sandboxes/"+sb.ID+"/exec", `{"args": ["touch", "/tmp/one"]}`).rest()
	a.mu.Lock()
	a.no = errors.New("the audit is full")
	a.mu.Unlock()
	c.refused("sandboxes/"+sb.ID+"/exec", `{"args": ["touch", "/tmp/two"]}`, 403, "DENIED", "the audit is full")
	c.refused("sandboxes/"+sb.ID+"/shell", ``, 403, "DENIED", "the audit is full")
	want := fmt.Sprintf("[exec %[1]s [touch /tmp/one] exec %[1]s [touch /tmp/two] shell %[1]s [/bin/sh]]", sb.ID)
	if got := fmt.Sprint(a.calls); got != want {
		t.Errorf("written down: %s, want %s", got, want)
	}
	if got := says(t, sb, "ls /tmp"); strings.Contains(got, "two") || !strings.Contains(got, "one") {
		t.Errorf("what was refused happened: %s", got)
	}
}

// A place that is not good for a socket fails Open.
func TestDebugPlaces(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	workspace := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(workspace, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ socket, says string }{
		"none":                {"", "beneath"},
		"the home":            {".", "beneath"},
		"above the home":      {"../debug.sock", "beneath"},
		"an open folder":      {filepath.Join(open, "s"), "0755"},
		"in the workspace":    {filepath.Join(workspace, "a", "s"), "which the sandbox sees"},
		"led there by a link": {filepath.Join(link, "s"), "which the sandbox sees"},
	} {
		home := t.TempDir()
		cfg := debugConfig()
		cfg.Debug.Socket = c.socket
		sb, err := sandbox.Open(t.Context(), cfg, workspace, sandbox.WithHome(home))
		var init *sandbox.InitError
		if err == nil {
			sb.Close()
			t.Errorf("%s: it was opened", name)
		} else if !errors.As(err, &init) || init.Stage != "config" || init.Hint == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if list, _ := os.ReadDir(filepath.Join(home, "sandboxes")); len(list) > 0 {
			t.Errorf("%s: left: %v", name, list)
		}
	}
	home := t.TempDir()
	debugOpen(t, home)
	cfg := debugConfig()
	cfg.Debug.MaxMessageBytes = 4096
	if _, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(home)); !errors.Is(err, sandbox.ErrInUse) || !strings.Contains(err.Error(), "4096") {
		t.Errorf("another bound on the same socket: %v", err)
	}
}
