package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ravi/internal/backend"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestHost(t *testing.T) {
	home := t.TempDir()
	sandboxtest.Run(t, sandboxtest.Factory{
		Home: home,
		Open: func(t testing.TB, cfg sandbox.Config, workspace string, opts ...sandbox.Option) *sandbox.Sandbox {
			t.Helper()
			cfg.Backend = sandbox.BackendHost
			sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, append(opts, sandbox.WithHome(home))...)
			if err != nil {
				t.Fatal(err)
			}
			return sb
		},
	})
}

// onHost opens a sandbox of the host backend under its other name.
func onHost(t *testing.T, home, workspace string, change ...func(*sandbox.Config)) *sandbox.Sandbox {
	t.Helper()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendNone
	for _, c := range change {
		c(&cfg)
	}
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, sandbox.WithHome(home))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return sb
}

func sh(t *testing.T, sb *sandbox.Sandbox, line string) string {
	t.Helper()
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: line})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%s: %v, %s", line, err, res.Text(0))
	}
	return res.Stdout
}

func TestHostSaysWhatItIs(t *testing.T) {
	t.Setenv("RAVI_TEST_TOKEN", "secret")
	t.Setenv("LC_MEASUREMENT", "xx_YY")
	t.Setenv("HTTPS_PROXY", "http://me:secret@proxy:1")
	sb := onHost(t, t.TempDir(), "")
	if sb.Backend() != sandbox.BackendHost {
		t.Errorf("it calls itself %q", sb.Backend())
	}
	name := "user " + strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		name = u.Username
	}
	notes := strings.Join(sb.Notes, "\n")
	for _, want := range []string{"as " + name + ", with no isolation", "reach the network", "to Ravi are the operator", "not enforced", "HTTPS_PROXY is not passed on"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q:\n%s", want, notes)
		}
	}
	if got := sh(t, sb, "id -u"); got != fmt.Sprintln(os.Geteuid()) {
		t.Errorf("commands run as %s", got)
	}
	env := sh(t, sb, "env")
	if strings.Contains(env, "secret") || !strings.Contains(env, "LC_MEASUREMENT=xx_YY\n") || !strings.Contains(env, "RAVI_SANDBOX="+sb.ID+"\n") {
		t.Errorf("the environment is\n%s", env)
	}
	// The mark cannot be lost by giving another.
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: "echo $RAVI_SANDBOX $LC_MEASUREMENT", Env: map[string]string{"RAVI_SANDBOX": "sbxother", "LC_MEASUREMENT": "zz"}})
	if err != nil || res.Stdout != sb.ID+" zz\n" {
		t.Errorf("got %q, %v", res.Stdout, err)
	}
}

func TestHostRefuses(t *testing.T) {
	ws, home := t.TempDir(), t.TempDir()
	for name, change := range map[string]func(*sandbox.Config){
		"an image":           func(c *sandbox.Config) { c.Image = "debian:12" },
		"an overlay":         func(c *sandbox.Config) { c.Workspace = sandbox.WorkspaceOverlay },
		"a moved volume":     func(c *sandbox.Config) { c.ExtraVolumes = []sandbox.Volume{{Host: ws, Guest: "/mnt/x"}} },
		"a read-only volume": func(c *sandbox.Config) { c.ExtraVolumes = []sandbox.Volume{{Host: ws, Guest: ws, ReadOnly: true}} },
		"network rules":      func(c *sandbox.Config) { c.AllowNet.Rules = []string{"example.org"} },
	} {
		cfg := sandbox.Default()
		cfg.Backend = sandbox.BackendHost
		change(&cfg)
		_, err := sandbox.Open(t.Context(), cfg, ws, sandbox.WithHome(home))
		var ie *sandbox.InitError
		if !errors.As(err, &ie) || !errors.Is(err, backend.ErrUnsupported) || ie.Hint == "" {
			t.Errorf("%s: got %v, want an InitError with a hint", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(home, "sandboxes")); len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	sb := onHost(t, home, ws, func(c *sandbox.Config) {
		c.AllowNet.All = true
		c.ExtraVolumes = []sandbox.Volume{{Host: ws, Guest: ws}}
	})
	for name, err := range map[string]error{
		"pause": sb.Pause(t.Context()), "resume": sb.Resume(t.Context()), "checkpoint": sb.Checkpoint(t.Context(), t.TempDir()),
	} {
		if !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if os.Geteuid() != 0 {
		if _, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: "id", User: "root"}); !errors.Is(err, sandbox.ErrBadCommand) {
			t.Errorf("as root: got %v", err)
		}
	}
	sh(t, sb, "echo it still runs")
}

func TestHostPaths(t *testing.T) {
	ws := t.TempDir()
	for _, sb := range []*sandbox.Sandbox{onHost(t, t.TempDir(), ws), onHost(t, t.TempDir(), "")} {
		root := sb.Workspace()
		for dir, want := range map[string]string{
			"": root, "sub": root + "/sub", "/workspace": root, "/workspace/sub/../sub": root + "/sub", root + "/sub": root + "/sub",
		} {
			if _, err := os.Stat(root + "/sub"); err != nil {
				sh(t, sb, "mkdir sub")
			}
			res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: "pwd", Dir: dir})
			if err != nil || res.Stdout != want+"\n" {
				t.Errorf("%q: %q %v, want %s", dir, res.Stdout, err, want)
			}
		}
		if _, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: "pwd", Dir: "/workspace/../etc"}); !errors.Is(err, sandbox.ErrOutside) {
			t.Errorf("outside: %v", err)
		}
		if err := sb.Files().Write(t.Context(), "/workspace/sub/f", strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(root + "/sub/f"); err != nil || string(b) != "x" {
			t.Errorf("%q %v", b, err)
		}
		if err := sb.Files().Move(t.Context(), "/workspace/sub/f", root+"/g"); err != nil {
			t.Error(err)
		}
	}
}

