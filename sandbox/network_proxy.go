package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"ravi/internal/backend"
	"ravi/internal/network"
	"ravi/internal/network/dial"
	"ravi/internal/network/policy"
)

// NetworkProxy is an upstream proxy that a sandbox's connections leave through.
// What is reached is decided on as without it.
type NetworkProxy struct {
	// URL is http://HOST:PORT, which is asked with CONNECT, or socks5://HOST:PORT.
	URL string
	// AuthFile is the absolute path of a file with one line USER:PASSWORD, of mode
	// 0600 or less and the caller's own or root's; empty: no credentials. Neither
	// the sandbox nor what reads its traffic gets to see it. It is read once, when
	// the sandbox is made.
	AuthFile string
	// Direct are rules, as AllowNet has them, for what is connected to without it.
	// A rule without a port is about every port.
	Direct []string
	// ByName hands over names, which the proxy resolves, instead of the address
	// that was checked.
	ByName bool
}

// WithNetworkProxy has the sandbox's connections leave through a proxy.
func WithNetworkProxy(p NetworkProxy) Option { return func(o *options) { o.proxy = &p } }

// WithExtraCAs sets certificate authorities, as PEM, by the host that they hold
// for: a name, *.name or an address. The sandbox's network trusts them for servers
// of that host, besides this machine's own. Of several the name itself decides,
// then the longest.
func WithExtraCAs(byHost map[string]string) Option {
	return func(o *options) { o.extraCAs = byHost }
}

// beyond is what lies between this machine and what a sandbox reaches.
type beyond struct {
	proxy    *dial.Proxy
	authFile string
	extraCAs map[string]string
}

// readBeyond refuses what cannot be used, or that the backend cannot hold.
func readBeyond(o options, backendName string) (b beyond, err error) {
	if b.extraCAs, err = network.ExtraCAs(o.extraCAs); err != nil {
		return b, fmt.Errorf("the network's extra_cas: %w", err)
	}
	if o.proxy == nil {
		return b, nil
	}
	if backendName == BackendHost {
		return b, fmt.Errorf("%w: on the host the network is open, and nothing makes connections go through network.proxy", backend.ErrUnsupported)
	}
	b.proxy, b.authFile = &dial.Proxy{URL: o.proxy.URL, ByName: o.proxy.ByName}, o.proxy.AuthFile
	if b.authFile != "" && !filepath.IsAbs(b.authFile) {
		return b, errors.New("the network's proxy_auth_file is not an absolute path")
	}
	for _, text := range o.proxy.Direct {
		r, err := parseRule(text)
		if err != nil {
			return b, fmt.Errorf("the network's proxy_direct: %w", err)
		}
		b.proxy.Direct = append(b.proxy.Direct, r)
	}
	if err := b.proxy.Validate(); err != nil {
		return b, fmt.Errorf("the network's proxy: %w", err)
	}
	return b, nil
}

// networkOf is a network with this policy.
func (s *Sandbox) networkOf(p policy.Policy) network.Config {
	return network.Config{Policy: p, Floor: s.floor, Services: s.serviceNames, Seed: s.seed, Proxy: s.beyond.proxy, ExtraCAs: s.beyond.extraCAs, Delegate: s.away.delegation()}
}

// networkJSON is what the keeper is told of a network with this policy.
func (s *Sandbox) networkJSON(p policy.Policy) (json.RawMessage, error) {
	c := s.networkOf(p)
	if s.away != nil {
		c.Proxy = nil // that is the way out of this machine
	}
	return json.Marshal(c)
}
