package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// nursery opens children, and knows which are open.
type nursery struct {
	t     testing.TB
	model func(Spawn) Model

	mu         sync.Mutex
	opened     []string
	closed     []string
	now, most  int
	limits     Limits
	openFails  error
	openPanics bool
	closeFails error
}

func (n *nursery) open(_ context.Context, s Spawn) (Child, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opened = append(n.opened, s.ID)
	n.now++
	n.most = max(n.most, n.now)
	c := Child{Close: func(ctx context.Context) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if ctx.Err() != nil {
			n.t.Error("a child is closed with what is canceled already")
		}
		n.closed = append(n.closed, s.ID)
		n.now--
		return n.closeFails
	}}
	switch {
	case n.openPanics:
		panic("the opening broke")
	case n.openFails != nil:
		return c, n.openFails
	}
	c.Loop = loopOf(n.t, Config{Model: n.model(s), Limits: n.limits})
	return c, nil
}

func (n *nursery) allClosed() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.opened)
	slices.Sort(n.closed)
	if !slices.Equal(n.opened, n.closed) {
		n.t.Errorf("%v were opened, and %v closed", n.opened, n.closed)
	}
}

func spawn(task string) Call { return call("spawn", object{"task": task}) }

// all is what the model was told in the end, in all.
func all(m *scripted) string {
	var b strings.Builder
	for _, msg := range m.request(m.times() - 1).Messages {
		for _, r := range msg.Results {
			b.WriteString(r.Text + "\n")
		}
		if msg.Role == User {
			b.WriteString(msg.Text + "\n")
		}
	}
	return b.String()
}

// How a sub-agent ended is told apart, and whatever happened, it is closed. Its report is fenced.
func TestReports(t *testing.T) {
	look := func() step { return asks(call("nobody", nil)) }
	for name, c := range map[string]struct {
		set    func(*nursery)
		steps  func() []step
		wall   time.Duration
		status string
		says   string
	}{
		"done":         {nil, func() []step { return []step{asks(finish("it is at line 7"))} }, 0, SubDone, "it is at line 7"},
		"with a text":  {nil, func() []step { return []step{says("it is at line 7")} }, 0, SubDone, "it is at line 7"},
		"with nothing": {nil, func() []step { return []step{says(" ")} }, 0, SubDone, "it said nothing"},
		"iterations":   {func(n *nursery) { n.limits.Iterations = 1 }, func() []step { return []step{look()} }, 0, SubExhausted, "as often as it may"},
		"tokens":       {func(n *nursery) { n.limits.Tokens = 1 }, func() []step { return []step{look()} }, 0, SubExhausted, "tokens"},
		"its own time": {func(n *nursery) { n.limits.Wall = time.Millisecond }, func() []step { return []step{hangs(make(chan struct{}))} }, 0, SubTimeout, "longer than 1ms"},
		"its wall":     {nil, func() []step { return []step{hangs(make(chan struct{}))} }, 50 * time.Millisecond, SubTimeout, "longer than 50ms"},
		"no model": {nil, func() []step {
			return []step{func(context.Context, Request, func(string)) (Answer, error) { return Answer{}, errBroken }}
		}, 0, SubFailed, errBroken.Error()},
		"no sandbox": {func(n *nursery) { n.openFails = errBroken }, nil, 0, SubFailed, errBroken.Error()},
		"it panics": {nil, func() []step {
			return []step{func(context.Context, Request, func(string)) (Answer, error) { panic("the child broke") }}
		}, 0, SubFailed, "the child broke"},
		"its end fails":  {func(n *nursery) { n.closeFails = errBroken }, func() []step { return []step{says("so")} }, 0, SubFailed, "could not be ended: " + errBroken.Error()},
		"failed anyway":  {func(n *nursery) { n.closeFails = errors.New("another"); n.limits.Iterations = 1 }, func() []step { return []step{look()} }, 0, SubExhausted, "as often"},
		"opening panics": {func(n *nursery) { n.openPanics = true }, nil, 0, SubFailed, "the opening broke"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nursery{t: t, model: func(Spawn) Model { return script(t, c.steps()...) }}
			if c.set != nil {
				c.set(n)
			}
			subs := NewSubagents(n.open, SubLimits{Wall: c.wall})
			var ear heard
			m := script(t, asks(call("spawn", object{"task": "look for it", "label": "a look"})), says("I wait"), says("done"))
			within(t, "the turn's end", func() { turnOf(t, loopOf(t, Config{Model: m, Subagents: subs, Emit: ear.hear}), Finished) })
			text := all(m)
			mentions(t, text, "The sub-agent sub-1 has begun", "The sub-agent sub-1 (a look) has ended: "+c.status, c.says)
			_, report, _ := strings.Cut(text, "What it says:\n")
			report, _, _ = strings.Cut(report, "\n\n")
			inside, _ := inFence(t, strings.TrimSpace(report))
			mentions(t, inside, c.says)
			if !n.openPanics {
				n.allClosed()
			}
			notes := ear.of(EventNote)
			if len(notes) != 1 || notes[0].Agent != "sub-1" || notes[0].Failed != (c.status != SubDone) {
				t.Errorf("it is told as %+v", notes)
			}
			if subs.Running() != 0 {
				t.Errorf("%d are under way", subs.Running())
			}
		})
	}
}

