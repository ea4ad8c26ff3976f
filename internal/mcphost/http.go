package mcphost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/sandbox"
)

// Bounds of what a server at a URL says in one answer. That of the older transport is one answer for all its life.
const (
	maxAnswer = 32 << 20
	maxStream = 256 << 20
)

// carrier makes the requests to one server by way of the sandbox's network.
type carrier struct {
	base    *http.Transport
	life    context.Context // what is under way is cut when it ends
	origin  *url.URL
	headers map[string]string
	most    int64 // bytes of an answer

	mu   sync.Mutex
	last error // why the last request failed
}

// overHTTP is the transport to a server at a URL, for as long as life.
func overHTTP(life context.Context, sb *sandbox.Sandbox, s Server) (*carrier, sdk.Transport, error) {
	headers, err := filled(s.Headers, sb.Placeholders())
	if err != nil {
		return nil, nil, err
	}
	origin, err := url.Parse(s.URL)
	if err != nil {
		return nil, nil, err
	}
	c := &carrier{base: sb.Transport(), life: life, origin: origin, headers: headers, most: maxAnswer}
	client := &http.Client{Transport: c, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		// The headers may hold what is meant for this server alone.
		return c.failed(fmt.Errorf("it redirects to %.200q, which is not followed: set its url to where it is", req.URL.String()))
	}}
	if s.Kind() == SSE {
		c.most = maxStream
		return c, &sdk.SSEClientTransport{Endpoint: s.URL, HTTPClient: client, MaxEventSize: maxLine}, nil
	}
	// Without the stream that stands by itself a server says nothing unasked: it would be kept however much it is.
	return c, &sdk.StreamableClientTransport{Endpoint: s.URL, HTTPClient: client, MaxEventSize: maxLine, DisableStandaloneSSE: true}, nil
}

// RoundTrip makes a request.
func (c *carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != c.origin.Scheme || req.URL.Host != c.origin.Host {
		return nil, c.failed(fmt.Errorf("it names another server, %.200q, to go on with", req.URL.Host))
	}
	ctx, cancel := context.WithCancel(req.Context())
	unhook := context.AfterFunc(c.life, cancel)
	req = req.Clone(ctx)
	for name, value := range c.headers {
		if req.Header.Get(name) == "" { // what the protocol needs is not replaced
			req.Header.Set(name, value)
		}
	}
	res, err := c.base.RoundTrip(req)
	if err != nil {
		unhook()
		cancel()
		return nil, c.failed(err)
	}
	a := &answer{body: res.Body, left: c.most, closed: func() { unhook(); cancel() }, long: func() error {
		return c.failed(fmt.Errorf("it answered with more than %d bytes", c.most))
	}}
	res.Body = a
	var refused error
	if res.StatusCode >= 400 {
		refused = fmt.Errorf("it answers %s%s", res.Status, a.begin())
	}
	_ = c.failed(refused)
	return res, nil
}

// failed remembers why the last request failed; nil: it did not.
func (c *carrier) failed(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
	return err
}

// stop cuts what is under way; life has ended.
func (c *carrier) stop() { c.base.CloseIdleConnections() }

// explain is why the server does not work, with what mends it.
func (c *carrier) explain(err error) error {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	switch {
	case last == nil:
		return err
	case errors.Is(last, sandbox.ErrNoNetwork):
		return fmt.Errorf("%w: allow it with --allow-net %s", sandbox.ErrNoNetwork, c.rule())
	case errors.Is(last, sandbox.ErrNotAllowed):
		return fmt.Errorf("%w: allow it with --allow-net %s", last, c.rule())
	case errors.Is(last, context.Canceled):
		return err
	}
	return last
}

// rule is the rule of allow_net that lets the server be reached.
func (c *carrier) rule() string {
	switch port := c.origin.Port(); port {
	case "", "80", "443":
		return c.origin.Hostname()
	default:
		return net.JoinHostPort(c.origin.Hostname(), port)
	}
}

// answer is a body of which no more than so many bytes are read.
type answer struct {
	body   io.ReadCloser
	read   []byte // what was read of it already
	left   int64
	long   func() error // why no more is read
	closed func()
}

// begin is how it begins, for a message; it is still read from there.
func (a *answer) begin() string {
	b := make([]byte, 300)
	n, _ := io.ReadFull(a.body, b) // one that breaks off is read to there
	a.read = b[:n]
	if text := strings.TrimSpace(string(a.read)); text != "" {
		return ": " + text
	}
	return ""
}

func (a *answer) Read(b []byte) (int, error) {
	if len(a.read) > 0 {
		n := copy(b, a.read)
		a.read = a.read[n:]
		return n, nil
	}
	if a.left <= 0 {
		return 0, a.long()
	}
	n, err := a.body.Read(b[:min(int64(len(b)), a.left)])
	a.left -= int64(n)
	return n, err
}

func (a *answer) Close() error {
	defer a.closed()
	return a.body.Close()
}
