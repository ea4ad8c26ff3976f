package remote

import (
	"bufio"
	"context"
	"net"
	"time"

	"ravi/internal/keeper"
	"ravi/internal/network"
)

// Bounds of the streams that a runner opens: how many there are at once, and the first line of each.
const (
	maxCalls    = 1536
	maxCallLine = 1 << 10
	callTime    = 10 * time.Second
)

// call is a visit that waits to be taken.
type call struct {
	network.Visit
	conn net.Conn
}

// Visits has the runner bring what processes of the sandbox connect to, from now on.
func (i *instance) Visits(ctx context.Context) (func(context.Context) (network.Visit, net.Conn, error), error) {
	if _, err := i.ask(ctx, Head{Kind: KindServe}); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (network.Visit, net.Conn, error) {
		select {
		case c := <-i.calls:
			return c.Visit, c.conn, nil
		case <-i.ended:
			return network.Visit{}, nil, keeper.ErrGone
		case <-ctx.Done():
			return network.Visit{}, nil, context.Cause(ctx)
		}
	}, nil
}

// accept takes the streams that the runner opens, until the session is over.
func (i *instance) accept() {
	slots := make(chan struct{}, maxCalls)
	for {
		c, err := i.session.Accept()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		go func() {
			c := &slotted{Conn: Wire(c), free: func() { <-slots }}
			if !i.call(c) {
				c.Close()
			}
		}()
	}
}

// call hands a stream on, if it is a visit that somebody takes.
func (i *instance) call(c net.Conn) bool {
	in := bufio.NewReaderSize(c, 4<<10)
	_ = c.SetReadDeadline(time.Now().Add(callTime))
	var v network.Visit
	if err := ReadLine(in, maxCallLine, &v); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Time{})
	wait := time.NewTimer(callTime)
	defer wait.Stop()
	select {
	case i.calls <- call{v, NewHalf(c, in)}:
		return true
	case <-i.ended:
	case <-wait.C:
	}
	return false
}
