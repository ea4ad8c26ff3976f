package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ravi/internal/network/inject"
	"ravi/internal/redact"
)

// http2 is one HTTP/2 connection of the guest, and what it needs upstream.
type http2 struct {
	*flow
	server *http.Server

	mu    sync.Mutex
	first net.Conn // already dialled
	conn  *http.ClientConn
	all   []*http.ClientConn
}

func (f *flow) serveHTTP2(guest, up net.Conn) {
	h := &http2{flow: f, first: up}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	h.server = &http.Server{
		Handler:                      h,
		Protocols:                    &protocols,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: f.limits.Streams},
		MaxHeaderBytes:               f.limits.HeaderBytes,
		ReadHeaderTimeout:            f.limits.HeaderTimeout,
		IdleTimeout:                  f.limits.IdleTimeout,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0), // what goes wrong is on an event
		BaseContext:                  func(net.Listener) context.Context { return f.ctx },
	}
	one := &oneListener{conn: guest, addr: guest.LocalAddr(), over: make(chan struct{})}
	var ended sync.Once
	h.server.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed || s == http.StateHijacked {
			ended.Do(func() { close(one.over) })
		}
	}
	stop := context.AfterFunc(f.ctx, func() { h.server.Close() })
	h.server.Serve(one) // always an error: the listener's end
	<-one.over
	stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first != nil {
		h.first.Close()
	}
	for _, c := range h.all {
		c.Close()
	}
}

// oneListener has one connection to accept, and ends when that does.
type oneListener struct {
	mu   sync.Mutex
	conn net.Conn
	addr net.Addr
	over chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	conn := l.conn
	l.conn = nil
	l.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	<-l.over
	return nil, net.ErrClosed
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return l.addr }

// upstream is the connection to the server. A new one is made if the server
// ended the last: requests that come then have not been sent to anybody.
func (h *http2) upstream(ctx context.Context) (*http.ClientConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil && h.conn.Err() == nil {
		return h.conn, nil
	}
	if h.dialErr != nil {
		return nil, h.dialErr
	}
	conn, err := h.first, error(nil)
	h.first = nil
	switch {
	case conn != nil:
	case h.secure:
		var t *tls.Conn
		if t, err = h.dialTLS(nil, []string{protoHTTP2}); err == nil {
			if conn = t; t.ConnectionState().NegotiatedProtocol != protoHTTP2 {
				conn.Close()
				err = fmt.Errorf("%s does not speak HTTP/2 any more", h.address())
			}
		}
	default:
		if conn, err = h.dial(); err != nil {
			err = fmt.Errorf("cannot connect to %s: %w", h.address(), err)
		}
	}
	if err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP2(h.secure)
	protocols.SetUnencryptedHTTP2(!h.secure)
	given := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	transport := &http.Transport{
		DialContext:            given,
		DialTLSContext:         given,
		Protocols:              &protocols,
		DisableCompression:     true,
		MaxResponseHeaderBytes: int64(h.limits.HeaderBytes),
		// The server decides, but a guest that does not wait for it is not seen
		// here, and nginx says nothing on HTTP/2. So it is as with most clients.
		ExpectContinueTimeout: h.limits.GoAhead,
		HTTP2:                 &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 20, MaxReceiveBufferPerConnection: 4 << 20},
	}
	c, err := transport.NewClientConn(ctx, h.scheme(), h.address())
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("HTTP/2 with %s: %w", h.address(), err)
	}
	c.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			go h.leave()
		}
	})
	h.conn = c
	h.all = append(h.all, c)
	return c, nil
}

// leave tells the guest that no more requests are taken on this connection, as
// the server did.
func (h *http2) leave() {
	ctx, cancel := context.WithTimeout(h.ctx, h.limits.IdleTimeout)
	defer cancel()
	h.server.Shutdown(ctx)
}

