package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ErrRule is the cause of every refusal of a rule or a list of rules.
var ErrRule = errors.New("refused network rule")

// TLSMode says what happens to TLS on a connection that a rule allows.
type TLSMode string

const (
	// Intercept ends TLS in the gateway, so that every request is checked.
	Intercept TLSMode = "intercept"
	// Passthrough checks the name in the handshake only.
	Passthrough TLSMode = "passthrough"
)

// Rule is one thing that may be reached. It is made by ParseRule or from JSON; the zero Rule matches nothing.
type Rule struct {
	text    string       // as String gives it
	host    string       // normalised; empty for an address
	below   bool         // *.host
	prefix  netip.Prefix // valid for an address or a network
	ports   []portRange  // those named; none means 80 and 443
	methods []string
	paths   []string
	inject  []string
	tls     TLSMode
	udp     bool // it is about UDP alone; others are about TCP alone
}

// Injects are the names of the secrets that the rule has put into requests.
func (r Rule) Injects() []string { return slices.Clone(r.inject) }

// portRange is first to last, both included, and neither is 0.
type portRange struct{ first, last uint16 }

// udpSuffix marks a word about UDP.
const udpSuffix = "/udp"

// The most of anything that a person writes by hand, so that no request costs more than it must.
const (
	maxRules = 4096
	maxParts = 256
)

// webPorts are what a host without a port means: HTTP and HTTPS.
var webPorts = []portRange{{80, 80}, {443, 443}}

// ParseRule reads a rule as one word: host, *.host, host:port, an IPv4 address with or without port, a network with
// port (10.0.0.0/8:443), and both in brackets for IPv6. With /udp behind the port it is about UDP (ntp.example:123/udp). Errors are ErrRule and quote the rule.
func ParseRule(text string) (Rule, error) {
	r, err := parseWord(text)
	if err != nil {
		return Rule{}, refused(text, err)
	}
	r.text = r.format()
	return r, nil
}

// refused says which rule was refused and why.
func refused(rule string, err error) error { return fmt.Errorf("%w %s: %w", ErrRule, quote(rule), err) }

