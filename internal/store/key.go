package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"
)

// KeyKind is what a key is for.
type KeyKind string

// Kinds of keys. A run's key is for one run.
const (
	KeyPlain KeyKind = "key"
	KeyRun   KeyKind = "run"
)

// Key is the record of a context key: of what it may do, not of the key itself.
type Key struct {
	ID           string     `json:"id"`
	Hash         string     `json:"-"` // of the key, in hex
	Kind         KeyKind    `json:"kind"`
	Label        string     `json:"label,omitempty"`
	AgentID      string     `json:"agent_id,omitempty"`
	SessionID    string     `json:"session_id,omitempty"`
	TaskID       string     `json:"task_id,omitempty"`
	RunID        string     `json:"run_id,omitempty"`
	Capabilities []string   `json:"capabilities"`
	Profile      string     `json:"profile"`
	ParentID     string     `json:"parent_id,omitempty"`
	CreatedBy    string     `json:"created_by,omitempty"` // operator, or the id of a key
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    time.Time  `json:"expires_at"`
	RevokedAt    *time.Time `json:"revoked_at,omitempty"`
	Reason       string     `json:"reason,omitempty"` // of the revocation
}

// Live says whether a key counts at a moment, as far as its own record says.
func (k Key) Live(at time.Time) bool { return k.RevokedAt == nil && at.Before(k.ExpiresAt) }

// KeyDepth is how many ancestors a key may have.
const KeyDepth = 16

// KeyFilter chooses keys; the zero filter chooses all.
type KeyFilter struct {
	Live            bool     // only those neither revoked nor expired
	Kind            KeyKind  // empty: any
	RunID, ParentID string   // empty: any
	IDs             []string // only these; empty, but not nil: none
	Before          string   // the id after which the page begins
	Limit           int      // the newest so many; 0 is no limit
}

func (f KeyFilter) choice() (c choice) {
	c.add(f.Live, `revoked_at IS NULL AND expires_at > ?`, Now().UnixMilli())
	c.is(`kind`, string(f.Kind))
	c.is(`run_id`, f.RunID)
	c.is(`parent_id`, f.ParentID)
	c.among(`id`, f.IDs)
	return c
}

var keys = table[Key]{
	name: "keys", what: "key",
	columns: `id, hash, kind, label, agent_id, session_id, task_id, run_id, capabilities, profile, parent_id, created_by,
	created_at, expires_at, revoked_at, reason`,
	order: byPlace,
	args: func(k *Key) ([]any, error) {
		capabilities, err := toJSON(&k.Capabilities)
		return []any{k.ID, k.Hash, string(k.Kind), k.Label, k.AgentID, k.SessionID, k.TaskID, k.RunID, capabilities, k.Profile,
			k.ParentID, k.CreatedBy, k.CreatedAt.UnixMilli(), k.ExpiresAt.UnixMilli(), millis(k.RevokedAt), k.Reason}, err
	},
	scan: func(rows *sql.Rows) (k Key, err error) {
		var capabilities string
		var created, expires int64
		var revoked sql.NullInt64
		if err := rows.Scan(&k.ID, &k.Hash, &k.Kind, &k.Label, &k.AgentID, &k.SessionID, &k.TaskID, &k.RunID, &capabilities,
			&k.Profile, &k.ParentID, &k.CreatedBy, &created, &expires, &revoked, &k.Reason); err != nil {
			return k, err
		}
		k.CreatedAt, k.ExpiresAt, k.RevokedAt = fromMilli(created), fromMilli(expires), fromMillis(revoked)
		return k, fromJSON(capabilities, &k.Capabilities)
	},
	id: func(k Key) string { return k.ID },
}

// NewKeyID makes the id of a key. Nothing can be told from it about the key.
func NewKeyID() string {
	b := make([]byte, 18)
	rand.Read(b) // it never fails
	return "ctx_" + base64.RawURLEncoding.EncodeToString(b)
}

