package guard

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A body that is longer than it may be is 413, whatever the handler makes of what it read.
func TestBodyIsCounted(t *testing.T) {
	readAll := func(r *http.Request) error { _, err := io.ReadAll(r.Body); return err }
	for name, h := range map[string]http.HandlerFunc{
		"tells":     func(w http.ResponseWriter, r *http.Request) { http.Error(w, readAll(r).Error(), 400) },
		"is silent": func(w http.ResponseWriter, r *http.Request) { _ = readAll(r) },
		"thinks it is well": func(w http.ResponseWriter, r *http.Request) {
			_ = readAll(r)
			w.Header().Set("Content-Length", "7")
			w.Header().Set("Ravi-Exit", "0")
			ok(w, r)
		},
		"fails": func(w http.ResponseWriter, r *http.Request) { panic(readAll(r)) },
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := onTCP(t, h, Options{MaxBody: 10})
			got := raw(t, addr, "POST /a HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+
				"6\r\n[1,2,3\r\n6\r\n,4,5,6\r\n0\r\n\r\n")
			mustRefuse(t, got, 413, CodeTooLarge, "10 bytes")
			if got.header.Get("Ravi-Exit") != "" {
				t.Error("the handler's headers are there")
			}
		})
	}
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, readAll(r)) }, Options{MaxBody: 10})
	got := raw(t, addr, "POST /a HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\na\r\n[1,2,3,45]\r\n0\r\n\r\n")
	if got.status != 200 || got.body != "<nil>" {
		t.Errorf("a body that just fits: %d %s", got.status, got.body)
	}
}

func TestPanic(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	log := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	}), nil))
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/after":
			ok(w, r)
		case "/abort":
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Secret", "hunter2")
		panic("hunter2")
	}, Options{Log: log})
	got := raw(t, addr, "GET /before HTTP/1.1\r\nHost: HOST\r\n\r\n")
	mustRefuse(t, got, 500, CodeInternal, "failed")
	if strings.Contains(got.body, "hunter2") || got.header.Get("X-Secret") != "" {
		t.Errorf("it tells: %v %s", got.header, got.body)
	}
	for _, path := range []string{"/after", "/abort"} {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, addr)
		b, _ := io.ReadAll(c) // it may be a reset
		c.Close()
		if strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "error") || strings.HasSuffix(string(b), "0\r\n\r\n") {
			t.Errorf("%s: %q", path, b)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(out.String(), "panic=hunter2"); n != 2 {
		t.Errorf("%d panics in the log: %s", n, out.String())
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// No handler opens an answer to pages, or has it kept.
func TestSealed(t *testing.T) {
	hand := func(w http.ResponseWriter) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header()["access-control-allow-credentials"] = []string{"true"}
		w.Header().Set("Cache-Control", "public")
		w.Header().Del("X-Content-Type-Options")
	}
	for name, h := range map[string]http.HandlerFunc{
		"writes":        func(w http.ResponseWriter, r *http.Request) { hand(w); ok(w, r) },
		"says a status": func(w http.ResponseWriter, r *http.Request) { hand(w); w.WriteHeader(404) },
		"flushes":       func(w http.ResponseWriter, r *http.Request) { hand(w); w.(http.Flusher).Flush() },
		"flushes by control": func(w http.ResponseWriter, r *http.Request) {
			hand(w)
			_ = http.NewResponseController(w).Flush()
		},
		"does nothing": func(w http.ResponseWriter, r *http.Request) { hand(w) },
		"says early":   func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(102); hand(w); ok(w, r) },
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := onTCP(t, h, Options{})
			c, err := net.Dial("tcp", addr)
			must(t, err)
			defer c.Close()
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", addr)
			b, err := io.ReadAll(c)
			must(t, err)
			text := strings.ToLower(string(b))
			if strings.Contains(text, "access-control") || !strings.Contains(text, "cache-control: no-store") || !strings.Contains(text, "nosniff") {
				t.Errorf("%s", b)
			}
		})
	}
}

