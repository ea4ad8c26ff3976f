package tunnel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// natsServer is a server at a port that it has again when it is started again.
type natsServer struct {
	t    testing.TB
	opts server.Options
	s    *server.Server
}

func startNATS(t testing.TB, change ...func(*server.Options)) *natsServer {
	t.Helper()
	// At an address of this process, where nobody else takes the port while the server is started again.
	host := fmt.Sprintf("127.%d.%d.1", 1+os.Getpid()>>8&0x7f, os.Getpid()&0xff)
	n := &natsServer{t: t, opts: server.Options{Host: host, Port: -1, NoLog: true, NoSigs: true, DisableShortFirstPing: true}}
	for _, c := range change {
		c(&n.opts)
	}
	n.start()
	n.opts.Port = n.s.Addr().(*net.TCPAddr).Port
	t.Cleanup(n.stop)
	return n
}

func (n *natsServer) start() {
	n.t.Helper()
	opts := n.opts
	s, err := server.NewServer(&opts)
	if err != nil {
		n.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(2 * time.Minute) {
		n.t.Fatal("the server does not start")
	}
	n.s = s
}

func (n *natsServer) stop() {
	n.s.Shutdown()
	n.s.WaitForShutdown()
}

func (n *natsServer) addr() string { return n.s.Addr().String() }

func connect(t testing.TB, addr string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.PingInterval(200*time.Millisecond), nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
		if !nc.IsClosed() {
			nc.Close()
			<-closed
		}
	})
	return nc
}

func natsPair(t testing.TB, n *natsServer, o options) (near, far *Session) {
	t.Helper()
	return pair(t, natsBus{connect(t, n.addr())}, natsBus{connect(t, n.addr())}, o)
}

// cable is a wire to the server that can be cut.
type cable struct {
	t        testing.TB
	to       string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	state chan struct{} // closed when the state changes
	cut   bool          // connections end, and no new ones begin
	hang  bool          // nothing passes, and nobody is told
	conns map[net.Conn]struct{}
}

func newCable(t testing.TB, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{t: t, to: to, listener: l, state: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	c.wg.Go(c.serve)
	t.Cleanup(func() {
		_ = l.Close()
		c.set(true, false)
		c.wg.Wait()
	})
	return c
}

func (c *cable) addr() string { return c.listener.Addr().String() }

func (c *cable) serve() {
	for {
		in, err := c.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		c.mu.Lock()
		if c.cut {
			_, _ = in.Close(), out.Close()
			c.mu.Unlock()
			continue
		}
		c.conns[in], c.conns[out] = struct{}{}, struct{}{}
		c.mu.Unlock()
		c.wg.Go(func() { c.copy(in, out) })
		c.wg.Go(func() { c.copy(out, in) })
	}
}

func (c *cable) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		c.mu.Lock()
		for c.hang && !c.cut {
			wait := c.state
			c.mu.Unlock()
			<-wait
			c.mu.Lock()
		}
		c.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *cable) set(cut, hang bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut, c.hang = cut, hang
	close(c.state)
	c.state = make(chan struct{})
	if cut {
		for conn := range c.conns {
			_ = conn.Close()
		}
		clear(c.conns)
	}
}

// brittle is a dialer whose connections fail to write when told so.
type brittle struct{ broken atomic.Bool }

type brittleConn struct {
	net.Conn
	b *brittle
}

func (b *brittle) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return brittleConn{c, b}, err
}

