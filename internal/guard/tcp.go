package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrExposed says that a listener would be reached from elsewhere, and lacks what that demands.
var ErrExposed = errors.New("would be reached from elsewhere")

// ListenTCP listens on an address such as "127.0.0.1:7777" or "localhost:0". Without a TLS configuration only loopback
// addresses are taken, and names that mean nothing else; every process of the machine can connect there, and each reads
// what others send only with rights over them. With one, TLS 1.2 or later is spoken on any address; whoever listens
// elsewhere than on loopback demands a key of every caller, which is not this package's to see.
//
// The listener answers to its address, to localhost where it is loopback, and to names, all with its port, and also
// without it where it is the usual one (80, with TLS 443).
func ListenTCP(addr string, conf *tls.Config, names ...string) (*Listener, error) {
	return listenTCP(addr, conf, names, net.DefaultResolver.LookupNetIP)
}

type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

func listenTCP(addr string, conf *tls.Config, names []string, look lookup) (*Listener, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, refuse(err, "write host and port, such as 127.0.0.1:7777", "cannot listen on %s: %v", quoted(addr), err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, refuse(err, "a port is a number from 0 to 65535", "cannot listen on %s: %s is not a port", quoted(addr), quoted(portText))
	}
	conf, err = secure(conf)
	if err != nil {
		return nil, refuse(err, "give the listener a certificate and its key, and leave the versions alone", "cannot listen on %s: %v", addr, err)
	}
	at, err := resolve(host, look)
	if err != nil {
		return nil, refuse(err, "write an address, such as 127.0.0.1", "cannot listen on %s: %v", quoted(addr), err)
	}
	var answers []string
	for _, a := range at {
		switch {
		case a.Is4In6():
			return nil, refuse(ErrExposed, "write "+a.Unmap().String(), "cannot listen on %s: an IPv4 address stands in an IPv6 address there", addr)
		case conf == nil && !(a.IsValid() && a.IsLoopback()):
			return nil, refuse(ErrExposed, fmt.Sprintf("listen on 127.0.0.1:%d, or give the listener a certificate and its key (TLS)", port),
				"cannot listen on %s without TLS: %s", addr, reach(host, a))
		case a.IsValid() && !a.IsUnspecified():
			answers = append(answers, a.WithZone("").String())
		case len(names) == 0:
			return nil, refuse(ErrExposed, "name the server as its clients do, or listen on one address",
				"cannot listen on %s: by which names it is called cannot be told from that", addr)
		}
		if a.IsLoopback() || !a.IsValid() || a.IsUnspecified() {
			answers = append(answers, "localhost", "127.0.0.1", "::1")
		}
	}
	network := "tcp"
	if at[0].IsValid() {
		host, network = at[0].String(), "tcp4"
		if at[0].Is6() {
			network = "tcp6"
		}
	}
	inner, err := net.Listen(network, net.JoinHostPort(host, portText))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, refuse(errors.Join(ErrInUse, err), "end what listens there, or use another port", "cannot listen on %s: another process does", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	bound, ok := inner.Addr().(*net.TCPAddr)
	if !ok || conf == nil && !bound.IP.IsLoopback() {
		inner.Close()
		return nil, refuse(ErrExposed, "listen on 127.0.0.1", "cannot listen on %s without TLS: it became %s", addr, inner.Addr())
	}
	return &Listener{
		inner: inner, addr: bound, tls: conf, end: inner.Close,
		door: NewDoor(doorConns, withPort(append(answers, names...), bound.Port, conf != nil)...),
	}, nil
}

// resolve is the addresses that a host stands for; the zero address stands for all of them. What is bound is the first,
// and not the name once more.
func resolve(host string, look lookup) ([]netip.Addr, error) {
	if host == "" {
		return []netip.Addr{{}}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	at, err := look(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(at) == 0 {
		return nil, errors.New("the name has no address")
	}
	for i, a := range at {
		at[i] = a.Unmap() // a resolver writes IPv4 either way
		if at[i].Is4() {
			at[0], at[i] = at[i], at[0]
		}
	}
	return at, nil
}

// reach says in which way an address is not loopback.
func reach(host string, a netip.Addr) string {
	if !a.IsValid() || a.IsUnspecified() {
		return "that is every address of this machine"
	}
	if host != a.String() {
		return fmt.Sprintf("%s stands for %s, which others can reach", quoted(host), a)
	}
	return "others can reach that address"
}

// withPort is the names as a Host header has them.
func withPort(names []string, port int, secure bool) []string {
	usual := port == 80 && !secure || port == 443 && secure
	var out []string
	for _, name := range names {
		out = append(out, net.JoinHostPort(name, strconv.Itoa(port)))
		if usual {
			if a, err := netip.ParseAddr(name); err == nil && a.Is6() {
				name = "[" + name + "]"
			}
			out = append(out, name)
		}
	}
	return out
}

// secure is the configuration with what every server of ours demands.
func secure(conf *tls.Config) (*tls.Config, error) {
	if conf == nil {
		return nil, nil
	}
	conf = conf.Clone()
	if len(conf.Certificates) == 0 && conf.GetCertificate == nil && conf.GetConfigForClient == nil {
		return nil, errors.New("the TLS configuration has no certificate")
	}
	if conf.MinVersion != 0 && conf.MinVersion < tls.VersionTLS12 || conf.MaxVersion != 0 && conf.MaxVersion < tls.VersionTLS12 {
		return nil, errors.New("versions of TLS before 1.2 are broken, and not spoken")
	}
	conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
	if len(conf.NextProtos) == 0 {
		conf.NextProtos = []string{"h2", "http/1.1"}
	}
	if choose := conf.GetConfigForClient; choose != nil {
		conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if err != nil || chosen == nil {
				return chosen, err
			}
			return secure(chosen)
		}
	}
	return conf, nil
}
