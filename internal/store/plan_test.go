package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"modernc.org/sqlite"
)

// recorder is the driver, writing down what is asked.
type recorder struct {
	driver.Driver
	asked *[]asked
}

type asked struct {
	query string
	args  []any
}

func (r recorder) Open(name string) (driver.Conn, error) {
	conn, err := r.Driver.Open(name)
	return recorded{conn, r.asked}, err
}

type recorded struct {
	driver.Conn
	asked *[]asked
}

func (r recorded) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	a := asked{query: query}
	for _, arg := range args {
		a.args = append(a.args, arg.Value)
	}
	*r.asked = append(*r.asked, a)
	return r.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

// No list and no look-up reads a table from end to end or sorts it, however long it gets: each is served by an index
// in its own order. Lists of everything go along the table in its order, and end at their limit. The ids that a list is
// bound to are sorted, they are few.
func TestPlans(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	var queries []asked
	sql.Register(t.Name(), recorder{&sqlite.Driver{}, &queries})
	db, err := sql.Open(t.Name(), filepath.Join(databaseDir(t, s), File))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r := &Store{db: db, reads: &reader{db: db}, writing: make(chan struct{}, 1)} // none is prepared, so each is seen

	const limit = 10
	whole := "runs sandboxes agents sessions tasks keys approvals" // what lists of everything may go along
	for name, list := range map[string]func() error{
		"runs":             func() error { return second(r.ListRuns(ctx, RunFilter{Limit: limit})) },
		"runs, page":       func() error { return second(r.ListRuns(ctx, RunFilter{Before: w.run.ID, Limit: limit})) },
		"runs, live":       func() error { return second(r.ListRuns(ctx, RunFilter{Live: true})) },
		"runs, owned":      func() error { return second(r.ListRuns(ctx, RunFilter{Owned: true})) },
		"runs, live, page": func() error { return second(r.ListRuns(ctx, RunFilter{Live: true, Before: w.run.ID})) },
		"runs, agent":      func() error { return second(r.ListRuns(ctx, RunFilter{AgentID: "a", Limit: limit})) },
		"runs, session": func() error {
			return second(r.ListRuns(ctx, RunFilter{SessionID: "a", Before: w.run.ID, Limit: limit}))
		},
		"runs, task":          func() error { return second(r.ListRuns(ctx, RunFilter{TaskID: "a", Limit: limit})) },
		"runs, creator":       func() error { return second(r.ListRuns(ctx, RunFilter{CreatedBy: "a", Limit: limit})) },
		"runs, live, creator": func() error { return second(r.CountRuns(ctx, RunFilter{CreatedBy: "a", Live: true})) },
		"runs, ids":           func() error { return second(r.ListRuns(ctx, RunFilter{IDs: []string{"a", "b"}, Limit: limit})) },
		"runs, ids, agent": func() error {
			return second(r.ListRuns(ctx, RunFilter{IDs: []string{"a", "b"}, AgentID: "a", Limit: limit}))
		},
		"run": func() error { return second(r.Run(ctx, w.run.ID[:12])) },

		"sandboxes":          func() error { return second(r.ListSandboxes(ctx, SandboxFilter{Limit: limit})) },
		"sandboxes, page":    func() error { return second(r.ListSandboxes(ctx, SandboxFilter{Before: w.box.ID, Limit: limit})) },
		"sandboxes, live":    func() error { return second(r.ListSandboxes(ctx, SandboxFilter{Live: true})) },
		"sandboxes, run":     func() error { return second(r.ListSandboxes(ctx, SandboxFilter{RunID: "a"})) },
		"sandboxes, creator": func() error { return second(r.ListSandboxes(ctx, SandboxFilter{CreatedBy: "a"})) },
		"sandboxes, count":   func() error { return second(r.CountSandboxes(ctx, SandboxFilter{CreatedBy: "a", Live: true})) },
		"sandboxes, ids":     func() error { return second(r.ListSandboxes(ctx, SandboxFilter{IDs: []string{"a"}})) },
		"sandbox, id":        func() error { return second(r.Sandbox(ctx, w.box.ID)) },

		"agents": func() error {
			return second(r.ListAgents(ctx, AgentFilter{Archived: true, Before: w.agent.ID, Limit: limit}))
		},
		"agents, now": func() error { return second(r.ListAgents(ctx, AgentFilter{Limit: limit})) },
		"agent":       func() error { return second(r.Agent(ctx, w.agent.Name)) },

		"sessions":       func() error { return second(r.ListSessions(ctx, SessionFilter{Limit: limit})) },
		"sessions, page": func() error { return second(r.ListSessions(ctx, SessionFilter{Before: w.session.ID, Limit: limit})) },
		"sessions, open": func() error { return second(r.ListSessions(ctx, SessionFilter{Open: true, Limit: limit})) },
		"sessions, agent": func() error {
			return second(r.ListSessions(ctx, SessionFilter{AgentID: "a", Open: true}))
		},
		"sessions, ids": func() error { return second(r.ListSessions(ctx, SessionFilter{IDs: []string{"a"}, Open: true})) },
		"session":       func() error { return second(r.Session(ctx, w.session.Name)) },

		"messages":         func() error { return second(r.Messages(ctx, w.session.ID, MessageFilter{After: 1})) },
		"messages, newest": func() error { return second(r.Messages(ctx, w.session.ID, MessageFilter{Newest: true, Before: 10})) },
		"messages, count":  func() error { return second(r.CountMessages(ctx, w.session.ID)) },

		"tasks":       func() error { return second(r.ListTasks(ctx, TaskFilter{Limit: limit})) },
		"tasks, page": func() error { return second(r.ListTasks(ctx, TaskFilter{Before: w.task.ID, Limit: limit})) },
		"tasks, status": func() error {
			return second(r.ListTasks(ctx, TaskFilter{Status: TaskOpen, Limit: limit}))
		},
		"tasks, agent":   func() error { return second(r.ListTasks(ctx, TaskFilter{AgentID: "a", Status: TaskOpen})) },
		"tasks, session": func() error { return second(r.ListTasks(ctx, TaskFilter{SessionID: "a", AgentID: "a"})) },
		"tasks, ids":     func() error { return second(r.ListTasks(ctx, TaskFilter{IDs: []string{"a"}})) },
		"comments":       func() error { return second(r.Comments(ctx, w.task.ID, CommentFilter{After: w.comment.ID})) },
		"reports":        func() error { return second(r.Comments(ctx, w.task.ID, CommentFilter{Kind: CommentReport})) },

		"memory":          func() error { return second(r.Memory(ctx, "a", MemoryNote)) },
		"memory, names":   func() error { return second(r.MemoryNames(ctx, "a", MemoryNote)) },
		"memory, file":    func() error { return second(r.MemoryFile(ctx, w.agent.ID, MemoryNote, w.memory.Path)) },
		"memory, history": func() error { return second(r.MemoryHistory(ctx, "a", MemoryNote, "p", limit)) },
		"memory, pending": func() error { return second(r.PendingMemory(ctx, MemoryFilter{})) },
		"memory, agent":   func() error { return second(r.PendingMemory(ctx, MemoryFilter{AgentID: "a"})) },
		"memory, agents":  func() error { return second(r.PendingMemory(ctx, MemoryFilter{Agents: []string{"a"}})) },

		"keys":         func() error { return second(r.ListKeys(ctx, KeyFilter{Limit: limit})) },
		"keys, page":   func() error { return second(r.ListKeys(ctx, KeyFilter{Before: w.key.ID, Limit: limit})) },
		"keys, live":   func() error { return second(r.ListKeys(ctx, KeyFilter{Live: true})) },
		"keys, run":    func() error { return second(r.ListKeys(ctx, KeyFilter{Live: true, RunID: "a"})) },
		"keys, parent": func() error { return second(r.ListKeys(ctx, KeyFilter{ParentID: "a"})) },
		"key":          func() error { _, _, err := r.KeyByHash(ctx, w.key.Hash); return err },
		"key, counts":  func() error { return second(r.CountLiveBy(ctx, w.key.ID)) },
		"key, id":      func() error { return second(r.KeyByID(ctx, w.key.ID)) },

		"profile":      func() error { return second(r.Profile(ctx, "p")) },
		"leases, live": func() error { return second(r.LiveLeases(ctx)) },
		"model leases": func() error { return second(r.LiveModelLeases(ctx)) },
		"model lease":  func() error { return second(r.ModelLease(ctx, w.model.ID[:12])) },
		"approvals":    func() error { return second(r.ListApprovals(ctx, ApprovalFilter{Limit: limit})) },
		"approvals, page": func() error {
			return second(r.ListApprovals(ctx, ApprovalFilter{Before: w.approval.ID, Limit: limit}))
		},
		"approvals, pending": func() error { return second(r.ListApprovals(ctx, ApprovalFilter{Pending: true, At: Now()})) },
		"approvals, live":    func() error { return second(r.ListApprovals(ctx, ApprovalFilter{Live: true})) },
		"approvals, run":     func() error { return second(r.ListApprovals(ctx, ApprovalFilter{RunID: "a", Limit: limit})) },
		"approvals, pending, run": func() error {
			return second(r.ListApprovals(ctx, ApprovalFilter{RunID: "a", Pending: true, At: Now()}))
		},
		"approvals, runs": func() error { return second(r.ListApprovals(ctx, ApprovalFilter{RunIDs: []string{"a", "b"}})) },
		"approval":        func() error { return second(r.Approval(ctx, w.approval.ID)) },
		"usage":           func() error { return second(r.ModelUsage(ctx, UsageFilter{By: ByModel, Limit: limit})) },
		"usage, since":    func() error { return second(r.ModelUsage(ctx, UsageFilter{By: ByDay, Since: Now()})) },
		"usage, run":      func() error { return second(r.ModelUsage(ctx, UsageFilter{By: ByModel, RunID: "a"})) },
		"usage, of": func() error {
			return second(r.ModelUsage(ctx, UsageFilter{By: ByRun, Of: []string{"a", "b*"}, Since: Now()}))
		},
		"usage, session": func() error {
			return second(r.ModelUsage(ctx, UsageFilter{By: ByRun, SessionID: "a", Since: Now()}))
		},
		"usage, agent":   func() error { return second(r.ModelUsage(ctx, UsageFilter{By: BySession, AgentID: "a"})) },
		"usage, creator": func() error { return second(r.ModelUsage(ctx, UsageFilter{CreatedBy: "a", Until: Now()})) },
		"events":         func() error { return second(r.Events(ctx, 5, limit)) },
	} {
		queries = nil
		if err := list(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(queries) == 0 {
			t.Errorf("%s: nothing was asked", name)
		}
		for _, q := range queries {
			steps, err := collect(ctx, s.db, func(rows *sql.Rows) (string, error) {
				var id, parent, unused int
				var step string
				err := rows.Scan(&id, &parent, &unused, &step)
				return step, err
			}, `EXPLAIN QUERY PLAN `+q.query, q.args...)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, step := range steps {
				along := false
				for _, table := range strings.Fields(whole) {
					along = along || name == table || name == table+", page" || name == "agents, now" ||
						strings.HasPrefix(step, "SCAN "+table+" USING INDEX "+table+"_live")
				}
				along = along || strings.HasPrefix(step, "SCAN runs USING INDEX runs_owned") // it holds these only
				ids := strings.Contains(q.query, "json_each")
				sums := strings.HasPrefix(name, "usage") // they are gathered and sorted, they are few
				along = along || name == "usage" && strings.HasPrefix(step, "SCAN model_usage")
				bad := strings.Contains(step, "AUTOMATIC") && !strings.HasPrefix(step, "SEARCH up ") || strings.HasPrefix(step, "SCAN ") && !along && step != "SCAN up" && step != "SCAN down" && step != "SCAN CONSTANT ROW" && !strings.HasPrefix(step, "SCAN json_each ") ||
					strings.Contains(step, "TEMP B-TREE") && !ids && !sums && !strings.Contains(q.query, "depth")
				if bad {
					t.Errorf("%s: %s\n%s\n%s", name, step, q.query, strings.Join(steps, "\n"))
				}
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

// world is one of everything.
type world struct {
	agent   Agent
	session Session
	message Message
	task    Task
	comment TaskComment
	memory  MemoryFile
	run     Run
	box     Sandbox
	key     Key
	lease   Lease
	model   ModelLease

	approval Approval
}

func fillOnce(t testing.TB, s *Store) (w world) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.agent, err = s.InsertAgent(ctx, Agent{Name: "ada"})
	must(err)
	w.session, err = s.InsertSession(ctx, Session{AgentID: w.agent.ID, Name: "chat"})
	must(err)
	w.message, err = s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: "hello"})
	must(err)
	w.task, err = s.InsertTask(ctx, Task{AgentID: w.agent.ID, SessionID: w.session.ID, Title: "mend it"})
	must(err)
	w.comment, err = s.AddComment(ctx, TaskComment{TaskID: w.task.ID, Text: "soon"})
	must(err)
	w.memory, err = s.WriteMemory(ctx, MemoryFile{AgentID: w.agent.ID, Kind: MemoryNote, Path: "a.md", Content: "x", State: MemoryApproved})
	must(err)
	w.run, err = s.InsertRun(ctx, Run{AgentID: w.agent.ID, SessionID: w.session.ID, TaskID: w.task.ID, CreatedBy: "operator"})
	must(err)
	w.box, err = s.InsertSandbox(ctx, Sandbox{RunID: w.run.ID, Backend: "gvisor", Name: "box"})
	must(err)
	w.key, err = s.InsertKey(ctx, newKey("", "first"), nil)
	must(err)
	_, err = s.PutProfile(ctx, Profile{Name: "p", Spec: []byte(`{}`)})
	must(err)
	w.lease, err = s.InsertLease(ctx, Lease{Secret: "TOKEN", RunID: w.run.ID})
	must(err)
	w.model, err = s.InsertModelLease(ctx, ModelLease{
		Hash: newKey("", "model").Hash, RunID: w.run.ID, AgentID: w.agent.ID, SessionID: w.session.ID, CreatedBy: "operator", ExpiresAt: Now().Add(time.Hour),
	})
	must(err)
	must(s.AddModelUsage(ctx, w.model.ID, "anthropic", "claude-1", ModelUse{Requests: 1, Input: 2}))
	w.approval, err = s.InsertApproval(ctx, Approval{RunID: w.run.ID, Tool: "exec", Digest: w.model.Hash, Command: "npm publish", ExpiresAt: Now().Add(time.Hour)})
	must(err)
	return w
}

// Lists with ten thousand runs and a hundred thousand messages:
//
//	go test -bench Lists -run - ./internal/store
func BenchmarkLists(b *testing.B) {
	home := b.TempDir()
	s, err := Open(b.Context(), home)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx, w := b.Context(), fillOnce(b, s)
	for _, fill := range []string{
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO runs (id, status, created_at, session_id, created_by) SELECT printf('run%026d', i), 'succeeded', i, 'ses' || (i % 100), 'operator' FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO sandboxes (id, backend, desired, seen, created_at) SELECT printf('sbx%026d', i), 'gvisor', 'ended', 'ended', i FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO sessions (id, agent_id, name, created_at, updated_at, closed_at) SELECT printf('ses%026d', i), '` + w.agent.ID + `', i, i, i, i FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
			INSERT INTO messages (id, session_id, seq, role, text, created_at)
			SELECT printf('msg%026d', i), iif(i < 50000, '` + w.session.ID + `', printf('ses%026d', i % 10000 + 1)), i + 1, 'user', hex(zeroblob(200)), i FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO tasks (id, title, status, created_at, updated_at) SELECT printf('tsk%026d', i), 'x', 'done', i, i FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO keys (id, hash, kind, capabilities, created_at, expires_at, revoked_at)
			SELECT printf('ctx_%024d', i), printf('%064d', i), 'key', '[]', i, i + 1, i FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO memory (id, agent_id, kind, path, content, state, created_at, decided_at)
			SELECT printf('mem%026d', i), '` + w.agent.ID + `', 'memory', 'f' || (i % 500), 'x', 'approved', i, i FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
			INSERT INTO model_usage SELECT printf('mls%026d', i), 'anthropic', 'claude-' || (i % 7), i * 3600000, printf('run%026d', i), 'agt' || (i % 10),
			'ses' || (i % 100), 'operator', 9, 1, 0, 1000, 2000, 3000, 4000, 5000, i * 3600000, i * 3600000 + 1 FROM n`,
	} {
		if _, err := s.db.ExecContext(ctx, fill); err != nil {
			b.Fatal(err)
		}
	}
	ids := []string{}
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("run%026d", i*50))
	}
	for name, list := range map[string]func() error{
		"runs/100": func() error { return second(s.ListRuns(ctx, RunFilter{Limit: 100})) },
		"runs/all": func() error { return second(s.ListRuns(ctx, RunFilter{})) },
		"runs/last-page": func() error {
			return second(s.ListRuns(ctx, RunFilter{Before: "run00000000000000000000000101", Limit: 100}))
		},
		"runs/live":       func() error { return second(s.ListRuns(ctx, RunFilter{Live: true})) },
		"runs/session":    func() error { return second(s.ListRuns(ctx, RunFilter{SessionID: "ses7", Limit: 100})) },
		"runs/ids":        func() error { return second(s.ListRuns(ctx, RunFilter{IDs: ids})) },
		"runs/count":      func() error { return second(s.CountRuns(ctx, RunFilter{})) },
		"sandboxes/live":  func() error { return second(s.ListSandboxes(ctx, SandboxFilter{Live: true})) },
		"sandbox/name":    func() error { return second(s.Sandbox(ctx, "box")) },
		"sessions/open":   func() error { return second(s.ListSessions(ctx, SessionFilter{Open: true, Limit: 100})) },
		"messages/1000":   func() error { return second(s.Messages(ctx, w.session.ID, MessageFilter{After: 40000})) },
		"messages/newest": func() error { return second(s.Messages(ctx, w.session.ID, MessageFilter{Newest: true, Limit: 100})) },
		"tasks/open":      func() error { return second(s.ListTasks(ctx, TaskFilter{Status: TaskOpen})) },
		"keys/live":       func() error { return second(s.ListKeys(ctx, KeyFilter{Live: true})) },
		"key/hash":        func() error { _, _, err := s.KeyByHash(ctx, w.key.Hash); return err },
		"memory/500":      func() error { return second(s.Memory(ctx, w.agent.ID, MemoryNote)) },
		"usage/all":       func() error { return second(s.ModelUsage(ctx, UsageFilter{})) },
		"usage/runs":      func() error { return second(s.ModelUsage(ctx, UsageFilter{By: ByRun, Limit: 100})) },
		"usage/sessions":  func() error { return second(s.ModelUsage(ctx, UsageFilter{By: BySession})) },
		"usage/models":    func() error { return second(s.ModelUsage(ctx, UsageFilter{By: ByModel})) },
		"usage/days":      func() error { return second(s.ModelUsage(ctx, UsageFilter{By: ByDay})) },
		"usage/caller":    func() error { return second(s.ModelUsage(ctx, UsageFilter{CreatedBy: "operator", By: ByModel})) },
		"usage/run":       func() error { return second(s.ModelUsage(ctx, UsageFilter{RunID: ids[7], By: ByModel})) },
		"usage/add":       func() error { return s.AddModelUsage(ctx, w.model.ID, "anthropic", "a", ModelUse{Requests: 1}) },
		"message/append": func() error {
			return second(s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: "x"}))
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := list(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