// A model that spawns a hundred in one message gets as many as may wait, of which as many run at once as may; the others
// are refused, and that is a result.
func TestSubagentBomb(t *testing.T) {
	const atOnce, queue = 3, 7
	var here sync.WaitGroup
	here.Add(atOnce)
	var came atomic.Int32
	n := &nursery{t: t, model: func(s Spawn) Model {
		return script(t, func(ctx context.Context, r Request, say func(string)) (Answer, error) {
			if came.Add(1) <= atOnce {
				here.Done()
				here.Wait()
			}
			return says("I am "+s.ID)(ctx, r, say)
		})
	}}
	begin := make(chan struct{})
	subs := NewSubagents(func(ctx context.Context, s Spawn) (Child, error) {
		<-begin // so that none makes place for another before all were asked for
		return n.open(ctx, s)
	}, SubLimits{AtOnce: atOnce, Queue: queue, PerHour: 1000})
	var calls []Call
	for i := range 100 {
		calls = append(calls, spawn(fmt.Sprintf("task %d", i)))
	}
	var steps []step
	steps = append(steps, asks(calls[:50]...), asks(calls[50:]...), func(ctx context.Context, r Request, say func(string)) (Answer, error) {
		close(begin)
		return says("I wait")(ctx, r, say)
	})
	for range 100 {
		steps = append(steps, says("and wait"))
	}
	m := script(t, steps...)
	within(t, "the turn's end", func() { turnOf(t, loopOf(t, Config{Model: m, Subagents: subs}), Finished) })
	text := all(m)
	if begun, refused := strings.Count(text, "has begun"), strings.Count(text, "wait for a place already"); begun != atOnce+queue || refused != 100-begun {
		t.Errorf("%d were begun, and %d refused", begun, refused)
	}
	if reports := strings.Count(text, "has ended: done"); reports != atOnce+queue {
		t.Errorf("%d have reported", reports)
	}
	if len(n.opened) != atOnce+queue || n.most != atOnce {
		t.Errorf("%d were opened, %d at once", len(n.opened), n.most)
	}
	n.allClosed()
}