// counted counts what is read of a body.
type counted struct {
	io.Reader
	io.Closer
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (h *http2) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var out atomic.Int64
	seen := &stray{flow: h.flow}
	var what asked
	ev := Event{Time: time.Now(), Proto: protoHTTP2, Method: r.Method}
	if !h.secure {
		ev.Proto = "h2c"
	}
	defer func() {
		ev.BytesOut = out.Load()
		seen.note(&ev)
		what.unsigned(&ev)
		h.event(ev)
	}()
	answer := func(no *refusal) {
		ev.Status, ev.Why, ev.Hint, ev.Allowed = no.status, no.why, no.hint, !no.denied()
		text := no.text(h.flow, r.Method, ev.Path)
		header := no.header()
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(no.status)
		io.WriteString(w, text)
	}

	hosts := append([]string{r.Host}, r.Header["Host"]...)
	target := r.RequestURI
	var verdict Verdict
	var no *refusal
	what, verdict, no = h.admit(r.Method, target, hosts...)
	ev.Path, ev.Rule = what.path, verdict.Rule
	if no == nil && r.ProtoMajor != 2 {
		no = malformed("an HTTP/1 request on an HTTP/2 connection")
	}
	if no == nil && !strings.HasPrefix(target, "/") && target != "*" {
		no = malformed("the :path %q is not a path", target)
	}
	if no == nil {
		no = h.putIn(&what, verdict, r.Header, r.Trailer, &ev)
	}
	if no == nil {
		no = h.acquire()
		if no == nil {
			defer h.release()
		}
	}
	if no != nil {
		answer(no)
		return
	}
	conn, err := h.upstream(r.Context())
	if err != nil {
		answer(&refusal{status: http.StatusBadGateway, why: err.Error()})
		return
	}
	ev.Allowed = true

	redactor := h.redactor()
	req := h.request(w, r, what, &out, seen, redactor)
	resp, err := conn.RoundTrip(req)
	if no := seen.refusal(); err != nil && no != nil {
		answer(no)
		return
	}
	if err != nil {
		ev.Why = err.Error()
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the guest is not there to be told
		}
		answer(&refusal{status: http.StatusBadGateway, why: "the request got no response: " + err.Error()})
		return
	}
	defer resp.Body.Close()
	if redactor != nil && resp.Body != http.NoBody && r.Method != http.MethodHead {
		if err := searchable(resp); err != nil {
			answer(&refusal{status: http.StatusBadGateway, why: err.Error()})
			return
		}
		resp.Header.Del("Content-Length") // which may not be true any more
		if resp.ContentLength > 0 {
			resp.ContentLength = -1
		}
	}
	clean(redactor, resp)
	ev.Status = resp.StatusCode
	var in atomic.Int64
	err = respond(w, resp, h.reader(redactor, resp), redactor, &in)
	ev.BytesIn = in.Load()
	if err != nil {
		ev.Why = err.Error()
		panic(http.ErrAbortHandler) // a part must not look like a whole
	}
}

// request is what goes to the server: what the guest sent, and nothing else.
func (h *http2) request(w http.ResponseWriter, r *http.Request, what asked, out *atomic.Int64, seen *stray, redactor *redact.Redactor) *http.Request {
	header := r.Header.Clone()
	trailers := hasToken(header["Te"], "trailers")
	endToEnd(header)
	header.Del("Host")
	if trailers {
		header.Set("Te", "trailers")
	}
	if waitsForGoAhead(r.Body) {
		header.Set("Expect", "100-continue")
	}
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = nil // or net/http sends its own
	}
	// An opaque URL is sent as it is, and an authority in front is taken off
	// again. So the :path is the guest's, byte for byte.
	u := &url.URL{Scheme: h.scheme(), Host: what.host, Opaque: "//" + what.host + what.target}
	if what.target == "*" {
		u.Opaque = what.target
	}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if code == http.StatusContinue {
				return nil // net/http sends it when the body is asked for
			}
			inject.RedactHeader(redactor, http.Header(header))
			for k, v := range header {
				w.Header()[k] = v
			}
			w.WriteHeader(code)
			clear(w.Header())
			return nil
		},
	})
	req := (&http.Request{
		Method:        what.method,
		URL:           u,
		Host:          what.host,
		Header:        header,
		Trailer:       r.Trailer,
		ContentLength: r.ContentLength,
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
	}).WithContext(ctx)
	if r.ContentLength != 0 {
		req.Body = counted{seen.body(r.Body, func() http.Header { return r.Trailer }), r.Body, out}
	}
	return req
}

// waitsForGoAhead says whether the guest sends the body only once it is read.
// The server of net/http takes the Expect header away and leaves no other trace
// of it than this field, which the tests see to.
func waitsForGoAhead(body io.Reader) bool {
	v := reflect.Indirect(reflect.ValueOf(body))
	if v.Kind() != reflect.Struct {
		return false
	}
	f := v.FieldByName("needsContinue")
	return f.IsValid() && f.Kind() == reflect.Bool && f.Bool()
}

// respond hands on a response, each piece as it comes.
func respond(w http.ResponseWriter, resp *http.Response, body io.Reader, redactor *redact.Redactor, in *atomic.Int64) error {
	header := w.Header()
	endToEnd(resp.Header)
	for k, v := range resp.Header {
		header[k] = v
	}
	for _, k := range []string{"Date", "Content-Type"} {
		if _, ok := header[k]; !ok {
			header[k] = nil // or net/http makes one up
		}
	}
	announced := make(map[string]bool, len(resp.Trailer))
	for k := range resp.Trailer {
		announced[k] = true
		header.Add("Trailer", k)
	}
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	// Headers that are the end of the response must end the guest's as well:
	// gRPC reads its status from them only then.
	if resp.ContentLength != 0 {
		if err := rc.Flush(); err != nil {
			return fmt.Errorf("the guest ended the request: %w", err)
		}
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := body.Read(*buf)
		if n > 0 {
			in.Add(int64(n))
			if _, err := w.Write((*buf)[:n]); err != nil {
				return fmt.Errorf("the guest ended the request: %w", err)
			}
			if err := rc.Flush(); err != nil {
				return fmt.Errorf("the guest ended the request: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the server's response ended early: %w", err)
		}
	}
	inject.RedactHeader(redactor, resp.Trailer)
	for k, v := range resp.Trailer {
		if !announced[k] {
			k = http.TrailerPrefix + k
		}
		header[k] = v
	}
	return nil
}
