package dispatch

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"ravi/internal/runner"
	"ravi/internal/store"
)

// A runner that lends nothing any more is no try that failed, however often it is found out, and gets nothing until it is
// heard again.
func TestARunnerThatIsGoneIsNoTry(t *testing.T) {
	w := newWorld(t)
	runners, err := ListenRunners(w.nc, w.st, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runners.Close(); err != nil {
			t.Error(err)
		}
	})
	speaks := func(name string) {
		room := runner.Capacity{CPUs: 100, MemoryMiB: 100 << 10, Sandboxes: 10}
		b, err := json.Marshal(Said{Status: runner.Status{Capacity: room, Free: room}})
		if err == nil {
			err = w.nc.Publish(StatusSubject(name), b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.starts = func(try Try) error {
		if try.Runner == "one" {
			return fmt.Errorf("%w: it is revoked", ErrNoRunner)
		}
		return nil
	}
	speaks("one")
	w.dispatcher(func(o *Options) { o.Runs, o.Runners = -1, runners })
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	for n := range 5 {
		w.until("a try", func() bool { return len(w.tries()) == n+1 })
		w.until("that it waits", func() bool { return w.work(k.ID).Status == store.WorkQueued })
		if n < 4 {
			speaks("one")
		}
	}
	if got := w.work(k.ID); len(w.tries()) != 5 || got.Tries != 0 {
		t.Errorf("the work is %+v after %d tries", got, len(w.tries()))
	}
	speaks("two")
	w.over(k)
	if got := w.work(k.ID); got.Status != store.WorkDone || got.Runner != "two" || got.Tries != 0 || len(w.tries()) != 6 {
		t.Errorf("the work is %+v after %d tries", got, len(w.tries()))
	}
}
