package runner

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"ravi/internal/backend/remote"
	"ravi/internal/tunnel"
	"ravi/sandbox"
)

var _ remote.Session = (*tunnel.Session)(nil)

func curve(t testing.TB) (pair nkeys.KeyPair, public string) {
	t.Helper()
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return pair, public
}

// overBus has a rig's sessions go through tunnels over a bus, which restart stops and starts again.
func overBus(t testing.TB, g *rig) (restart func()) {
	t.Helper()
	port := -1
	// At an address of this process, where nobody else takes the port while the server is started again.
	host := fmt.Sprintf("127.%d.%d.1", 1+os.Getpid()>>8&0x7f, os.Getpid()&0xff)
	var s *server.Server
	start := func() {
		t.Helper()
		var err error
		if s, err = server.NewServer(&server.Options{Host: host, Port: port, NoLog: true, NoSigs: true, DisableShortFirstPing: true}); err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(2 * time.Minute) {
			t.Fatal("the bus does not start")
		}
		port = s.Addr().(*net.TCPAddr).Port
	}
	stop := func() { s.Shutdown(); s.WaitForShutdown() }
	start()
	t.Cleanup(stop)
	connect := func() *nats.Conn {
		c, err := nats.Connect("nats://"+s.Addr().(*net.TCPAddr).String(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	near, nearPublic := curve(t)
	far, farPublic := curve(t)
	l, err := tunnel.Listen(connect(), tunnel.Wildcard("runner"), far, nearPublic, func(ctx context.Context, n tunnel.Name, s *tunnel.Session) {
		_ = g.Serve(ctx, s, n.RunID)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	home := connect()
	g.via = func(t testing.TB) remote.Session {
		down, up := tunnel.Name{Runner: "runner", RunID: strings.ToLower(sandbox.NewID())}.Subjects()
		s, err := tunnel.Dial(t.Context(), tunnel.Config{Conn: home, Send: down, Receive: up, Self: near, Peer: farPublic})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return func() { stop(); start() }
}

// onWrite keeps what is written, and calls f each time.
type onWrite struct {
	strings.Builder
	f func()
}

func (o *onWrite) Write(b []byte) (int, error) {
	o.f()
	return o.Builder.Write(b)
}

// All that a sandbox can do it can do over the bus.
func TestOverTunnel(t *testing.T) {
	g := newRig(t, Options{})
	restart := overBus(t, g)
	t.Run("a restart of the bus", func(t *testing.T) {
		sb := g.open(t, nil)
		var once sync.Once
		out := &onWrite{f: func() { once.Do(restart) }}
		p, err := sb.Start(t.Context(), sandbox.Cmd{Shell: "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 7", Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := p.Wait(); err != nil || st.ExitCode != 7 {
			t.Errorf("%+v %v", st, err)
		}
		var want strings.Builder
		for i := range 100 {
			fmt.Fprintln(&want, i+1)
		}
		if out.String() != want.String() {
			t.Errorf("it said %q", out.String())
		}
	})
	t.Run("plain", func(t *testing.T) {
		sb := g.open(t, nil, sandbox.WithService("shout", shout))
		if got := sh(t, sb, "echo hello"); got != "hello\n" {
			t.Errorf("got %q", got)
		}
		for range 2 {
			if got := sh(t, sb, "python3 -c '"+callShout+"'"); got != "600004 b'HELLO' b'bye\\n'\n" {
				t.Errorf("a service: %q", got)
			}
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		if s := g.Status(); s.Running != 0 {
			t.Errorf("afterwards: %+v", s)
		}
	})
	t.Run("contents", func(t *testing.T) { contentsAreSeen(t, g) })
	t.Run("network", func(t *testing.T) { needNetwork(t); networkHolds(t, g) })
	t.Run("conformance", func(t *testing.T) { conform(t, g) })
}
