package runner

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ravi/internal/backend/remote"
	"ravi/internal/keeper"
	"ravi/internal/memtest"
	"ravi/sandbox"
)

// remains lists what is on this machine of a home's sandboxes.
func remains(t testing.TB, home string) (left []string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(home, sandboxesDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline")) // one that has ended has none
		environ, _ := os.ReadFile(filepath.Join(p, "environ"))
		exe, _ := os.Readlink(filepath.Join(p, "exe"))
		if p == fmt.Sprintf("/proc/%d", os.Getpid()) || strings.Contains(string(environ), runnerEnv) {
			continue
		}
		if strings.Contains(string(cmdline), home) || strings.HasPrefix(exe, home) {
			left = append(left, fmt.Sprintf("%s %q", p, cmdline))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, home) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it is still not so: %s", what)
		}
	}
}

// busy starts a command that does not end by itself.
func busy(t testing.TB, sb *sandbox.Sandbox) *sandbox.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), sandbox.Cmd{Shell: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// endsWithRunner says whether a sandbox ends as one whose runner is gone.
func endsWithRunner(t testing.TB, sb *sandbox.Sandbox, p *sandbox.Process) {
	t.Helper()
	select {
	case <-sb.Ended():
	case <-time.After(time.Minute):
		t.Fatal("home did not notice")
	}
	var end *sandbox.EndError
	if err := sb.Err(); !errors.As(err, &end) || end.Reason != keeper.ReasonRunner || !errors.Is(err, sandbox.ErrEnded) {
		t.Errorf("it ended since %v", err)
	}
	if _, err := p.Wait(); !errors.As(err, &end) || end.Reason != keeper.ReasonRunner {
		t.Errorf("the command ended since %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// When the session is cut, home knows, and the runner ends the sandbox.
func TestCutSession(t *testing.T) {
	g := newRig(t, Options{})
	sb := g.open(t, nil)
	p := busy(t, sb)
	g.last.Close()
	endsWithRunner(t, sb, p)
	eventually(t, "nothing is left of it", func() bool { return g.Status().Running == 0 && len(remains(t, g.Runner.home)) == 0 })
}

// A cut while the sandbox is made leaves nothing either.
func TestCutWhileMade(t *testing.T) {
	g := newRig(t, Options{})
	for n := range 12 {
		g.tap = func(c net.Conn) net.Conn { return &cutAfter{Conn: c, left: 100 << n} }
		if sb, err := g.tryOpen(t, nil); err == nil {
			sb.Close()
		} else if !errors.Is(err, remote.ErrLost) && !strings.Contains(err.Error(), keeper.ReasonRunner) && !errors.Is(err, sandbox.ErrEnded) {
			t.Errorf("after %d bytes: %v", 100<<n, err)
		}
	}
	eventually(t, "nothing is left of them", func() bool { return g.Status().Running == 0 && len(remains(t, g.Runner.home)) == 0 })
}

// cutAfter is a wire that breaks once so many bytes went home.
type cutAfter struct {
	net.Conn
	left int
}

func (c *cutAfter) Read(b []byte) (int, error) {
	if c.left <= 0 {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// alone starts a runner in a process of its own. What it gives is home's end of its one session.
func alone(t testing.TB, home string) (*exec.Cmd, net.Conn) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, b := wire(t)
	f, err := b.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	defer f.Close()
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), runnerEnv+"="+home)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, a
}

// A runner that is killed is noticed at home, its sandbox ends by itself, and the next runner can work in its home.
func TestKilledRunner(t *testing.T) {
	home := t.TempDir()
	cmd, a := alone(t, home)
	cfg := sandbox.Default()
	cfg.MemoryMiB = 512
	sb, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithBackend(remote.New(session(t, a, true))))
	if err != nil {
		t.Fatal(err)
	}
	p := busy(t, sb)
	if _, err := New(t.Context(), Options{Home: home}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second runner in the home: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	endsWithRunner(t, sb, p)
	eventually(t, "nothing is left of it", func() bool { return len(remains(t, home)) == 0 })
	r, err := New(t.Context(), Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// When the keeper is killed together with its runner, there is something left: the next runner removes it.
func TestKilledWithItsKeeper(t *testing.T) {
	home := t.TempDir()
	cmd, a := alone(t, home)
	cfg := sandbox.Default()
	cfg.MemoryMiB = 512
	sb, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithBackend(remote.New(session(t, a, true))))
	if err != nil {
		t.Fatal(err)
	}
	p := busy(t, sb)
	family, err := memtest.Family(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// The runner first, which would clean up after its keeper.
	killed := []int{cmd.Process.Pid}
	for pid, line := range family {
		if strings.HasPrefix(line, "ravi-keeper supervise") {
			killed = append(killed, pid)
		}
	}
	if len(killed) != 2 {
		t.Fatalf("the keeper is not among %v", family)
	}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range killed {
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // it was killed
	endsWithRunner(t, sb, p)
	left, err := filepath.Glob(filepath.Join(home, sandboxesDir, "*"))
	if err != nil || len(left) != 1 {
		t.Fatalf("there is left %v %v", left, err)
	}
	id := filepath.Base(left[0])
	r, err := New(t.Context(), Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	groups, err := filepath.Glob("/sys/fs/cgroup/*/ravi/" + id)
	if err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(filepath.Join(home, sandboxesDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if left := append(folders, groups...); len(left) > 0 {
		t.Errorf("there is left %v", left)
	}
	// Its helpers end by themselves.
	eventually(t, "nothing is left of it", func() bool { return len(remains(t, home)) == 0 })
}

// A runner that starts removes what a former one left, be it whole or not.
func TestSweep(t *testing.T) {
	home := t.TempDir()
	for _, dir := range []string{"sandboxes/sbx01/overlay", "content/new-1/tree", "content/" + strings.Repeat("a", 64) + "/tree"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(t.Context(), Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var left []string
	for _, pattern := range []string{"sandboxes/*", "content/*"} {
		found, _ := filepath.Glob(filepath.Join(home, pattern)) // it is well-formed
		left = append(left, found...)
	}
	if len(left) > 0 {
		t.Errorf("there is left: %v", left)
	}
}

// What home cannot send is refused before anybody is called.
func TestHomeRefuses(t *testing.T) {
	dir := t.TempDir()
	for what, c := range map[string]struct {
		workspace string
		change    func(*sandbox.Config)
		opts      []sandbox.Option
	}{
		"a workspace":   {workspace: dir},
		"a volume":      {change: func(c *sandbox.Config) { c.ExtraVolumes = []sandbox.Volume{{Host: dir, Guest: "/mnt", ReadOnly: true}} }},
		"a checkpoint":  {opts: []sandbox.Option{sandbox.WithCheckpoint(dir)}},
		"a grace":       {opts: []sandbox.Option{sandbox.WithGrace(time.Second)}},
		"the host":      {change: func(c *sandbox.Config) { c.Backend = sandbox.BackendHost }},
		"another image": {change: func(c *sandbox.Config) { c.Image = "" }},
	} {
		cfg := sandbox.Default()
		if c.change != nil {
			c.change(&cfg)
		}
		home := t.TempDir()
		_, err := sandbox.Open(t.Context(), cfg, c.workspace, append(c.opts, sandbox.WithHome(home), sandbox.WithBackend(remote.Dial(nil)))...)
		var ie *sandbox.InitError
		if !errors.As(err, &ie) || ie.Stage != "config" && ie.Stage != "backend" {
			t.Errorf("%s: %v", what, err)
		}
		if made, _ := os.ReadDir(home); len(made) > 0 {
			t.Errorf("%s: something was made: %v", what, made)
		}
	}
}
