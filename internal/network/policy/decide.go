package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Decision is the answer to a question, with its reason. The zero Decision refuses.
type Decision struct {
	Allowed  bool
	Rule     string   // the text of the rule that decided, or empty
	Why      string   // for people; nothing in it can control a terminal
	TLS      TLSMode  // what happens to TLS, when allowed
	Anything bool     // every name of the public internet is allowed as well, and none is denied
	Opaque   bool     // what is neither TLS nor HTTP may pass as well
	Inject   []string // names of the secrets for this request; only ever within TLS
}

func deny(format string, args ...any) Decision { return Decision{Why: fmt.Sprintf(format, args...)} }

// target is what somebody wants to reach: a name, or an address where there is no name.
type target struct {
	name string
	addr netip.Addr
}

func (t target) String() string {
	if t.name == "" {
		return t.addr.String()
	}
	return t.name
}

// suggestion is the word that allows the target on that port.
func (t target) suggestion(port uint16) string {
	r := Rule{host: t.name}
	if t.name == "" {
		r = Rule{prefix: netip.PrefixFrom(t.addr, t.addr.BitLen())}
	}
	if ok, _ := r.open(port); !ok && port != 0 {
		r.ports = []portRange{{port, port}}
	}
	return r.format()
}

// dialled is the target of a connection: the name if there is one, else the address.
func dialled(name string, addr netip.Addr) (target, error) {
	if name != "" {
		name, err := WireHost(name)
		if err != nil {
			return target{}, fmt.Errorf("%s is not a host name: %w", quote(name), err)
		}
		return target{name: name}, nil
	}
	if !addr.IsValid() {
		return target{}, fmt.Errorf("the connection has neither a name nor an address")
	}
	return target{addr: plainAddr(addr)}, nil
}

// requested is the target of a request, whose host is a name or an address as text. An address in any form but its
// shortest is refused, as is an IPv4 address that is dressed as IPv6.
func requested(host string) (target, error) {
	inside, brackets := strings.CutPrefix(host, "[")
	if brackets {
		inside = strings.TrimSuffix(inside, "]")
	}
	addr, err := netip.ParseAddr(inside)
	if err != nil {
		if host == "" {
			return target{}, fmt.Errorf("the request names no host")
		}
		return dialled(host, netip.Addr{})
	}
	if addr.String() != inside || addr.Is4In6() || addr.Zone() != "" || brackets != strings.HasSuffix(host, "]") || brackets && addr.Is4() {
		return target{}, fmt.Errorf("%s is an address in an unusual form", quote(host))
	}
	return target{addr: addr}, nil
}

