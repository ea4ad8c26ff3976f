package bus

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// TLS is the certificate of the bus: paths of PEM files. They are read again when they change.
type TLS struct {
	Cert, Key string
	// CA is the authority that signed Cert, where it is not one of those that systems have. What MakeTLS made has its own.
	CA string
}

// certificate is a pair of files, loaded, and who may see it.
type certificate struct {
	files TLS
	allow []netip.Prefix

	mu     sync.Mutex
	pair   *tls.Certificate
	stamp  [2]time.Time // when the files were changed
	looked time.Time
}

const lookEvery = time.Second

func (c *certificate) load() error {
	bad := func(err error) error {
		return refuse(errors.Join(ErrTLS, err), "give a certificate and its key as PEM files, or make your own: ravi bus tls NAME-OR-ADDRESS…",
			"cannot use the certificate of the bus, %s with the key %s: %s", c.files.Cert, c.files.Key, err)
	}
	var stamp [2]time.Time
	for i, path := range []string{c.files.Cert, c.files.Key} {
		info, err := os.Stat(path)
		if err != nil {
			return bad(err)
		}
		stamp[i] = info.ModTime()
		if perm := info.Mode().Perm(); path == c.files.Key && perm&0o007 != 0 {
			return refuse(ErrTLS, fmt.Sprintf("chmod 600 %q, and get a new certificate if others may have read it", path),
				"others may read the key of the bus's certificate, %s (mode %04o)", path, perm)
		}
	}
	if c.pair != nil && stamp == c.stamp {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return bad(err)
	}
	c.pair, c.stamp = &pair, stamp
	return nil
}

// get gives the certificate to whoever may connect. It is asked at each handshake, as nothing is resumed.
func (c *certificate) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if !allowed(c.allow, hello.Conn.RemoteAddr(), hello.Conn.LocalAddr()) {
		return nil, errors.New("the address is not in bus.allow_from")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= lookEvery {
		c.looked = now
		// A pair that is half written is one that does not load; the one there is stays until then.
		if err := c.load(); err != nil && c.pair == nil {
			return nil, err
		}
	}
	return c.pair, nil
}

// allowed says whether an address may connect: those on the list, and this machine's own.
func allowed(list []netip.Prefix, remote, local net.Addr) bool {
	if len(list) == 0 {
		return true
	}
	from, ok := addrOf(remote)
	if !ok {
		return false
	}
	if own, ok := addrOf(local); from.IsLoopback() || ok && own == from {
		return true
	}
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(from) })
}

func addrOf(a net.Addr) (netip.Addr, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}, false
	}
	return tcp.AddrPort().Addr().Unmap().WithZone(""), true
}

// addTLS puts TLS in front of everything that listens.
func (s *Server) addTLS(no *server.Options) error {
	files := s.opts.TLS
	if files == nil {
		return nil
	}
	c := &certificate{files: *files, allow: s.opts.AllowFrom}
	if err := c.load(); err != nil {
		return err
	}
	s.cert = c
	no.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS13, GetCertificate: c.get,
		// Whoever resumes is asked for no certificate, and so not where they come from.
		SessionTicketsDisabled: true,
	}
	leaf, err := x509.ParseCertificate(c.pair.Certificate[0])
	if err != nil {
		return refuse(errors.Join(ErrTLS, err), "", "cannot use the certificate of the bus, %s: %s", files.Cert, err)
	}
	// Programs of this machine connect by a loopback address, which a given certificate need not have.
	s.trust = Trust{CA: files.CA}
	switch {
	case len(leaf.DNSNames) > 0:
		s.trust.ServerName = leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		s.trust.ServerName = leaf.IPAddresses[0].String()
	default:
		return refuse(ErrTLS, "get one with the names and addresses that the bus is reached by", "the certificate of the bus, %s, has no name", files.Cert)
	}
	return nil
}

// config is how a client checks the server.
func (t Trust) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, refuse(errors.Join(ErrTLS, err), "", "cannot read the authority of the bus: %s", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, refuse(ErrTLS, "give the file that has it: tls/ca.pem in the bus's folder, for one of ours", "there is no certificate in %s", t.CA)
	}
	return c, nil
}
