package relay

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/keeper"
	"ravi/internal/leaktest"
)

// linked runs a relay in this process between a guest that the test plays and
// an owner. The owner's client is returned, and where the exit status comes.
func linked(t *testing.T, guest func(net.Conn)) (*guestapi.Client, <-chan int) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "link")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	dir, err := os.MkdirTemp("", "link")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "link.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	status := make(chan int, 1)
	over := make(chan struct{})
	go func() { status <- relay(ends[0], l, ""); close(over) }()
	guestOver := make(chan struct{})
	go func() { guest(ends[1]); close(guestOver) }()
	trans := &http.Transport{Protocols: guestapi.OnlyHTTP2(), DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	t.Cleanup(func() {
		ends[1].Close()
		<-over
		<-guestOver
		trans.CloseIdleConnections()
		os.RemoveAll(dir)
		leaktest.None(t, before)
	})
	return guestapi.NewClient(&http.Client{Transport: trans}, "http://guest"), status
}

// greet does what a guest does first, and returns a framer without scruples.
func greet(c net.Conn) *http2.Framer {
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return nil
	}
	f := http2.NewFramer(c, c)
	f.AllowIllegalWrites = true
	f.AllowIllegalReads = true
	f.SetMaxReadFrameSize(1 << 24)
	if f.WriteSettings() != nil {
		return nil
	}
	return f
}

// swallow reads what comes, so that the relay is not held up, until the end.
func swallow(c io.Reader) { _, _ = io.Copy(io.Discard, c) }

// A guest that breaks the protocol ends its own sandbox.
func TestWrongFrames(t *testing.T) {
	raw := func(typ byte, flags byte, stream uint32, payload []byte) []byte {
		h := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), typ, flags, 0, 0, 0, 0}
		binary.BigEndian.PutUint32(h[5:], stream)
		return append(h, payload...)
	}
	for name, b := range map[string][]byte{
		"another protocol":               []byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
		"nothing but zeros":              make([]byte, 4096),
		"settings of odd length":         raw(4, 0, 0, []byte{1, 2, 3}),
		"settings on a stream":           raw(4, 0, 1, nil),
		"settings ack with payload":      raw(4, 1, 0, make([]byte, 6)),
		"a frame too large":              append(raw(0, 0, 1, nil)[:0], 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1),
		"data on stream 0":               raw(0, 0, 0, []byte("x")),
		"headers on stream 0":            raw(1, 4, 0, []byte{0x88}),
		"continuation alone":             raw(9, 4, 1, []byte{0x88}),
		"a ping of odd length":           raw(6, 0, 0, []byte("abc")),
		"a ping on a stream":             raw(6, 0, 3, make([]byte, 8)),
		"window update of nothing":       raw(8, 0, 0, make([]byte, 4)),
		"window update beyond the range": bytes.Repeat(raw(8, 0, 0, []byte{0x7f, 0xff, 0xff, 0xff}), 2),
		"a promise":                      raw(5, 4, 1, append([]byte{0, 0, 0, 2}, 0x88)),
		"a promise on stream 0":          raw(5, 4, 0, append([]byte{0, 0, 0, 2}, 0x88)),
		"rst on stream 0":                raw(3, 0, 0, make([]byte, 4)),
		"an initial window too large":    raw(4, 0, 0, []byte{0, 4, 0xff, 0xff, 0xff, 0xff}),
		"a maximal frame size too small": raw(4, 0, 0, []byte{0, 5, 0, 0, 0, 1}),
		"headers cut by another frame":   append(raw(1, 0, 1, []byte{0x88}), raw(6, 0, 0, make([]byte, 8))...),
		"data for a stream that is not":  raw(0, 0, 99, []byte("x")),
	} {
		t.Run(name, func(t *testing.T) {
			_, status := linked(t, func(c net.Conn) {
				if greet(c) == nil {
					return
				}
				if _, err := c.Write(b); err != nil {
					return
				}
				swallow(c)
			})
			if got := within(t, status); got != keeper.RelayViolation {
				t.Errorf("the relay ended with %d", got)
			}
		})
	}
	t.Run("the end of the link is no violation", func(t *testing.T) {
		_, status := linked(t, func(c net.Conn) {
			greet(c)
			c.Close()
		})
		if got := within(t, status); got != keeper.RelayLinkClosed {
			t.Errorf("the relay ended with %d", got)
		}
	})
}

