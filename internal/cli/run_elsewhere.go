package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"ravi/internal/backend/remote"
	"ravi/internal/bus"
	"ravi/internal/command"
	"ravi/internal/daemon"
	runs "ravi/internal/run"
	"ravi/internal/tunnel"
)

// reachRunner is how long a runner may take to answer.
const reachRunner = 15 * time.Second

// joinBus has a run use the bus by its order, until leave.
func joinBus(ctx context.Context, env *command.Env, o order, opts *runs.Options) (leave func(), err error) {
	home, err := env.Home()
	if err != nil {
		return nil, err
	}
	if o.Bus.Guest != "" {
		if opts.Bus, err = busOfGuest(home, o.Bus); err != nil {
			return nil, err
		}
	}
	if o.Bus.Runner == "" {
		return func() {}, nil
	}
	return goElsewhere(ctx, home, o, opts)
}

// busOfGuest is the bus for what runs in the sandbox.
func busOfGuest(home string, o *orderBus) (*runs.Bus, error) {
	cred, err := bus.ParseCredential([]byte(o.Guest))
	if err != nil {
		return nil, err
	}
	return &runs.Bus{
		Serve:      bus.NewBridges(o.URL, o.Trust).Serve,
		Credential: o.Guest, Secrets: []string{cred.Seed.Reveal()},
		Renew: func(ctx context.Context) (string, error) {
			by, err := askRenewed(ctx, home, cred)
			return string(by.File()), err
		},
	}, nil
}

// goElsewhere has the run's sandboxes be made by a runner.
func goElsewhere(ctx context.Context, home string, o order, opts *runs.Options) (leave func(), err error) {
	cred, err := bus.ParseCredential([]byte(o.Bus.Credential))
	if err != nil {
		return nil, err
	}
	self, err := cred.Curve()
	if err != nil {
		return nil, err
	}
	nc, err := bus.Dial(ctx, o.Bus.URL, cred, bus.WithTrust(o.Bus.Trust), bus.WithRenewal(renewal(home, cred)))
	if err != nil {
		return nil, err
	}
	var dials atomic.Int64 // sub-agents dial side by side
	opts.Elsewhere = func(ctx context.Context) (remote.Session, error) {
		const mostOfATry = 1000 // sessions: of the run, and of each sub-agent
		name := tunnel.Name{Runner: o.Bus.Runner, RunID: o.RunID, Try: o.Bus.Try*mostOfATry + int(dials.Add(1)-1)%mostOfATry}
		down, up := name.Subjects()
		ctx, cancel := context.WithTimeoutCause(ctx, reachRunner, fmt.Errorf("the runner %s did not answer within %v", o.Bus.Runner, reachRunner))
		defer cancel()
		s, err := tunnel.Dial(ctx, tunnel.Config{Conn: nc, Send: down, Receive: up, Self: self, Peer: o.Bus.Peer})
		if errors.Is(err, tunnel.ErrBusy) {
			err = fmt.Errorf("%w: %w", remote.ErrFull, err)
		} else if errors.Is(err, tunnel.ErrUnanswered) {
			err = fmt.Errorf("%w: %w", runs.ErrNotReached, err)
		}
		if err != nil {
			return nil, fmt.Errorf("reaching the runner %s: %w", o.Bus.Runner, err)
		}
		return s, nil
	}
	if a := opts.Agent; a != nil && a.Program.Node > 0 {
		a.CheckNode = true // it is the runner's that counts
	}
	return nc.Close, nil
}

// renewal asks the daemon for a new life of a run's credential, in time.
func renewal(home string, have bus.Credential) func(context.Context) (bus.Credential, error) {
	return func(ctx context.Context) (bus.Credential, error) {
		if time.Until(have.Expires) > runCredTTL/2 {
			return have, nil
		}
		renewed, err := askRenewed(ctx, home, have)
		if err == nil {
			have = renewed
		}
		return have, err
	}
}

func askRenewed(ctx context.Context, home string, have bus.Credential) (bus.Credential, error) {
	var out renewedCredential
	if err := daemon.Ask(ctx, filepath.Join(home, daemon.Socket), "bus-creds/renew", credsRenewInput{User: have.User}, &out); err != nil {
		return have, err
	}
	by, err := bus.ParseCredential([]byte(out.File))
	if err != nil {
		return have, err
	}
	return have.Renewed(by)
}
