package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// A run that was canceled is waited for until its process has brought out what was done.
func TestWaitForWhatIsCanceled(t *testing.T) {
	w := newWorld(t)
	self := must[procid.ID](t)(procid.Self())
	r := must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{Status: store.RunCanceled, Owner: self}))
	env := w.env(access.AsOperator())
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	if got, err := waitRun(ctx, env, runsWaitInput{Run: r.ID}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its process is at work: %s, %v", got.Status, err)
	}
	done := make(chan error, 1)
	go func() {
		got, err := waitRun(t.Context(), env, runsWaitInput{Run: r.ID})
		if err == nil && got.Owner != (procid.ID{}) {
			err = errors.New("its process is at work still")
		}
		done <- err
	}()
	_, err := w.store.UpdateRun(t.Context(), r.ID, func(r *store.Run) error { r.Owner = procid.ID{}; return nil })
	if err = errors.Join(err, <-done); err != nil {
		t.Error(err)
	}
}

// What the access check found is handed on to that call, and to no later one.
func TestFoundIsOfOneCall(t *testing.T) {
	w := newWorld(t)
	env := w.env(w.holder("read:*"))
	old := w.mine.task
	old.Title = "what it was called before"
	env.Found = seen[store.Task]{old.ID, old}
	if out := must[any](t)(w.run(env, "tasks.show", `{"task": "`+old.ID+`"}`)); out.(taskShown).Title != w.mine.task.Title {
		t.Errorf("it is shown as %q", out.(taskShown).Title)
	}
	if env.Found != nil {
		t.Errorf("%v is left", env.Found)
	}
}
