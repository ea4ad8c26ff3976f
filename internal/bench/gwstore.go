package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/contextkey"
	"ravi/internal/store"
)

// What is in the store beside every 10 runs.
const (
	sessionsPer10 = 1
	messagesPer10 = 100
	auditPer10    = 100
	auditBatch    = 1000
)

// subject is what is asked about.
type subject struct{ agent, session, task string }

// fill makes a store as a user has after years: runs with as many tasks, sandboxes and keys, sessions, messages and rows
// of the audit.
func (g *gateway) fill(ctx context.Context) error {
	s, err := store.Open(ctx, g.home)
	if err != nil {
		return err
	}
	defer s.Close()
	if g.subject, err = begin(ctx, s); err != nil {
		return err
	}
	// The rest by SQL: one row at a time takes as long as the years did.
	db, err := sql.Open("sqlite", filepath.Join(g.home, store.File))
	if err != nil {
		return err
	}
	defer db.Close()
	n := g.Records
	sessions := max(1, n/10*sessionsPer10)
	const number = `printf('%026d', n)`
	for _, c := range []copies{
		{"agents", 100, map[string]string{"id": `'agt' || ` + number, "name": `'agent-' || n`}},
		{"sessions", sessions, map[string]string{"id": `'ses' || ` + number, "name": `'session-' || n`}},
		{"messages", n / 10 * messagesPer10, map[string]string{"id": `'msg' || ` + number,
			"session_id": fmt.Sprintf(`'ses' || printf('%%026d', n %% %d + 1)`, sessions), "seq": fmt.Sprintf(`n / %d + 1`, sessions)}},
		{"memory", max(1, n/10), map[string]string{"id": `'mem' || ` + number, "path": `'notes/' || n || '.md'`}},
		{"tasks", n, map[string]string{"id": `'tsk' || ` + number, "status": `CASE n % 3 WHEN 0 THEN 'open' WHEN 1 THEN 'done' ELSE 'failed' END`,
			"session_id": fmt.Sprintf(`'ses' || printf('%%026d', n %% %d + 1)`, sessions)}},
		{"task_comments", n, map[string]string{"id": `'com' || ` + number, "task_id": `'tsk' || printf('%026d', n)`}},
		{"runs", n, map[string]string{"id": `'run' || ` + number, "created_at": `created_at + n`,
			"status": `CASE n % 3 WHEN 0 THEN 'failed' ELSE 'succeeded' END`}},
		{"sandboxes", n, map[string]string{"id": `'sbx' || ` + number, "created_at": `created_at + n`, "run_id": `'run' || ` + number}},
		{"keys", n, map[string]string{"id": `'ctx_' || printf('%024d', n)`, "hash": `printf('%064x', n)`}},
	} {
		if err := c.make(ctx, db); err != nil {
			return fmt.Errorf("filling the store: %w", err)
		}
	}
	if err := fillAudit(ctx, s, n/10*auditPer10); err != nil {
		return err
	}
	return g.issue(ctx, s)
}

