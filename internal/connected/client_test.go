package connected

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/porttest"
)

var show, comment = []string{"tasks", "show", "tsk1"}, []string{"tasks", "comment", "tsk1"}

func total(waits []time.Duration) (sum time.Duration) {
	for _, w := range waits {
		sum += w
	}
	return sum
}

func TestAwayForAWhile(t *testing.T) {
	for _, args := range [][]string{show, comment} {
		g, url := newGateway(t)
		g.before = func(n int, w http.ResponseWriter) bool {
			if n == 0 || n == 2 || n == 3 { // the list once, the command twice
				w.Header().Set("Retry-After", "5")
				refuse(w, 503, "UNAVAILABLE", "nobody there", "try again")
				return true
			}
			return false
		}
		r := ravi(t, envOf(url), "", args...)
		if r.exit != 0 || r.stdout != "done\n" || r.stderr != "" || len(r.slept) != 3 {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestAwayForLonger(t *testing.T) {
	g, url := newGateway(t)
	g.before = func(n int, w http.ResponseWriter) bool {
		if n == 0 {
			return false
		}
		refuse(w, 503, "UNAVAILABLE", "nobody there", "try again in a few seconds")
		return true
	}
	for _, c := range []struct {
		wait string
		want time.Duration
	}{{"", 10 * time.Second}, {"3s", 3 * time.Second}, {"0", 0}} {
		g.mu.Lock()
		g.seen = nil
		g.mu.Unlock()
		r := ravi(t, envOf(url, envWait, c.wait), "", append(show, "--json")...)
		code, message, hint := errorOf(t, r)
		if r.exit != ExitUnavailable || code != "UNAVAILABLE" || !strings.HasPrefix(message, "nobody there") || hint == "" || total(r.slept) != c.want {
			t.Errorf("%s: %+v", c.wait, r)
		}
		if !slices.IsSortedFunc(r.slept[:max(len(r.slept)-1, 0)], func(a, b time.Duration) int { return int(a - b) }) || len(r.slept) > 12 {
			t.Errorf("%s: it waited %v", c.wait, r.slept)
		}
	}
	// Not even JSON: something before the gateway.
	g.before = func(n int, w http.ResponseWriter) bool { w.WriteHeader(503); return true }
	r := ravi(t, envOf(url), "", append(show, "--json")...)
	if code, _, _ := errorOf(t, r); code != codeUnavailable || r.exit != ExitUnavailable {
		t.Errorf("%+v", r)
	}
}

func TestNobodyListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "g.sock")
	for _, args := range [][]string{show, comment} {
		r := ravi(t, envOf("unix:"+path), "", args...)
		if r.exit != ExitUnavailable || total(r.slept) != defaultWait || !strings.Contains(r.stderr, "does not answer") || !strings.Contains(r.stderr, "waited 10s") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	// It comes while it is waited for.
	c := &clock{at: time.Unix(1e9, 0)}
	var g *gateway
	c.woken = func() {
		if len(c.slept) == 3 {
			g = newUnixGateway(t, path)
		}
	}
	if r := raviAt(t, c, envOf("unix:"+path), "", comment...); r.exit != 0 || r.stdout != "done\n" || len(g.requests()) != 2 {
		t.Errorf("%+v", r)
	}
	if r := ravi(t, envOf(fmt.Sprint("http://127.0.0.1:", porttest.Free(t))), "", comment...); r.exit != ExitUnavailable || !strings.Contains(r.stderr, "connection refused") {
		t.Errorf("%+v", r)
	}
}

func TestWhatWaitingDoesNotMend(t *testing.T) {
	if r := ravi(t, envOf("https://no-such-name.invalid"), "", show...); r.exit != ExitUnavailable || len(r.slept) > 0 && !strings.Contains(r.stderr, "waited") {
		t.Errorf("a name that is not there: %+v", r)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a key was sent to a server that nobody vouches for")
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	if r := ravi(t, envOf(s.URL), "", show...); r.exit != ExitUnavailable || len(r.slept) != 0 || !strings.Contains(r.stderr, "x509") {
		t.Errorf("a certificate that nobody vouches for: %+v", r)
	}
}

func TestTooMany(t *testing.T) {
	g, url := newGateway(t)
	after := "3"
	times := 1
	g.answer = func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < times {
			w.Header().Set("Retry-After", after)
			refuse(w, 429, "TOO_MANY", "slow down", "")
			return
		}
		_, _ = io.WriteString(w, "done\n")
	}
	if r := ravi(t, envOf(url), "", comment...); r.exit != 0 || r.stdout != "done\n" || !slices.Equal(r.slept, []time.Duration{3 * time.Second}) {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct {
		after string
		slept time.Duration
		posts int
	}{
		{"11", 0, 1}, {"999999999999999999999", 10 * time.Second, 11}, {"-1", 10 * time.Second, 11},
		{"4", 8 * time.Second, 3}, {"0", 10 * time.Second, 101},
	} {
		g.mu.Lock()
		after, times, g.posts = c.after, 1000, 0
		g.mu.Unlock()
		r := ravi(t, envOf(url), "", append(comment, "--json")...)
		if code, _, _ := errorOf(t, r); code != "TOO_MANY" || r.exit != ExitFailed || total(r.slept) != c.slept || g.posts != c.posts {
			t.Errorf("Retry-After %s: %d requests, %+v", c.after, g.posts, r)
		}
	}
}

// cutter answers the list, and cuts the connection of the first calls: before their answer, or within it.
func cutter(t *testing.T, within bool, times int) (url string, posts *atomic.Int32) {
	t.Helper()
	posts = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, registryDoc)
			return
		}
		if int(posts.Add(1)) > times {
			_, _ = io.WriteString(w, "done\n")
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		if within {
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		}
		conn.Close()
	}))
	t.Cleanup(s.Close)
	return s.URL, posts
}

