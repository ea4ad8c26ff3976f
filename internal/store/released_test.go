package store

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/procid"
)

// testdata/schemaN.sql is a database that a ravi with schema N wrote, as `sqlite3 ravi.db .dump` tells it. There is one
// of every schema but the present one; they are never changed.
func released(t *testing.T, version int) (home string) {
	t.Helper()
	dump, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("schema%d.sql", version)))
	if err != nil {
		t.Fatal(err)
	}
	home = t.TempDir()
	db, err := sql.Open("sqlite", filepath.Join(home, File))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), string(dump)); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestReleasedSchemas(t *testing.T) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(names) < 3 {
		t.Fatalf("got %v, %v", names, err)
	}
	at := time.Date(2026, 11, 1, 12, 0, 0, 5_000_000, time.UTC)
	later, code := at.Add(time.Second), 3
	runs := []Run{
		{ID: "run01kdefmzr5v3m2qyqs5xhsnc4g", Status: RunQueued, Command: []string{}, CreatedAt: later},
		{ID: "run01kdefmzr5v3m2qyqs5xhsnc4f", Status: RunFailed, Reason: "exit", Command: []string{"sh", "-c", "it's\na \"test\""}, Repo: "/r é",
			Base: "abc", Task: "mend 'it'", ExitCode: &code, Dir: "/d", SandboxID: "sbx01kdefmzr6d3m2qyqs5xhsnc4f",
			Patch: &Patch{Files: 1, Insertions: 2, Deletions: 3, Bytes: 4, SHA256: "x", Applies: true}, CreatedAt: at, StartedAt: &at, EndedAt: &at},
	}
	boxes := []Sandbox{
		{ID: "sbx01kdefmzr6d3m2qyqs5xhsnc4g", Backend: "host", Desired: WantEnded, Seen: SeenEnded, Reason: "done", Cgroups: []string{}, CreatedAt: later, EndedAt: &at},
		{ID: "sbx01kdefmzr6d3m2qyqs5xhsnc4f", RunID: "run01kdefmzr5v3m2qyqs5xhsnc4f", Backend: "gvisor", Image: "host", Workspace: "/w",
			Desired: WantRunning, Seen: SeenCreating, Owner: procid.ID{PID: 7, Start: 1 << 63}, Keeper: procid.ID{PID: 8, Start: 9}, Dir: "/s",
			Cgroups: []string{"/sys/fs/cgroup/x"}, UIDBase: 1<<32 - 1, Limits: Limits{CPUs: 1.5, MemoryMiB: 2048, DiskMiB: 4096, Pids: 512},
			CreatedAt: at, StartedAt: &at},
	}
	for version := 1; version < len(names); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			ctx, home := t.Context(), released(t, version)
			const auditRows = `SELECT seq || ' ' || time || ' ' || action || ' ' || object || ' ' || decision || ' ' || run_id || ' ' || sandbox_id
				|| ' ' || rule || ' ' || reason || ' ' || detail || ' ' || count || ' ' || prev || ' ' || hash FROM audit ORDER BY seq`
			var before []string
			if version >= 2 {
				db, err := sql.Open("sqlite", filepath.Join(home, File))
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				if before, err = collect(ctx, db, scanText, auditRows); err != nil || len(before) != 3 {
					t.Fatalf("the audit was %v, %v", before, err)
				}
			}
			s, err := Open(ctx, home)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			gotRuns, err := s.ListRuns(ctx, RunFilter{})
			if diff := cmp.Diff(runs, gotRuns); err != nil || diff != "" {
				t.Errorf("runs: %v\n%s", err, diff)
			}
			gotBoxes, err := s.ListSandboxes(ctx, SandboxFilter{})
			if diff := cmp.Diff(boxes, gotBoxes); err != nil || diff != "" {
				t.Errorf("sandboxes: %v\n%s", err, diff)
			}
			if live, err := s.ListSandboxes(ctx, SandboxFilter{Live: true}); err != nil || len(live) != 1 {
				t.Errorf("live: %v, %v", live, err)
			}
			after, err := collect(ctx, s.db, scanText, auditRows)
			if diff := cmp.Diff(before, after, cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); err != nil || diff != "" {
				t.Errorf("audit: %v\n%s", err, diff)
			}
			if end, err := s.AuditEnd(ctx); err != nil || end != int64(len(before)) {
				t.Errorf("the audit ends at %d, %v", end, err)
			}
			if n, err := number(ctx, s.db, `SELECT count(*) FROM audit WHERE caller <> ''`); err != nil || n != 0 {
				t.Errorf("%d old rows have a caller, %v", n, err)
			}
			if version >= 3 {
				if eve, err := s.Agent(ctx, "eve"); err != nil || eve.Instructions != "be kind\n" || eve.Profile != "small" || eve.Program != "" {
					t.Errorf("the agent: %+v, %v", eve, err)
				}
				if old, err := s.LiveLeases(ctx); err != nil || len(old) != 1 {
					t.Errorf("the leases: %+v, %v", old, err)
				}
			}
			if version >= 4 {
				if l, err := s.LiveModelLeases(ctx); err != nil || len(l) != 1 || l[0].Limits.USD != 1.5 {
					t.Errorf("the model leases: %+v, %v", l, err)
				}
				if used, err := s.ModelUsage(ctx, UsageFilter{By: ByModel}); err != nil || len(used) != 1 {
					t.Errorf("what was used of models: %+v, %v", used, err)
				}
			}
			if version >= 5 {
				if a, err := s.ListApprovals(ctx, ApprovalFilter{Live: true}); err != nil || len(a) != 1 || a[0].Command != "git push 'it'" {
					t.Errorf("the approvals: %+v, %v", a, err)
				}
			}
			if err := s.Check(ctx); err != nil {
				t.Error(err)
			}
			fillOnce(t, s)
			if _, err := s.UpdateSandboxState(ctx, boxes[1].ID, SeenEnded, "over"); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(schemaOf(t, newStore(t)), schemaOf(t, s)); diff != "" {
				t.Errorf("it is another schema than a new database has:\n%s", diff)
			}
		})
	}
}

