package runner

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/backend/remote"
	"ravi/internal/memtest"
	"ravi/sandbox"
)

// site is an HTTPS server whose name is localhost, which answers with what it was sent.
type site struct {
	port int
	cert string // PEM, to be trusted
	mu   sync.Mutex
	got  []string
}

func newSite(t testing.TB) *site {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.got = append(s.got, r.Header.Get("Authorization"))
		s.mu.Unlock()
		fmt.Fprintf(w, "sent: %s", r.Header.Get("Authorization"))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.port = server.Listener.Addr().(*net.TCPAddr).Port
	return s
}

func (s *site) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// asks is a program that asks the site with its placeholder, and says what comes back.
const asks = lookUp + `
import os, ssl
try:
    c = ssl.create_default_context().wrap_socket(socket.create_connection((address(), int(sys.argv[1])), 120), server_hostname="localhost")
    c.sendall(("GET /%s HTTP/1.1\r\nHost: localhost:%s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n" % (sys.argv[2], sys.argv[1], os.environ["TOKEN"])).encode())
    b = b""
    while True:
        p = c.recv(65536)
        if not p: break
        b += p
    print(b.split(b"\r\n")[0].decode(), b.split(b"\r\n\r\n", 1)[1].decode())
except OSError as e: print("cut", type(e).__name__)
`

// taped keeps all that a wire carries.
type taped struct {
	net.Conn
	mu   sync.Mutex
	tape bytes.Buffer
}

func (c *taped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tape.Write(b[:n])
	return n, err
}

func (c *taped) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.tape.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *taped) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.tape.Bytes(), []byte(text))
}

// forms are what a value looks like where somebody encoded it. The middle of it is the same wherever base64 begins.
func forms(value string) []string {
	all := []string{value, hex.EncodeToString([]byte(value)), strings.ReplaceAll(value, "-", "%2D")}
	for skip := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", skip) + value))
		all = append(all, text[4:len(text)-4])
	}
	return all
}

// A secret is used from home: neither the session, nor the runner's memory or files, nor the sandbox ever have its value.
func TestSecretsStayHome(t *testing.T) {
	needNetwork(t)
	// This program is the runner as well, so what is looked for must not be part of it.
	value, second := "value-"+rand.Text(), "value-"+rand.Text()
	s, home := newSite(t), t.TempDir()
	other := echoServer(t)
	cmd, wire := alone(t, home)
	tape := &taped{Conn: wire}
	cfg := sandbox.Default()
	cfg.MemoryMiB = 512
	cfg.AllowNet.Rules = append(rules(s.port), rules(other)...)
	var events heard
	sb, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithBackend(remote.New(session(t, tape, true))), sandbox.WithNetEvents(events.hear),
		sandbox.WithExtraCAs(map[string]string{"localhost": s.cert}),
		sandbox.WithSecrets(sandbox.Secret{Name: "TOKEN", Value: sandbox.SecretValue(value), Hosts: []string{fmt.Sprintf("localhost:%d", s.port)}}))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	holder := sb.Placeholders()["TOKEN"]
	if got := python(t, sb, asks, fmt.Sprint(s.port), "one"); !strings.HasPrefix(got, "HTTP/1.1 200 OK ") || !strings.Contains(got, "sent: Bearer "+holder) {
		t.Errorf("the sandbox got %q", got)
	}
	if got := s.sent(); !slices.Equal(got, []string{"Bearer " + value}) {
		t.Errorf("the server got %q", got)
	}
	if err := sb.SetSecret(t.Context(), "TOKEN", sandbox.SecretValue(second)); err != nil {
		t.Fatal(err)
	}
	if got := python(t, sb, asks, fmt.Sprint(s.port), "two"); !strings.HasPrefix(got, "HTTP/1.1 200 OK") {
		t.Errorf("with another value: %q", got)
	}
	if got := s.sent(); len(got) != 2 || got[1] != "Bearer "+second {
		t.Errorf("the server got %q", got)
	}
	// What this process does as the sandbox goes the same way.
	client := &http.Client{Transport: sb.Transport(), Timeout: time.Minute}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://localhost.:%d/", s.port), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+holder)
	if _, err := client.Do(req); err == nil {
		t.Error("localhost is the sandbox's own")
	}
	client.CloseIdleConnections()

	// To where the secret does not belong the placeholder does not get, and who sends it is told of.
	if got := python(t, sb, strings.Replace(client2, "PLACEHOLDER", holder, 1), fmt.Sprint(other)); strings.Contains(got, holder) {
		t.Errorf("the placeholder got to another port: %q", got)
	}
	if err := sb.SetSecret(t.Context(), "TOKEN", ""); err != nil {
		t.Fatal(err)
	}
	if got := python(t, sb, asks, fmt.Sprint(s.port), "three"); !strings.HasPrefix(got, "HTTP/1.1 403") {
		t.Errorf("without a value: %q", got)
	}
	if len(s.sent()) != 2 {
		t.Errorf("the server got %q", s.sent())
	}

	// The search finds what is there: the placeholder.
	family, err := memtest.Family(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	wanted := append(append([]string{holder}, forms(value)...), forms(second)...)
	known := false
	for pid, line := range family {
		found, err := memtest.Holds(pid, wanted...)
		if err != nil {
			t.Error(err)
		}
		known = known || found[holder]
		for _, form := range wanted[1:] {
			if found[form] {
				t.Errorf("a value is in the memory of %s, as %q", line, form)
			}
		}
	}
	if len(family) < 6 || !known {
		t.Errorf("the search found the placeholder in none of %d processes: %v", len(family), family)
	}
	if !tape.has(holder) {
		t.Error("the tape has not even the placeholder")
	}
	for _, form := range wanted[1:] {
		if tape.has(form) {
			t.Errorf("a value went over the session, as %q", form)
		}
		err := filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(home, "lib")) {
				return err
			}
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(form)) {
				t.Errorf("a value is in %s, as %q", path, form)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	told := func() (used, refused, alarms int) {
		used = events.count(func(e sandbox.NetEvent) bool {
			return e.Kind == "flow" && e.Allowed && int(e.Port) == s.port && slices.Equal(e.Secrets, []string{"TOKEN"}) && e.Status == 200
		})
		refused = events.count(func(e sandbox.NetEvent) bool {
			return e.Kind == "flow" && !e.Allowed && int(e.Port) == s.port && e.Status == 403
		})
		return used, refused, events.count(func(e sandbox.NetEvent) bool { return e.Alarm && int(e.Port) == other })
	}
	// A connection that is over in the sandbox need not be over outside of it.
	eventually(t, "all requests are told of", func() bool {
		used, refused, alarms := told()
		return used > 1 && refused > 0 && alarms > 0
	})
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if used, refused, alarms := told(); used != 2 || refused != 1 || alarms != 1 {
		t.Errorf("%d requests had a secret, %d were refused, %d were alarming: %+v", used, refused, alarms, events.all)
	}
}

