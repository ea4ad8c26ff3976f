package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// Stream is one of many connections in a session: what Open and Accept return.
//
// Read returns io.EOF only when the other end closed the stream or its writing
// half; when the session ended instead, what Session.Err says. Writing to a
// stream that the other end closed gives ErrStopped.
type Stream struct {
	session *Session
	y       *yamux.Stream
	id      uint32
	ours    bool // opened by this end

	closed  atomic.Bool
	ended   atomic.Bool // by CloseWrite
	stopped atomic.Bool // the other end reads no more
	eof     atomic.Bool
	ends    sync.Once // our writing half

	reading sync.Mutex
	writing chan struct{} // holds one while one writes
	mu      sync.Mutex    // the deadlines are set by one at a time
	late    alarm
}

// alarm is a deadline as a channel that is closed when it has passed, as net.Pipe has it.
type alarm struct {
	mu    sync.Mutex
	timer *time.Timer
	c     chan struct{}
	on    bool // there is a deadline
}

func (a *alarm) set(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil && !a.timer.Stop() {
		<-a.c // it is being closed
	}
	a.timer, a.on = nil, !t.IsZero()
	closed := false
	select {
	case <-a.c:
		closed = true
	default:
	}
	d := time.Until(t)
	if closed && (!a.on || d > 0) {
		a.c = make(chan struct{})
	}
	switch {
	case !a.on:
	case d > 0:
		c := a.c
		a.timer = time.AfterFunc(d, func() { close(c) })
	case !closed:
		close(a.c)
	}
}

func (a *alarm) passed() (c <-chan struct{}, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.c, a.on
}

var _ net.Conn = (*Stream)(nil)

// past is a deadline that wakes whoever waits.
var past = time.Unix(1, 0)

// Read reads what the other end wrote, in its order.
func (st *Stream) Read(p []byte) (int, error) {
	st.reading.Lock()
	defer st.reading.Unlock()
	if st.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := st.y.Read(p)
	switch {
	case err == nil || n > 0:
		return n, nil
	case st.closed.Load():
		return 0, net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout):
		return 0, os.ErrDeadlineExceeded
	case errors.Is(err, yamux.ErrConnectionReset):
		return 0, ErrStopped
	case err == io.EOF && st.clean():
		st.eof.Store(true)
		return 0, io.EOF
	}
	return 0, st.session.ended()
}

// clean says whether the bytes end where their writer ended them.
func (st *Stream) clean() bool {
	if !st.session.filter.ended(st.id) {
		return false
	}
	select {
	case <-st.session.over:
		return !errors.Is(st.session.Err(), ErrProtocol) // of what came last, not all may have been read
	default:
		return true
	}
}

// Write returns when the bytes are within the window of the stream and of the session. Of what a deadline cut short, it is
// not known how much arrives; it does so before what is written after it.
func (st *Stream) Write(p []byte) (int, error) {
	if st.closed.Load() || st.ended.Load() {
		return 0, net.ErrClosed
	}
	late, on := st.late.passed()
	select {
	case <-late:
		return 0, st.writeError(yamux.ErrTimeout)
	default:
	}
	select {
	case st.writing <- struct{}{}:
	case <-late:
		return 0, st.writeError(yamux.ErrTimeout)
	case <-st.session.over:
		return 0, st.writeError(yamux.ErrSessionShutdown)
	}
	if !on {
		defer func() { <-st.writing }()
		n, err := st.y.Write(p)
		return n, st.writeError(err)
	}
	// yamux heeds a deadline while it waits for the reader of the stream, and not while it waits for the bus.
	type written struct {
		n   int
		err error
	}
	done := make(chan written, 1)
	own := append([]byte(nil), p...)
	if !st.session.track(func() {
		n, err := st.y.Write(own)
		<-st.writing
		done <- written{n, err}
	}) {
		<-st.writing
		return 0, st.writeError(yamux.ErrSessionShutdown)
	}
	select {
	case w := <-done:
		return w.n, st.writeError(w.err)
	case <-late:
		return 0, st.writeError(yamux.ErrTimeout)
	}
}

func (st *Stream) writeError(err error) error {
	switch {
	case err == nil:
		return nil
	case st.closed.Load():
		return net.ErrClosed
	case st.stopped.Load(), errors.Is(err, yamux.ErrConnectionReset):
		return ErrStopped
	case errors.Is(err, yamux.ErrTimeout):
		return os.ErrDeadlineExceeded
	case errors.Is(err, yamux.ErrStreamClosed) && !st.session.mux.IsClosed():
		return net.ErrClosed // CloseWrite was called
	}
	return st.session.ended()
}

// CloseWrite ends what this end writes: the other reads io.EOF behind it. Reading goes on.
func (st *Stream) CloseWrite() error {
	if st.closed.Load() || st.ended.Swap(true) {
		return net.ErrClosed
	}
	st.session.track(st.end)
	return nil
}

// Close ends the stream at once. What was written is brought to the other end, which reads io.EOF behind it and writes no
// more.
func (st *Stream) Close() error {
	if st.closed.Swap(true) {
		return net.ErrClosed
	}
	st.mu.Lock()
	_ = st.y.SetDeadline(past) // wakes who reads or writes
	st.late.set(past)
	st.mu.Unlock()
	st.session.track(st.finish)
	return nil
}

// end tells the other end that there is no more. It waits while the bus is away.
func (st *Stream) end() { st.ends.Do(func() { _ = st.y.Close() }) }

// finish reads on until the other end has ended its half too, so that both forget the stream.
func (st *Stream) finish() {
	st.end()
	if !st.eof.Load() && !st.session.filter.ended(st.id) {
		select {
		case st.session.stopOut <- st.id:
		case <-st.session.over:
			return
		}
	}
	st.reading.Lock()
	defer st.reading.Unlock()
	_ = st.y.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, st.y)
	st.session.forget(st)
}

// stop is what the other end asks for when it closes the stream.
func (st *Stream) stop() {
	st.stopped.Store(true)
	st.mu.Lock()
	_ = st.y.SetWriteDeadline(past) // wakes who writes
	st.late.set(past)
	st.mu.Unlock()
	st.session.ending.Go(st.end) // who calls is counted there too
}

// LocalAddr and RemoteAddr say the subjects of the session.
func (st *Stream) LocalAddr() net.Addr  { return st.session.conn.LocalAddr() }
func (st *Stream) RemoteAddr() net.Addr { return st.session.conn.RemoteAddr() }

// SetDeadline sets both deadlines.
func (st *Stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline is as net.Conn has it.
func (st *Stream) SetReadDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed.Load() {
		return net.ErrClosed
	}
	return st.y.SetReadDeadline(t)
}

// SetWriteDeadline is as net.Conn has it, but that a Write which began without a deadline and waits for the bus is not
// woken by one.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed.Load():
		return net.ErrClosed
	case st.stopped.Load():
		return nil // every write fails already
	}
	st.late.set(t)
	return st.y.SetWriteDeadline(t)
}
