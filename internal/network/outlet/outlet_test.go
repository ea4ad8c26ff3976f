package outlet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"ravi/internal/leaktest"
	"ravi/internal/network"
	"ravi/internal/network/dial"
	"ravi/internal/network/inject"
	"ravi/internal/network/policy"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// target counts who connects to it.
type target struct {
	net.Listener
	port uint16
	came chan struct{}
}

func newTarget(t *testing.T) *target {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &target{Listener: l, port: uint16(l.Addr().(*net.TCPAddr).Port), came: make(chan struct{}, 100)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.came <- struct{}{}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-over })
	return s
}

type heard struct {
	mu  sync.Mutex
	all []network.Event
}

func (h *heard) hear(e network.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, e)
}

// config allows names, and an address of this machine, at a port.
func config(t *testing.T, mode network.Delegation, port uint16, names ...string) network.Config {
	t.Helper()
	var rules []policy.Rule
	for _, n := range append(names, "127.0.0.1") {
		r, err := policy.ParseRule(fmt.Sprintf("%s:%d", n, port))
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	p, err := policy.FromRules(rules)
	if err != nil {
		t.Fatal(err)
	}
	return network.Config{Policy: p, Seed: "x", Delegate: mode}
}

func loopback(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// ask serves a connection to host and port, on which hello is said, and gives what comes back.
func ask(t *testing.T, o *Outlet, host string, port uint16) string {
	t.Helper()
	guest, ours := net.Pipe()
	defer guest.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.Serve(t.Context(), ours, host, port)
	}()
	go func() { _, _ = guest.Write([]byte("SSH-2.0-hello\r\n")) }()
	b := make([]byte, 100)
	n, _ := guest.Read(b) // that it is cut says as much
	guest.Close()
	<-done
	return string(b[:n])
}

func secret(port uint16, hosts ...string) []inject.Secret {
	s := inject.Secret{Name: "TOKEN", Placeholder: inject.NewPlaceholder("TOKEN"), Value: "the-value-itself", Headers: []string{inject.DefaultHeader}}
	for _, h := range hosts {
		s.Hosts = append(s.Hosts, fmt.Sprintf("%s:%d", h, port))
	}
	return []inject.Secret{s}
}

// Whoever brings connections gets no more of this machine's network than what the policy allows and needs to be here.
func TestOnlyWhatIsDelegatedLeaves(t *testing.T) {
	s := newTarget(t)
	var events heard
	o, err := New(Options{Config: config(t, network.DelegateBound, s.port, "bound.test", "free.test"), Hear: events.hear, lookup: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.SetSecrets(secret(s.port, "bound.test", "denied.test")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, host string
		port       uint16
	}{
		{"an allowed name that no secret is bound to", "free.test", s.port},
		{"an allowed address", "127.0.0.1", s.port},
		{"a bound name that is not allowed", "denied.test", s.port},
		{"another port", "bound.test", s.port + 1},
		{"no port", "bound.test", 0},
		{"no host", "", s.port},
		{"two hosts", "bound.test,free.test", s.port},
		{"a host with a line end", "bound.test\r\nfree.test", s.port},
		{"a long name", strings.Repeat("x.", 5000) + "test", s.port},
		{"a service", "gateway.ravi.internal", 80},
		{"an address in disguise", "0x7f000001", s.port},
	} {
		if got := ask(t, o, c.host, c.port); got != "" {
			t.Errorf("%s: %q came back", c.what, got)
		}
	}
	// What is neither TLS nor HTTP is not passed to where a secret may go, but it is dialled at most.
	if got := ask(t, o, "bound.test", s.port); got != "" {
		t.Errorf("a protocol that is not looked into: %q", got)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	for len(s.came) > 1 {
		t.Error("something was dialled")
		<-s.came
	}
	for _, e := range events.all {
		if e.Allowed || e.Why == "" {
			t.Errorf("heard: %+v", e)
		}
	}
	if len(events.all) != 12 {
		t.Errorf("%d events of 12: %+v", len(events.all), events.all)
	}
}

// A policy that is replaced cuts what it does not allow, and the dialer goes by it, too.
func TestPolicyIsReplaced(t *testing.T) {
	s := newTarget(t)
	var events heard
	o, err := New(Options{Config: config(t, network.DelegateAll, s.port, "a.test"), Hear: events.hear, lookup: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if got := ask(t, o, "a.test", s.port); got != "SSH-2.0-hello\r\n" {
		t.Errorf("what is allowed: %q", got)
	}
	guest, ours := net.Pipe()
	defer guest.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.Serve(t.Context(), ours, "a.test", s.port)
	}()
	if _, err := guest.Write([]byte("SSH-2.0-x\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(guest, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	if err := o.SetPolicy(config(t, network.DelegateAll, s.port, "b.test")); err != nil {
		t.Fatal(err)
	}
	<-done // it is cut, though the guest holds on
	if got := ask(t, o, "a.test", s.port); got != "" {
		t.Errorf("what is not allowed any more: %q", got)
	}
	if got := ask(t, o, "b.test", s.port); got != "SSH-2.0-hello\r\n" {
		t.Errorf("what is allowed now: %q", got)
	}
}

// Connections leave through the operator's proxy, whose credentials are here.
func TestProxy(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 1000)
		n, _ := c.Read(b)
		asked <- string(b[:n])
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(c, c)
	}()
	defer func() { l.Close(); <-over }()
	c := config(t, network.DelegateAll, 4242, "a.test")
	c.Proxy = &dial.Proxy{URL: "http://" + l.Addr().String()}
	public := func(context.Context, string) ([]netip.Addr, error) { // which nobody dials: the proxy is ours
		return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
	}
	o, err := New(Options{Config: c, Auth: strings.NewReader("me:my-password\n"), Hear: func(network.Event) {}, lookup: public})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if got := ask(t, o, "a.test", 4242); got != "SSH-2.0-hello\r\n" {
		t.Errorf("through the proxy: %q", got)
	}
	l.Close() // if it was not asked, it is not any more
	<-over
	close(asked)
	if got := <-asked; !strings.HasPrefix(got, "CONNECT 93.184.215.14:4242 ") || !strings.Contains(got, "Proxy-Authorization: Basic ") {
		t.Errorf("the proxy was asked %q", got)
	}
	if _, err := New(Options{Config: c, Auth: strings.NewReader("no credentials"), Hear: func(network.Event) {}}); err == nil {
		t.Error("credentials that are none were taken")
	}
	if _, err := New(Options{Config: c, Auth: failing{}, Hear: func(network.Event) {}}); err == nil {
		t.Error("credentials that cannot be read were taken")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("no") }

// A nil one is that of a sandbox that needs none.
func TestNone(t *testing.T) {
	var o *Outlet
	if err := o.Close(); err != nil || o.Authority() != "" {
		t.Errorf("%v %q", err, o.Authority())
	}
}
