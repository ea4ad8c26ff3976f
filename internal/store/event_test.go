package store

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Whatever is written is told, in its order, with the object that a capability names; no text, content or hash is in it.
func TestEverythingIsTold(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(second(s.UpdateAgent(ctx, w.agent.ID, func(a *Agent) error { a.Instructions = "secret text"; return nil })))
	must(second(s.UpdateSession(ctx, w.session.ID, func(c *Session) error { c.Title = "secret text"; return nil })))
	must(second(s.UpdateTask(ctx, w.task.ID, func(k *Task) error { k.Body = "secret text"; return nil })))
	must(second(s.SetTaskStatus(ctx, w.task.ID, TaskDone, TaskComment{Text: "secret text", RunID: w.run.ID})))
	pending, err := s.WriteMemory(ctx, MemoryFile{AgentID: w.agent.ID, Kind: MemorySkill, Path: "b", Content: "secret text", State: MemoryPending})
	must(err)
	must(second(s.DecideMemory(ctx, pending.ID, true, "operator")))
	must(second(s.UpdateRun(ctx, w.run.ID, func(r *Run) error { r.Status = RunRunning; return nil })))
	must(second(s.UpdateSandboxState(ctx, w.box.ID, SeenEnded, "done")))
	must(second(s.RevokeKey(ctx, w.key.ID, "lost")))
	must(s.DeleteProfile(ctx, "p"))
	must(second(s.EndLease(ctx, w.lease.ID, "over")))
	must(s.SlideModelLease(ctx, w.model.ID, Now().Add(2*time.Hour))) // not worth telling
	must(second(s.EndModelLease(ctx, w.model.ID, "over")))
	must(second(s.EndModelLease(ctx, w.model.ID, "again")))
	must(second(s.DecideApproval(ctx, w.approval.ID, ApprovalDecision{Grant: true, By: "operator", Note: "secret text", At: Now()})))

	events, err := s.Events(ctx, 0, 0)
	must(err)
	var got []string
	for i, e := range events {
		if e.Seq != int64(i+1) || time.Since(e.Time) > time.Minute || !json.Valid(e.Data) {
			t.Errorf("odd: %+v", e)
		}
		text, err := json.Marshal(e)
		if err != nil || strings.Contains(string(text), "secret text") || strings.Contains(string(text), w.key.Hash) || strings.Contains(string(text), w.model.Hash) || strings.Contains(string(text), "hello") ||
			strings.Contains(string(text), "npm") {
			t.Errorf("too much is told: %s, %v", text, err)
		}
		got = append(got, e.Kind+" "+e.Object+" "+e.RunID)
	}
	agent, session, task, run, box := w.agent.ID, w.session.ID, w.task.ID, w.run.ID, w.box.ID
	want := []string{
		"agent.created " + agent + " ", "session.created " + session + " ", "session.message " + session + " ", "task.created " + task + " ",
		"task.commented " + task + " ", "memory.written " + agent + " ", "run.created " + run + " " + run, "sandbox.created " + box + " " + run,
		"key.issued " + w.key.ID + " ", "profile.changed p ", "lease.begun " + w.lease.ID + " " + run,
		"model_lease.begun " + w.model.ID + " " + run, "approval.asked " + run + " " + run,
		"agent.changed " + agent + " ", "session.changed " + session + " ", "task.changed " + task + " ",
		"task.commented " + task + " " + run, "task.changed " + task + " " + run,
		"memory.written " + agent + " ", "memory.decided " + agent + " ", "run.changed " + run + " " + run, "sandbox.changed " + box + " " + run,
		"key.revoked " + w.key.ID + " ", "profile.deleted p ", "lease.ended " + w.lease.ID + " " + run,
		"model_lease.ended " + w.model.ID + " " + run, "approval.changed " + run + " " + run,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text := string(events[2].Data); text != `{"role":"user","seq":1}` {
		t.Errorf("of a message is told %s", text)
	}
	if text := string(events[17].Data); text != `{"status":"done"}` {
		t.Errorf("of a task is told %s", text)
	}
}

// What was refused did not happen; what cannot be told is not written.
func TestEventsAreOfTheTransaction(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	end, err := s.EventsEnd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	for name, write := range map[string]func() error{
		"run":     func() error { return second(s.UpdateRun(ctx, w.run.ID, func(*Run) error { return refused })) },
		"agent":   func() error { return second(s.InsertAgent(ctx, Agent{Name: w.agent.Name})) },
		"message": func() error { return second(s.AppendMessage(ctx, Message{SessionID: "sesnone", Role: RoleUser})) },
		"key":     func() error { return second(s.InsertKey(ctx, newKey("", "x"), func([]Key) error { return refused })) },
	} {
		if err := write(); err == nil {
			t.Errorf("%s was not refused", name)
		}
	}
	if now, err := s.EventsEnd(ctx); err != nil || now != end {
		t.Errorf("the events end at %d, %v; want %d", now, err, end)
	}
	if _, err := s.db.ExecContext(ctx, `CREATE TRIGGER no_events BEFORE INSERT ON events BEGIN SELECT raise(ABORT, 'no room'); END`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: "x"}); err == nil {
		t.Error("a message was written of which nobody is told")
	}
	if n, err := s.CountMessages(ctx, w.session.ID); err != nil || n != 1 {
		t.Errorf("there are %d messages, %v", n, err)
	}
}

func TestTrimEvents(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	fillOnce(t, s)
	end, err := s.EventsEnd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []int{int(end) + 5, 3, 0, -1} {
		if err := s.TrimEvents(ctx, keep); err != nil {
			t.Fatal(err)
		}
		left, err := s.Events(ctx, 0, 0)
		if err != nil || len(left) != max(min(keep, int(end)), 0) {
			t.Errorf("keeping %d: %d are left, %v", keep, len(left), err)
		}
		if now, err := s.EventsEnd(ctx); err != nil || now != end {
			t.Errorf("keeping %d: the end is %d, %v; want %d", keep, now, err, end)
		}
	}
	if _, err := s.InsertRun(ctx, Run{}); err != nil {
		t.Fatal(err)
	}
	if next, err := s.Events(ctx, end, 1); err != nil || len(next) != 1 || next[0].Seq != end+1 {
		t.Errorf("the next one: %+v, %v", next, err)
	}
	if page, err := s.Events(ctx, end+1, 10); err != nil || len(page) != 0 || page == nil {
		t.Errorf("after the last: %+v, %v", page, err)
	}
}

func TestWatcher(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	other, err := Open(ctx, databaseDir(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	w, err := s.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	expect := func(when string, want bool) {
		t.Helper()
		if got, err := w.Changed(ctx); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", when, got, err, want)
		}
	}
	expect("first", true)
	expect("then", false)
	for _, by := range []*Store{s, other} {
		run, err := by.InsertRun(ctx, Run{})
		if err != nil {
			t.Fatal(err)
		}
		expect("after a write", true)
		expect("after nothing", false)
		if _, err := by.Run(ctx, run.ID); err != nil {
			t.Fatal(err)
		}
		expect("after a look", false)
	}
}

func BenchmarkWatcher(b *testing.B) {
	s, err := Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	w, err := s.Watch(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for b.Loop() {
		if _, err := w.Changed(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
