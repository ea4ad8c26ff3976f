package dial

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/network/policy"
	"ravi/internal/porttest"
)

// proxyAt is a proxy that answers as it is told, and how often it was called.
func proxyAt(t *testing.T, answer func(net.Conn)) (address string, called *atomic.Int32) {
	t.Helper()
	called = &atomic.Int32{}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-over })
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			called.Add(1)
			answer(c)
			c.Close()
		}
	}()
	return l.Addr().String(), called
}

// says answers every request with a text, and then does what is left to do.
func says(text string, then ...func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, text)
		for _, f := range then {
			f(c)
		}
	}
}

// hang waits until the other side is gone.
func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func upstream(t *testing.T, p Proxy, credentials string) *Upstream {
	t.Helper()
	auth, err := ReadAuth(strings.NewReader(credentials))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	u, err := NewUpstream(p, auth)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// through is a dialer that goes through a proxy, by which every name leads to addrs.
func through(t *testing.T, u *Upstream, refused netip.Addr, addrs ...string) *Client {
	t.Helper()
	var answer []netip.Addr
	for _, a := range addrs {
		answer = append(answer, netip.MustParseAddr(a))
	}
	s := server(map[string][]netip.Addr{"a.test": answer}, "a.test", refused)
	if len(addrs) == 0 {
		s = server(nil, "a.test", refused)
	}
	s.Upstream = func() *Upstream { return u }
	return pair(t, s)
}

// The proxy is asked for the address that was checked, with the credentials, and nothing that comes behind its
// answer is lost.
func TestThroughAnHTTPProxy(t *testing.T) {
	for name, c := range map[string]struct{ credentials, leads, want, answer string }{
		"plain":              {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200 Connection established\r\n\r\n"},
		"with credentials":   {"user:pass:word\n", "203.0.113.7", "203.0.113.7:443", "HTTP/1.0 200 OK\r\nVia: 1.0 x\r\n\r\n"},
		"IPv6":               {"", "2001:db8::7", "[2001:db8::7]:443", "HTTP/1.1 204 No Content\r\n\r\n"},
		"IPv4 as IPv6":       {"", "::ffff:203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200\r\n\r\n"},
		"after it goes on":   {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"},
		"lines of LF":        {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200 OK\nServer: x\n\n"},
		"a length, no body":  {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"},
		"what is no chunk":   {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"},
		"just small enough":  {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead-len("HTTP/1.1 200 OK\r\nX: \r\n\r\n")) + "\r\n\r\n"},
		"one header a piece": {"", "203.0.113.7", "203.0.113.7:443", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 100) + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan *http.Request, 1)
			address, _ := proxyAt(t, func(c2 net.Conn) {
				req, err := http.ReadRequest(bufio.NewReader(c2))
				if err != nil {
					t.Error(err)
					return
				}
				asked <- req
				_, _ = io.WriteString(c2, c.answer+"\r\nbanner\n")
				_, _ = io.Copy(c2, c2)
			})
			client := through(t, upstream(t, Proxy{URL: "http://" + address}, c.credentials), netip.Addr{}, c.leads)
			conn, err := client.Dial(t.Context(), "a.test", netip.Addr{}, 443)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			req := <-asked
			want := ""
			if c.credentials != "" {
				want = "Basic " + base64.StdEncoding.EncodeToString([]byte(strings.TrimSpace(c.credentials)))
			}
			if req.Method != "CONNECT" || req.RequestURI != c.want || req.Host != c.want || req.Header.Get("Proxy-Authorization") != want {
				t.Errorf("the proxy was asked %s %s, host %s, %v", req.Method, req.RequestURI, req.Host, req.Header)
			}
			speaks(t, conn, "\r\nbanner\n")
		})
	}
}

// speaks checks what the other side says first, and that it echoes.
func speaks(t *testing.T, conn net.Conn, banner string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute)) // only so that a hang is a failure
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(banner)+5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != banner+"hello" {
		t.Errorf("%q %v", got, err)
	}
}

