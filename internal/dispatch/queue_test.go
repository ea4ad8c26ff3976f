package dispatch

import (
	"testing"

	"ravi/internal/store"
)

// A bus that loses its streams under a dispatcher gets them anew, and what waited is done.
func TestABusThatLosesItsStreams(t *testing.T) {
	w := newWorld(t)
	w.dispatcher()
	c := w.session("acme", "main")
	w.over(w.send(c, "before", store.Normal))
	js := newJetStream(t, w.nc)
	for _, name := range []string{WorkStream, DeadStream, RunsStream} {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	k := w.send(c, "after", store.Normal)
	w.over(k)
	if got := w.work(k.ID); got.Status != store.WorkDone || got.Tries != 0 || len(w.tries()) != 2 {
		t.Errorf("the work is %+v after %d tries", got, len(w.tries()))
	}
}
