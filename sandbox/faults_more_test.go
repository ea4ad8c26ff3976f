package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/sandbox"
)

// The tests of this file kill parts of a sandbox while it is made and while it
// is closed.

// anatomy finds the parts of one sandbox by name, from its first moment on.
type anatomy struct {
	id     string
	before []int // keepers that were there already are none of its
}

func newAnatomy() *anatomy { return &anatomy{before: named(children(os.Getpid()), "ravi-keeper")} }

func (a *anatomy) find(part string) (pids []int) {
	if part == "kernel" || part == "gofer" {
		return processesOf(a.id, map[string]string{"kernel": "runsc-sandbox", "gofer": "runsc-gofer"}[part])
	}
	for _, pid := range named(children(os.Getpid()), "ravi-keeper") {
		if slices.Contains(a.before, pid) {
			continue
		}
		switch part {
		case "supervisor":
			pids = append(pids, pid)
		case "relay":
			pids = append(pids, named(children(pid), "ravi-relay")...)
		case "maker":
			pids = append(pids, named(children(pid), "ravi-box")...)
		}
	}
	return pids
}

// there says whether there is a part, or the control groups.
func (a *anatomy) there(part string) bool {
	if part != "group" {
		return len(a.find(part)) > 0
	}
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/ravi/" + a.id) // the pattern is well-formed
	_, err := os.Stat("/sys/fs/cgroup/ravi/" + a.id)
	return len(v1) > 0 || err == nil
}

// named are those of the processes that run under a name. A process that is not
// yet the program it will be still has its parent's name.
func named(pids []int, name string) (out []int) {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended since
		argv0, _, _ := bytes.Cut(b, []byte{0})
		if filepath.Base(string(argv0)) == name {
			out = append(out, pid)
		}
	}
	return out
}

// kill ends the part, and says whether there was one.
func (a *anatomy) kill(t *testing.T, part string) bool {
	t.Helper()
	killed := false
	for _, pid := range a.find(part) {
		err := unix.Kill(pid, unix.SIGKILL)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			t.Errorf("killing the %s: %v", part, err)
		}
		killed = killed || err == nil
	}
	return killed
}

// hunter kills a part as soon as there is another part, which may be the same,
// while a sandbox is made.
type hunter struct {
	t            *testing.T
	victim, when string
	parts        *anatomy
	created      atomic.Bool
	reason       string
	done         chan struct{} // closed when it has killed or given up
	killed       bool          // valid after done
}

func (h *hunter) Creating(_ context.Context, i sandbox.Info) error {
	h.parts.id = i.ID
	go func() {
		defer close(h.done)
		for !h.created.Load() {
			if h.when != h.victim && !h.parts.there(h.when) {
				continue
			}
			if h.parts.kill(h.t, h.victim) {
				h.killed = true
				return
			}
		}
	}()
	return nil
}

func (h *hunter) Created(context.Context, string, int) error {
	h.created.Store(true)
	return nil
}

func (h *hunter) Ended(_ context.Context, _, reason string) error {
	h.created.Store(true)
	h.reason = reason
	return nil
}

// A part of the sandbox is killed while it is made. The owner is told, and does
// not wait until its patience ends; nothing is left.
func TestPartKilledDuringCreate(t *testing.T) {
	// The supervisor is what removes, so its death is tried at more moments.
	for _, c := range []struct{ victim, when string }{
		{"supervisor", "supervisor"}, {"supervisor", "relay"}, {"supervisor", "maker"}, {"supervisor", "group"},
		{"supervisor", "kernel"}, {"supervisor", "gofer"},
		{"relay", "relay"}, {"relay", "maker"}, {"relay", "kernel"},
		{"maker", "maker"}, {"maker", "kernel"},
		{"kernel", "kernel"}, {"gofer", "gofer"},
	} {
		t.Run(c.victim+" when there is a "+c.when, func(t *testing.T) {
			if c.when == "group" && os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: without root a sandbox has no control groups")
			}
			home := t.TempDir()
			nothingCameBack(t, home, func() string {
				// On a busy host the test may come too late, many times.
				for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
					if id, inTime := killedDuringCreate(t, home, c.victim, c.when); inTime {
						return id
					}
				}
				t.Fatalf("the %s was never killed in time", c.victim)
				return ""
			})
		})
	}
}

