package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/sandbox"
)

// The tests of this file kill parts of a sandbox, and look whether anything of
// it is left on the host.

const ownerEnv = "RAVI_TEST_OWNER"

// owner is another process that owns a sandbox: this test program, started
// again. It says what it does, a word a line.
func owner(stage string) int {
	say := func(words ...any) { fmt.Println(words...) }
	ctx := context.Background()
	if strings.HasPrefix(stage, gracedOwner) {
		return ownerWithGrace(stage, say)
	}
	cfg := sandbox.Default()
	cfg.Backend, cfg.MemoryMiB = sandbox.BackendGVisor, 512
	sb, err := sandbox.Open(ctx, cfg, os.Getenv("RAVI_TEST_WORKSPACE"), sandbox.WithRecorder(announcer{say}))
	if err != nil {
		say("error", err)
		return 1
	}
	switch stage {
	case "exec":
		_, err = sb.Exec(ctx, sandbox.Cmd{Shell: "sleep 600 & setsid sleep 601 & echo running; head -c 100000000 /dev/zero; sleep 602", Stdout: onFirst(func() { say("running") })})
	case "close":
		say("closing")
		err = sb.Close()
		say("closed")
		time.Sleep(10 * time.Minute)
	default:
		time.Sleep(10 * time.Minute) // it is killed before
	}
	if err != nil {
		say("error", err)
	}
	return 0
}

type announcer struct{ say func(...any) }

func (a announcer) Creating(_ context.Context, i sandbox.Info) error {
	a.say("creating", i.ID)
	return nil
}

func (a announcer) Created(_ context.Context, _ string, pid int) error {
	a.say("created", pid)
	return nil
}

func (a announcer) Ended(context.Context, string, string) error { return nil }

type onFirst func()

func (f onFirst) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("running")) {
		f()
	}
	return len(p), nil
}

// startOwner starts an owner and returns what it says.
func startOwner(t *testing.T, stage, home string) (*exec.Cmd, func(word string) string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), ownerEnv+"="+stage, "RAVI_HOME="+home, "RAVI_TEST_WORKSPACE="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	return cmd, func(word string) string {
		t.Helper()
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), word); ok {
				return strings.TrimSpace(rest)
			}
			if strings.HasPrefix(lines.Text(), "error") {
				t.Fatalf("the owner: %s", lines.Text())
			}
		}
		t.Fatalf("the owner ended before it said %q", word)
		return ""
	}
}

// remains lists what is on the host of a sandbox.
func remains(home, id string) (left []string) {
	for _, pattern := range []string{filepath.Join(home, "sandboxes", id), "/sys/fs/cgroup/*/ravi/" + id, "/sys/fs/cgroup/ravi/" + id} {
		found, _ := filepath.Glob(pattern) // the pattern is well-formed
		left = append(left, found...)
	}
	for _, pid := range processesOf(id, "") {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d %q", pid, cmdline))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		left = append(left, err.Error())
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

// processesOf finds the host's processes that belong to a sandbox, by their
// control group, their arguments or, as the relay and the maker have neither,
// the log that they write to, of those whose name is name or, if that is empty,
// all.
func processesOf(id, name string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		pid, err := strconv.Atoi(filepath.Base(p))
		if err != nil || pid == os.Getpid() {
			continue
		}
		cgroup, _ := os.ReadFile(p + "/cgroup") // it may have ended since
		cmdline, _ := os.ReadFile(p + "/cmdline")
		log, _ := os.Readlink(p + "/fd/2")
		if !bytes.Contains(cgroup, []byte(id)) && !bytes.Contains(cmdline, []byte(id)) && !strings.Contains(log, id) {
			continue
		}
		if stat, err := os.ReadFile(p + "/stat"); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			continue
		}
		argv0, _, _ := bytes.Cut(cmdline, []byte{0})
		if name == "" || filepath.Base(string(argv0)) == name {
			pids = append(pids, pid)
		}
	}
	return pids
}

