package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ravi/internal/procid"
)

// Desired is what a sandbox is meant to be.
type Desired string

// What a sandbox can be meant to be.
const (
	WantRunning Desired = "running"
	WantPaused  Desired = "paused"
	WantEnded   Desired = "ended"
)

// Seen is what a sandbox was last seen to be.
type Seen string

// What a sandbox can be seen to be. Ended and failed are final.
const (
	SeenCreating Seen = "creating"
	SeenRunning  Seen = "running"
	SeenPaused   Seen = "paused"
	SeenEnded    Seen = "ended"
	SeenFailed   Seen = "failed"
)

// Final says whether a sandbox is over.
func (s Seen) Final() bool { return s == SeenEnded || s == SeenFailed }

// Limits are what a sandbox may use.
type Limits struct {
	CPUs      float64 `json:"cpus"`
	MemoryMiB int64   `json:"memory_mib"`
	DiskMiB   int64   `json:"disk_mib"`
	Pids      int64   `json:"pids"`
}

// Sandbox is the record of one sandbox.
type Sandbox struct {
	ID        string     `json:"id"`
	RunID     string     `json:"run_id,omitempty"`
	Backend   string     `json:"backend"`
	Image     string     `json:"image"`
	Workspace string     `json:"workspace"`
	Desired   Desired    `json:"desired"`
	Seen      Seen       `json:"seen"`
	Reason    string     `json:"reason,omitempty"`
	Owner     procid.ID  `json:"owner"`
	Keeper    procid.ID  `json:"keeper"`
	Dir       string     `json:"dir"`
	Cgroups   []string   `json:"cgroups"`
	UIDBase   uint32     `json:"uid_base"`
	Limits    Limits     `json:"limits"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// Swept is what a sweep, which brings the world to the record, found and removed.
type Swept struct {
	Ended    []string `json:"ended"`    // sandboxes that nobody owned any more
	Dirs     int      `json:"dirs"`     // folders of sandboxes, with their processes and control groups
	Programs int      `json:"programs"` // versions of the programs in use by none
	Problems []string `json:"problems"` // what could not be removed, and why
}

// SandboxFilter chooses sandboxes; the zero filter chooses all.
type SandboxFilter struct {
	Live  bool   // only those that are not over
	RunID string // only those of this run
	Limit int    // the newest so many; 0 is no limit
}

const sandboxColumns = `id, run_id, backend, image, workspace, desired, seen, reason, owner_pid, owner_start,
	keeper_pid, keeper_start, dir, cgroups, uid_base, limits, created_at, started_at, ended_at`

// InsertSandbox records a sandbox that is about to be made. An empty id, state or time is filled in, and the record
// is given back as it was stored.
func (s *Store) InsertSandbox(ctx context.Context, b Sandbox) (Sandbox, error) {
	if b.ID == "" {
		b.ID = NewSandboxID()
	}
	if b.Desired == "" {
		b.Desired = WantRunning
	}
	if b.Seen == "" {
		b.Seen = SeenCreating
	}
	if b.CreatedAt.IsZero() {
		b.CreatedAt = Now()
	}
	args, err := b.args()
	if err != nil {
		return Sandbox{}, err
	}
	return b, s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (`+sandboxColumns+`)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, args...)
		if err != nil {
			return fmt.Errorf("cannot record sandbox %s: %w", b.ID, err)
		}
		return nil
	})
}

// UpdateSandbox changes the record of one sandbox, found by its full id: change sees the record as it is now, and
// nobody else writes until it is stored. What is over stays over: a change back to life is refused with ErrFinal,
// and the moment of the end is filled in. An error from change leaves the record as it was.
func (s *Store) UpdateSandbox(ctx context.Context, id string, change func(*Sandbox) error) (Sandbox, error) {
	var b Sandbox
	err := s.tx(ctx, func(tx *sql.Tx) error {
		found, err := collect(ctx, tx, scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("sandbox %q: %w", id, ErrNotFound)
		}
		before := found[0]
		b = before
		if err := change(&b); err != nil {
			return err
		}
		if b.ID != before.ID || !b.CreatedAt.Equal(before.CreatedAt) {
			return errors.New("the id and the creation time of a sandbox never change")
		}
		if before.Seen.Final() && b.Seen != before.Seen {
			return fmt.Errorf("sandbox %s cannot become %s: %w", id, b.Seen, ErrFinal)
		}
		if b.Seen.Final() && b.EndedAt == nil {
			now := Now()
			b.EndedAt = &now
		}
		args, err := b.args()
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET (`+sandboxColumns+`)
			= (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE id = ?`, append(args, id)...)
		if err != nil {
			return fmt.Errorf("cannot record sandbox %s: %w", id, err)
		}
		return nil
	})
	return b, err
}

