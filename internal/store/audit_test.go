package store

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// A database of before the audit gets it, and keeps what it holds.
func TestAuditMigration(t *testing.T) {
	ctx, home := t.Context(), t.TempDir()
	first, err := fs.ReadFile(migrations, "migrations/00001_sandboxes_and_runs.sql")
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(ctx, home, fstest.MapFS{"00001_sandboxes_and_runs.sql": {Data: first}})
	if err != nil {
		t.Fatal(err)
	}
	run, err := s.InsertRun(ctx, Run{Repo: "/r"})
	if err != nil {
		t.Fatal(err)
	}
	box, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", RunID: run.ID})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s, err = Open(ctx, home); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if kept, err := s.Sandbox(ctx, box.ID); err != nil || kept.RunID != run.ID {
		t.Errorf("the sandbox: %+v, %v", kept, err)
	}
	if end, err := s.AuditEnd(ctx); err != nil || end != 0 {
		t.Errorf("the new audit ends at %d, %v", end, err)
	}
	err = s.AppendAudit(ctx, func(last AuditRecord) ([]AuditRecord, error) {
		if last.Seq != 0 {
			t.Errorf("the new audit has a row: %+v", last)
		}
		return []AuditRecord{{Seq: 1, Time: Now(), Action: "a", Decision: Denied, RunID: run.ID, Count: 1, Hash: strings.Repeat("0", 64)}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Audit(ctx, AuditFilter{RunID: run.ID}); err != nil || len(rows) != 1 || rows[0].Detail != nil {
		t.Errorf("got %+v, %v", rows, err)
	}
	if end, err := s.AuditEnd(ctx); err != nil || end != 1 {
		t.Errorf("it ends at %d, %v", end, err)
	}
}
