package relay

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/guestapi"
)

// port calls a port through the relay; what is written to in goes there.
func port(ctx context.Context, t *testing.T, c *guestapi.Client, method, query string, headers ...string) (res *http.Response, in *io.PipeWriter) {
	t.Helper()
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, method, "http://guest/port?"+query, r)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if res, err = c.HTTP.Do(req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); res.Body.Close() })
	return res, w
}

// What goes to a port and comes from it is passed on as it comes, both ways at once, and nothing else is.
func TestPortPassesBytesAlone(t *testing.T) {
	asked := make(chan *http.Request, 1)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		for k, v := range map[string]string{"Set-Cookie": "a=b", "Content-Type": "text/html", "Content-Encoding": "gzip", "Location": "/x", "X-Evil": "x"} {
			w.Header().Set(k, v)
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = w.Write(buf[:n]) // what is missing shows at the other end
				_ = http.NewResponseController(w).Flush()
			}
			if err != nil {
				_, _ = io.WriteString(w, "end")
				return
			}
		}
	})
	res, in := port(t.Context(), t, c, http.MethodPost, "port=80&host=10.0.0.1", "Authorization", "Basic x", "X-Metadata-A", "b", "Range", "bytes=0-1")
	got := <-asked
	if got.Method != http.MethodPost || got.URL.RequestURI() != "/port?port=80" {
		t.Errorf("the guest is asked %s %s", got.Method, got.URL)
	}
	for k := range got.Header {
		if k != "User-Agent" {
			t.Errorf("the guest is told %s", k)
		}
	}
	for k, v := range res.Header {
		if k != "Date" && (k != "Content-Type" || v[0] != "application/octet-stream") {
			t.Errorf("the owner is told %s: %s", k, v)
		}
	}
	for _, word := range []string{"hello", "\x00\xff\r\n\r\n"} {
		if _, err := io.WriteString(in, word); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(word))
		if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != word {
			t.Fatalf("%q %v", b, err)
		}
	}
	in.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "end" {
		t.Errorf("%q %v", b, err)
	}
}

// Whatever a guest answers in place of a connection, the owner gets a bounded text.
func TestPortRefusals(t *testing.T) {
	var reached atomic.Bool
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("port") {
		case "1":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"nobody"}`)
		case "2":
			w.WriteHeader(http.StatusBadGateway)
			endless(w, []byte("x"))
		case "3":
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			reached.Store(true)
		}
	})
	for query, want := range map[string]string{"port=1": `404 {"message":"nobody"}`, "port=2": "502 the guest's answer is not JSON of a sensible size\n"} {
		res, _ := port(t.Context(), t, c, http.MethodPost, query)
		b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		if got := res.Status[:4] + string(b); err != nil || got != want {
			t.Errorf("%s: %.200q %v", query, got, err)
		}
	}
	res, _ := port(t.Context(), t, c, http.MethodPost, "port=3")
	if b, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("what was cut ends in order after %q", b)
	}
	for _, query := range []string{"", "port=0", "port=65536", "port=-5", "port=80%0d%0a", "port=127.0.0.1:80", "port=5/../../files"} {
		if res, _ := port(t.Context(), t, c, http.MethodPost, query); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", query, res.Status)
		}
	}
	if res, _ := port(t.Context(), t, c, http.MethodPut, "port=80"); res.StatusCode != http.StatusBadRequest {
		t.Errorf("PUT: %s", res.Status)
	}
	if reached.Load() {
		t.Error("the guest was asked for what is no port")
	}
}

// Connections to ports are bounded, whatever the guest does with them, and leave other calls alone.
func TestPortsAreBounded(t *testing.T) {
	hold := make(chan struct{})
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-hold
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range maxPorts {
		if res, _ := port(ctx, t, c, http.MethodPost, "port=80"); res.StatusCode != http.StatusOK {
			t.Fatalf("connection %d: %s", i, res.Status)
		}
	}
	res, _ := port(ctx, t, c, http.MethodPost, "port=80")
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(b), "64") {
		t.Errorf("one more: %s %s %v", res.Status, b, err)
	}
	if res, err := c.HTTP.Get("http://guest/health"); err != nil || res.StatusCode != http.StatusNoContent {
		t.Errorf("another call: %v %v", res, err)
	} else {
		res.Body.Close()
	}
	close(hold)
	for {
		if res, _ := port(ctx, t, c, http.MethodPost, "port=80"); res.StatusCode == http.StatusOK {
			return
		}
	}
}
