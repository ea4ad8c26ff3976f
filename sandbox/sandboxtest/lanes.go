package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/sandbox"
)

// lanesThere is how many commands of a sandbox have a lane.
const lanesThere = 8

// lanes: commands that have their input and output to themselves do as others, and what is hostile gets nothing by it.
func (s suite) lanes(t *testing.T) {
	t.Run("stream", func(t *testing.T) { s.stream(t, true) })
	t.Run("input that nobody reads", func(t *testing.T) {
		r := s.room(t)
		r.lane = true
		unreadInput(t, r)
	})
	t.Run("the same as without", s.alike)
	t.Run("each is used once", s.usedUp)
	t.Run("the caller says no more", s.callerWaits)
	t.Run("misused", s.misused)
	if s.f.Checkpoint {
		t.Run("restored", s.lanesRestored)
	}
}

// outcome is all that there is to know of a command.
type outcome struct {
	status         sandbox.Status
	stdout, stderr string
	failed         bool
}

// outcomeOf runs a command by Start.
func outcomeOf(t *testing.T, r *room, c sandbox.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &out
	}
	if c.Stderr == nil {
		c.Stderr = &errs
	}
	p, err := r.Start(ctx(t), c)
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait()
	return outcome{status, out.String(), errs.String(), err != nil}
}

// alike: with a lane and without, the same comes of a command.
func (s suite) alike(t *testing.T) {
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(i * 7 >> 3)
	}
	block := make(chan struct{})
	defer close(block)
	cases := []struct {
		name  string
		shell string
		stdin func() io.Reader
		more  func(*sandbox.Cmd)
	}{
		{"no input", "cat; echo end", nil, nil},
		{"much of both", "cat; cat /dev/null >&2; echo done >&2", func() io.Reader { return bytes.NewReader(big) }, nil},
		{"empty input", "cat", func() io.Reader { return strings.NewReader("") }, nil},
		{"unread input", "exit 3", func() io.Reader { return endless{} }, nil},
		{"silent input", "read x; echo $x", func() io.Reader { return &lineThenSilence{block: block} }, nil},
		{"input closed by the command", "exec <&-; sleep 0.3; echo on", func() io.Reader { return endless{} }, nil},
		{"output closed by the command", "echo a; exec >&-; sleep 0.2; echo late >&2; exec 2>&-; sleep 0.2; exit 7", nil, nil},
		{"half a line", "printf x", nil, nil},
		{"held by another", "sleep 43.9 & echo hi", nil, nil},
		{"flooded by another", "(timeout 600 yes 43.8 &) 2>/dev/null; sleep 0.2; exit 5", nil, func(c *sandbox.Cmd) { c.Stdout = io.Discard }},
		{"killed by itself", "echo so; kill -9 $$", nil, nil},
		{"no time", "echo so; sleep 44", nil, func(c *sandbox.Cmd) { c.Timeout = sandbox.After(3 * time.Second) }},
		{"a writer that fails", "yes 44.1", nil, func(c *sandbox.Cmd) { c.Stdout = failing{} }},
		{"one writer for both", "head -c 5000000 /dev/zero & head -c 5000000 /dev/zero >&2; wait", nil, func(c *sandbox.Cmd) {
			one := &single{t: t}
			c.Stdout, c.Stderr = one, one
		}},
		{"devices", "cat /dev/stdin; echo x > /dev/stdout; echo y > /dev/stderr", func() io.Reader { return strings.NewReader("in\n") }, func(c *sandbox.Cmd) { c.User = "root" }},
		{"signalled", "trap 'echo got; exit 4' TERM; (sleep 0.2; kill $$) >/dev/null 2>&1 & wait", nil, nil},
		{"not there", "no-such-program", nil, nil},
	}
	var plain, laned *room
	for i, tc := range cases {
		if i%lanesThere == 0 { // each has that many
			plain, laned = s.room(t), s.room(t)
			laned.lane = true
		}
		t.Run(tc.name, func(t *testing.T) {
			var got [2]outcome
			for i, r := range []*room{plain, laned} {
				c := sandbox.Cmd{Shell: tc.shell}
				if tc.stdin != nil {
					c.Stdin = tc.stdin()
				}
				if tc.more != nil {
					tc.more(&c)
				}
				got[i] = outcomeOf(t, r, c)
				// One whose time was over before it had begun says nothing. A lane is for one command, so another gets a room of its own.
				for limit := 12 * time.Second; tc.name == "no time" && got[i].stdout == "" && limit < time.Minute; limit *= 3 {
					again := s.room(t)
					again.lane, c.Timeout = r.lane, sandbox.After(limit)
					got[i] = outcomeOf(t, again, c)
				}
				r.sh(t, "pkill -x yes; true") // which would flood for long
			}
			if got[0] != got[1] {
				t.Errorf("without: %s; with: %s", short(got[0]), short(got[1]))
			}
			equal(t, "another command", laned.sh(t, "echo ok"), "ok\n")
		})
	}
	for mark, r := range map[string]*room{"yes 44.1": laned, "sleep 44": laned} {
		if left := r.alive(t, mark); left != "" {
			t.Errorf("still running: %s", left)
		}
	}
}

