package intercept

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestStreamsPieceByPiece(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		next := make(chan string)
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			for s := range next {
				io.WriteString(w, s)
				w.(http.Flusher).Flush()
			}
		})
		w := newWorld(t, addr(server), 443)
		resp, err := w.client(h2).Get("https://site.test/") // returns though nothing of the body is there
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for i := range 100 {
			want := fmt.Sprintf("data: %d\n\n", i)
			next <- want
			got := make([]byte, len(want))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
				t.Fatalf("got %q, %v", got, err)
			}
		}
		close(next)
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

func TestLargeUploadAndDownload(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 1 {
				http.NewResponseController(w).EnableFullDuplex()
			}
			io.Copy(w, r.Body)
		})
		w := newWorld(t, addr(server), 443)
		const size = 16 << 20
		for _, length := range []int64{size, -1} {
			sent := sha256.New()
			req, _ := http.NewRequest("PUT", "https://site.test/", io.TeeReader(io.LimitReader(rand.Reader, size), sent))
			req.ContentLength = length
			resp, err := w.client(h2).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got := sha256.New()
			n, err := io.Copy(got, resp.Body)
			resp.Body.Close()
			if err != nil || n != size || !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
				t.Errorf("%d bytes, %v", n, err)
			}
			if e := w.event(); e.BytesIn != size || e.BytesOut != size {
				t.Errorf("%+v", e)
			}
		}
	})
}

func TestBothWaysAtOnce(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			if r.ProtoMajor == 1 {
				rc.EnableFullDuplex()
			}
			w.Header().Set("Trailer", "Grpc-Status")
			w.Header().Set("Content-Type", "application/grpc")
			rc.Flush()
			in := bufio.NewReader(r.Body)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					break
				}
				io.WriteString(w, "got "+line)
				rc.Flush()
			}
			w.Header().Set("Grpc-Status", "7")
			w.Header().Set(http.TrailerPrefix+"Grpc-Message", "late")
		})
		w := newWorld(t, addr(server), 443)
		pr, pw := io.Pipe()
		req, _ := http.NewRequest("POST", "https://site.test/svc/Method", pr)
		req.Header.Set("Te", "trailers")
		resp, err := w.client(h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		in := bufio.NewReader(resp.Body)
		for i := range 1000 {
			fmt.Fprintf(pw, "%d\n", i)
			if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("got %d\n", i) {
				t.Fatalf("%q, %v", line, err)
			}
		}
		pw.Close()
		if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
		if resp.Trailer.Get("Grpc-Status") != "7" || resp.Trailer.Get("Grpc-Message") != "late" {
			t.Errorf("trailers %v", resp.Trailer)
		}
	})
}

func TestErrorWithoutBody(t *testing.T) {
	server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "5")
	})
	w := newWorld(t, addr(server), 443)
	h := newRawH2(t, w.dialTLS("h2"))
	if s := h.get(1, [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", site}, {":path", "/"}, {"te", "trailers"}}); s != "200" {
		t.Errorf("status %s", s)
	}
	if h.data[1] {
		t.Error("the response has a body, so its headers are no trailers")
	}
}

func TestGuestCancels(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		cancelled := make(chan struct{})
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(cancelled)
		})
		w := newWorld(t, addr(server), 443)
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://site.test/", nil)
		resp, err := w.client(h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		<-cancelled
		resp.Body.Close()
	})
}

func TestRequestTrailers(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, r.Trailer)
		})
		w := newWorld(t, addr(server), 443)
		req, _ := http.NewRequest("POST", "https://site.test/", io.NopCloser(strings.NewReader("x")))
		req.ContentLength = -1
		req.Trailer = http.Header{"Sum": {"1"}}
		resp, err := w.client(h2).Do(req)
		if got := body(t, resp, err); got != "200 map[Sum:[1]]" {
			t.Errorf("got %q", got)
		}
	})
}

