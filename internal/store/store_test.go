package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/procid"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSandboxRoundTrip(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	run, err := s.InsertRun(ctx, Run{})
	if err != nil {
		t.Fatal(err)
	}
	later := time.Date(2031, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
	want := Sandbox{
		Name: "box", CreatedBy: "operator", RunID: run.ID, Backend: "gvisor", Image: "host", Workspace: "/a b\n'\"", Owner: procid.ID{PID: 1, Start: 1 << 63},
		Keeper: procid.ID{PID: 3, Start: 4}, Dir: "/d", Cgroups: []string{"/sys/fs/cgroup/x"}, UIDBase: 1<<32 - 1,
		Limits: Limits{CPUs: 1.5, MemoryMiB: 2048, DiskMiB: 4096, Pids: 512}, CreatedAt: later, StartedAt: &later,
	}
	got, err := s.InsertSandbox(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.Desired, want.Seen = got.ID, WantRunning, SeenCreating
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("given back:\n%s", diff)
	}
	stored, err := s.Sandbox(ctx, got.ID)
	if diff := cmp.Diff(want, stored); err != nil || diff != "" {
		t.Errorf("stored: %v\n%s", err, diff)
	}
	if !strings.HasPrefix(got.ID, "sbx") || strings.Trim(got.ID, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		t.Errorf("the id %q is not of letters and digits", got.ID)
	}
}

func TestRunRoundTrip(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	box, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	code := 0
	want := Run{
		Command: []string{"sh", "-c", "a\nb"}, Repo: "/r", Base: "abc", Task: "do it", Dir: "/runs/1",
		SandboxID: box.ID, AgentID: "agt1", SessionID: "ses1", TaskID: "tsk1", CreatedBy: "ctx_a", Owner: procid.ID{PID: 5, Start: 1 << 63},
		Patch: &Patch{Files: 1, Insertions: 2, Deletions: 3, Bytes: 4, SHA256: "x", Applies: true},
	}
	got, err := s.InsertRun(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = s.UpdateRun(ctx, got.ID, func(r *Run) error { r.Status = RunRunning; return nil }); err != nil || got.StartedAt == nil || got.EndedAt != nil {
		t.Fatalf("started: %+v, %v", got, err)
	}
	got, err = s.UpdateRun(ctx, got.ID, func(r *Run) error {
		r.Status, r.Reason, r.ExitCode = RunSucceeded, "exit", &code
		return nil
	})
	if err != nil || got.EndedAt == nil {
		t.Fatalf("ended: %+v, %v", got, err)
	}
	stored, err := s.Run(ctx, got.ID)
	if diff := cmp.Diff(got, stored); err != nil || diff != "" {
		t.Errorf("stored: %v\n%s", err, diff)
	}
	if _, err := s.UpdateRun(ctx, got.ID, func(r *Run) error { r.Status = RunFailed; return nil }); !errors.Is(err, ErrFinal) {
		t.Errorf("a run that succeeded became failed: %v", err)
	}
	if live, err := s.ListRuns(ctx, RunFilter{Live: true}); err != nil || len(live) != 0 {
		t.Errorf("live: %v, %v", live, err)
	}
}

func TestStates(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	box, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	for _, seen := range []Seen{SeenRunning, SeenPaused, SeenRunning, SeenEnded} {
		if box, err = s.UpdateSandboxState(ctx, box.ID, seen, "why "+string(seen)); err != nil || box.Seen != seen {
			t.Fatalf("to %s: %+v, %v", seen, box, err)
		}
	}
	if box.StartedAt == nil || box.EndedAt == nil {
		t.Errorf("moments are missing: %+v", box)
	}
	again, err := s.UpdateSandboxState(ctx, box.ID, SeenFailed, "second")
	if diff := cmp.Diff(box, again); err != nil || diff != "" {
		t.Errorf("ending twice: %v\n%s", err, diff)
	}
	if _, err := s.UpdateSandboxState(ctx, box.ID, SeenRunning, ""); !errors.Is(err, ErrFinal) {
		t.Errorf("an ended sandbox came back: %v", err)
	}
	if _, err := s.UpdateSandboxState(ctx, "sbxnone", SeenEnded, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	refused := errors.New("refused")
	_, err = s.UpdateSandbox(ctx, box.ID, func(b *Sandbox) error { b.Dir = "/changed"; return refused })
	if stored, _ := s.Sandbox(ctx, box.ID); !errors.Is(err, refused) || stored.Dir != "" {
		t.Errorf("a refused change: %v, %+v", err, stored)
	}
	if _, err := s.UpdateSandbox(ctx, box.ID, func(b *Sandbox) error { b.ID = "other"; return nil }); err == nil {
		t.Error("an id was changed")
	}
	if _, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", Seen: "odd"}); err == nil {
		t.Error("an unknown state was recorded")
	}
	if _, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", RunID: "runnone"}); err == nil {
		t.Error("a sandbox of an unknown run was recorded")
	}
}

