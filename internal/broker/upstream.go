package broker

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"ravi/internal/broker/check"
	"ravi/internal/guard"
)

// newTransport calls providers, by the environment's proxies. It keeps few bytes of each answer, as there may be many.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   32,
		IdleConnTimeout:       time.Minute,
		ReadBufferSize:        2 << 10, // events are small, and what is larger passes the buffers by
		WriteBufferSize:       2 << 10,
		// A head of an answer that is larger is no provider's.
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: 256 << 10, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// ownHeaders are the broker's to set.
var ownHeaders = []string{"Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade",
	"Accept-Encoding", "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "Expect"}

// outgoing is a body that is sent, perhaps more than once. Who has it sent can let it go, so that a long answer does not
// keep a long question in memory.
type outgoing struct {
	mu   sync.Mutex
	data []byte
	size int
	sent bool // some of it
	gone bool
	open int // readers that are not at its end
}

func (o *outgoing) reader() io.ReadCloser {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open++
	return &outgoingReader{o: o}
}

// let lets the body go, as soon as nobody reads it.
func (o *outgoing) let() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = true
	o.drop()
}

func (o *outgoing) wasSent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent
}

func (o *outgoing) drop() {
	if o.gone && o.open == 0 {
		o.data = nil
	}
}

type outgoingReader struct {
	o    *outgoing
	at   int
	done bool
}

func (r *outgoingReader) Read(p []byte) (int, error) {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	if r.done {
		return 0, io.EOF
	}
	n := copy(p, r.o.data[r.at:])
	r.o.sent = r.o.sent || n > 0
	if r.at += n; r.at == r.o.size {
		r.end()
		return n, io.EOF
	}
	return n, nil
}

func (r *outgoingReader) Close() error {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	r.end()
	return nil
}

func (r *outgoingReader) end() {
	if !r.done {
		r.done = true
		r.o.open--
		r.o.drop()
	}
}

// request makes what is sent, anew: nothing of the agent's request is in it but what was checked.
func (c *call) request(ctx context.Context, body *outgoing, key string) *http.Request {
	u := target(c.p.BaseURL, c.to)
	h := http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"ravi"},
		// It is not sent. It says that the call may be sent again where a kept connection turns out to have been closed.
		"X-Idempotency-Key": {},
	}
	if c.Stream {
		h["Accept"] = []string{"text/event-stream"}
	}
	switch c.dialect {
	case Anthropic:
		c.anthropicHeaders(h)
	case OpenAI:
		// Codex says so of bodies that carry their tools among the input, which the provider refuses otherwise.
		if c.r.Header.Get(codexLite) == "true" {
			h.Set(codexLite, "true")
		}
	}
	for name, value := range c.p.Headers {
		if strings.EqualFold(name, "anthropic-beta") && h.Get(name) != "" {
			value = h.Get(name) + "," + value
		}
		h.Set(name, value)
	}
	if key != "" {
		for _, name := range keyHeaders {
			h.Del(name)
		}
		c.p.put(h, key)
	}
	r := &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: body.reader(), ContentLength: int64(body.size),
		GetBody: func() (io.ReadCloser, error) { return body.reader(), nil },
	}
	return r.WithContext(ctx)
}

var (
	versionForm = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)
	betaForm    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
)

const maxBetas = 64

const codexLite = "X-Openai-Internal-Codex-Responses-Lite"

// reaching are the betas by which a provider reaches out or remembers, by a part of their names, and what allows them.
var reaching = []struct{ part, grant string }{
	{"files-api", check.Files}, {"mcp-client", check.MCP}, {"mcp-server", check.MCP}, {"code-execution", check.CodeExecution},
	{"skills", check.CodeExecution}, {"web-fetch", check.WebFetch}, {"web-search", check.WebSearch},
	{"message-batches", ""}, {"managed-agents", ""}, {"environments", ""}, {"user-profiles", ""},
}

// anthropicHeaders are those of the agent's that go on: the version, and the betas that stay where they are.
func (c *call) anthropicHeaders(h http.Header) {
	h.Set("Anthropic-Version", "2023-06-01")
	if v := c.r.Header.Get("Anthropic-Version"); versionForm.MatchString(v) {
		h.Set("Anthropic-Version", v)
	}
	var betas []string
	for _, line := range c.r.Header.Values("Anthropic-Beta") {
		for beta := range strings.SplitSeq(line, ",") {
			beta = strings.TrimSpace(beta)
			out := slices.ContainsFunc(reaching, func(r struct{ part, grant string }) bool {
				return strings.Contains(strings.ToLower(beta), r.part) && !c.b.grants[r.grant]
			})
			if betaForm.MatchString(beta) && !out && len(betas) < maxBetas {
				betas = append(betas, beta)
			}
		}
	}
	if len(betas) > 0 {
		h.Set("Anthropic-Beta", strings.Join(betas, ","))
	}
}