// The server decides whether a body is sent that waits for its go-ahead.
func TestExpectContinue(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		goAhead := make(chan bool)
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			if <-goAhead {
				b, _ := io.ReadAll(r.Body) // has net/http send the 100
				fmt.Fprintf(w, "%d", len(b))
				return
			}
			w.WriteHeader(http.StatusExpectationFailed)
		})
		w := newWorld(t, addr(server), 443, func(w *world) { w.proxy.Limits.GoAhead = time.Hour })
		c := w.client(h2)
		c.Transport.(*http.Transport).ExpectContinueTimeout = time.Hour
		for _, ok := range []bool{true, false} {
			sent := &watched{r: strings.NewReader(strings.Repeat("x", 100_000)), began: make(chan struct{})}
			req, _ := http.NewRequest("PUT", "https://site.test/", sent)
			req.ContentLength = 100_000
			req.Header.Set("Expect", "100-continue")
			done := make(chan string, 1)
			go func() {
				resp, err := c.Do(req)
				if err != nil {
					done <- err.Error()
					return
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				done <- fmt.Sprintf("%d %s", resp.StatusCode, b)
			}()
			goAhead <- ok
			got := <-done
			select {
			case <-sent.began:
				if !ok {
					t.Error("the body was sent after a refusal")
				}
			default:
				if ok {
					t.Error("no body was sent")
				}
			}
			if want := map[bool]string{true: "200 100000", false: "417 "}[ok]; got != want {
				t.Errorf("got %q, not %q", got, want)
			}
		}
	})
}

// watched tells when it is read.
type watched struct {
	r     io.Reader
	began chan struct{}
	read  bool
}

func (w *watched) Read(p []byte) (int, error) {
	if !w.read {
		w.read = true
		close(w.began)
	}
	return w.r.Read(p)
}

func TestEarlyHints(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</a.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			io.WriteString(w, "x")
		})
		w := newWorld(t, addr(server), 443)
		hints := 0
		req, _ := http.NewRequestWithContext(traced(t.Context(), &hints), "GET", "https://site.test/", nil)
		resp, err := w.client(h2).Do(req)
		if err == nil && resp.Header.Get("Link") != "" {
			t.Error("the hint is in the response too")
		}
		if got := body(t, resp, err); got != "200 x" || hints != 1 {
			t.Errorf("got %q, %d hints", got, hints)
		}
	})
}

func TestUpgrade(t *testing.T) {
	server := rawServer(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil || req.Header.Get("Upgrade") != "websocket" || req.Header.Get("Connection") != "Upgrade" {
			t.Errorf("%v %v", req, err)
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\nX: y\r\n\r\nhello")
		io.Copy(c, r)
	})
	w := newWorld(t, server, 80)
	c := w.dial()
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: site.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket, h2c\r\n\r\nGET / HTTP/1.1\r\n\r\n")
	c.CloseWrite()
	got, err := io.ReadAll(c)
	want := "HTTP/1.1 101 Switching Protocols\r\nX: y\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n"
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
	if e := w.event(); e.Proto != "upgrade" || e.Status != 101 || e.BytesIn != 23 || e.BytesOut != 18 {
		t.Errorf("%+v", e)
	}
}

// A guest that ends its side still gets the answer.
func TestHalfClosedRequest(t *testing.T) {
	release := make(chan struct{})
	server := rawServer(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err != nil {
			t.Error(err)
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) { // the half-close is seen here
			t.Error(err)
		}
		<-release
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nuntil the end")
	})
	w := newWorld(t, server, 80)
	c := w.dial()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
	c.CloseWrite()
	close(release)
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end" {
		t.Errorf("got %q, %v", got, err)
	}
}

// The server's end of an idle connection is the guest's too.
func TestServerEndsIdleConnection(t *testing.T) {
	server := rawServer(t, func(c *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	w := newWorld(t, server, 80)
	if got := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n"); got != "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" {
		t.Errorf("got %q", got)
	}
}

func TestH2C(t *testing.T) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := newUnencryptedH2(t, &protocols)
	w := newWorld(t, addr(s), 80)
	h := newRawH2(t, w.dial())
	get := func(id uint32, host string) string {
		return h.get(id, [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", host}, {":path", "/"}})
	}
	if a, b := get(1, site), get(3, "other.test"); a != "200" || b != "403" {
		t.Errorf("%s, %s", a, b)
	}
	if e := w.event(); e.Proto != "h2c" || !e.Allowed {
		t.Errorf("%+v", e)
	}
}
