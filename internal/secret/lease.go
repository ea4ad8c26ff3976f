package secret

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Scope is what a lease is for, so that a value that can be narrowed is made for that alone.
type Scope struct {
	// Repository is owner/name; empty when it is not known.
	Repository string
}

const (
	// margin is how long before its end a value is replaced, or a fifth of its life when that is less.
	margin = 5 * time.Minute
	// pause is how long a source that failed is left alone while the value that is held is still good.
	pause = 15 * time.Second
)

// Lease is the right to use a secret for a while. It is safe for concurrent use: of many who need a new value at once
// one gets it, and the others wait for it. What it leases stays as it was when it began, also when the secret is
// changed or removed meanwhile.
type Lease struct {
	secret Secret
	now    func() time.Time
	get    func(context.Context) (held, error)
	revoke func(context.Context, Value) error // nil where nothing can be given back

	turn  chan struct{} // holds one token; who has it may touch what follows
	held  []held        // those that may still be good, the newest last
	retry time.Time     // when a source that failed is asked again
	ended bool
}

// held is a value that a source gave.
type held struct {
	value Value
	from  time.Time
	until time.Time // zero: it does not end
}

func (h held) good(now time.Time) bool {
	return !h.value.IsZero() && (h.until.IsZero() || now.Before(h.until))
}

// fresh says that the value need not be replaced yet.
func (h held) fresh(now time.Time) bool {
	return h.good(now) && (h.until.IsZero() || now.Before(h.until.Add(-min(margin, h.until.Sub(h.from)/5))))
}

// Lease begins a lease. It asks no source yet; the first Value does. A value that would be worth more than the scope
// needs is refused with ErrScope.
func (s *Store) Lease(_ context.Context, name string, scope Scope) (*Lease, error) {
	r, err := s.find(name)
	if err != nil {
		return nil, err
	}
	l := &Lease{secret: r.secret(), now: s.now, turn: make(chan struct{}, 1)}
	switch l.secret.Source {
	case Stored:
		value := NewValue(r.Value)
		l.get = func(context.Context) (held, error) { return held{value: value, from: s.now()}, nil }
	case Command:
		l.get = func(ctx context.Context) (held, error) { return s.runCommand(ctx, name, r.Argv) }
	case GitHub:
		owner, repository, err := scope.split()
		if err != nil {
			return nil, err
		}
		g, err := s.newGitHub(name, r.App, owner, repository)
		if err != nil {
			return nil, err
		}
		l.get, l.revoke = g.token, g.revoke
	}
	return l, nil
}

// Secret is what is leased.
func (l *Lease) Secret() Secret { return l.secret }

// Value is the value as it is now, and when it ends; the zero time is never. A value that is about to end is replaced
// first. While a source fails, the value that is held is given until it ends.
func (l *Lease) Value(ctx context.Context) (string, time.Time, error) {
	if err := l.take(ctx); err != nil {
		return "", time.Time{}, err
	}
	defer func() { <-l.turn }()
	if l.ended {
		return "", time.Time{}, fmt.Errorf("secret %s: %w", l.secret.Name, ErrEnded)
	}
	now := l.now()
	l.held = slices.DeleteFunc(l.held, func(h held) bool { return !h.good(now) })
	var have held
	if n := len(l.held); n > 0 {
		have = l.held[n-1]
	}
	if have.fresh(now) || have.good(now) && now.Before(l.retry) {
		return have.value.Reveal(), have.until, nil
	}
	got, err := l.get(ctx)
	switch {
	case err != nil:
	case checkValue(got.value.Reveal()) != nil:
		err = refuse(ErrSource, "", "the source of %s gave what is no secret: %s", l.secret.Name, checkValue(got.value.Reveal()))
	case !got.good(l.now()):
		err = refuse(ErrSource, "look at what it prints, and at the clock of this machine",
			"the source of %s gave a value that ended at %s already", l.secret.Name, got.until.UTC().Format(time.RFC3339))
	}
	if err != nil && have.good(l.now()) {
		l.retry = l.now().Add(pause)
		return have.value.Reveal(), have.until, nil
	}
	if err != nil {
		return "", time.Time{}, err
	}
	l.held = append(l.held, got)
	return got.value.Reveal(), got.until, nil
}

// End ends the lease, and gives back every value that it got and that can be given back. After an error it may be
// called again, for what is left. To end what has ended is no error.
func (l *Lease) End(ctx context.Context) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer func() { <-l.turn }()
	l.ended = true
	var left []held
	var failed []error
	for _, h := range l.held {
		if l.revoke == nil || !h.good(l.now()) {
			continue
		}
		if err := l.revoke(ctx, h.value); err != nil {
			left, failed = append(left, h), append(failed, err)
		}
	}
	l.held = left
	return errors.Join(failed...)
}

// take waits for the turn.
func (l *Lease) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var repositoryForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}/[A-Za-z0-9._-]{1,100}$`)

// split takes the repository apart; both parts are empty when there is none.
func (s Scope) split() (owner, name string, err error) {
	if s.Repository == "" {
		return "", "", nil
	}
	owner, name, _ = strings.Cut(s.Repository, "/")
	name = strings.TrimSuffix(name, ".git")
	if !repositoryForm.MatchString(owner+"/"+name) || name == "." || name == ".." {
		return "", "", refuse(ErrScope, "", "%q is not a repository such as owner/name", s.Repository)
	}
	return owner, name, nil
}
