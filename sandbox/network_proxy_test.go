package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/backend"
	"ravi/sandbox"
)

// httpProxy answers CONNECT for whoever has these credentials, and then is the server itself. It remembers what it was
// asked for.
type httpProxy struct {
	url   string
	mu    sync.Mutex
	asked []string
}

func newHTTPProxy(t *testing.T, credentials string) *httpProxy {
	t.Helper()
	p := &httpProxy{}
	p.url = fmt.Sprintf("http://127.0.0.1:%d", onLoopback(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.asked = append(p.asked, req.Method+" "+req.RequestURI)
		p.mu.Unlock()
		if req.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(credentials)) {
			fmt.Fprint(c, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		if _, err = http.ReadRequest(in); err == nil {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nthrough")
		}
	}))
	return p
}

func (p *httpProxy) takeAsked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

const proxyPassword = "correct-horse-battery"

func credentials(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

// fetch asks for a URL from inside, and returns status and text.
func fetch(t *testing.T, sb *sandbox.Sandbox, url string) string {
	t.Helper()
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: []string{"curl", "-sS", "-m", "100", "-w", " %{http_code}", url}})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v, %+v", err, res)
	}
	return res.Stdout
}

// What a sandbox reaches it reaches through the proxy, which is asked for the address, and whose credentials are
// nowhere but in the dialer.
func TestNetworkProxy(t *testing.T) {
	proxy := newHTTPProxy(t, "user:"+proxyPassword)
	direct := echoServer(t)
	home := t.TempDir()
	const there = "192.0.2.10:80" // nobody is there
	rules := []string{there, fmt.Sprintf("localhost:%d", direct), fmt.Sprintf("127.0.0.1:%d", direct)}
	p := sandbox.NetworkProxy{URL: proxy.url, AuthFile: credentials(t, "user:"+proxyPassword+"\n", 0o600)}
	sb := networked(t, home, rules, sandbox.WithNetworkProxy(p))
	for _, when := range []string{"opened", "with replaced rules"} {
		if got := fetch(t, sb, "http://"+there+"/"); got != "through 200" {
			t.Errorf("%s: got %q", when, got)
		}
		if got := proxy.takeAsked(); len(got) != 1 || got[0] != "CONNECT "+there {
			t.Errorf("%s: the proxy was asked %q", when, got)
		}
		if got := startTalk(t, sb, direct).say("direct"); got != "direct" {
			t.Errorf("%s: this machine: %q", when, got)
		}
		if got := proxy.takeAsked(); len(got) != 0 {
			t.Errorf("%s: the proxy was asked %q", when, got)
		}
		if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: rules}); err != nil {
			t.Fatal(err)
		}
	}
	if err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since it was listed
		}
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "/lib/") {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(proxyPassword)) {
			t.Errorf("%s holds the credential", path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // as above
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	own := 0
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		dir := filepath.Dir(name)
		var pid int
		if _, err := fmt.Sscanf(name, "/proc/%d/", &pid); err != nil || !isPartOf(pid, sb.ID) {
			continue
		}
		own++
		for _, file := range []string{"cmdline", "environ"} {
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil && bytes.Contains(b, []byte(proxyPassword)) {
				t.Errorf("%s of %d holds the credential", file, pid)
			}
		}
		open, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range open {
			if to, err := os.Readlink(fd); err == nil && to == p.AuthFile {
				t.Errorf("the process %d has the file with the credential open", pid)
			}
		}
	}
	if own < 2 {
		t.Errorf("only %d processes of the sandbox were looked at", own)
	}
}

// Why a proxy does not connect is told, with what mends it.
func TestNetworkProxyThatRefuses(t *testing.T) {
	proxy := newHTTPProxy(t, "user:"+proxyPassword)
	for name, c := range map[string]struct{ credentials, says string }{
		"without credentials": {"", "wants a user and a password: set network.proxy_auth_file in config.json"},
		"with others":         {"user:" + proxyPassword + "-old", "does not take the user and password in the file of network.proxy_auth_file"},
	} {
		t.Run(name, func(t *testing.T) {
			p := sandbox.NetworkProxy{URL: proxy.url}
			if c.credentials != "" {
				p.AuthFile = credentials(t, c.credentials, 0o400)
			}
			var heard netEvents
			sb := networked(t, t.TempDir(), []string{"192.0.2.10:80"}, sandbox.WithNetworkProxy(p), sandbox.WithNetEvents(heard.hear))
			got := fetch(t, sb, "http://192.0.2.10/")
			if !strings.HasSuffix(got, " 502") || !strings.Contains(got, c.says) || strings.Contains(got, proxyPassword) {
				t.Errorf("the program inside was told %q", got)
			}
			heard.await(t, "the refusal", func(e sandbox.NetEvent) bool { return strings.Contains(e.Why, proxy.url) })
			if err := sb.Close(); err != nil {
				t.Fatal(err)
			}
			heard.mu.Lock()
			defer heard.mu.Unlock()
			why := ""
			for _, e := range heard.all {
				why += e.Why + "\n"
			}
			if want := "the proxy " + proxy.url + " refuses 192.0.2.10:80: 407 Proxy Authentication Required; it " + c.says; !strings.Contains(why, want) || strings.Contains(why, proxyPassword) {
				t.Errorf("what was told is %q, want %q", why, want)
			}
		})
	}
}