const password = "correct-horse"

// What a proxy may answer that is no connection. The credential is in no text.
func TestHTTPProxiesThatDoNot(t *testing.T) {
	echoed := base64.StdEncoding.EncodeToString([]byte("user:" + password))
	for name, c := range map[string]struct {
		answer      func(net.Conn)
		credentials string
		code        Code
		says        string
	}{
		"forbidden":                 {says("HTTP/1.1 403 Forbidden\r\n\r\n"), "", ProxyFailed, "refuses 203.0.113.7:443: 403 Forbidden; a proxy that takes no addresses is handed names with network.proxy_by_name"},
		"cannot reach it":           {says("HTTP/1.1 503 Service Unavailable\r\n\r\n"), "", ProxyFailed, "does not connect to 203.0.113.7:443: 503 Service Unavailable"},
		"a status of its own":       {says("HTTP/1.1 599 \r\n\r\n"), "", ProxyFailed, "443: 599"},
		"wants credentials":         {says("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n"), "", NoProxy, "407 Proxy Authentication Required; it wants a user and a password: set network.proxy_auth_file"},
		"wants others":              {says("HTTP/1.1 407 no\r\n\r\n"), "user:" + password, NoProxy, "does not take the user and password in the file of network.proxy_auth_file"},
		"repeats what it was sent":  {says("HTTP/1.1 403 user:" + password + " " + echoed + "\r\n\r\n"), "user:" + password, ProxyFailed, "403 Forbidden"},
		"repeats it and is no HTTP": {says("user:" + password + " " + echoed + "\r\n\r\n"), "user:" + password, NoProxy, "is it one?"},
		"a redirect":                {says("HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n"), "", ProxyFailed, "302 Found"},
		"another protocol":          {says("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), "", ProxyFailed, "101 Switching Protocols"},
		"garbage":                   {says("\x05\x00\x1b[31m\n\n"), "", NoProxy, "does not answer CONNECT 203.0.113.7:443 as an HTTP proxy does"},
		"a number that is none":     {says("HTTP/1.1 2xx OK\r\n\r\n"), "", NoProxy, "as an HTTP proxy does"},
		"a broken header":           {says("HTTP/1.1 200 OK\r\nno header\r\n\r\n"), "", NoProxy, "as an HTTP proxy does"},
		"one line too long":         {says("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", maxHead), hang), "", NoProxy, "more than 16384 bytes"},
		"lines without end":         {says(strings.Repeat("HTTP/1.1 200 OK\r\n", maxHead/10), hang), "", NoProxy, "more than 16384 bytes"},
		"goes on without end":       {says(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHead/10), hang), "", NoProxy, "more than 16384 bytes"},
		"closes early":              {says("HTTP/1.1 200 OK\r\n"), "", NoProxy, "it closed the connection"},
		"closes at once":            {func(net.Conn) {}, "", NoProxy, "gives no answer"},
		"says nothing":              {says("", hang), "", NoProxy, "no answer in time"},
		"stops in the middle":       {says("HTTP/1.1 200 OK\r\nServer", hang), "", NoProxy, "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := proxyAt(t, c.answer)
			u := upstream(t, Proxy{URL: "http://" + address}, c.credentials)
			if strings.Contains(c.says, "in time") {
				u.wait = 100 * time.Millisecond
			}
			fails(t, through(t, u, netip.Addr{}, "203.0.113.7"), c.code, "the proxy http://"+address, c.says)
		})
	}
}

// fails dials a.test and wants it to fail with this code and these words.
func fails(t *testing.T, client *Client, code Code, words ...string) {
	t.Helper()
	conn, err := client.Dial(t.Context(), "a.test", netip.Addr{}, 443)
	if err == nil {
		conn.Close()
	}
	var e *Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got %v, want %s", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Text, w) {
			t.Errorf("got %q, want %q in it", e.Text, w)
		}
	}
	if strings.Contains(e.Text, password) || strings.Contains(e.Text, base64.StdEncoding.EncodeToString([]byte("user:"+password))) || strings.Contains(e.Text, "\x1b") {
		t.Errorf("%q holds what it must not", e.Text)
	}
}

