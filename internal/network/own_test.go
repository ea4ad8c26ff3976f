package network

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ravi/internal/network/dial"
	"ravi/internal/network/inject"
)

// own asks a gateway for a connection as the sandbox.
func own(t *testing.T, call func(Hello) *net.UnixConn, address string) (net.Conn, Message) {
	t.Helper()
	c := call(Hello{Dial: address})
	var m Message
	line, err := bufio.NewReaderSize(io.LimitReader(oneByte{c}, 1<<20), 16).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, m
}

// oneByte reads no further than it must.
type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), 1)]) }

// What an owner connects to by way of a sandbox's network is decided on like what a process in there connects to: the
// rules of names, ports and paths hold, a secret is put in for its host, and all of it is told.
func TestOwnerConnectsAsTheSandbox(t *testing.T) {
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer web.Close()
	port := uint16(web.Listener.Addr().(*net.TCPAddr).Port)
	allow := func(string, netip.Addr, uint16) error { return nil }
	rule := fmt.Sprintf(`{"host":"example.com","ports":[%d],"paths":["/mcp/*"]}`, port)
	g := gatewayOf(t, config(t, rule), &dial.Server{
		Allow: allow, Check: allow,
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
	})
	g.system = x509.NewCertPool()
	g.system.AddCert(web.Certificate())
	g.trusted = newAuthorities(g.system, nil)
	const holder = "ravi-secret-token-0123456789abcdef0123456789abcdef"
	secret := inject.Secret{Name: "TOKEN", Value: "the-value", Placeholder: holder, Hosts: []string{fmt.Sprintf("example.com:%d", port)}, Headers: []string{"Authorization: Bearer {}"}}
	if err := g.SetSecrets([]inject.Secret{secret}); err != nil {
		t.Fatal(err)
	}
	call := called(t, g)
	for address, want := range map[string]string{
		fmt.Sprintf("other.example:%d", port): "other.example",
		"example.com:1":                       "1",
		fmt.Sprintf("127.0.0.1:%d", port):     "127.0.0.1",
		"echo.ravi.internal:80":               "no service",
		"example.com":                         "missing port",
		"example.com:0":                       "not a port",
	} {
		c, m := own(t, call, address)
		if !m.Done || !strings.Contains(m.Error, want) {
			t.Errorf("%s: %+v", address, m)
		}
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s: refused, and the connection goes on", address)
		}
	}
	roots := x509.NewCertPool()
	client := &http.Client{Transport: &http.Transport{DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		c, m := own(t, call, address)
		if m.Error != "" || !roots.AppendCertsFromPEM([]byte(m.CA)) {
			return nil, fmt.Errorf("%+v", m)
		}
		secure := tls.Client(c, &tls.Config{ServerName: "example.com", RootCAs: roots})
		return secure, secure.HandshakeContext(ctx)
	}}}
	defer client.CloseIdleConnections()
	ask := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("https://EXAMPLE.com:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+holder)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	// The value reached the server, and what it said of it did not come back.
	if status, text := ask("/mcp/x"); status != 200 || !strings.HasPrefix(text, "/mcp/x Bearer ") || strings.Contains(text, "the-value") {
		t.Errorf("%d %q", status, text)
	}
	if status, text := ask("/other"); status != http.StatusForbidden {
		t.Errorf("a path that no rule names: %d %q", status, text)
	}
	// An answer may be here before it is told of.
	var all []Event
	var put, refused bool
	for late := time.After(time.Minute); !put || !refused; {
		events, _, change := g.events.take()
		for _, e := range events {
			put = put || e.Allowed && e.Path == "/mcp/x" && len(e.Secrets) == 1 && e.Secrets[0] == "TOKEN"
			refused = refused || !e.Allowed && e.Path == "/other"
		}
		if all = append(all, events...); len(events) > 0 {
			continue
		}
		select {
		case <-change:
		case <-late:
			t.Fatalf("told were %+v", all)
		}
	}
}

// An owner cannot have more connections of a sandbox open than it is meant to.
func TestOwnersConnectionsAreBounded(t *testing.T) {
	g := gateway(t, "example.com:22")
	for range maxOwn {
		g.own <- struct{}{}
	}
	call := called(t, g)
	if _, m := own(t, call, "example.com:22"); !strings.Contains(m.Error, "the most") {
		t.Errorf("%+v", m)
	}
	<-g.own
	if _, m := own(t, call, "example.com:22"); m.Error != "" {
		t.Errorf("%+v", m)
	}
}