// UpdateSandboxState records what a sandbox was seen to be, and why. Saying once more that it is over changes
// nothing, so that ending stays idempotent.
func (s *Store) UpdateSandboxState(ctx context.Context, id string, seen Seen, reason string) (Sandbox, error) {
	return s.UpdateSandbox(ctx, id, func(b *Sandbox) error {
		if b.Seen.Final() && seen.Final() {
			return nil
		}
		if seen == SeenRunning && b.StartedAt == nil {
			now := Now()
			b.StartedAt = &now
		}
		b.Seen, b.Reason = seen, reason
		return nil
	})
}

// Sandbox finds one sandbox by its id, or by a beginning that only one has.
func (s *Store) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	if id == "" {
		return Sandbox{}, fmt.Errorf("sandbox %q: %w", id, ErrNotFound)
	}
	from, to := beginsWith(id)
	found, err := collect(ctx, s.db, scanSandbox,
		`SELECT `+sandboxColumns+` FROM sandboxes WHERE id >= ? AND id < ? ORDER BY id LIMIT 2`, from, to)
	if err != nil {
		return Sandbox{}, err
	}
	return one(found, func(b Sandbox) string { return b.ID }, "sandbox", id)
}

// ListSandboxes gives the chosen sandboxes, the newest first.
func (s *Store) ListSandboxes(ctx context.Context, f SandboxFilter) ([]Sandbox, error) {
	where := []string{"true"}
	var args []any
	if f.Live {
		where = append(where, "seen NOT IN ('ended', 'failed')")
	}
	if f.RunID != "" {
		where, args = append(where, "run_id = ?"), append(args, f.RunID)
	}
	query := `SELECT ` + sandboxColumns + ` FROM sandboxes WHERE ` + strings.Join(where, " AND ") + ` ORDER BY created_at DESC, id DESC`
	if f.Limit > 0 {
		query, args = query+` LIMIT ?`, append(args, f.Limit)
	}
	return collect(ctx, s.db, scanSandbox, query, args...)
}

// DeleteSandbox forgets a sandbox that is over. Forgetting twice is no error; forgetting a live one is.
func (s *Store) DeleteSandbox(ctx context.Context, id string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		found, err := collect(ctx, tx, scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id)
		if err != nil || len(found) == 0 {
			return err
		}
		if !found[0].Seen.Final() {
			return fmt.Errorf("sandbox %s is %s: its record is needed until it has ended", id, found[0].Seen)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, id); err != nil {
			return fmt.Errorf("cannot forget sandbox %s: %w", id, err)
		}
		return nil
	})
}

func (b *Sandbox) args() ([]any, error) {
	if b.Cgroups == nil {
		b.Cgroups = []string{}
	}
	cgroups, err := json.Marshal(b.Cgroups)
	if err != nil {
		return nil, err
	}
	limits, err := json.Marshal(b.Limits)
	if err != nil {
		return nil, err
	}
	return []any{b.ID, sql.NullString{String: b.RunID, Valid: b.RunID != ""}, b.Backend, b.Image, b.Workspace,
		string(b.Desired), string(b.Seen), b.Reason, b.Owner.PID, int64(b.Owner.Start), b.Keeper.PID, int64(b.Keeper.Start),
		b.Dir, string(cgroups), b.UIDBase, string(limits), b.CreatedAt.UnixMilli(), millis(b.StartedAt), millis(b.EndedAt)}, nil
}

func scanSandbox(rows *sql.Rows) (Sandbox, error) {
	var b Sandbox
	var run sql.NullString
	var cgroups, limits string
	var created, ownerStart, keeperStart int64
	var started, ended sql.NullInt64
	err := rows.Scan(&b.ID, &run, &b.Backend, &b.Image, &b.Workspace, &b.Desired, &b.Seen, &b.Reason, &b.Owner.PID,
		&ownerStart, &b.Keeper.PID, &keeperStart, &b.Dir, &cgroups, &b.UIDBase, &limits, &created, &started, &ended)
	if err != nil {
		return b, err
	}
	b.RunID, b.Owner.Start, b.Keeper.Start = run.String, uint64(ownerStart), uint64(keeperStart)
	b.CreatedAt, b.StartedAt, b.EndedAt = time.UnixMilli(created).UTC(), fromMillis(started), fromMillis(ended)
	if err := json.Unmarshal([]byte(cgroups), &b.Cgroups); err != nil {
		return b, fmt.Errorf("sandbox %s: cgroups: %w", b.ID, err)
	}
	if err := json.Unmarshal([]byte(limits), &b.Limits); err != nil {
		return b, fmt.Errorf("sandbox %s: limits: %w", b.ID, err)
	}
	return b, nil
}
