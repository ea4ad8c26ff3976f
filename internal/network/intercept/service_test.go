package intercept

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A client of a service that nobody serves is told so in its own protocol, if that is HTTP.
func TestServiceUnavailable(t *testing.T) {
	w := newWorld(t, "127.0.0.1:1", 80)
	call := func(port uint16) (guest net.Conn, over chan struct{}) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		guest, err = net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ours, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		over = make(chan struct{})
		go func() {
			defer close(over)
			w.proxy.ServeService(t.Context(), ours, "gateway.ravi.internal", port, func(context.Context) (net.Conn, error) {
				return nil, errors.New("nobody serves it")
			})
		}()
		if port == 443 {
			guest = tls.Client(guest, &tls.Config{ServerName: "gateway.ravi.internal", RootCAs: w.roots})
		}
		t.Cleanup(func() { guest.Close(); <-over })
		return guest, over
	}
	head := "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
	for _, port := range []uint16{80, 443, 8080} {
		for raw, method := range map[string]string{
			"GET /a?b=c HTTP/1.1\r\nHost: gateway.ravi.internal\r\n\r\n":                                  "GET",
			"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("x", 300000): "POST",
			"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n":                                                         "HEAD",
			"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\n\r\n":                   "GET",
		} {
			guest, _ := call(port)
			got := ask(t, guest, raw)
			first, text, found := strings.Cut(got, "\r\n\r\n")
			if !found || !strings.HasPrefix(got, head) || !strings.Contains(first+"\r\n", "\r\nConnection: close\r\n") {
				t.Fatalf("port %d: %q gets %q", port, raw[:20], got)
			}
			if method == "HEAD" {
				if text != "" {
					t.Errorf("HEAD gets a body: %q", text)
				}
			} else {
				var said struct {
					Error struct{ Code, Message, Hint string }
				}
				if err := json.Unmarshal([]byte(text), &said); err != nil || said.Error.Code != "UNAVAILABLE" || said.Error.Message == "" || said.Error.Hint == "" {
					t.Errorf("the answer is %q: %v", text, err)
				}
			}
			if e := w.event(); e.Status != http.StatusServiceUnavailable || e.Method != method || e.Path != "/a" || e.Why != "nobody serves it" || e.TLS != (port == 443) {
				t.Errorf("it is told as %+v", e)
			}
		}
	}
	// What is not HTTP is cut, and nothing is written into it.
	for _, raw := range []string{"\x01\x02\x03\x04", "SSH-2.0-x\r\n", "GET /a HTTP/9.x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nbad header\r\n\r\n"} {
		guest, over := call(22)
		if _, err := io.WriteString(guest, raw); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(guest); len(b) > 0 || err == nil {
			t.Errorf("%q gets %q, %v", raw, b, err)
		}
		<-over
		if e := w.event(); e.Status != 0 || e.Why != "nobody serves it" {
			t.Errorf("it is told as %+v", e)
		}
	}
	w.noMoreEvents()
}