// single is a writer that must not be called twice at once.
type single struct {
	t    testing.TB
	busy atomic.Bool
}

func (s *single) Write(b []byte) (int, error) {
	if s.busy.Swap(true) {
		s.t.Error("two write at once")
	}
	defer s.busy.Store(false)
	runtime.Gosched()
	return len(b), nil
}

// usedUp: there are so many, a command that cannot be started uses none, and then it goes on without, which is said.
func (s suite) usedUp(t *testing.T) {
	r := s.room(t)
	for range 3 {
		if _, err := r.Start(ctx(t), sandbox.Cmd{Args: []string{"no-such-program"}, Lane: true}); !errors.Is(err, sandbox.ErrCommandNotFound) {
			t.Errorf("one that is not there: %v", err)
		}
	}
	if _, err := r.Start(ctx(t), sandbox.Cmd{Shell: "true", Lane: true, TTY: &sandbox.Size{Cols: 1, Rows: 1}}); !errors.Is(err, sandbox.ErrBadCommand) {
		t.Errorf("with a terminal: %v", err)
	}
	var running []*sandbox.Process
	for i := range lanesThere + 2 {
		out := newBuffer()
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `while read x; do echo "<$x>"; done`, Stdin: never(t), Stdout: out, Lane: true})
		if err != nil {
			t.Fatal(err)
		}
		if want := i >= lanesThere; want != strings.Contains(p.NoLane(), fmt.Sprintf("it had %d", lanesThere)) || !want && p.NoLane() != "" {
			t.Errorf("number %d: %q", i, p.NoLane())
		}
		text := fmt.Sprint("line ", i)
		if err := p.Write(ctx(t), []byte(text+"\n")); err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "<"+text+">\n")
		running = append(running, p)
	}
	// Another hold on the sandbox has no more of them.
	other, err := sandbox.Attach(ctx(t), r.ID, sandbox.WithHome(s.f.Home))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	p, err := other.Start(ctx(t), sandbox.Cmd{Shell: "true", Lane: true})
	if err != nil || p.NoLane() == "" {
		t.Errorf("another hold: %v", err)
	}
	wait(t, p, sandbox.Status{})
	if _, err := r.Reconnect(ctx(t), sandbox.ProcessRef{PID: running[0].PID()}, sandbox.Cmd{Lane: true}); !errors.Is(err, sandbox.ErrBadCommand) {
		t.Errorf("one that runs already: %v", err)
	}
	for _, p := range running {
		if err := p.CloseStdin(ctx(t)); err != nil {
			t.Error(err)
		}
		wait(t, p, sandbox.Status{})
		if err := p.Write(ctx(t), []byte("x")); err == nil {
			t.Error("one that has ended takes input")
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(ctx(t), sandbox.Cmd{Shell: "true", Lane: true}); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("in a sandbox that is closed: %v", err)
	}
}

