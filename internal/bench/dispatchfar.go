package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"ravi/internal/backend/remote"
	"ravi/internal/bus"
	"ravi/internal/tunnel"
	"ravi/sandbox"
)

const (
	farCapacity = 2
	farWrites   = 5 // rounds
	farReach    = 15 * time.Second
)

// farRunner is a bus and a runner at it. A run's process reaches the runner as this does.
type farRunner struct {
	bus    *bus.Server
	nc     *nats.Conn
	runner *runnerProcess
	dial   func(context.Context) (remote.Session, error)
}

func (f *farRunner) close() error {
	if f.runner != nil {
		f.runner.stop()
	}
	if f.nc != nil {
		f.nc.Close()
	}
	if f.bus == nil {
		return nil
	}
	return f.bus.Close()
}

// newFarRunner starts them. What it gives must be closed, also with an error.
func (b *bench) newFarRunner(ctx context.Context) (f *farRunner, err error) {
	f = &farRunner{}
	home := filepath.Join(b.dir, "far-bus")
	if err := os.Mkdir(home, 0o700); err != nil {
		return f, err
	}
	log := slog.New(slog.DiscardHandler) // what fails fails a measure
	if f.bus, err = bus.Start(ctx, bus.Options{Dir: filepath.Join(home, "bus"), Home: home, Log: log}); err != nil {
		return f, err
	}
	const name, runID = "bench", "bench"
	lends, err := f.bus.Issue(ctx, bus.Request{Kind: bus.KindRunner, Name: name, TTL: time.Hour})
	if err != nil {
		return f, err
	}
	owns, err := f.bus.Issue(ctx, bus.Request{Kind: bus.KindOwner, Name: runID, RunID: runID, TTL: time.Hour})
	if err != nil {
		return f, err
	}
	creds := filepath.Join(home, "runner.creds")
	if err := lends.WriteFile(creds); err != nil {
		return f, err
	}
	g := &gateway{bench: b, home: filepath.Join(b.dir, "far-runner")}
	if f.runner, err = g.startRunner(ctx, "runner", "--bus", f.bus.URL(), "--creds", creds, "--capacity", fmt.Sprint(farCapacity)); err != nil {
		return f, err
	}
	self, err := owns.Curve()
	if err != nil {
		return f, err
	}
	if f.nc, err = bus.Dial(ctx, f.bus.URL(), owns, bus.WithTrust(f.bus.Trust()), bus.WithLog(log)); err != nil {
		return f, err
	}
	tries := 0
	f.dial = func(ctx context.Context) (remote.Session, error) {
		tries++
		down, up := tunnel.Name{Runner: name, RunID: runID, Try: tries}.Subjects()
		ctx, cancel := context.WithTimeoutCause(ctx, farReach, fmt.Errorf("the runner did not answer within %v: %s", farReach, f.runner.said.b))
		defer cancel()
		s, err := tunnel.Dial(ctx, tunnel.Config{Conn: f.nc, Send: down, Receive: up, Self: self, Peer: lends.XPublic})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	return f, nil
}

// farBox is a sandbox, and where.
type farBox struct {
	by string
	sb *sandbox.Sandbox
}

// far measures a command in a sandbox on a runner, and a file into it, beside one here.
func (b *bench) far(ctx context.Context) (err error) {
	f, err := b.newFarRunner(ctx)
	defer func() { err = errors.Join(err, f.close()) }()
	if err != nil {
		return err
	}
	x := b.ourBox()
	var all []farBox
	defer func() {
		for _, o := range all {
			err = errors.Join(err, o.sb.Close())
		}
	}()
	for _, o := range []farBox{{by: ours}, {by: onRunner}} {
		var opts []sandbox.Option
		if o.by == onRunner {
			opts = append(opts, sandbox.WithBackend(remote.Dial(f.dial)))
		}
		if o.sb, err = x.sandbox(ctx, opts...); err != nil {
			b.fail(farExec, o.by, err)
			return ctx.Err()
		}
		all = append(all, o)
	}
	if b.want(farExec) {
		// The first ones do not count.
		for round := range b.Runs + 1 {
			if err := inTurns(ctx, execsARound, all, func(o farBox) error {
				took, err := (&boxSession{sb: o.sb}).exec(ctx)
				if err == nil && round > 0 {
					b.addTime(farExec, o.by, took)
				}
				return err
			}, func(o farBox, err error) { b.fail(farExec, o.by, err) }); err != nil {
				return err
			}
		}
	}
	if !b.want(farWrite) {
		return nil
	}
	const file = "/workspace/bench-file"
	payload := noise(fileSize)
	return inTurns(ctx, min(b.Runs, farWrites), all, func(o farBox) error {
		start := time.Now()
		if err := o.sb.Files().Write(ctx, file, bytes.NewReader(payload)); err != nil {
			return err
		}
		b.addRate(farWrite, o.by, fileSize, time.Since(start))
		var got bytes.Buffer
		r, err := o.sb.Files().Read(ctx, file)
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := got.ReadFrom(r); err != nil {
			return err
		}
		if !bytes.Equal(got.Bytes(), payload) {
			return fmt.Errorf("%d bytes were read that are not the %d that were written", got.Len(), fileSize)
		}
		return nil
	}, func(o farBox, err error) { b.fail(farWrite, o.by, err) })
}
