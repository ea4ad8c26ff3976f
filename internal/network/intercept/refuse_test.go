package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every head that must not reach the server, over plain HTTP and inside TLS.
var badHeads = []struct {
	name, raw, status string
}{
	{"another host", "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", "403"},
	{"a subdomain", "GET / HTTP/1.1\r\nHost: a.site.test\r\n\r\n", "403"},
	{"another port", "GET / HTTP/1.1\r\nHost: site.test:1\r\n\r\n", "403"},
	{"an empty port", "GET / HTTP/1.1\r\nHost: site.test:\r\n\r\n", "403"},
	{"a port with zeros", "GET / HTTP/1.1\r\nHost: site.test:0443\r\n\r\n", "403"},
	{"a user", "GET / HTTP/1.1\r\nHost: u@site.test\r\n\r\n", "403"},
	{"two dots", "GET / HTTP/1.1\r\nHost: site.test..\r\n\r\n", "403"},
	{"letters that fold", "GET / HTTP/1.1\r\nHost: \u017fite.test\r\n\r\n", "403"},
	{"a tab after the host", "GET / HTTP/1.1\r\nHost: site.test\t\r\n\r\n", "403"},
	{"a blank in the host", "GET / HTTP/1.1\r\nHost: site.test other.test\r\n\r\n", "403"},
	{"a list of hosts", "GET / HTTP/1.1\r\nHost: site.test,other.test\r\n\r\n", "403"},
	{"an empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "403"},
	{"no host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", "400"},
	{"no host, old", "GET / HTTP/1.0\r\n\r\n", "400"},
	{"two hosts", "GET / HTTP/1.1\r\nHost: site.test\r\nHost: other.test\r\n\r\n", "400"},
	{"the host twice", "GET / HTTP/1.1\r\nHost: site.test\r\nHost: site.test\r\n\r\n", "400"},
	{"CONNECT", "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", "403"},
	{"CONNECT to the host", "CONNECT site.test:443 HTTP/1.1\r\nHost: site.test:443\r\n\r\n", "403"},
	{"absolute form elsewhere", "GET http://other.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "403"},
	{"absolute form elsewhere, TLS", "GET https://other.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "403"},
	{"absolute form and another host", "GET SCHEME://site.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "403"},
	{"absolute form with a user", "GET SCHEME://site.test@other.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "403"},
	{"absolute form of another scheme", "GET ftp://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "403"},
	{"no path", "GET site.test HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
	{"a star", "GET * HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
	{"a fragment", "GET /a#b HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
	{"a bad escape", "GET /%zz HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
	{"a blank in the path", "GET /a b HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
	{"a tab in the path", "GET /a\tb HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
	{"length and coding", "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG", "400"},
	{"coding and length", "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nG", "400"},
	{"two lengths", "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
	{"a length twice", "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "400"},
	{"a list of lengths", "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 1, 1\r\n\r\na", "400"},
	{"a signed length", "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: +1\r\n\r\na", "400"},
	{"a huge length", "POST / HTTP/1.1\r\nHost: site.test\r\nContent-Length: 99999999999999999999\r\n\r\na", "400"},
	{"two codings", "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
	{"an odd coding", "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"},
	{"a coding with a tab", "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", "400"},
	{"identity coding", "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n\r\na", "400"},
	{"coding in an old request", "POST / HTTP/1.0\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
	{"a blank before the colon", "POST / HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400"},
	{"a continued line", "GET / HTTP/1.1\r\nHost: site.test\r\nA: b\r\n c\r\n\r\n", "400"},
	{"a continued host", "GET / HTTP/1.1\r\nHost: site.test\r\n\tother.test\r\n\r\n", "400"},
	{"a continued first line", "GET / HTTP/1.1\r\n Host: other.test\r\nHost: site.test\r\n\r\n", "400"},
	{"a bare LF", "GET / HTTP/1.1\r\nHost: site.test\nA: b\r\n\r\n", "400"},
	{"only LF", "GET / HTTP/1.1\nHost: site.test\n\n", "400"},
	{"a bare CR", "GET / HTTP/1.1\r\nHost: site.test\r\nA: b\rC: d\r\n\r\n", "400"},
	{"a NUL", "GET / HTTP/1.1\r\nHost: site.test\r\nA: b\x00c\r\n\r\n", "400"},
	{"no colon", "GET / HTTP/1.1\r\nHost: site.test\r\nabc\r\n\r\n", "400"},
	{"an empty line first", "\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n", "400"},
	{"version 2.0", "GET / HTTP/2.0\r\nHost: site.test\r\n\r\n", "400"},
	{"version 1.2", "GET / HTTP/1.2\r\nHost: site.test\r\n\r\n", "400"},
	{"version 0.9", "GET /\r\n\r\n", "400"},
	{"an odd method", "GE(T / HTTP/1.1\r\nHost: site.test\r\n\r\n", "400"},
}

func TestBadHeads(t *testing.T) {
	for _, tc := range badHeads {
		t.Run("plain/"+tc.name, func(t *testing.T) {
			server, heads := headsServer(t)
			w := newWorld(t, server, 80)
			got := ask(t, w.dial(), strings.ReplaceAll(tc.raw, "SCHEME", "http"))
			checkRefused(t, w, got, tc.status, tc.name == "an odd method")
			if w.dialed() != 0 || len(heads) != 0 {
				t.Errorf("the server was reached, and got %d heads", len(heads))
			}
		})
		t.Run("tls/"+tc.name, func(t *testing.T) {
			server := tlsServer(t, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
			w := newWorld(t, addr(server), 443)
			got := ask(t, w.dialTLS("http/1.1"), strings.ReplaceAll(tc.raw, "SCHEME", "https"))
			checkRefused(t, w, got, tc.status, false)
		})
		t.Run("second/"+tc.name, func(t *testing.T) {
			server, heads := headsServer(t)
			w := newWorld(t, server, 80)
			c := w.dial()
			good := "GET /good HTTP/1.1\r\nHost: site.test\r\n\r\n"
			got := ask(t, c, good+strings.ReplaceAll(tc.raw, "SCHEME", "http"))
			ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
			if !strings.HasPrefix(got, ok) {
				t.Fatalf("got %q", got)
			}
			if e := w.event(); !e.Allowed || e.Status != 200 {
				t.Errorf("%+v", e)
			}
			checkRefused(t, w, got[len(ok):], tc.status, false)
			if len(heads) != 1 {
				t.Errorf("the server got %d heads", len(heads))
			}
		})
	}
}

// checkRefused looks at an answer of ours. Before the first request it may be
// that nothing was HTTP; then the connection is cut and nothing answered.
func checkRefused(t *testing.T, w *world, got, status string, cut bool) {
	t.Helper()
	e := w.event()
	if e.Allowed || e.Why == "" {
		t.Errorf("event %+v", e)
	}
	w.noMoreEvents()
	if cut {
		if got != "" {
			t.Errorf("got %q", got)
		}
		return
	}
	if !strings.HasPrefix(got, "HTTP/1.1 "+status+" ") || !strings.Contains(got, "X-Ravi-Refused: 1\r\n") || !strings.Contains(got, site) {
		t.Errorf("got %q", got)
	}
	if e.Proto != "http/1.1" || strings.TrimSpace(status) != status || e.Status/100 != 4 {
		t.Errorf("event %+v", e)
	}
}

func TestGoodHosts(t *testing.T) {
	for _, tc := range []struct{ sent, want string }{
		{"site.test", "site.test"}, {"site.test:80", "site.test:80"}, {"SITE.Test", "site.test"},
		{"site.test.", "site.test"}, {"Site.test.:80", "site.test:80"},
	} {
		server, heads := headsServer(t)
		w := newWorld(t, server, 80)
		got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: "+tc.sent+"\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("%s: got %q", tc.sent, got)
			continue
		}
		if head := <-heads; head != "GET / HTTP/1.1\r\nHost: "+tc.want+"\r\nConnection: close\r\n\r\n" {
			t.Errorf("%s: the server got %q", tc.sent, head)
		}
	}
}

func TestDecider(t *testing.T) {
	server, heads := headsServer(t)
	w := newWorld(t, server, 8080)
	w.rules.request = func(method, path string) bool { return method == "GET" && path == "/a%2fb" }
	c := w.dial()
	got := ask(t, c, "GET /a%2fb?x=/../y HTTP/1.1\r\nHost: site.test\r\n\r\nGET /a/b HTTP/1.1\r\nHost: site.test\r\n\r\nGET /a%2fb HTTP/1.1\r\nHost: site.test\r\n\r\n")
	if n := strings.Count(got, "HTTP/1.1 "); n != 2 || !strings.Contains(got, "403 Forbidden") {
		t.Fatalf("got %q", got)
	}
	for _, want := range []string{"not on the list", "--allow-net site.test:8080", "GET /a/b"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if len(heads) != 1 {
		t.Errorf("the server got %d heads", len(heads))
	}
	if want := []string{"GET /a%2fb", "GET /a/b"}; !slices.Equal(w.rules.asked(), want) {
		t.Errorf("asked %q", w.rules.asked())
	}
	if e := w.event(); e.Path != "/a%2fb" || !e.Allowed || e.Rule != "rule" {
		t.Errorf("%+v", e)
	}
	if e := w.event(); e.Path != "/a/b" || e.Allowed || e.Status != 403 || e.Hint == "" {
		t.Errorf("%+v", e)
	}
}

func TestConnectRefused(t *testing.T) {
	w := newWorld(t, "127.0.0.1:1", 443, func(w *world) { w.rules.connect = Verdict{Why: "no rule names it"} })
	// The reset may come before the dialler saw that it was connected.
	if c, err := net.Dial("tcp", w.listen.Addr().String()); err == nil {
		defer c.Close()
		if got := ask(t, c, ""); got != "" {
			t.Errorf("got %q", got)
		}
	}
	if e := w.event(); e.Allowed || e.Why != "no rule names it" || !strings.Contains(e.Hint, site) || w.dialed() != 0 {
		t.Errorf("%+v", e)
	}
}

func TestTLSRefused(t *testing.T) {
	big := make([]string, 0, 300)
	for range 300 {
		big = append(big, strings.Repeat("x", 250))
	}
	ech := echList(t)
	for _, tc := range []struct {
		name   string
		config *tls.Config
		why    string
	}{
		{"another name", &tls.Config{ServerName: "other.test"}, "other.test"},
		{"a subdomain", &tls.Config{ServerName: "a.site.test"}, "a.site.test"},
		{"no name", &tls.Config{InsecureSkipVerify: true}, "names no server"},
		{"an address", &tls.Config{ServerName: "127.0.0.1"}, "names no server"},
		{"ECH", &tls.Config{ServerName: site, EncryptedClientHelloConfigList: ech}, "ECH"},
		{"larger than 64 KiB", &tls.Config{ServerName: site, NextProtos: big}, "ClientHello"},
		{"no HTTP inside", &tls.Config{ServerName: site, NextProtos: []string{"imap"}}, "imap"},
	} {
		for _, pass := range []bool{false, true} {
			if pass && tc.name == "no HTTP inside" || !pass && tc.name == "ECH" {
				continue
			}
			w := newWorld(t, "127.0.0.1:1", 443, func(w *world) { w.rules.connect.Passthrough = pass })
			tc.config.RootCAs = w.roots
			var conn net.Conn = w.dial()
			if len(tc.config.NextProtos) > 1 {
				// crypto/tls refuses to make such a list; the bytes are made here.
				io.WriteString(conn, hugeHello(70_000))
			} else {
				conn = tls.Client(conn, tc.config)
				if err := conn.(*tls.Conn).Handshake(); err == nil {
					t.Errorf("%s: the handshake succeeded", tc.name)
				}
			}
			if e := w.event(); e.Allowed || !strings.Contains(e.Why, tc.why) || e.Proto != "tls" {
				t.Errorf("%s: %+v", tc.name, e)
			}
			if w.dialed() != 0 {
				t.Errorf("%s: the server was reached", tc.name)
			}
		}
	}
}

// A part that is encrypted for a key that nobody has, as browsers send it, does not matter where TLS is ended here, nor
// where every name is allowed: the client is answered.
func TestEncryptedPartThatHidesNothing(t *testing.T) {
	server := tlsServer(t, func(http.ResponseWriter, *http.Request) {})
	for name, may := range map[string]Verdict{"intercepted": {Allowed: true}, "everything is allowed": {Allowed: true, Passthrough: true, Anything: true}} {
		w := newWorld(t, addr(server), 443, func(w *world) { w.rules.connect = may })
		roots := w.roots
		if may.Passthrough {
			roots = pool(serverCA())
		}
		err := tls.Client(w.dial(), &tls.Config{ServerName: site, RootCAs: roots, EncryptedClientHelloConfigList: echList(t)}).Handshake()
		// Whoever answers it proves to be the site, and says that it has no such key.
		if rejected := (*tls.ECHRejectionError)(nil); !errors.As(err, &rejected) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// hugeHello begins a ClientHello of n bytes in records of 16 KiB.
func hugeHello(n int) string {
	msg := "\x01" + string([]byte{byte(n >> 16), byte(n >> 8), byte(n)}) + strings.Repeat("\x00", n)
	var out strings.Builder
	for len(msg) > 0 {
		part := msg[:min(len(msg), 16<<10)]
		msg = msg[len(part):]
		out.WriteString("\x16\x03\x01" + string([]byte{byte(len(part) >> 8), byte(len(part))}) + part)
	}
	return out.String()
}

func TestH2Refused(t *testing.T) {
	reached := make(chan string, 100)
	server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { reached <- r.Host + r.RequestURI })
	w := newWorld(t, addr(server), 443)
	w.rules.request = func(method, path string) bool { return path != "/no" }
	conn := w.dialTLS("h2")
	h := newRawH2(t, conn)
	for i, tc := range []struct {
		name    string
		headers [][2]string
		status  string
	}{
		{"good", [][2]string{{":authority", "site.test"}, {":path", "/"}}, "200"},
		{"good, upper case", [][2]string{{":authority", "SITE.test.:443"}, {":path", "/"}}, "200"},
		{"another authority", [][2]string{{":authority", "other.test"}, {":path", "/"}}, "403"},
		{"another port", [][2]string{{":authority", "site.test:80"}, {":path", "/"}}, "403"},
		{"another Host too", [][2]string{{":authority", "site.test"}, {":path", "/"}, {"host", "other.test"}}, "403"},
		{"only another Host", [][2]string{{":path", "/"}, {"host", "other.test"}}, "403"},
		{"only Host", [][2]string{{":path", "/"}, {"host", "site.test"}}, "200"},
		{"no authority", [][2]string{{":path", "/"}}, "403"},
		{"a path that is not allowed", [][2]string{{":authority", "site.test"}, {":path", "/no"}}, "403"},
		{"absolute", [][2]string{{":authority", "site.test"}, {":path", "https://other.test/"}}, ""},
		{"good again", [][2]string{{":authority", "site.test"}, {":path", "/"}}, "200"},
	} {
		method := ":method"
		status := h.get(uint32(2*i+1), append([][2]string{{method, "GET"}, {":scheme", "https"}}, tc.headers...))
		if status != tc.status && !(tc.status == "" && status != "200") {
			t.Errorf("%s: status %q", tc.name, status)
		}
		if (status == "200") != (len(reached) == 1) {
			t.Errorf("%s: %d requests reached the server", tc.name, len(reached))
		}
		for len(reached) > 0 {
			<-reached
		}
	}
	if status := h.get(101, [][2]string{{":method", "CONNECT"}, {":authority", "site.test:443"}}); status != "403" {
		t.Errorf("CONNECT: status %q", status)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	release := make(chan struct{})
	arrived := make(chan struct{}, 1)
	server := plainServer(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	w := newWorld(t, addr(server), 80, func(w *world) { w.proxy.Limits.Requests = 1 })
	first := w.dial()
	io.WriteString(first, "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
	<-arrived
	if got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 503 ") {
		t.Errorf("got %q", got)
	}
	close(release)
}

func TestHeadIsBounded(t *testing.T) {
	server, heads := headsServer(t)
	w := newWorld(t, server, 80, func(w *world) { w.proxy.Limits.HeaderBytes = 10_000 })
	got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: site.test\r\nA: "+strings.Repeat("a", 20_000)+"\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 431 ") || len(heads) != 0 {
		t.Errorf("got %q, %d heads", got, len(heads))
	}
}

func TestNothingComes(t *testing.T) {
	w := newWorld(t, "127.0.0.1:1", 443, func(w *world) { w.proxy.Limits.SniffTimeout = time.Millisecond })
	if got := ask(t, w.dial(), ""); got != "" {
		t.Errorf("got %q", got)
	}
	if e := w.event(); e.Allowed || e.Why != errSilent.Error() {
		t.Errorf("%+v", e)
	}
}

func TestEndsWithContext(t *testing.T) {
	ca, _ := NewCA(time.Now)
	guest, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&Proxy{CA: ca, Decider: &rules{connect: Verdict{Allowed: true}}}).Serve(ctx, guest, site, 443)
	}()
	cancel()
	<-done
}
