package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/backend"
	"ravi/internal/guestapi/process"
	"ravi/internal/keeper"
)

// lane is a command's standard input and output: two pipes, at whose other ends
// there is nothing but that command, and what it passed them on to. They are all
// that a hostile guest has of this process here. Nothing but bytes comes through
// a pipe; no more of them lie in it than it holds, whatever is written; and no
// read or write of this side waits longer than it wants to.
type lane struct {
	number  uint32
	in, out *os.File

	writing sync.Mutex    // keeps writes whole and in order
	over    chan struct{} // closed when no more is passed on
	left    bool          // something holds the output still; to be read when over is closed
	err     error         // of the writer; as well
}

// Of a command's output, once the command itself has ended. The guest agent does
// the same with what goes through it.
const (
	// laneDrain is how long the output is awaited when something else holds it open.
	laneDrain = time.Second
	// laneLeft is how much is read of it after that: more than a pipe holds.
	laneLeft = 1 << 20
)

// errUnread: the pipe is closed, at one end or the other.
var errUnread = errors.New("the command does not read its input any more")

// spareLanes are lanes that were taken for commands which could not be started.
type spareLanes struct {
	mu  sync.Mutex
	all []keeper.Lane
}

func (s *spareLanes) take() (l keeper.Lane, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return l, false
	}
	l, s.all = s.all[0], s.all[1:]
	return l, true
}

func (s *spareLanes) add(l keeper.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, l)
}

func (s *spareLanes) close() {
	for l, ok := s.take(); ok; l, ok = s.take() {
		l.Close()
	}
}

// takeLane asks for a lane for the command that m is to start.
func (p *Process) takeLane(ctx context.Context, m *process.StartRequest) (err error) {
	l, ok := p.sb.lanes.take()
	if !ok {
		err = fmt.Errorf("%w: this kind has none", keeper.ErrNoLane)
		if from, ok := p.sb.inst.(backend.Laned); ok {
			l, err = from.Lane(ctx)
		}
		if errors.Is(err, keeper.ErrNoLane) {
			p.noLane = err.Error()
			return nil
		} else if err != nil {
			return err
		}
	}
	p.lane = &lane{number: l.Number, in: l.W, out: l.R, over: make(chan struct{})}
	m.Lane = &l.Number
	return nil
}

// leaveLane is for a command that could not be started. Its lane serves another
// if the guest agent says that there was nothing to start.
func (p *Process) leaveLane(err error) {
	if p.lane == nil {
		return
	}
	end := keeper.Lane{Number: p.lane.number}
	end.R, end.W = p.lane.out, p.lane.in
	switch connect.CodeOf(err) {
	case connect.CodeNotFound, connect.CodePermissionDenied:
		p.sb.lanes.add(end)
	default:
		end.Close()
	}
}

// NoLane says why the command has no lane though Cmd.Lane asked for one; empty:
// it has one, or was not to have one.
func (p *Process) NoLane() string { return p.noLane }

// carryOut passes on what comes out of the lane, until its end or endLane's.
func (p *Process) carryOut(w io.Writer) {
	l := p.lane
	defer close(l.over)
	buf := make([]byte, 32<<10)
	for {
		n, err := l.out.Read(buf)
		if n > 0 {
			if l.err = p.write(w, buf[:n]); l.err != nil {
				p.kill(ReasonCanceled)
				l.out.Close()
				return
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if l.left, l.err = p.drainLane(w, buf); l.left {
				// What still writes there neither blocks nor ends by that.
				go l.drop()
				return
			}
			l.out.Close()
			return
		case err != nil:
			l.out.Close()
			return
		}
	}
}

// drainLane passes on what is in the lane now. What the command itself wrote is
// among it, and there is a bound: something else may write without end.
func (p *Process) drainLane(w io.Writer, buf []byte) (left bool, err error) {
	raw, err := p.lane.out.SyscallConn()
	if err != nil {
		return false, nil // it is closed
	}
	for total := 0; total < laneLeft; {
		n, rerr := 0, error(nil)
		if err := raw.Control(func(fd uintptr) { n, rerr = unix.Read(int(fd), buf) }); err != nil {
			return false, nil
		}
		if errors.Is(rerr, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return errors.Is(rerr, unix.EAGAIN), nil
		}
		total += n
		if err := p.write(w, buf[:n]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// drop reads what is of no use to anybody, up to the end, which comes with the
// sandbox's at the latest.
func (l *lane) drop() {
	defer l.out.Close()
	if l.out.SetReadDeadline(time.Time{}) == nil {
		_, _ = io.Copy(io.Discard, l.out)
	}
}

// endLane is called when the command has ended, or nothing is heard of it any
// more: it gets no more input, and what it wrote is passed on.
func (p *Process) endLane() {
	l := p.lane
	l.in.Close()
	_ = l.out.SetReadDeadline(time.Now().Add(laneDrain)) // of one that is closed already
	<-l.over
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.OutputLeft = p.status.OutputLeft || l.left
	if p.err == nil && l.err != nil {
		p.err = writeError(l.err)
	}
}

// write waits until the command has read it, or the pipe has room for it.
func (l *lane) write(ctx context.Context, b []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(late)
		_ = l.in.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err := l.in.Write(b)
	if !stop() {
		<-late
		_ = l.in.SetWriteDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case err != nil:
		return errUnread
	}
	return nil
}
