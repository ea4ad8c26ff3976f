package intercept

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const site = "site.test"

// rules is a Decider for tests: whatever is not set is allowed.
type rules struct {
	connect Verdict
	request func(method, path string) bool
	inject  []string

	mu   sync.Mutex
	seen []string
}

func (r *rules) Connect(string, uint16) Verdict { return r.connect }

func (r *rules) Request(name string, port uint16, tls bool, method, path string) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, method+" "+path)
	if r.request != nil && !r.request(method, path) {
		return Verdict{Why: "not on the list"}
	}
	return Verdict{Allowed: true, Rule: "rule", Inject: r.inject}
}

func (r *rules) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.seen...)
}

// world is a Proxy with one server behind it, and a port that stands for the
// server as the guest sees it.
type world struct {
	t      *testing.T
	proxy  *Proxy
	rules  *rules
	port   uint16 // that the guest believes to dial
	listen net.Listener
	events chan Event
	dialed func() int
	guests atomic.Int64   // connections that clients made
	roots  *x509.CertPool // what the guest trusts
}

// authority that the servers of these tests have their certificates from.
var serverCA = sync.OnceValue(func() *CA {
	ca, err := NewCA(time.Now)
	if err != nil {
		panic(err)
	}
	return ca
})

func pool(ca *CA) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(ca.PEM())
	return p
}

// always is the same for every host.
func always(p *x509.CertPool) func(string) *x509.CertPool {
	return func(string) *x509.CertPool { return p }
}

// newWorld serves what server, a TCP address, has.
func newWorld(t *testing.T, server string, port uint16, change ...func(*world)) *world {
	t.Helper()
	ca, err := NewCA(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	dialed := 0
	w := &world{t: t, port: port, rules: &rules{connect: Verdict{Allowed: true, Rule: "rule"}}, events: make(chan Event, 4096), roots: pool(ca)}
	w.dialed = func() int {
		mu.Lock()
		defer mu.Unlock()
		return dialed
	}
	w.proxy = &Proxy{
		CA: ca, Decider: w.rules, Roots: always(pool(serverCA())),
		Event: func(e Event) { w.events <- e },
		Dial: func(ctx context.Context, name string, got uint16) (net.Conn, error) {
			mu.Lock()
			dialed++
			mu.Unlock()
			if name != site || got != port {
				t.Errorf("dialled %s:%d", name, got)
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server)
		},
	}
	for _, c := range change {
		c(w)
	}
	if w.listen, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var flows sync.WaitGroup
	flows.Go(func() {
		for {
			conn, err := w.listen.Accept()
			if err != nil {
				return
			}
			flows.Go(func() { w.proxy.Serve(ctx, conn, site, port) })
		}
	})
	t.Cleanup(func() {
		w.listen.Close()
		cancel()
		flows.Wait()
	})
	return w
}

func (w *world) dial() *net.TCPConn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.listen.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute)) // only so that a hang is a failure
	return c.(*net.TCPConn)
}

func (w *world) dialTLS(protos ...string) *tls.Conn {
	w.t.Helper()
	c := tls.Client(w.dial(), &tls.Config{ServerName: site, RootCAs: w.roots, NextProtos: protos})
	if err := c.Handshake(); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// client speaks HTTP to the server through the proxy, whatever the URL's host.
func (w *world) client(h2 bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			w.guests.Add(1)
			var d net.Dialer
			return d.DialContext(ctx, "tcp", w.listen.Addr().String())
		},
		TLSClientConfig: &tls.Config{RootCAs: w.roots},
		Protocols:       &protocols,
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (w *world) event() Event {
	w.t.Helper()
	select {
	case e := <-w.events:
		return e
	case <-time.After(time.Minute):
		w.t.Fatal("no event")
		return Event{}
	}
}

func (w *world) noMoreEvents() {
	w.t.Helper()
	select {
	case e := <-w.events:
		w.t.Errorf("one event too many: %+v", e)
	default:
	}
}

// tlsServer is a Go server with the test authority's certificate.
func tlsServer(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	return tlsServerFor(t, site, h)
}

func tlsServerFor(t *testing.T, name string, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	cert, err := serverCA().leaf(name)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2", "http/1.1"}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func plainServer(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func addr(s *httptest.Server) string { return s.Listener.Addr().String() }

// rawServer gives every connection to serve, which sees each byte as it comes.
func rawServer(t *testing.T, serve func(c *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

// headsServer answers every request and tells what the heads were.
func headsServer(t *testing.T) (string, <-chan string) {
	heads := make(chan string, 100)
	return rawServer(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		for {
			var head strings.Builder
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				head.WriteString(line)
				if line == "\r\n" {
					break
				}
			}
			heads <- head.String()
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}), heads
}

// ask sends raw bytes and returns all that comes back.
func ask(t *testing.T, c net.Conn, raw string) string {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Logf("write: %v", err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		t.Logf("read: %v after %q", err, got)
	}
	return string(got)
}

func body(t *testing.T, r *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", r.StatusCode, b)
}

func newUnencryptedH2(t *testing.T, protocols *http.Protocols) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("spoken to in %s", r.Proto)
		}
	}))
	s.Config.Protocols = protocols
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// traced counts the early hints that come.
func traced(ctx context.Context, hints *int) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if code == http.StatusEarlyHints && h.Get("Link") != "" {
			*hints++
		}
		return nil
	}})
}