// socksAt answers the greeting with a method, credentials with a status and the request with an answer.
func socksAt(method, status byte, answer string, asked chan<- string, then ...func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		b := make([]byte, 512)
		read := func(n int) []byte {
			if _, err := io.ReadFull(c, b[:n]); err != nil {
				return make([]byte, 512)
			}
			return b[:n]
		}
		read(int(read(2)[1]))
		_, _ = c.Write([]byte{5, method})
		if method == 2 {
			read(int(read(2)[1]))
			read(int(read(1)[0]))
			_, _ = c.Write([]byte{1, status})
		}
		head := string(read(4))
		switch head[3] {
		case 1:
			head += string(read(4 + 2))
		case 3:
			n := read(1)[0]
			head += string(rune(n)) + string(read(int(n)+2))
		case 4:
			head += string(read(16 + 2))
		}
		if asked != nil {
			asked <- head
		}
		_, _ = io.WriteString(c, answer)
		for _, f := range then {
			f(c)
		}
	}
}

const socksYes = "\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50"

func TestThroughASOCKSProxy(t *testing.T) {
	for name, c := range map[string]struct {
		credentials, leads, want, answer string
		method                           byte
		byName                           bool
	}{
		"plain":            {"", "203.0.113.7", "\x05\x01\x00\x01\xcb\x00\x71\x07\x01\xbb", socksYes, 0, false},
		"IPv6":             {"", "2001:db8::7", "\x05\x01\x00\x04\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x07\x01\xbb", socksYes, 0, false},
		"with credentials": {"user:" + password, "203.0.113.7", "\x05\x01\x00\x01\xcb\x00\x71\x07\x01\xbb", socksYes, 2, false},
		"needs none":       {"user:" + password, "203.0.113.7", "\x05\x01\x00\x01\xcb\x00\x71\x07\x01\xbb", socksYes, 0, false},
		"bound to a name":  {"", "203.0.113.7", "\x05\x01\x00\x01\xcb\x00\x71\x07\x01\xbb", "\x05\x00\x00\x03\x04name\x00\x50", 0, false},
		"by name":          {"", "203.0.113.7", "\x05\x01\x00\x03\x06a.test\x01\xbb", socksYes, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 1)
			address, _ := proxyAt(t, socksAt(c.method, 0, c.answer+"banner\n", asked, func(c net.Conn) { _, _ = io.Copy(c, c) }))
			client := through(t, upstream(t, Proxy{URL: "socks5://" + address, ByName: c.byName}, c.credentials), netip.Addr{}, c.leads)
			conn, err := client.Dial(t.Context(), "a.test", netip.Addr{}, 443)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got := <-asked; got != c.want {
				t.Errorf("the proxy was asked %q, want %q", got, c.want)
			}
			speaks(t, conn, "banner\n")
		})
	}
}

