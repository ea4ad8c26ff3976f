package intercept

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"ravi/internal/network/inject"
)

// Decider says what may pass. It is asked anew for every request, from many
// goroutines at once. Names are in lower case and without a trailing dot.
type Decider interface {
	// Connect is asked once for a connection, before anything is dialled.
	Connect(name string, port uint16) Verdict
	// Request is asked for every HTTP request. The path is as the guest sent
	// it, nothing unescaped, without the query.
	Request(name string, port uint16, tls bool, method, path string) Verdict
}

// Verdict is a Decider's answer.
type Verdict struct {
	Allowed bool
	Rule    string // the rule that decided, for the record
	Why     string // for people, when it is refused

	// Of Connect only. Passthrough lets TLS pass as it is once its server name
	// was checked. Opaque lets pass what is neither TLS nor HTTP.
	Passthrough, Opaque bool
	// Anything, of Connect only, says that every name is allowed, so that it does
	// no harm if a handshake that passes hides one.
	Anything bool

	// Inject, of Request only, are names of secrets that the request gets.
	Inject []string
}

// Event says what became of a request, or of a connection that held none.
type Event struct {
	Time   time.Time // when it began
	Name   string
	Port   uint16
	Proto  string // "http/1.1", "h2", "h2c", "upgrade", "tls", "tls-passthrough", "opaque", "unknown"
	TLS    bool   // what is described was inside TLS that this package ended
	Method string
	Path   string // as sent, without the query
	Status int    // that the guest got; 0 if it got none

	Allowed bool
	Rule    string
	Why     string // what refused it or went wrong, for people
	Hint    string // what would help, or empty

	Secrets []string // names of those that were put into the request
	Alarm   bool     // a placeholder was sent to where it does not belong

	// Of a request the bytes of its body and of its response's, else all bytes
	// of the connection. Out is what left the sandbox.
	BytesIn, BytesOut int64
}

// Limits bound what a guest or a server can hold. The zero value of each field
// means its default.
type Limits struct {
	HeaderBytes   int           // of one request's or response's head; 1 MiB
	Requests      int           // under way at once in a Proxy; 1024
	Streams       int           // of one HTTP/2 connection; 100
	SniffTimeout  time.Duration // until it is known what a connection is; 10 s
	OpaqueAfter   time.Duration // silence after which a server may speak first; 300 ms
	DialTimeout   time.Duration // to a server, its TLS handshake included; 30 s
	HeaderTimeout time.Duration // for a request's head, once begun; 30 s
	IdleTimeout   time.Duration // between two requests of a connection; 5 min
	GoAhead       time.Duration // for a server's "100 Continue" on HTTP/2, which many never send; 1 s
	CopyTimeout   time.Duration // silence on a connection that is copied; 2 h
}

func (l Limits) filled() Limits {
	def := func(have *time.Duration, otherwise time.Duration) {
		if *have == 0 {
			*have = otherwise
		}
	}
	if l.HeaderBytes == 0 {
		l.HeaderBytes = 1 << 20
	}
	if l.Requests == 0 {
		l.Requests = 1024
	}
	if l.Streams == 0 {
		l.Streams = 100
	}
	def(&l.SniffTimeout, 10*time.Second)
	def(&l.OpaqueAfter, 300*time.Millisecond)
	def(&l.DialTimeout, 30*time.Second)
	def(&l.HeaderTimeout, 30*time.Second)
	def(&l.IdleTimeout, 5*time.Minute)
	def(&l.GoAhead, time.Second)
	def(&l.CopyTimeout, 2*time.Hour)
	return l
}

// Proxy serves the connections of one sandbox. Its fields must not be changed
// once it serves; CA, Decider and Dial must be set.
type Proxy struct {
	CA      *CA
	Decider Decider
	// Dial connects to what a name stands for. The addresses that may be
	// dialled are its concern. If a connection has CloseWrite and SetLinger, as
	// *net.TCPConn has, then half-closes and resets are handed on.
	Dial func(ctx context.Context, name string, port uint16) (net.Conn, error)
	// Roots is what the certificate of a host must lead to; nil, for one or all: the
	// system's.
	Roots func(host string) *x509.CertPool
	// Secrets are put into requests; nil: there are none.
	Secrets *inject.Set
	Event   func(Event) // called from many goroutines at once; may be nil
	Limits  Limits

	once  sync.Once
	slots chan struct{} // one for each request under way
}

// flow is one connection of the guest.
type flow struct {
	*Proxy
	limits Limits
	ctx    context.Context
	name   string
	port   uint16
	isIP   bool
	begun  time.Time
	secure bool // TLS was ended here
	may    Verdict
	// Why the server cannot be reached, if that was tried before a request came.
	dialErr error

	mu    sync.Mutex
	conns []net.Conn // cut when ctx ends
	cut   bool
}

