package guest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/ravi"
	"ravi/internal/guestapi/ravi/raviconnect"
)

type guestService struct{ *Server }

var _ raviconnect.GuestHandler = guestService{}

// eventLog remembers the last events and tells of new ones.
type eventLog struct {
	mu     sync.Mutex
	seq    uint64
	past   []*ravi.Event
	change chan struct{}
}

// maxEvents bounds what is remembered; numbers tell a reader what it missed.
const maxEvents = 64

func (l *eventLog) init() { l.change = make(chan struct{}) }

func (l *eventLog) add(ev *ravi.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	ev.Seq, ev.UnixMs = l.seq, time.Now().UnixMilli()
	l.past = append(l.past, ev)
	if len(l.past) > maxEvents {
		l.past = l.past[1:]
	}
	close(l.change)
	l.change = make(chan struct{})
}

// after returns the remembered events after seq, and what closes when there are more.
func (l *eventLog) after(seq uint64) ([]*ravi.Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ev := range l.past {
		if ev.GetSeq() > seq {
			return append([]*ravi.Event(nil), l.past[i:]...), l.change
		}
	}
	return nil, l.change
}

func (s guestService) Events(ctx context.Context, req *connect.Request[ravi.EventsRequest], out *connect.ServerStream[ravi.Event]) error {
	interval, err := keepaliveInterval(req.Header())
	if err != nil {
		return rpcError(err)
	}
	if err := out.Send(&ravi.Event{
		UnixMs: time.Now().UnixMilli(),
		Event: &ravi.Event_Ready_{Ready: &ravi.Event_Ready{
			Version: s.opts.Version, Pid: uint32(os.Getpid()),
		}},
	}); err != nil {
		return err
	}
	quiet := time.NewTimer(interval)
	defer quiet.Stop()
	var seq uint64
	for {
		events, change := s.events.after(seq)
		for _, ev := range events {
			if err := out.Send(ev); err != nil {
				return err
			}
			seq = ev.GetSeq()
		}
		select {
		case <-change:
		case <-ctx.Done():
			return rpcError(ctx.Err())
		case <-quiet.C:
			if err := out.Send(&ravi.Event{Event: &ravi.Event_Keepalive{Keepalive: &ravi.Event_KeepAlive{}}}); err != nil {
				return err
			}
		}
		quiet.Reset(interval)
	}
}

func (s guestService) Kill(ctx context.Context, req *connect.Request[ravi.KillRequest]) (*connect.Response[ravi.KillResponse], error) {
	// One that has ended may have left others behind, which its mark finds.
	p, err := s.procs.find(req.Msg.GetProcess(), true)
	if err != nil {
		return nil, rpcError(err)
	}
	sig := unix.Signal(req.Msg.GetSignal())
	if sig == 0 {
		sig = unix.SIGKILL
	}
	if sig < 0 || sig > 64 {
		return nil, rpcError(fmt.Errorf("%w: there is no signal %d", errBadArgument, sig))
	}
	tree := req.Msg.Tree == nil || req.Msg.GetTree()
	n := 0
	switch {
	case tree && sig == unix.SIGKILL:
		n, err = s.killTree(ctx, p)
	case tree:
		n, err = s.signalTree(p, sig)
	case s.signalMember(p, p.pid, sig):
		n = 1
	}
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&ravi.KillResponse{Signalled: uint32(n)}), nil
}
