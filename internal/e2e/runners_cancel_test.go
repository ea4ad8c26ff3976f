package e2e

import (
	"testing"

	"ravi/internal/store"
)

// Whoever cancels a run whose sandbox is elsewhere cannot end that; the run does.
func TestACancelReachesARunner(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "echo begun; sleep 1000")
	one := l.runner("one")
	l.send("main", "wait")
	w := l.says("begun")
	boxes := one.boxes()
	if len(boxes) != 1 {
		t.Fatalf("the sandboxes are %v", boxes)
	}
	l.ravi("work", "cancel", w.ID).want(0)
	one.empty(boxes...)
	if all := l.over(); all[0].Status != store.WorkCanceled {
		t.Errorf("%+v", all[0])
	}
	run, err := l.st.Run(t.Context(), w.RunID)
	must(t, err)
	if run.Status != store.RunCanceled {
		t.Errorf("the run is %s (%s)", run.Status, run.Reason)
	}
}