// Serve lets guest speak with what name and port stand for: name is the one that
// the guest's synthetic address was made for, or an IP address that it dialled.
// It closes guest, and returns when all of the connection is over.
func (p *Proxy) Serve(ctx context.Context, guest net.Conn, name string, port uint16) {
	limits := p.setUp()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	f := &flow{Proxy: p, limits: limits, ctx: ctx, port: port, begun: time.Now(),
		name: strings.ToLower(strings.TrimSuffix(name, "."))}
	_, err := netip.ParseAddr(f.name)
	f.isIP = err == nil
	f.hold(guest)
	stop := context.AfterFunc(ctx, f.cutAll)
	defer f.cutAll()
	defer stop()

	f.may = p.Decider.Connect(f.name, port)
	if !f.may.Allowed {
		f.refuse(guest, "unknown", f.may.Why, "--allow-net "+f.rule())
		return
	}
	if p.Secrets.Bound(f.name, port) {
		// What is not looked into could bring back what was sent by what is.
		f.may.Passthrough, f.may.Opaque = false, false
	}
	f.serve(guest)
}

// setUp fills in what was left out, once.
func (p *Proxy) setUp() Limits {
	limits := p.Limits.filled()
	p.once.Do(func() {
		p.slots = make(chan struct{}, limits.Requests)
		if p.Secrets == nil {
			p.Secrets = &inject.Set{}
		}
	})
	return limits
}

// hold has a connection cut when the flow ends, or at once if it has ended.
func (f *flow) hold(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		reset(conn)
		return
	}
	f.conns = append(f.conns, conn)
}

// cutAll closes what was not closed in order; for what was it does nothing.
func (f *flow) cutAll() {
	f.mu.Lock()
	conns := f.conns
	f.conns, f.cut = nil, true
	f.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// rule is the text of the simplest rule that names this flow's peer.
func (f *flow) rule() string {
	if f.port == 80 || f.port == 443 {
		return f.name
	}
	return f.address()
}

func (f *flow) address() string {
	return net.JoinHostPort(f.name, strconv.Itoa(int(f.port)))
}

func (f *flow) event(e Event) {
	if f.Event == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = f.begun
	}
	e.Name, e.Port, e.TLS = f.name, f.port, f.secure
	e.Why = f.redactor().String(e.Why) // an error may quote what the server said
	f.Event(e)
}

// refuse ends a connection of which nothing passed.
func (f *flow) refuse(guest net.Conn, proto, why, hint string) {
	f.event(Event{Proto: proto, Rule: f.may.Rule, Why: why, Hint: hint})
	reset(guest)
}

// dial connects upstream, without TLS.
func (f *flow) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(f.ctx, f.limits.DialTimeout)
	defer cancel()
	conn, err := f.Dial(ctx, f.name, f.port)
	if err != nil {
		return nil, err
	}
	f.hold(conn)
	return conn, nil
}

// serve finds out what the guest speaks.
func (f *flow) serve(guest net.Conn) {
	conn := &replay{Conn: guest}
	kind, up, err := f.sniff(conn, nil)
	if err != nil {
		f.nothing(guest, up, err)
		return
	}
	if kind == kindTLS {
		f.serveTLS(conn, up)
		return
	}
	f.serveKind(kind, conn, up)
}

// nothing ends a connection of which the guest never said what it is.
func (f *flow) nothing(guest, up net.Conn, err error) {
	if up != nil {
		reset(up)
	}
	f.event(Event{Proto: "unknown", Rule: f.may.Rule, Why: err.Error()})
	guest.Close()
}

// serveKind serves what is not TLS, or was inside it. up may be nil.
func (f *flow) serveKind(kind kind, guest *replay, up net.Conn) {
	switch {
	case kind == kindHTTP1:
		f.serveHTTP1(guest, up)
	case kind == kindHTTP2 && !f.secure:
		f.serveHTTP2(guest, up)
	case f.may.Opaque:
		f.serveCopy(guest, up, "opaque")
	default:
		if up != nil {
			reset(up)
		}
		f.refuse(guest, "unknown", "what was sent to "+f.address()+" is neither TLS nor HTTP",
			"a rule that names the port lets other protocols pass: --allow-net "+f.address())
	}
}

// serveCopy copies both ways, dialling first unless up is there.
func (f *flow) serveCopy(guest, up net.Conn, proto string) {
	if up == nil {
		var err error
		if up, err = f.dial(); err != nil {
			f.event(Event{Proto: proto, Allowed: true, Rule: f.may.Rule, Why: "cannot connect to " + f.address() + ": " + err.Error()})
			reset(guest)
			return
		}
	}
	e := Event{Proto: proto, Allowed: true, Rule: f.may.Rule}
	seen := &stray{flow: f}
	out, in, err := copyBoth(guest, f.Secrets.Watch(guest, seen.found), up, up, f.limits.CopyTimeout)
	e.BytesOut, e.BytesIn = out, in
	if err != nil {
		e.Why = err.Error()
	}
	seen.note(&e)
	f.event(e)
}