func (c brittleConn) Write(p []byte) (int, error) {
	if c.b.broken.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

// A socket that breaks under a write is the bus being away, and no end of a session.
func TestBrokenSocketIsALoss(t *testing.T) {
	n := startNATS(t)
	d := &brittle{}
	nc, err := nats.Connect("nats://"+n.addr(), nats.SetCustomDialer(d), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond), nats.Timeout(time.Minute),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	d.broken.Store(true)
	for range 100 {
		if err := (natsBus{nc}).publish("x", make([]byte, maxPacket)); err != nil && !errors.Is(err, errDown) {
			t.Fatal(err)
		}
	}
}

func TestManyBytesOverNATS(t *testing.T) {
	n := startNATS(t)
	near, far := natsPair(t, n, options{})
	c, a := open(t, near, far)
	carry(t, c, a, 100<<20, nil)
}

// carry sends n bytes from one to the other, and does something in the middle of it.
func carry(t *testing.T, from, to net.Conn, n int, middle func()) {
	t.Helper()
	data := noise(1<<20, 3)
	want := sha256.New()
	errs := make(chan error, 1)
	go func() {
		for range n / len(data) {
			if _, err := from.Write(data); err != nil {
				errs <- err
				return
			}
		}
		errs <- from.Close()
	}()
	for range n / len(data) {
		want.Write(data)
	}
	got := sha256.New()
	if _, err := io.CopyN(got, to, int64(n/2)); err != nil {
		t.Fatal(err)
	}
	if middle != nil {
		middle()
	}
	if _, err := io.Copy(got, to); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if [sha256.Size]byte(got.Sum(nil)) != [sha256.Size]byte(want.Sum(nil)) {
		t.Fatal("other bytes came than were sent")
	}
}

func TestManyStreamsOverNATS(t *testing.T) {
	n := startNATS(t)
	near, far := natsPair(t, n, options{})
	manyStreams(t, near, far, 200)
}

// The server is started anew in the middle, and everybody comes back to it.
func TestServerRestartIsNotNoticed(t *testing.T) {
	n := startNATS(t)
	near, far := natsPair(t, n, options{})
	c, a := open(t, near, far)
	carry(t, c, a, 20<<20, func() {
		n.stop()
		n.start()
	})
}

// Each end's cable is cut in the middle, in both ways that cables are, and for less than Dead.
func TestShortCutIsNotNoticed(t *testing.T) {
	n := startNATS(t)
	cables := []*cable{newCable(t, n.addr()), newCable(t, n.addr())}
	near, far := pair(t, natsBus{connect(t, cables[0].addr())}, natsBus{connect(t, cables[1].addr())}, options{})
	for _, w := range cables {
		for _, cut := range []bool{true, false} {
			c, a := open(t, near, far)
			carry(t, c, a, 8<<20, func() {
				w.set(cut, !cut)
				time.AfterFunc(300*time.Millisecond, func() { w.set(false, false) })
			})
			c, a = open(t, far, near)
			carry(t, c, a, 8<<20, func() {
				w.set(cut, !cut)
				time.AfterFunc(300*time.Millisecond, func() { w.set(false, false) })
			})
		}
	}
}

// soonDead has a session that is cut off wait for a moment only. Before, on a machine that does much else, it might take
// that for a cut.
func soonDead(s *Session) {
	s.conn.mu.Lock()
	s.conn.dead = 700 * time.Millisecond
	s.conn.mu.Unlock()
	s.conn.kick()
}

// A cut for longer than Dead ends both ends, each by its own clock.
func TestLongCutEndsBothEnds(t *testing.T) {
	for _, cut := range []bool{true, false} {
		n := startNATS(t)
		w := newCable(t, n.addr())
		near, far := pair(t, natsBus{connect(t, w.addr())}, natsBus{connect(t, n.addr())}, options{})
		c, a := open(t, near, far)
		w.set(cut, !cut)
		soonDead(near)
		soonDead(far)
		for _, s := range []*Session{near, far} {
			<-s.Done()
			if err := s.Err(); !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
		}
		for _, s := range []net.Conn{c, a} {
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
		}
		w.set(false, false)
	}
}

// A process that is killed says nothing.
func TestKilledEndIsFoundSilent(t *testing.T) {
	n := startNATS(t)
	nc := connect(t, n.addr())
	near, far := pair(t, natsBus{nc}, natsBus{connect(t, n.addr())}, options{})
	_, a := open(t, near, far)
	nc.Close()
	soonDead(far)
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, ErrSilent) {
		t.Fatal(err)
	}
	<-near.Done()
	if err := near.Err(); !errors.Is(err, ErrBusDown) {
		t.Fatal(err)
	}
}

func TestSlowReaderStopsTheWriter(t *testing.T) {
	n := startNATS(t)
	near, far := natsPair(t, n, options{})
	c, a := open(t, near, far)
	// What a stream holds for its reader is written in any time, and nothing behind it.
	if _, err := c.Write(make([]byte, streamWindow)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	wrote, err := c.Write(make([]byte, 32<<20))
	if !isTimeout(err) {
		t.Fatalf("%d bytes that nobody reads were taken: %v", wrote, err)
	}
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, streamWindow)
	if _, err := io.ReadFull(a, got); err != nil {
		t.Fatal(err)
	}
}

// A small bus takes small packets, and its server drops nobody for it.
func TestSmallPayloads(t *testing.T) {
	n := startNATS(t, func(o *server.Options) { o.MaxPayload = 4 << 10 })
	near, far := natsPair(t, n, options{})
	c, a := open(t, near, far)
	carry(t, c, a, 4<<20, nil)
}

func TestDialSaysWhatIsWrong(t *testing.T) {
	n := startNATS(t)
	nc := connect(t, n.addr())
	dp, lp := parties(t)
	_, other := parties(t)
	down, up := testName.Subjects()
	config := Config{Conn: nc, Send: down, Receive: up, Self: dp.self, Peer: dp.peer}
	try := func(c Config, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s, err := Dial(ctx, c)
		if err == nil {
			_ = s.Close()
		}
		return err
	}
	if err := try(config, 300*time.Millisecond); !errors.Is(err, ErrUnanswered) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	l, err := Listen(nc, Wildcard(testName.Runner), lp.self, lp.peer, func(ctx context.Context, _ Name, _ *Session) { <-ctx.Done() }, WithSessions(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wrong := config
	wrong.Self = other.self
	if err := try(wrong, 300*time.Millisecond); !errors.Is(err, ErrUnanswered) {
		t.Fatal(err)
	}
	for name, c := range map[string]Config{
		"no connection": {Send: down, Receive: up, Self: dp.self, Peer: dp.peer},
		"no subject":    {Conn: nc, Send: "tunnel.x", Receive: up, Self: dp.self, Peer: dp.peer},
		"other subject": {Conn: nc, Send: down, Receive: strings.Replace(up, ".1.", ".2.", 1), Self: dp.self, Peer: dp.peer},
		"no key":        {Conn: nc, Send: down, Receive: up, Peer: dp.peer},
		"no peer":       {Conn: nc, Send: down, Receive: up, Self: dp.self},
		"small window":  {Conn: nc, Send: down, Receive: up, Self: dp.self, Peer: dp.peer, Window: 1},
	} {
		if err := try(c, time.Minute); err == nil || errors.Is(err, ErrUnanswered) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := Dial(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	second := config
	second.Send, second.Receive = Name{testName.Runner, "02RUN", 1}.Subjects()
	if err := try(second, 2*time.Minute); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
}