// A proxy that cannot be used as it is set is no reason to go on without it.
func TestNetworkProxyRefusals(t *testing.T) {
	good := sandbox.NetworkProxy{URL: "http://127.0.0.1:3128"}
	for name, c := range map[string]struct {
		backend, stage, says string
		change               func(*sandbox.NetworkProxy)
	}{
		"no URL":               {"gvisor", "config", "no URL that begins with", func(p *sandbox.NetworkProxy) { p.URL = "proxy.example:3128" }},
		"in TLS":               {"gvisor", "config", "in TLS, which Ravi does not do", func(p *sandbox.NetworkProxy) { p.URL = "https://127.0.0.1:3128" }},
		"no rule":              {"gvisor", "config", "proxy_direct", func(p *sandbox.NetworkProxy) { p.Direct = []string{"a b"} }},
		"more than where":      {"gvisor", "config", "only a host or network", func(p *sandbox.NetworkProxy) { p.Direct = []string{`{"host":"a.example","methods":["GET"]}`} }},
		"a file somewhere":     {"gvisor", "config", "not an absolute path", func(p *sandbox.NetworkProxy) { p.AuthFile = "auth" }},
		"on the host":          {"host", "config", "on the host the network is open", func(p *sandbox.NetworkProxy) {}},
		"a file for everybody": {"gvisor", "create", "(mode 0644): chmod 0600", func(p *sandbox.NetworkProxy) { p.AuthFile = credentials(t, "user:"+proxyPassword, 0o644) }},
		"no file":              {"gvisor", "create", "no such file", func(p *sandbox.NetworkProxy) { p.AuthFile = "/nowhere/auth" }},
		"no credentials in it": {"gvisor", "create", "are not one line USER:PASSWORD", func(p *sandbox.NetworkProxy) { p.AuthFile = credentials(t, proxyPassword+"\n", 0o600) }},
	} {
		t.Run(name, func(t *testing.T) {
			if c.stage == "create" && os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: without root there is no network device here")
			}
			p := good
			c.change(&p)
			cfg := sandbox.Default()
			cfg.Backend = c.backend
			if c.backend == "gvisor" {
				cfg.AllowNet.Rules = []string{"a.example"}
			}
			_, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithNetworkProxy(p))
			var ie *sandbox.InitError
			if !errors.As(err, &ie) || ie.Stage != c.stage || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), proxyPassword) {
				t.Errorf("got %v, want a failure of %s that says %q", err, c.stage, c.says)
			}
			if c.backend == "host" && !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// secureServer is an HTTPS server on loopback, called localhost, whose certificate is its own authority.
func secureServer(t *testing.T) (port, certificate string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ours"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secure") }))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of those that do not trust it
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return port, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// visitSecure asks the gateway for localhost, which the guest's own files answer otherwise, and then https://localhost.
const visitSecure = `import http.client, socket, ssl, struct, sys
q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x09localhost\0\0\1\0\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(100); s.sendto(q, ("192.168.127.1", 53)); a = s.recv(512)
raw = socket.create_connection((socket.inet_ntoa(a[-4:]), int(sys.argv[1])), 100)
c = http.client.HTTPSConnection("localhost:" + sys.argv[1])
c.sock = ssl.create_default_context().wrap_socket(raw, server_hostname="localhost")
c.request("GET", "/"); r = c.getresponse(); print(r.status, r.read().decode())
`

// A server of an authority that only the operator knows is reached if that is set for its host. However many there
// are, they get to the gateway.
func TestNetworkExtraCAs(t *testing.T) {
	port, certificate := secureServer(t)
	rules := []string{"localhost:" + port, "127.0.0.1:" + port}
	many := strings.Repeat(certificate, 200)
	if len(many) < 100_000 {
		t.Fatalf("%d bytes are not many", len(many))
	}
	for name, c := range map[string]struct {
		extra map[string]string
		want  string
	}{
		"without":      {nil, "502 "},
		"another host": {map[string]string{"other.example": certificate, "*.localhost": certificate}, "502 "},
		"this host":    {map[string]string{"localhost": certificate}, "200 secure"},
		"many":         {map[string]string{"localhost": many}, "200 secure"},
	} {
		t.Run(name, func(t *testing.T) {
			sb := networked(t, t.TempDir(), rules, sandbox.WithExtraCAs(c.extra))
			for _, when := range []string{"opened", "with replaced rules"} {
				res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: []string{"python3", "-c", visitSecure, port}})
				if err != nil || res.ExitCode != 0 || !strings.HasPrefix(res.Stdout, c.want) {
					t.Errorf("%s: %v, %+v, want %s", when, err, res, c.want)
				}
				if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: rules}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	t.Run("no certificate", func(t *testing.T) {
		_, err := sandbox.Open(context.WithoutCancel(t.Context()), sandbox.Default(), "", sandbox.WithHome(t.TempDir()), sandbox.WithExtraCAs(map[string]string{"a.example": "none"}))
		var ie *sandbox.InitError
		if !errors.As(err, &ie) || ie.Stage != "config" || !strings.Contains(err.Error(), "extra_cas: the certificates for a.example: there is no certificate") {
			t.Errorf("got %v", err)
		}
	})
}
