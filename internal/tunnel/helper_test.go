package tunnel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// memBus is a bus in memory. hook sees each packet before it is delivered, and says what is delivered instead.
type memBus struct {
	mu       sync.Mutex
	hook     func(subject string, packet []byte) [][]byte
	away     bool
	closed   bool
	size     int
	subs     map[*memSub]struct{}
	watchers map[*func()]struct{}
	sent     []mail // everything, if keep is set
	keep     bool
}

type mail struct {
	subject string
	packet  []byte
}

type memSub struct {
	subject string
	queue   chan mail
	done    chan struct{}
	once    sync.Once
}

func newMemBus() *memBus {
	return &memBus{size: maxPacket, subs: map[*memSub]struct{}{}, watchers: map[*func()]struct{}{}}
}

func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	if len(p) != len(s) {
		return false
	}
	for i := range p {
		if p[i] != "*" && p[i] != s[i] {
			return false
		}
	}
	return true
}

func (b *memBus) publish(subject string, packet []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrBusDown
	}
	if b.away {
		return errDown
	}
	if len(packet) > b.size {
		return fmt.Errorf("a packet of %d bytes, where %d are allowed", len(packet), b.size)
	}
	own := bytes.Clone(packet)
	if b.keep {
		b.sent = append(b.sent, mail{subject, bytes.Clone(own)})
	}
	out := [][]byte{own}
	if b.hook != nil {
		out = b.hook(subject, own)
	}
	for _, p := range out {
		b.deliver(subject, p)
	}
	return nil
}

func (b *memBus) deliver(subject string, packet []byte) {
	for s := range b.subs {
		if matches(s.subject, subject) {
			select {
			case s.queue <- mail{subject, bytes.Clone(packet)}:
			default: // a slow consumer loses
			}
		}
	}
}

// inject delivers a packet that nobody sent.
func (b *memBus) inject(subject string, packet []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deliver(subject, packet)
}

func (b *memBus) subscribe(subject string, take func(string, []byte)) (func() error, error) {
	s := &memSub{subject: subject, queue: make(chan mail, 1024), done: make(chan struct{})}
	b.mu.Lock()
	b.subs[s] = struct{}{}
	b.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case m := <-s.queue:
				take(m.subject, m.packet)
			case <-s.done:
				return
			}
		}
	}()
	return func() error {
		b.mu.Lock()
		delete(b.subs, s)
		b.mu.Unlock()
		s.once.Do(func() { close(s.done) })
		<-stopped
		return nil
	}, nil
}

func (b *memBus) limit() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size
}

func (b *memBus) watch(f func()) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers[&f] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, &f)
	}
}

// set changes the bus, then tells who watches.
func (b *memBus) set(away, closed bool) {
	b.mu.Lock()
	b.away, b.closed = away, closed
	var tell []func()
	for f := range b.watchers {
		tell = append(tell, *f)
	}
	b.mu.Unlock()
	if !away {
		for _, f := range tell {
			f()
		}
	}
}

func (b *memBus) packets() []mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]mail(nil), b.sent...)
}

// parties makes the two ends' keys.
func parties(t testing.TB) (dialer, listener party) {
	t.Helper()
	var keys [2]nkeys.KeyPair
	var public [2]string
	for i := range keys {
		k, err := nkeys.CreateCurveKeys()
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = k
		if public[i], err = k.PublicKey(); err != nil {
			t.Fatal(err)
		}
	}
	return party{keys[0], public[1]}, party{keys[1], public[0]}
}

var testName = Name{Runner: "r1", RunID: "01RUN", Try: 1}

// shake does a handshake without a bus.
func shake(t testing.TB, d, l party) (dialer, listener *agreed) {
	t.Helper()
	down, _ := testName.Subjects()
	h, err := newHello(d, down)
	if err != nil {
		t.Fatal(err)
	}
	listener, answer, err := welcome(l, down, h.packet, codeOpen)
	if err != nil {
		t.Fatal(err)
	}
	if dialer, err = h.finish(answer); err != nil {
		t.Fatal(err)
	}
	return dialer, listener
}

// conns makes two connected ends on the bus, without the streams.
func conns(t testing.TB, b bus, o options) (near, far *conn, stop func()) {
	t.Helper()
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	dp, lp := parties(t)
	d, l := shake(t, dp, lp)
	down, up := testName.Subjects()
	near, far = newConn(b, down, up, d, o), newConn(b, up, down, l, o)
	var stops []func()
	for _, c := range []*conn{near, far} {
		cancel, err := b.subscribe(c.local, func(_ string, p []byte) { c.receive(p) })
		if err != nil {
			t.Fatal(err)
		}
		unwatch := b.watch(c.up)
		go c.run()
		stops = append(stops, func() {
			_ = c.Close()
			<-c.done
			unwatch()
			if err := cancel(); err != nil {
				t.Error(err)
			}
		})
	}
	return near, far, func() {
		var wg sync.WaitGroup
		for _, s := range stops {
			wg.Go(s)
		}
		wg.Wait()
	}
}

// noise is bytes that differ everywhere.
func noise(n int, seed uint64) []byte {
	out := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = r.Read(out)
	return out
}

// pair makes a session over the bus.
func pair(t testing.TB, near, far bus, o options, opts ...Option) (dialed, accepted *Session) {
	t.Helper()
	dp, lp := parties(t)
	return pairOf(t, near, far, dp, lp, o, opts...)
}

func pairOf(t testing.TB, near, far bus, dp, lp party, o options, opts ...Option) (dialed, accepted *Session) {
	t.Helper()
	got := make(chan *Session, 1)
	if o.dead > 0 {
		opts = append(opts, WithDead(o.dead))
	}
	if o.window > 0 {
		opts = append(opts, WithWindow(o.window))
	}
	l, err := listen(far, Wildcard(testName.Runner), lp, func(ctx context.Context, _ Name, s *Session) {
		got <- s
		<-ctx.Done()
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	down, up := testName.Subjects()
	s, err := dial(ctx, near, Config{Send: down, Receive: up, Self: dp.self, Peer: dp.peer, Dead: o.dead, Window: o.window})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, <-got
}

// open opens a stream and takes it at the other end.
func open(t testing.TB, from, to *Session) (near, far *Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := from.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a, err := to.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Stream), a.(*Stream)
}

// sum reads n bytes and hashes them.
func sum(r io.Reader, n int64) ([sha256.Size]byte, error) {
	h := sha256.New()
	_, err := io.CopyN(h, r, n)
	return [sha256.Size]byte(h.Sum(nil)), err
}

func send(c net.Conn, data []byte, errs chan<- error) {
	_, err := c.Write(data)
	errs <- err
}
