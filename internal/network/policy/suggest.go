package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Event is a decision that was made, as far as Suggest needs it. Port 0 is a question for a name.
type Event struct {
	Name    string     `json:"name"`
	Addr    netip.Addr `json:"addr"`
	Port    uint16     `json:"port"`
	TLS     bool       `json:"tls"`
	Method  string     `json:"method"`
	Path    string     `json:"path"`
	Allowed bool       `json:"allowed"`
}

// Suggest is the smallest list of rules, as words and sorted, that would have allowed what was denied: one for each
// name, and one more for each port that a name alone does not mean. A name that led to a closed address needs that
// address named, too. Metadata addresses are never suggested, nor what no rule can name: they are to be written by
// somebody who means them.
func Suggest(events []Event) []string {
	found := map[string]bool{}
	asked := map[string]bool{} // names of which only the question was denied so far
	add := func(t target, port uint16) {
		found[t.suggestion(port)] = true
		delete(asked, t.name)
	}
	reached := map[string]bool{}
	for _, e := range events {
		if e.Allowed {
			continue
		}
		addr := plainAddr(e.Addr)
		if e.Name == "" {
			if nameable(addr) && e.Port != 0 {
				add(target{addr: addr}, e.Port)
			}
			continue
		}
		name, err := WireHost(e.Name)
		if err != nil {
			continue
		}
		if _, err := Host(name); err != nil {
			continue
		}
		if e.Port == 0 {
			if !reached[name] {
				asked[name] = true
			}
			continue
		}
		reached[name] = true
		add(target{name: name}, e.Port)
		if _, closed := Closed(addr); closed && nameable(addr) {
			add(target{addr: addr}, e.Port)
		}
	}
	for name := range asked {
		found[target{name: name}.suggestion(0)] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// nameable says that the address may be suggested.
func nameable(addr netip.Addr) bool {
	return addr.IsValid() && !synthetic.Contains(addr) && metadata[addr] == "" && len(embedded(addr)) == 0 &&
		!addr.IsUnspecified() && !addr.IsMulticast() && addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
