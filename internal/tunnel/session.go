package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// maxStreams bounds the streams of a session that an end opened, and those that it was opened.
	maxStreams = 1024
	// acceptQueue is how many streams wait for Accept beside those of yamux.
	acceptQueue = 64
	// muxBacklog is how many streams may wait for the other end to take them. It is the same at both ends, as yamux
	// refuses what is beyond.
	muxBacklog = 256
	// forever is for waits of yamux that end with the session.
	forever = time.Duration(math.MaxInt64 / 4)
)

// Session is one end of a tunnel: any number of streams, which either end opens. Its methods may be used at once.
type Session struct {
	conn    *conn
	name    Name
	filter  *filter
	mux     *yamux.Session
	control *yamux.Stream // set before anything else runs at the dialing end, by pump at the other
	client  bool
	accepts chan *Stream
	slots   chan struct{} // streams that this end opened
	others  chan struct{} // streams that the other end opened
	over    chan struct{} // closed when cause is set
	gone    chan struct{} // closed when nothing runs any more

	mu      sync.Mutex
	closing bool
	cause   error
	broken  error // what the filter found
	streams map[uint32]*Stream
	highest uint32              // of the streams that the other end opened and pump took
	stops   map[uint32]struct{} // streams that were stopped before they were taken
	stopOut chan uint32
	ending  sync.WaitGroup // what runs for the session, but watch
	release func() error
}

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false // the connection beneath knows whether the other end is there
	c.AcceptBacklog = muxBacklog
	c.ConnectionWriteTimeout = forever // a cut of the bus is a wait
	c.StreamOpenTimeout = 0            // nobody who does not accept ends the session
	c.StreamCloseTimeout = 0           // nothing that was written is lost because its reader is slow
	c.MaxStreamWindowSize = streamWindow
	c.LogOutput, c.Logger = nil, log.New(io.Discard, "", 0) // its errors end the session, and are told by Err
	return c
}

// newSession takes over the connection, which runs. release is called when it has ended.
func newSession(c *conn, name Name, client bool, release func() error) (*Session, error) {
	s := &Session{
		conn: c, name: name, client: client, accepts: make(chan *Stream, acceptQueue), slots: make(chan struct{}, maxStreams),
		others: make(chan struct{}, maxStreams), over: make(chan struct{}), gone: make(chan struct{}),
		streams: map[uint32]*Stream{}, stops: map[uint32]struct{}{}, stopOut: make(chan uint32, acceptQueue), release: release,
	}
	s.filter = newFilter(c, s.broke)
	begin := yamux.Server
	if client {
		begin = yamux.Client
	}
	var err error
	if s.mux, err = begin(s.filter, muxConfig()); err != nil {
		return nil, errors.Join(err, s.abandon())
	}
	if client {
		// The first stream is for both ends to tell which streams they read no more.
		if s.control, err = s.mux.OpenStream(); err != nil {
			return nil, errors.Join(err, s.mux.Close(), s.abandon())
		}
		s.track(s.sendStops)
		s.track(s.readStops)
	}
	s.track(s.pump)
	go s.watch()
	return s, nil
}

// abandon is for a session that never was.
func (s *Session) abandon() error {
	_ = s.conn.Close()
	<-s.conn.done
	return s.release()
}

func (s *Session) broke(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

// track runs f for the session, and says false if that is over.
func (s *Session) track(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return false
	}
	s.ending.Go(f)
	return true
}

// watch is there from the beginning to the end.
func (s *Session) watch() {
	<-s.mux.CloseChan()
	cause := s.conn.reason()
	ours := cause == nil || errors.Is(cause, ErrClosed) // yamux closes the connection whatever it quits for
	s.mu.Lock()
	switch {
	case s.broken != nil:
		cause = s.broken
	case s.closing && (ours || errors.Is(cause, ErrPeerClosed)):
		cause = ErrClosed
	case ours && s.conn.peerEnded():
		cause = ErrPeerClosed
	case ours:
		cause = fmt.Errorf("%w: its streams make no sense", ErrProtocol)
	}
	s.cause = cause
	s.mu.Unlock()
	close(s.over)
	_ = s.mux.Close()
	s.ending.Wait()
	<-s.conn.done
	if err := s.release(); err != nil {
		s.mu.Lock()
		s.cause = errors.Join(s.cause, err)
		s.mu.Unlock()
	}
	close(s.gone)
}

