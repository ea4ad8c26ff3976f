package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"ravi/internal/broker/check"
	"ravi/internal/guard"
	"ravi/internal/redact"
)

// MaxBody is the most bytes of a call's body.
const MaxBody = 32 << 20

// Bounds that an Options without them has: agents themselves give up after as long.
const (
	DefaultFirstByte = 10 * time.Minute
	DefaultIdle      = 5 * time.Minute
)

// Broker serves the model calls of one run. It is an http.Handler, for a guarded listener.
type Broker struct {
	providers map[string]*provider
	lease     Lease
	grants    check.Grants
	begin     func(context.Context, Call) error
	end       func(Call)
	keep      func(Call, []byte) (io.Writer, error)
	transport http.RoundTripper
	redactor  *redact.Redactor
	firstByte time.Duration
	idle      time.Duration
	now       func() time.Time

	ledger   ledger
	ids      memory
	known    known
	requests *budget // bytes of bodies that wait to be sent
	answers  *budget // bytes of answers that are kept until they are whole
	large    *budget // large bodies that are being read

	over    context.Context // ends with the lease, with the reason as its cause
	endOver context.CancelCauseFunc
}

// provider is a Provider and what is known of its keys.
type provider struct {
	Provider
	ring ring
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// New makes a broker. Nobody is called before a call comes.
func New(o Options) (*Broker, error) {
	b := &Broker{
		providers: map[string]*provider{}, lease: o.Lease, grants: o.Grants, begin: o.Begin, end: o.End, keep: o.Keep, transport: o.Transport,
		redactor: o.Redact, firstByte: o.FirstByte, idle: o.Idle, now: o.Now,
		requests: newBudget(4 * MaxBody), answers: newBudget(2 * maxAnswer), large: newBudget(1),
	}
	if len(o.Lease.Hash) != len(TokenHash("")) {
		return nil, errors.New("the lease has no hash")
	}
	for i := range o.Providers {
		p := &provider{Provider: o.Providers[i]}
		if err := p.valid(); err != nil {
			return nil, fmt.Errorf("the model provider %q: %w", p.Name, err)
		}
		if b.providers[p.Name] != nil {
			return nil, fmt.Errorf("the model provider %q is there twice", p.Name)
		}
		p.ring.states = make([]keyState, len(p.Keys))
		b.providers[p.Name] = p
	}
	if b.begin == nil {
		return nil, errors.New("a broker without Begin would call without a record")
	}
	if b.end == nil {
		b.end = func(Call) {}
	}
	if b.now == nil {
		b.now = time.Now
	}
	if b.firstByte == 0 {
		b.firstByte = DefaultFirstByte
	}
	if b.idle == 0 {
		b.idle = DefaultIdle
	}
	if b.redactor == nil {
		b.redactor = &redact.Redactor{}
	}
	if b.transport == nil {
		b.transport = newTransport()
	}
	b.ledger.limits, b.ledger.now = o.Lease.Limits, b.now
	if o.Within != nil {
		b.ledger.above = &o.Within.ledger
	}
	b.over, b.endOver = context.WithCancelCause(context.Background())
	return b, nil
}

func (p *provider) valid() error {
	u := p.BaseURL
	switch {
	case !nameForm.MatchString(p.Name):
		return errors.New("its name is not small letters, digits and -")
	case p.Dialect != Anthropic && p.Dialect != OpenAI && p.Dialect != Gemini:
		return fmt.Errorf("%q is no dialect; there are anthropic, openai and gemini", p.Dialect)
	case u == nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.Opaque != "":
		return errors.New("its address is no http or https address")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("its address has a user, a query or a fragment; keys belong in secrets")
	}
	for name, value := range p.Headers {
		canonical := http.CanonicalHeaderKey(name)
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) || slices.Contains(ownHeaders, canonical) {
			return fmt.Errorf("the header %q cannot be sent along", name)
		}
	}
	return nil
}

// ServerOptions are those of a guarded server that serves a broker.
func ServerOptions() guard.Options { return guard.Options{MaxBody: MaxBody, MaxHeader: 64 << 10} }

// Service serves the connections that the processes of a run make to name:80 and name:443.
func (b *Broker) Service(name string) (serve func(context.Context, net.Conn), end func(context.Context) error) {
	const most = 256 // an agent has many calls under way, when it has agents of its own
	g := guard.New(b, ServerOptions())
	door := guard.NewDoor(most, name, name+":80", name+":443")
	return func(ctx context.Context, c net.Conn) { g.ServeConn(ctx, c, door) }, g.Shutdown
}

// errOver is why calls are cut when the lease ends.
type errOver struct{ reason string }

func (e *errOver) Error() string { return "the lease is over: " + e.reason }

