package intercept

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

func opaque(w *world)      { w.rules.connect.Opaque = true }
func passthrough(w *world) { w.rules.connect.Passthrough = true }
func impatient(w *world)   { w.proxy.Limits.OpaqueAfter = time.Millisecond }

func echoServer(t *testing.T) string {
	return rawServer(t, func(c *net.TCPConn) { io.Copy(c, c) })
}

func TestOpaque(t *testing.T) {
	for _, first := range []string{"SSH-2.0-x\r\n", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "*1\r\n$4\r\nPING\r\n", "EHLO x\r\n", "ruok", "\x16\x02abc", "\x80"} {
		w := newWorld(t, echoServer(t), 5432, opaque, impatient)
		c := w.dial()
		io.WriteString(c, first)
		got := make([]byte, len(first))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != first {
			t.Errorf("%q: got %q, %v", first, got, err)
		}
		c.CloseWrite()
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("%q: %q, %v", first, rest, err)
		}
		if e := w.event(); e.Proto != "opaque" || !e.Allowed || e.BytesIn != int64(len(first)) || e.BytesOut != int64(len(first)) {
			t.Errorf("%q: %+v", first, e)
		}
	}
}

// A guest that begins late, with something short, is not waited for once more: its server waits for it.
func TestOpaqueLateAndShort(t *testing.T) {
	for _, first := range []string{"ruok", "x", "stats"} {
		dialled := make(chan struct{})
		w := newWorld(t, echoServer(t), 2181, opaque, impatient, func(w *world) {
			dial := w.proxy.Dial
			w.proxy.Dial = func(ctx context.Context, name string, port uint16) (net.Conn, error) {
				defer close(dialled)
				return dial(ctx, name, port)
			}
		})
		c := w.dial()
		<-dialled // the guest has been silent for too long
		io.WriteString(c, first)
		got := make([]byte, len(first))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != first {
			t.Errorf("%q: got %q, %v", first, got, err)
		}
		c.Close()
	}
}

func TestOpaqueNotAllowed(t *testing.T) {
	for _, first := range []string{"SSH-2.0-x\r\n", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "\x80"} {
		w := newWorld(t, "127.0.0.1:1", 443)
		if got := ask(t, w.dial(), first); got != "" {
			t.Errorf("%q: got %q", first, got)
		}
		if e := w.event(); e.Allowed || e.Proto != "unknown" || !strings.Contains(e.Hint, "site.test:443") || w.dialed() != 0 {
			t.Errorf("%q: %+v", first, e)
		}
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	server := rawServer(t, func(c *net.TCPConn) {
		io.WriteString(c, "220 hello\r\n")
		io.Copy(c, c)
	})
	w := newWorld(t, server, 25, opaque, impatient)
	c := w.dial()
	got := make([]byte, 11)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "220 hello\r\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	// Whatever follows is of that protocol, even if it looks like another.
	io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	c.CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "GET / HTTP/1.1\r\n\r\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

// Waiting until the server is dialled is no way around the checks.
func TestSlowGuestIsChecked(t *testing.T) {
	dialled := make(chan struct{}, 1)
	slow := func(w *world) {
		dial := w.proxy.Dial
		w.proxy.Dial = func(ctx context.Context, name string, port uint16) (net.Conn, error) {
			defer func() { dialled <- struct{}{} }()
			return dial(ctx, name, port)
		}
	}
	for _, first := range []string{"", "GE"} {
		server, heads := headsServer(t)
		w := newWorld(t, server, 8080, opaque, impatient, slow)
		c := w.dial()
		io.WriteString(c, first)
		<-dialled
		rest := "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"[len(first):]
		if got := ask(t, c, rest); !strings.HasPrefix(got, "HTTP/1.1 403 ") || len(heads) != 0 {
			t.Errorf("got %q", got)
		}
		w = newWorld(t, server, 8080, opaque, impatient, slow)
		c = w.dial()
		io.WriteString(c, first)
		<-dialled
		rest = "GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n"[len(first):]
		if got := ask(t, c, rest); !strings.HasPrefix(got, "HTTP/1.1 200 ") || w.dialed() != 1 {
			t.Errorf("got %q, %d connections", got, w.dialed())
		}
	}
	// And the same with TLS.
	server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })
	for _, sni := range []string{site, "other.test"} {
		w := newWorld(t, addr(server), 8443, opaque, impatient, slow)
		c := w.dial()
		<-dialled
		err := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: w.roots}).Handshake()
		if (err == nil) != (sni == site) {
			t.Errorf("%s: %v", sni, err)
		}
	}
}

func TestOpaqueInsideTLS(t *testing.T) {
	cert, _ := serverCA().leaf(site)
	server := rawServer(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}})
		io.WriteString(s, "* OK imap\r\n")
		io.Copy(s, s)
		s.CloseWrite()
	})
	w := newWorld(t, server, 993, opaque, impatient)
	c := w.dialTLS()
	got := make([]byte, 11)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "* OK imap\r\n" {
		t.Fatalf("%q, %v", got, err)
	}
	io.WriteString(c, "a LOGIN\r\n")
	c.CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "a LOGIN\r\n" {
		t.Errorf("%q, %v", rest, err)
	}
	if e := w.event(); e.Proto != "opaque" || !e.TLS {
		t.Errorf("%+v", e)
	}
	// HTTP in there is checked nevertheless, where the server does not speak first.
	silent := rawServer(t, func(c *net.TCPConn) {
		io.Copy(io.Discard, tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}}))
	})
	w = newWorld(t, silent, 993, opaque, impatient)
	if got := ask(t, w.dialTLS(), "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("%q", got)
	}
}

