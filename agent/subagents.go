package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"ravi/internal/strictjson"
)

// SubLimits bound sub-agents. What is 0 has its default.
type SubLimits struct {
	AtOnce  int           // DefaultAtOnce
	Queue   int           // how many may wait for a place; 16
	PerHour int           // 30
	Wall    time.Duration // of each, from when it has a place; 30 minutes
}

// DefaultAtOnce is how many sub-agents run at once unless told otherwise.
const DefaultAtOnce = 4

func (l SubLimits) withDefaults() SubLimits {
	l.AtOnce, l.Queue, l.PerHour = cmp.Or(l.AtOnce, DefaultAtOnce), cmp.Or(l.Queue, 16), cmp.Or(l.PerHour, 30)
	l.Wall = cmp.Or(l.Wall, 30*time.Minute)
	return l
}

// Spawn is a sub-agent that is asked for.
type Spawn struct {
	ID, Label, Task string
}

// Child is what does a sub-agent's task: a loop with hands of its own. Close ends them, whatever happened.
type Child struct {
	Loop  *Loop
	Close func(context.Context) error
}

// How sub-agents end.
const (
	SubDone      = "done"
	SubFailed    = "failed"    // something could not be had, or was not done
	SubTimeout   = "timeout"   // its time ran out
	SubExhausted = "exhausted" // it had used what it may
	SubCanceled  = "canceled"
)

// Report is how a sub-agent ended. Text is what it said, or why there is nothing.
type Report struct {
	ID     string `json:"id"`
	Label  string `json:"label"`
	Status string `json:"status"`
	Text   string `json:"text"`
}

func (r Report) tell(most int) string {
	return fmt.Sprintf("The sub-agent %s (%s) has ended: %s. What it says:\n%s", r.ID, r.Label, r.Status, fenced(headAndTail(plainText(r.Text), most)))
}

// Subagents do tasks beside the loop that they belong to, and end with its turn.
type Subagents struct {
	open   func(context.Context, Spawn) (Child, error)
	limits SubLimits
	loop   *Loop
	now    func() time.Time

	mu      sync.Mutex
	began   []time.Time // of the last hour
	n       int
	running int // waiting ones are among them
	reports []Report
	changed chan struct{} // closed at the next report
	slots   chan struct{}
	ctx     context.Context // of the turn's
	stop    context.CancelFunc
	over    sync.WaitGroup
}