func TestNobodyTakesAConnectionAway(t *testing.T) {
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		_, hijacks := w.(http.Hijacker)
		c, _, err := http.NewResponseController(w).Hijack()
		fmt.Fprint(w, hijacks, c == nil, errors.Is(err, http.ErrNotSupported))
	}, Options{})
	got := raw(t, addr, "GET /a HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if got.body != "false true true" {
		t.Error(got.body)
	}
}

// Who says nothing, not all or nothing more is cut.
func TestTimes(t *testing.T) {
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/much" {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}
		_, err := io.ReadAll(r.Body)
		fmt.Fprint(w, err)
	}, Options{HeaderTimeout: 50 * time.Millisecond, ReadTimeout: 100 * time.Millisecond, WriteTimeout: 200 * time.Millisecond, IdleTimeout: 50 * time.Millisecond})
	for name, send := range map[string]string{
		"nothing":          "",
		"half a header":    "GET / HTTP/1.1\r\nHost: ",
		"half a body":      "POST / HTTP/1.1\r\nHost: " + addr + "\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
		"one and no other": "GET / HTTP/1.1\r\nHost: " + addr + "\r\n\r\n",
	} {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		_, err = io.WriteString(c, send)
		must(t, err)
		_, _ = io.Copy(io.Discard, c) // returns when the server has closed it
		c.Close()
		t.Log(name)
	}
	// Who does not read: its handler ends, or the test would not.
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET /much HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
}

// hold opens a connection that the server has let in.
func hold(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /a HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	defer r.Body.Close()
	if _, err := io.ReadAll(r.Body); err != nil || r.StatusCode != 200 {
		t.Fatalf("%d, %v", r.StatusCode, err)
	}
	return c
}

func TestConnectionsAreCounted(t *testing.T) {
	first, err := ListenTCP("127.0.0.1:0", nil)
	must(t, err)
	second, err := ListenTCP("127.0.0.1:0", nil)
	must(t, err)
	first.door.max = 2
	s := serve(t, first, ok, Options{MaxConns: 3})
	go s.Serve(second)
	one, other := first.Addr().String(), second.Addr().String()
	const get = "GET /a HTTP/1.1\r\nHost: HOST\r\n\r\n"
	a := hold(t, one)
	hold(t, one)
	got := raw(t, one, get)
	mustRefuse(t, got, 503, CodeUnavailable, "too many")
	if got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	c := hold(t, other) // one that is full leaves room for the other
	mustRefuse(t, raw(t, other, get), 503, CodeUnavailable, "too many")
	a.Close()
	c.Close()
	for s.conns.Load() > 1 || first.door.conns.Load() > 1 {
		time.Sleep(time.Millisecond) // until the server has seen it
	}
	hold(t, one)
	hold(t, other)
}

func TestServeConn(t *testing.T) {
	door := NewDoor(2, "gateway.ravi.internal")
	s := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := ConnOf(r.Context())
		fmt.Fprint(w, c.Door == door, c.Peer == nil, c.Peer.SameWorld())
	}), Options{})
	s.wordTime = time.Minute // what is written to a pipe waits for who reads
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	connect := func() (net.Conn, chan struct{}) {
		ours, theirs := net.Pipe()
		over := make(chan struct{})
		go func() {
			defer close(over)
			s.ServeConn(ctx, theirs, door)
		}()
		return ours, over
	}
	ask := func(c net.Conn, host string) string {
		fmt.Fprintf(c, "GET /a HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		must(t, err)
		return string(b)
	}
	a, aOver := connect()
	if got := ask(a, "gateway.ravi.internal"); !strings.HasPrefix(got, "true true the caller is not positively the operator") {
		t.Error(got)
	}
	if got := ask(a, "evil.example"); !strings.Contains(got, CodeDenied) {
		t.Error(got)
	}
	b, bOver := connect()
	ask(b, "gateway.ravi.internal")
	c, cOver := connect()
	if rest, _ := io.ReadAll(c); !bytes.Contains(rest, []byte("too many connections")) { // its end is the end of the pipe
		t.Errorf("%q", rest)
	}
	<-cOver
	a.Close()
	<-aOver // it returns with its connection
	cancel()
	<-bOver // and with its context
	must(t, s.Shutdown(t.Context()))
	ctx = t.Context()
	_, dOver := connect()
	<-dOver // and when there is no server any more
}

