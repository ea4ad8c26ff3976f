package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrClosed is the cause when an address is not dialled because of what it is.
var ErrClosed = errors.New("the address stays closed")

// AddressError says which address was refused and what it is.
type AddressError struct {
	Addr  netip.Addr
	Class string // such as "a private address"
	Never bool   // no rule opens it
}

func (e *AddressError) Error() string {
	if e.Never {
		return fmt.Sprintf("%s is %s and is never dialled", e.Addr, e.Class)
	}
	text := e.Addr.String()
	if e.Addr.Is6() {
		text = "[" + text + "]"
	}
	return fmt.Sprintf(`%s is %s, which stays closed unless a rule names the address: "%s:PORT"`, e.Addr, e.Class, text)
}

// Unwrap makes it an ErrClosed.
func (e *AddressError) Unwrap() error { return ErrClosed }

// ownFor is how long the host's addresses are remembered: long enough for a burst of connections, short enough for an
// address that is added while a sandbox lives.
const ownFor = time.Second

// Addresses decides which final addresses may be dialled. The zero value reads this host's interfaces, those of the
// network namespace that it is called in; it can be used by many goroutines.
type Addresses struct {
	// Interfaces are the addresses of the host's interfaces; nil reads them. It is asked at most once a second.
	Interfaces func() ([]netip.Addr, error)
	// Also are addresses of the host that no interface has, such as one that a cloud translates to it.
	Also []netip.Addr
	// Now is the time; nil is time.Now.
	Now func() time.Time

	mu   sync.Mutex
	own  []netip.Addr
	read time.Time
}

// Check refuses an address that is no part of the public internet, or is the host's own, unless named says that a rule
// names it (Effective.Names). Errors are ErrClosed. When the host's addresses cannot be read, nothing is dialled that
// no rule names.
func (a *Addresses) Check(addr netip.Addr, named bool) error {
	if !addr.IsValid() {
		return fmt.Errorf("%w: there is no address", ErrClosed)
	}
	addr = plainAddr(addr)
	if synthetic.Contains(addr) {
		what, _ := Closed(addr)
		return &AddressError{Addr: addr, Class: what, Never: true}
	}
	if !named {
		if what, closed := Closed(addr); closed {
			return &AddressError{Addr: addr, Class: what}
		}
		own, err := a.isOwn(addr)
		if err != nil {
			return fmt.Errorf("%w: %s could be this host's own: %w", ErrClosed, addr, err)
		}
		if own {
			return &AddressError{Addr: addr, Class: "an address of this host"}
		}
	}
	// A rule that names the outer address says nothing about what lies behind the translator.
	for _, inner := range embedded(addr) {
		if err := a.Check(inner, false); err != nil {
			return fmt.Errorf("%s leads to an IPv4 address: %w", addr, err)
		}
	}
	return nil
}

func (a *Addresses) isOwn(addr netip.Addr) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clock, read := a.Now, a.Interfaces
	if clock == nil {
		clock = time.Now
	}
	if read == nil {
		read = interfaces
	}
	if age := clock().Sub(a.read); a.read.IsZero() || age < 0 || age >= ownFor {
		now := clock()
		own, err := read()
		if err != nil {
			a.read = time.Time{}
			return false, fmt.Errorf("cannot read the addresses of the host's interfaces: %w", err)
		}
		a.own, a.read = slices.Clone(own), now
		for i := range a.own {
			a.own[i] = plainAddr(a.own[i])
		}
	}
	return slices.Contains(a.own, addr) || slices.ContainsFunc(a.Also, func(also netip.Addr) bool { return plainAddr(also) == addr }), nil
}

// interfaces reads the addresses of all interfaces.
func interfaces() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, one := range list {
		if ip, ok := one.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ip.IP); ok {
				out = append(out, addr)
			}
		}
	}
	if len(out) == 0 {
		// Whoever dials has an address; to see none is to look in the wrong place.
		return nil, errors.New("no interface has one")
	}
	return out, nil
}