func schemaOf(t *testing.T, s *Store) []string {
	t.Helper()
	found, err := collect(t.Context(), s.db, scanText, `SELECT type || ' ' || name || ': ' || coalesce(sql, '') FROM sqlite_schema
		WHERE name NOT LIKE 'goose%' ORDER BY type, name`)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestBackup(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	end, err := s.EventsEnd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// Others write meanwhile.
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: "more"}); err != nil {
				done <- err
				return
			}
		}
	}()
	// A name that SQLite would take for something else.
	t.Chdir(dir)
	const name = "file:a b'?mode=memory"
	path := filepath.Join(dir, name)
	err = s.Backup(ctx, name)
	close(stop)
	if writeErr := <-done; writeErr != nil {
		t.Error(writeErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside it lies %v, %v", entries, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("it is %v, %v", info, err)
	}
	home := t.TempDir()
	if err := os.Rename(path, filepath.Join(home, File)); err != nil {
		t.Fatal(err)
	}
	back, err := Open(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if err := back.Check(ctx); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(schemaOf(t, s), schemaOf(t, back)); diff != "" {
		t.Errorf("the schema:\n%s", diff)
	}
	if k, _, err := back.KeyByHash(ctx, w.key.Hash); err != nil || cmp.Diff(w.key, k) != "" {
		t.Errorf("the key: %+v, %v", k, err)
	}
	n, err := back.CountMessages(ctx, w.session.ID)
	if events, eventsErr := back.EventsEnd(ctx); err != nil || eventsErr != nil || events-end != n-1 {
		t.Errorf("%d messages and %d events are not of one moment: %v, %v", n, events-end, err, eventsErr)
	}
	for name, path := range map[string]string{"there": filepath.Join(home, File), "link": filepath.Join(dir, "link"), "nowhere": filepath.Join(dir, "none", "x")} {
		before, _ := os.ReadFile(path)
		if name == "link" {
			if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Backup(ctx, path); err == nil {
			t.Errorf("%s: a backup was made", name)
		}
		if after, _ := os.ReadFile(path); string(before) != string(after) {
			t.Errorf("%s: what was there is another", name)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "link")); err != nil {
		t.Errorf("the link: %v", err)
	}
}

func TestCheck(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(ctx, `PRAGMA foreign_keys = OFF; DELETE FROM sessions WHERE id = '`+w.session.ID+`'; PRAGMA foreign_keys = ON`); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	err = s.Check(ctx)
	if !errors.Is(err, ErrDamaged) || !contains(err, "foreign_key_check", "messages", "tasks", "sessions") {
		t.Errorf("a reference to nothing: %v", err)
	}

	other := newStore(t)
	fillOnce(t, other)
	if _, err := other.db.ExecContext(ctx, `PRAGMA writable_schema = ON;
		UPDATE sqlite_schema SET sql = replace(sql, '(status)', '(title)') WHERE name = 'tasks_status'`); err != nil {
		t.Fatal(err)
	}
	again, err := Open(ctx, databaseDir(t, other))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Check(ctx); !errors.Is(err, ErrDamaged) || !contains(err, "integrity_check", "tasks_status") {
		t.Errorf("a broken index: %v", err)
	}
}