func TestServeConnAfterShutdown(t *testing.T) {
	s := New(http.HandlerFunc(ok), Options{})
	must(t, s.Shutdown(t.Context()))
	ours, theirs := net.Pipe()
	defer ours.Close()
	s.ServeConn(t.Context(), theirs, NewDoor(1, "x"))
}

func TestHTTP2WithoutTLS(t *testing.T) {
	for _, on := range []bool{false, true} {
		_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.ProtoMajor) }, Options{H2C: on})
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		client := &http.Client{Transport: tr}
		r, err := client.Get("http://" + addr + "/a")
		if on != (err == nil) {
			t.Errorf("on %v: %v", on, err)
		}
		if err == nil {
			mustSeal(t, r.Header)
			r.Body.Close()
			req, err := http.NewRequest("GET", "http://"+addr+"/a", nil)
			must(t, err)
			req.Host = "evil.example"
			r, err := client.Do(req)
			must(t, err)
			b, err := io.ReadAll(r.Body)
			must(t, err)
			r.Body.Close()
			mustRefuse(t, reply{r.StatusCode, r.Header, string(b)}, 403, CodeDenied, "evil.example")
		}
		tr.CloseIdleConnections()
	}
}

func TestTLS(t *testing.T) {
	conf := certificate(t)
	l, err := ListenTCP("127.0.0.1:0", conf, "ravi.example")
	must(t, err)
	serve(t, l, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.ProtoMajor, r.TLS != nil, r.Host) }, Options{})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, version := range []int{1, 2} {
		tr := &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: version == 2,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return net.Dial(network, l.Addr().String())
			},
		}
		client := &http.Client{Transport: tr}
		r, err := client.Get("https://ravi.example:" + port + "/a")
		must(t, err)
		b, err := io.ReadAll(r.Body)
		must(t, err)
		r.Body.Close()
		if want := fmt.Sprintf("%d true ravi.example:%s\n", version, port); string(b) != want {
			t.Errorf("got %s, want %s", b, want)
		}
		r, err = client.Get("https://evil.example:" + port + "/a")
		must(t, err)
		b, err = io.ReadAll(r.Body)
		must(t, err)
		r.Body.Close()
		mustRefuse(t, reply{r.StatusCode, r.Header, string(b)}, 403, CodeDenied, "evil.example")
		tr.CloseIdleConnections()
	}
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	if c, err := tls.Dial("tcp", l.Addr().String(), old); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

func TestWriteErrors(t *testing.T) {
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/many":
			WriteTooMany(w, 1500*time.Millisecond, "too often")
		case "/none":
			WriteUnavailable(w, 0, "not now")
		default:
			w.Header().Set("Content-Encoding", "gzip")
			WriteError(w, 404, "NOT_FOUND", "no \x1b[31m \xff <b>", "look")
		}
	}, Options{})
	got := raw(t, addr, "GET /many HTTP/1.1\r\nHost: HOST\r\n\r\n")
	mustRefuse(t, got, 429, CodeTooMany, "too often")
	if got.header.Get("Retry-After") != "2" {
		t.Error(got.header)
	}
	got = raw(t, addr, "GET /none HTTP/1.1\r\nHost: HOST\r\n\r\n")
	mustRefuse(t, got, 503, CodeUnavailable, "not now")
	if got.header.Get("Retry-After") != "1" {
		t.Error(got.header)
	}
	got = raw(t, addr, "GET /a HTTP/1.1\r\nHost: HOST\r\n\r\n")
	mustRefuse(t, got, 404, "NOT_FOUND", "<b>")
	if strings.Contains(got.body, "\x1b") || !json.Valid([]byte(got.body)) || got.header.Get("Content-Encoding") != "" {
		t.Errorf("%q", got.body)
	}
}
