package tunnel

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/nettest"
)

// halfSession is a session whose other end is a bare connection, to which a test writes what it likes.
func halfSession(t *testing.T) (s *Session, peer *conn) {
	t.Helper()
	b := newMemBus()
	near, far, stop := conns(t, b, options{})
	t.Cleanup(stop)
	s, err := newSession(far, testName, false, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, near
}

func muxFrame(kind byte, flags uint16, id, length uint32) []byte {
	out := []byte{0, kind}
	out = binary.BigEndian.AppendUint16(out, flags)
	out = binary.BigEndian.AppendUint32(out, id)
	return binary.BigEndian.AppendUint32(out, length)
}

const muxSyn = 1

// The other end holds the key, but may be broken or taken over: it ends its session, and takes no more than its share.
func TestStreamsThatMakeNoSense(t *testing.T) {
	begin := muxFrame(muxWindow, muxSyn, 1, 0)
	for name, frames := range map[string][]byte{
		"a ping":                    muxFrame(muxPing, muxSyn, 0, 1),
		"more than a stream takes":  append(append(begin, muxFrame(muxWindow, muxSyn, 3, 0)...), muxFrame(muxData, 0, 3, streamWindow+1)...),
		"another version":           {9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"another kind":              muxFrame(7, 0, 0, 0),
		"the end of its control":    append(begin, muxFrame(muxWindow, muxFin, 1, 0)...),
		"a stream twice":            append(append(begin, muxFrame(muxWindow, muxSyn, 3, 0)...), muxFrame(muxWindow, muxSyn, 3, 0)...),
		"more ends than there were": ends(5 * maxStreams),
	} {
		t.Run(name, func(t *testing.T) {
			s, peer := halfSession(t)
			go func() { _, _ = peer.Write(frames) }()
			<-s.Done()
			if err := s.Err(); !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
		})
	}
}

func ends(n int) (out []byte) {
	for i := range n {
		out = append(out, muxFrame(muxWindow, muxFin, uint32(2*i+1), 0)...)
	}
	return out
}

// Streams that the other end opens without end are held in a bounded number, and those that are there go on.
func TestStreamsWithoutEndAreBounded(t *testing.T) {
	s, peer := halfSession(t)
	const most = maxStreams + muxBacklog + 2
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	go func() {
		for i := range 4 * most {
			if _, err := peer.Write(muxFrame(muxWindow, muxSyn, uint32(2*i+1), 0)); err != nil {
				return
			}
		}
		_, _ = peer.Write(append(muxFrame(muxData, 0, 3, 5), "there"...))
	}()
	for range acceptQueue {
		a, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if a.(*Stream).id != 3 {
			continue
		}
		if _, err := io.ReadFull(a, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.mux.NumStreams(); n > most {
		t.Fatalf("%d streams are held", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) > maxStreams {
		t.Fatalf("%d streams are taken", len(s.streams))
	}
}

// Stops for streams that are not there are held in a bounded number.
func TestStopsWithoutEndAreBounded(t *testing.T) {
	s, peer := halfSession(t)
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	out := muxFrame(muxWindow, muxSyn, 1, 0)
	const n = 20000
	stop := func(id uint32) {
		out = append(out, muxFrame(muxData, 0, 1, 4)...)
		out = binary.BigEndian.AppendUint32(out, id)
	}
	for i := range uint32(n) {
		stop(2*i + 5)
	}
	out = append(out, muxFrame(muxWindow, muxSyn, 3, 0)...)
	if _, err := peer.Write(out); err != nil {
		t.Fatal(err)
	}
	a, err := s.Accept()
	if err != nil {
		t.Fatal(err)
	}
	out = out[:0]
	stop(3) // when this one is heeded, all before it were looked at
	if _, err := peer.Write(out); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); !a.(*Stream).stopped.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the last stop is not heeded")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.stops); n != 2*muxBacklog {
		t.Fatalf("%d are held", n)
	}
}

// Handshake and streams over a bus that does what it likes: all that is written arrives as it is.
func TestHostileBusUnderStreams(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 3))
		h := newHostile(func() int { return r.IntN(5) }, seed)
		b := newMemBus()
		b.size = 8 << 10
		b.hook = h.spoil
		near, far := pair(t, b, b, options{})
		c, a := open(t, near, far)
		data := noise(512<<10, seed)
		errs := make(chan error, 1)
		go send(c, data, errs)
		if got, err := sum(a, int64(len(data))); err != nil || got != sha256.Sum256(data) {
			t.Fatalf("other bytes, or %v", err)
		}
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.hook = nil
		b.mu.Unlock()
		if h.reused != nil {
			t.Fatal(h.reused)
		}
	}
}

// The server throws a client out in the middle, as it does with those that do not take what they are sent; it comes back, and
// nothing is lost.
func TestThrownOutIsNotNoticed(t *testing.T) {
	n := startNATS(t)
	clients := []*nats.Conn{connect(t, n.addr()), connect(t, n.addr())}
	near, far := pair(t, natsBus{clients[0]}, natsBus{clients[1]}, options{})
	for _, out := range clients {
		c, a := open(t, near, far)
		carry(t, c, a, 8<<20, func() {
			// A client that is just coming back by itself has an id that the server does not know any more.
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
				id, err := out.GetClientID()
				if err == nil {
					err = n.s.DisconnectClientByID(id)
				}
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestStreamsAndConnectionsAreAsNetConnHasIt(t *testing.T) {
	t.Run("connection", func(t *testing.T) {
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			near, far, stop := conns(t, newMemBus(), options{})
			return near, far, stop, nil
		})
	})
	t.Run("stream", func(t *testing.T) {
		b := newMemBus()
		near, far := pair(t, b, b, options{})
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			c, err := near.Open(context.Background())
			if err != nil {
				return nil, nil, nil, err
			}
			a, err := far.Accept()
			return c, a, func() { _, _ = c.Close(), a.Close() }, err
		})
	})
}
