package store

import (
	"context"
	"database/sql"
	"time"

	"ravi/internal/procid"
)

// Lease is the record of a secret that was lent to a run: of its name, never of its value.
type Lease struct {
	ID        string     `json:"id"`
	Secret    string     `json:"secret"`
	RunID     string     `json:"run_id"`
	Owner     procid.ID  `json:"owner"` // the process that holds the value
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Reason    string     `json:"reason,omitempty"` // of the end
}

var leases = table[Lease]{
	name: "leases", what: "lease",
	columns: `id, secret, run_id, owner_pid, owner_start, created_at, expires_at, ended_at, reason`,
	order:   byPlace,
	args: func(l *Lease) ([]any, error) {
		return []any{l.ID, l.Secret, l.RunID, l.Owner.PID, int64(l.Owner.Start), l.CreatedAt.UnixMilli(), millis(l.ExpiresAt),
			millis(l.EndedAt), l.Reason}, nil
	},
	scan: func(rows *sql.Rows) (l Lease, err error) {
		var start, created int64
		var expires, ended sql.NullInt64
		err = rows.Scan(&l.ID, &l.Secret, &l.RunID, &l.Owner.PID, &start, &created, &expires, &ended, &l.Reason)
		l.Owner.Start, l.CreatedAt, l.ExpiresAt, l.EndedAt = uint64(start), fromMilli(created), fromMillis(expires), fromMillis(ended)
		return l, err
	},
	id: func(l Lease) string { return l.ID },
}

// InsertLease records a lease that is about to begin. An empty id or time is filled in.
func (s *Store) InsertLease(ctx context.Context, l Lease) (Lease, error) {
	if l.ID == "" {
		l.ID = newID("lse")
	}
	if l.CreatedAt.IsZero() {
		l.CreatedAt = Now()
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := leases.insert(ctx, tx, &l); err != nil {
			return err
		}
		return happened(ctx, tx, EventLeaseBegun, l.ID, l.RunID, data{"secret": l.Secret})
	})
	if err != nil {
		return Lease{}, err
	}
	return l, nil
}

// EndLease records that a lease, named by its full id, is over, and why. Ending it twice changes nothing.
func (s *Store) EndLease(ctx context.Context, id, reason string) (Lease, error) {
	var l Lease
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if l, err = leases.get(ctx, tx, id); err != nil || l.EndedAt != nil {
			return err
		}
		now := Now()
		l.EndedAt, l.Reason = &now, reason
		if err := leases.set(ctx, tx, &l); err != nil {
			return err
		}
		return happened(ctx, tx, EventLeaseEnded, l.ID, l.RunID, data{"secret": l.Secret, "reason": reason})
	})
	return l, err
}

// LiveLeases gives the leases that are not over, the newest first. One that expired is over when it is ended.
func (s *Store) LiveLeases(ctx context.Context) ([]Lease, error) {
	var c choice
	c.add(true, `ended_at IS NULL`)
	return leases.list(ctx, s.reads, c, "", 0)
}