// daemons are what is hard to find again: in sessions of their own, without an
// environment, with their parents gone. Each has the mark in its arguments.
const daemons = `
	sleep MARK1 & setsid sleep MARK2 &
	(env -i setsid sh -c 'sleep MARK3 & sleep MARK4; :' &) &
	(setsid sh -c 'cd /; (env -i setsid sleep MARK5 &)' &)
	until [ $(grep -lzx 'MARK[1-5]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l) = 5 ]; do sleep 0.01; done`

// running lists the processes of the host that have the mark in their
// arguments, this one excepted.
func running(t *testing.T, mark string) (found []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), mark) && name != fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			found = append(found, name+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so in time: %s", what)
		}
	}
}

// bystander is a process of this test's that no sandbox has to do with.
func bystander(t *testing.T) (alive func() bool) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		_, state, found := strings.Cut(string(b), ") ")
		return err == nil && found && !strings.ContainsAny(state[:1], "TtZXx")
	}
}

func TestHostLeavesNothing(t *testing.T) {
	other := bystander(t)
	for _, c := range []struct {
		name, mark string
		end        func(t *testing.T, sb *sandbox.Sandbox)
	}{
		{"closed", "4701.1004", func(t *testing.T, sb *sandbox.Sandbox) {}},
		{"the keeper killed", "4702.1004", func(t *testing.T, sb *sandbox.Sandbox) { killNamed(t, sb, "supervise") }},
		{"its relay killed", "4703.1004", func(t *testing.T, sb *sandbox.Sandbox) { killNamed(t, sb, "ravi-relay") }},
		{"its guest agent killed", "4704.1004", func(t *testing.T, sb *sandbox.Sandbox) { killNamed(t, sb, "ravi-guest:"+sb.ID) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := t.TempDir()
			sb := onHost(t, home, "")
			sh(t, sb, strings.ReplaceAll(daemons, "MARK", c.mark))
			if n := len(running(t, c.mark)); n < 5 {
				t.Fatalf("only %d daemons run", n)
			}
			st, err := sb.Stats(t.Context())
			if err != nil || st.Processes < 6 || st.MemoryBytes < 1<<20 {
				t.Errorf("stats: %+v, %v", st, err)
			}
			c.end(t, sb)
			if c.name != "closed" {
				soon(t, "the sandbox ends by itself", func() bool { return sb.Err() != nil })
			}
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
			if left := running(t, c.mark); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if left, err := os.ReadDir(filepath.Join(home, "sandboxes")); err != nil || len(left) > 0 {
				t.Errorf("left: %v %v", left, err)
			}
			if !other() {
				t.Error("a process that was not the sandbox's was touched")
			}
		})
	}
}

// killNamed kills the process of the sandbox's keeper that has this argument.
func killNamed(t *testing.T, sb *sandbox.Sandbox, arg string) {
	t.Helper()
	supervisor := ""
	for _, p := range running(t, "ravi-keeper\x00supervise") {
		pid := strings.Split(p, "/")[2]
		// The sandbox's directory is not in its arguments; its guest agent's
		// parent it is.
		for _, g := range running(t, "ravi-guest:"+sb.ID) {
			stat, err := os.ReadFile("/proc/" + strings.Split(g, "/")[2] + "/stat")
			if err == nil && strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))[1] == pid {
				supervisor = pid
			}
		}
	}
	if supervisor == "" {
		t.Fatal("the supervisor is not found")
	}
	for _, name := range append(running(t, "ravi-keeper"), append(running(t, "ravi-relay"), running(t, "ravi-guest:"+sb.ID)...)...) {
		pid := strings.Split(name, "/")[2]
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || !strings.Contains(name, arg) {
			continue
		}
		parent := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))[1]
		if n, _ := strconv.Atoi(pid); pid == supervisor || parent == supervisor {
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("nothing of the sandbox is called %s", arg)
}

const ownerHome = "RAVI_TEST_HOST_OWNER"

// TestHostOwner is a program that owns a sandbox, when it is started as one.
func TestHostOwner(t *testing.T) {
	home := os.Getenv(ownerHome)
	if home == "" {
		return // the test below starts it
	}
	sb := onHost(t, home, "")
	sh(t, sb, strings.ReplaceAll(daemons, "MARK", os.Getenv("RAVI_TEST_MARK")))
	fmt.Println("\nowner is ready")
	<-sb.Ended()
}

func TestHostEndsWithItsOwner(t *testing.T) {
	const mark = "4705.1004"
	other, home := bystander(t), t.TempDir()
	owner := exec.Command(os.Args[0], "-test.run=^TestHostOwner$")
	owner.Env = append(os.Environ(), ownerHome+"="+home, "RAVI_TEST_MARK="+mark)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = owner.Process.Kill(); _ = owner.Wait() }()
	ready := false
	for s := bufio.NewScanner(out); !ready && s.Scan(); {
		ready = s.Text() == "owner is ready"
	}
	if n := len(running(t, mark)); !ready || n < 5 {
		t.Fatalf("ready: %v, daemons: %d", ready, n)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	soon(t, "no process is left", func() bool { return len(running(t, mark)) == 0 })
	soon(t, "no directory is left", func() bool {
		left, err := os.ReadDir(filepath.Join(home, "sandboxes"))
		return err == nil && len(left) == 0
	})
	if !other() {
		t.Error("a process that was not the sandbox's was touched")
	}
}