// InsertKey records a key that is about to be given out. An empty id, kind, profile or time is filled in. check sees
// the parent, its parent, and so on up, none for a key without one, and refuses the key with an error; nobody writes
// meanwhile, so what it saw holds when the key is there. The store itself refuses a key whose ancestor is revoked or
// expired at its creation, and one that would outlive its parent.
func (s *Store) InsertKey(ctx context.Context, k Key, check func(parents []Key) error) (Key, error) {
	if k.ID == "" {
		k.ID = NewKeyID()
	}
	if k.Kind == "" {
		k.Kind = KeyPlain
	}
	if k.Profile == "" {
		k.Profile = "default"
	}
	if k.CreatedAt.IsZero() {
		k.CreatedAt = Now()
	}
	k.ExpiresAt = inMillis(k.ExpiresAt) // as its parent's was, or it could be later by a part of one
	if err := checkKey(k); err != nil {
		return Key{}, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var parents []Key
		if k.ParentID != "" {
			var err error
			if parents, err = lineage(ctx, tx, `id`, k.ParentID); err != nil {
				return fmt.Errorf("key %q: %w", k.ParentID, err)
			}
		}
		if len(parents) > KeyDepth {
			return fmt.Errorf("a key below %s is %w: it would have more than %d ancestors", k.ParentID, ErrInvalid, KeyDepth)
		}
		for _, p := range parents {
			if !p.Live(k.CreatedAt) {
				return fmt.Errorf("key %s is revoked or expired, there are no keys below it: %w", p.ID, ErrFinal)
			}
			if k.ExpiresAt.After(p.ExpiresAt) {
				return fmt.Errorf("a key below %s is %w: it would outlive that one", p.ID, ErrInvalid)
			}
		}
		if check != nil {
			if err := check(parents); err != nil {
				return err
			}
		}
		if err := keys.insert(ctx, tx, &k); err != nil {
			return err
		}
		return happened(ctx, tx, EventKeyIssued, k.ID, k.RunID, data{"kind": k.Kind, "parent_id": k.ParentID})
	})
	if err != nil {
		return Key{}, err
	}
	return k, nil
}

func checkKey(k Key) error {
	if hash, err := hex.DecodeString(k.Hash); err != nil || len(hash) != 32 || hex.EncodeToString(hash) != k.Hash {
		return fmt.Errorf("the hash of key %s is %w: it is no SHA-256 in hex", k.ID, ErrInvalid)
	}
	if err := checkOneOf("the kind of a key", k.Kind, KeyPlain, KeyRun); err != nil {
		return err
	}
	switch {
	case k.Kind == KeyRun && k.RunID == "":
		return fmt.Errorf("a run's key without a run is %w", ErrInvalid)
	case !k.ExpiresAt.After(k.CreatedAt):
		return fmt.Errorf("key %s is %w: it expires before it is made", k.ID, ErrInvalid)
	case k.RevokedAt != nil || k.Reason != "":
		return fmt.Errorf("key %s is %w: it is revoked before it is made", k.ID, ErrInvalid)
	}
	return checkLines(line{"the label", k.Label})
}

// lineage reads a key and its ancestors, the key first. A line that does not end at a key without a parent is no line.
func lineage(ctx context.Context, q querier, column, value string) ([]Key, error) {
	found, err := few(ctx, q, keys.scan, `WITH RECURSIVE up (depth, at, parent) AS (
			SELECT 0, place, parent_id FROM keys WHERE `+column+` = ?
			UNION ALL
			SELECT depth + 1, place, parent_id FROM up JOIN keys ON id = parent WHERE parent <> '' AND depth < ?
		) SELECT `+keys.columns+` FROM up JOIN keys ON place = at ORDER BY depth`, value, KeyDepth)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNotFound
	}
	if last := found[len(found)-1]; last.ParentID != "" {
		return nil, fmt.Errorf("the ancestors of key %s, of which one is missing: %w", found[0].ID, ErrNotFound)
	}
	return found, nil
}

// KeyByHash finds the key with this hash, and its parent, that one's parent, and so on up, as they are at one moment.
func (s *Store) KeyByHash(ctx context.Context, hash string) (Key, []Key, error) {
	// Most keys have no parent, and to look for those of parents takes as long again.
	found, err := few(ctx, s.reads, keys.scan, `SELECT `+keys.columns+` FROM keys WHERE hash = ?`, hash)
	if err == nil && (len(found) == 0 || found[0].ParentID != "") {
		found, err = lineage(ctx, s.reads, `hash`, hash)
	}
	if err != nil {
		return Key{}, nil, fmt.Errorf("the key: %w", err)
	}
	return found[0], found[1:], nil
}

// KeyLineage finds the key with this full id and its ancestors, the key first.
func (s *Store) KeyLineage(ctx context.Context, id string) ([]Key, error) {
	found, err := lineage(ctx, s.reads, `id`, id)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", id, err)
	}
	return found, nil
}

// KeyByID finds a key by its id, or by a beginning that only one has.
func (s *Store) KeyByID(ctx context.Context, id string) (Key, error) {
	return keys.find(ctx, s.reads, id, "")
}

