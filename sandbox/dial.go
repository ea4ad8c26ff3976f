package sandbox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"ravi/internal/network"
)

// Errors of Dial.
var (
	// ErrNotAllowed: the sandbox may not reach it.
	ErrNotAllowed = errors.New("the sandbox may not reach it")
	// ErrNoNetwork: the sandbox was made without a network.
	ErrNoNetwork = errors.New("the sandbox has no network")
)

// Dial connects to what a process of the sandbox would reach at address, a
// HOST:PORT, as if that process had: what may be reached is decided on, and told of
// (WithNetEvents), in the same place, and placeholders of secrets are replaced. The
// sandbox itself sees nothing of the connection. network is tcp.
//
// The address localhost, and those of loopback, are the sandbox's own: that is
// DialPort. The host backend has no network of its own, and connects as this
// process does.
//
// What is read was written by others.
func (s *Sandbox) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("there are connections of tcp, and none of %.20q", network)
	}
	c, _, err := s.dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%.300q: %w", address, err)
	}
	return c, nil
}

// Transport makes HTTP requests over Dial. It trusts the certificates that
// processes of the sandbox do: this machine's own, and those of the sandbox's
// network, which looks into connections. The caller must end it with
// CloseIdleConnections.
func (s *Sandbox) Transport() *http.Transport {
	return &http.Transport{
		DialContext: s.Dial,
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			c, err := s.dialTLS(ctx, address)
			if err != nil {
				return nil, fmt.Errorf("%.300q: %w", address, err)
			}
			return c, nil
		},
		MaxResponseHeaderBytes: 1 << 20,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true, // so that what is read is as long as what was sent
	}
}

func (s *Sandbox) dialTLS(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	c, certificate, err := s.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("this machine's certificate authorities: %w", err)
	}
	roots.AppendCertsFromPEM([]byte(certificate))
	secure := tls.Client(c, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	if err := secure.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return secure, nil
}

// dial also gives the certificate with which the sandbox's network ends TLS, if
// the connection leads through it.
func (s *Sandbox) dial(ctx context.Context, address string) (c net.Conn, certificate string, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, "", err
	}
	if s.backend == BackendHost {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return c, "", err
	}
	if ownHost(host) {
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, "", fmt.Errorf("%.20q is not a port", text)
		}
		c, err = s.DialPort(ctx, port)
		return c, "", err
	}
	if !s.network {
		return nil, "", ErrNoNetwork
	}
	if c, err = s.inst.DialEvents(ctx); err != nil {
		return nil, "", s.explain(ctx, err)
	}
	hangUp := context.AfterFunc(ctx, func() { c.Close() })
	m, err := callOut(c, address)
	if !hangUp() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		if !errors.Is(err, ErrNotAllowed) {
			err = s.explain(ctx, fmt.Errorf("its network gateway: %w", err))
		}
		return nil, "", err
	}
	return c, m.CA + s.away.authority(), nil
}

// callOut has a gateway make c a connection to address.
func callOut(c net.Conn, address string) (m network.Message, err error) {
	if err := json.NewEncoder(c).Encode(network.Hello{Dial: address}); err != nil {
		return m, err
	}
	// What follows the answer belongs to the connection, so nothing is read ahead.
	var line []byte
	for b := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; line = append(line, b[0]) {
		if len(line) > 64<<10 {
			return m, errors.New("its answer does not end")
		}
		if _, err := c.Read(b); err != nil {
			return m, err
		}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, err
	}
	if m.Error != "" {
		return m, fmt.Errorf("%w: %s", ErrNotAllowed, m.Error)
	}
	return m, nil
}

// ownHost says whether a host is the machine that asks: for a sandbox, itself.
func ownHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}