func TestSOCKSProxiesThatDoNot(t *testing.T) {
	for name, c := range map[string]struct {
		answer      func(net.Conn)
		credentials string
		code        Code
		says        string
	}{
		"not by its rules":    {socksAt(0, 0, "\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", nil), "", ProxyFailed, "does not connect to 203.0.113.7:443: connection not allowed by ruleset"},
		"nobody there":        {socksAt(0, 0, "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00", nil), "", ProxyFailed, "connection refused"},
		"a code of its own":   {socksAt(0, 0, "\x05\xfe\x00\x01\x00\x00\x00\x00\x00\x00", nil), "", ProxyFailed, "does not connect to 203.0.113.7:443"},
		"wants credentials":   {func(c net.Conn) { _, _ = c.Write([]byte("\x05\xff")); hang(c) }, "", NoProxy, "it wants a user and a password: set network.proxy_auth_file"},
		"wants others":        {socksAt(2, 1, "", nil), "user:" + password, NoProxy, "does not take the user and password"},
		"speaks HTTP":         {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); hang(c) }, "", NoProxy, "does not answer as a SOCKS5 proxy does"},
		"another version":     {func(c net.Conn) { _, _ = c.Write([]byte("\x04\x00")); hang(c) }, "", NoProxy, "does not answer as a SOCKS5 proxy does"},
		"closes at once":      {func(net.Conn) {}, "", NoProxy, "does not answer as a SOCKS5 proxy does"},
		"closes early":        {socksAt(0, 0, "\x05\x00\x00\x01\x7f", nil), "", NoProxy, "does not answer as a SOCKS5 proxy does"},
		"a kind of its own":   {socksAt(0, 0, "\x05\x00\x00\x09\x7f\x00\x00\x01\x00\x50", nil), "", NoProxy, "does not answer as a SOCKS5 proxy does"},
		"says nothing":        {hang, "", NoProxy, "no answer in time"},
		"stops in the middle": {socksAt(0, 0, "\x05\x00", nil, hang), "", NoProxy, "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := proxyAt(t, c.answer)
			u := upstream(t, Proxy{URL: "socks5://" + address}, c.credentials)
			if strings.Contains(c.says, "in time") {
				u.wait = 100 * time.Millisecond
			}
			fails(t, through(t, u, netip.Addr{}, "203.0.113.7"), c.code, "the proxy socks5://"+address, c.says)
		})
	}
}

func TestAProxyThatIsNotThere(t *testing.T) {
	u := upstream(t, Proxy{URL: fmt.Sprint("http://127.0.0.1:", porttest.Free(t))}, "user:"+password)
	fails(t, through(t, u, netip.Addr{}, "203.0.113.7"), NoProxy, "cannot be reached", "connection refused", "network.proxy in config.json")
}

