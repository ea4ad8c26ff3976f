package run

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"ravi/internal/procid"
	"ravi/internal/store"
)

// Who does a run is its owner until what came of it is written down.
func TestARunThatIsDoneIsNobodys(t *testing.T) {
	o := onHost(t, "true")
	task, err := Run(t.Context(), o)
	must(t, err)
	if r, err := o.Store.Run(t.Context(), task.ID); err != nil || r.Owner != (procid.ID{}) || !r.Status.Final() {
		t.Errorf("its owner is %v, it is %s, %v", r.Owner, r.Status, err)
	}
}

// The process of a run that was canceled may be killed before it says what came of it.
func TestSweepSettlesWhatWasCanceled(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	self, err := procid.Self()
	must(t, err)
	dead := self
	dead.Start++
	for name, c := range map[string]struct {
		owner   procid.ID
		settled bool
	}{"killed": {dead, true}, "at work": {self, false}} {
		r, err := st.InsertRun(t.Context(), store.Run{Status: store.RunRunning, Owner: c.owner})
		must(t, err)
		_, err = st.UpdateRun(t.Context(), r.ID, func(r *store.Run) error {
			r.Status, r.Reason = store.RunCanceled, "canceled"
			return nil
		})
		must(t, err)
		dir := filepath.Join(home, "runs", r.ID)
		must(t, os.MkdirAll(filepath.Join(dir, workPrefix+"1"), 0o700))
		told, err := json.Marshal(Task{ID: r.ID, Status: store.RunRunning})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, TaskFile), told, 0o600))

		if report, err := (Sweeper{Home: home, Store: st}).Prune(t.Context()); err != nil || len(report.Problems) > 0 {
			t.Fatalf("%s: %+v, %v", name, report, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, TaskFile))
		must(t, err)
		var task Task
		must(t, json.Unmarshal(b, &task))
		r, err = st.Run(t.Context(), r.ID)
		must(t, err)
		if settled := r.Owner == (procid.ID{}); settled != c.settled || r.Status != store.RunCanceled {
			t.Errorf("%s: its owner is %v, it is %s", name, r.Owner, r.Status)
		}
		if (task.Status == store.RunCanceled && task.EndedAt != nil) != c.settled || exists(filepath.Join(dir, workPrefix+"1")) == c.settled {
			t.Errorf("%s: its folder says %s, ended %v", name, task.Status, task.EndedAt)
		}
	}
}