// quote is text that somebody else wrote, safe to print and not endless.
func quote(s string) string {
	const most = 120
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

func parseWord(text string) (Rule, error) {
	if datagrams, ok := strings.CutSuffix(text, udpSuffix); ok {
		if strings.HasSuffix(datagrams, udpSuffix) {
			return Rule{}, errors.New(udpSuffix + " stands there twice")
		}
		r, err := parseWord(datagrams)
		if err == nil {
			r.udp = true
			err = r.consistent()
		}
		return r, err
	}
	host, port, err := splitPort(text)
	if err != nil {
		return Rule{}, err
	}
	r, err := parseHost(host)
	if err != nil {
		return Rule{}, err
	}
	if port != "" {
		one, err := parsePort(port)
		if err != nil {
			return Rule{}, err
		}
		r.ports = []portRange{{one, one}}
	}
	return r, nil
}

// splitPort divides host:port. The host keeps its brackets.
func splitPort(text string) (host, port string, err error) {
	if strings.Contains(text, "://") {
		return "", "", errors.New("this is a URL; a rule is a host, with a port if need be: example.com:8443")
	}
	at := strings.LastIndexByte(text, ':')
	if strings.HasPrefix(text, "[") {
		end := strings.IndexByte(text, ']')
		switch {
		case end < 0:
			return "", "", errors.New("the closing ] is missing")
		case end == len(text)-1:
			return text, "", nil
		case text[end+1] != ':':
			return "", "", errors.New("after ] comes a port, as in [2001:db8::1]:443, or nothing")
		}
		at = end + 1
	} else if strings.Count(text, ":") > 1 {
		return "", "", errors.New("an IPv6 address stands in brackets: [2001:db8::1]:443, [2001:db8::/32]:443")
	}
	if at < 0 {
		return text, "", nil
	}
	if at == len(text)-1 {
		return "", "", errors.New("the port after : is missing")
	}
	return text[:at], text[at+1:], nil
}

// parseHost reads what stands before the port.
func parseHost(host string) (Rule, error) {
	inside, brackets := strings.CutPrefix(host, "[")
	if brackets {
		inside = strings.TrimSuffix(inside, "]")
	}
	if strings.HasPrefix(host, "@") {
		return Rule{}, errors.New("a named list cannot stand here; give it to --allow-net")
	}
	if address, bits, network := strings.Cut(inside, "/"); network {
		return parseNetwork(inside, address, bits, brackets)
	}
	if addr, err := netip.ParseAddr(inside); err == nil {
		if err := checkAddr(addr, brackets); err != nil {
			return Rule{}, err
		}
		return Rule{prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	} else if brackets {
		return Rule{}, errors.New("in brackets stands an IPv6 address")
	}
	if host == "*" {
		return Rule{}, errors.New("for every host of the public internet, set allow_net to true (--allow-net all)")
	}
	name, below := strings.CutPrefix(host, "*.")
	if strings.Contains(name, "*") {
		return Rule{}, errors.New("* stands for whole parts at the start only, as in *.example.com")
	}
	name, err := Host(name)
	if err != nil {
		return Rule{}, err
	}
	return Rule{host: name, below: below}, nil
}

func parseNetwork(text, address, bits string, brackets bool) (Rule, error) {
	if _, err := netip.ParseAddr(address); err != nil {
		return Rule{}, errors.New("a rule is a host without a path; to bound paths, write {\"host\": …, \"paths\": […]}")
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return Rule{}, fmt.Errorf("the network's size %s is not a number of bits", quote("/"+bits))
	}
	if err := checkAddr(prefix.Addr(), brackets); err != nil {
		return Rule{}, err
	}
	if prefix != prefix.Masked() {
		return Rule{}, fmt.Errorf("the network is %s; for one address leave out the /%d", prefix.Masked(), prefix.Bits())
	}
	return Rule{prefix: prefix}, nil
}

func checkAddr(addr netip.Addr, brackets bool) error {
	switch {
	case addr.Zone() != "":
		return errors.New("an address with a zone (%) cannot be reached from a sandbox")
	case addr.Is4In6():
		return fmt.Errorf("write the IPv4 address itself: %s", addr.Unmap())
	case addr.Is4() && brackets:
		return errors.New("an IPv4 address stands without brackets")
	case synthetic.Contains(addr):
		return fmt.Errorf("%s is where Ravi puts the names of a sandbox; nothing else can be reached there", synthetic)
	}
	return nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || text[0] == '0' {
		return 0, fmt.Errorf("the port %s is not a number from 1 to 65535", quote(text))
	}
	return uint16(n), nil
}

// String is the rule as a person would write it: one word if it can be, else a JSON object.
func (r Rule) String() string { return r.text }

// target is host and address in the form that parseHost reads.
func (r Rule) target() string {
	switch {
	case r.below:
		return "*." + r.host
	case r.host != "":
		return r.host
	case !r.prefix.IsValid():
		return ""
	}
	text := r.prefix.String()
	if r.prefix.IsSingleIP() {
		text = r.prefix.Addr().String()
	}
	if r.prefix.Addr().Is6() {
		return "[" + text + "]"
	}
	return text
}

// word says that the rule needs no object.
func (r Rule) word() bool {
	return r.tls == "" && len(r.methods)+len(r.paths)+len(r.inject) == 0 &&
		(len(r.ports) == 0 || len(r.ports) == 1 && r.ports[0].first == r.ports[0].last)
}

// reaches says that the rule is about this name, or, where there is no name, about this address.
func (r Rule) reaches(t target) bool {
	switch {
	case t.name == "":
		return r.prefix.IsValid() && r.prefix.Contains(t.addr)
	case r.below:
		rest, ok := strings.CutSuffix(t.name, r.host)
		return ok && strings.HasSuffix(rest, ".")
	}
	return t.name == r.host
}

// about says that the rule is about UDP, or about TCP.
func (r Rule) about(udp bool) bool { return r.udp == udp }

// open says that the port is one of the rule's, and whether the rule names it.
func (r Rule) open(port uint16) (ok, named bool) {
	within := func(p portRange) bool { return p.first <= port && port <= p.last }
	if len(r.ports) == 0 {
		return slices.ContainsFunc(webPorts, within), false
	}
	ok = slices.ContainsFunc(r.ports, within)
	return ok, ok
}

// bounded says that only some requests are allowed, so that what is not HTTP cannot be.
func (r Rule) bounded() bool { return len(r.methods)+len(r.paths) > 0 }

// names says that the rule names this address, so that it may be dialled though its class is closed. A network names
// only what lies in the same class as the whole of it (0.0.0.0/0 is about the internet and opens no loopback), a very
// large one names nothing, and a metadata address must be named by itself.
func (r Rule) names(addr netip.Addr, port uint16, udp bool) bool {
	if ok, _ := r.open(port); !ok || !r.about(udp) || !r.prefix.IsValid() || !r.prefix.Contains(addr) {
		return false
	}
	if r.prefix.IsSingleIP() {
		return true
	}
	if metadata[addr] != "" {
		return false
	}
	if c, closed := classify(addr); closed {
		return c.prefix.Bits() <= r.prefix.Bits()
	}
	if addr.Is4() {
		return r.prefix.Bits() >= 8
	}
	return r.prefix.Bits() >= 16
}
