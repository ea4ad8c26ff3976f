package intercept

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// both runs a test with HTTP/1 and HTTP/2, inside TLS.
func both(t *testing.T, test func(t *testing.T, h2 bool)) {
	t.Run("http1", func(t *testing.T) { test(t, false) })
	t.Run("h2", func(t *testing.T) { test(t, true) })
}

func TestPassesAsItIs(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		var sent http.Header
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			sent = r.Header.Clone()
			if (r.ProtoMajor == 2) != h2 {
				t.Errorf("the server was spoken to in %s", r.Proto)
			}
			w.Header()["Date"] = nil
			w.Header()["Content-Type"] = nil
			w.Header()["X-Two"] = []string{"a", "b"}
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(418)
			io.WriteString(w, "\x1f\x8b not really")
		})
		w := newWorld(t, addr(server), 443)
		c := w.client(h2)
		c.Transport.(*http.Transport).DisableCompression = true
		req, _ := http.NewRequest("DELETE", "https://site.test/p?q", nil)
		req.Header["User-Agent"] = nil
		req.Header.Set("X-Own", "1")
		req.Header.Set("Cookie", "a=b; c=d")
		for range 3 {
			resp, err := c.Do(req)
			if err == nil && (resp.Header["Date"] != nil || resp.Header["Content-Type"] != nil || len(resp.Header["X-Two"]) != 2 ||
				resp.Header.Get("Content-Encoding") != "gzip") {
				t.Errorf("the guest got %v", resp.Header)
			}
			if got := body(t, resp, err); got != "418 \x1f\x8b not really" {
				t.Errorf("got %q", got)
			}
			if len(sent) != 2 || sent.Get("X-Own") != "1" || sent.Get("Cookie") != "a=b; c=d" {
				t.Errorf("the server got %v", sent)
			}
			e := w.event()
			if !e.Allowed || e.Status != 418 || e.Path != "/p" || e.Method != "DELETE" || e.BytesIn != 13 || !e.TLS || (e.Proto == "h2") != h2 {
				t.Errorf("%+v", e)
			}
		}
		// The client may have made another one where it was slow to see that the first is free.
		if n := w.guests.Load(); int64(w.dialed()) > n || n == 0 {
			t.Errorf("%d connections for %d of the guest's", w.dialed(), n)
		}
	})
}

