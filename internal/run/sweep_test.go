package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ravi/internal/procid"
	"ravi/internal/store"
)

// What its owner is about to make is left alone, whatever the clock says, also when it was recorded after the sweep had read
// the record. What has no owner goes.
func TestSweepLeavesWhatIsBeingMade(t *testing.T) {
	home := t.TempDir()
	s, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	dead := self
	dead.Start++ // the number is this process's now
	for name, c := range map[string]struct {
		owner procid.ID
		stays bool
	}{"owned": {self, true}, "orphaned": {dead, false}} {
		b, err := s.InsertSandbox(t.Context(), store.Sandbox{Owner: c.owner})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(home, "sandboxes", b.ID)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		jumped := time.Now().AddDate(-1, 0, 0) // the clock was put forward since
		if err := os.Chtimes(dir, jumped, jumped); err != nil {
			t.Fatal(err)
		}
		var r store.Swept
		if err := (Sweeper{Home: home, Store: s}).orphans(t.Context(), map[string]bool{}, &r); err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(dir)
		if stays := !errors.Is(err, fs.ErrNotExist); stays != c.stays || len(r.Problems) > 0 {
			t.Errorf("%s: it is there: %v (%v), problems %v", name, stays, err, r.Problems)
		}
	}
}

// A run whose folder cannot be read does not keep the sweep from the others.
func TestSweepGoesOnAfterAProblem(t *testing.T) {
	home := t.TempDir()
	s, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dead, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	dead.Start++
	for i := range 3 {
		r, err := s.InsertRun(t.Context(), store.Run{Owner: dead, CreatedBy: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		if i != 1 {
			continue
		}
		dir := filepath.Join(home, "runs", r.ID)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, TaskFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report, err := (Sweeper{Home: home, Store: s}).Prune(t.Context())
	if err != nil || len(report.Problems) != 1 {
		t.Errorf("one run cannot be closed: %+v, %v", report, err)
	}
	live, err := s.ListRuns(t.Context(), store.RunFilter{Live: true})
	if err != nil || len(live) > 0 {
		t.Errorf("%d runs of nobody are left, %v", len(live), err)
	}
}