// children are the processes whose parent is pid.
func children(pid int) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range all {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		_, after, ok := strings.Cut(string(b), ") ")
		if f := strings.Fields(after); ok && len(f) > 1 && f[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			if err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// patience bounds waiting for what must happen; nothing is measured by it.
const patience = 2 * time.Minute

func nothingRemains(t *testing.T, home, id string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		left := remains(home, id)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left of the sandbox:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// nothingRuns is nothingRemains for an owner that may have been killed before it
// had started a keeper. Nobody is there then to remove the empty folder but the
// sweep, which knows of it by the record. A folder that a keeper had is no such.
func nothingRuns(t *testing.T, home, id string) {
	t.Helper()
	dir := filepath.Join(home, "sandboxes", id)
	begun := time.Now()
	for {
		left := remains(home, id)
		if len(left) == 0 {
			return
		}
		if len(left) == 1 && left[0] == dir && time.Since(begun) > 3*time.Second {
			if _, err := os.Lstat(filepath.Join(dir, "control.sock")); errors.Is(err, os.ErrNotExist) {
				return
			}
		}
		if time.Since(begun) > patience {
			t.Fatalf("left of the sandbox:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// The owner is killed at any moment of a sandbox's life.
func TestOwnerKilled(t *testing.T) {
	t.Run("create", func(t *testing.T) {
		home := t.TempDir()
		for after := time.Duration(0); after < 320*time.Millisecond; after += 40 * time.Millisecond {
			cmd, until := startOwner(t, "create", home)
			id := until("creating")
			time.Sleep(after) // the moment is the subject of this test
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			nothingRuns(t, home, id)
		}
	})
	t.Run("idle", func(t *testing.T) {
		home := t.TempDir()
		cmd, until := startOwner(t, "idle", home)
		id := until("creating")
		until("created")
		if len(remains(home, id)) < 4 {
			t.Errorf("this test does not see a sandbox that runs: %v", remains(home, id))
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		nothingRemains(t, home, id)
	})
	t.Run("exec", func(t *testing.T) {
		home := t.TempDir()
		cmd, until := startOwner(t, "exec", home)
		id := until("creating")
		until("running")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		nothingRemains(t, home, id)
	})
	t.Run("stopped and killed", func(t *testing.T) {
		home := t.TempDir()
		cmd, until := startOwner(t, "exec", home)
		id := until("creating")
		until("running")
		for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		nothingRemains(t, home, id)
	})
	t.Run("close", func(t *testing.T) {
		home := t.TempDir()
		for _, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
			cmd, until := startOwner(t, "close", home)
			id := until("creating")
			until("closing")
			time.Sleep(after)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			nothingRemains(t, home, id)
		}
	})
}

// A part of the sandbox is killed while a command runs. The owner is told why
// in clear words, and does not hang; nothing is left.
func TestPartKilled(t *testing.T) {
	for name, part := range map[string]struct {
		find    func(sb *sandbox.Sandbox, pid int) []int
		reasons []string
		may     bool // the sandbox may live on
	}{
		"supervisor": {func(_ *sandbox.Sandbox, pid int) []int { return []int{pid} }, []string{"keeper_died"}, false},
		"relay": {func(_ *sandbox.Sandbox, pid int) (relay []int) {
			for _, c := range children(pid) {
				if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c)); bytes.Contains(b, []byte("relay")) {
					relay = append(relay, c)
				}
			}
			return relay
		}, []string{"keeper_died"}, false},
		"kernel": {func(sb *sandbox.Sandbox, _ int) []int { return processesOf(sb.ID, "runsc-sandbox") }, []string{"sandbox_died"}, false},
		"gofer":  {func(sb *sandbox.Sandbox, _ int) []int { return processesOf(sb.ID, "runsc-gofer") }, []string{"sandbox_died"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			keep := &pidKeeper{}
			sb := openAt(t, home, t.TempDir(), sandbox.WithRecorder(keep))
			done := make(chan error, 1)
			first := make(chan struct{})
			go func() {
				_, err := sb.Exec(context.Background(), sandbox.Cmd{Shell: "echo running; sleep 600", Timeout: sandbox.After(5 * time.Minute), Stdout: onFirst(func() { close(first) })})
				done <- err
			}()
			<-first
			victims := part.find(sb, keep.pid)
			if len(victims) == 0 {
				t.Fatal("this test does not find the process")
			}
			for _, pid := range victims {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			if part.may {
				select {
				case <-sb.Ended():
				case <-time.After(3 * time.Second):
					if err := sb.Close(); err != nil {
						t.Errorf("closing it: %v", err)
					}
					<-done
					nothingRemains(t, home, sb.ID)
					return
				}
			}
			select {
			case <-sb.Ended():
			case <-time.After(patience):
				t.Error("the owner is not told that the sandbox ended")
			}
			nothingRemains(t, home, sb.ID)
			err := <-done
			var end *sandbox.EndError
			if !errors.As(err, &end) {
				t.Fatalf("the command's error is %v, want an EndError", err)
			}
			if end.Reason != part.reasons[0] {
				t.Errorf("the reason is %q, want %v", end.Reason, part.reasons)
			}
			if !errors.As(sb.Err(), &end) {
				t.Errorf("Err: %v", sb.Err())
			}
			if err := sb.Close(); err != nil {
				t.Errorf("closing it: %v", err)
			}
		})
	}
}

type pidKeeper struct {
	pid    int
	reason string
}

func (*pidKeeper) Creating(context.Context, sandbox.Info) error { return nil }

func (k *pidKeeper) Created(_ context.Context, _ string, pid int) error {
	k.pid = pid
	return nil
}

func (k *pidKeeper) Ended(_ context.Context, _, reason string) error {
	k.reason = reason
	return nil
}

func openAt(t *testing.T, home, workspace string, opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	cfg := sandbox.Default()
	cfg.Backend, cfg.MemoryMiB = sandbox.BackendGVisor, 512
	sb, err := sandbox.Open(t.Context(), cfg, workspace, append(opts, sandbox.WithHome(home))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close() })
	return sb
}