// callerWaits: a call that gives up does not, and what it did not write is not written later.
func (s suite) callerWaits(t *testing.T) {
	r := s.room(t)
	r.lane = true
	out := newBuffer()
	p, err := r.Start(ctx(t), sandbox.Cmd{Shell: "read x; wc -c", Stdin: never(t), Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx(t), 100*time.Millisecond)
	defer cancel()
	if err := p.Write(soon, make([]byte, 16<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what does not fit: %v", err)
	}
	if err := p.Write(soon, []byte("\n")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a time that is over: %v", err)
	}
	go func() { _ = p.Write(ctx(t), []byte("\nrest")) }() // it waits for what is before it
	eventually(t, "it is read", func() bool { return r.alive(t, "wc -c") != "" })
	if err := p.CloseStdin(ctx(t)); err != nil {
		t.Error(err)
	}
	wait(t, p, sandbox.Status{})
}

// misused: what the sandbox's root does with the ends of its lanes harms the sandbox's own commands only.
func (s suite) misused(t *testing.T) {
	r := s.room(t)
	// All that write to the lanes of the agent, before anybody has them, and go on. A word is there before the rest has begun.
	flood := newBuffer()
	f, err := r.Start(ctx(t), sandbox.Cmd{User: "root", Stdout: flood, Shell: `for fd in 6 8 10 12 14 16 18 20; do
		(exec 3>/proc/1/fd/$fd && echo garbage-45.6 >&3 && echo opened; exec yes garbage-45.6 >&3) & done; wait`})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lanes are opened", func() bool { return strings.Count(flood.String(), "opened\n") == lanesThere })
	for range 2 {
		var out tally
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `echo mine; echo ours >&2`, Stdout: &out, Lane: true})
		if err != nil {
			t.Fatal(err)
		}
		if p.NoLane() != "" {
			t.Fatal(p.NoLane())
		}
		// It ends, though there is no end to what comes.
		wait(t, p, sandbox.Status{OutputLeft: true})
		if !out.saw("garbage-45.6") || !out.saw("mine\n") {
			t.Error("what was written did not come")
		}
		equal(t, "another command", r.sh(t, "echo ok"), "ok\n")
	}
	if _, err := r.Stats(ctx(t)); err != nil {
		t.Error(err)
	}
	if err := r.Files().Write(ctx(t), r.path("x"), strings.NewReader("x")); err != nil {
		t.Error(err)
	}
	if err := f.Kill(ctx(t)); err != nil {
		t.Error(err)
	}
	if _, err := f.Wait(); err != nil {
		t.Error(err)
	}
}

// tally forgets what it is told but for whether some text was in it.
type tally struct {
	last string
	all  map[string]bool
}

func (y *tally) Write(b []byte) (int, error) {
	if y.all == nil {
		y.all = map[string]bool{}
	}
	text := y.last + string(b)
	for _, want := range []string{"garbage-45.6", "mine\n"} {
		y.all[want] = y.all[want] || strings.Contains(text, want)
	}
	y.last = text[max(len(text)-20, 0):]
	return len(b), nil
}

func (y *tally) saw(text string) bool { return y.all[text] }

// lanesRestored: a lane goes on in a sandbox that was saved, and is over in one that was restored, which has none.
func (s suite) lanesRestored(t *testing.T) {
	ws := t.TempDir()
	r := s.roomOn(t, ws)
	out := newBuffer()
	p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `while read x; do echo "<$x>"; done; echo over > /tmp/over`, Stdin: never(t), Stdout: out, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		if err := p.Write(ctx(t), []byte(text+"\n")); err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "<"+text+">")
	}
	say("before")
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := r.Checkpoint(ctx(t), dir); err != nil {
		t.Fatal(err)
	}
	say("after")
	if err := p.CloseStdin(ctx(t)); err != nil {
		t.Fatal(err)
	}
	wait(t, p, sandbox.Status{})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for from := range 2 { // of one that was restored as well
		again := s.f.Open(t, s.config(), ws, sandbox.WithCheckpoint(dir))
		t.Cleanup(func() { _ = again.Close() })
		r := &room{Sandbox: again, ws: ws, dir: r.dir}
		eventually(t, "its input has ended", func() bool { return r.sh(t, "cat /tmp/over 2>/dev/null; true") == "over\n" })
		out := newBuffer()
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: "cat", Stdin: strings.NewReader("all the same"), Stdout: out, Lane: true})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, p, sandbox.Status{})
		equal(t, "output", out.String(), "all the same")
		if !strings.Contains(p.NoLane(), "restored") {
			t.Errorf("it has a lane, or says %q", p.NoLane())
		}
		if from == 0 {
			dir = filepath.Join(t.TempDir(), "again")
			if err := r.Checkpoint(ctx(t), dir); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// noLanes: where there are none, commands work all the same, and say so.
func (s suite) noLanes(t *testing.T) {
	r := s.room(t)
	out := newBuffer()
	p, err := r.Start(ctx(t), sandbox.Cmd{Shell: "cat", Stdin: strings.NewReader("all the same"), Stdout: out, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, p, sandbox.Status{})
	equal(t, "output", out.String(), "all the same")
	if p.NoLane() == "" {
		t.Error("that it has no lane is not said")
	}
}
