package run

import (
	"strings"
	"testing"

	"ravi/internal/audit"
	"ravi/internal/store"
)

// What is started by way of a debug socket has a row, without secrets, and moves the head that is configured. Without a
// row it is refused.
func TestDebugCall(t *testing.T) {
	home := t.TempDir()
	s := newStore(t, home)
	log := audit.Log{Store: s, Head: home + "/elsewhere"}
	r := Recorder{Store: s, RunID: "run1", Redact: redactor(), AuditHead: log.Head}
	must(t, r.DebugCall(t.Context(), "exec", "sbx1", []string{"echo", value}))
	rows, err := log.List(t.Context(), audit.Filter{})
	must(t, err)
	if len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	got := rows[0]
	if got.Action != "debug.exec" || got.Caller != audit.Operator || got.SandboxID != "sbx1" || got.RunID != "run1" || got.Decision != store.Allowed ||
		!strings.Contains(string(got.Detail), "echo") || strings.Contains(string(got.Detail), value) {
		t.Errorf("%+v %s", got, got.Detail)
	}
	if v, err := log.Verify(t.Context(), nil); err != nil {
		t.Errorf("%+v %v", v, err)
	}
	must(t, s.Close())
	if err := r.DebugCall(t.Context(), "exec", "sbx1", []string{"true"}); err == nil {
		t.Error("it is allowed, though it cannot be written down")
	}
}