func TestFind(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for _, id := range []string{"sbxaa1", "sbxaa2", "sbxaa", "sbxb"} {
		if _, err := s.InsertSandbox(ctx, Sandbox{ID: id, Backend: "gvisor"}); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string]any{
		"sbxb": "sbxb", "sbxaa1": "sbxaa1", "sbxaa": "sbxaa", "sbxa": ErrAmbiguous, "sbx": ErrAmbiguous,
		"": ErrNotFound, "x": ErrNotFound, "sbx%": ErrNotFound, "sbx_b": ErrNotFound, "SBXB": ErrNotFound, "sbxb2": ErrNotFound,
	} {
		got, err := s.Sandbox(ctx, prefix)
		if sentinel, bad := want.(error); bad && !errors.Is(err, sentinel) || !bad && (err != nil || got.ID != want) {
			t.Errorf("%q: got %q, %v; want %v", prefix, got.ID, err, want)
		}
	}
	if _, err := s.Run(ctx, "run"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a run: %v", err)
	}
}

func TestListAndDelete(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	start := Now()
	run, err := s.InsertRun(ctx, Run{})
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"sbx1", "sbx2", "sbx3"} {
		b := Sandbox{ID: id, Backend: "gvisor", CreatedAt: start.Add(time.Duration(i) * time.Second)}
		if id == "sbx2" {
			b.RunID = run.ID
		}
		if _, err := s.InsertSandbox(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeleteSandbox(ctx, "sbx3"); err == nil {
		t.Error("the record of a live sandbox was deleted")
	}
	if _, err := s.UpdateSandboxState(ctx, "sbx3", SeenEnded, ""); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		filter SandboxFilter
		want   string
	}{
		"all": {SandboxFilter{}, "sbx3 sbx2 sbx1"}, "live": {SandboxFilter{Live: true}, "sbx2 sbx1"},
		"limit": {SandboxFilter{Limit: 2}, "sbx3 sbx2"}, "run": {SandboxFilter{RunID: run.ID}, "sbx2"},
		"none": {SandboxFilter{RunID: "x"}, ""},
	} {
		found, err := s.ListSandboxes(ctx, c.filter)
		var ids []string
		for _, b := range found {
			ids = append(ids, b.ID)
		}
		if got := strings.Join(ids, " "); err != nil || got != c.want || found == nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, c.want)
		}
	}
	for range 2 {
		if err := s.DeleteSandbox(ctx, "sbx3"); err != nil {
			t.Errorf("forgetting: %v", err)
		}
	}
	if _, err := s.Sandbox(ctx, "sbx3"); !errors.Is(err, ErrNotFound) {
		t.Errorf("not forgotten: %v", err)
	}
}

