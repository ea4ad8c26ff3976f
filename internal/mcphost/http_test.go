package mcphost

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/sandbox"
)

// elsewhere serves as example.com, over HTTPS, to a sandbox that is opened with the options: their proxy leads every
// name to it.
func elsewhere(t *testing.T, h http.Handler) []sandbox.Option {
	t.Helper()
	web := httptest.NewTLSServer(h)
	t.Cleanup(web.Close)
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}))
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				up, err := net.Dial("tcp", web.Listener.Addr().String())
				if err != nil {
					return
				}
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
				go func() { _, _ = io.Copy(up, in); up.Close() }()
				_, _ = io.Copy(c, up)
			}()
		}
	}()
	return []sandbox.Option{
		sandbox.WithNetworkProxy(sandbox.NetworkProxy{URL: "http://" + l.Addr().String(), ByName: true}),
		sandbox.WithExtraCAs(map[string]string{"example.com": certificate}),
	}
}

// anyHost has a server take requests for example.com, which it is not.
var anyHost = &sdk.StreamableHTTPOptions{DisableLocalhostProtection: true}

// A server at a URL is reached under the sandbox's rules, with its secrets, and no further than its URL says.
func TestServersElsewhere(t *testing.T) {
	server := sdk.NewServer(&sdk.Implementation{Name: "elsewhere", Version: "1"}, nil)
	type none struct{}
	sdk.AddTool(server, &sdk.Tool{Name: "hello"}, func(context.Context, *sdk.CallToolRequest, none) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "hello from elsewhere"}}}, nil, nil
	})
	both := func(*http.Request) *sdk.Server { return server }
	known := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer the-value" || r.Header.Get("X-Team") != "blue" {
				http.Error(w, "who are you", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/open/mcp", known(sdk.NewStreamableHTTPHandler(both, anyHost)))
	mux.Handle("/open/sse", known(sdk.NewSSEHandler(both, &sdk.SSEOptions{DisableLocalhostProtection: true})))
	mux.Handle("/shut/mcp", known(sdk.NewStreamableHTTPHandler(both, anyHost)))
	mux.Handle("/open/moved", http.RedirectHandler("https://evil.example/", http.StatusTemporaryRedirect))
	mux.HandleFunc("/open/stray/sse", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: endpoint\ndata: https://evil.example/take\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/open/endless", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			if _, err := fmt.Fprintf(w, ": %s\n\n", strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	})
	secret := sandbox.Secret{Name: "TOKEN", Value: "the-value", Hosts: []string{"example.com"}}
	cfg := sandbox.Default()
	cfg.AllowNet.Rules = []string{`{"host":"example.com","paths":["/open/*"]}`, "evil.example"}
	sb := open(t, cfg, append(elsewhere(t, mux), sandbox.WithSecrets(secret))...)
	at := func(name, path string) Server {
		return Server{Name: name, URL: "https://example.com" + path, Headers: map[string]string{"Authorization": "Bearer ${TOKEN}", "X-Team": "blue"}}
	}
	other, unknown := at("other", "/open/mcp"), at("unknown", "/open/mcp")
	other.URL = "https://other.example:8443/mcp"
	unknown.Headers = nil
	e := newEar()
	h := connect(t, sb, e, at("http", "/open/mcp"), at("sse", "/open/sse"), at("shut", "/shut/mcp"), at("moved", "/open/moved"), at("stray", "/open/stray/sse"),
		at("endless", "/open/endless"), other, unknown)
	want := map[string]string{
		"http": "", "sse": "", "shut": "it answers 403 Forbidden: ", "moved": `it redirects to "https://evil.example/", which is not followed`,
		"stray": `it names another server, "evil.example", to go on with`, "endless": "more than 33554432 bytes",
		"other": "allow it with --allow-net other.example:8443", "unknown": "it answers 401 Unauthorized: who are you",
	}
	for _, st := range h.Servers() {
		if st.OK != (want[st.Name] == "") || !strings.Contains(st.Problem, want[st.Name]) || strings.ContainsRune(st.Problem, '\x1b') {
			t.Errorf("%+v, want %q", st, want[st.Name])
		}
	}
	for _, tool := range []string{"mcp_http_hello", "mcp_sse_hello"} {
		if got := works(t, h, tool, ""); got != "hello from elsewhere" {
			t.Errorf("%s: %q", tool, got)
		}
	}
}

// A server at a URL that goes away and comes back is found again.
func TestServerElsewhereThatComesBack(t *testing.T) {
	server := sdk.NewServer(&sdk.Implementation{Name: "elsewhere", Version: "1"}, nil)
	type none struct{}
	sdk.AddTool(server, &sdk.Tool{Name: "hello"}, func(context.Context, *sdk.CallToolRequest, none) (*sdk.CallToolResult, any, error) {
		return nil, nil, nil
	})
	fresh := make(chan http.Handler, 2)
	for range cap(fresh) { // each knows nothing of the conversations of the other
		fresh <- sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, anyHost)
	}
	now := <-fresh
	cfg := sandbox.Default()
	cfg.AllowNet.Rules = []string{"example.com"}
	restart := make(chan struct{}, 1)
	sb := open(t, cfg, elsewhere(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-restart:
			now = <-fresh // calls are made one after the other
		default:
		}
		now.ServeHTTP(w, r)
	}))...)
	e := newEar()
	h := ready(t, sb, e, Server{Name: "far", URL: "https://example.com/mcp"})
	works(t, h, "mcp_far_hello", "")
	restart <- struct{}{}
	text, failed, err := h.Call(t.Context(), "mcp_far_hello", nil)
	if err != nil {
		t.Fatal(err)
	}
	if failed { // it is one that had to know the conversation
		e.await(t, KindRestarted, "")
		works(t, h, "mcp_far_hello", "")
	} else {
		t.Logf("the protocol has no conversations: %s", text)
	}
}

// On the host backend servers are programs of this machine, and URLs are reached as this process reaches them.
func TestServersOnTheHost(t *testing.T) {
	server := sdk.NewServer(&sdk.Implementation{Name: "near", Version: "1"}, nil)
	type none struct{}
	sdk.AddTool(server, &sdk.Tool{Name: "hello"}, func(context.Context, *sdk.CallToolRequest, none) (*sdk.CallToolResult, any, error) {
		return nil, nil, nil
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	defer web.Close()
	script, err := filepath.Abs("testdata/server.py")
	if err != nil {
		t.Fatal(err)
	}
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	sb, e := open(t, cfg), newEar()
	h := connect(t, sb, e, Server{Name: "own", Command: "python3", Args: []string{script, "daemon"}}, Server{Name: "near", URL: web.URL})
	works(t, h, "mcp_own_count", "")
	if e.count(KindLog, slower) != 1 {
		t.Errorf("that its input and output are not its own was not told: %+v", e.events())
	}
	works(t, h, "mcp_near_hello", "")
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	left, err := sb.Processes(t.Context())
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %+v", err, left)
	}
}
