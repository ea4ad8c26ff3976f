package store

import (
	"strings"
	"testing"
)

func TestAuditRows(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if end, err := s.AuditEnd(ctx); err != nil || end != 0 {
		t.Errorf("the new audit ends at %d, %v", end, err)
	}
	err := s.AppendAudit(ctx, func(last AuditRecord) ([]AuditRecord, error) {
		if last.Seq != 0 {
			t.Errorf("the new audit has a row: %+v", last)
		}
		row := AuditRecord{Seq: 1, Time: Now(), Action: "a", Decision: Denied, RunID: "run1", Caller: "operator", Count: 1, Hash: strings.Repeat("0", 64)}
		second := row
		second.Seq, second.Caller = 2, "ctx_a"
		return []AuditRecord{row, second}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Audit(ctx, AuditFilter{RunID: "run1"}); err != nil || len(rows) != 2 || rows[0].Detail != nil {
		t.Errorf("got %+v, %v", rows, err)
	}
	if rows, err := s.Audit(ctx, AuditFilter{Caller: "ctx_a"}); err != nil || len(rows) != 1 || rows[0].Seq != 2 || rows[0].Caller != "ctx_a" {
		t.Errorf("got %+v, %v", rows, err)
	}
	if end, err := s.AuditEnd(ctx); err != nil || end != 2 {
		t.Errorf("it ends at %d, %v", end, err)
	}
}