// begin makes one of each.
func begin(ctx context.Context, s *store.Store) (on subject, err error) {
	words := strings.Repeat("What is said and what is to be done has some length. ", 8)
	ended := store.Now()
	a, err := s.InsertAgent(ctx, store.Agent{Name: "bench", Instructions: words})
	if err != nil {
		return on, err
	}
	c, err := s.InsertSession(ctx, store.Session{AgentID: a.ID, Name: "bench", Title: "A benchmark"})
	if err != nil {
		return on, err
	}
	t, err := s.InsertTask(ctx, store.Task{AgentID: a.ID, SessionID: c.ID, Title: "Measure the gateway", Body: words, Author: "operator"})
	if err != nil {
		return on, err
	}
	on = subject{a.ID, c.ID, t.ID}
	_, e1 := s.AppendMessage(ctx, store.Message{SessionID: c.ID, Role: store.RoleUser, Author: "bench", Text: words})
	_, e2 := s.WriteMemory(ctx, store.MemoryFile{AgentID: a.ID, Kind: store.MemoryNote, Path: "notes/bench.md", Content: words, State: store.MemoryPending})
	_, e3 := s.AddComment(ctx, store.TaskComment{TaskID: t.ID, Text: words, Author: "bench"})
	r, e4 := s.InsertRun(ctx, store.Run{Status: store.RunSucceeded, Command: []string{"make", "test"}, Repo: "/src/app", Base: strings.Repeat("0", 40),
		Task: "Fix it", AgentID: a.ID, SessionID: c.ID, TaskID: t.ID, CreatedBy: "operator", EndedAt: &ended})
	_, e5 := s.InsertSandbox(ctx, store.Sandbox{RunID: r.ID, Backend: ours, Image: "host", Desired: store.WantEnded, Seen: store.SeenEnded, EndedAt: &ended})
	_, _, e6 := contextkey.Keys{Store: s}.Issue(ctx, access.AsOperator(), contextkey.Request{Label: "bench", AgentID: a.ID, TTL: 24 * time.Hour})
	return on, errors.Join(e1, e2, e3, e4, e5, e6)
}

// copies are rows like the first one of a table, but for some columns, as expressions over n, which counts from 1.
type copies struct {
	table   string
	n       int
	changed map[string]string
}

func (c copies) make(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, `SELECT name FROM pragma_table_info(?) WHERE name <> 'place'`, c.table)
	if err != nil {
		return err
	}
	defer rows.Close()
	var columns []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		columns = append(columns, name)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	values := slices.Clone(columns)
	for i, name := range columns {
		if expression, changed := c.changed[name]; changed {
			values[i] = expression
		}
	}
	for name := range maps.Keys(c.changed) {
		if !slices.Contains(columns, name) {
			return fmt.Errorf("%s has no column %s", c.table, name)
		}
	}
	_, err = db.ExecContext(ctx, `WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
		INSERT INTO `+c.table+` (`+strings.Join(columns, ", ")+`) SELECT `+strings.Join(values, ", ")+`
		FROM numbers, (SELECT * FROM `+c.table+` LIMIT 1)`, c.n)
	if err != nil {
		return fmt.Errorf("%s: %w", c.table, err)
	}
	return nil
}

func fillAudit(ctx context.Context, s *store.Store, n int) error {
	log := audit.Log{Store: s}
	for i := 0; i < n; {
		var rows []audit.Record
		for ; len(rows) < auditBatch && i < n; i++ {
			r := audit.Record{Caller: audit.Operator, Action: audit.CommandPrefix + "tasks.show", Object: fmt.Sprintf("tsk%026d", i), Decision: store.Allowed,
				Detail: []byte(`{"input":{"task":"one of many"},"ms":0.412}`)}
			if i%10 == 0 {
				r.Caller, r.Decision, r.Reason = fmt.Sprintf("ctx_%024d", i), store.Denied, "the key does not hold read:tasks.show"
			}
			rows = append(rows, r)
		}
		if err := log.Append(ctx, rows...); err != nil {
			return err
		}
	}
	return nil
}

// issue gives every client a key of its own, which can read the one task: how often one key may ask is bounded.
func (g *gateway) issue(ctx context.Context, s *store.Store) error {
	holds, err := access.ParseCapabilities([]string{"read:tasks@" + g.subject.task})
	if err != nil {
		return err
	}
	for range gatewayClients {
		token, key, err := contextkey.Keys{Store: s}.Issue(ctx, access.AsOperator(), contextkey.Request{
			Label: "bench", AgentID: g.subject.agent, TaskID: g.subject.task, Capabilities: holds, TTL: 24 * time.Hour,
		})
		if err != nil {
			return err
		}
		g.keys = append(g.keys, gatewayKey{key.ID, token})
	}
	return nil
}
