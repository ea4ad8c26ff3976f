package network

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"ravi/internal/network/dial"
	"ravi/internal/network/policy"
)

// gateway is one whose dialer refuses everything.
func gateway(t *testing.T, rules ...string) *Gateway {
	t.Helper()
	return gatewayOf(t, config(t, rules...), &dial.Server{
		Allow: func(string, netip.Addr, uint16) error { return policy.ErrDenied },
		Check: func(string, netip.Addr, uint16) error { return policy.ErrDenied },
	})
}

// gatewayOf is one with this dialer.
func gatewayOf(t *testing.T, c Config, s *dial.Server) *Gateway {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "dialer")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	go func() { _ = s.Serve(ends[0]) }()
	client := dial.NewClient(ends[1])
	t.Cleanup(func() { client.Close(); ends[0].Close() })
	g, err := NewGateway(c, client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func config(t *testing.T, rules ...string) Config {
	t.Helper()
	var parsed []policy.Rule
	for _, text := range rules {
		r, err := policy.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, r)
	}
	p, err := policy.FromRules(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return Config{Policy: p, Seed: "sbx"}
}

// A guest that asks for names without end fills neither the memory nor the table.
func TestHundredThousandNames(t *testing.T) {
	g := gateway(t, "*.example.test", "known.test")
	known, ok := g.Resolve("known.test")
	if !ok {
		t.Fatal("a name of a rule is not answered")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	answered := 0
	for i := range 100_000 {
		if _, ok := g.Resolve(fmt.Sprintf("n%d.example.test", i)); ok {
			answered++
		}
		if _, ok := g.Resolve(fmt.Sprintf("n%d.denied.test", i)); ok {
			t.Fatal("a name of no rule is answered")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if answered == 0 || answered > 10_000 {
		t.Errorf("%d names were given an address", answered)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the names hold %d bytes", grown)
	}
	if again, ok := g.Resolve("known.test"); !ok || again != known {
		t.Errorf("a name that is known: %v %v", again, ok)
	}
	_, lost, _ := g.events.take()
	if want := 1 + 200_000 + 1 - keep; lost != want {
		t.Errorf("%d events were dropped, and %d counted", want, lost)
	}
}

func TestAddressesThatStandForNothing(t *testing.T) {
	g := gateway(t, "allowed.test:443", "allowed.test:8001", "93.184.216.34:443")
	allowed, _ := g.Resolve("allowed.test")
	for to, want := range map[netip.AddrPort]bool{
		netip.AddrPortFrom(allowed, 443):               true,
		netip.AddrPortFrom(allowed, 8001):              true,
		netip.AddrPortFrom(allowed, 22):                false,
		netip.AddrPortFrom(allowed.Next(), 443):        false,
		netip.MustParseAddrPort("93.184.216.34:443"):   true,
		netip.MustParseAddrPort("93.184.216.34:80"):    false,
		netip.MustParseAddrPort("169.254.169.254:80"):  false,
		netip.MustParseAddrPort("192.168.127.1:443"):   false,
		netip.MustParseAddrPort("198.18.0.0:443"):      false,
		netip.MustParseAddrPort("255.255.255.255:443"): false,
	} {
		if serve := g.Connect(to); (serve != nil) != want {
			t.Errorf("%v: served %t, want %t", to, serve != nil, want)
		}
	}
}

// What is decided is told, in order, to the owner that is there.
func TestEventsAreTold(t *testing.T) {
	g := gateway(t, "allowed.test")
	path := filepath.Join(t.TempDir(), "net.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	g.Resolve("before.test")
	c, err := (&net.Dialer{}).DialContext(context.Background(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	read := func() (m Message) {
		line, err := in.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := read(); m.CA == "" || m.Event != nil {
		t.Errorf("the greeting is %+v", m)
	}
	g.Resolve("allowed.test")
	for _, want := range []struct {
		name    string
		allowed bool
	}{{"before.test", false}, {"allowed.test", true}} {
		m := read()
		if m.Event == nil || m.Event.Name != want.name || m.Event.Allowed != want.allowed || m.Event.Kind != KindName || m.Event.Why == "" {
			t.Errorf("told %+v, want %+v", m.Event, want)
		}
	}
	c.Close()
	l.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
