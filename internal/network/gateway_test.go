package network

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"ravi/internal/network/dial"
	"ravi/internal/network/inject"
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
		var r policy.Rule
		var err error
		if strings.HasPrefix(text, "{") {
			err = json.Unmarshal([]byte(text), &r)
		} else {
			r, err = policy.ParseRule(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, r)
	}
	if len(parsed) == 0 {
		return Config{Seed: "test"}
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

// called serves a gateway on a socket, and gives how to call it.
func called(t *testing.T, g *Gateway) func(Hello) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return func(h Hello) *net.UnixConn {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
		if err == nil {
			err = json.NewEncoder(c).Encode(h)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// What is decided is told, in order, to the owner that is there.
func TestEventsAreTold(t *testing.T) {
	g := gateway(t, "allowed.test")
	g.Resolve("before.test")
	c := called(t, g)(Hello{})
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
}

// An owner's order is followed and answered though the guest makes events all the time.
func TestOrdersAreFollowed(t *testing.T) {
	g := gateway(t, "allowed.test")
	c := called(t, g)(Hello{})
	flood, stop := context.WithCancel(context.Background())
	var flooding sync.WaitGroup
	defer flooding.Wait()
	defer stop()
	flooding.Go(func() {
		for flood.Err() == nil {
			g.Resolve("refused.test")
		}
	})
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	answer := func(o Order) string {
		if err := out.Encode(o); err != nil {
			t.Fatal(err)
		}
		for {
			var m Message
			if err := in.Decode(&m); err != nil {
				t.Fatal(err)
			}
			if m.Done {
				return m.Error
			}
		}
	}
	s := inject.Secret{Name: "T", Placeholder: inject.NewPlaceholder("T"), Value: "12345678", Hosts: []string{"allowed.test"}, Headers: []string{inject.DefaultHeader}}
	if err := answer(Order{Secrets: &[]inject.Secret{s}}); err != "" || !g.secrets.Bound("allowed.test", 443) {
		t.Errorf("a good order: %q", err)
	}
	s.Hosts = nil
	if err := answer(Order{Secrets: &[]inject.Secret{s}}); err == "" || !g.secrets.Bound("allowed.test", 443) {
		t.Errorf("a bad order: %q", err)
	}
	if err := answer(Order{}); err != "" || !g.secrets.Bound("allowed.test", 443) {
		t.Errorf("an order that is about nothing: %q", err)
	}
	if _, ok := g.Resolve(s.Placeholder + ".allowed.test"); ok {
		t.Error("a name with a placeholder is answered")
	}
}

// A gateway that is told the names of an earlier one, in their order, knows their addresses, also where two names wanted
// the same one.
func TestNamesOfAnEarlierLife(t *testing.T) {
	first := gateway(t, "*.allowed.test")
	for i := range 500 {
		first.Resolve(fmt.Sprintf("n%d.allowed.test", i))
	}
	first.Resolve("refused.test")
	told := first.follow(Order{ListNames: true})
	if !told.Done || len(told.Names) != 500 {
		t.Fatalf("%d names, %+v", len(told.Names), told.Error)
	}
	second := gateway(t, "*.allowed.test")
	if m := second.follow(Order{Names: told.Names}); m.Error != "" {
		t.Fatal(m.Error)
	}
	for _, name := range told.Names {
		addr, _ := first.names.Addr(name)
		if got, ok := second.names.Name(addr); !ok || got != name {
			t.Fatalf("%s stands for %q", addr, got)
		}
	}
}

// A secret's host is looked into whatever the policy says, and no other.
func TestBoundHostIsIntercepted(t *testing.T) {
	g := gateway(t, `{"host":"bound.test","tls":"passthrough"}`, `{"host":"free.test","tls":"passthrough"}`)
	if err := g.secrets.Replace([]inject.Secret{{Name: "T", Placeholder: inject.NewPlaceholder("T"), Value: "12345678", Hosts: []string{"bound.test"}, Headers: []string{inject.DefaultHeader}}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"bound.test": false, "free.test": true} {
		if v := (decider{g}).Connect(name, 443); !v.Allowed || v.Passthrough != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// A connection that was not looked into ends when a secret is bound to its host.
func TestNewlyBoundIsCut(t *testing.T) {
	g := gateway(t, `{"host":"bound.test","tls":"passthrough"}`, "free.test", "was.test")
	secret := inject.Secret{Name: "T", Placeholder: inject.NewPlaceholder("T"), Value: "12345678", Hosts: []string{"was.test"}, Headers: []string{inject.DefaultHeader}}
	if err := g.SetSecrets([]inject.Secret{secret}); err != nil {
		t.Fatal(err)
	}
	over := map[string]chan struct{}{}
	for _, name := range []string{"bound.test", "free.test", "was.test"} {
		addr, _ := g.Resolve(name)
		serve := g.Connect(netip.AddrPortFrom(addr, 443))
		guest, ours := net.Pipe()
		done := make(chan struct{})
		over[name] = done
		go func() { defer close(done); serve(context.Background(), ours) }()
		t.Cleanup(func() { guest.Close(); <-done })
	}
	for open := 0; open < len(over); runtime.Gosched() {
		g.mu.Lock()
		open = len(g.flows)
		g.mu.Unlock()
	}
	secret.Hosts = append(secret.Hosts, "bound.test")
	if err := g.SetSecrets([]inject.Secret{secret}); err != nil {
		t.Fatal(err)
	}
	<-over["bound.test"]
	for _, name := range []string{"free.test", "was.test"} {
		if isOver(over[name]) {
			t.Errorf("the connection to %s was cut", name)
		}
	}
	// It ended by itself for no other reason: the guest said nothing yet.
	events, _, _ := g.events.take()
	for _, e := range events {
		if e.Kind == KindFlow && strings.Contains(e.Why, "nothing came") {
			t.Errorf("it was silence: %+v", e)
		}
	}
}

func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A service is reached by its name whatever the policy is, and nothing else beneath ravi.internal is.
func TestServices(t *testing.T) {
	g := gateway(t)
	g.services = []string{"echo"}
	call := called(t, g)
	for _, name := range []string{"other.ravi.internal", "ravi.internal", "a.echo.ravi.internal", ".ravi.internal"} {
		if _, ok := g.Resolve(name); ok {
			t.Errorf("%s is answered", name)
		}
	}
	addr, ok := g.Resolve("echo.ravi.internal")
	if !ok {
		t.Fatal("the service has no address")
	}
	visit := func(port uint16) net.Conn {
		serve := g.Connect(netip.AddrPortFrom(addr, port))
		if serve == nil {
			t.Fatalf("port %d is refused", port)
		}
		guest, ours := net.Pipe()
		done := make(chan struct{})
		go func() { defer close(done); serve(context.Background(), ours) }()
		t.Cleanup(func() { guest.Close(); <-done })
		return guest
	}
	waiting := visit(80) // before there is anybody to serve it
	owner := call(Hello{Services: true})
	serveOne := func(port uint16) {
		t.Helper()
		v, c, err := ReadVisit(owner)
		if err != nil || v != (Visit{Service: "echo", Port: port}) {
			t.Fatalf("%+v %v", v, err)
		}
		go func() { defer c.Close(); io.Copy(c, c) }()
	}
	exchange := func(c net.Conn) {
		t.Helper()
		b := make([]byte, 5)
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("%q %v", b, err)
		}
	}
	serveOne(80)
	exchange(waiting)

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(g.ca.PEM())
	secure := tls.Client(visit(443), &tls.Config{ServerName: "echo.ravi.internal", RootCAs: roots})
	if err := secure.Handshake(); err != nil {
		t.Fatal(err)
	}
	serveOne(443)
	exchange(secure)

	// Another owner takes over; the first one hears no more.
	second := call(Hello{Services: true})
	if _, _, err := ReadVisit(owner); err == nil {
		t.Error("the first owner is still called")
	}
	owner = second
	third := visit(4222)
	serveOne(4222)
	exchange(third)
}
