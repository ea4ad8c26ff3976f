package intercept

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	http2frames "golang.org/x/net/http2"

	"ravi/internal/network/inject"
)

// rawTLS is a server that speaks as it likes, inside TLS.
func rawTLS(t *testing.T, proto string, serve func(c *tls.Conn)) string {
	t.Helper()
	cert, err := serverCA().leaf(site)
	if err != nil {
		t.Fatal(err)
	}
	return rawServer(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{proto}})
		serve(s)
		s.Close()
	})
}

// safe fails if an answer or its event holds the value.
func safe(t *testing.T, w *world, answer string) Event {
	t.Helper()
	ev := w.event()
	if all := answer + fmt.Sprint(ev); strings.Contains(all, token) || strings.Contains(all, token[:12]) {
		t.Errorf("the value is in %q or %+v", answer, ev)
	}
	return ev
}

// What cannot be read of a response is told of in an error, which quotes it.
func TestErrorsHoldNoValue(t *testing.T) {
	for name, head := range map[string]string{
		"status":            "HTTP/1.1 abc " + token + "\r\n\r\n",
		"no HTTP":           token + "\r\n\r\n",
		"line":              "HTTP/1.1 200 OK\r\n" + token + "\r\n\r\n",
		"coding":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + token + "\r\n\r\n",
		"length":            "HTTP/1.1 200 OK\r\nContent-Length: " + token + "\r\n\r\n",
		"trailer":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length, " + token + "\r\n\r\n0\r\n\r\n",
		"compressed":        "HTTP/1.1 200 OK\r\nContent-Encoding: xxxxxxxxxxxxxxxxxxxxxxxx" + token + "\r\nContent-Length: 1\r\n\r\nx",
		"chunk":             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + token + "\r\n",
		"chunk's extension": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + token + "\r\nx\r\n0\r\nX: " + token + "\r\n\r\n",
		"early":             "HTTP/1.1 103 " + token + "\r\n" + token + ": x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := rawTLS(t, "http/1.1", func(c *tls.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, head)
				}
			})
			w := newWorld(t, server, 443, withSecrets(t))
			safe(t, w, ask(t, w.dialTLS("http/1.1"), "GET / HTTP/1.1\r\nHost: "+site+"\r\nConnection: close\r\n\r\n"))
		})
	}
	t.Run("GOAWAY", func(t *testing.T) {
		server := rawTLS(t, "h2", func(c *tls.Conn) {
			io.ReadFull(c, make([]byte, len(preface)))
			fr := http2frames.NewFramer(c, c)
			fr.WriteSettings()
			for {
				f, err := fr.ReadFrame()
				if err != nil {
					return
				}
				if _, ok := f.(*http2frames.HeadersFrame); ok {
					fr.WriteGoAway(1, http2frames.ErrCodeInternal, []byte("debug "+token))
					return
				}
			}
		})
		w := newWorld(t, server, 443, withSecrets(t))
		r := w.send(true, "GET", "/", "")
		if ev := safe(t, w, leaks(t, r)); ev.Why == "" {
			t.Errorf("event %+v", ev)
		}
	})
}

// Trailers come when the head is long gone, and are heads all the same.
func TestPlaceholderInTrailers(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		got := make(chan http.Header, 1)
		w := newWorld(t, addr(tlsServer(t, func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				got <- r.Trailer
			}
		})), 443, withSecrets(t, elsewhere))
		in, out := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+site+"/", in)
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = http.Header{"X-Late": nil}
		go func() {
			io.WriteString(out, "body")
			req.Trailer.Set("X-Late", placeholder)
			out.Close()
		}()
		if r, err := w.client(h2).Do(req); err == nil {
			if r.Body.Close(); r.StatusCode != http.StatusForbidden {
				t.Errorf("answered %s", r.Status)
			}
		}
		if ev := w.event(); !ev.Alarm || ev.Allowed {
			t.Errorf("event %+v", ev)
		}
		select {
		case trailer := <-got:
			t.Errorf("the server got %v", trailer)
		default:
		}
	})
}

// A value of letters only can be the name of a header, or of a trailer that is announced; case is lost on the way.
func TestValueAsName(t *testing.T) {
	const value = "gHs-tR0ub4dor-aNd-mOre"
	both(t, func(t *testing.T, h2 bool) {
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-"+r.Header.Get("X-Api-Key"), "1")
			w.Header().Set("Trailer", "Y-"+r.Header.Get("X-Api-Key"))
			io.WriteString(w, strings.ToLower(r.Header.Get("X-Api-Key"))+strings.ToUpper(r.Header.Get("X-Api-Key")))
			w.Header().Set("Y-"+r.Header.Get("X-Api-Key"), "1")
		})), 443, withSecrets(t, func(s *inject.Secret) { s.Value = value }))
		r := w.send(h2, "GET", "/", "", "X-Api-Key", placeholder)
		b, err := io.ReadAll(r.Body)
		if all := fmt.Sprint(r.Header, r.Trailer, string(b), err); strings.Contains(strings.ToLower(all), strings.ToLower(value)) {
			t.Errorf("got %s", all)
		}
	})
}