// Whether the proxy is asked, and for what.
func TestWhatGoesThroughTheProxy(t *testing.T) {
	to := echo(t)
	direct := func(texts ...string) (p policy.Places) {
		for _, text := range texts {
			r, err := policy.ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			p = append(p, r)
		}
		return p
	}
	private := netip.MustParseAddr("10.9.9.9")
	for name, c := range map[string]struct {
		proxy   Proxy
		port    uint16
		addrs   []string // none: the host does not know the name
		asked   string   // of the proxy; empty: it is not asked
		refused Code     // empty: connected
	}{
		"an address":                    {Proxy{}, 443, []string{"203.0.113.7"}, "203.0.113.7:443", ""},
		"the first that is open":        {Proxy{}, 443, []string{"10.9.9.9", "203.0.113.7"}, "203.0.113.7:443", ""},
		"a closed address":              {Proxy{}, 443, []string{"10.9.9.9"}, "", Denied},
		"no address":                    {Proxy{}, 443, nil, "", NoName},
		"this machine":                  {Proxy{}, to.Port(), []string{"127.0.0.1"}, "", ""},
		"other names without it":        {Proxy{Direct: direct("b.test", "*.a.test")}, 443, []string{"203.0.113.7"}, "203.0.113.7:443", ""},
		"another port without it":       {Proxy{Direct: direct("a.test:22")}, 443, []string{"203.0.113.7"}, "203.0.113.7:443", ""},
		"by name":                       {Proxy{ByName: true}, 443, []string{"203.0.113.7"}, "a.test:443", ""},
		"a name that is known nowhere":  {Proxy{ByName: true}, 443, nil, "a.test:443", ""},
		"a name of a closed address":    {Proxy{ByName: true}, 443, []string{"203.0.113.7", "10.9.9.9"}, "", Denied},
		"a name of this machine":        {Proxy{ByName: true}, to.Port(), []string{"127.0.0.1"}, "", ""},
		"a name of this machine (IPv6)": {Proxy{ByName: true}, to.Port(), []string{"::ffff:127.0.0.1"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 9)
			address, _ := proxyAt(t, func(c net.Conn) {
				if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					asked <- req.RequestURI
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
					_, _ = io.Copy(c, c)
				}
			})
			c.proxy.URL = "http://" + address
			client := through(t, upstream(t, c.proxy, ""), private, c.addrs...)
			conn, err := client.Dial(t.Context(), "a.test", netip.Addr{}, c.port)
			var e *Error
			switch {
			case err == nil && c.refused == "":
				speaks(t, conn, "")
				conn.Close()
			case err == nil:
				conn.Close()
				t.Errorf("connected, want %s", c.refused)
			case !errors.As(err, &e) || e.Code != c.refused:
				t.Errorf("got %v, want %q", err, c.refused)
			}
			got := ""
			select {
			case got = <-asked:
			default:
			}
			if got != c.asked {
				t.Errorf("the proxy was asked for %q, want %q", got, c.asked)
			}
		})
	}
	// What goes without it: that nothing is asked is all that shows here, since there is nobody at these addresses.
	u := upstream(t, Proxy{URL: "http://127.0.0.1:1", Direct: direct("*.corp.example", "10.0.0.0/8", "git.example:22"), ByName: true}, "")
	for _, c := range []struct {
		name, addr string
		port       uint16
		want       bool
	}{
		{"a.corp.example", "203.0.113.7", 443, true},
		{"corp.example", "203.0.113.7", 443, false},
		{"x.example", "10.1.1.1", 443, true},
		{"", "10.1.1.1", 5432, true},
		{"git.example", "203.0.113.7", 22, true},
		{"git.example", "203.0.113.7", 443, false},
		{"", "127.0.0.1", 80, true},
		{"", "::1", 80, true},
		{"", "0.0.0.0", 80, true},
		{"", "169.254.169.254", 80, true},
		{"", "fe80::1", 80, true},
		{"", "192.168.1.1", 80, false},
	} {
		addr := netip.MustParseAddr(c.addr)
		if got := u.direct(c.name, addr, c.port); got != c.want {
			t.Errorf("%q at %s, port %d, goes without the proxy: %v", c.name, c.addr, c.port, got)
		}
		if got := u.byName(c.name, []netip.Addr{addr}, c.port); got == (c.want || c.name == "") {
			t.Errorf("%q at %s, port %d, goes by name: %v", c.name, c.addr, c.port, got)
		}
	}
	if none := (*Upstream)(nil); !none.direct("a.test", private, 1) || none.byName("a.test", nil, 1) {
		t.Error("without a proxy something goes through it")
	}
}

// Another address may be one that the proxy takes; a proxy that is of no use is not asked again.
func TestWhichAddressesAProxyIsAskedFor(t *testing.T) {
	var asked atomic.Int32
	address, _ := proxyAt(t, func(c net.Conn) {
		if asked.Add(1) == 1 {
			says("HTTP/1.1 403 Forbidden\r\n\r\n")(c)
		} else {
			says("HTTP/1.1 200 OK\r\n\r\n", func(c net.Conn) { _, _ = io.Copy(c, c) })(c)
		}
	})
	conn, err := through(t, upstream(t, Proxy{URL: "http://" + address}, ""), netip.Addr{}, "2001:db8::7", "203.0.113.7").Dial(t.Context(), "a.test", netip.Addr{}, 443)
	if err != nil {
		t.Fatal(err)
	}
	speaks(t, conn, "")
	conn.Close()
	address, called := proxyAt(t, says("HTTP/1.1 407 no\r\n\r\n"))
	fails(t, through(t, upstream(t, Proxy{URL: "http://" + address}, ""), netip.Addr{}, "203.0.113.7", "203.0.113.8"), NoProxy, "407")
	if n := called.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}

