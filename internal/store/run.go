package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
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
	Patch     *Patch     `json:"patch,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// RunFilter chooses runs; the zero filter chooses all.
type RunFilter struct {
	Live  bool // only those that are not over
	Limit int  // the newest so many; 0 is no limit
}

const runColumns = `id, status, reason, command, repo, base, task, exit_code, dir, sandbox_id, patch, created_at, started_at, ended_at`

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
	args, err := r.args()
	if err != nil {
		return Run{}, err
	}
	return r, s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO runs (`+runColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, args...)
		if err != nil {
			return fmt.Errorf("cannot record run %s: %w", r.ID, err)
		}
		return nil
	})
}

// UpdateRun changes the record of one run, found by its full id, as UpdateSandbox does for a sandbox. A status that
// is final never changes; the moments of start and end are filled in.
func (s *Store) UpdateRun(ctx context.Context, id string, change func(*Run) error) (Run, error) {
	var r Run
	err := s.tx(ctx, func(tx *sql.Tx) error {
		found, err := collect(ctx, tx, scanRun, `SELECT `+runColumns+` FROM runs WHERE id = ?`, id)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("run %q: %w", id, ErrNotFound)
		}
		before := found[0]
		r = before
		if err := change(&r); err != nil {
			return err
		}
		if r.ID != before.ID || !r.CreatedAt.Equal(before.CreatedAt) {
			return errors.New("the id and the creation time of a run never change")
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
		args, err := r.args()
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE runs SET (`+runColumns+`)
			= (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE id = ?`, append(args, id)...)
		if err != nil {
			return fmt.Errorf("cannot record run %s: %w", id, err)
		}
		return nil
	})
	return r, err
}

// Run finds one run by its id, or by a beginning that only one has.
func (s *Store) Run(ctx context.Context, id string) (Run, error) {
	if id == "" {
		return Run{}, fmt.Errorf("run %q: %w", id, ErrNotFound)
	}
	from, to := beginsWith(id)
	found, err := collect(ctx, s.db, scanRun,
		`SELECT `+runColumns+` FROM runs WHERE id >= ? AND id < ? ORDER BY id LIMIT 2`, from, to)
	if err != nil {
		return Run{}, err
	}
	return one(found, func(r Run) string { return r.ID }, "run", id)
}

// ListRuns gives the chosen runs, the newest first.
func (s *Store) ListRuns(ctx context.Context, f RunFilter) ([]Run, error) {
	var query strings.Builder
	var args []any
	query.WriteString(`SELECT ` + runColumns + ` FROM runs`)
	if f.Live {
		query.WriteString(` WHERE status IN ('queued', 'running')`)
	}
	query.WriteString(` ORDER BY created_at DESC, id DESC`)
	if f.Limit > 0 {
		query.WriteString(` LIMIT ?`)
		args = append(args, f.Limit)
	}
	return collect(ctx, s.db, scanRun, query.String(), args...)
}

func (r *Run) args() ([]any, error) {
	if r.Command == nil {
		r.Command = []string{}
	}
	command, err := json.Marshal(r.Command)
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
	return []any{r.ID, string(r.Status), r.Reason, string(command), r.Repo, r.Base, r.Task, exit, r.Dir,
		sql.NullString{String: r.SandboxID, Valid: r.SandboxID != ""}, patch, r.CreatedAt.UnixMilli(), millis(r.StartedAt), millis(r.EndedAt)}, nil
}

func scanRun(rows *sql.Rows) (Run, error) {
	var r Run
	var command string
	var patch, sandbox sql.NullString
	var created int64
	var exit, started, ended sql.NullInt64
	err := rows.Scan(&r.ID, &r.Status, &r.Reason, &command, &r.Repo, &r.Base, &r.Task, &exit, &r.Dir, &sandbox, &patch,
		&created, &started, &ended)
	if err != nil {
		return r, err
	}
	r.SandboxID = sandbox.String
	r.CreatedAt, r.StartedAt, r.EndedAt = time.UnixMilli(created).UTC(), fromMillis(started), fromMillis(ended)
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
