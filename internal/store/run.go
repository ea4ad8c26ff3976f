package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"ravi/internal/procid"
)

// RunStatus is how far a run got.
type RunStatus string

// The states of a run. All but queued and running are final.
const (
	RunQueued    RunStatus = "queued"
	RunRunning   RunStatus = "running"
	RunSucceeded RunStatus = "succeeded"
	RunFailed    RunStatus = "failed"
	RunTimeout   RunStatus = "timeout"
	RunOOM       RunStatus = "oom"
	RunCanceled  RunStatus = "canceled"
	RunError     RunStatus = "error"
)

// Final says whether a run is over.
func (s RunStatus) Final() bool { return s != RunQueued && s != RunRunning }

// Patch is the summary of what a run changed.
type Patch struct {
	Files      int    `json:"files"`
	Insertions int    `json:"insertions"`
	Deletions  int    `json:"deletions"`
	Bytes      int64  `json:"bytes"`
	SHA256     string `json:"sha256"`
	Applies    bool   `json:"applies"`
}

// Run is the record of one task in one sandbox.
type Run struct {
	ID        string     `json:"id"`
	Status    RunStatus  `json:"status"`
	Reason    string     `json:"reason,omitempty"`
	Command   []string   `json:"command"`
	Repo      string     `json:"repo"`
	Base      string     `json:"base"`
	Task      string     `json:"task,omitempty"`
	ExitCode  *int       `json:"exit_code"`
	Dir       string     `json:"dir"`
	SandboxID string     `json:"sandbox_id,omitempty"`
	AgentID   string     `json:"agent_id,omitempty"`
	SessionID string     `json:"session_id,omitempty"`
	TaskID    string     `json:"task_id,omitempty"`
	CreatedBy string     `json:"created_by,omitempty"` // operator, or the id of a key
	Owner     procid.ID  `json:"owner"`                // the process that does it; nobody once its outcome is written down
	Patch     *Patch     `json:"patch,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// RunFilter chooses runs; the zero filter chooses all.
type RunFilter struct {
	Live                                  bool     // only those that are not over
	Owned                                 bool     // only those whose outcome is not written down by the process that does them
	AgentID, SessionID, TaskID, CreatedBy string   // empty: any
	IDs                                   []string // only these; empty, but not nil: none
	Before                                string   // the id after which the page begins
	Limit                                 int      // the newest so many; 0 is no limit
}

func (f RunFilter) choice() (c choice) {
	c.add(f.Live, `status IN ('queued', 'running')`)
	c.add(f.Owned, `owner_pid <> 0`)
	c.is(`agent_id`, f.AgentID)
	c.is(`session_id`, f.SessionID)
	c.is(`task_id`, f.TaskID)
	c.is(`created_by`, f.CreatedBy)
	c.among(`id`, f.IDs)
	return c
}

var runs = table[Run]{
	name: "runs", what: "run",
	columns: `id, status, reason, command, repo, base, task, exit_code, dir, sandbox_id, patch, agent_id, session_id, task_id,
	created_by, owner_pid, owner_start, created_at, started_at, ended_at`,
	order: `created_at DESC, id DESC`,
	args:  (*Run).args, scan: scanRun, id: func(r Run) string { return r.ID },
}

// InsertRun records a run that is about to begin. An empty id, status or time is filled in, and the record is given
// back as it was stored.
func (s *Store) InsertRun(ctx context.Context, r Run) (Run, error) {
	if r.ID == "" {
		r.ID = NewRunID()
	}
	if r.Status == "" {
		r.Status = RunQueued
	}
	if r.CreatedAt.IsZero() {
		r.CreatedAt = Now()
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := runs.insert(ctx, tx, &r); err != nil {
			return err
		}
		return happened(ctx, tx, EventRunCreated, r.ID, r.ID, data{"status": r.Status})
	})
	if err != nil {
		return Run{}, err
	}
	return r, nil
}

// UpdateRun changes the record of one run, found by its full id, as UpdateSandbox does for a sandbox. A status that
// is final never changes; the moments of start and end are filled in.
func (s *Store) UpdateRun(ctx context.Context, id string, change func(*Run) error) (Run, error) {
	var r Run
	err := s.tx(ctx, func(tx *sql.Tx) error {
		before, err := runs.get(ctx, tx, id)
		if err != nil {
			return err
		}
		was, err := runs.args(&before)
		if err != nil {
			return err
		}
		r = before
		if err := change(&r); err != nil {
			return err
		}
		if r.ID != before.ID || !r.CreatedAt.Equal(before.CreatedAt) || r.CreatedBy != before.CreatedBy {
			return errors.New("the id, the creator and the creation time of a run never change")
		}
		if before.Status.Final() && r.Status != before.Status {
			return fmt.Errorf("run %s cannot become %s: %w", id, r.Status, ErrFinal)
		}
		now := Now()
		if r.Status == RunRunning && r.StartedAt == nil {
			r.StartedAt = &now
		}
		if r.Status.Final() && r.EndedAt == nil {
			r.EndedAt = &now
		}
		if changed, err := runs.update(ctx, tx, was, &r); !changed {
			return err
		}
		return happened(ctx, tx, EventRunChanged, id, id, data{"status": r.Status, "reason": r.Reason})
	})
	return r, err
}

// Run finds one run by its id, or by a beginning that only one has.
func (s *Store) Run(ctx context.Context, id string) (Run, error) {
	return runs.find(ctx, s.reads, id, "")
}

// ListRuns gives the chosen runs, the newest first.
func (s *Store) ListRuns(ctx context.Context, f RunFilter) ([]Run, error) {
	return runs.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

// CountRuns says how many runs are chosen, whatever page is.
func (s *Store) CountRuns(ctx context.Context, f RunFilter) (int, error) {
	return runs.count(ctx, s.reads, f.choice())
}

func (r *Run) args() ([]any, error) {
	command, err := toJSON(&r.Command)
	if err != nil {
		return nil, err
	}
	var patch sql.NullString
	if r.Patch != nil {
		text, err := json.Marshal(r.Patch)
		if err != nil {
			return nil, err
		}
		patch = sql.NullString{String: string(text), Valid: true}
	}
	var exit sql.NullInt64
	if r.ExitCode != nil {
		exit = sql.NullInt64{Int64: int64(*r.ExitCode), Valid: true}
	}
	return []any{r.ID, string(r.Status), r.Reason, command, r.Repo, r.Base, r.Task, exit, r.Dir,
		orNull(r.SandboxID), patch, r.AgentID, r.SessionID, r.TaskID,
		r.CreatedBy, r.Owner.PID, int64(r.Owner.Start), r.CreatedAt.UnixMilli(), millis(r.StartedAt), millis(r.EndedAt)}, nil
}

func scanRun(rows *sql.Rows) (Run, error) {
	var r Run
	var command string
	var patch, sandbox sql.NullString
	var created, ownerStart int64
	var exit, started, ended sql.NullInt64
	err := rows.Scan(&r.ID, &r.Status, &r.Reason, &command, &r.Repo, &r.Base, &r.Task, &exit, &r.Dir, &sandbox, &patch,
		&r.AgentID, &r.SessionID, &r.TaskID, &r.CreatedBy, &r.Owner.PID, &ownerStart, &created, &started, &ended)
	if err != nil {
		return r, err
	}
	r.SandboxID, r.Owner.Start = sandbox.String, uint64(ownerStart)
	r.CreatedAt, r.StartedAt, r.EndedAt = fromMilli(created), fromMillis(started), fromMillis(ended)
	if exit.Valid {
		code := int(exit.Int64)
		r.ExitCode = &code
	}
	if err := json.Unmarshal([]byte(command), &r.Command); err != nil {
		return r, fmt.Errorf("run %s: command: %w", r.ID, err)
	}
	if patch.Valid {
		if err := json.Unmarshal([]byte(patch.String), &r.Patch); err != nil {
			return r, fmt.Errorf("run %s: patch: %w", r.ID, err)
		}
	}
	return r, nil
}