// NewSubagents makes a manager. open makes a child; what it opens has to end with ctx.
func NewSubagents(open func(context.Context, Spawn) (Child, error), limits SubLimits) *Subagents {
	limits = limits.withDefaults()
	s := &Subagents{open: open, limits: limits, now: time.Now, changed: make(chan struct{}), slots: make(chan struct{}, limits.AtOnce)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

func (s *Subagents) attach(l *Loop) { s.loop = l }

// Running says how many are under way, those that wait for a place among them.
func (s *Subagents) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Spawn begins a sub-agent, or says why not. It returns at once.
func (s *Subagents) Spawn(label, task string) (Spawn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hour := s.now().Add(-time.Hour)
	for len(s.began) > 0 && s.began[0].Before(hour) {
		s.began = s.began[1:]
	}
	switch {
	case len(s.began) >= s.limits.PerHour:
		return Spawn{}, fmt.Errorf("%d sub-agents were begun within an hour, which is as many as may be; the next one may be in %v",
			len(s.began), s.began[0].Sub(hour).Round(time.Second))
	case s.running-min(s.running, s.limits.AtOnce) >= s.limits.Queue:
		return Spawn{}, fmt.Errorf("%d sub-agents wait for a place already, which is as many as may: wait for the others", s.limits.Queue)
	}
	s.n++
	spawn := Spawn{ID: fmt.Sprintf("sub-%d", s.n), Label: label, Task: task}
	if err := s.loop.note(entry{Spawn: spawn.ID}); err != nil {
		return Spawn{}, err
	}
	s.began = append(s.began, s.now())
	s.running++
	ctx := s.ctx
	s.over.Go(func() { s.report(s.do(ctx, spawn)) })
	return spawn, nil
}

func (s *Subagents) report(r Report) {
	s.loop.c.emit(Event{Kind: EventNote, Agent: r.ID, Text: fmt.Sprintf("%s: %s", r.Label, r.Status), Failed: r.Status != SubDone})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.reports = append(s.reports, r)
	close(s.changed)
	s.changed = make(chan struct{})
}

// do does a sub-agent's task, whatever happens in it.
func (s *Subagents) do(ctx context.Context, spawn Spawn) (r Report) {
	r = Report{ID: spawn.ID, Label: spawn.Label, Status: SubFailed}
	defer func() {
		if p := recover(); p != nil {
			r.Status, r.Text = SubFailed, fmt.Sprintf("Ravi itself failed in it: %v", p)
		}
	}()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // also where a place came free with that
		r.Status, r.Text = SubCanceled, "it was canceled before it began"
		return r
	}
	bounded, cancel := context.WithTimeout(ctx, s.limits.Wall)
	defer cancel()
	ended := func(err error) bool {
		switch {
		case ctx.Err() != nil:
			r.Status, r.Text = SubCanceled, "it was canceled"
		case bounded.Err() != nil:
			r.Status, r.Text = SubTimeout, fmt.Sprintf("it took longer than %v", s.limits.Wall)
		case err != nil:
			r.Text = err.Error()
		default:
			return false
		}
		return true
	}
	child, err := s.open(bounded, spawn)
	if child.Close != nil {
		defer func() {
			if err := child.Close(context.WithoutCancel(ctx)); err != nil && r.Status == SubDone {
				r.Status, r.Text = SubFailed, "it could not be ended: "+err.Error()
			}
		}()
	}
	if err != nil {
		ended(err)
		return r
	}
	out, err := child.Loop.Turn(bounded, spawn.Task)
	if ended(err) {
		return r
	}
	r.Text = cmp.Or(out.Why, out.Text)
	switch out.Reason {
	case Finished:
		r.Status = SubDone
		if strings.TrimSpace(r.Text) == "" {
			r.Text = "(it said nothing)"
		}
	case Iterations, OutOfToken:
		r.Status = SubExhausted
	case OutOfTime:
		r.Status = SubTimeout
	case Canceled:
		r.Status = SubCanceled
	}
	return r
}

// take gives the reports that nobody has taken.
func (s *Subagents) take() []Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.reports
	s.reports = nil
	return out
}

// wait returns once there is a report to take, or nobody is under way.
func (s *Subagents) wait(ctx context.Context) error {
	for {
		s.mu.Lock()
		ready, changed := len(s.reports) > 0 || s.running == 0, s.changed
		s.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cancel ends all that are under way, and waits for that. Others may be begun afterwards.
func (s *Subagents) cancel() {
	s.stop()
	s.over.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = nil
	s.ctx, s.stop = context.WithCancel(context.Background())
}

// spawnTool lets a model begin sub-agents.
type spawnTool struct{ s *Subagents }

const (
	mostTask  = 64 << 10
	mostLabel = 60
)

func (spawnTool) Spec() Spec {
	return Spec{Name: "spawn", Description: "Begins a sub-agent that does a task by itself, in a sandbox of its own with a copy of the workspace as it is now. " +
		"It returns at once; what came of it is told to you later. What it changes stays in its sandbox: have it say what it found.",
		Schema: json.RawMessage(`{"type":"object","properties":{"task":{"type":"string","description":"all that it needs to know"},
			"label":{"type":"string","description":"a few words"}},"required":["task"],"additionalProperties":false}`)}
}

func (t spawnTool) Do(_ context.Context, raw json.RawMessage) (Result, error) {
	var a struct {
		Task  string `json:"task"`
		Label string `json:"label"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return Result{}, err
	}
	switch a.Task = plainText(a.Task); {
	case strings.TrimSpace(a.Task) == "":
		return refuse("there is no task"), nil
	case len(a.Task) > mostTask:
		return refuse("%s", tooMuch("the task has", len(a.Task), mostTask)), nil
	}
	label := plainText(strings.Join(strings.Fields(cmp.Or(a.Label, a.Task)), " "))
	if runes := []rune(label); len(runes) > mostLabel {
		label = string(runes[:mostLabel]) + "…"
	}
	spawn, err := t.s.Spawn(label, a.Task)
	var fault *errJournal
	switch {
	case errors.As(err, &fault):
		return Result{}, err
	case err != nil:
		return refuse("%v", err), nil
	}
	return Result{Text: fmt.Sprintf("The sub-agent %s has begun. You will be told what came of it.", spawn.ID), Trusted: true}, nil
}
