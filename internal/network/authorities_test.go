package network

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ravi/internal/network/dial"
)

// authority is a private certificate authority.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{t: t, key: key}
	a.cert, _ = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}, nil, &key.PublicKey)
	return a
}

// sign makes a certificate; without an issuer, of the authority itself.
func (a authority) sign(c, issuer *x509.Certificate, public *ecdsa.PublicKey) (*x509.Certificate, []byte) {
	a.t.Helper()
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if issuer == nil {
		issuer = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, issuer, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, der
}

func (a authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// server is an HTTPS server with a certificate for these names.
func (a authority) server(names ...string) (port uint16) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	_, der := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names}, a.cert, &key.PublicKey)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "welcome to ", r.Host) }))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of those that do not trust it
	s.StartTLS()
	a.t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String()).Port()
}

// visit asks for https://NAME:PORT/ from inside, and returns status and text.
func visit(t *testing.T, g *Gateway, name string, port uint16) string {
	t.Helper()
	addr, ok := g.Resolve(name)
	if !ok {
		t.Fatalf("%s has no address", name)
	}
	serve := g.Connect(netip.AddrPortFrom(addr, port))
	if serve == nil {
		t.Fatalf("no connection to %s", name)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		if guest, err := l.Accept(); err == nil {
			serve(t.Context(), guest)
		}
	}()
	inside := x509.NewCertPool()
	inside.AppendCertsFromPEM(g.ca.PEM())
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", l.Addr().String())
		},
		TLSClientConfig: &tls.Config{RootCAs: inside},
	}
	resp, err := (&http.Client{Transport: transport}).Get(fmt.Sprintf("https://%s:%d/", name, port))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	transport.CloseIdleConnections()
	<-served
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}

// toLoopback connects every name to this machine.
func toLoopback() *dial.Server {
	return &dial.Server{
		Allow: func(string, netip.Addr, uint16) error { return nil },
		Check: func(string, netip.Addr, uint16) error { return nil },
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
	}
}

// An extra authority is trusted for the hosts that it is set for, and for no other.
func TestExtraCAs(t *testing.T) {
	private, other := newAuthority(t, "private"), newAuthority(t, "other")
	names := []string{"git.corp.test", "a.b.corp.test", "corp.test", "special.corp.test", "corp.test.example.test"}
	port, otherPort := private.server(names...), other.server(names...)
	var rules []string
	for _, n := range names {
		rules = append(rules, fmt.Sprintf("%s:%d", n, port), fmt.Sprintf("%s:%d", n, otherPort))
	}
	const refused, welcome = "502 ", "200 welcome"
	for name, c := range map[string]struct {
		extra map[string]string
		host  string
		port  uint16
		want  string
	}{
		"without it":                       {nil, "git.corp.test", port, refused},
		"for this host":                    {map[string]string{"git.corp.test": private.pem()}, "git.corp.test", port, welcome},
		"as somebody wrote it":             {map[string]string{"GIT.Corp.Test.": "# ours\n" + private.pem()}, "git.corp.test", port, welcome},
		"for another host":                 {map[string]string{"git.corp.test": private.pem()}, "special.corp.test", port, refused},
		"another authority":                {map[string]string{"git.corp.test": other.pem()}, "git.corp.test", port, refused},
		"two authorities, first":           {map[string]string{"git.corp.test": other.pem() + private.pem()}, "git.corp.test", port, welcome},
		"two authorities, second":          {map[string]string{"git.corp.test": other.pem() + private.pem()}, "git.corp.test", otherPort, welcome},
		"below a name":                     {map[string]string{"*.corp.test": private.pem()}, "git.corp.test", port, welcome},
		"far below a name":                 {map[string]string{"*.corp.test": private.pem()}, "a.b.corp.test", port, welcome},
		"the name itself":                  {map[string]string{"*.corp.test": private.pem()}, "corp.test", port, refused},
		"a name that only begins so":       {map[string]string{"corp.test": private.pem(), "*.corp.test": private.pem()}, "corp.test.example.test", port, refused},
		"the name before the wildcard":     {map[string]string{"*.corp.test": private.pem(), "special.corp.test": other.pem()}, "special.corp.test", port, refused},
		"the name, not the wildcard":       {map[string]string{"*.corp.test": other.pem(), "special.corp.test": private.pem()}, "special.corp.test", port, welcome},
		"the longer wildcard":              {map[string]string{"*.corp.test": other.pem(), "*.b.corp.test": private.pem()}, "a.b.corp.test", port, welcome},
		"the longer wildcard, which is no": {map[string]string{"*.corp.test": private.pem(), "*.b.corp.test": other.pem()}, "a.b.corp.test", port, refused},
	} {
		t.Run(name, func(t *testing.T) {
			extra, err := ExtraCAs(c.extra)
			if err != nil {
				t.Fatal(err)
			}
			without := config(t, rules...)
			with := without
			with.ExtraCAs = extra
			later := gatewayOf(t, without, toLoopback())
			later.SetPolicy(with)
			for when, g := range map[string]*Gateway{"from the beginning": gatewayOf(t, with, toLoopback()), "later": later} {
				got := visit(t, g, c.host, c.port)
				if !strings.HasPrefix(got, c.want) || c.want == refused && !strings.Contains(got, "is not to be trusted") {
					t.Errorf("%s: got %q, want %q", when, got, c.want)
				}
			}
		})
	}
}

