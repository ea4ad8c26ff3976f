package sandbox_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ravi/sandbox"
)

// exampleCom is an HTTPS server that is example.com to sandboxes that are opened with these options: their proxy leads
// every name to it.
func exampleCom(t *testing.T, h http.Handler) []sandbox.Option {
	t.Helper()
	web := httptest.NewTLSServer(h)
	t.Cleanup(web.Close)
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}))
	proxy := onLoopback(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		up, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			return
		}
		defer up.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, in); up.Close() }()
		_, _ = io.Copy(c, up)
	})
	return []sandbox.Option{
		sandbox.WithNetworkProxy(sandbox.NetworkProxy{URL: fmt.Sprintf("http://127.0.0.1:%d", proxy), ByName: true}),
		sandbox.WithExtraCAs(map[string]string{"example.com": certificate}),
	}
}

// This process reaches by way of a sandbox what that may reach: its rules hold, its secrets are put in, its events
// tell of it, and the sandbox's own loopback is what localhost means.
func TestDial(t *testing.T) {
	home := t.TempDir()
	opts := exampleCom(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer the-value-itself" {
			fmt.Fprint(w, "let in at "+r.URL.Path)
		}
	}))
	var heard netEvents
	secret := aSecret()
	secret.Hosts = []string{"example.com"}
	sb := networked(t, home, []string{`{"host":"example.com","paths":["/mcp"]}`}, append(opts, sandbox.WithSecrets(secret), sandbox.WithNetEvents(heard.hear))...)
	held, err := sandbox.Attach(t.Context(), sb.ID, sandbox.WithHome(home))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, by := range map[string]*sandbox.Sandbox{"the owner": sb, "another": held} {
		transport := by.Transport()
		get := func(url string) (string, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+sb.Placeholders()["TOKEN"])
			res, err := transport.RoundTrip(req)
			if err != nil {
				return "", err
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			return fmt.Sprintf("%d %s", res.StatusCode, b), err
		}
		if got, err := get("https://example.com/mcp"); got != "200 let in at /mcp" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if got, err := get("https://example.com/other"); !strings.HasPrefix(got, "403 ") || err != nil {
			t.Errorf("%s: a path that no rule names: %q, %v", name, got, err)
		}
		if got, err := get("https://other.example/mcp"); !errors.Is(err, sandbox.ErrNotAllowed) || !strings.Contains(err.Error(), "other.example") {
			t.Errorf("%s: a name that no rule names: %q, %v", name, got, err)
		}
		transport.CloseIdleConnections()
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.Dial(canceled, "tcp", "example.com:443"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	if _, err := sb.Dial(t.Context(), "udp", "example.com:443"); err == nil {
		t.Error("there is a connection of udp")
	}
	own, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"python3", "-u", "-c",
		"import socket\ns = socket.create_server(('127.0.0.1', 8765))\nprint('ready')\nwhile True:\n c, _ = s.accept()\n c.sendall(b'inside')\n c.close()"}, Stdout: &lines{more: make(chan string, 9)}})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Kill(context.WithoutCancel(t.Context()))
	if got := output(t, sb, `until python3 -c "import socket; socket.create_connection(('127.0.0.1', 8765))" 2>/dev/null; do sleep 0.1; done; echo up`); got != "up\n" {
		t.Fatal(got)
	}
	for _, address := range []string{"localhost:8765", "127.0.0.1:8765"} {
		c, err := sb.Dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != "inside" || err != nil {
			t.Errorf("%s: %q, %v", address, b, err)
		}
		c.Close()
	}
	heard.await(t, "the secret", func(e sandbox.NetEvent) bool { return e.Allowed && e.Path == "/mcp" && len(e.Secrets) == 1 })
	heard.await(t, "what was refused", func(e sandbox.NetEvent) bool { return !e.Allowed && e.Name == "other.example" })
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Dial(t.Context(), "tcp", "example.com:443"); !errors.Is(err, sandbox.ErrEnded) && !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("of a sandbox that has ended: %v", err)
	}
}

// A sandbox without a network reaches nothing but itself, also for this process.
func TestDialWithoutNetwork(t *testing.T) {
	sb, err := sandbox.Open(t.Context(), sandbox.Default(), "", sandbox.WithHome(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if _, err := sb.Dial(t.Context(), "tcp", "example.com:443"); !errors.Is(err, sandbox.ErrNoNetwork) {
		t.Errorf("elsewhere: %v", err)
	}
	if _, err := sb.Dial(t.Context(), "tcp", "localhost:1"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("its own loopback: %v", err)
	}
}