func TestFilesAreClosedToOthers(t *testing.T) {
	home := t.TempDir()
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.InsertRun(t.Context(), Run{}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(home)
	if err != nil || len(entries) < 3 {
		t.Fatalf("got %v, %v", entries, err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", entry.Name(), info.Mode(), err)
		}
	}
}

func TestMigrations(t *testing.T) {
	ctx, home := t.Context(), t.TempDir()
	old := fstest.MapFS{}
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		old[filepath.Base(name)] = &fstest.MapFile{Data: text}
	}
	newer := maps.Clone(old)
	newer["00098_b.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE later (id TEXT);\n")}
	broken := maps.Clone(newer)
	broken["00099_c.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE half (id TEXT);\nCREATE TABLE later (id TEXT);\n")}

	s, err := open(ctx, home, old)
	if err != nil {
		t.Fatal(err)
	}
	box, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s, err = open(ctx, home, newer); err != nil {
		t.Fatalf("forward: %v", err)
	}
	if _, err := s.Sandbox(ctx, box.ID); err != nil {
		t.Errorf("the record was lost: %v", err)
	}
	s.Close()
	if _, err := open(ctx, home, broken); err == nil {
		t.Error("a broken migration passed")
	}
	if s, err = open(ctx, home, newer); err != nil {
		t.Fatalf("after a broken migration: %v", err)
	}
	var tables int
	if err := s.db.QueryRow(`SELECT count(*) FROM sqlite_schema WHERE name = 'half'`).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("half a migration stayed: %d, %v", tables, err)
	}
	s.Close()
	if _, err := open(ctx, home, old); !errors.Is(err, ErrNewerSchema) || !strings.Contains(err.Error(), fmt.Sprintf("schema 98, this ravi knows %d", len(names))) {
		t.Errorf("a newer schema: %v", err)
	}
}

