package guard

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// certificate is a configuration with a certificate that nobody trusts.
func certificate(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"ravi.example"}}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	must(t, err)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// resolver answers for the names of these tests.
func resolver(_ context.Context, _, name string) ([]netip.Addr, error) {
	at := map[string][]netip.Addr{
		"localhost":     {netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")},
		"mapped":        {netip.MustParseAddr("::ffff:127.0.0.1")},
		"elsewhere":     {netip.MustParseAddr("192.0.2.1")},
		"half":          {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")},
		"half-last":     {netip.MustParseAddr("::1"), netip.MustParseAddr("2001:db8::1")},
		"all":           {netip.MustParseAddr("0.0.0.0")},
		"mapped-beyond": {netip.MustParseAddr("::ffff:192.0.2.1")},
		"none":          {},
	}
	if found, ok := at[name]; ok {
		return found, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func TestTCPRefuses(t *testing.T) {
	secure, weak := certificate(t), certificate(t)
	weak.MinVersion = tls.VersionTLS10
	old := certificate(t)
	old.MaxVersion = tls.VersionTLS11
	for _, c := range []struct {
		addr string
		conf *tls.Config
		is   error
		says string
	}{
		{":0", nil, ErrExposed, "every address"},
		{"0.0.0.0:0", nil, ErrExposed, "every address"},
		{"[::]:0", nil, ErrExposed, "every address"},
		{"192.0.2.1:0", nil, ErrExposed, "others can reach"},
		{"10.0.0.1:0", nil, ErrExposed, "others can reach"},
		{"169.254.1.1:0", nil, ErrExposed, "others can reach"},
		{"[fe80::1%lo]:0", nil, ErrExposed, "others can reach"},
		{"[2001:db8::1]:0", nil, ErrExposed, "others can reach"},
		{"[::ffff:127.0.0.1]:0", nil, ErrExposed, "IPv4 address stands in"},
		{"[::ffff:7f00:1]:0", nil, ErrExposed, "IPv4 address stands in"},
		{"[::ffff:192.0.2.1]:0", nil, ErrExposed, "IPv4 address stands in"},
		{"[::ffff:0.0.0.0]:0", secure, ErrExposed, "IPv4 address stands in"},
		{"[::127.0.0.1]:0", nil, ErrExposed, "others can reach"},
		{"elsewhere:0", nil, ErrExposed, "stands for 192.0.2.1"},
		{"half:0", nil, ErrExposed, "stands for 192.0.2.1"},
		{"half-last:0", nil, ErrExposed, "stands for 2001:db8::1"},
		{"all:0", nil, ErrExposed, "every address"},
		{"mapped-beyond:0", nil, ErrExposed, "stands for 192.0.2.1"},
		{"none:0", nil, nil, "no address"},
		{"nowhere:0", nil, nil, "no such host"},
		{"127.1:0", nil, nil, "no such host"},
		{"0x7f000001:0", nil, nil, "no such host"},
		{"127.0.0.1", nil, nil, "missing port"},
		{"", nil, nil, "missing port"},
		{"127.0.0.1:http", nil, nil, "not a port"},
		{"127.0.0.1:-1", nil, nil, "not a port"},
		{"127.0.0.1:65536", nil, nil, "not a port"},
		{"127.0.0.1:", nil, nil, "not a port"},
		{"0.0.0.0:0", secure, ErrExposed, "names"},
		{":0", secure, ErrExposed, "names"},
		{"127.0.0.1:0", &tls.Config{}, nil, "no certificate"},
		{"127.0.0.1:0", weak, nil, "before 1.2"},
		{"127.0.0.1:0", old, nil, "before 1.2"},
	} {
		l, err := listenTCP(c.addr, c.conf, nil, resolver)
		if err == nil {
			l.Close()
			t.Errorf("%s: it listens on %s", c.addr, l.Addr())
			continue
		}
		var told *Error
		if !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) || !errors.As(err, &told) || told.Hint == "" {
			t.Errorf("%s: %v", c.addr, err)
		}
		if c.is == ErrExposed && c.conf == nil && !strings.Contains(told.Message+told.Hint, "TLS") && !strings.Contains(told.Hint, "write ") {
			t.Errorf("%s: %q does not say what is missing", c.addr, told.Hint)
		}
	}
}

func TestTCPListens(t *testing.T) {
	for _, c := range []struct {
		addr  string
		conf  *tls.Config
		names []string
		at    string
		knows string
	}{
		{"127.0.0.1:0", nil, nil, "127.0.0.1", "localhost"},
		{"127.0.0.2:0", nil, nil, "127.0.0.2", "127.0.0.2"},
		{"[::1]:0", nil, nil, "::1", "::1"},
		{"localhost:0", nil, nil, "127.0.0.1", "localhost"},
		{"mapped:0", nil, nil, "127.0.0.1", "127.0.0.1"},
		{"127.0.0.1:0", nil, []string{"ravi.test"}, "127.0.0.1", "ravi.test"},
		{"0.0.0.0:0", certificate(t), []string{"ravi.example"}, "0.0.0.0", "ravi.example"},
		{":0", certificate(t), []string{"ravi.example"}, "::", "ravi.example"},
	} {
		l, err := listenTCP(c.addr, c.conf, c.names, resolver)
		if c.at == "::1" && err != nil {
			t.Logf("no IPv6 here: %v", err)
			continue
		}
		must(t, err)
		host, port, _ := net.SplitHostPort(l.Addr().String())
		if host != c.at {
			t.Errorf("%s: it listens on %s", c.addr, host)
		}
		if !l.Door().names[net.JoinHostPort(c.knows, port)] || l.Door().names[c.knows] {
			t.Errorf("%s: it answers to %v", c.addr, l.Door().names)
		}
		if _, err := listenTCP(net.JoinHostPort(c.at, port), c.conf, []string{"x"}, resolver); !errors.Is(err, ErrInUse) {
			t.Errorf("%s, once more: %v", c.addr, err)
		}
		must(t, l.Close())
	}
}

func TestNamesWithPorts(t *testing.T) {
	for _, c := range []struct {
		port   int
		secure bool
		want   []string
	}{
		{7777, false, []string{"a:7777", "[::1]:7777"}},
		{80, false, []string{"a:80", "a", "[::1]:80", "[::1]"}},
		{80, true, []string{"a:80", "[::1]:80"}},
		{443, true, []string{"a:443", "a", "[::1]:443", "[::1]"}},
	} {
		if got := withPort([]string{"a", "::1"}, c.port, c.secure); !slices.Equal(got, c.want) {
			t.Errorf("%d, %v: %v", c.port, c.secure, got)
		}
	}
}

// A configuration that is chosen by the client's hello is held to the same.
func TestChosenConfiguration(t *testing.T) {
	good, weak := certificate(t), certificate(t)
	weak.MinVersion = tls.VersionTLS10
	var chosen *tls.Config
	conf, err := secure(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return chosen, nil }})
	must(t, err)
	for _, c := range []struct {
		chosen *tls.Config
		ok     bool
	}{{good, true}, {weak, false}, {nil, true}} {
		chosen = c.chosen
		got, err := conf.GetConfigForClient(nil)
		if (err == nil) != c.ok {
			t.Errorf("got %v", err)
		}
		if got != nil && got.MinVersion != tls.VersionTLS12 {
			t.Errorf("version %x", got.MinVersion)
		}
	}
}