func TestTargetsAreKept(t *testing.T) {
	targets := []string{"/@scope%2fname", "/%21azure", "//", "//a/b", "//a|b", "/./a/../b", "/%00", "/?a=1;b", "/?", "/a?b?c", "/a//b?x=//y",
		"/\xc3\xa9", "/a|b^c{d}\"<>`", "/%zz?", "/?x=%zz", "/https://other.test/", "/" + strings.Repeat("q", 16_000), "/a?" + strings.Repeat("q", 16_000)}
	server, heads := headsServer(t)
	w := newWorld(t, server, 80)
	for _, target := range targets {
		got := ask(t, w.dial(), "GET "+target+" HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n")
		switch {
		case strings.HasPrefix(got, "HTTP/1.1 400"):
			if !strings.Contains(target, "%zz") {
				t.Errorf("%.60q: %q", target, got)
			}
			if len(heads) != 0 {
				t.Errorf("%.60q reached the server", target)
			}
		case strings.HasPrefix(got, "HTTP/1.1 200"):
			if line, _, _ := strings.Cut(<-heads, "\r\n"); line != "GET "+target+" HTTP/1.1" {
				t.Errorf("%.60q became %.60q", target, line)
			}
		default:
			t.Errorf("%.60q: %q", target, got)
		}
	}

	reached := make(chan string, 1)
	h2server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { reached <- r.RequestURI })
	w = newWorld(t, addr(h2server), 443)
	h := newRawH2(t, w.dialTLS("h2"))
	for i, target := range targets {
		status := h.get(uint32(2*i+1), [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", site}, {":path", target}})
		switch {
		case status == "200":
			if got := <-reached; got != target {
				t.Errorf("%.60q became %.60q", target, got)
			}
		case strings.HasPrefix(status, "4") || status == "": // net/http resets what it cannot parse
			if !strings.Contains(target, "%zz") {
				t.Errorf("%.60q: status %s", target, status)
			}
		default:
			t.Errorf("%.60q: status %s", target, status)
		}
	}
}

func TestAbsoluteFormOfTheHost(t *testing.T) {
	server, heads := headsServer(t)
	w := newWorld(t, server, 80)
	for sent, want := range map[string]string{
		"http://site.test/a//b?c": "/a//b?c", "HTTP://SITE.test:80": "/", "http://site.test?q": "/?q",
	} {
		if got := ask(t, w.dial(), "GET "+sent+" HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("%s: %q", sent, got)
			continue
		}
		if line, _, _ := strings.Cut(<-heads, "\r\n"); line != "GET "+want+" HTTP/1.1" {
			t.Errorf("%s became %q", sent, line)
		}
	}
}

func TestHopByHop(t *testing.T) {
	server, heads := headsServer(t)
	w := newWorld(t, server, 80)
	ask(t, w.dial(), "POST / HTTP/1.1\r\nHost: site.test\r\nConnection: close, X-Hop, Content-Length\r\nX-Hop: 1\r\nKeep-Alive: 1\r\n"+
		"TE: trailers, gzip\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\nContent-Length: 0\r\nX-Kept: 1\r\n\r\n")
	want := "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 0\r\nX-Kept: 1\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n"
	if got := <-heads; got != want {
		t.Errorf("the server got %q", got)
	}
}

// A request that was sent is never sent again, however it ended.
func TestNothingIsRepeated(t *testing.T) {
	requests := make(chan string, 10)
	server := rawServer(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		for n := 0; ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			requests <- req.RequestURI
			if n == 1 {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	w := newWorld(t, server, 80)
	get := func(p string) string { return "GET " + p + " HTTP/1.1\r\nHost: site.test\r\n\r\n" }
	got := ask(t, w.dial(), get("/1")+get("/2")+get("/3"))
	if got != "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" {
		t.Errorf("got %q", got)
	}
	if a, b := <-requests, <-requests; a != "/1" || b != "/2" || len(requests) != 0 {
		t.Errorf("the server got %s, %s and %d more", a, b, len(requests))
	}
	if w.dialed() != 1 {
		t.Errorf("%d connections", w.dialed())
	}
}

func TestServerFails(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing": "", "nonsense": "SSH-2.0-x\r\n\r\n", "half a head": "HTTP/1.1 200 OK\r\nA: b",
		"a head without end": "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 2<<20), "101 unasked": "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		server := rawServer(t, func(c *net.TCPConn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, answer)
		})
		w := newWorld(t, server, 80)
		got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 502 ") || strings.Contains(got, "X-Ravi-Refused") {
			t.Errorf("%s: got %.200q", name, got)
		}
		if e := w.event(); !e.Allowed || e.Status != 502 || e.Why == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	// A response that breaks off must not look whole.
	for name, answer := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	} {
		server := rawServer(t, func(c *net.TCPConn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, answer)
		})
		w := newWorld(t, server, 80)
		c := w.dial()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			continue // the reset may overtake it
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: looks whole", name)
		}
	}
}

func TestCannotConnect(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		w := newWorld(t, "127.0.0.1:1", 443)
		w.rules.request = func(_, path string) bool { return path == "/" }
		resp, err := w.client(h2).Get("https://site.test/")
		if got := body(t, resp, err); !strings.HasPrefix(got, "502 ravi: failed: GET / of site.test:443: cannot connect") {
			t.Errorf("got %q", got)
		}
		resp, err = w.client(h2).Get("https://site.test/no")
		if got := body(t, resp, err); !strings.HasPrefix(got, "403 ") {
			t.Errorf("got %q", got)
		}
	})
}

func TestServersCertificateIsVerified(t *testing.T) {
	other := tlsServerFor(t, "other.test", func(http.ResponseWriter, *http.Request) { t.Error("reached") })
	w := newWorld(t, addr(other), 443)
	resp, err := w.client(false).Get("https://site.test/")
	if got := body(t, resp, err); !strings.HasPrefix(got, "502 ") || !strings.Contains(got, "other.test") {
		t.Errorf("got %q", got)
	}
	unknown := tlsServer(t, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
	w = newWorld(t, addr(unknown), 443, func(w *world) {
		ca, _ := NewCA(time.Now)
		w.proxy.Roots = always(pool(ca))
	})
	resp, err = w.client(true).Get("https://site.test/")
	if got := body(t, resp, err); !strings.HasPrefix(got, "502 ") || !strings.Contains(got, "not to be trusted") {
		t.Errorf("got %q", got)
	}
}

func TestGuestRejectsCertificate(t *testing.T) {
	server := tlsServer(t, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
	w := newWorld(t, addr(server), 443)
	ca, _ := NewCA(time.Now)
	c := tls.Client(w.dial(), &tls.Config{ServerName: site, RootCAs: pool(ca)})
	if c.Handshake() == nil {
		t.Fatal("trusted")
	}
	if e := w.event(); e.Allowed || e.Proto != "tls" || !strings.Contains(e.Hint, "tls: passthrough for site.test") {
		t.Errorf("%+v", e)
	}
}