func TestPassthrough(t *testing.T) {
	server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	w := newWorld(t, addr(server), 443, passthrough)
	w.roots = pool(serverCA()) // the guest sees the server's own certificate
	c := w.client(true)
	resp, err := c.Get("https://site.test/")
	if got := body(t, resp, err); got != "200 HTTP/2.0" {
		t.Errorf("got %q", got)
	}
	c.CloseIdleConnections()
	if e := w.event(); e.Proto != "tls-passthrough" || !e.Allowed || e.BytesIn == 0 || e.BytesOut == 0 {
		t.Errorf("%+v", e)
	}
	if len(w.rules.asked()) != 0 {
		t.Errorf("asked %q", w.rules.asked())
	}
	if got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403") {
		t.Errorf("plain HTTP was let through: %q", got)
	}
}

// A ClientHello in records of one byte, each in a segment of its own.
func TestFragmentedHello(t *testing.T) {
	for _, change := range []func(*world){func(*world) {}, passthrough} {
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
		w := newWorld(t, addr(server), 443, change)
		w.roots.AppendCertsFromPEM(serverCA().PEM())
		for _, sni := range []string{site, "other.test"} {
			c := tls.Client(&fragmenter{Conn: w.dial()}, &tls.Config{ServerName: sni, RootCAs: w.roots, NextProtos: []string{"http/1.1"}})
			err := c.Handshake()
			if (err == nil) != (sni == site) {
				t.Errorf("%s: %v", sni, err)
			}
			if err != nil {
				continue
			}
			if got := ask(t, c, "GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n"); !strings.HasSuffix(got, "ok") {
				t.Errorf("got %q", got)
			}
		}
	}
}

// fragmenter breaks the first record into many.
type fragmenter struct {
	net.Conn
	done bool
}

func (f *fragmenter) Write(p []byte) (int, error) {
	if f.done {
		return f.Conn.Write(p)
	}
	f.done = true
	for i := 5; i < len(p); i++ {
		if _, err := f.Conn.Write([]byte{p[0], p[1], p[2], 0, 1, p[i]}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func TestHalfClose(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 8<<20)
	big[0] = 0x80 // neither TLS nor HTTP
	answer := bytes.Repeat([]byte("y"), 1<<20)
	server := rawServer(t, func(c *net.TCPConn) {
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, big) {
			t.Errorf("the server got %d bytes, %v", len(got), err)
		}
		c.Write(answer)
	})
	w := newWorld(t, server, 9, opaque)
	c := w.dial()
	c.Write(big)
	c.CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, answer) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if e := w.event(); e.BytesOut != int64(len(big)) || e.BytesIn != int64(len(answer)) {
		t.Errorf("%+v", e)
	}
}

func TestServerHalfCloses(t *testing.T) {
	got := make(chan []byte, 1)
	server := rawServer(t, func(c *net.TCPConn) {
		io.WriteString(c, "bye")
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		got <- b
	})
	w := newWorld(t, server, 9, opaque, impatient)
	c := w.dial()
	if b, err := io.ReadAll(c); err != nil || string(b) != "bye" {
		t.Errorf("%q, %v", b, err)
	}
	io.WriteString(c, "still here")
	c.CloseWrite()
	if b := <-got; string(b) != "still here" {
		t.Errorf("%q", b)
	}
}

func TestResetStaysReset(t *testing.T) {
	read := make(chan error, 1)
	server := rawServer(t, func(c *net.TCPConn) {
		io.WriteString(c, "x")
		_, err := io.ReadAll(c)
		read <- err
	})
	w := newWorld(t, server, 9, opaque)
	c := w.dial()
	c.Write([]byte{0x80})
	c.Read(make([]byte, 1))
	c.SetLinger(0)
	c.Close()
	if err := <-read; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server saw %v", err)
	}
	server = rawServer(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	})
	w = newWorld(t, server, 9, opaque)
	c = w.dial()
	c.Write([]byte{0x80})
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the guest saw %v", err)
	}
}

func TestSilenceEndsACopy(t *testing.T) {
	w := newWorld(t, echoServer(t), 9, opaque, func(w *world) {
		w.proxy.Limits.CopyTimeout = 10 * time.Millisecond
		w.proxy.Limits.OpaqueAfter = time.Hour // there is a copy only once the guest has said something
	})
	c := w.dial()
	c.Write([]byte{0x80})
	io.ReadAll(c)
	if e := w.event(); e.Why != errSilence.Error() {
		t.Errorf("%+v", e)
	}
}

func TestIdleHTTPEnds(t *testing.T) {
	server, _ := headsServer(t)
	// A connection may also be idle before its first request; then that time was too short for what is looked at here.
	for idle := 10 * time.Millisecond; ; idle *= 4 {
		w := newWorld(t, server, 80, func(w *world) { w.proxy.Limits.IdleTimeout = idle })
		got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
		if strings.HasSuffix(got, "ok") {
			return
		}
		if got != "" || idle > time.Minute {
			t.Fatalf("%q", got)
		}
	}
}