func TestOpenRefusals(t *testing.T) {
	ctx := t.Context()
	t.Run("no home", func(t *testing.T) {
		if _, err := Open(ctx, filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not a database", func(t *testing.T) {
		home := t.TempDir()
		text := []byte(strings.Repeat("this is not a database\n", 100))
		if err := os.WriteFile(filepath.Join(home, File), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(ctx, home); err == nil || !strings.Contains(err.Error(), File) {
			t.Errorf("got %v", err)
		}
		if got, _ := os.ReadFile(filepath.Join(home, File)); string(got) != string(text) {
			t.Error("the file was changed")
		}
	})
	t.Run("a link", func(t *testing.T) {
		home, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
		if err := os.Symlink(other, filepath.Join(home, File)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(ctx, home); err == nil {
			t.Error("a link was followed")
		}
		if _, err := os.Stat(other); err == nil {
			t.Error("a file was made elsewhere")
		}
	})
	t.Run("locked", func(t *testing.T) {
		home := t.TempDir()
		lock, err := takeLock(ctx, filepath.Join(home, "ravi.lock"), 2)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := Open(ended, home); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestPragmas(t *testing.T) {
	s := newStore(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "1", "foreign_keys": "1", "busy_timeout": "20000"} {
		var got string
		if err := s.db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", pragma, got, err, want)
		}
	}
	// A transaction takes the write lock at its start, so that what it read cannot change before it writes.
	err := s.tx(t.Context(), func(*sql.Tx) error {
		other, err := sql.Open("sqlite", filepath.Join(databaseDir(t, s), File))
		if err != nil {
			return err
		}
		defer other.Close()
		if _, err := other.Exec(`DELETE FROM runs`); err == nil {
			t.Error("another process wrote during a transaction")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func databaseDir(t *testing.T, s *Store) string {
	t.Helper()
	var seq, name, file string
	conn, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.QueryRowContext(t.Context(), "PRAGMA database_list").Scan(&seq, &name, &file); err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(file)
}

func TestListRuns(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	start := Now()
	for i, r := range []Run{
		{ID: "run1", AgentID: "agt1", SessionID: "ses1", TaskID: "tsk1", CreatedBy: "operator", Status: RunSucceeded},
		{ID: "run2", AgentID: "agt1", SessionID: "ses2", TaskID: "tsk1", CreatedBy: "ctx_a"},
		{ID: "run3", AgentID: "agt2", SessionID: "ses2", TaskID: "tsk2", CreatedBy: "ctx_a", Status: RunRunning},
		{ID: "run4", CreatedBy: "ctx_a", Status: RunFailed},
	} {
		r.CreatedAt = start.Add(time.Duration(i/2) * time.Second) // two at one moment
		if _, err := s.InsertRun(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		filter RunFilter
		want   string
	}{
		"all": {RunFilter{}, "run4 run3 run2 run1"}, "live": {RunFilter{Live: true}, "run3 run2"}, "limit": {RunFilter{Limit: 1}, "run4"},
		"page": {RunFilter{Before: "run4", Limit: 1}, "run3"}, "next": {RunFilter{Before: "run3"}, "run2 run1"}, "last": {RunFilter{Before: "run1"}, ""},
		"agent": {RunFilter{AgentID: "agt1"}, "run2 run1"}, "session": {RunFilter{SessionID: "ses2"}, "run3 run2"}, "task": {RunFilter{TaskID: "tsk2"}, "run3"},
		"creator": {RunFilter{CreatedBy: "ctx_a", Live: true}, "run3 run2"}, "creator, page": {RunFilter{CreatedBy: "ctx_a", Before: "run3"}, "run2"},
		"ids": {RunFilter{IDs: []string{"run1", "run4", "run9", "run"}}, "run4 run1"}, "no ids": {RunFilter{IDs: []string{}}, ""},
	} {
		found, err := s.ListRuns(ctx, c.filter)
		var ids []string
		for _, r := range found {
			ids = append(ids, r.ID)
		}
		if got := strings.Join(ids, " "); err != nil || got != c.want || found == nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, c.want)
		}
		if c.filter.Limit == 0 && c.filter.Before == "" {
			if n, err := s.CountRuns(ctx, c.filter); err != nil || n != len(found) {
				t.Errorf("%s: counted %d, %v", name, n, err)
			}
		}
	}
	if _, err := s.ListRuns(ctx, RunFilter{Before: "run9"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("before an unknown one: %v", err)
	}
	if _, err := s.UpdateRun(ctx, "run2", func(r *Run) error { r.CreatedBy = "operator"; return nil }); err == nil {
		t.Error("the creator was changed")
	}
	if _, err := s.InsertRun(ctx, Run{ID: "run1"}); !errors.Is(err, ErrExists) {
		t.Errorf("an id again: %v", err)
	}
}

// What changes nothing is not written; what is changed in place is.
func TestUpdateOfNothing(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	box, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", Cgroups: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	run, err := s.InsertRun(ctx, Run{Command: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		second(s.UpdateSandboxState(ctx, box.ID, SeenEnded, "done")), second(s.UpdateSandboxState(ctx, box.ID, SeenEnded, "done")),
		second(s.UpdateSandbox(ctx, box.ID, func(b *Sandbox) error { b.Cgroups[0] = "b"; return nil })),
		second(s.UpdateRun(ctx, run.ID, func(*Run) error { return nil })),
		second(s.UpdateRun(ctx, run.ID, func(r *Run) error { r.Command[0] = "b"; return nil })),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	eventsOf(t, s, EventSandboxChanged, 2)
	eventsOf(t, s, EventRunChanged, 1)
	if stored, err := s.Sandbox(ctx, box.ID); err != nil || stored.Cgroups[0] != "b" {
		t.Errorf("stored: %+v, %v", stored, err)
	}
	if stored, err := s.Run(ctx, run.ID); err != nil || stored.Command[0] != "b" {
		t.Errorf("stored: %+v, %v", stored, err)
	}
}

// Writers of one process wait for each other, and not for SQLite, which sleeps meanwhile.
func TestWritersWaitForEachOther(t *testing.T) {
	s := newStore(t)
	alone := func(who string) {
		if len(s.writing) != 1 {
			t.Errorf("%s does not keep others waiting", who)
		}
	}
	if err := s.tx(t.Context(), func(*sql.Tx) error { alone("a transaction"); return nil }); err != nil {
		t.Fatal(err)
	}
	conn := s.AuditConn()
	defer conn.Close()
	if _, err := conn.Append(t.Context(), [][]AuditRecord{{auditRow("a")}}, func(r *AuditRecord, seq int64, prev string) {
		alone("the audit")
		linked(r, seq, prev)
	}); err != nil {
		t.Fatal(err)
	}
	if len(s.writing) != 0 {
		t.Error("somebody still keeps others waiting")
	}
	done, err := s.write(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.InsertRun(over, Run{Status: RunQueued}); !errors.Is(err, context.Canceled) {
		t.Errorf("who gives up waiting: %v", err)
	}
}