// A name that answers otherwise the second time gains nothing: the proxy is handed an address, and does not resolve.
func TestRebindingThroughAProxy(t *testing.T) {
	asked := make(chan string, 1)
	address, _ := proxyAt(t, socksAt(0, 0, socksYes, asked))
	var looked atomic.Int32
	s := server(nil, "a.test", netip.MustParseAddr("10.9.9.9"))
	s.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		if looked.Add(1) > 1 {
			return []netip.Addr{netip.MustParseAddr("10.9.9.9")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil
	}
	u := upstream(t, Proxy{URL: "socks5://" + address}, "")
	s.Upstream = func() *Upstream { return u }
	conn, err := pair(t, s).Dial(t.Context(), "a.test", netip.Addr{}, 443)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got := <-asked; got[3] != 1 || got[4:8] != "\xcb\x00\x71\x07" {
		t.Errorf("the proxy was asked %q", got)
	}
}

func TestProxyRefusals(t *testing.T) {
	for url, want := range map[string]string{
		"":                            "begins with http:// or socks5://",
		"proxy.example:3128":          "begins with http:// or socks5://",
		"https://proxy.example:3128":  "in TLS, which Ravi does not do",
		"socks5h://proxy.example:1":   "network.proxy_by_name",
		"ftp://proxy.example:21":      "begins with http:// or socks5://",
		"http://proxy.example":        "its port is missing",
		"http://proxy.example:0":      "its port is missing",
		"http://proxy.example:70000":  "its port is missing",
		"http://:3128":                "its host",
		"http://a b:3128":             "is a URL such as",
		"http://0x7f.1:3128":          "its host",
		"http://proxy.example:1/path": "nothing stands behind its port",
		"http://proxy.example:1?x":    "nothing stands behind its port",
		"http://u:secret@p.example:1": "holds a user or password",
		"http://u:sec@ret@p:1":        "holds a user or password",
	} {
		err := Proxy{URL: url}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sec") && strings.Contains(url, "@") {
			t.Errorf("%s: got %v, want %s", url, err, want)
		}
		if _, err := NewUpstream(Proxy{URL: url}, nil); err == nil {
			t.Errorf("%s is used", url)
		}
	}
	for _, url := range []string{"http://proxy.example:3128", "http://proxy.example:3128/", "socks5://[2001:db8::1]:1080", "http://192.0.2.1:1", "HTTP://proxy:8080"} {
		if err := (Proxy{URL: url}).Validate(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestReadAuth(t *testing.T) {
	for text, want := range map[string]string{
		"user:pass": "user:pass", "user:pass\n": "user:pass", "user:pa:ss\r\n": "user:pa:ss", "user:\n": "user:", "us er: p w \n": "us er: p w ", "": "none",
		"user\n": "", ":pass\n": "", "user:pass\n\n": "", "user:pass\nuser2:pass2\n": "", "us\x00er:pass": "", "\n": "",
		"user:pa\rss": "", "user:" + strings.Repeat("p", maxAuth): "",
	} {
		a, err := ReadAuth(strings.NewReader(text))
		switch {
		case want == "":
			if err == nil || !strings.Contains(err.Error(), "network.proxy_auth_file") || strings.Contains(err.Error(), "pass\n") {
				t.Errorf("%q: %v, %v", text, a, err)
			}
		case err != nil:
			t.Errorf("%q: %v", text, err)
		case want == "none":
			if a != nil {
				t.Errorf("%q: credentials of nothing", text)
			}
		case a.user+":"+a.password != want:
			t.Errorf("%q: %s:%s", text, a.user, a.password)
		}
	}
	secret, err := ReadAuth(strings.NewReader("user:" + password))
	if err != nil {
		t.Fatal(err)
	}
	if said := fmt.Sprintf("%v %+v %#v %s", secret, *secret, secret, secret); strings.Contains(said, password) {
		t.Errorf("it can be printed: %s", said)
	}
	long := "user:" + strings.Repeat("p", 256)
	a, err := ReadAuth(strings.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewUpstream(Proxy{URL: "socks5://127.0.0.1:1080"}, a); err == nil {
		t.Error("SOCKS5 with a password that it cannot hold")
	}
}