// ListKeys gives the chosen keys, the newest first.
func (s *Store) ListKeys(ctx context.Context, f KeyFilter) ([]Key, error) {
	return keys.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

// CountKeys says how many keys are chosen, whatever page is.
func (s *Store) CountKeys(ctx context.Context, f KeyFilter) (int, error) {
	return keys.count(ctx, s.reads, f.choice())
}

// CountLiveBy says how many runs and sandboxes live that were made with a key, with any that it descends from, or with any
// that descends from those. A run and its sandbox are one; the sandboxes of its sub-agents count besides.
func (s *Store) CountLiveBy(ctx context.Context, id string) (int, error) {
	// The plus signs leave SQLite the indexes of what lives: of what a key ever made there may be much.
	n, err := number(ctx, s.reads, `WITH RECURSIVE up (name, parent) AS (
			SELECT id, parent_id FROM keys WHERE id = ?
			UNION
			SELECT id, parent_id FROM up JOIN keys ON id = parent
		), down (name) AS (
			SELECT name FROM up WHERE parent = ''
			UNION
			SELECT id FROM down JOIN keys ON parent_id = name
		) SELECT (SELECT coalesce(sum(max(1, (SELECT count(*) FROM sandboxes WHERE run_id = runs.id AND seen NOT IN ('ended', 'failed')))), 0)
				FROM runs WHERE status IN ('queued', 'running') AND +created_by IN (SELECT name FROM down))
			+ (SELECT count(*) FROM sandboxes WHERE seen NOT IN ('ended', 'failed') AND +run_id IS NULL AND +created_by IN (SELECT name FROM down))`, id)
	return int(n), err
}

// RevokeKey revokes a key, named by its full id, and all that descend from it. It gives the ids of those that were not
// revoked before; doing it twice is no error.
func (s *Store) RevokeKey(ctx context.Context, id, reason string) ([]string, error) {
	var revoked []string
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := keys.get(ctx, tx, id); err != nil {
			return err
		}
		var err error
		revoked, err = revoke(ctx, tx, `id = ?`, id, reason)
		return err
	})
	return revoked, err
}

// RevokeRunKeys revokes the keys of a run, and all that descend from them.
func (s *Store) RevokeRunKeys(ctx context.Context, runID, reason string) ([]string, error) {
	if runID == "" { // which is what keys of no run have
		return nil, fmt.Errorf("a run without an id: %w", ErrNotFound)
	}
	var revoked []string
	err := s.tx(ctx, func(tx *sql.Tx) (err error) {
		revoked, err = revoke(ctx, tx, `run_id = ?`, runID, reason)
		return err
	})
	return revoked, err
}

func revoke(ctx context.Context, tx *sql.Tx, chosen, value, reason string) ([]string, error) {
	if err := checkLines(line{"the reason", reason}); err != nil {
		return nil, err
	}
	found, err := collect(ctx, tx, keys.scan, `WITH RECURSIVE down (name) AS (
			SELECT id FROM keys WHERE `+chosen+`
			UNION
			SELECT id FROM down JOIN keys ON parent_id = name
		) SELECT `+keys.columns+` FROM down JOIN keys ON id = name WHERE revoked_at IS NULL ORDER BY place`, value)
	if err != nil {
		return nil, err
	}
	ids, now := []string{}, Now()
	for _, k := range found {
		k.RevokedAt, k.Reason = &now, reason
		if err := keys.set(ctx, tx, &k); err != nil {
			return nil, err
		}
		if err := happened(ctx, tx, EventKeyRevoked, k.ID, k.RunID, data{"reason": reason}); err != nil {
			return nil, err
		}
		ids = append(ids, k.ID)
	}
	return ids, nil
}

// ExtendKey moves the expiry of a key, named by its full id, but never beyond its parent's, and never back. What is
// revoked or expired, it or an ancestor, is over; but the key of a run whose machine slept through its expiry goes on,
// since whoever extends it is there.
func (s *Store) ExtendKey(ctx context.Context, id string, until time.Time) (Key, error) {
	var k Key
	err := s.tx(ctx, func(tx *sql.Tx) error {
		found, err := lineage(ctx, tx, `id`, id)
		if err != nil {
			return fmt.Errorf("key %q: %w", id, err)
		}
		k = found[0]
		until := inMillis(until)
		now := Now()
		for i, p := range found {
			if !p.Live(now) && (i > 0 || p.Kind != KeyRun || p.RevokedAt != nil) {
				return fmt.Errorf("key %s cannot be extended, %s is revoked or expired: %w", id, p.ID, ErrFinal)
			}
			if i > 0 && until.After(p.ExpiresAt) {
				until = p.ExpiresAt
			}
		}
		if !until.After(k.ExpiresAt) {
			return nil
		}
		k.ExpiresAt = until
		return keys.set(ctx, tx, &k)
	})
	return k, err
}
