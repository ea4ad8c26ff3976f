package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// conn is a connection over packets that may be lost: net.Conn with the bytes in order. What it sends is in send.go.
//
// An end measures silence so: it remembers when it sent a packet, and when the other end says that it has seen that
// packet, the other end was there at some time after that. Packets that a bus holds back and lets go one by one prove
// nothing, then.
type conn struct {
	bus     bus
	subject string // where its packets go
	local   string // its own name for an address
	dead    time.Duration
	window  int

	opening sync.Mutex // in is used by one packet at a time
	in      *sealing

	kicked chan struct{} // wakes the sender
	heard  chan struct{} // closed when the first frame came
	done   chan struct{} // closed when nothing of it runs any more

	mu       sync.Mutex
	readable sync.Cond
	writable sync.Cond
	err      error // why it ended; nil while it lives
	told     byte  // what the other end is told when it ends; 0: nothing
	closed   bool  // by Close

	// What is sent. Offsets count the bytes of a direction from its beginning.
	out         *sealing
	unsent      fifo   // from una on: what is not acknowledged
	una         uint64 // the first byte that is not acknowledged
	nxt         uint64 // the next byte to send
	most        uint64 // one more than the last byte that was ever sent
	credit      uint64 // up to where the other end takes bytes
	fin         bool   // the bytes end at finAt
	finAt       uint64
	burst       int    // how much may be under way: less than a window after a loss
	recover     uint64 // gaps of packets before this counter are known
	firstProbe  probe  // the oldest packet that is not seen
	latestProbe probe  // the newest packet
	timed       probe  // a packet that is answered soon if it arrives
	dog         *time.Timer
	alive       time.Time // when the other end was there for certain
	pinged      time.Time
	resend      time.Time // when una is sent again; zero: nothing is under way
	backoff     int       // how often in a row nothing came of that
	rtt         estimate
	closeBy     time.Time

	// What is received.
	buffer    fifo
	rcv       uint64 // the first byte that is missing
	rcvFin    bool
	promised  uint64 // the credit that the other end was told
	owed      int    // bytes that are not acknowledged yet
	ackBy     time.Time
	answer    bool   // a frame is due at once
	missing   bool   // it says that something is missing
	came      bool   // it says that this end was away
	taken     uint64 // one more than the highest counter that was taken
	known     bool   // a frame of the other end came
	forged    uint64 // packets that did not open, or came twice
	ups, down uint64 // how often the bus came, and at which of these it was found gone

	readBy, writeBy deadline
}

type probe struct {
	counter uint64
	at      time.Time
	set     bool
}

func newConn(b bus, subject, local string, a *agreed, o options) *conn {
	now := time.Now()
	c := &conn{
		bus: b, subject: subject, local: local, dead: o.dead, window: o.window, in: a.in, out: a.out,
		kicked: make(chan struct{}, 1), heard: make(chan struct{}), done: make(chan struct{}),
		alive: now, pinged: now, credit: uint64(o.window), promised: uint64(o.window), burst: o.window, answer: true, ups: 1,
	}
	c.readable.L, c.writable.L = &c.mu, &c.mu
	c.dog = time.AfterFunc(c.dead, c.watchdog)
	return c
}

// kick wakes the sender.
func (c *conn) kick() {
	select {
	case c.kicked <- struct{}{}:
	default:
	}
}

// up tells that the bus is there again, or gone for good.
func (c *conn) up() {
	c.mu.Lock()
	c.ups++
	c.back(min(c.window, 4*maxPacket))
	c.backoff = 0
	c.came, c.answer = true, true
	c.mu.Unlock()
	c.kick()
}

// back begins again at the first byte that is not acknowledged.
func (c *conn) back(burst int) {
	c.nxt = c.una
	c.burst = max(burst, minPacket)
	c.recover = c.out.next
	c.resend, c.timed = time.Time{}, probe{}
}

// fail ends the connection. told is what the other end hears of it.
func (c *conn) fail(err error, told byte) {
	c.mu.Lock()
	c.failLocked(err, told)
	c.mu.Unlock()
}

func (c *conn) failLocked(err error, told byte) {
	if c.err != nil {
		return
	}
	c.err, c.told = err, told
	c.unsent.drop(c.unsent.size)
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.kick()
}

// reason is why the connection ended, or nil.
func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.rcvFin {
		return ErrPeerClosed
	}
	return c.err
}

// peerEnded says whether the other end closed its half.
func (c *conn) peerEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rcvFin
}

// receive takes a packet, which becomes the connection's. It never waits for a reader.
func (c *conn) receive(packet []byte) {
	c.opening.Lock()
	defer c.opening.Unlock()
	plain, err := c.in.open(packet)
	if err != nil {
		c.mu.Lock()
		c.forged++
		c.mu.Unlock()
		return
	}
	c.opened(plain)
}

// opened takes what was in a packet that in opened.
func (c *conn) opened(plain []byte) {
	f, err := parseFrame(plain)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.taken = c.in.next
	if err == nil {
		err = c.take(&f, time.Now())
	}
	if err != nil {
		c.failLocked(err, overProtocol)
	}
}