func within[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing happened for two minutes")
		panic("unreachable")
	}
}

// Floods are ended, or cost the guest alone: this process holds no more for
// them, and the owner's call ends cleanly.
func TestFloods(t *testing.T) {
	many := 20_000
	for name, flood := range map[string]func(f *http2.Framer, stream uint32, i int) error{
		"settings": func(f *http2.Framer, _ uint32, _ int) error { return f.WriteSettings() },
		"settings, all different": func(f *http2.Framer, _ uint32, i int) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingID(1000 + i%60000), Val: uint32(i)})
		},
		"pings":              func(f *http2.Framer, _ uint32, i int) error { return f.WritePing(false, [8]byte{byte(i)}) },
		"answers to no ping": func(f *http2.Framer, _ uint32, i int) error { return f.WritePing(true, [8]byte{byte(i)}) },
		"resets":             func(f *http2.Framer, s uint32, _ int) error { return f.WriteRSTStream(s, http2.ErrCodeCancel) },
		"window updates":     func(f *http2.Framer, _ uint32, _ int) error { return f.WriteWindowUpdate(0, 1) },
		"empty data":         func(f *http2.Framer, s uint32, _ int) error { return f.WriteData(s, false, nil) },
		"unknown frames":     func(f *http2.Framer, s uint32, _ int) error { return f.WriteRawFrame(0xf0, 0, s, make([]byte, 100)) },
		"priorities": func(f *http2.Framer, s uint32, _ int) error {
			return f.WritePriority(s, http2.PriorityParam{StreamDep: 0, Weight: 3})
		},
		"continuations": func(f *http2.Framer, s uint32, i int) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: s, BlockFragment: headers(":status", "200")})
			}
			return f.WriteContinuation(s, false, headers("x-more", strings.Repeat("y", 1000)))
		},
		"empty continuations": func(f *http2.Framer, s uint32, i int) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: s, BlockFragment: headers(":status", "200")})
			}
			return f.WriteContinuation(s, false, nil)
		},
		"go on and on": func(f *http2.Framer, s uint32, _ int) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: s, EndHeaders: true, BlockFragment: headers(":status", "103", "link", strings.Repeat("z", 500))})
		},
		"headers of 1 MiB": func(f *http2.Framer, s uint32, i int) error {
			if i > 0 {
				return errDone
			}
			b := headers(":status", "200", "x-large", strings.Repeat("v", 1<<20))
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: s, BlockFragment: b[:16000]}); err != nil {
				return err
			}
			for b = b[16000:]; len(b) > 16000; b = b[16000:] {
				if err := f.WriteContinuation(s, false, b[:16000]); err != nil {
					return err
				}
			}
			return f.WriteContinuation(s, true, b)
		},
		"trailers twice": func(f *http2.Framer, s uint32, i int) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: s, EndHeaders: true, BlockFragment: headers(":status", "200")})
		},
		"a bomb of indexed headers": func(f *http2.Framer, s uint32, i int) error {
			if i > 2000 {
				return errDone
			}
			// One large entry in the table, then a byte for every use of it.
			b := headers(":status", "200", "x-bomb", strings.Repeat("b", 3000))
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: s, EndHeaders: true, BlockFragment: append(b, bytes.Repeat([]byte{0xbe}, 8000)...)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			flooded := make(chan struct{})
			c, status := linked(t, func(conn net.Conn) {
				defer close(flooded)
				f := greet(conn)
				if f == nil {
					return
				}
				stream := firstRequest(f)
				if stream == 0 {
					return
				}
				go swallow(conn)
				for i := range many {
					if flood(f, stream, i) != nil {
						return
					}
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			answered := make(chan error, 1)
			go func() {
				_, err := c.Process.List(ctx, connect.NewRequest(&process.ListRequest{}))
				answered <- err
			}()
			// It ends, or all is said and nothing came of it.
			select {
			case s := <-status:
				if s != keeper.RelayViolation {
					t.Errorf("the relay ended with %d", s)
				}
			case <-flooded:
			case <-time.After(5 * time.Minute):
				t.Error("neither is the flood over nor the guest ended")
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
				t.Errorf("the memory of the relay grew by %d MiB", grown>>20)
			}
			cancel()
			if err := within(t, answered); err == nil {
				t.Error("the owner took it for an answer")
			}
		})
	}
}