// It does not replace the host's own authorities, nor the check of the name.
func TestExtraCAsAreInAddition(t *testing.T) {
	private, other := newAuthority(t, "private"), newAuthority(t, "other")
	system := x509.NewCertPool()
	system.AddCert(other.cert)
	a := newAuthorities(system, map[string]string{"git.corp.test": private.pem()})
	for _, who := range []authority{private, other} {
		leaf, _ := who.sign(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"git.corp.test"}}, who.cert, &who.key.PublicKey)
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "git.corp.test", Roots: a.of("git.corp.test")}); err != nil {
			t.Errorf("one of the two is not trusted: %v", err)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "x.corp.test", Roots: a.of("git.corp.test")}); err == nil {
			t.Error("the name is not checked")
		}
	}
	if leaf, _ := private.sign(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"x.test"}}, private.cert, &private.key.PublicKey); leaf != nil {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "x.test", Roots: a.of("x.test")}); err == nil {
			t.Error("the system's authorities were changed")
		}
	}
	port := private.server("other.corp.test")
	c := config(t, fmt.Sprintf("git.corp.test:%d", port))
	c.ExtraCAs = map[string]string{"git.corp.test": private.pem()}
	if got := visit(t, gatewayOf(t, c, toLoopback()), "git.corp.test", port); !strings.HasPrefix(got, "502 ") {
		t.Errorf("a certificate for another name: %q", got)
	}
}

func TestExtraCAsRefusals(t *testing.T) {
	good := newAuthority(t, "private").pem()
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("key")}))
	broken := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("none")}))
	for name, c := range map[string]struct {
		in   map[string]string
		want string
	}{
		"no certificate":      {map[string]string{"a.test": "hello"}, "the certificates for a.test: there is no certificate"},
		"nothing":             {map[string]string{"a.test": ""}, "there is no certificate"},
		"a broken one":        {map[string]string{"a.test": good + broken}, "one of them cannot be read"},
		"a key beside it":     {map[string]string{"a.test": good + key}, "there is a private key beside certificates"},
		"everything":          {map[string]string{"*": good}, `"*" is no host`},
		"a URL":               {map[string]string{"https://a.test": good}, "is no host"},
		"a port":              {map[string]string{"a.test:443": good}, "is no host"},
		"the same host twice": {map[string]string{"a.test": good, "A.test": good}, "the host a.test is given twice"},
		"too much":            {map[string]string{"a.test": strings.Repeat(good, 1000)}, "more than 262144"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ExtraCAs(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want %s", got, err, c.want)
			}
		})
	}
	got, err := ExtraCAs(map[string]string{"*.Bücher.test": "text\n" + good + "text\n", "192.0.2.7": good, "[2001:DB8::7]": good})
	if err != nil || len(got) != 3 || got["*.xn--bcher-kva.test"] != good || got["192.0.2.7"] != good || got["2001:db8::7"] != good {
		t.Errorf("got %v, %v", got, err)
	}
}
