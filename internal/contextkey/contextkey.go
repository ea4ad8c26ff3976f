// Package contextkey issues context keys, and says who it is that calls with one.
//
// A key is rctx_ and 18 random bytes in base64url. It is shown once; the record keeps its hash. It names an agent's
// turn or a run, holds capabilities, and ends: at its time, when it is revoked, and when any key that it descends from
// ends. A child holds a part of what its parent holds, never more, and is for the same agent, session, task and run.
// A run's key, and every child of it, is taken only over that run's own wires.
//
// The package touches the table of keys and nothing else. It must not write a key anywhere, nor put one into an error.
package contextkey

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/store"
)

// Prefix is what every key begins with.
const Prefix = "rctx_"

const size = 18 // random bytes, 24 characters

// How long keys live.
const (
	// DefaultTTL is for keys for which no time is given.
	DefaultTTL = time.Hour
	// MaxTTL bounds what can be given.
	MaxTTL = 90 * 24 * time.Hour
	// MaxRunTTL is how far ahead the end of a run's key may be.
	MaxRunTTL = time.Hour
	// RunTTL is how far ahead it is put each time, and SlideEvery how often that happens while the run's owner lives.
	RunTTL     = 15 * time.Minute
	SlideEvery = 5 * time.Minute
)

// MaxChildren is how many children of one key live at once. Two that are issued at the same moment may pass together.
const MaxChildren = 100

// Why a key is not taken.
var (
	ErrRefused   = errors.New("the context key is not taken")
	ErrMissing   = fmt.Errorf("%w: there is none", ErrRefused)
	ErrMalformed = fmt.Errorf("%w: it is not one", ErrRefused)
	ErrUnknown   = fmt.Errorf("%w: it is unknown", ErrRefused)
	ErrRevoked   = fmt.Errorf("%w: it was revoked", ErrRefused)
	ErrExpired   = fmt.Errorf("%w: it has expired", ErrRefused)
	ErrWire      = fmt.Errorf("%w: it is for another way to Ravi", ErrRefused)
)

// ErrExceeds says that a child was to hold more than its parent.
var ErrExceeds = errors.New("a key cannot give what it does not hold")

// Keys are the keys of a store.
type Keys struct {
	Store *store.Store
	// Now is the clock; nil is the machine's.
	Now func() time.Time
}

func (k Keys) now() time.Time {
	if k.Now != nil {
		return k.Now().UTC().Truncate(time.Millisecond)
	}
	return store.Now()
}

// Request says what a new key is to be.
type Request struct {
	Label        string
	AgentID      string
	SessionID    string
	TaskID       string
	RunID        string // the key is that run's; who lets holders of keys choose it gives them every run's wires
	Capabilities access.Capabilities
	Profile      string        // empty: the parent's, or the default one
	TTL          time.Duration // 0: DefaultTTL, and RunTTL for a run's
}

// Issue makes a key for a caller, as a child of the caller's own if that has one. The token is not kept anywhere.
func (k Keys) Issue(ctx context.Context, by access.Caller, r Request) (token string, _ store.Key, err error) {
	now := k.now()
	key := store.Key{
		ID: store.NewKeyID(), Kind: store.KeyPlain, Label: r.Label, AgentID: r.AgentID, SessionID: r.SessionID, TaskID: r.TaskID,
		RunID: r.RunID, Capabilities: r.Capabilities.Strings(), Profile: r.Profile, CreatedBy: by.Name(), CreatedAt: now,
	}
	ttl, most := r.TTL, MaxTTL
	if r.RunID != "" {
		key.Kind, most = store.KeyRun, MaxRunTTL
		if ttl == 0 {
			ttl = RunTTL
		}
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if ttl < 0 || ttl > most {
		return "", store.Key{}, fmt.Errorf("a key for %v: it is more than nothing, and at most %v", ttl, most)
	}
	key.ExpiresAt = now.Add(ttl)
	if key.Profile == "" && by.Key == nil {
		key.Profile = access.DefaultName
	}
	switch {
	case by.Key != nil:
		// What a key is never changes, so what its children are can be said before they are written.
		parents, err := k.Store.KeyLineage(ctx, by.Key.ID)
		if err != nil {
			return "", store.Key{}, err
		}
		if err := narrow(&key, parents[0], r.Capabilities); err != nil {
			return "", store.Key{}, err
		}
		n, err := k.Store.CountKeys(ctx, store.KeyFilter{Live: true, ParentID: by.Key.ID})
		if err != nil {
			return "", store.Key{}, err
		}
		if n >= MaxChildren {
			return "", store.Key{}, fmt.Errorf("%w: %s has %d children that live, which is the most", ErrExceeds, by.Key.ID, n)
		}
	case !by.IsOperator():
		return "", store.Key{}, fmt.Errorf("%w: nobody cannot issue a key", access.ErrDenied)
	}
	token = Prefix + random()
	key.Hash = hash(token)
	// The store refuses a key below one that is over.
	key, err = k.Store.InsertKey(ctx, key, nil)
	if err != nil {
		return "", store.Key{}, err
	}
	return token, key, nil
}

// narrow makes a key a child of its parent, or says what it would have more.
func narrow(key *store.Key, parent store.Key, wanted access.Capabilities) error {
	key.ParentID = parent.ID
	holds, err := access.ParseCapabilities(parent.Capabilities)
	if err != nil {
		return err
	}
	if ok, more := holds.CoverAll(wanted); !ok {
		return fmt.Errorf("%w: %s is more than %s holds", ErrExceeds, more, parent.ID)
	}
	for _, f := range []struct {
		what       string
		own, above *string
	}{
		{"agent", &key.AgentID, &parent.AgentID}, {"session", &key.SessionID, &parent.SessionID}, {"task", &key.TaskID, &parent.TaskID},
		{"profile", &key.Profile, &parent.Profile},
	} {
		switch {
		case *f.own == "":
			*f.own = *f.above
		case *f.own != *f.above && (*f.above != "" || f.what == "profile"):
			return fmt.Errorf("%w: %s is for another %s", ErrExceeds, parent.ID, f.what)
		}
	}
	if key.RunID == "" && parent.Kind == store.KeyRun {
		key.Kind, key.RunID = store.KeyRun, parent.RunID
	}
	if key.ExpiresAt.After(parent.ExpiresAt) {
		key.ExpiresAt = parent.ExpiresAt
	}
	return nil
}

// alive says why a key, or one that it descends from, is over. The chain begins with the key.
func alive(chain []store.Key, now time.Time) error {
	for _, k := range chain {
		switch {
		case k.RevokedAt != nil:
			return ErrRevoked
		case !now.Before(k.ExpiresAt):
			return ErrExpired
		}
	}
	return nil
}

// Wire is the way that a call came.
type Wire struct {
	// RunID is the run whose own wire it is; empty: the socket or a port of the gateway.
	RunID string
}

// Resolve says who calls with a token. Its errors are ErrRefused, each with its reason.
func (k Keys) Resolve(ctx context.Context, token string, w Wire) (access.Caller, error) {
	if token == "" {
		return access.Caller{}, ErrMissing
	}
	if !WellFormed(token) {
		return access.Caller{}, ErrMalformed
	}
	key, parents, err := k.Store.KeyByHash(ctx, hash(token))
	chain := append([]store.Key{key}, parents...)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return access.Caller{}, ErrUnknown // it, or one that it descends from
	case err != nil:
		return access.Caller{}, err
	}
	if err := alive(chain, k.now()); err != nil {
		return access.Caller{}, err
	}
	return caller(chain, w)
}

