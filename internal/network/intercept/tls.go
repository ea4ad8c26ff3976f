package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

const extensionECH = 0xfe0d

const (
	protoHTTP1 = "http/1.1"
	protoHTTP2 = "h2"
)

// serveTLS serves a guest that began with a ClientHello. up is there only if
// the guest was silent for so long that the server was dialled already.
func (f *flow) serveTLS(guest *replay, up net.Conn) {
	refuse := func(why, hint string) {
		if up != nil {
			reset(up)
		}
		f.refuse(guest, "tls", why, hint)
	}
	guest.SetReadDeadline(time.Now().Add(f.limits.SniffTimeout))
	info, err := hello(f.ctx, guest)
	guest.SetReadDeadline(time.Time{})
	if err != nil {
		refuse("the ClientHello cannot be read: "+err.Error(), "")
		return
	}
	sni := strings.ToLower(info.ServerName)
	switch {
	case slices.Contains(info.Extensions, extensionECH) && f.may.Passthrough && !f.may.Anything:
		// Where TLS is ended here the part is for a key that nobody has, which
		// is what browsers send to every server.
		refuse("the ClientHello has an encrypted part (ECH), in which another server can be named",
			"turn Encrypted ClientHello off in the client")
		return
	case sni == "" && !f.isIP:
		refuse("the ClientHello names no server (SNI)", "a client that connects by name sends one")
		return
	case sni != "" && sni != f.name:
		refuse(fmt.Sprintf("the ClientHello names %q on a connection to %s", sni, f.address()),
			"--allow-net "+sni+", and connect to that name")
		return
	}
	if f.may.Passthrough {
		f.serveCopy(guest, up, "tls-passthrough")
		return
	}

	// Only what this package speaks is offered to the server, and to the guest
	// what the server chose of it. What is opaque may speak anything.
	protos := info.SupportedProtos
	if !f.may.Opaque {
		protos = slices.DeleteFunc(slices.Clone(protos), func(p string) bool { return p != protoHTTP1 && p != protoHTTP2 })
		if len(protos) == 0 && len(info.SupportedProtos) > 0 {
			refuse(fmt.Sprintf("the client speaks only %s inside TLS, not HTTP", strings.Join(info.SupportedProtos, ", ")),
				"a rule that names the port lets other protocols pass: --allow-net "+f.address())
			return
		}
	}
	secured, dialErr := f.dialTLS(up, protos)
	config := f.ending()
	if dialErr == nil {
		if p := secured.ConnectionState().NegotiatedProtocol; p != "" {
			config.NextProtos = []string{p}
		}
	} else {
		// The guest is told by an answer to its request, which says more than
		// a connection that breaks.
		config.NextProtos = slices.DeleteFunc(slices.Clone(protos), func(p string) bool { return p != protoHTTP1 && p != protoHTTP2 })
		if len(config.NextProtos) == 0 && len(protos) > 0 {
			f.event(Event{Proto: "tls", Allowed: true, Rule: f.may.Rule, Why: dialErr.Error()})
			reset(guest)
			return
		}
	}
	inner := tls.Server(guest, config)
	ctx, cancel := context.WithTimeout(f.ctx, f.limits.HeaderTimeout)
	err = inner.HandshakeContext(ctx)
	cancel()
	if err != nil {
		if secured != nil {
			reset(secured)
		}
		f.event(Event{Proto: "tls", Rule: f.may.Rule, Why: "the client ended the TLS handshake: " + err.Error(), Hint: f.handshakeHint(err)})
		guest.Close()
		return
	}
	f.secure = true
	f.serveInner(inner, secured, dialErr)
}

// ending is how a guest's TLS is ended.
func (f *flow) ending() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return f.CA.leaf(f.name)
		},
		// A ticket would name this connection's key, which no other one has.
		SessionTicketsDisabled: true,
	}
}

// handshakeHint says what helps a client that did not like what it was shown.
func (f *flow) handshakeHint(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return ""
	}
	if f.Secrets.Bound(f.name, f.port) {
		return "have the client trust the sandbox's CA: a secret is bound to " + f.name + ", so its TLS is always looked into"
	}
	return "tls: passthrough for " + f.name + ", or have the client trust the sandbox's CA"
}

// serveInner serves what is inside TLS.
func (f *flow) serveInner(guest *tls.Conn, up *tls.Conn, dialErr error) {
	f.dialErr = dialErr
	var server net.Conn
	if up != nil {
		server = up
	}
	switch proto := guest.ConnectionState().NegotiatedProtocol; proto {
	case protoHTTP2:
		f.serveHTTP2(guest, server)
		return
	case protoHTTP1:
		f.serveHTTP1(guest, server)
		return
	case "":
	default:
		f.serveCopy(guest, server, "opaque")
		return
	}
	if dialErr != nil {
		f.serveHTTP1(guest, nil)
		return
	}
	conn := &replay{Conn: guest}
	kind, server, err := f.sniff(conn, server)
	if err != nil {
		f.nothing(conn, server, err)
		return
	}
	f.serveKind(kind, conn, server)
}

// roots are what the server's certificate must lead to.
func (f *flow) roots() *x509.CertPool {
	if f.Roots == nil {
		return nil
	}
	return f.Roots(f.name)
}

// dialTLS connects upstream, on up if that is there, and verifies that the
// server is who the name says.
func (f *flow) dialTLS(up net.Conn, protos []string) (*tls.Conn, error) {
	var err error
	if up == nil {
		if up, err = f.dial(); err != nil {
			return nil, fmt.Errorf("cannot connect to %s: %w", f.address(), err)
		}
	}
	conn := tls.Client(up, &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: f.name,
		RootCAs:    f.roots(),
		NextProtos: protos,
	})
	ctx, cancel := context.WithTimeout(f.ctx, f.limits.DialTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		up.Close()
		var bad *tls.CertificateVerificationError
		if errors.As(err, &bad) {
			return nil, fmt.Errorf("the certificate of %s is not to be trusted: %w", f.address(), bad.Err)
		}
		return nil, fmt.Errorf("TLS with %s: %w", f.address(), err)
	}
	return conn, nil
}
