package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrDenied is the cause when a connection is refused by rules; Addresses.Check has ErrClosed for addresses.
var ErrDenied = errors.New("not allowed")

// Floor is what the operator decided for every sandbox: config.json's network.always_deny, always_allow and max.
// AlwaysDeny beats everything; a rule in it without a port denies every port. AlwaysAllow holds whatever a run asks.
// Max, when it is there, bounds what a run may ask.
type Floor struct {
	AlwaysDeny  []Rule  `json:"always_deny"`
	AlwaysAllow []Rule  `json:"always_allow"`
	Max         *Policy `json:"max"`
}

// Validate refuses a floor that promises what it cannot keep. Errors are ErrRule.
func (f Floor) Validate() error {
	for _, r := range f.AlwaysDeny {
		if r.text == "" || r.bounded() || r.tls != "" || len(r.inject) > 0 {
			return fmt.Errorf("always_deny: %w", refused(r.text, errors.New("a denial names a host or network, and ports; one path of a server can be written in too many ways to be denied")))
		}
	}
	if len(f.AlwaysAllow) > 0 {
		if _, err := FromRules(f.AlwaysAllow); err != nil {
			return fmt.Errorf("always_allow: %w", err)
		}
	}
	return nil
}

// Effective is a policy on its floor: what a sandbox may reach. The zero value allows nothing.
type Effective struct {
	deny, allow []Rule
	max         *Policy
	policy      Policy
}

// Apply puts a policy on the floor.
func (f Floor) Apply(p Policy) Effective {
	e := Effective{deny: slices.Clone(f.AlwaysDeny), allow: slices.Clone(f.AlwaysAllow), policy: p}
	if f.Max != nil {
		bound := *f.Max
		e.max = &bound
	}
	return e
}

// Resolve is Policy.Resolve for both.
func (e Effective) Resolve(name string) Decision {
	t, err := dialled(name, netip.Addr{})
	if err != nil {
		return deny("%v", err)
	}
	// A denial of some ports leaves the name on the others.
	if d, denied := e.denied(t, netip.Addr{}, 0, false); denied {
		return d
	}
	return e.ask(func(p Policy) Decision { return p.Resolve(name) })
}

// Connect is Policy.Connect for both. Denied addresses are refused also where a name leads to them, so it is asked
// again with the final address; Dial does so.
func (e Effective) Connect(name string, addr netip.Addr, port uint16) Decision {
	t, err := dialled(name, addr)
	if err != nil {
		return deny("%v", err)
	}
	if d, denied := e.denied(t, addr, port, false); denied {
		return d
	}
	d := e.ask(func(p Policy) Decision { return p.Connect(name, addr, port) })
	d.Anything = d.Anything && len(e.deny) == 0
	return d
}

// Datagram is Policy.Datagram for both.
func (e Effective) Datagram(name string, addr netip.Addr, port uint16) Decision {
	t, err := dialled(name, addr)
	if err != nil {
		return deny("%v", err)
	}
	if d, denied := e.denied(t, addr, port, true); denied {
		return d
	}
	if e.max != nil && e.max.all {
		// As a bound, `true` is the whole public internet, by any protocol.
		if d := e.max.everything(t); !d.Allowed {
			return d
		}
		e.max = nil
	}
	return e.ask(func(p Policy) Decision { return p.Datagram(name, addr, port) })
}

// Request is Policy.Request for both.
func (e Effective) Request(name string, port uint16, tls bool, method, path string) Decision {
	t, err := requested(name)
	if err != nil {
		return deny("%v", err)
	}
	if d, denied := e.denied(t, netip.Addr{}, port, false); denied {
		return d
	}
	return e.ask(func(p Policy) Decision { return p.Request(name, port, tls, method, path) })
}

// Names is Policy.Names for both.
func (e Effective) Names(addr netip.Addr, port uint16) bool { return e.named(addr, port, false) }

func (e Effective) named(addr netip.Addr, port uint16, udp bool) bool {
	return namedBy(e.allow, addr, port, udp) || e.policy.named(addr, port, udp) && (e.max == nil || e.max.named(addr, port, udp))
}

// Dial says whether the connection to name (empty for an address) may go to addr, its final address, and is asked
// immediately before the dial. Errors are ErrDenied or ErrClosed.
func (e Effective) Dial(a *Addresses, name string, addr netip.Addr, port uint16) error {
	if d := e.Connect(name, addr, port); !d.Allowed {
		return fmt.Errorf("%w: %s", ErrDenied, d.Why)
	}
	return a.Check(addr, e.Names(addr, port))
}

// DialUDP is Dial for UDP.
func (e Effective) DialUDP(a *Addresses, name string, addr netip.Addr, port uint16) error {
	if d := e.Datagram(name, addr, port); !d.Allowed {
		return fmt.Errorf("%w: %s", ErrDenied, d.Why)
	}
	return a.Check(addr, e.named(addr, port, true))
}

// denied finds the always_deny rule against a target, or against the address that it leads to. Port 0 asks about the
// whole host. A denial that is not about UDP alone is about every protocol.
func (e Effective) denied(t target, addr netip.Addr, port uint16, udp bool) (Decision, bool) {
	addrs := []netip.Addr{}
	for _, a := range []netip.Addr{t.addr, addr} {
		if a.IsValid() {
			a = plainAddr(a)
			addrs = append(append(addrs, a), embedded(a)...)
		}
	}
	for _, r := range e.deny {
		if r.udp && !udp {
			continue
		}
		if len(r.ports) > 0 {
			if ok, _ := r.open(port); !ok {
				continue
			}
		}
		hit := t.name != "" && r.reaches(t) || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return r.reaches(target{addr: a}) })
		if hit {
			return Decision{Rule: r.text, Why: fmt.Sprintf("the operator denies %s (network.always_deny in config.json)", r.text)}, true
		}
	}
	return Decision{}, false
}

// ask asks the operator's allowances first, then the policy within its bound.
func (e Effective) ask(question func(Policy) Decision) Decision {
	if len(e.allow) > 0 {
		if d := question(Policy{rules: e.allow}); d.Allowed {
			return d
		}
	}
	d := question(e.policy)
	if !d.Allowed || e.max == nil {
		return d
	}
	bound := question(*e.max)
	if !bound.Allowed {
		return deny("the operator's bound (network.max in config.json) does not allow it: %s", bound.Why)
	}
	// Of two answers the stricter holds: a bound that looks at requests cannot do so through TLS.
	if bound.TLS == Intercept {
		d.TLS = Intercept
	}
	d.Opaque, d.Anything = d.Opaque && bound.Opaque, d.Anything && bound.Anything
	return d
}
