package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"ravi/internal/backend"
	"ravi/internal/keeper"
)

// instance is a sandbox on a runner. It owns the session.
type instance struct {
	session Session
	control net.Conn
	in      *bufio.Reader

	ready chan struct{} // closed once the sandbox is made or has failed
	ended chan struct{} // closed once it is gone, or out of reach
	calls chan call     // visits that wait to be taken

	mu     sync.Mutex // guards what follows
	notes  []string
	failed error
	end    keeper.Reply
	let    bool // go of it
}

var (
	_ backend.Instance = (*instance)(nil)
	_ backend.Visited  = (*instance)(nil)
)

func newInstance(s Session, control net.Conn) *instance {
	return &instance{
		session: s, control: control, in: bufio.NewReader(control),
		ready: make(chan struct{}), ended: make(chan struct{}), calls: make(chan call),
	}
}

// next is what the runner tells next of the sandbox.
func (i *instance) next() (r Reply, err error) {
	if err := ReadLine(i.in, MaxReply, &r); err != nil {
		return r, err
	}
	r.clean()
	return r, nil
}

// begin follows the sandbox from when it is taken on until its end.
func (i *instance) begin() {
	go i.accept()
	go func() {
		// A session that is over need not end its streams at once.
		select {
		case <-i.session.Done():
			i.control.Close()
		case <-i.ended:
		}
	}()
	go i.follow()
}

// reasons are those that a runner can give for the end of a sandbox.
var reasons = []string{
	keeper.ReasonClosed, keeper.ReasonOwnerGone, keeper.ReasonOOM, keeper.ReasonDied, keeper.ReasonViolation,
	keeper.ReasonRelay, keeper.ReasonNetwork, keeper.ReasonFailed, keeper.ReasonRunner,
}

func (i *instance) follow() {
	var once sync.Once
	made := func() { once.Do(func() { close(i.ready) }) }
	last := keeper.Reply{Event: "ended", Reason: keeper.ReasonRunner}
	for over := false; !over; {
		r, err := i.next()
		if err != nil {
			over = true
			if why := lost(i.session, err); why != nil {
				last.Detail = printable(why.Error())
			}
			break
		}
		i.mu.Lock()
		switch r.Event {
		case EventReady:
			if i.notes = r.Notes; r.Error != "" {
				i.failed = r.failure()
			}
			i.mu.Unlock()
			made()
		case EventEnded:
			if slices.Contains(reasons, r.Reason) {
				last.Reason = r.Reason
			}
			last.Detail, last.Error, over = r.Detail, r.Error, true
			i.mu.Unlock()
		default:
			last.Detail, over = errProtocol.Error(), true
			i.mu.Unlock()
		}
	}
	// What came by other streams before is still to be read.
	i.session.Close()
	i.mu.Lock()
	if i.let {
		last.Reason = keeper.ReasonDetached
	}
	i.end = last
	if i.failed == nil {
		i.failed = &keeper.Failure{Reply: keeper.Reply{Reason: last.Reason, Detail: last.Detail, Error: last.Error}}
	}
	i.mu.Unlock()
	close(i.ended)
	made()
}

// Ready waits until the sandbox is made.
func (i *instance) Ready(ctx context.Context) ([]string, error) {
	select {
	case <-i.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failed != nil {
		return nil, i.failed
	}
	return i.notes, nil
}

// Dial connects to the guest. Whether there is one shows in the reading.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	return i.stream(ctx, Head{Kind: KindDial})
}

// DialEvents connects to the network's gateway.
func (i *instance) DialEvents(ctx context.Context) (net.Conn, error) {
	return i.stream(ctx, Head{Kind: KindEvents})
}

func (i *instance) stream(ctx context.Context, h Head) (net.Conn, error) {
	select {
	case <-i.ended:
		return nil, keeper.ErrGone
	default:
		return open(ctx, i.session, h)
	}
}

// askTime bounds what a runner is asked where the caller does not.
const askTime = 2 * time.Minute

// ask has the runner do something, and waits for its answer.
func (i *instance) ask(ctx context.Context, h Head) (r Reply, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("the runner did not answer within %v", askTime))
	defer cancel()
	c, err := i.stream(ctx, h)
	if err != nil {
		return r, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	r, err = readReply(c)
	switch {
	case err != nil && ctx.Err() != nil:
		return r, context.Cause(ctx)
	case err != nil:
		return r, lost(i.session, err)
	case r.Error != "":
		return r, r.failure()
	}
	return r, nil
}

// Pause freezes everything in the sandbox.
func (i *instance) Pause(ctx context.Context) error {
	_, err := i.ask(ctx, Head{Kind: KindPause})
	return err
}

// Resume undoes Pause.
func (i *instance) Resume(ctx context.Context) error {
	_, err := i.ask(ctx, Head{Kind: KindResume})
	return err
}

// Checkpoint is not possible: it would lie on the runner.
func (i *instance) Checkpoint(context.Context, string) error {
	return fmt.Errorf("%w: a sandbox on another machine cannot be saved", backend.ErrUnsupported)
}

// Stats asks what the runner's host sees of the sandbox.
func (i *instance) Stats(ctx context.Context) (keeper.Stats, error) {
	r, err := i.ask(ctx, Head{Kind: KindStats})
	if err != nil || r.Stats == nil {
		return keeper.Stats{}, err
	}
	return *r.Stats, nil
}

// SetPolicy replaces the network's policy.
func (i *instance) SetPolicy(ctx context.Context, policy json.RawMessage) error {
	_, err := i.ask(ctx, Head{Kind: KindPolicy, Policy: policy})
	return err
}

// SetGrace is not possible: the sandbox ends with the session.
func (i *instance) SetGrace(_ context.Context, grace time.Duration) error {
	if grace <= 0 {
		return nil
	}
	return fmt.Errorf("%w: a sandbox on another machine ends with the process that made it", backend.ErrUnsupported)
}

// Ended is closed when the sandbox is gone, or out of reach: then the runner ends it by itself.
func (i *instance) Ended() <-chan struct{} { return i.ended }

// End says why; valid after Ended.
func (i *instance) End() keeper.Reply {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.end
}

// PID is this process: the sandbox is there no longer than that.
func (i *instance) PID() int { return os.Getpid() }

// Close ends the sandbox. If the runner does not say that it has ended, the session ends, and the sandbox with that; that
// is an error unless it was the runner that went away.
func (i *instance) Close(ctx context.Context) error {
	var late error
	if c, err := i.stream(ctx, Head{Kind: KindEnd}); err == nil {
		defer c.Close()
		select {
		case <-i.ended:
		case <-ctx.Done():
			late = fmt.Errorf("waiting for the runner to end the sandbox: %w", context.Cause(ctx))
		}
	} else if ctx.Err() != nil {
		late = err
	}
	i.session.Close()
	i.control.Close()
	<-i.ended
	if end := i.End(); late == nil && end.Error != "" {
		return errors.New(end.Error)
	}
	return late
}

// Detach lets go of the sandbox, which the runner then ends.
func (i *instance) Detach() {
	i.mu.Lock()
	i.let = true
	i.mu.Unlock()
	i.session.Close()
	i.control.Close()
	<-i.ended
}
