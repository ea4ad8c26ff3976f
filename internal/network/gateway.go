package network

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"ravi/internal/network/cable"
	"ravi/internal/network/dial"
	"ravi/internal/network/inject"
	"ravi/internal/network/intercept"
	"ravi/internal/network/names"
	"ravi/internal/network/policy"
)

// Gateway decides on what one sandbox sends.
type Gateway struct {
	names  *names.Table
	proxy  *intercept.Proxy
	dialer *dial.Client
	ca     *intercept.CA
	events *feed
	// secrets are put into requests; their owner sends them (Order).
	secrets inject.Set
	// services are those of the owner, who is called at the door.
	services []string
	door     *door
	// own are the connections of its owner's, one each.
	own chan struct{}

	mu     sync.Mutex
	policy policy.Effective
	// trusted is whom servers may have their certificates from; system without
	// what is set for some hosts.
	system   *x509.CertPool
	trusted  authorities
	flows    map[*flow]struct{}
	delegate Delegation
}

// flow is a connection that is open.
type flow struct {
	name string
	addr netip.Addr
	port uint16
	udp  bool
	cut  context.CancelFunc
}

var _ cable.Handler = (*Gateway)(nil)

// NewGateway makes a gateway. dialer opens its connections, and roots are what
// servers' certificates must lead to, besides Config.ExtraCAs; nil: the system's.
func NewGateway(c Config, dialer *dial.Client, roots *x509.CertPool) (*Gateway, error) {
	ca, err := intercept.NewCA(time.Now)
	if err != nil {
		return nil, fmt.Errorf("making the sandbox's certificate authority: %w", err)
	}
	if roots == nil {
		if roots, err = x509.SystemCertPool(); err != nil {
			return nil, fmt.Errorf("the host's certificate authorities: %w", err)
		}
	}
	g := &Gateway{
		names: names.New([]byte(c.Seed)), dialer: dialer, ca: ca, events: newFeed(), services: c.Services, door: newDoor(), own: make(chan struct{}, maxOwn),
		policy: c.Effective(), flows: map[*flow]struct{}{}, system: roots, trusted: newAuthorities(roots, c.ExtraCAs),
		delegate: c.Delegate,
	}
	g.proxy = &intercept.Proxy{
		CA: ca, Decider: decider{g}, Roots: g.roots, Secrets: &g.secrets, Event: g.told,
		Dial: func(ctx context.Context, name string, port uint16) (net.Conn, error) {
			if addr, err := netip.ParseAddr(name); err == nil {
				return dialer.Dial(ctx, "", addr, port)
			}
			return dialer.Dial(ctx, name, netip.Addr{}, port)
		},
	}
	return g, nil
}

// SetPolicy replaces the policy. Connections that it does not allow are cut.
func (g *Gateway) SetPolicy(c Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy, g.trusted, g.delegate = c.Effective(), newAuthorities(g.system, c.ExtraCAs), c.Delegate
	for f := range g.flows {
		if !f.decide(g.policy).Allowed {
			f.cut()
		}
	}
}

// decide asks a policy about the flow.
func (f *flow) decide(p policy.Effective) policy.Decision {
	if f.udp {
		return p.Datagram(f.name, f.addr, f.port)
	}
	return p.Connect(f.name, f.addr, f.port)
}

// SetSecrets replaces the secrets. Connections to where one may go from now on, and
// could not before, are cut: nobody looks into them.
func (g *Gateway) SetSecrets(list []inject.Secret) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var unbound []*flow
	for f := range g.flows {
		if !g.secrets.Bound(f.name, f.port) {
			unbound = append(unbound, f)
		}
	}
	err := g.secrets.Replace(list)
	for _, f := range unbound {
		if g.secrets.Bound(f.name, f.port) {
			f.cut()
		}
	}
	return err
}

func (g *Gateway) now() policy.Effective {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

func (g *Gateway) roots(host string) *x509.CertPool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trusted.of(host)
}

// Resolve answers a name that the policy allows.
func (g *Gateway) Resolve(name string) (netip.Addr, bool) {
	addr, why := g.resolve(name)
	return addr, why == ""
}

// resolve also says why a name is not answered.
func (g *Gateway) resolve(name string) (netip.Addr, string) {
	d := g.now().Resolve(name)
	if service, reserved := g.service(name); reserved {
		d = policy.Decision{Allowed: service != "", Rule: "a service of Ravi's"}
		if !d.Allowed {
			d = policy.Decision{Why: "there is no service of this name"}
		}
	}
	secret, astray := g.secrets.Named(name)
	if astray {
		d = policy.Decision{Why: "the placeholder of the secret " + secret + " is part of the name"}
	}
	e := Event{Time: time.Now(), Kind: KindName, Name: name, Allowed: d.Allowed, Rule: d.Rule, Why: d.Why, Alarm: astray}
	if d.Allowed {
		addr, err := g.names.Addr(name)
		if err == nil {
			g.events.add(e)
			return addr, ""
		}
		e.Allowed, e.Why = false, err.Error()
	}
	g.events.add(e)
	return netip.Addr{}, cmp.Or(e.Why, "not allowed")
}