// client2 sends the placeholder somewhere else.
const client2 = lookUp + `
try: c = socket.create_connection((address(), int(sys.argv[1])), 120); c.sendall(b"PLACEHOLDER"); print(c.recv(1000).decode() or "cut")
except OSError as e: print("cut")
`

// Where the operator has a proxy, all connections leave through that, from home. The runner is told neither of it nor of
// its credentials.
func TestProxyStaysHome(t *testing.T) {
	needNetwork(t)
	g := newRig(t, Options{})
	var tape *taped
	g.tap = func(c net.Conn) net.Conn {
		tape = &taped{Conn: c}
		return tape
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 1000)
				n, _ := c.Read(b)
				asked <- string(b[:n])
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	password := rand.Text()
	auth := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(auth, []byte("me:"+password), 0o600); err != nil {
		t.Fatal(err)
	}
	var events heard
	sb := g.open(t, func(c *sandbox.Config) { c.AllowNet.Rules = []string{"a.example.com:4242"} }, sandbox.WithNetEvents(events.hear),
		sandbox.WithNetworkProxy(sandbox.NetworkProxy{URL: "http://" + l.Addr().String(), AuthFile: auth, ByName: true}))
	const say = `import socket
c = socket.create_connection(("a.example.com", 4242), 120); c.sendall(b"SSH-2.0-hello"); print(c.recv(100).decode() or "cut")`
	if got := python(t, sb, say); got != "SSH-2.0-hello\n" {
		t.Errorf("through the proxy: %q", got)
	}
	select {
	case got := <-asked:
		if !strings.HasPrefix(got, "CONNECT a.example.com:4242 ") || !strings.Contains(got, base64.StdEncoding.EncodeToString([]byte("me:"+password))) {
			t.Errorf("the proxy was asked %q", got)
		}
	default:
		t.Error("the proxy was not asked")
	}
	if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: []string{"b.example.com:4242"}}); err != nil {
		t.Fatal(err)
	}
	if got := python(t, sb, say); strings.Contains(got, "hello") {
		t.Errorf("what is not allowed any more: %q", got)
	}
	for _, text := range append(forms(password), l.Addr().String(), auth) {
		if tape.has(text) {
			t.Errorf("the runner is told %q", text)
		}
	}
	if !tape.has("a.example.com") {
		t.Error("the tape has not even the rules")
	}
	through := func() int {
		return events.count(func(e sandbox.NetEvent) bool { return e.Kind == "flow" && e.Allowed && e.Name == "a.example.com" })
	}
	eventually(t, "the connection is told of", func() bool { return through() > 0 })
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if through() != 1 {
		t.Errorf("heard: %+v", events.all)
	}
}
