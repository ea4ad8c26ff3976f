package runner

import (
	"context"
	"net"
	"os"
	"strings"
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

// overBus has a rig's sessions go through tunnels over a bus.
func overBus(t testing.TB, g *rig) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the bus does not start")
	}
	connect := func() *nats.Conn {
		c, err := nats.Connect("nats://"+s.Addr().(*net.TCPAddr).String(), nats.MaxReconnects(-1))
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
}

// All that a sandbox can do it can do over the bus.
func TestOverTunnel(t *testing.T) {
	g := newRig(t, Options{})
	overBus(t, g)
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
	if !testing.Short() || os.Getenv("RAVI_TEST_TUNNEL") != "" {
		t.Run("conformance", func(t *testing.T) { conform(t, g) })
	}
}
