package run

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"ravi/internal/audit"
	"ravi/internal/gitbox"
	"ravi/internal/redact"
	"ravi/internal/secret"
	"ravi/internal/store"
	"ravi/sandbox"
)

// leased are the secrets of a run. Their values stay on this side: the sandbox's
// network gateway gets them, and the sandbox gets placeholders.
type leased struct {
	all  []*secret.Lease
	rows []string // their records, by id
	stop context.CancelFunc
	work sync.WaitGroup
}

const (
	// askFirst bounds how long a source may take before the run begins.
	askFirst = time.Minute
	// askAgain is the pause after a source failed, or a value could not be
	// handed on.
	askAgain = 15 * time.Second
	// giveBackTime bounds the revoking in the end.
	giveBackTime = 30 * time.Second
)

// lease gets the run's secrets, and writes that down before anybody has them.
func (s *state) lease(ctx context.Context) ([]sandbox.Secret, error) {
	if len(s.Secrets) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askFirst, fmt.Errorf("it gave no value within %v", askFirst))
	defer cancel()
	var secrets []sandbox.Secret
	for _, name := range s.Secrets {
		fail := func(err error) ([]sandbox.Secret, error) {
			var told *secret.Error
			if errors.As(err, &told) {
				err = WithHint(err, told.Hint)
			}
			return nil, fmt.Errorf("the secret %s: %w", name, err)
		}
		about, err := s.Vault.Get(ctx, name)
		if err != nil {
			return fail(err)
		}
		scope, err := s.scope(ctx, about)
		if err != nil {
			return fail(err)
		}
		l, err := s.Vault.Lease(ctx, name, scope)
		if err != nil {
			return fail(err)
		}
		s.leases.all = append(s.leases.all, l)
		row, err := s.Store.InsertLease(ctx, store.Lease{Secret: name, RunID: s.task.ID, Owner: s.self})
		if err != nil {
			return fail(err)
		}
		s.leases.rows = append(s.leases.rows, row.ID)
		if err := s.recordSecret(ctx, audit.SecretLease, name, scope.Repository); err != nil {
			return fail(err)
		}
		value, until, err := l.Value(ctx)
		if err != nil {
			return fail(err)
		}
		s.Redact.Add(KnownSecret(name, value))
		fields := map[string]any{"name": name, "source": about.Source, "hosts": about.Hosts}
		if scope.Repository != "" {
			fields["repository"] = scope.Repository
		}
		if !until.IsZero() {
			fields["until"] = until.UTC().Format(time.RFC3339)
		}
		s.dir.event("secret", fields)
		secrets = append(secrets, sandbox.Secret{
			Name: name, Value: sandbox.SecretValue(value), Hosts: about.Hosts, Headers: about.Headers, Query: about.Query, Env: about.Env,
		})
	}
	return secrets, nil
}

// recordSecret is the audit of a lease.
func (s *state) recordSecret(ctx context.Context, action, name, reason string) error {
	return s.audit.log.Append(ctx, audit.Record{Action: action, Object: name, Decision: store.Allowed, RunID: s.task.ID, SandboxID: s.task.Sandbox, Reason: reason})
}

// scope is what a token is made for: the run's repository, which must be one of
// the server that makes the token.
func (s *state) scope(ctx context.Context, about secret.Secret) (secret.Scope, error) {
	if about.Source != secret.GitHub || about.App.AllRepositories {
		return secret.Scope{}, nil
	}
	origin := gitbox.Hosted(s.Repo)
	if !IsAddress(s.Repo) {
		repo, err := gitbox.Open(ctx, s.Repo)
		if err != nil {
			return secret.Scope{}, err
		}
		origin = repo.Origin
	}
	api, err := url.Parse(about.App.APIURL)
	if err != nil {
		return secret.Scope{}, err
	}
	host := strings.TrimPrefix(api.Hostname(), "api.")
	repository, ok := strings.CutPrefix(origin, host+"/")
	if !ok {
		where := "has no origin that is on a server"
		if origin != "" {
			where = "says that it comes from " + origin
		}
		return secret.Scope{}, WithHint(fmt.Errorf("a token of the app is made for one repository on %s, and %s %s", host, s.task.Repo, where),
			"run on a clone of a repository there, or set the secret with --all-repositories")
	}
	return secret.Scope{Repository: repository}, nil
}

// renew keeps the values fresh while the sandbox runs.
func (s *state) renew(ctx context.Context) {
	ctx, s.leases.stop = context.WithCancel(ctx)
	for _, l := range s.leases.all {
		s.leases.work.Go(func() { s.renewOne(ctx, l) })
	}
}

func (s *state) renewOne(ctx context.Context, l *secret.Lease) {
	name := l.Secret().Name
	has, until, err := l.Value(ctx)
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
		if value, until, err = l.Value(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			value = "" // what was there has ended
			s.dir.event("secret_failed", map[string]any{"name": name, "error": err.Error()})
		}
		if value == has {
			continue
		}
		if value != "" {
			s.Redact.Add(KnownSecret(name, value))
		}
		if set := s.sb.SetSecret(ctx, name, sandbox.SecretValue(value)); set != nil {
			s.dir.event("secret_failed", map[string]any{"name": name, "error": set.Error()})
			continue
		}
		has = value
		if value != "" {
			s.dir.event("secret_renewed", map[string]any{"name": name, "until": until.UTC().Format(time.RFC3339)})
		}
	}
}

// withdraw takes the secrets from a sandbox that is kept: nobody would renew or
// revoke them.
func (s *state) withdraw() {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	for _, l := range s.leases.all {
		name := l.Secret().Name
		if err := s.sb.SetSecret(ctx, name, ""); err != nil {
			s.note("the kept sandbox may still use the secret %s: %v", name, err)
			continue
		}
		s.note("the kept sandbox cannot use the secret %s any more", name)
	}
}

// stopRenewing is the end of renew.
func (s *state) stopRenewing() {
	if s.leases.stop != nil {
		s.leases.stop()
		s.leases.work.Wait()
	}
}

// giveBack ends the leases.
func (s *state) giveBack() {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	for _, l := range s.leases.all {
		name := l.Secret().Name
		err := l.End(ctx)
		if err == nil && l.Secret().Source == secret.GitHub {
			err = s.recordSecret(ctx, audit.SecretRevoke, name, "")
		}
		if err != nil {
			s.note("the value of the secret %s could not be given back, and ends by itself: %v", name, err)
		}
	}
	for _, id := range s.leases.rows {
		if _, err := s.Store.EndLease(ctx, id, "the run ended"); err != nil {
			s.note("the end of a lease could not be recorded: %v", err)
		}
	}
}

// KnownSecret is what a Redactor has to know of a secret's value.
func KnownSecret(name, value string) redact.Pair {
	return redact.Pair{Secret: value, Instead: "[secret " + name + "]", Name: name}
}
