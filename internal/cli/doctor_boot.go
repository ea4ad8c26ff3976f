package cli

import (
	"context"
	"net"
	"sync"

	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/doctor"
)

// lookout tells the log of a daemon that has just begun to listen which of its ports others reach.
type lookout struct {
	ctx  context.Context
	env  *command.Env
	work sync.WaitGroup
}

func newLookout(ctx context.Context, env *command.Env) *lookout { return &lookout{ctx: ctx, env: env} }

// done waits until it has looked.
func (l *lookout) done() { l.work.Wait() }

// onceReady is what is to be called once the daemon accepts calls: what was before, and the look.
func (l *lookout) onceReady(o daemon.Options) func() {
	before := o.Ready
	return func() {
		if before != nil {
			before()
		}
		l.work.Go(func() { l.look(o) })
	}
}

func (l *lookout) look(o daemon.Options) {
	file, err := l.env.Config()
	var s daemon.State
	if err == nil {
		s, err = daemon.ReadState(o.Home)
	}
	if err != nil {
		o.Log.Warn("who reaches this daemon cannot be told", "error", err.Error())
		return
	}
	for _, e := range endpointsOf(file, &doctor.View{State: s}) {
		_, port, err := net.SplitHostPort(e.Actual)
		if err != nil {
			continue // it listens nowhere
		}
		x, found, err := doctor.Boot(l.ctx, e, port, s.Process.PID)
		if l.ctx.Err() != nil {
			return
		}
		if err != nil {
			o.Log.Warn("who reaches this daemon cannot be told", "what", e.Name, "error", err.Error())
			continue
		}
		o.Log.Info("reached", "what", e.Name, "by", x.String(), "in_front", x.Front())
		for _, f := range found {
			o.Log.Warn(f.Summary, "finding", f.ID, "severity", string(f.Severity), "mend", f.Fix, "where", f.Evidence)
		}
	}
}