// Connect decides on a connection when it is opened.
func (g *Gateway) Connect(to netip.AddrPort) func(context.Context, net.Conn) {
	serve, _ := g.connect(to)
	return serve
}

// connect also says why there is no connection.
func (g *Gateway) connect(to netip.AddrPort) (serve func(context.Context, net.Conn), why string) {
	f := &flow{addr: to.Addr(), port: to.Port()}
	name, known := g.names.Name(to.Addr())
	switch {
	case known:
		f.name, f.addr = name, netip.Addr{}
		if service, reserved := g.service(name); reserved {
			if service == "" {
				return nil, g.refused(f, policy.Decision{Why: "there is no service of this name"})
			}
			return func(ctx context.Context, guest net.Conn) { g.visit(ctx, guest, service, f.port) }, ""
		}
	case names.Range.Contains(to.Addr()):
		return nil, g.refused(f, policy.Decision{Why: "the address stands for no name: connect by name"})
	}
	if d := f.decide(g.now()); !d.Allowed {
		return nil, g.refused(f, d)
	}
	if g.delegated(f) {
		return g.open(f, func(ctx context.Context, guest net.Conn) { g.handOver(ctx, guest, f) }), ""
	}
	return g.open(f, func(ctx context.Context, guest net.Conn) { g.proxy.Serve(ctx, guest, f.target(), f.port) }), ""
}

// open has a flow be cut when the policy does not allow it any more.
func (g *Gateway) open(f *flow, serve func(context.Context, net.Conn)) func(context.Context, net.Conn) {
	return func(ctx context.Context, guest net.Conn) {
		ctx, f.cut = context.WithCancel(ctx)
		defer f.cut()
		g.mu.Lock()
		g.flows[f] = struct{}{}
		// The policy may have been replaced since it was asked.
		if !f.decide(g.policy).Allowed {
			f.cut()
		}
		g.mu.Unlock()
		serve(ctx, guest)
		g.mu.Lock()
		delete(g.flows, f)
		g.mu.Unlock()
	}
}

func (f *flow) target() string {
	if f.name == "" {
		return f.addr.String()
	}
	return f.name
}

// refused tells of a connection that there is not, and returns why.
func (g *Gateway) refused(f *flow, d policy.Decision) string {
	proto := "tcp"
	if f.udp {
		proto = "udp"
	}
	g.events.add(Event{Time: time.Now(), Kind: KindFlow, Name: f.name, Addr: f.addr, Port: f.port, Proto: proto, Rule: d.Rule, Why: d.Why})
	return cmp.Or(d.Why, "not allowed")
}

// told passes on what the proxy tells.
func (g *Gateway) told(e intercept.Event) {
	out := Event{
		Time: e.Time, Kind: KindFlow, Name: e.Name, Port: e.Port, Proto: e.Proto, TLS: e.TLS,
		Method: e.Method, Path: e.Path, Status: e.Status, Allowed: e.Allowed, Rule: e.Rule, Why: e.Why, Hint: e.Hint,
		Secrets: e.Secrets, Alarm: e.Alarm, BytesIn: e.BytesIn, BytesOut: e.BytesOut,
	}
	if addr, err := netip.ParseAddr(e.Name); err == nil {
		out.Name, out.Addr = "", addr
	}
	g.events.add(out)
}

// decider asks the policy for the proxy.
type decider struct{ g *Gateway }

func (d decider) Connect(name string, port uint16) intercept.Verdict {
	addr, err := netip.ParseAddr(name)
	if err == nil {
		name = ""
	}
	v := verdict(d.g.now().Connect(name, addr, port))
	// To put a secret in, the request must be seen.
	v.Passthrough = v.Passthrough && !d.g.secrets.Bound(name, port)
	return v
}

func (d decider) Request(name string, port uint16, tls bool, method, path string) intercept.Verdict {
	return verdict(d.g.now().Request(name, port, tls, method, path))
}

func verdict(d policy.Decision) intercept.Verdict {
	return intercept.Verdict{Allowed: d.Allowed, Rule: d.Rule, Why: d.Why, Passthrough: d.TLS == policy.Passthrough, Opaque: d.Opaque, Anything: d.Anything, Inject: d.Inject}
}