func (c *conn) take(f *frame, now time.Time) error {
	if !c.known {
		c.known, c.backoff = true, 0
		close(c.heard)
	}
	if f.flags&flagOver != 0 {
		c.failLocked(overReason(f.data[0]), 0)
		return nil
	}
	if f.seen > c.out.next || f.ack > c.most {
		return fmt.Errorf("%w: it acknowledges what was not sent", ErrProtocol)
	}
	c.seen(f.seen, now)
	c.acked(f, now)
	if f.credit > c.credit {
		c.credit, c.backoff = f.credit, 0
		c.kick()
	}
	if f.flags&(flagPing|flagAgain) != 0 {
		c.answer = true
		c.kick()
	}
	if len(f.data) > 0 || f.flags&flagFin != 0 {
		return c.data(f, now)
	}
	return nil
}

// seen notes when the other end was there for certain.
func (c *conn) seen(seen uint64, now time.Time) {
	switch {
	case c.latestProbe.set && seen > c.latestProbe.counter:
		c.alive = c.latestProbe.at
		c.firstProbe, c.latestProbe = probe{}, probe{}
	case c.firstProbe.set && seen > c.firstProbe.counter:
		c.alive = c.firstProbe.at
		c.firstProbe = c.latestProbe
	}
	if c.timed.set && seen > c.timed.counter {
		c.rtt.add(now.Sub(c.timed.at))
		c.timed = probe{}
	}
}

func (c *conn) acked(f *frame, now time.Time) {
	if f.ack > c.una {
		n := f.ack - c.una
		c.unsent.drop(int(min(n, uint64(c.unsent.size)))) // the end of the bytes is no byte
		c.una = f.ack
		c.nxt = max(c.nxt, c.una)
		c.burst = min(c.window, c.burst+int(n))
		c.backoff = 0
		c.resend = time.Time{}
		if c.nxt > c.una {
			c.resend = now.Add(c.wait())
		}
		c.writable.Broadcast()
		c.kick()
	}
	if f.flags&flagAgain != 0 || f.flags&flagGap != 0 && f.seen > c.recover {
		if c.nxt > c.una {
			c.back(c.burst / 2)
		}
		c.kick()
	}
}

// data takes the bytes that are next, and nothing else.
func (c *conn) data(f *frame, now time.Time) error {
	end := f.offset + uint64(len(f.data))
	switch {
	case end > c.promised:
		return fmt.Errorf("%w: it sends more than it may", ErrProtocol)
	case f.offset > c.rcv:
		c.missing, c.answer = true, true
		c.kick()
		return nil
	case c.rcvFin:
		c.answer = true
		c.kick()
		return nil
	}
	if end <= c.rcv && f.flags&flagFin == 0 { // it was here: the other end lost the answer
		c.answer = true
		c.kick()
		return nil
	}
	if end < c.rcv {
		return fmt.Errorf("%w: its bytes end before their end", ErrProtocol)
	}
	fresh := f.data[c.rcv-f.offset:]
	c.buffer.write(fresh)
	c.rcv = end
	c.owed += len(fresh)
	if f.flags&flagFin != 0 {
		c.rcvFin = true
		c.rcv++
	}
	if c.owed >= c.window/4 || c.rcvFin {
		c.answer = true
		c.kick()
	} else if c.ackBy.IsZero() {
		c.ackBy = now.Add(ackDelay)
		c.kick()
	}
	c.readable.Broadcast()
	return nil
}

func overReason(code byte) error {
	switch code {
	case overClosed:
		return ErrPeerClosed
	case overReplaced:
		return ErrReplaced
	case overBusy:
		return ErrBusy
	default:
		return fmt.Errorf("%w, says the other end of this one", ErrProtocol)
	}
}

// Read returns what was received, then why there is no more.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.buffer.size > 0:
			n := c.buffer.read(p)
			if c.offer() >= c.promised+uint64(c.window/4) {
				c.answer = true
				c.kick()
			}
			return n, nil
		case c.rcvFin:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		case c.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		}
		c.readable.Wait()
	}
}

// offer is up to where bytes are taken now.
func (c *conn) offer() uint64 {
	at := c.rcv
	if c.rcvFin {
		at--
	}
	return at - uint64(c.buffer.size) + uint64(c.window)
}

// Write returns when there is room for all of p within the window: the rest is done by the sender.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := 0
	for {
		switch {
		case c.closed:
			return done, net.ErrClosed
		case c.err != nil:
			return done, c.err
		case done == len(p):
			return done, nil
		case c.writeBy.passed():
			return done, os.ErrDeadlineExceeded
		}
		if room := c.window - c.unsent.size; room > 0 {
			n := min(room, len(p)-done)
			c.unsent.write(p[done : done+n])
			done += n
			c.kick()
			continue
		}
		c.writable.Wait()
	}
}

// Close returns at once. What was written is sent on for a short time, and done is closed after that.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.fin, c.finAt = true, true, c.una+uint64(c.unsent.size)
	c.closeBy = time.Now().Add(min(linger, c.dead))
	if c.err == nil {
		c.dog.Reset(min(linger, c.dead))
	}
	c.buffer.drop(c.buffer.size)
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.kick()
	return nil
}

type address string

func (address) Network() string  { return "tunnel" }
func (a address) String() string { return string(a) }

func (c *conn) LocalAddr() net.Addr  { return address(c.local) }
func (c *conn) RemoteAddr() net.Addr { return address(c.subject) }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy.set(t, &c.readable)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy.set(t, &c.writable)
	return nil
}

// deadline wakes who waits on a condition.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) set(t time.Time, cond *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			cond.L.Lock()
			defer cond.L.Unlock()
			cond.Broadcast()
		})
	}
	cond.Broadcast()
}
