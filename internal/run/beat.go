package run

import (
	"context"
	"time"
)

// beat does something again and again beside.
type beat struct {
	stop context.CancelFunc
	over chan struct{}
}

// begin has do done each pause, until end or the end of ctx.
func begin(ctx context.Context, pause time.Duration, do func(context.Context)) *beat {
	ctx, stop := context.WithCancel(ctx)
	b := &beat{stop, make(chan struct{})}
	go func() {
		defer close(b.over)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				do(ctx)
			}
		}
	}()
	return b
}

// end stops it, and waits for what is under way. One that never began has ended.
func (b *beat) end() {
	if b == nil {
		return
	}
	b.stop()
	<-b.over
}
