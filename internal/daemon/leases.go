package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ravi/internal/audit"
	"ravi/internal/procid"
	"ravi/internal/secret"
	"ravi/internal/store"
	"ravi/sandbox"
)

const (
	// askFirst bounds how long a source may take before the sandbox is made.
	askFirst = time.Minute
	// askAgain is the pause after a source failed, or a value could not be handed on.
	askAgain = 15 * time.Second
)

// leases are the secrets of one sandbox. Their values stay on this side.
type leases struct {
	all    []*secret.Lease
	rows   []string // their records, by id
	id     string   // of the sandbox
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// lend gets secrets from the vault, and writes that down before anybody has them.
func (s *Sandboxes) lend(ctx context.Context, names []string) (l *leases, secrets []sandbox.Secret, err error) {
	l = &leases{}
	if len(names) == 0 {
		return l, nil, nil
	}
	vault, err := s.Vault()
	if err != nil {
		return nil, nil, err
	}
	self, err := procid.Self()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askFirst, fmt.Errorf("the secrets were not there within %v", askFirst))
	defer cancel()
	for _, name := range names {
		one, err := s.lendOne(ctx, vault, self, name, l)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("the secret %s: %w", name, err), s.giveBack(context.WithoutCancel(ctx), l))
		}
		secrets = append(secrets, one)
	}
	return l, secrets, nil
}

func (s *Sandboxes) lendOne(ctx context.Context, vault *secret.Store, self procid.ID, name string, l *leases) (one sandbox.Secret, err error) {
	about, err := vault.Get(ctx, name)
	if err != nil {
		return one, err
	}
	// Without a run there is no repository, so a token of a GitHub App is for all of them, or refused.
	lease, err := vault.Lease(ctx, name, secret.Scope{})
	if err != nil {
		return one, err
	}
	l.all = append(l.all, lease)
	row, err := s.Store.InsertLease(ctx, store.Lease{Secret: name, Owner: self})
	if err != nil {
		return one, err
	}
	l.rows = append(l.rows, row.ID)
	value, _, err := lease.Value(ctx)
	return sandbox.Secret{
		Name: name, Value: sandbox.SecretValue(value), Hosts: about.Hosts, Headers: about.Headers, Query: about.Query, Env: about.Env,
	}, err
}

// recordLeases is the audit of what a sandbox is about to get.
func (s *Sandboxes) recordLeases(ctx context.Context, id string, l *leases) error {
	l.id = id
	var records []audit.Record
	for _, lease := range l.all {
		records = append(records, audit.Record{Action: audit.SecretLease, Object: lease.Secret().Name, Decision: store.Allowed, SandboxID: id})
	}
	if len(records) == 0 {
		return nil
	}
	return audit.Log{Store: s.Store, Head: s.AuditHead}.Append(ctx, records...)
}

// renew keeps the values fresh while the sandbox runs.
func (s *Sandboxes) renew(b *box) {
	ctx, cancel := context.WithCancel(context.Background())
	b.leases.cancel = cancel
	for _, lease := range b.leases.all {
		b.leases.work.Go(func() { s.renewOne(ctx, b, lease) })
	}
}

func (s *Sandboxes) renewOne(ctx context.Context, b *box, lease *secret.Lease) {
	name := lease.Secret().Name
	has, until, err := lease.Value(ctx)
	for ctx.Err() == nil {
		if err == nil && until.IsZero() {
			return // it does not end
		}
		wait := askAgain
		if err == nil {
			// Value gives a new one when this one is about to end.
			wait = max(min(time.Until(until)/10, time.Minute), time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		var value string
		if value, until, err = lease.Value(ctx); ctx.Err() != nil {
			return
		}
		if err != nil {
			value = "" // what was there has ended
			s.Log.Error("a secret could not be renewed", "sandbox", b.ID, "secret", name, "error", err.Error())
		}
		if value == has {
			continue
		}
		if set := b.SetSecret(ctx, name, sandbox.SecretValue(value)); set != nil {
			s.Log.Error("a secret could not be handed on", "sandbox", b.ID, "secret", name, "error", set.Error())
			continue
		}
		has = value
	}
}

// stop is the end of renew.
func (l *leases) stop() {
	if l.cancel != nil {
		l.cancel()
		l.work.Wait()
	}
}

// giveBack ends the leases.
func (s *Sandboxes) giveBack(ctx context.Context, l *leases) error {
	var failed []error
	for _, lease := range l.all {
		about := lease.Secret()
		err := lease.End(ctx)
		if err == nil && about.Source == secret.GitHub {
			err = audit.Log{Store: s.Store, Head: s.AuditHead}.Append(ctx, audit.Record{Action: audit.SecretRevoke, Object: about.Name, Decision: store.Allowed, SandboxID: l.id})
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("the value of the secret %s could not be given back, and ends by itself: %w", about.Name, err))
		}
	}
	for _, id := range l.rows {
		if _, err := s.Store.EndLease(ctx, id, "the sandbox ended"); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
