package run

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/audit"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// The sweep ends what a run waits for whose process was killed, and what nobody decided about in time, and says so where
// the audit has its head.
func TestSweepEndsWhatNobodyWaitsFor(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	self, err := procid.Self()
	must(t, err)
	dead := self
	dead.Start++
	log := audit.Log{Store: st, Head: filepath.Join(t.TempDir(), "head")}
	must(t, log.Append(t.Context(), audit.Record{Action: "test.begin", Decision: store.Allowed}))
	want := map[string]store.ApprovalStatus{}
	for owner, end := range map[procid.ID]store.ApprovalStatus{self: store.ApprovalPending, dead: store.ApprovalWithdrawn} {
		r, err := st.InsertRun(t.Context(), store.Run{Status: store.RunRunning, Owner: owner, CreatedBy: audit.Operator})
		must(t, err)
		for _, since := range []time.Duration{0, 2 * time.Hour} {
			at := store.Now().Add(-since)
			a, err := st.InsertApproval(t.Context(), store.Approval{RunID: r.ID, Tool: "exec", Command: "npm publish", Digest: strings.Repeat("a", 64), CreatedAt: at, ExpiresAt: at.Add(time.Hour)})
			must(t, err)
			if want[a.ID] = end; since > 0 && owner == self {
				want[a.ID] = store.ApprovalExpired
			}
		}
	}
	for range 2 {
		if report, err := (Sweeper{Home: home, Store: st, AuditHead: log.Head}).Prune(t.Context()); err != nil || len(report.Problems) > 0 {
			t.Fatalf("%+v, %v", report, err)
		}
		for id, status := range want {
			if a, err := st.Approval(t.Context(), id); err != nil || a.Status != status {
				t.Errorf("it is %+v, want %s; %v", a, status, err)
			}
		}
	}
	if rows, err := log.List(t.Context(), audit.Filter{Action: "approval."}); err != nil || len(rows) != 3 {
		t.Errorf("the audit: %+v, %v", rows, err)
	}
	if _, err := log.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
