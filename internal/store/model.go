package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"ravi/internal/procid"
)

// ModelLease is the record of what the agent of a run holds instead of a model provider's key.
type ModelLease struct {
	ID        string      `json:"id"`
	Hash      string      `json:"-"` // of the token, in hex
	RunID     string      `json:"run_id"`
	AgentID   string      `json:"agent_id,omitempty"`
	SessionID string      `json:"session_id,omitempty"`
	CreatedBy string      `json:"created_by,omitempty"` // operator, or the id of a key
	Providers []string    `json:"providers"`
	Models    []string    `json:"models"` // patterns
	Limits    ModelLimits `json:"limits"`
	Owner     procid.ID   `json:"owner"` // the process that has the broker
	CreatedAt time.Time   `json:"created_at"`
	ExpiresAt time.Time   `json:"expires_at"`
	EndedAt   *time.Time  `json:"ended_at,omitempty"`
	Reason    string      `json:"reason,omitempty"` // of the end
}

// ModelLimits bound a lease; 0 is no bound.
type ModelLimits struct {
	Requests  int64   `json:"requests"`
	Tokens    int64   `json:"tokens"`
	USD       float64 `json:"usd"`
	PerMinute int     `json:"requests_per_minute"`
}

// Live says whether a lease counts at a moment.
func (l ModelLease) Live(at time.Time) bool { return l.EndedAt == nil && at.Before(l.ExpiresAt) }

var modelLeases = table[ModelLease]{
	name: "model_leases", what: "model lease",
	columns: `id, hash, run_id, agent_id, session_id, created_by, providers, models, limits, owner_pid, owner_start, created_at,
	expires_at, ended_at, reason`,
	order: byPlace,
	args: func(l *ModelLease) ([]any, error) {
		providers, err := toJSON(&l.Providers)
		if err != nil {
			return nil, err
		}
		models, err := toJSON(&l.Models)
		if err != nil {
			return nil, err
		}
		limits, err := json.Marshal(l.Limits)
		return []any{l.ID, l.Hash, l.RunID, l.AgentID, l.SessionID, l.CreatedBy, providers, models, string(limits), l.Owner.PID,
			int64(l.Owner.Start), l.CreatedAt.UnixMilli(), l.ExpiresAt.UnixMilli(), millis(l.EndedAt), l.Reason}, err
	},
	scan: func(rows *sql.Rows) (l ModelLease, err error) {
		var providers, models, limits string
		var start, created, expires int64
		var ended sql.NullInt64
		if err := rows.Scan(&l.ID, &l.Hash, &l.RunID, &l.AgentID, &l.SessionID, &l.CreatedBy, &providers, &models, &limits,
			&l.Owner.PID, &start, &created, &expires, &ended, &l.Reason); err != nil {
			return l, err
		}
		l.Owner.Start = uint64(start)
		l.CreatedAt, l.ExpiresAt, l.EndedAt = fromMilli(created), fromMilli(expires), fromMillis(ended)
		if err := fromJSON(providers, &l.Providers); err != nil {
			return l, err
		}
		if err := fromJSON(limits, &l.Limits); err != nil {
			return l, err
		}
		return l, fromJSON(models, &l.Models)
	},
	id: func(l ModelLease) string { return l.ID },
}

// InsertModelLease records a lease that is about to be given out. An empty id or time is filled in.
func (s *Store) InsertModelLease(ctx context.Context, l ModelLease) (ModelLease, error) {
	if l.ID == "" {
		l.ID = newID("mls")
	}
	if l.CreatedAt.IsZero() {
		l.CreatedAt = Now()
	}
	l.ExpiresAt = inMillis(l.ExpiresAt)
	if err := checkModelLease(l); err != nil {
		return ModelLease{}, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := modelLeases.insert(ctx, tx, &l); err != nil {
			return err
		}
		return happened(ctx, tx, EventModelLeaseBegun, l.ID, l.RunID, data{"providers": l.Providers, "models": l.Models})
	})
	if err != nil {
		return ModelLease{}, err
	}
	return l, nil
}

func checkModelLease(l ModelLease) error {
	if hash, err := hex.DecodeString(l.Hash); err != nil || len(hash) != 32 || hex.EncodeToString(hash) != l.Hash {
		return fmt.Errorf("the hash of model lease %s is %w: it is no SHA-256 in hex", l.ID, ErrInvalid)
	}
	switch {
	case l.RunID == "":
		return fmt.Errorf("a model lease without a run is %w", ErrInvalid)
	case !l.ExpiresAt.After(l.CreatedAt):
		return fmt.Errorf("model lease %s is %w: it expires before it is made", l.ID, ErrInvalid)
	case l.EndedAt != nil || l.Reason != "":
		return fmt.Errorf("model lease %s is %w: it ended before it is made", l.ID, ErrInvalid)
	}
	return nil
}

// SlideModelLease moves the expiry of a lease, named by its full id, and never back. One that has ended is over; one whose
// machine slept through its expiry goes on, since whoever slides it is there.
func (s *Store) SlideModelLease(ctx context.Context, id string, until time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		l, err := modelLeases.get(ctx, tx, id)
		if err != nil {
			return err
		}
		if l.EndedAt != nil {
			return fmt.Errorf("model lease %s cannot be extended: %w", id, ErrFinal)
		}
		if until = inMillis(until); !until.After(l.ExpiresAt) {
			return nil
		}
		l.ExpiresAt = until
		return modelLeases.set(ctx, tx, &l)
	})
}

// EndModelLease records that a lease, named by its full id, is over, and why. Ending it twice changes nothing.
func (s *Store) EndModelLease(ctx context.Context, id, reason string) (ModelLease, error) {
	var l ModelLease
	if err := checkLines(line{"the reason", reason}); err != nil {
		return l, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if l, err = modelLeases.get(ctx, tx, id); err != nil || l.EndedAt != nil {
			return err
		}
		now := Now()
		l.EndedAt, l.Reason = &now, reason
		if err := modelLeases.set(ctx, tx, &l); err != nil {
			return err
		}
		return happened(ctx, tx, EventModelLeaseEnded, l.ID, l.RunID, data{"reason": reason})
	})
	return l, err
}

// ModelLease finds one model lease by its id, or by a beginning that only one has.
func (s *Store) ModelLease(ctx context.Context, id string) (ModelLease, error) {
	return modelLeases.find(ctx, s.reads, id, "")
}

// LiveModelLeases gives the leases that have not ended, the newest first. One that expired is over when it is ended.
func (s *Store) LiveModelLeases(ctx context.Context) ([]ModelLease, error) {
	var c choice
	c.add(true, `ended_at IS NULL`)
	return modelLeases.list(ctx, s.reads, c, "", 0)
}
