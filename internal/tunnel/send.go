package tunnel

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// ackDelay is how long an acknowledgement waits for bytes that go the same way.
	ackDelay = 10 * time.Millisecond
	// linger is how long a closed connection tries to bring what was written to the other end.
	linger = 2 * time.Second

	firstWait = time.Second
	leastWait = 200 * time.Millisecond
	mostWait  = 4 * time.Second
)

var packets = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// estimate is how long an answer takes, as TCP reckons it (RFC 6298).
type estimate struct{ mean, deviation time.Duration }

func (e *estimate) add(d time.Duration) {
	d = max(d, time.Microsecond) // 0: nothing is known
	if e.mean == 0 {
		e.mean, e.deviation = d, d/2
		return
	}
	e.deviation += ((d - e.mean).Abs() - e.deviation) / 4
	e.mean += (d - e.mean) / 8
}

// wait is how long to wait for an answer before something is done again.
func (c *conn) wait() time.Duration {
	d := firstWait
	if c.rtt.mean > 0 {
		d = max(leastWait, c.rtt.mean+4*c.rtt.deviation+ackDelay)
	}
	return min(d<<min(c.backoff, 8), mostWait, max(c.dead/8, ackDelay))
}

// quiet is how long an end says nothing before it asks whether the other is there.
func (c *conn) quiet() time.Duration { return max(c.dead/12, ackDelay) }

// finDue says whether the end of the bytes is still to be acknowledged.
func (c *conn) finDue() bool { return c.fin && c.una <= c.finAt }

// stuck says whether this end waits for word with nothing under way that would bring one.
func (c *conn) stuck() bool {
	if !c.known {
		return true
	}
	return c.nxt == c.una && c.unsent.size > 0 && c.credit <= c.nxt
}

// pingAt is when to ask whether the other end is there.
func (c *conn) pingAt() time.Time {
	if c.stuck() {
		return c.pinged.Add(c.wait())
	}
	last := c.alive
	if c.pinged.After(last) {
		last = c.pinged
	}
	return last.Add(c.quiet())
}

// expire ends what has lasted too long, or is done.
func (c *conn) expire(now time.Time) {
	switch {
	case now.Sub(c.alive) >= c.dead:
		err := fmt.Errorf("%w: no answer for %s", ErrSilent, c.dead)
		if c.forged > 0 {
			err = fmt.Errorf("%w; %d packets came that were not its own or came twice", err, c.forged)
		}
		c.failLocked(err, overClosed)
	case c.closed && (!c.finDue() || !now.Before(c.closeBy)):
		c.failLocked(ErrClosed, overClosed)
	}
}

// begin writes a frame without its data, which takes the next counter.
func (c *conn) begin(packet []byte, flags byte, now time.Time) ([]byte, uint64) {
	counter := c.out.next
	c.out.next++
	if c.missing {
		flags |= flagGap
	}
	if c.came {
		flags |= flagAgain
	}
	c.missing, c.came, c.answer = false, false, false
	c.owed, c.ackBy = 0, time.Time{}
	c.promised = c.offer()
	c.latestProbe = probe{counter, now, true}
	if !c.firstProbe.set {
		c.firstProbe = c.latestProbe
	}
	f := frame{flags: flags, seen: c.taken, ack: c.rcv, credit: c.promised, offset: c.nxt}
	return f.head(c.out.begin(packet, counter)), counter
}

// until is how long it is to the first of the times that are set.
func (c *conn) until(now time.Time, times ...time.Time) time.Duration {
	first := time.Hour
	for _, t := range times {
		if !t.IsZero() {
			first = min(first, max(t.Sub(now), 0))
		}
	}
	return first
}

// watchdog ends the connection in its time also when the sender is stuck in the bus.
func (c *conn) watchdog() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.err == nil {
		c.expire(now)
	}
	if c.err == nil {
		c.dog.Reset(c.until(now, c.alive.Add(c.dead), c.closeBy))
	}
}

// run sends until the connection ends.
func (c *conn) run() {
	defer close(c.done)
	defer c.dog.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	packet := packets.Get().(*[maxPacket]byte) // held only while there is something to send
	for {
		// A bus whose socket is stuck holds up whoever asks it anything, so it is not asked with the lock held.
		size := min(c.bus.limit(), maxPacket) - overhead
		frame, counter, ups, wait := c.next(packet[:0], size)
		if frame != nil {
			c.publish(c.out.seal(frame, counter), ups)
			continue
		}
		packets.Put(packet)
		if wait < 0 {
			return
		}
		timer.Reset(wait)
		select {
		case <-c.kicked:
		case <-timer.C:
		}
		packet = packets.Get().(*[maxPacket]byte)
	}
}

func (c *conn) publish(packet []byte, ups uint64) {
	err := c.bus.publish(c.subject, packet)
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, errDown) {
		c.down = ups // unless it came back meanwhile
		return
	}
	c.failLocked(err, 0)
}

// next makes the next frame in packet, with at most size bytes of data, or says how long there is none; less than zero: it is over.
func (c *conn) next(packet []byte, size int) (_ []byte, counter, ups uint64, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.err == nil {
		c.expire(now)
	}
	if c.err != nil {
		if c.told == 0 {
			return nil, 0, 0, -1
		}
		code := c.told
		c.told = 0
		packet, counter = c.begin(packet, flagOver, now)
		return append(packet, code), counter, c.ups, 0
	}
	if c.down == c.ups { // whoever watches the bus tells when it is back; what is due by the clock is due all the same
		return nil, 0, 0, c.until(now, c.alive.Add(c.dead), c.closeBy)
	}
	if !c.resend.IsZero() && !now.Before(c.resend) {
		c.back(minPacket)
		c.backoff++
	}
	end := c.una + uint64(c.unsent.size)
	have := min(end, c.credit, c.una+uint64(c.burst))
	n := 0
	if have > c.nxt {
		n = int(min(have-c.nxt, uint64(size)))
	}
	var flags byte
	fin := c.finDue() && c.nxt+uint64(n) == c.finAt
	if fin {
		flags |= flagFin
	}
	ping := c.pingAt()
	if !now.Before(ping) {
		flags |= flagPing
		c.pinged = now
		if c.stuck() {
			c.backoff++
		}
	}
	if n == 0 && !fin && flags&flagPing == 0 && !c.answer && (c.ackBy.IsZero() || now.Before(c.ackBy)) {
		return nil, 0, 0, c.until(now, c.alive.Add(c.dead), c.closeBy, c.resend, c.ackBy, ping)
	}
	if c.burst < c.window && n > 0 && c.nxt+uint64(n) == c.una+uint64(c.burst) {
		flags |= flagPing // more may go when this is there
	}
	packet, counter = c.begin(packet, flags, now)
	at := len(packet)
	packet = packet[:at+n]
	c.unsent.peek(int(c.nxt-c.una), packet[at:])
	c.nxt += uint64(n)
	if fin {
		c.nxt++
	}
	c.most = max(c.most, c.nxt)
	if !c.timed.set && (n > 0 || fin || flags&flagPing != 0) {
		c.timed = c.latestProbe
	}
	if c.nxt > c.una && c.resend.IsZero() {
		c.resend = now.Add(c.wait())
	}
	return packet, counter, c.ups, 0
}
