package store

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// linked gives rows numbers, and hashes that mean nothing.
func linked(r *AuditRecord, seq int64, prev string) {
	r.Seq, r.Prev, r.Hash = seq, prev, fmt.Sprintf("%064d", seq)
}

func auditRow(caller string) AuditRecord {
	return AuditRecord{Time: Now(), Caller: caller, Action: "a", Decision: Denied, RunID: "run1", Count: 1}
}

func TestAuditRows(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if end, err := s.AuditEnd(ctx); err != nil || end != 0 {
		t.Errorf("the new audit ends at %d, %v", end, err)
	}
	conn := s.AuditConn()
	errs, err := conn.Append(ctx, [][]AuditRecord{{auditRow("operator"), auditRow("ctx_a")}}, linked)
	if err != nil || errs[0] != nil {
		t.Fatal(errs, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Audit(ctx, AuditFilter{RunID: "run1"}); err != nil || len(rows) != 2 || rows[0].Detail != nil || rows[1].Prev != rows[0].Hash {
		t.Errorf("got %+v, %v", rows, err)
	}
	if rows, err := s.Audit(ctx, AuditFilter{Caller: "ctx_a"}); err != nil || len(rows) != 1 || rows[0].Seq != 2 || rows[0].Caller != "ctx_a" {
		t.Errorf("got %+v, %v", rows, err)
	}
	if end, err := s.AuditEnd(ctx); err != nil || end != 2 {
		t.Errorf("it ends at %d, %v", end, err)
	}
}

// A row that the table refuses takes its own group with it, and nobody else's.
func TestAuditGroups(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	good, bad := auditRow("good"), auditRow("bad")
	bad.Detail = json.RawMessage(`{`)
	conn := s.AuditConn()
	defer conn.Close()
	groups := [][]AuditRecord{{good}, {bad}, {good, good, bad}, {bad, good}, {good, good}, {}, {bad}, {good}}
	errs, err := conn.Append(ctx, groups, linked)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		refused := slices.ContainsFunc(groups[i], func(r AuditRecord) bool { return r.Caller == "bad" })
		if (err != nil) != refused {
			t.Errorf("group %d: %v", i, err)
		}
	}
	rows, err := s.Audit(ctx, AuditFilter{})
	if err != nil || len(rows) != 4 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, r := range rows {
		if r.Seq != int64(i+1) || r.Caller != "good" || i > 0 && r.Prev != rows[i-1].Hash {
			t.Errorf("row %d: %+v", i+1, r)
		}
	}
}

// The connection that appends syncs, and others do not after it was given back.
func TestAuditSyncs(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	s.db.SetMaxOpenConns(1) // so that it is the same one
	conn := s.AuditConn()
	if _, err := conn.Append(ctx, [][]AuditRecord{{auditRow("a")}}, linked); err != nil {
		t.Fatal(err)
	}
	var level int
	if err := conn.conn.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&level); err != nil || level != 2 {
		t.Errorf("synchronous is %d, %v", level, err)
	}
	if err := conn.conn.QueryRowContext(ctx, `PRAGMA wal_autocheckpoint`).Scan(&level); err != nil || level != 0 {
		t.Errorf("it moves the log after %d pages, %v", level, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&level); err != nil || level != 1 {
		t.Errorf("afterwards it is %d, %v", level, err)
	}
	if err := s.db.QueryRowContext(ctx, `PRAGMA wal_autocheckpoint`).Scan(&level); err != nil || level != autoCheckpoint {
		t.Errorf("afterwards it moves the log after %d pages, %v", level, err)
	}
}

// After a failure the connection is another one, and no transaction stays open.
func TestAuditConnAfterFailure(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	conn := s.AuditConn()
	defer conn.Close()
	if _, err := s.db.Exec(`ALTER TABLE audit RENAME TO hidden`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Append(ctx, [][]AuditRecord{{auditRow("a")}}, linked); err == nil || !strings.Contains(err.Error(), "cannot write to the audit") {
		t.Errorf("got %v", err)
	}
	if _, err := s.db.Exec(`ALTER TABLE hidden RENAME TO audit`); err != nil {
		t.Fatal(err)
	}
	if errs, err := conn.Append(ctx, [][]AuditRecord{{auditRow("a")}}, linked); err != nil || errs[0] != nil {
		t.Errorf("got %v, %v", errs, err)
	}
	if _, err := s.InsertRun(ctx, Run{Repo: "/r"}); err != nil {
		t.Error(err)
	}
}

// What lists ask for is found by an index.
func TestAuditIndexes(t *testing.T) {
	s := newStore(t)
	for name, f := range map[string]AuditFilter{
		"page": {After: 5}, "newest": {Newest: true}, "run": {RunID: "r"}, "caller": {Caller: "c", Newest: true},
		"run and text": {RunID: "r", Text: "x"}, "window": {Text: "x", Action: "command.", After: 5, Before: 9},
	} {
		query, args := f.query()
		plan, err := collect(t.Context(), s.db, func(rows *sql.Rows) (line string, err error) {
			var id, parent, unused int
			return line, rows.Scan(&id, &parent, &unused, &line)
		}, "EXPLAIN QUERY PLAN "+query, args...)
		said := strings.Join(plan, "; ")
		// The rowid is an index, in whose order a page ends early.
		if err != nil || strings.Contains(said, "TEMP B-TREE") || strings.Contains(said, "SCAN") && name != "newest" {
			t.Errorf("%s: %s, %v", name, said, err)
		}
	}
}