// A response that began before a value was there, or came from where it is bound no longer, or from another port.
func TestResponsesOfBefore(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		say := make(chan string)
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Accept-Encoding"); got != "identity" {
				t.Errorf("the server may send %q", got)
			}
			io.WriteString(w, "begun\n")
			http.NewResponseController(w).Flush()
			io.WriteString(w, <-say)
		})), 8443, withSecrets(t)) // it is bound to port 443
		r := w.send(h2, "GET", "/", "")
		if _, err := io.ReadFull(r.Body, make([]byte, len("begun\n"))); err != nil {
			t.Fatal(err)
		}
		if err := w.proxy.Secrets.Replace([]inject.Secret{{Name: "TOKEN", Placeholder: placeholder, Value: "a-value-that-came-later",
			Hosts: []string{"not-here.test"}, Headers: []string{inject.DefaultHeader}}}); err != nil {
			t.Fatal(err)
		}
		say <- token + " a-value-that-came-later\n"
		if all := leaks(t, r); !strings.HasSuffix(all[:strings.LastIndex(all, "\n")], placeholder+" "+placeholder) {
			t.Errorf("got %q", all)
		}
		r = w.send(h2, "GET", "/", "")
		go func() { say <- token }()
		leaks(t, r)
	})
}

// Only HTTP passes to where a secret may go: what is not looked into could fetch what a service keeps.
func TestNothingElseToBoundHosts(t *testing.T) {
	server := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, token) })
	open := func(w *world) { w.rules.connect.Opaque, w.rules.connect.Passthrough = true, true }
	w := newWorld(t, addr(server), 443, withSecrets(t), open)
	leaks(t, w.send(true, "GET", "/", "")) // no passthrough: the guest trusts the sandbox's authority only
	w.event()
	// HTTP/2 that was not negotiated is nothing that is looked into.
	if got := ask(t, w.dialTLS(), preface); got != "" {
		t.Errorf("got %q", got)
	}
	if ev := w.event(); ev.Allowed || ev.Proto != "unknown" {
		t.Errorf("event %+v", ev)
	}
	w = newWorld(t, addr(server), 443, withSecrets(t), open)
	raw := w.dial()
	io.WriteString(raw, "\x00\x01opaque")
	if ev := w.event(); ev.Allowed || ev.Proto != "unknown" {
		t.Errorf("event %+v", ev)
	}
}

// In SPDY, which compresses, or a protocol of its own a server can say what it likes, so only WebSocket is asked for.
func TestOtherUpgradesAreNotAskedFor(t *testing.T) {
	heads := make(chan http.Header, 2)
	w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) { heads <- r.Header })), 443, withSecrets(t))
	for sent, want := range map[string]string{"SPDY/3.1": "", "tcp, websocket": "websocket"} {
		ask(t, w.dialTLS("http/1.1"), "GET / HTTP/1.1\r\nHost: "+site+"\r\nConnection: Upgrade, Accept-Encoding, close\r\nUpgrade: "+sent+"\r\n\r\n")
		h := <-heads
		if got := h.Get("Upgrade"); got != want {
			t.Errorf("%s: the server is asked for %q", sent, got)
		}
		if h.Get("Accept-Encoding") != "identity" {
			t.Errorf("%s: any coding is accepted: %q", sent, h)
		}
	}
}

// gRPC has codings of its own.
func TestGRPCStaysSearchable(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"Grpc-Accept-Encoding", "Connect-Accept-Encoding", "Request-Range", "X-Ms-Range"} {
				if v, ok := r.Header[name]; ok {
					t.Errorf("the server got %s %q", name, v)
				}
			}
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set(r.URL.Path[1:], "gzip")
			io.WriteString(w, "compressed")
		})), 443, withSecrets(t))
		for _, name := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} {
			r := w.send(h2, "POST", "/"+name, "", "Grpc-Accept-Encoding", "gzip", "Connect-Accept-Encoding", "gzip", "Request-Range", "bytes=0-3", "X-Ms-Range", "bytes=0-3")
			if r.StatusCode != http.StatusBadGateway {
				t.Errorf("%s: answered %s", name, r.Status)
			}
			w.event()
		}
	})
}

// Each comes out at once, though it ends as a value begins: nobody waits for what may not come, or learns that it did.
func TestWhatDoesNotWait(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		for _, c := range [][2]string{
			{"text/event-stream", "data: " + token[:9] + "\n\n"},
			{"application/grpc+proto", "\x00\x00\x00\x00\x05" + token[:5]},
			{"application/connect+json", "\x00\x00\x00\x00\x02g" + token[:1]},
		} {
			next := make(chan bool)
			w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", c[0])
				for range 3 {
					io.WriteString(w, c[1])
					http.NewResponseController(w).Flush()
					<-next
				}
			})), 443, withSecrets(t))
			r := w.send(h2, "POST", "/", "")
			for range 3 {
				got := make([]byte, len(c[1]))
				if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != c[1] {
					t.Errorf("%s: %q, %v", c[0], got, err)
				}
				next <- true
			}
		}
	})
}

// A signature that was made with a placeholder is refused by the server, which does not know why.
func TestSignedRequestsAreTold(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(map[string]int{"/no": 403, "/yes": 200}[r.URL.Path])
		})), 443, withSecrets(t))
		for path, told := range map[string]bool{"/no": true, "/yes": false} {
			w.send(h2, "GET", path, "", "Authorization", "AWS4-HMAC-SHA256 Credential=AKIA/x, Signature=00")
			if ev := w.event(); (ev.Hint != "") != told || !ev.Allowed {
				t.Errorf("%s: event %+v", path, ev)
			}
		}
		w.send(h2, "GET", "/no", "", "Authorization", "Bearer "+placeholder)
		if ev := w.event(); ev.Hint != "" {
			t.Errorf("event %+v", ev)
		}
	})
}