var errDone = errors.New("that was all")

func headers(kv ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(kv); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]}) // to memory
	}
	return b.Bytes()
}

// firstRequest waits for the owner's call and returns its stream.
func firstRequest(f *http2.Framer) uint32 {
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		switch fr := fr.(type) {
		case *http2.HeadersFrame:
			return fr.StreamID
		case *http2.SettingsFrame:
			if !fr.IsAck() && f.WriteSettingsAck() != nil {
				return 0
			}
		}
	}
}

// answering is a guest that speaks HTTP/2 well, and answers as it likes.
func answering(t *testing.T, h http.HandlerFunc) *guestapi.Client {
	t.Helper()
	c, _ := linked(t, func(conn net.Conn) {
		l := &once{conn: conn, closed: make(chan struct{})}
		_ = (&http.Server{Handler: h, Protocols: guestapi.OnlyHTTP2()}).Serve(l)
	})
	return c
}

// once is a listener that gives out one connection, and ends with it.
type once struct {
	conn   net.Conn
	closed chan struct{}
}

func (o *once) Accept() (net.Conn, error) {
	if c := o.conn; c != nil {
		o.conn = nil
		return &notifying{Conn: c, closed: o.closed}, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}

func (o *once) Close() error   { return nil }
func (o *once) Addr() net.Addr { return &net.UnixAddr{} }

type notifying struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (n *notifying) Close() error {
	n.once.Do(func() { close(n.closed) })
	return n.Conn.Close()
}

func envelope(flags byte, size uint32, data []byte) []byte {
	b := []byte{flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[1:], size)
	return append(b, data...)
}

// What a guest answers is bounded and decoded before the owner sees any of it.
func TestHostileAnswers(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 200 {
		if _, err := z.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]http.HandlerFunc{
		"compressed though not asked": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		},
		"an unknown encoding": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			w.Header().Set("Content-Encoding", "br")
		},
		"without end": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		},
		"no message": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write([]byte{0xff, 0xff})
		},
		"another type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>"))
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		},
		"an error of 1 MiB": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, strings.Repeat("e", 1<<20), 500) },
		"an error as no text": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			_, _ = w.Write([]byte(`{"code":"internal","message":"\ud800 ` + "\xff\xfe" + `"}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, h)
			_, err := c.Process.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
			if err == nil {
				t.Fatal("the owner took it for an answer")
			}
			if len(err.Error()) > 5000 || strings.ContainsRune(err.Error(), 0xfffd) && !strings.Contains(name, "no text") {
				t.Errorf("the owner's error has %d bytes", len(err.Error()))
			}
		})
	}
	for name, b := range map[string][]byte{
		"a message of 4 GiB":    envelope(0, 0xffffffff, nil),
		"a compressed message":  envelope(1, uint32(bomb.Len()), bomb.Bytes()),
		"a message cut":         envelope(0, 100, []byte("short")),
		"no message":            envelope(0, 4, []byte("\xff\xff\xff\xff")),
		"unknown flags":         envelope(0x7c, 1, []byte("x")),
		"an end that is a bomb": envelope(2, 8<<20, bytes.Repeat([]byte(`{"error":{"code":"internal","details":[`), 1<<17)),
		"an end that is no end": envelope(2, 3, []byte("xyz")),
		"nothing":               nil,
	} {
		t.Run("stream, "+name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/connect+proto")
				_, _ = w.Write(b)
			})
			s, err := c.Process.Start(t.Context(), connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "x"}}))
			if err != nil {
				return
			}
			defer s.Close()
			n := 0
			for s.Receive() {
				if n++; n > 10 {
					t.Fatal("messages came of it")
				}
			}
			if s.Err() == nil {
				t.Error("the owner took it for a whole stream")
			}
			// What a guest says badly is neither a full disk nor a fault of the owner.
			if code := connect.CodeOf(s.Err()); code != connect.CodeInternal && code != connect.CodeUnavailable {
				t.Errorf("the code is %v: %v", code, s.Err())
			}
		})
	}
}

// The plain calls: nothing of a guest's headers but what is listed, JSON only
// as this side writes it.
func TestHostilePlainAnswers(t *testing.T) {
	get := func(t *testing.T, path string, h http.HandlerFunc) (*http.Response, []byte, error) {
		t.Helper()
		c := answering(t, h)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.HTTP.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
		return res, b, err
	}
	t.Run("headers", func(t *testing.T) {
		res, b, err := get(t, "/files?path=x", func(w http.ResponseWriter, r *http.Request) {
			for k := range r.Header {
				if k == "Cookie" || k == "X-Forwarded-For" || k == "User-Agent" && r.Header.Get(k) == "secret" {
					t.Errorf("the guest sees %s", k)
				}
			}
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("Location", "http://evil")
			w.Header().Set("X-Evil", "x")
			w.Header().Set("Etag", "kept")
			_, _ = w.Write([]byte("content"))
		})
		if err != nil || string(b) != "content" || res.Header.Get("Etag") != "kept" {
			t.Fatalf("%q %v", b, err)
		}
		for _, k := range []string{"Set-Cookie", "Location", "X-Evil"} {
			if res.Header.Get(k) != "" {
				t.Errorf("the owner sees %s", k)
			}
		}
	})
	t.Run("a redirect is not followed", func(t *testing.T) {
		res, _, err := get(t, "/files?path=x", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("path") != "x" {
				t.Error("it was followed")
			}
			http.Redirect(w, r, "/files?path=other", http.StatusFound)
		})
		if err != nil || res.StatusCode != http.StatusFound || res.Header.Get("Location") != "" {
			t.Errorf("%v %v", res, err)
		}
	})
	for name, text := range map[string]string{
		"deep":    strings.Repeat("[", 1<<20),
		"large":   `["` + strings.Repeat("x", 3<<20) + `"]`,
		"cut":     `{"a":`,
		"no JSON": "hello",
	} {
		t.Run("JSON, "+name, func(t *testing.T) {
			res, b, err := get(t, "/metrics", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(text))
			})
			if err != nil || res.StatusCode != http.StatusBadGateway || len(b) > 1000 {
				t.Errorf("%v: %d bytes, %v", res, len(b), err)
			}
		})
	}
	t.Run("a file that is cut", func(t *testing.T) {
		_, b, err := get(t, "/files?path=x", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("short"))
		})
		if err == nil {
			t.Errorf("the owner took %q for the whole", b)
		}
	})
	t.Run("an archive that is cut", func(t *testing.T) {
		_, _, err := get(t, "/tar?path=x", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-tar")
			_, _ = w.Write(make([]byte, 100))
		})
		if err == nil {
			t.Error("the owner took it for the whole")
		}
	})
}

// A guest that sends without end to an owner that does not read is held up.
func TestEndlessStream(t *testing.T) {
	sent := make(chan int, 1)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		total := 0
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 needs no asking
		for total < 1<<30 && r.Context().Err() == nil {
			n, err := w.Write(make([]byte, 64<<10))
			total += n
			if err != nil {
				break
			}
		}
		sent <- total
	})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/files?path=x", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, res.Body, 1<<20); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-sent:
		t.Fatalf("the guest could send %d bytes that nobody read", n)
	case <-time.After(500 * time.Millisecond): // waiting longer finds more, never less
	}
	cancel()
	res.Body.Close()
	if n := within(t, sent); n > 64<<20 {
		t.Errorf("%d bytes were on their way", n)
	}
}
