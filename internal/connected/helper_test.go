package connected

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const testKey = "rctx_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_AbCde"

// registryDoc is what a gateway tells a run that may comment.
const registryDoc = `{"version":"1","registry_hash":"h","commands":[
 {"name":"tasks.comment","group":"tasks","command":"comment","aliases":["note"],"summary":"Say something about a task","long":"Adds a comment to a task.\n\nEverybody who can see the task sees it.",
  "examples":[{"what":"from a file","line":"ravi tasks comment tsk1 --text-file notes.md"}],"access":"write","fields":[
  {"name":"task","type":"string","arg":"TASK","optional":false,"flag":"","short":"","value":"","usage":"the task","rest":false},
  {"name":"text","type":"string","arg":"","flag":"text","short":"t","value":"TEXT","usage":"what to say"},
  {"name":"urgent","type":"boolean","arg":"","flag":"urgent","short":"u","usage":"it cannot wait"},
  {"name":"limit","type":"integer","flag":"limit","short":"n","value":"N","usage":"at most so many"},
  {"name":"weight","type":"number","flag":"weight","usage":"how much it counts"},
  {"name":"max_age","type":"duration","flag":"max-age","usage":"how long it holds"},
  {"name":"labels","type":"strings","flag":"label","short":"l","value":"LABEL","usage":"a label"},
  {"name":"meta","type":"map","flag":"meta","short":"m","usage":"more to know"}]},
 {"name":"tasks.show","group":"tasks","command":"show","aliases":[],"summary":"Show a task","long":"","examples":[],"access":"read","fields":[
  {"name":"task","type":"string","arg":"TASK","optional":true,"usage":"the task"}]},
 {"name":"runs.kill","group":"runs","command":"kill","aliases":[],"summary":"End runs","long":"","examples":[],"access":"write","fields":[
  {"name":"all","type":"boolean","flag":"all","short":"a","usage":"all of them"},
  {"name":"why","type":"string","arg":"WHY","usage":"the reason"},
  {"name":"runs","type":"strings","arg":"RUN","optional":true,"usage":"the runs","rest":true}]},
 {"name":"bench.bench","group":"bench","command":"bench","aliases":[],"summary":"Measure","long":"","examples":[],"access":"read","fields":[]}
]}`

// got is one request that reached the gateway.
type got struct {
	method, path, accept, kind, auth, host string
	body                                   string
}

// gateway is a server that speaks the wire, and lets nothing else pass.
type gateway struct {
	t        *testing.T
	registry string

	mu     sync.Mutex
	seen   []got
	answer func(n int, w http.ResponseWriter, r *http.Request) // of the n-th POST, from 0
	before func(n int, w http.ResponseWriter) bool             // of the n-th request; true when it has answered
	posts  int
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Error(err)
	}
	g.mu.Lock()
	n, post := len(g.seen), g.posts
	g.seen = append(g.seen, got{r.Method, r.URL.RequestURI(), r.Header.Get("Accept"), r.Header.Get("Content-Type"), r.Header.Get("Authorization"), r.Host, string(body)})
	if r.Method == http.MethodPost {
		g.posts++
	}
	g.mu.Unlock()
	for name := range r.Header {
		switch name {
		case "Authorization", "Accept", "User-Agent", "Content-Type", "Content-Length":
		default:
			g.t.Errorf("a header that nobody asked for: %s", name)
		}
	}
	if g.before != nil && g.before(n, w) {
		return
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+testKey:
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "this is no key", "")
	case r.Method == http.MethodGet && r.URL.RequestURI() == "/api/v1/_meta/registry" && len(body) == 0:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, g.registry)
	case r.Method == http.MethodPost && r.Header.Get("Content-Type") == "application/json":
		var flat map[string]any
		if err := json.Unmarshal(body, &flat); err != nil || flat == nil {
			g.t.Errorf("the body is no object: %q", body)
		}
		if g.answer == nil {
			if r.Header.Get("Accept") == "text/plain" {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				_, _ = io.WriteString(w, "done\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"com1"}`)
			return
		}
		g.answer(post, w, r)
	default:
		g.t.Errorf("not of the wire: %s %s %q", r.Method, r.URL, body)
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no", "")
	}
}

func (g *gateway) requests() []got {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]got(nil), g.seen...)
}

func refuse(w http.ResponseWriter, status int, code, message, hint string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": code, "message": message, "hint": hint}})
}

// newGateway serves on loopback.
func newGateway(t *testing.T) (*gateway, string) {
	t.Helper()
	g := &gateway{t: t, registry: registryDoc}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	return g, s.URL
}

// newUnixGateway serves on a socket.
func newUnixGateway(t *testing.T, path string) *gateway {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, registry: registryDoc}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: g}}
	s.Start()
	t.Cleanup(s.Close)
	return g
}

// result is how a call ended.
type result struct {
	exit           int
	stdout, stderr string
	slept          []time.Duration
}

// clock is a time that passes by sleeping only.
type clock struct {
	mu    sync.Mutex
	at    time.Time
	slept []time.Duration
	woken func() // after each sleep
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	c.at = c.at.Add(d)
	c.slept = append(c.slept, d)
	woken := c.woken
	c.mu.Unlock()
	if woken != nil {
		woken()
	}
	return ctx.Err()
}

// ravi runs one command line.
func ravi(t *testing.T, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	return raviAt(t, &clock{at: time.Unix(1e9, 0)}, env, stdin, args...)
}

func raviAt(t *testing.T, c *clock, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := &Program{
		Getenv: func(name string) string { return env[name] },
		Stdin:  strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr, Version: "v1",
		sleep: c.sleep, now: c.now,
	}
	exit := p.Run(t.Context(), args)
	for _, out := range []string{stdout.String(), stderr.String()} {
		if strings.Contains(out, testKey) {
			t.Errorf("the key is shown: %s", out)
		}
		if strings.ContainsAny(out, "\x1b\x07\r\u009b\u202e") || !utf8.ValidString(out) {
			t.Errorf("a terminal would obey %q", out)
		}
	}
	return result{exit, stdout.String(), stderr.String(), c.slept}
}

func envOf(url string, more ...string) map[string]string {
	env := map[string]string{envKey: testKey, envURL: url}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

// errorOf reads the document that an error is with --json.
func errorOf(t *testing.T, r result) (code, message, hint string) {
	t.Helper()
	var doc map[string]map[string]string
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil || len(doc) != 1 || len(doc["error"]) != 3 {
		t.Fatalf("not the document of an error: %q (stderr %q)", r.stdout, r.stderr)
	}
	if r.stderr != "" {
		t.Errorf("the error is told twice: %q", r.stderr)
	}
	return doc["error"]["code"], doc["error"]["message"], doc["error"]["hint"]
}

func sameJSON(t *testing.T, got, want string) bool {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Errorf("%q: %v", got, err)
		return false
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatalf("%q: %v", want, err)
	}
	return reflect.DeepEqual(a, b)
}