// Name is what the session is for.
func (s *Session) Name() Name { return s.name }

// Done is closed when the session is over.
func (s *Session) Done() <-chan struct{} { return s.over }

// Err is why the session is over, or nil while it is not.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// ended waits for the cause, which is about to be known.
func (s *Session) ended() error {
	<-s.over
	return s.Err()
}

// Close ends the session and its streams. What was written to them is brought to the other end first, within two seconds.
func (s *Session) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	_ = s.mux.Close()
	late := time.NewTimer(2 * linger)
	defer late.Stop()
	select {
	case <-s.gone:
	case <-late.C: // a bus whose socket is stuck: what is left goes with it
	}
	return nil
}

// Open opens a stream. It waits, until ctx ends, while there are 1024 open that this end opened, or 256 that the other end
// did not accept.
func (s *Session) Open(ctx context.Context) (net.Conn, error) {
	select {
	case s.slots <- struct{}{}:
	case <-s.over:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	type opened struct {
		stream *Stream
		err    error
	}
	result := make(chan opened, 1)
	if !s.track(func() { // yamux waits without a context
		y, err := s.mux.OpenStream()
		if err != nil {
			<-s.slots
			result <- opened{nil, err}
			return
		}
		result <- opened{s.add(y, true), nil}
	}) {
		<-s.slots
		return nil, s.Err()
	}
	select {
	case r := <-result:
		if r.err != nil {
			return nil, s.ended()
		}
		return r.stream, nil
	case <-ctx.Done():
		s.track(func() {
			if r := <-result; r.err == nil {
				_ = r.stream.Close()
			}
		})
		return nil, ctx.Err()
	}
}

// Accept waits for the next stream that the other end opened.
func (s *Session) Accept() (net.Conn, error) {
	select {
	case st := <-s.accepts:
		return st, nil
	case <-s.over:
		return nil, s.Err()
	}
}

// pump takes streams from yamux, so that a stop finds the stream that it is for. While there are too many it takes none:
// yamux holds muxBacklog more, then the other end waits.
func (s *Session) pump() {
	for {
		select {
		case s.others <- struct{}{}:
		case <-s.over:
			return
		}
		y, err := s.mux.AcceptStream()
		if err != nil {
			return
		}
		if s.control == nil {
			s.control = y
			<-s.others
			s.track(s.sendStops)
			s.track(s.readStops)
			continue
		}
		select {
		case s.accepts <- s.add(y, false):
		case <-s.over:
			return
		}
	}
}

func (s *Session) add(y *yamux.Stream, ours bool) *Stream {
	st := &Stream{session: s, y: y, id: y.StreamID(), ours: ours, writing: make(chan struct{}, 1), late: alarm{c: make(chan struct{})}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st.id] = st
	if ours {
		return st
	}
	s.highest = max(s.highest, st.id)
	if _, ok := s.stops[st.id]; ok {
		delete(s.stops, st.id)
		st.stop()
	}
	return st
}

func (s *Session) forget(st *Stream) {
	s.filter.forget(st.id)
	s.mu.Lock()
	delete(s.streams, st.id)
	s.mu.Unlock()
	if st.ours {
		<-s.slots
	} else {
		<-s.others
	}
}

// sendStops tells the other end which streams are read no more.
func (s *Session) sendStops() {
	for {
		select {
		case id := <-s.stopOut:
			if _, err := s.control.Write(binary.BigEndian.AppendUint32(nil, id)); err != nil {
				return
			}
		case <-s.over:
			return
		}
	}
}

func (s *Session) readStops() {
	for {
		var id [4]byte
		if _, err := io.ReadFull(s.control, id[:]); err != nil {
			if s.filter.ended(s.control.StreamID()) {
				s.broke(fmt.Errorf("%w: it closed its control stream", ErrProtocol))
			}
			_ = s.mux.Close()
			return
		}
		s.stopped(binary.BigEndian.Uint32(id[:]))
	}
}

func (s *Session) stopped(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	theirs := id%2 == 1 != s.client
	switch st := s.streams[id]; {
	case st != nil:
		st.stop()
	case theirs && id > s.highest && len(s.stops) < 2*muxBacklog: // pump has not taken it yet
		s.stops[id] = struct{}{}
	}
}
