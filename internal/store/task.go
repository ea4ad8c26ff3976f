package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// TaskStatus is how far a task got.
type TaskStatus string

// The states of a task. Done and failed are final until it is opened again.
const (
	TaskOpen       TaskStatus = "open"
	TaskDispatched TaskStatus = "dispatched"
	TaskInProgress TaskStatus = "in_progress"
	TaskBlocked    TaskStatus = "blocked"
	TaskDone       TaskStatus = "done"
	TaskFailed     TaskStatus = "failed"
)

// TaskStatuses are all of them.
var TaskStatuses = []TaskStatus{TaskOpen, TaskDispatched, TaskInProgress, TaskBlocked, TaskDone, TaskFailed}

// Final says whether a task is over.
func (s TaskStatus) Final() bool { return s == TaskDone || s == TaskFailed }

// Task is something to be done.
type Task struct {
	ID        string     `json:"id"`
	AgentID   string     `json:"agent_id,omitempty"`
	SessionID string     `json:"session_id,omitempty"`
	Title     string     `json:"title"`
	Body      string     `json:"body"`
	Status    TaskStatus `json:"status"`
	Author    string     `json:"author,omitempty"`
	KeyID     string     `json:"key_id,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// TaskFilter chooses tasks; the zero filter chooses all.
type TaskFilter struct {
	Status             TaskStatus // empty: any
	AgentID, SessionID string     // empty: any
	IDs                []string   // only these; empty, but not nil: none
	Before             string     // the id after which the page begins
	Limit              int        // the newest so many; 0 is no limit
}

func (f TaskFilter) choice() (c choice) {
	c.is(`status`, string(f.Status))
	c.is(`agent_id`, f.AgentID)
	c.is(`session_id`, f.SessionID)
	c.among(`id`, f.IDs)
	return c
}

var tasks = table[Task]{
	name: "tasks", what: "task",
	columns: `id, agent_id, session_id, title, body, status, author, key_id, created_at, updated_at, ended_at`,
	order:   byPlace,
	args: func(t *Task) ([]any, error) {
		return []any{t.ID, orNull(t.AgentID), orNull(t.SessionID), t.Title, t.Body, string(t.Status), t.Author, t.KeyID,
			t.CreatedAt.UnixMilli(), t.UpdatedAt.UnixMilli(), millis(t.EndedAt)}, nil
	},
	scan: func(rows *sql.Rows) (t Task, err error) {
		var agent, session sql.NullString
		var created, updated int64
		var ended sql.NullInt64
		err = rows.Scan(&t.ID, &agent, &session, &t.Title, &t.Body, &t.Status, &t.Author, &t.KeyID, &created, &updated, &ended)
		t.AgentID, t.SessionID = agent.String, session.String
		t.CreatedAt, t.UpdatedAt, t.EndedAt = fromMilli(created), fromMilli(updated), fromMillis(ended)
		return t, err
	},
	id: func(t Task) string { return t.ID },
}

// InsertTask records a task. An empty id, status or time is filled in.
func (s *Store) InsertTask(ctx context.Context, t Task) (Task, error) {
	if t.ID == "" {
		t.ID = newID("tsk")
	}
	if t.Status == "" {
		t.Status = TaskOpen
	}
	if t.CreatedAt.IsZero() {
		t.CreatedAt = Now()
	}
	t.UpdatedAt = t.CreatedAt
	if t.Status.Final() && t.EndedAt == nil {
		t.EndedAt = &t.UpdatedAt
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := checkTask(ctx, tx, t); err != nil {
			return err
		}
		if err := tasks.insert(ctx, tx, &t); err != nil {
			return err
		}
		return happened(ctx, tx, EventTaskCreated, t.ID, "", data{"status": t.Status})
	})
	if err != nil {
		return Task{}, err
	}
	return t, nil
}

// UpdateTask changes the record of a task, named by its full id. Its status changes by SetTaskStatus only, which writes
// down who changed it and why.
func (s *Store) UpdateTask(ctx context.Context, id string, change func(*Task) error) (Task, error) {
	var t Task
	err := s.tx(ctx, func(tx *sql.Tx) error {
		before, err := tasks.get(ctx, tx, id)
		if err != nil {
			return err
		}
		t = before
		if err := change(&t); err != nil {
			return err
		}
		if t.ID != before.ID || !t.CreatedAt.Equal(before.CreatedAt) || t.Author != before.Author || t.KeyID != before.KeyID {
			return errors.New("the id, the author and the creation time of a task never change")
		}
		if t.Status != before.Status {
			return errors.New("the status of a task changes with a word of why")
		}
		t.EndedAt = before.EndedAt
		if err := checkTask(ctx, tx, t); err != nil {
			return err
		}
		t.UpdatedAt = Now()
		if err := tasks.set(ctx, tx, &t); err != nil {
			return err
		}
		return happened(ctx, tx, EventTaskChanged, id, "", data{"status": t.Status})
	})
	return t, err
}

func checkTask(ctx context.Context, tx *sql.Tx, t Task) error {
	if t.Title == "" {
		return fmt.Errorf("a task without a title is %w", ErrInvalid)
	}
	if err := checkOneOf("the status", t.Status, TaskStatuses...); err != nil {
		return err
	}
	if err := checkText("the text of the task", t.Body, MaxText); err != nil {
		return err
	}
	if err := checkLines(line{"the title", t.Title}, line{"the author", t.Author}); err != nil {
		return err
	}
	if t.AgentID != "" {
		if err := needs(ctx, tx, "agents", "agent", t.AgentID); err != nil {
			return err
		}
	}
	if t.SessionID != "" {
		return needs(ctx, tx, "sessions", "session", t.SessionID)
	}
	return nil
}

// SetTaskStatus changes the status of a task, named by its full id, and writes down in a comment who did it and why. A
// task that is over can be opened again, and nothing else.
func (s *Store) SetTaskStatus(ctx context.Context, id string, status TaskStatus, by TaskComment) (Task, error) {
	var t Task
	by.TaskID, by.Kind, by.Status = id, CommentStatus, status
	fillIn(&by)
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if t, err = tasks.get(ctx, tx, id); err != nil {
			return err
		}
		if err := checkOneOf("the status", status, TaskStatuses...); err != nil {
			return err
		}
		if t.Status.Final() && status != TaskOpen {
			return fmt.Errorf("task %s is %s, it can only be opened again: %w", id, t.Status, ErrFinal)
		}
		t.Status, t.UpdatedAt, t.EndedAt = status, Now(), nil
		if status.Final() {
			now := t.UpdatedAt
			t.EndedAt = &now
		}
		if err := tasks.set(ctx, tx, &t); err != nil {
			return err
		}
		if err := addComment(ctx, tx, &by); err != nil {
			return err
		}
		return happened(ctx, tx, EventTaskChanged, id, by.RunID, data{"status": status})
	})
	return t, err
}

// Task finds one task by its id, or by a beginning that only one has.
func (s *Store) Task(ctx context.Context, id string) (Task, error) {
	return tasks.find(ctx, s.reads, id, "")
}

// ListTasks gives the chosen tasks, the newest first.
func (s *Store) ListTasks(ctx context.Context, f TaskFilter) ([]Task, error) {
	return tasks.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

// CountTasks says how many tasks are chosen, whatever page is.
func (s *Store) CountTasks(ctx context.Context, f TaskFilter) (int, error) {
	return tasks.count(ctx, s.reads, f.choice())
}

// CommentKind is what a comment is.
type CommentKind string

// Kinds of comments. A status comment is written with each change of status.
const (
	CommentPlain  CommentKind = "comment"
	CommentReport CommentKind = "report"
	CommentStatus CommentKind = "status"
)

// TaskComment is something that was said about a task.
type TaskComment struct {
	ID        string      `json:"id"`
	TaskID    string      `json:"task_id"`
	Kind      CommentKind `json:"kind"`
	Status    TaskStatus  `json:"status,omitempty"` // what the task became
	Text      string      `json:"text"`
	Author    string      `json:"author,omitempty"`
	KeyID     string      `json:"key_id,omitempty"`
	RunID     string      `json:"run_id,omitempty"`
	CreatedAt time.Time   `json:"created_at"`
}

// CommentFilter chooses comments of a task; the zero filter chooses the first PageSize of them.
type CommentFilter struct {
	Kind  CommentKind // empty: any
	After string      // the id after which the page begins
	Limit int         // 0 is PageSize
}

var comments = table[TaskComment]{
	name: "task_comments", what: "comment",
	columns: `id, task_id, kind, status, text, author, key_id, run_id, created_at`,
	args: func(c *TaskComment) ([]any, error) {
		return []any{c.ID, c.TaskID, string(c.Kind), string(c.Status), c.Text, c.Author, c.KeyID, c.RunID, c.CreatedAt.UnixMilli()}, nil
	},
	scan: func(rows *sql.Rows) (c TaskComment, err error) {
		var created int64
		err = rows.Scan(&c.ID, &c.TaskID, &c.Kind, &c.Status, &c.Text, &c.Author, &c.KeyID, &c.RunID, &created)
		c.CreatedAt = fromMilli(created)
		return c, err
	},
	id: func(c TaskComment) string { return c.ID },
}

// AddComment adds a comment or a report to a task, named by its full id; also to one that is over.
func (s *Store) AddComment(ctx context.Context, c TaskComment) (TaskComment, error) {
	fillIn(&c)
	if err := checkOneOf("the kind of a comment", c.Kind, CommentPlain, CommentReport); err != nil {
		return TaskComment{}, err
	}
	if c.Status != "" {
		return TaskComment{}, fmt.Errorf("a comment with a status is %w: the status is set, not told", ErrInvalid)
	}
	if err := s.tx(ctx, func(tx *sql.Tx) error { return addComment(ctx, tx, &c) }); err != nil {
		return TaskComment{}, err
	}
	return c, nil
}

func fillIn(c *TaskComment) {
	if c.ID == "" {
		c.ID = newID("com")
	}
	if c.Kind == "" {
		c.Kind = CommentPlain
	}
	if c.CreatedAt.IsZero() {
		c.CreatedAt = Now()
	}
}

func addComment(ctx context.Context, tx *sql.Tx, c *TaskComment) error {
	if err := checkText("the comment", c.Text, MaxText); err != nil {
		return err
	}
	if err := checkLines(line{"the author", c.Author}); err != nil {
		return err
	}
	if err := needs(ctx, tx, "tasks", "task", c.TaskID); err != nil {
		return err
	}
	if err := comments.insert(ctx, tx, c); err != nil {
		return err
	}
	return happened(ctx, tx, EventTaskCommented, c.TaskID, c.RunID, data{"id": c.ID, "kind": c.Kind})
}

// Comments gives the chosen comments of a task, named by its full id, in the order in which they came.
func (s *Store) Comments(ctx context.Context, taskID string, f CommentFilter) ([]TaskComment, error) {
	var c choice
	c.add(true, `task_id = ?`, taskID)
	c.is(`kind`, string(f.Kind))
	if f.After != "" {
		if _, err := comments.get(ctx, s.reads, f.After); err != nil {
			return nil, err
		}
		c.add(true, `place > (SELECT place FROM task_comments WHERE id = ?)`, f.After)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = PageSize
	}
	return few(ctx, s.reads, comments.scan, `SELECT `+comments.columns+` FROM task_comments`+c.where()+` ORDER BY place LIMIT ?`,
		append(c.args, limit)...)
}
