package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("GUARD_TEST_ROLE"); role != "" {
		os.Exit(play(role))
	}
	leaktest.Main(m)
}

// privateDir is a folder that a socket may lie in.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve serves on a listener until the test ends.
func serve(t *testing.T, l *Listener, h http.HandlerFunc, opts Options) *Server {
	t.Helper()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := New(h, opts)
	s.wordTime = time.Minute // a test may be slow to say, or to read, that there is no room
	over := make(chan error, 1)
	go func() { over <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx) // it may have been shut down, or have requests that hang on purpose
		if err := <-over; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// onTCP serves on loopback, and returns the address.
func onTCP(t *testing.T, h http.HandlerFunc, opts Options) (*Server, string) {
	t.Helper()
	l, err := ListenTCP("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, l, h, opts), l.Addr().String()
}

// reply is an answer as it came over the wire.
type reply struct {
	status int
	header http.Header
	body   string
}

// raw sends bytes as they are, and reads one answer. HOST stands for the address.
func raw(t *testing.T, addr, text string) reply {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text = strings.ReplaceAll(text, "HOST", addr)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no answer to %q: %v", text, err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{r.StatusCode, r.Header, string(b)}
}

// mustRefuse checks the form of a refusal.
func mustRefuse(t *testing.T, got reply, status int, code, says string) {
	t.Helper()
	if got.status != status {
		t.Errorf("status %d (%s), want %d", got.status, got.body, status)
		return
	}
	var doc map[string]map[string]string
	dec := json.NewDecoder(strings.NewReader(got.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil || len(doc) != 1 {
		t.Errorf("not an error document: %q", got.body)
		return
	}
	e := doc["error"]
	if e["code"] != code || !strings.Contains(e["message"], says) || e["hint"] == "" || len(e) != 3 {
		t.Errorf("got %v, want code %s and a message with %q and a hint", e, code, says)
	}
	if got.header.Get("Content-Type") != "application/json" {
		t.Errorf("Content-Type %q", got.header.Get("Content-Type"))
	}
	mustSeal(t, got.header)
}

// mustSeal checks the headers that every answer has, and those that none may have.
func mustSeal(t *testing.T, h http.Header) {
	t.Helper()
	if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("the answer is not sealed: %v", h)
	}
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("the answer opens itself to pages: %s", name)
		}
	}
}

// ok is a handler that says so.
func ok(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "reached") }
