package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Kinds of credentials for the bus.
const (
	BusRunner   = "runner"
	BusGuest    = "guest"
	BusOwner    = "owner"
	BusOperator = "operator"
)

// BusCredential is the record of a credential for the bus. The key itself is not in it.
type BusCredential struct {
	ID        string     `json:"id"` // the user: the public half of its key, U…
	Kind      string     `json:"kind"`
	Name      string     `json:"name"`
	Client    string     `json:"client,omitempty"` // whose account; empty: the control account
	RunID     string     `json:"run_id,omitempty"`
	XKey      string     `json:"xkey,omitempty"` // of a runner: the public key that is sealed to
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	Reason    string     `json:"reason,omitempty"`
}

// BusCredentialFilter chooses credentials; the zero filter chooses all.
type BusCredentialFilter struct {
	Live    bool // only those that were not revoked, and have not expired
	Revoked bool // only those that were revoked, and have not expired
	Kind    string
	Name    string
	RunID   string
	Before  string
	Limit   int
}

var busCredentials = table[BusCredential]{
	name: "bus_credentials", what: "credential",
	columns: `id, kind, name, client, run_id, xkey, created_at, expires_at, revoked_at, reason`,
	order:   byPlace,
	args: func(c *BusCredential) ([]any, error) {
		return []any{c.ID, c.Kind, c.Name, c.Client, c.RunID, c.XKey, c.CreatedAt.UnixMilli(), millis(c.ExpiresAt), millis(c.RevokedAt), c.Reason}, nil
	},
	scan: func(rows *sql.Rows) (c BusCredential, err error) {
		var created int64
		var expires, revoked sql.NullInt64
		err = rows.Scan(&c.ID, &c.Kind, &c.Name, &c.Client, &c.RunID, &c.XKey, &created, &expires, &revoked, &c.Reason)
		c.CreatedAt, c.ExpiresAt, c.RevokedAt = fromMilli(created), fromMillis(expires), fromMillis(revoked)
		return c, err
	},
	id: func(c BusCredential) string { return c.ID },
}

// InsertBusCredential records a credential before anybody has it. A runner whose name has one that holds is refused with
// ErrExists.
func (s *Store) InsertBusCredential(ctx context.Context, c BusCredential) (BusCredential, error) {
	if c.CreatedAt.IsZero() {
		c.CreatedAt = Now()
	}
	if err := checkLines(line{"the name", c.Name}, line{"the client", c.Client}); err != nil {
		return BusCredential{}, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := busCredentials.insert(ctx, tx, &c); err != nil {
			return err
		}
		return happened(ctx, tx, EventBusCredential, c.ID, c.RunID, data{"kind": c.Kind, "name": c.Name, "client": c.Client, "state": "issued"})
	})
	if err != nil {
		return BusCredential{}, err
	}
	return c, nil
}

// RevokeBusCredentials revokes those that are chosen by id, or all of a run, and says how many that were. What was revoked
// stays so.
func (s *Store) RevokeBusCredentials(ctx context.Context, f BusCredentialFilter, id, why string) (n int, err error) {
	if id == "" && f.RunID == "" {
		return 0, errors.New("all credentials are never revoked at once")
	}
	err = s.tx(ctx, func(tx *sql.Tx) error {
		n = 0
		var c choice
		c.add(true, `revoked_at IS NULL`)
		c.is(`id`, id)
		c.is(`run_id`, f.RunID)
		found, err := busCredentials.list(ctx, tx, c, "", 0)
		if err != nil {
			return err
		}
		now := Now()
		for _, have := range found {
			have.RevokedAt, have.Reason = &now, why
			if err := busCredentials.set(ctx, tx, &have); err != nil {
				return err
			}
			if err := happened(ctx, tx, EventBusCredential, have.ID, have.RunID, data{"kind": have.Kind, "name": have.Name, "client": have.Client, "state": "revoked"}); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

// SlideBusCredentials extends the credentials of a run that hold.
func (s *Store) SlideBusCredentials(ctx context.Context, runID string, until time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE bus_credentials SET expires_at = ? WHERE run_id = ? AND revoked_at IS NULL`, until.UnixMilli(), runID)
		if err != nil {
			return fmt.Errorf("cannot extend the credentials of run %s: %w", runID, err)
		}
		return nil
	})
}

// BusCredential finds a credential by its user, its name, or a beginning of the user that only one has.
func (s *Store) BusCredential(ctx context.Context, wanted string) (BusCredential, error) {
	return busCredentials.find(ctx, s.reads, wanted, `name = ? AND revoked_at IS NULL`)
}

// ListBusCredentials gives the chosen credentials, the newest first.
func (s *Store) ListBusCredentials(ctx context.Context, f BusCredentialFilter) ([]BusCredential, error) {
	var c choice
	c.add(f.Live, `revoked_at IS NULL`)
	c.add(f.Revoked, `revoked_at IS NOT NULL`)
	c.add(f.Live || f.Revoked, `(expires_at IS NULL OR expires_at > ?)`, Now().UnixMilli())
	c.is(`kind`, f.Kind)
	c.is(`name`, f.Name)
	c.is(`run_id`, f.RunID)
	return busCredentials.list(ctx, s.reads, c, f.Before, f.Limit)
}

// Runner is what a runner said of itself last.
type Runner struct {
	Name   string          `json:"name"`
	Status json.RawMessage `json:"status"` // package runner gives it a meaning
	SeenAt time.Time       `json:"seen_at"`
}

// PutRunner notes what a runner says of itself.
func (s *Store) PutRunner(ctx context.Context, r Runner) error {
	if err := checkName("", "", r.Name); err != nil {
		return err
	}
	if !json.Valid(r.Status) || len(r.Status) > 16<<10 {
		return fmt.Errorf("what runner %s says of itself is %w", r.Name, ErrInvalid)
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO runners (name, status, seen_at) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET status = excluded.status, seen_at = excluded.seen_at`, r.Name, string(r.Status), r.SeenAt.UnixMilli())
		if err != nil {
			return fmt.Errorf("cannot record runner %s: %w", r.Name, err)
		}
		return nil
	})
}

// ListRunners gives all runners that were ever heard, by name.
func (s *Store) ListRunners(ctx context.Context) ([]Runner, error) {
	return collect(ctx, s.reads, func(rows *sql.Rows) (r Runner, err error) {
		var status string
		var seen int64
		err = rows.Scan(&r.Name, &status, &seen)
		r.Status, r.SeenAt = json.RawMessage(status), fromMilli(seen)
		return r, err
	}, `SELECT name, status, seen_at FROM runners ORDER BY name`)
}

// ForgetRunner removes what is known of a runner.
func (s *Store) ForgetRunner(ctx context.Context, name string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM runners WHERE name = ?`, name)
		return err
	})
}