func killedDuringCreate(t *testing.T, home, victim, when string) (id string, inTime bool) {
	t.Helper()
	h := &hunter{t: t, victim: victim, when: when, parts: newAnatomy(), done: make(chan struct{})}
	cfg := sandbox.Default()
	cfg.Backend, cfg.MemoryMiB, cfg.CreateTimeout, cfg.VerifyTimeout = sandbox.BackendGVisor, 512, 240, 120
	type result struct {
		sb  *sandbox.Sandbox
		err error
	}
	opened := make(chan result, 1)
	workspace := t.TempDir()
	go func() {
		sb, err := sandbox.Open(context.Background(), cfg, workspace, sandbox.WithHome(home), sandbox.WithRecorder(h))
		opened <- result{sb, err}
	}()
	var got result
	select {
	case got = <-opened:
	case <-time.After(8 * time.Minute):
		t.Fatal("Open hangs")
	}
	h.created.Store(true)
	<-h.done
	if got.err == nil {
		// It was made before it was killed, and is as one that is killed later.
		late(t, got.sb, h)
		nothingRemains(t, home, h.parts.id)
		return h.parts.id, false
	}
	nothingRemains(t, home, h.parts.id)
	var init *sandbox.InitError
	if !errors.As(got.err, &init) {
		t.Fatalf("the error is %T, want an InitError", got.err)
	}
	if !h.killed {
		t.Fatalf("it was not made, though nothing was killed: %v", got.err)
	}
	if init.Stage != "create" && init.Stage != "verify" {
		t.Errorf("the stage is %q", init.Stage)
	}
	text := got.err.Error()
	t.Log(text)
	if strings.Contains(text, "_timeout") {
		t.Errorf("the owner waited until its patience ended: %s", text)
	}
	if h.reason == "" {
		t.Error("the end is not recorded")
	}
	return h.parts.id, true
}

// late looks at a sandbox that was given out, whether or not it lost a part.
func late(t *testing.T, sb *sandbox.Sandbox, h *hunter) {
	t.Helper()
	if h.killed && h.victim != "gofer" && h.victim != "maker" { // without these it may live on
		select {
		case <-sb.Ended():
		case <-time.After(patience):
			t.Error("the owner is not told that the sandbox ended")
		}
	}
	if err := sb.Close(); err != nil {
		t.Errorf("closing it: %v", err)
	}
}

// nothingCameBack does one thing, which returns the id of a sandbox of which
// nothing was left, a few times over. What was at work when a sandbox was
// removed must not have made a part of it anew since.
func nothingCameBack(t *testing.T, home string, do func() string) {
	t.Helper()
	var ids []string
	for range 3 {
		ids = append(ids, do())
	}
	for _, id := range ids {
		if left := remains(home, id); len(left) > 0 {
			t.Errorf("it came back:\n%s", strings.Join(left, "\n"))
		}
	}
}

// A part of the sandbox is killed while it is closed.
func TestPartKilledDuringClose(t *testing.T) {
	for _, c := range []struct {
		victim string
		gone   string // the part that must be gone before; empty: at once
	}{
		{"supervisor", ""}, {"supervisor", "gofer"}, {"supervisor", "kernel"}, {"supervisor", "relay"},
		{"relay", ""}, {"relay", "kernel"}, {"kernel", ""}, {"gofer", ""}, {"maker", ""},
	} {
		name := c.victim
		if c.gone != "" {
			name += " when the " + c.gone + " is gone"
		}
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			nothingCameBack(t, home, func() string { return killedDuringClose(t, home, c.victim, c.gone) })
		})
	}
}

func killedDuringClose(t *testing.T, home, victim, gone string) (id string) {
	t.Helper()
	parts := newAnatomy()
	sb := openAt(t, home, t.TempDir())
	parts.id = sb.ID
	saved := make(chan error, 1)
	victims := parts.find(victim)
	if victim == "maker" {
		// There is a maker only while it is at work.
		save := func() { saved <- sb.Checkpoint(context.Background(), t.TempDir()) }
		go save()
		for tries := 0; len(victims) == 0; { // on a busy host it may come and go unseen
			if victims = parts.find(victim); len(victims) == 0 && len(saved) > 0 {
				err := <-saved
				if tries++; tries > 40 {
					t.Fatalf("there was no maker: %v", err)
				}
				go save()
			}
		}
	}
	if len(victims) == 0 {
		t.Fatal("this test does not find the process")
	}
	var first []int
	if gone != "" {
		if first = parts.find(gone); len(first) == 0 {
			t.Fatalf("this test does not find the %s", gone)
		}
	}
	called, closed := make(chan struct{}), make(chan error, 1)
	go func() {
		close(called)
		closed <- sb.Close()
	}()
	<-called
	for len(first) > 0 {
		first = slices.DeleteFunc(first, func(pid int) bool {
			_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return err != nil
		})
	}
	for _, pid := range victims {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Error(err)
		}
	}
	select {
	case err := <-closed:
		t.Logf("Close: %v", err)
	case <-time.After(patience):
		t.Fatal("Close hangs")
	}
	nothingRemains(t, home, sb.ID)
	if sb.Err() == nil {
		t.Error("a sandbox that was closed says that it runs")
	}
	if victim == "maker" {
		if err := <-saved; err == nil {
			t.Log("the checkpoint was done before")
		}
	}
	return sb.ID
}
