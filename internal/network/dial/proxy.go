package dial

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"ravi/internal/network/policy"
)

// Proxy is an upstream proxy, as the operator sets it: what the dialer opens
// connections through. It holds no credential.
type Proxy struct {
	// URL is http://HOST:PORT, which is asked with CONNECT, or socks5://HOST:PORT.
	URL string `json:"url"`
	// Direct is what is connected to without it.
	Direct policy.Places `json:"direct,omitempty"`
	// ByName hands over names, which the proxy then resolves. Otherwise it gets
	// the address that was checked.
	ByName bool `json:"by_name,omitempty"`
}

// Validate refuses a proxy that cannot be used as it is described. No error
// repeats a credential.
func (p Proxy) Validate() error {
	if _, err := parseURL(p.URL); err != nil {
		return err
	}
	if err := p.Direct.Validate(); err != nil {
		return fmt.Errorf("what goes without the proxy: %w", err)
	}
	return nil
}

// parseURL reads a proxy's URL, of which only scheme, host and port may be there.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("the proxy is a URL such as http://proxy.example.com:3128 or socks5://192.0.2.7:1080")
	}
	if u.User != nil || strings.Contains(text, "@") {
		return nil, errors.New("the proxy's URL holds a user or password; they stand in a file of their own, network.proxy_auth_file")
	}
	quoted := strconv.QuoteToASCII(text)
	switch u.Scheme {
	case "http", "socks5":
	case "https":
		return nil, fmt.Errorf("the proxy %s would be spoken to in TLS, which Ravi does not do; most such proxies have a port for http:// as well", quoted)
	case "socks5h", "socks", "socks4":
		return nil, fmt.Errorf("the proxy %s: write socks5://, and set network.proxy_by_name if the proxy is to resolve names", quoted)
	default:
		return nil, fmt.Errorf("the proxy %s is no URL that begins with http:// or socks5://", quoted)
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return nil, fmt.Errorf("the proxy %s: nothing stands behind its port", quoted)
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return nil, fmt.Errorf("the proxy %s: its port is missing, as in %s://HOST:3128", quoted, u.Scheme)
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		if _, err := policy.Host(u.Hostname()); err != nil {
			return nil, fmt.Errorf("the proxy %s: its host: %w", quoted, err)
		}
	}
	return u, nil
}

// Auth is what a proxy knows its user by.
type Auth struct{ user, password string }

// String hides it.
func (Auth) String() string { return "user:password" }

// GoString hides it.
func (a Auth) GoString() string { return a.String() }

// maxAuth bounds a file of credentials, in bytes.
const maxAuth = 4096

// ReadAuth reads one line USER:PASSWORD; nothing at all means that there are no
// credentials, and gives nil. No error repeats what was read.
func ReadAuth(r io.Reader) (*Auth, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAuth+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the proxy's credentials (network.proxy_auth_file): %w", err)
	case len(b) == 0:
		return nil, nil
	}
	line := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	user, password, ok := strings.Cut(line, ":")
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	if len(b) > maxAuth || !ok || user == "" || strings.ContainsFunc(line, control) {
		return nil, errors.New("the proxy's credentials (network.proxy_auth_file) are not one line USER:PASSWORD")
	}
	return &Auth{user, password}, nil
}

// Upstream is a proxy that can be asked.
type Upstream struct {
	proxy   Proxy
	scheme  string
	address string // HOST:PORT of the proxy
	auth    *Auth
	wait    time.Duration // for its answer
}

// NewUpstream is the proxy with the credentials for it; auth may be nil.
func NewUpstream(p Proxy, auth *Auth) (*Upstream, error) {
	u, err := parseURL(p.URL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "socks5" && auth != nil && (len(auth.user) > 255 || len(auth.password) > 255) {
		return nil, errors.New("the proxy's credentials (network.proxy_auth_file): a SOCKS5 proxy takes at most 255 bytes each of user and password")
	}
	return &Upstream{proxy: p, scheme: u.Scheme, address: net.JoinHostPort(u.Hostname(), u.Port()), auth: auth, wait: answerTime}, nil
}

// String names the proxy for people.
func (u *Upstream) String() string { return "the proxy " + u.scheme + "://" + u.address }

// direct says that a connection goes without the proxy. For what an address
// means on this machine only, such as loopback, it always does: on the proxy's
// machine it would be another place.
func (u *Upstream) direct(name string, addr netip.Addr, port uint16) bool {
	return u == nil || addr.IsLoopback() || addr.IsUnspecified() || addr.IsLinkLocalUnicast() || u.proxy.Direct.Contain(name, addr, port)
}

// byName says that the proxy gets the name. addrs are what the host resolves it
// to, if it does.
func (u *Upstream) byName(name string, addrs []netip.Addr, port uint16) bool {
	return u != nil && u.proxy.ByName && name != "" && !u.direct(name, netip.Addr{}, port) &&
		!slices.ContainsFunc(addrs, func(a netip.Addr) bool { return u.direct(name, a.Unmap(), port) })
}