func TestAWriteIsNotRepeatedWhenItsOutcomeIsNotKnown(t *testing.T) {
	for _, within := range []bool{false, true} {
		url, posts := cutter(t, within, 1)
		r := ravi(t, envOf(url), "", append(comment, "--json")...)
		if code, message, hint := errorOf(t, r); code != codeUncertain || r.exit != ExitFailed || posts.Load() != 1 ||
			!strings.Contains(message, "tasks.comment") || !strings.Contains(message, "or not") || hint == "" {
			t.Errorf("within %v: %d times, %+v", within, posts.Load(), r)
		}
		url, posts = cutter(t, within, 2)
		if r := ravi(t, envOf(url), "", show...); r.exit != 0 || r.stdout != "done\n" || posts.Load() != 3 {
			t.Errorf("reading, within %v: %d times, %+v", within, posts.Load(), r)
		}
		url, _ = cutter(t, within, 1000)
		if r := ravi(t, envOf(url), "", show...); r.exit != ExitUnavailable || total(r.slept) != defaultWait {
			t.Errorf("reading for ever, within %v: %+v", within, r)
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the other host was asked: %s %s, %v", r.Method, r.URL, r.Header)
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, at := range []int{0, 1} {
			g, url := newGateway(t)
			for _, to := range []string{other.URL + "/api/v1/tasks/show", url + "/elsewhere"} {
				g.mu.Lock()
				g.seen = nil
				g.mu.Unlock()
				g.before = func(n int, w http.ResponseWriter) bool {
					if n == at {
						w.Header().Set("Location", to)
						w.WriteHeader(status)
					}
					return n == at
				}
				r := ravi(t, envOf(url), "", show...)
				if r.exit != ExitFailed || !strings.Contains(r.stderr, "redirects are not followed") || len(g.requests()) != at+1 {
					t.Errorf("%d to %s: %+v", status, to, r)
				}
			}
		}
	}
}

// The proxy's variables are read once in a process, so this is one of its own.
func TestProxiesAreNotUsed(t *testing.T) {
	const mark = "RAVI_TEST_PROXY"
	if os.Getenv(mark) == "" {
		proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("the proxy was asked: %s %s, %v", r.Method, r.URL, r.Header)
		}))
		defer proxy.Close()
		cmd := exec.Command(os.Args[0], "-test.run=^TestProxiesAreNotUsed$")
		cmd.Env = append(os.Environ(), mark+"=1", "NO_PROXY=", "no_proxy=")
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
			cmd.Env = append(cmd.Env, name+"="+proxy.URL)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	// An address of this machine's never goes through a proxy, so one that is not is asked for, and led here.
	s := httptest.NewServer(&gateway{t: t, registry: registryDoc})
	defer s.Close()
	c := newClient(target{base: "http://" + serviceHost, key: testKey}, nil, nil)
	defer c.close()
	dialed := ""
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		dialed = address
		return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
	}
	if _, err := c.registry(t.Context()); err != nil || dialed != serviceHost+":80" {
		t.Errorf("it dialed %s: %v", dialed, err)
	}
}

func TestLargeAnswers(t *testing.T) {
	g, url := newGateway(t)
	endless := func(w http.ResponseWriter) {
		w.WriteHeader(200)
		block := []byte(strings.Repeat(" ", 1<<20))
		for range 1 << 10 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
		t.Error("all of it was read")
	}
	g.before = func(_ int, w http.ResponseWriter) bool { endless(w); return true }
	if r := ravi(t, envOf(url), "", show...); r.exit != ExitFailed || !strings.Contains(r.stderr, "larger than") {
		t.Errorf("the list: %+v", r)
	}
	g.before = nil
	g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) { endless(w) }
	for _, args := range [][]string{show, comment} {
		if r := ravi(t, envOf(url), "", args...); r.exit != ExitFailed || !strings.Contains(r.stderr, "larger than") || len(r.slept) != 0 {
			t.Errorf("an answer: %+v", r)
		}
	}
	g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 1<<20))
	}
	if r := ravi(t, envOf(url), "", comment...); r.exit != ExitFailed || len(r.stderr) > 2000 {
		t.Errorf("a header: %+v", r)
	}
	// What is compressed is not what was asked for.
	g.answer = func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write([]byte("\x1f\x8b\x08\x00"))
	}
	if r := ravi(t, envOf(url), "", show...); !strings.Contains(r.stdout, `\x1f`) {
		t.Errorf("compressed: %+v", r)
	}
}

// A stranger in the gateway's place that does not speak HTTP.
func TestAnswersThatAreNotHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, "SSH-2.0-\x1b]0;x\a"+strings.Repeat("y", 5000)+"\r\n")
			c.Close()
		}
	}()
	if r := ravi(t, envOf("http://"+l.Addr().String(), envWait, "0"), "", show...); r.exit != ExitUnavailable || len(r.stderr) > 1000 {
		t.Errorf("%+v", r)
	}
	l.Close()
	<-over
}

func TestTheTLSOfTheGatewayIsModern(t *testing.T) {
	g := &gateway{t: t, registry: registryDoc}
	s := httptest.NewUnstartedServer(g)
	s.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	if r := ravi(t, envOf(s.URL, envWait, "0"), "", show...); r.exit != ExitUnavailable || !strings.Contains(r.stderr, "protocol version") {
		t.Errorf("%+v", r)
	}
}
