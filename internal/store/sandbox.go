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
	Name      string     `json:"name,omitempty"` // that no other live one has
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
	CreatedBy string     `json:"created_by,omitempty"` // operator, or the id of a key
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
	Live             bool     // only those that are not over
	RunID, CreatedBy string   // empty: any
	IDs              []string // only these; empty, but not nil: none
	Before           string   // the id after which the page begins
	Limit            int      // the newest so many; 0 is no limit
}

func (f SandboxFilter) choice() (c choice) {
	c.add(f.Live, `seen NOT IN ('ended', 'failed')`)
	c.is(`run_id`, f.RunID)
	c.is(`created_by`, f.CreatedBy)
	c.among(`id`, f.IDs)
	return c
}

var sandboxes = table[Sandbox]{
	name: "sandboxes", what: "sandbox",
	columns: `id, name, run_id, backend, image, workspace, desired, seen, reason, owner_pid, owner_start, keeper_pid, keeper_start,
	dir, cgroups, uid_base, limits, created_by, created_at, started_at, ended_at`,
	order: `created_at DESC, id DESC`,
	args:  (*Sandbox).args, scan: scanSandbox, id: func(b Sandbox) string { return b.ID },
}

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
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := checkSandboxName(ctx, tx, b); err != nil {
			return err
		}
		if err := sandboxes.insert(ctx, tx, &b); err != nil {
			return err
		}
		return happened(ctx, tx, EventSandboxCreated, b.ID, b.RunID, data{"seen": b.Seen, "desired": b.Desired})
	})
	if err != nil {
		return Sandbox{}, err
	}
	return b, nil
}

// checkSandboxName refuses a name that a live sandbox has.
func checkSandboxName(ctx context.Context, tx *sql.Tx, b Sandbox) error {
	if b.Name == "" {
		return nil
	}
	if err := checkName("sbx", b.ID, b.Name); err != nil {
		return err
	}
	n, err := number(ctx, tx, `SELECT count(*) FROM sandboxes WHERE name = ? AND seen NOT IN ('ended', 'failed') AND id <> ?`, b.Name, b.ID)
	if err == nil && n > 0 && !b.Seen.Final() {
		err = fmt.Errorf("a sandbox with the name %q: %w", b.Name, ErrExists)
	}
	return err
}

// UpdateSandbox changes the record of one sandbox, found by its full id: change sees the record as it is now, and
// nobody else writes until it is stored. What is over stays over: a change back to life is refused with ErrFinal,
// and the moment of the end is filled in. An error from change leaves the record as it was. What changes
// nothing is not written, and nobody is told.
func (s *Store) UpdateSandbox(ctx context.Context, id string, change func(*Sandbox) error) (Sandbox, error) {
	var b Sandbox
	err := s.tx(ctx, func(tx *sql.Tx) error {
		before, err := sandboxes.get(ctx, tx, id)
		if err != nil {
			return err
		}
		was, err := sandboxes.args(&before)
		if err != nil {
			return err
		}
		b = before
		if err := change(&b); err != nil {
			return err
		}
		if b.ID != before.ID || !b.CreatedAt.Equal(before.CreatedAt) || b.CreatedBy != before.CreatedBy {
			return errors.New("the id, the creator and the creation time of a sandbox never change")
		}
		if before.Seen.Final() && b.Seen != before.Seen {
			return fmt.Errorf("sandbox %s cannot become %s: %w", id, b.Seen, ErrFinal)
		}
		if b.Seen.Final() && b.EndedAt == nil {
			now := Now()
			b.EndedAt = &now
		}
		if b.Name != before.Name {
			if err := checkSandboxName(ctx, tx, b); err != nil {
				return err
			}
		}
		if changed, err := sandboxes.update(ctx, tx, was, &b); !changed {
			return err
		}
		return happened(ctx, tx, EventSandboxChanged, id, b.RunID, data{"seen": b.Seen, "desired": b.Desired, "reason": b.Reason})
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

// Sandbox finds one sandbox by its id, by its name, or by a beginning of an id that only one has. A name means the
// live sandbox that has it, or the last that had it.
func (s *Store) Sandbox(ctx context.Context, idOrName string) (Sandbox, error) {
	return sandboxes.find(ctx, s.reads, idOrName, `name = ? ORDER BY seen NOT IN ('ended', 'failed') DESC, created_at DESC, id DESC LIMIT 1`)
}

// ListSandboxes gives the chosen sandboxes, the newest first.
func (s *Store) ListSandboxes(ctx context.Context, f SandboxFilter) ([]Sandbox, error) {
	return sandboxes.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

// CountSandboxes says how many sandboxes are chosen, whatever page is.
func (s *Store) CountSandboxes(ctx context.Context, f SandboxFilter) (int, error) {
	return sandboxes.count(ctx, s.reads, f.choice())
}

// DeleteSandbox forgets a sandbox that is over. Forgetting twice is no error; forgetting a live one is.
func (s *Store) DeleteSandbox(ctx context.Context, id string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		b, err := sandboxes.get(ctx, tx, id)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if !b.Seen.Final() {
			return fmt.Errorf("sandbox %s is %s: its record is needed until it has ended", id, b.Seen)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, id); err != nil {
			return fmt.Errorf("cannot forget sandbox %s: %w", id, err)
		}
		return nil
	})
}

func (b *Sandbox) args() ([]any, error) {
	cgroups, err := toJSON(&b.Cgroups)
	if err != nil {
		return nil, err
	}
	limits, err := json.Marshal(b.Limits)
	if err != nil {
		return nil, err
	}
	return []any{b.ID, b.Name, orNull(b.RunID), b.Backend, b.Image, b.Workspace,
		string(b.Desired), string(b.Seen), b.Reason, b.Owner.PID, int64(b.Owner.Start), b.Keeper.PID, int64(b.Keeper.Start),
		b.Dir, cgroups, b.UIDBase, string(limits), b.CreatedBy, b.CreatedAt.UnixMilli(), millis(b.StartedAt), millis(b.EndedAt)}, nil
}

func scanSandbox(rows *sql.Rows) (Sandbox, error) {
	var b Sandbox
	var run sql.NullString
	var cgroups, limits string
	var created, ownerStart, keeperStart int64
	var started, ended sql.NullInt64
	err := rows.Scan(&b.ID, &b.Name, &run, &b.Backend, &b.Image, &b.Workspace, &b.Desired, &b.Seen, &b.Reason, &b.Owner.PID,
		&ownerStart, &b.Keeper.PID, &keeperStart, &b.Dir, &cgroups, &b.UIDBase, &limits, &b.CreatedBy, &created, &started, &ended)
	if err != nil {
		return b, err
	}
	b.RunID, b.Owner.Start, b.Keeper.Start = run.String, uint64(ownerStart), uint64(keeperStart)
	b.CreatedAt, b.StartedAt, b.EndedAt = fromMilli(created), fromMillis(started), fromMillis(ended)
	if err := json.Unmarshal([]byte(cgroups), &b.Cgroups); err != nil {
		return b, fmt.Errorf("sandbox %s: cgroups: %w", b.ID, err)
	}
	if err := json.Unmarshal([]byte(limits), &b.Limits); err != nil {
		return b, fmt.Errorf("sandbox %s: limits: %w", b.ID, err)
	}
	return b, nil
}