// Recheck resolves a caller anew who was let in before, such as one with an open stream.
func (k Keys) Recheck(ctx context.Context, id string, w Wire) (access.Caller, error) {
	chain, err := k.Store.KeyLineage(ctx, id)
	if err != nil {
		return access.Caller{}, err
	}
	if err := alive(chain, k.now()); err != nil {
		return access.Caller{}, err
	}
	return caller(chain, w)
}

func caller(chain []store.Key, w Wire) (access.Caller, error) {
	key := chain[0]
	// Over a run's wires comes nobody but the run, and the run comes no other way: what was stolen in one sandbox is of
	// no use in another, nor outside.
	if run := key.Kind == store.KeyRun; run != (w.RunID != "") || run && key.RunID != w.RunID {
		return access.Caller{}, ErrWire
	}
	holds, err := access.ParseCapabilities(key.Capabilities)
	if err != nil {
		return access.Caller{}, fmt.Errorf("the key %s: %w", key.ID, err)
	}
	// Each ancestor is asked as well, so that a row that somebody changed gives no more than its parent's.
	for _, above := range chain[1:] {
		most, err := access.ParseCapabilities(above.Capabilities)
		if err != nil {
			return access.Caller{}, fmt.Errorf("the key %s: %w", above.ID, err)
		}
		if ok, _ := most.CoverAll(holds); !ok || above.Profile != key.Profile {
			return access.Caller{}, fmt.Errorf("%w: %s holds more than %s", ErrExceeds, key.ID, above.ID)
		}
	}
	return access.WithKey(access.Key{
		ID: key.ID, AgentID: key.AgentID, SessionID: key.SessionID, TaskID: key.TaskID, RunID: key.RunID,
		Capabilities: holds, Profile: key.Profile,
	}), nil
}

// Revoke ends a key and all that descend from it, and gives their ids. A holder of a key can revoke its own and what
// descends from that.
func (k Keys) Revoke(ctx context.Context, by access.Caller, id, reason string) ([]string, error) {
	if !by.IsOperator() {
		chain, err := k.Store.KeyLineage(ctx, id)
		if err != nil {
			return nil, err
		}
		own := false
		for _, c := range chain {
			own = own || by.Key != nil && c.ID == by.Key.ID
		}
		if !own {
			return nil, &access.Denied{Caller: by.Name(), Missing: "the key " + id + ", or one that it descends from"}
		}
	}
	return k.Store.RevokeKey(ctx, id, reason)
}

// Slide puts off the end of a run's key, as its owner does as long as it keeps the run alive.
func (k Keys) Slide(ctx context.Context, id string) error {
	_, err := k.Store.ExtendKey(ctx, id, k.now().Add(RunTTL))
	return err
}

// WellFormed says whether a text has the form of a key.
func WellFormed(token string) bool {
	rest, ok := strings.CutPrefix(token, Prefix)
	if !ok || len(rest) != base64.RawURLEncoding.EncodedLen(size) {
		return false
	}
	_, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	return err == nil
}

func random() string {
	b := make([]byte, size)
	rand.Read(b) // it ends the program rather than fail
	return base64.RawURLEncoding.EncodeToString(b)
}

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
