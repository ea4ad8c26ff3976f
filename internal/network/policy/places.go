package policy

import (
	"errors"
	"fmt"
	"net/netip"
)

// Places are rules that say where something is, and nothing about requests. A rule without a port is about every port,
// and one that names an address or a network holds for names that lead there, too.
type Places []Rule

// Validate refuses rules that say more than where. Errors are ErrRule.
func (p Places) Validate() error {
	for _, r := range p {
		if r.text == "" || r.bounded() || r.tls != "" || len(r.inject) > 0 {
			return refused(r.text, errors.New("only a host or network, and ports, can stand here"))
		}
	}
	if len(p) > maxRules {
		return fmt.Errorf("%w list: %d rules, more than %d", ErrRule, len(p), maxRules)
	}
	return nil
}

// Contain says that a connection to name (empty for an address) that leads to addr (none if that is not known) goes to
// one of the places.
func (p Places) Contain(name string, addr netip.Addr, port uint16) bool {
	t, err := dialled(name, addr)
	if err != nil {
		return false
	}
	_, found := Effective{deny: p}.denied(t, addr, port, false)
	return found
}