// End ends the lease: no call is let through any more, and those under way are cut. It does not wait for them; they end
// at once, as far as the agent takes what is said to it. The first reason stays.
func (b *Broker) End(reason string) {
	b.endOver(&errOver{reason})
	if t, ok := b.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Usage is what was used through the lease so far, of calls that have ended.
func (b *Broker) Usage() Usage { return b.ledger.total() }

// Spent says whether a limit of the lease, or of one that it is within, is used up, so that no call is let through any more.
func (b *Broker) Spent() bool { return b.ledger.spent() }

// Share is one of n equal parts of what is left of the lease's limits, for a lease within it.
func (b *Broker) Share(n int64) Limits { return b.ledger.share(n) }

// ServeHTTP serves a call of the agent.
func (b *Broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{b: b, w: w, r: r, began: b.now()}
	name, path := split(r.URL)
	if c.p = b.providers[name]; c.p == nil {
		c.dialect = OpenAI
		if refused := b.holds(r.Header); refused != nil {
			c.refuse(refused)
			return
		}
		c.refuse(&refusal{status: http.StatusNotFound, message: fmt.Sprintf("there is no model provider %s here; there is: %s", quoted(name),
			strings.Join(slices.Sorted(maps.Keys(b.providers)), ", "))})
		return
	}
	c.Provider, c.dialect = name, c.p.Dialect
	to, refused := find(c.dialect, r.Method, r.URL, path)
	if refused == nil && to.endpoint == hello {
		w.WriteHeader(http.StatusOK)
		return
	}
	c.to, c.Endpoint = to, string(to.endpoint)
	if notHeld := b.holds(r.Header); notHeld != nil {
		refused = notHeld // a stranger learns nothing more
	} else if over := b.isOver(); over != nil {
		refused = over
	}
	switch {
	case refused != nil:
		c.refuse(refused)
	case to.endpoint == models:
		c.listModels()
	default:
		c.serve()
	}
}

func (b *Broker) isOver() *refusal {
	if b.over.Err() == nil {
		return nil
	}
	return &refusal{status: http.StatusUnauthorized, message: context.Cause(b.over).Error()}
}

// split takes the provider's name off a path. What is escaped stays so, and thus is found nowhere.
func split(u *url.URL) (name, path string) {
	name, rest, more := strings.Cut(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	if more {
		rest = "/" + rest
	}
	return name, rest
}

// refuse writes down that a call is not let through, and says so.
func (c *call) refuse(refused *refusal) {
	c.Refused = refused.message
	if refused.failed != "" {
		c.Refused += " (" + refused.failed + ")"
	}
	c.Status = refused.status
	if err := c.b.begin(c.r.Context(), c.Call); err != nil {
		refused = notWritten()
	}
	refused.write(c.w, c.dialect)
}

func notWritten() *refusal {
	return &refusal{status: http.StatusServiceUnavailable, after: 5 * time.Second,
		message: "Ravi could not write this call down, and so did not send it; the log of the run says more"}
}

// listModels answers with the models that have a name of their own.
func (c *call) listModels() {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{}}
	seen := map[string]bool{}
	for _, name := range c.p.Models {
		if !strings.Contains(name, "*") && !seen[name] {
			seen[name] = true
			list.Data = append(list.Data, model{ID: name, Object: "model", OwnedBy: c.p.Name})
		}
	}
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(encode(list)) // an agent that has gone gets no answer
}

// body reads what was sent, within what all calls together may keep.
func (c *call) body(ctx context.Context) (body []byte, free func(), _ *refusal) {
	for _, coding := range c.r.Header.Values("Content-Encoding") {
		if !strings.EqualFold(coding, "identity") {
			return nil, nil, &refusal{status: http.StatusUnsupportedMediaType, message: "the body is compressed (Content-Encoding), which is not read here; send it as it is"}
		}
	}
	size := c.r.ContentLength
	if size < 0 || size > MaxBody {
		size = MaxBody
	}
	if err := c.b.requests.take(ctx, size); err != nil {
		return nil, nil, &refusal{status: http.StatusServiceUnavailable, after: time.Second, message: "too many large calls are under way"}
	}
	free = sync.OnceFunc(func() { c.b.requests.give(size) })
	in := http.MaxBytesReader(c.w, c.r.Body, MaxBody)
	var err error
	if c.r.ContentLength >= 0 {
		body = make([]byte, size)
		_, err = io.ReadFull(in, body)
	} else {
		body, err = io.ReadAll(in)
	}
	// What is behind a length that is too large is for the guard, and for the reader's own error here.
	if err == nil && c.r.ContentLength > MaxBody {
		err = &http.MaxBytesError{Limit: MaxBody}
	}
	if err == nil {
		return body, free, nil
	}
	free()
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, nil, &refusal{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body has more than %d bytes", MaxBody)}
	}
	return nil, nil, &refusal{status: http.StatusBadRequest, message: "the body could not be read to its end"}
}
