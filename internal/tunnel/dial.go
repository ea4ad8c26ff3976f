package tunnel

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

const (
	defaultDead   = time.Minute
	defaultWindow = 1 << 20
	leastDead     = 100 * time.Millisecond
	leastWindow   = 64 << 10
	mostWindow    = 16 << 20
)

// Name is what a session is for: a try of a run, on a runner.
type Name struct {
	Runner string
	RunID  string
	Try    int
}

// Subjects are where the packets of a session go: down to the runner, and up to the run's process.
func (n Name) Subjects() (down, up string) {
	base := fmt.Sprintf("tunnel.%s.%s.%d", n.Runner, n.RunID, n.Try)
	return base + ".down", base + ".up"
}

// Wildcard is the subject of all packets to a runner.
func Wildcard(runner string) string { return "tunnel." + runner + ".*.*.down" }

// parseName reads a subject of packets to a runner.
func parseName(down string) (Name, error) {
	parts := strings.Split(down, ".")
	if len(parts) != 5 || parts[0] != "tunnel" || parts[4] != "down" {
		return Name{}, fmt.Errorf("%.100q is no subject of a tunnel", down)
	}
	try, err := strconv.Atoi(parts[3])
	n := Name{Runner: parts[1], RunID: parts[2], Try: try}
	if again, _ := n.Subjects(); err != nil || try < 0 || again != down || len(down) > maxBox/2 || n.Runner == "" || n.RunID == "" ||
		strings.ContainsAny(down, "*> \t\r\n") {
		return Name{}, fmt.Errorf("%.100q is no subject of a tunnel", down)
	}
	return n, nil
}

// Config is one end of one session.
type Config struct {
	// Conn is a connection to the bus that comes back by itself. Its PingInterval should be a small part of Dead: it is
	// NATS that finds out that the bus is gone without a word.
	Conn *nats.Conn
	// Send and Receive are the subjects as Name.Subjects has them.
	Send, Receive string
	// Self is the curve key of this end, Peer the public one of the other.
	Self nkeys.KeyPair
	Peer string
	// Dead is how long the other end may be silent; 0: a minute. A cut of the bus is bridged if it is shorter than Dead
	// by more than a tenth.
	Dead time.Duration
	// Window is how many bytes may be under way in each direction, and how many an end holds for a slow reader; 0: 1 MiB.
	Window int
}

// options are what both ends choose for themselves.
type options struct {
	dead         time.Duration
	window       int
	sessions     int
	halfOpen     int
	halfOpenLife time.Duration
}

func (o *options) complete() error {
	if o.dead == 0 {
		o.dead = defaultDead
	}
	if o.window == 0 {
		o.window = defaultWindow
	}
	switch {
	case o.dead < leastDead:
		return fmt.Errorf("a tunnel cannot be dead after %s: use %s or more", o.dead, leastDead)
	case o.window < leastWindow || o.window > mostWindow:
		return fmt.Errorf("a tunnel cannot have a window of %d bytes: use from %d to %d", o.window, leastWindow, mostWindow)
	}
	return nil
}

// Dial begins a session with whoever listens for it, and returns when the other end has it too. It asks until ctx ends.
func Dial(ctx context.Context, c Config) (*Session, error) {
	if c.Conn == nil {
		return nil, errors.New("a tunnel needs a connection to the bus")
	}
	return dial(ctx, natsBus{c.Conn}, c)
}

func dial(ctx context.Context, b bus, c Config) (*Session, error) {
	o := options{dead: c.Dead, window: c.Window}
	name, err := parseName(c.Send)
	if err != nil {
		return nil, err
	}
	if _, up := name.Subjects(); up != c.Receive {
		return nil, fmt.Errorf("a tunnel that sends on %s receives on %s, not on %.100q", c.Send, up, c.Receive)
	}
	p := party{c.Self, c.Peer}
	if err := errors.Join(o.complete(), p.check()); err != nil {
		return nil, err
	}
	h, err := newHello(p, c.Send)
	if err != nil {
		return nil, err
	}
	d := &dialer{bus: b, hello: h, welcomes: make(chan []byte, 4), back: make(chan struct{}, 1)}
	cancel, err := b.subscribe(c.Receive, d.take)
	if err != nil {
		return nil, err
	}
	d.cancel = cancel
	d.unwatch = b.watch(d.up)
	s, err := d.begin(ctx, name, o)
	if err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return s, nil
}

// dialer is the dialing end of a session: what comes for it, in order.
type dialer struct {
	bus      bus
	hello    *hello
	welcomes chan []byte
	back     chan struct{}
	conn     atomic.Pointer[conn]
	forged   atomic.Uint64
	cancel   func() error
	unwatch  func()
	stopping sync.Once
}

func (d *dialer) take(_ string, packet []byte) {
	if len(packet) == 0 {
		return
	}
	switch packet[0] {
	case kindWelcome:
		if d.conn.Load() == nil {
			select {
			case d.welcomes <- packet:
			default: // more answers than are asked for
			}
		}
	case kindFrame:
		if c := d.conn.Load(); c != nil {
			c.receive(packet)
		}
	}
}

func (d *dialer) up() {
	if c := d.conn.Load(); c != nil {
		c.up()
		return
	}
	select {
	case d.back <- struct{}{}:
	default:
	}
}

func (d *dialer) stop() (err error) {
	d.stopping.Do(func() {
		d.unwatch()
		err = d.cancel()
	})
	return err
}

// begin does the handshake.
func (d *dialer) begin(ctx context.Context, name Name, o options) (*Session, error) {
	begun, pause := time.Now(), leastWait
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			err := fmt.Errorf("%w with runner %s: %w", ErrUnanswered, name.Runner, ctx.Err())
			if d.forged.Load() > 0 {
				err = fmt.Errorf("%w (%w)", err, ErrForged)
			}
			return nil, err
		case <-timer.C:
		case <-d.back:
		case packet := <-d.welcomes:
			a, err := d.hello.finish(packet)
			switch {
			case errors.Is(err, errPacket):
				d.forged.Add(1)
				continue
			case err != nil:
				return nil, err
			case !a.accepted:
				return nil, fmt.Errorf("runner %s: %w", name.Runner, ErrBusy)
			}
			return d.confirm(ctx, name, a, o, time.Since(begun))
		}
		if err := d.bus.publish(d.hello.name, d.hello.packet); err != nil && !errors.Is(err, errDown) {
			return nil, err
		}
		timer.Reset(pause)
		pause = min(2*pause, firstWait)
	}
}

// confirm waits until the other end has the session too. took is how long the answer to the hello took at most.
func (d *dialer) confirm(ctx context.Context, name Name, a *agreed, o options, took time.Duration) (*Session, error) {
	down, up := name.Subjects()
	c := newConn(d.bus, down, up, a, o)
	c.rtt.add(took)
	d.conn.Store(c)
	go c.run()
	select {
	case <-c.heard:
	case <-c.done:
	case <-ctx.Done():
		c.fail(fmt.Errorf("%w with runner %s: %w", ErrUnanswered, name.Runner, ctx.Err()), overClosed)
	}
	if err := c.reason(); err != nil {
		<-c.done
		return nil, err
	}
	return newSession(c, name, true, d.stop)
}
