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

// A message whose try was begun a moment ago, and whose run is not in the record yet, can be canceled.
func TestCancelOfWhatIsJustBegun(t *testing.T) {
	w := newWorld(t)
	_, k, err := w.store.AppendWork(t.Context(), store.Message{SessionID: w.mine.session.ID, Role: store.RoleUser, Text: "do it"}, store.Work{})
	if err != nil {
		t.Fatal(err)
	}
	const id = "run01begun"
	must[store.Work](t)(w.store.BeginWork(t.Context(), k.ID, id, ""))
	done := make(chan error, 1)
	go func() {
		_, err := cancelWork(t.Context(), w.env(access.AsOperator()), workInput{Work: k.ID})
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("there is no run yet: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{ID: id, Owner: must[procid.ID](t)(procid.Self())}))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r := must[store.Run](t)(w.store.Run(t.Context(), id)); r.Status != store.RunCanceled {
		t.Errorf("the run is %s", r.Status)
	}
}