// plainAddr is the address that is meant: IPv4 without its IPv6 dress, and without a zone.
func plainAddr(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Resolve decides whether a name may be answered.
func (p Policy) Resolve(name string) Decision {
	if name == "" {
		return deny("the question has no name")
	}
	t, err := dialled(name, netip.Addr{})
	if err != nil {
		return deny("%v", err)
	}
	if p.all {
		return p.everything(t)
	}
	for _, r := range p.rules {
		if r.reaches(t) {
			return r.decision(false)
		}
	}
	return p.nothing(t, 0, "")
}

// Connect decides on a connection when it is opened: to the name that the dialled address stands for, or to the
// address itself when name is empty. A rule that bounds methods or paths allows the connection; the requests on it
// are then asked about one by one.
func (p Policy) Connect(name string, addr netip.Addr, port uint16) Decision {
	t, err := dialled(name, addr)
	if err != nil {
		return deny("%v", err)
	}
	return p.match(t, port, false, func(Rule) string { return "" })
}

// Datagram decides on UDP to a name or an address, as Connect does on TCP. Only a rule that says so allows it, never
// the policy `true`.
func (p Policy) Datagram(name string, addr netip.Addr, port uint16) Decision {
	t, err := dialled(name, addr)
	if err != nil {
		return deny("%v", err)
	}
	if p.all {
		return deny("UDP passes only where a rule names it, as %s", strconv.Quote(t.datagrams(port)))
	}
	return p.match(t, port, true, func(Rule) string { return "" })
}

// datagrams is the word that allows UDP to the target.
func (t target) datagrams(port uint16) string {
	r := Rule{host: t.name, udp: true, ports: []portRange{{port, port}}}
	if t.name == "" {
		r.prefix = netip.PrefixFrom(t.addr, t.addr.BitLen())
	}
	return r.format()
}

// Request decides on one HTTP request. The name is a host name or an address, without port; method and path are the
// bytes as sent, the path with or without its query.
func (p Policy) Request(name string, port uint16, tls bool, method, path string) Decision {
	t, err := requested(name)
	if err != nil {
		return deny("%v", err)
	}
	if method == "CONNECT" {
		return deny("CONNECT is never allowed: connect to the host itself")
	}
	path, _, _ = strings.Cut(path, "?")
	var inject []string
	d := p.match(t, port, false, func(r Rule) string {
		why := r.misses(method, path)
		if why == "" && tls {
			inject = slices.Clone(r.inject)
		}
		return why
	})
	d.Inject = inject
	return d
}

// match finds the first rule for target and port that has no objection, and else remembers what came nearest.
func (p Policy) match(t target, port uint16, udp bool, objection func(Rule) string) Decision {
	if port == 0 {
		return deny("port 0 cannot be reached")
	}
	if p.all {
		return p.everything(t)
	}
	var portMiss, requestMiss string
	for _, r := range p.rules {
		if !r.reaches(t) || !r.about(udp) {
			continue
		}
		ok, named := r.open(port)
		if !ok {
			if portMiss == "" {
				portMiss = fmt.Sprintf("the rule %s allows %s, not %d", r.text, r.portText(), port)
			}
			continue
		}
		why := objection(r)
		if why == "" {
			// On the web's own ports a rule means the web, also when it names them:
			// else what is no HTTP would pass unseen inside TLS.
			return r.decision(named && port != 80 && port != 443)
		}
		if requestMiss == "" {
			requestMiss = fmt.Sprintf("the rule %s %s", r.text, why)
		}
	}
	if requestMiss != "" {
		return Decision{Why: requestMiss}
	}
	if udp {
		return deny("UDP passes only where a rule names it; QUIC falls back to TCP by itself; to let it pass allow %s", strconv.Quote(t.datagrams(port)))
	}
	return p.nothing(t, port, portMiss)
}

// everything is the answer of the policy `true`. Classes that are closed are refused here already, so that the guest
// need not wait; the host's own addresses are known at the dial only.
func (p Policy) everything(t target) Decision {
	if t.name == "" {
		if what, closed := Closed(t.addr); closed {
			return deny("%s is %s, and the network is the public internet only", t.addr, what)
		}
	}
	return Decision{Allowed: true, Rule: "true", Why: "the whole public internet is allowed", TLS: Passthrough, Opaque: true, Anything: true}
}

// nothing is the answer when no rule allows the target.
func (p Policy) nothing(t target, port uint16, nearest string) Decision {
	switch {
	case len(p.rules) == 0:
		return deny("the sandbox has no network; to reach %s allow %s", t, strconv.Quote(t.suggestion(port)))
	case nearest != "":
		return deny("%s; allow %s", nearest, strconv.Quote(t.suggestion(port)))
	}
	return deny("no rule names %s; allow %s", t, strconv.Quote(t.suggestion(port)))
}

func (r Rule) decision(named bool) Decision {
	d := Decision{Allowed: true, Rule: r.text, Why: "allowed by the rule " + r.text, TLS: r.tls}
	if d.TLS == "" {
		d.TLS = Intercept
	}
	d.Opaque = named && !r.bounded() && len(r.inject) == 0
	return d
}

// misses says why the rule does not allow the request, or nothing when it does.
func (r Rule) misses(method, path string) string {
	if len(r.methods) > 0 && !slices.Contains(r.methods, method) {
		return fmt.Sprintf("allows %s only, not %s", strings.Join(r.methods, ", "), quote(method))
	}
	if len(r.paths) == 0 {
		return ""
	}
	if !plainPath(path) {
		return fmt.Sprintf("bounds paths, and %s is not in the plain form that can be compared", quote(path))
	}
	if !slices.ContainsFunc(r.paths, func(rule string) bool { return matchPath(rule, path) }) {
		return "does not allow the path " + quote(path)
	}
	return ""
}

func (r Rule) portText() string {
	if len(r.ports) == 0 {
		return "the ports 80 and 443"
	}
	words := make([]string, len(r.ports))
	for i, p := range r.ports {
		words[i] = p.String()
	}
	if len(r.ports) == 1 && r.ports[0].first == r.ports[0].last {
		return "port " + words[0]
	}
	return "the ports " + strings.Join(words, ", ")
}

// Names says that a rule names this address, alone or in a network, for this port: then Addresses.Check is told so.
// The policy `true` names nothing.
func (p Policy) Names(addr netip.Addr, port uint16) bool { return p.named(addr, port, false) }

func (p Policy) named(addr netip.Addr, port uint16, udp bool) bool {
	return namedBy(p.rules, addr, port, udp)
}

func namedBy(rules []Rule, addr netip.Addr, port uint16, udp bool) bool {
	addr = plainAddr(addr)
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.names(addr, port, udp) })
}
