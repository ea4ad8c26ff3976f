package keeper

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// started runs a shell line in a session of its own, with the variables given
// and no others, and returns once it has said "ready".
func started(t *testing.T, line string, env ...string) *exec.Cmd {
	t.Helper()
	return startedAs(t, "sh", line, env...)
}

// startedAs is started under another name.
func startedAs(t *testing.T, name, line string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Args[0] = name
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // all of its session
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	return cmd
}

func isAlive(pid int) bool { _, ok := look(pid); return ok }

func pids(ps []seenProc) map[int]bool {
	out := map[int]bool{}
	for _, p := range ps {
		out[p.pid] = true
	}
	return out
}

func TestATreeIsWhatIsMarkedAndWhatDescends(t *testing.T) {
	const id = "sbxtreetest1"
	marked := started(t, "env -i sleep 60 & echo ready; wait", MarkName+"="+id)
	others := []*exec.Cmd{
		started(t, "echo ready; sleep 60"),
		started(t, "echo ready; sleep 60", MarkName+"="+id+"x"),
		started(t, "echo ready; sleep 60", "X"+MarkName+"="+id),
		started(t, "echo ready; sleep 60", "OTHER="+MarkName+"="+id),
	}
	got, err := (&tree{id: id}).members()
	if err != nil {
		t.Fatal(err)
	}
	if !pids(got)[marked.Process.Pid] {
		t.Error("the marked process is not a member")
	}
	if len(got) != 2 {
		t.Errorf("%d members, want the marked process and its child without a mark: %v", len(got), got)
	}
	for i, o := range others {
		if pids(got)[o.Process.Pid] {
			t.Errorf("stranger %d is taken for a member", i)
		}
	}
	// A number alone is no process: the one that was seen must be the one that
	// is signalled.
	stranger := seenProc{pid: others[0].Process.Pid, start: 1}
	if err := stranger.signal(unix.SIGKILL); err != nil || !isAlive(stranger.pid) {
		t.Errorf("a process that only has the number was signalled (%v)", err)
	}

	if err := (&tree{id: id}).end(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, p := range got {
		if isAlive(p.pid) {
			t.Errorf("process %d is still there", p.pid)
		}
	}
	for i, o := range others {
		if !isAlive(o.Process.Pid) {
			t.Errorf("stranger %d was ended", i)
		}
	}
}

func TestATreeThatForksAllTheTimeEnds(t *testing.T) {
	const id = "sbxtreetest2"
	started(t, "f() { (sleep 0.01; f) & }; f; f; f; echo ready; sleep 60", MarkName+"="+id)
	if err := (&tree{id: id}).end(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if left, err := (&tree{id: id}).members(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestAGuestAgentIsKnownByItsName(t *testing.T) {
	const id = "sbxtreetest3"
	cmd := started(t, "echo ready; sleep 60")
	if hasMark(cmd.Process.Pid, id) {
		t.Error("a stranger is taken for the guest agent")
	}
	named := startedAs(t, GuestName(id), "echo ready; sleep 60; :")
	if !hasMark(named.Process.Pid, id) || hasMark(named.Process.Pid, id[:len(id)-1]) {
		t.Error("the guest agent is not known by its name, the whole of it")
	}
}

func TestRemoveEndsWhatASupervisorLeft(t *testing.T) {
	const id = "sbxtreetest4"
	dir := filepath.Join(t.TempDir(), id)
	if err := os.MkdirAll(filepath.Join(dir, "workspace"), 0o700); err != nil {
		t.Fatal(err)
	}
	marked := started(t, "setsid sleep 60 & echo ready; wait", MarkName+"="+id)
	for range 2 { // idempotent
		if err := Remove(Plan{ID: id, Dir: dir, SameProcesses: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	if isAlive(marked.Process.Pid) {
		t.Error("a marked process is still there")
	}
	// Without the flag nobody is looked for: the mark of a sandbox with a
	// process namespace means nothing on the host.
	marked = started(t, "echo ready; sleep 60", MarkName+"="+id)
	if err := Remove(Plan{ID: id, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if !isAlive(marked.Process.Pid) {
		t.Error("a process of the host was ended for a sandbox that has its own")
	}
}

func TestClosedFoldersAreRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	deep := filepath.Join(dir, "closed", "empty")
	elsewhere := t.TempDir()
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(deep, "f"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{deep, filepath.Dir(deep), elsewhere} {
		if err := os.Chmod(d, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if st, err := os.Stat(elsewhere); err != nil || st.Mode().Perm() != 0o500 {
		t.Errorf("a link was followed: %v %v", st, err)
	}
	if err := removeDir(dir); err != nil {
		t.Errorf("a directory that is gone: %v", err)
	}
}

func TestNothingIsRemovedThroughAMount(t *testing.T) {
	dir, elsewhere := filepath.Join(t.TempDir(), "a"), t.TempDir()
	at := filepath.Join(dir, `odd \040 name`)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	canary := filepath.Join(elsewhere, "canary")
	if err := os.WriteFile(canary, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(elsewhere, at, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("SKIP-FEATURE: mounts cannot be made here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	if err := removeDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(canary); err != nil {
		t.Errorf("what was behind the mount is gone: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		``: ``, `/a`: `/a`, `/a\040b`: "/a b", `\134040`: `\040`, `\0`: `\0`, `\999`: `\999`, `a\012`: "a\n",
	} {
		if got := Unescape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if strings.Contains(Unescape(`\000`), `\`) {
		t.Error("a NUL is left escaped")
	}
}