// Only so many are begun within an hour, whether or not they have ended.
func TestSubagentsPerHour(t *testing.T) {
	n := &nursery{t: t, model: func(Spawn) Model { return script(t) }}
	subs := NewSubagents(n.open, SubLimits{PerHour: 2})
	now := time.Unix(1_000_000, 0)
	subs.now = func() time.Time { return now }
	loopOf(t, Config{Model: script(t), Subagents: subs})
	try := func(ok bool) {
		t.Helper()
		switch _, err := subs.Spawn("a", "task"); {
		case ok != (err == nil):
			t.Errorf("at %v: %v", now, err)
		case err != nil:
			mentions(t, err.Error(), "within an hour", "the next one may be in")
		}
		if err := subs.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	try(true)
	now = now.Add(40 * time.Minute)
	try(true)
	now = now.Add(15 * time.Minute)
	try(false)
	if _, err := subs.Spawn("a", "task"); err == nil || !strings.Contains(err.Error(), "in 5m0s") {
		t.Errorf("when the next may be: %v", err)
	}
	now = now.Add(5*time.Minute + time.Second)
	try(true)
	try(false)
	now = now.Add(40 * time.Minute)
	try(true)
	subs.cancel()
	n.allClosed()
}

// What a model writes for a task is looked at.
func TestSpawnArguments(t *testing.T) {
	got := make(chan Spawn, 10)
	n := &nursery{t: t, model: func(s Spawn) Model { got <- s; return script(t) }}
	m := script(t, asks(spawn(" "), spawn(strings.Repeat("x", mostTask+1)), call("spawn", nil), call("spawn", object{"task": "a", "depth": 9}),
		call("spawn", object{"task": "find\x00 it", "label": strings.Repeat("é\n", 100)})), says("I wait"), says("done"))
	turnOf(t, loopOf(t, Config{Model: m, Subagents: NewSubagents(n.open, SubLimits{})}), Finished)
	for i, says := range []string{"no task", "at most 65536", "lack task", "depth", "has begun"} {
		mentions(t, m.told(1).Results[i].Text, says)
	}
	s := await(t, "the task", got)
	if s.Task != "find\uFFFD it" || s.Label != strings.Repeat("é ", 30)+"…" || len(got) > 0 {
		t.Errorf("it was spawned as %+q", s)
	}
}

// Sub-agents end with the turn of their parent, however it ends: those that run and those that wait; and the turn does
// not end before they have.
func TestSubagentsEndWithTurn(t *testing.T) {
	waits := func(ctx context.Context, _ Request, _ func(string)) (Answer, error) {
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
	for name, c := range map[string]struct {
		last   step
		limits Limits
		reason Reason
	}{
		"finished":    {asks(finish("done")), Limits{}, Finished},
		"failed":      {func(context.Context, Request, func(string)) (Answer, error) { return Answer{}, errBroken }, Limits{}, Failed},
		"exhausted":   {asks(call("nobody", nil)), Limits{Iterations: 2}, Iterations},
		"out of time": {waits, Limits{Wall: 3 * time.Second}, OutOfTime},
	} {
		t.Run(name, func(t *testing.T) {
			var (
				n    *nursery
				subs *Subagents
				ear  *heard
				m    *scripted
				l    *Loop
			)
			try := func(limits Limits) (begun bool) {
				at := make(chan struct{})
				n = &nursery{t: t, model: func(Spawn) Model { return script(t, hangs(at)) }}
				subs, ear = NewSubagents(n.open, SubLimits{AtOnce: 1}), &heard{}
				m = script(t, asks(spawn("one"), spawn("two")), func(ctx context.Context, r Request, say func(string)) (Answer, error) {
					select {
					case <-at:
						begun = true
					case <-ctx.Done():
					}
					return c.last(ctx, r, say)
				})
				l = loopOf(t, Config{Model: m, Subagents: subs, Limits: limits, Emit: ear.hear})
				within(t, "the turn's end", func() { turnOf(t, l, c.reason) })
				return begun
			}
			// A turn that was out of time before one of them had begun says nothing of them.
			limits := c.limits
			for !try(limits) && limits.Wall > 0 && limits.Wall < patience/4 {
				limits.Wall *= 4
			}
			if subs.Running() != 0 || len(n.opened) != 1 {
				t.Errorf("%d are under way, and %v were opened", subs.Running(), n.opened)
			}
			n.allClosed()
			last := ear.all[len(ear.all)-1]
			if notes := ear.of(EventNote); len(notes) != 2 || !strings.HasSuffix(notes[0].Text, SubCanceled) || last.Kind != EventEnd {
				t.Errorf("told is %+v, and in the end %+v", notes, last)
			}
			// The next turn has none of their reports, and may have others.
			n.model = func(Spawn) Model { return script(t, says("a new one")) }
			m.steps = append(slices.Repeat([]step{nil}, m.times()), asks(spawn("three")), says("I wait"), says("done"))
			l.c.Limits = Limits{}.withDefaults()
			within(t, "the next turn's end", func() { turnOf(t, l, Finished) })
			text := all(m)
			mentions(t, text, "a new one", "sub-3")
			if strings.Contains(text, SubCanceled) {
				t.Errorf("what ended with the turn before is told: %s", text)
			}
		})
	}
}

// A turn that panics takes its sub-agents along: a sub-agent of a sub-agent ends when that one breaks.
func TestSubagentsOfOneThatPanics(t *testing.T) {
	at := make(chan struct{})
	inner := &nursery{t: t, model: func(Spawn) Model { return script(t, hangs(at)) }}
	outer := NewSubagents(func(context.Context, Spawn) (Child, error) {
		return Child{Loop: loopOf(t, Config{Subagents: NewSubagents(inner.open, SubLimits{}), Model: script(t, asks(spawn("deep")), func(context.Context, Request, func(string)) (Answer, error) {
			<-at
			panic("the child broke")
		})})}, nil
	}, SubLimits{})
	m := script(t, asks(spawn("one")), says("I wait"), says("done"))
	within(t, "the turn's end", func() { turnOf(t, loopOf(t, Config{Model: m, Subagents: outer}), Finished) })
	mentions(t, all(m), "has ended: failed", "the child broke")
	inner.allClosed()
	if len(inner.closed) != 1 {
		t.Errorf("%v were closed", inner.closed)
	}
}

// Reports come with the results of the next calls, too, and no later.
func TestReportsBesideResults(t *testing.T) {
	n := &nursery{t: t, model: func(Spawn) Model { return script(t, says("found")) }}
	subs := NewSubagents(n.open, SubLimits{})
	wait := hand{name: "wait", do: func(ctx context.Context, _ json.RawMessage) (Result, error) {
		return Result{Text: "waited"}, subs.wait(ctx)
	}}
	m := script(t, asks(spawn("one")), asks(call("wait", nil)), says("done"))
	turnOf(t, loopOf(t, Config{Model: m, Subagents: subs, Tools: []Tool{wait}}), Finished)
	beside := m.told(1).Text + m.told(2).Text
	if strings.Count(beside, "has ended: done") != 1 || m.times() != 3 {
		t.Errorf("beside the results is told %q, in %d questions", beside, m.times())
	}
	if begun := strings.Index(all(m), "has begun"); begun > strings.Index(all(m), "has ended") {
		t.Error("it has ended before it began")
	}
}