// send sends the call with one key after the other, until there is an answer to hand on.
func (c *call) send(ctx context.Context, body *outgoing) (*http.Response, *refusal) {
	if len(c.p.Keys) == 0 {
		res, err := c.b.transport.RoundTrip(c.request(ctx, body, ""))
		if err != nil {
			return nil, c.unreachable(ctx, err)
		}
		return res, nil
	}
	var (
		refusedKeys []string // names
		refusedWith int
		detail      string
		retried     bool
		last        *refusal
		tried       = make([]bool, len(c.p.Keys))
	)
	for {
		i, value, none := c.choose(ctx, tried)
		if none != nil {
			switch {
			case ctx.Err() != nil:
				return nil, c.unreachable(ctx, ctx.Err())
			case len(refusedKeys) > 0:
				return nil, c.p.notTaken(refusedKeys, refusedWith, detail)
			case last != nil:
				return nil, last
			}
			return nil, none
		}
		tried[i] = true
		c.Key = c.p.Keys[i].Name
		res, err := c.b.transport.RoundTrip(c.request(ctx, body, value))
		if err != nil {
			last = c.unreachable(ctx, err)
			if ctx.Err() != nil || retried {
				return nil, last
			}
			retried = true
			continue
		}
		now := c.b.now()
		switch status := res.StatusCode; {
		case refusedStatus(status):
			detail = c.detail(res)
			c.p.ring.lay(i, c.Model, rest{until: now.Add(restRefused), status: status, value: sha256.Sum256([]byte(value)), said: true})
			refusedKeys, refusedWith = append(refusedKeys, c.Key), status
		case status == http.StatusTooManyRequests || status == 529:
			after, said := retryAfter(res.Header, now)
			if !said {
				after = restUsedUp
			}
			c.p.ring.lay(i, c.Model, rest{until: now.Add(after), status: status, said: said})
			if !c.another(tried) {
				return res, nil
			}
			res.Body.Close()
		case status >= 500:
			if retried || !c.another(tried) {
				return res, nil
			}
			retried = true
			res.Body.Close()
		default:
			return res, nil
		}
	}
}

// another says whether there is a key left that does not rest.
func (c *call) another(tried []bool) bool {
	for i := range c.p.Keys {
		if _, rests := c.p.ring.rests(i, c.Model, c.b.now()); !tried[i] && !rests {
			return true
		}
	}
	return false
}

// choose takes the first key that does not rest, then the first that does so on suspicion only. If there is none it says
// why.
func (c *call) choose(ctx context.Context, tried []bool) (int, string, *refusal) {
	var (
		refused     []string
		refusedWith int
		soonest     time.Duration
		status      int
		failed      *refusal
	)
	for _, suspected := range []bool{false, true} {
		for i, key := range c.p.Keys {
			if tried[i] {
				continue
			}
			now := c.b.now()
			at, rests := c.p.ring.rests(i, c.Model, now)
			switch {
			case suspected && (!rests || at.said):
				continue // it had its turn
			case !suspected && rests && !refusedStatus(at.status):
				if wait := at.until.Sub(now); status == 0 || wait < soonest {
					soonest, status = wait, at.status
				}
				continue
			}
			value, err := c.b.value(ctx, key)
			if err != nil {
				failed = &refusal{status: http.StatusServiceUnavailable, after: 5 * time.Second, failed: c.b.redactor.String(err.Error()),
					message: fmt.Sprintf("the key %s of the model provider %s cannot be had now; nothing is wrong with this run's lease: "+
						"the operator of Ravi finds out more with: ravi secrets check %s", key.Name, c.p.Name, key.Name)}
				continue
			}
			if rests && refusedStatus(at.status) {
				if at.value == sha256.Sum256([]byte(value)) {
					refused, refusedWith = append(refused, key.Name), at.status
					continue
				}
				c.p.ring.wake(i)
			}
			return i, value, nil
		}
	}
	switch {
	case status != 0:
		return 0, "", &refusal{status: http.StatusTooManyRequests, after: max(soonest, time.Second),
			message: fmt.Sprintf("the model provider %s has no room for this now (it answered %d); try again later", c.p.Name, status)}
	case len(refused) > 0:
		return 0, "", c.p.notTaken(refused, refusedWith, "")
	case failed != nil:
		return 0, "", failed
	}
	return 0, "", &refusal{status: http.StatusBadGateway, message: "no key of the model provider " + c.p.Name + " is left to try"}
}

// detail is what an answer says of an error, shortened.
func (c *call) detail(res *http.Response) string {
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return ""
	}
	var doc struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(b, &doc) != nil {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, c.b.redactor.String(doc.Error.Message))
	if runes := []rune(text); len(runes) > 300 {
		text = string(runes[:300]) + "…"
	}
	return text
}

// Why the broker itself ends a call.
var (
	errFirstByte = errors.New("it took too long to begin its answer")
	errIdle      = errors.New("it stopped in the middle of its answer")
	errTooLong   = errors.New("its answer has more than 64 MiB")
	errRoom      = errors.New("the answers that are read at once are too large together")
	errHalf      = errors.New("it ended its answer in the middle")
	errNoJSON    = errors.New("its answer is no valid JSON")
)

// unreachable is why there is no answer, or no more of it.
func (c *call) unreachable(ctx context.Context, err error) *refusal {
	cause := err
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	r := &refusal{status: http.StatusBadGateway, failed: c.b.redactor.String(cause.Error())}
	var over *errOver
	switch {
	case errors.As(cause, &over):
		r.status, r.message = http.StatusUnauthorized, over.Error()
	case errors.Is(cause, guard.ErrShutdown):
		r.status, r.message = http.StatusServiceUnavailable, "Ravi shuts down"
	case errors.Is(cause, context.Canceled):
		r.status, r.message, r.failed = statusGone, "the agent went away", "the agent went away"
	case errors.Is(cause, errFirstByte), errors.Is(cause, errIdle):
		r.status, r.message = http.StatusGatewayTimeout, fmt.Sprintf("the model provider %s is silent: %s", c.p.Name, cause)
	case errors.Is(cause, errTooLong), errors.Is(cause, errRoom), errors.Is(cause, errHalf), errors.Is(cause, errNoJSON), errors.Is(cause, errEncoding):
		r.message = fmt.Sprintf("the model provider %s gave a broken answer: %s", c.p.Name, cause)
	default:
		// It may name addresses that are nothing to the agent.
		r.message = fmt.Sprintf("the connection to the model provider %s failed; the record of the run says more", c.p.Name)
	}
	return r
}

// statusGone stands for an answer that nobody waits for.
const statusGone = 499

var errEncoding = errors.New("it is compressed in a way that was not asked for")

// plain is an answer's body without compression, which was not asked for.
func plain(res *http.Response, src io.Reader) (io.Reader, error) {
	switch codings := res.Header.Values("Content-Encoding"); {
	case len(codings) == 0, len(codings) == 1 && (codings[0] == "" || strings.EqualFold(codings[0], "identity")):
		return src, nil
	case len(codings) == 1 && strings.EqualFold(codings[0], "gzip"):
		return &gunzip{src: src}, nil
	default:
		return nil, errEncoding
	}
}

// gunzip reads nothing before it is asked to.
type gunzip struct {
	src io.Reader
	z   *gzip.Reader
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.z == nil {
		z, err := gzip.NewReader(g.src)
		if errors.Is(err, gzip.ErrHeader) {
			err = errEncoding
		}
		if err != nil {
			return 0, err
		}
		g.z = z
	}
	return g.z.Read(p)
}

// kind is an answer's type.
func kind(res *http.Response) string {
	types := res.Header.Values("Content-Type")
	if len(types) != 1 {
		return ""
	}
	t, _, err := mime.ParseMediaType(types[0])
	if err != nil {
		return ""
	}
	return t
}

func isJSON(kind string) bool { return kind == "application/json" || strings.HasSuffix(kind, "+json") }

// handed are the headers of an answer that the agent gets, besides its type.
func (c *call) handed(res *http.Response) {
	const most, longest = 48, 512
	n := 0
	for name, values := range res.Header {
		low := strings.ToLower(name)
		fixed := slices.Contains([]string{"retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry"}, low)
		if !fixed && !strings.HasPrefix(low, "anthropic-ratelimit-") && !strings.HasPrefix(low, "x-ratelimit-") {
			continue
		}
		if len(values) != 1 || len(name) > longest || len(values[0]) > longest || n >= most {
			continue
		}
		n++
		c.w.Header().Set(c.b.redactor.String(name), c.b.redactor.String(values[0]))
	}
}
