// Package guard is the one HTTP listener of the project: whatever listens for HTTP, listens through it. It says who may
// connect and from where, refuses what a web page could have sent, and bounds size, time and number of everything.
//
// A Server serves one handler on any number of listeners (ListenUnix, ListenTCP) and single connections (ServeConn).
// Each of these is a Door: the names it answers to, and how many may be inside at once. A Peer is the process at the
// other end of a unix socket; Peer.SameWorld says whether it is positively the operator.
//
// The package knows nothing of keys, commands or records: who gets past it has only been let in to ask. It touches
// sockets, the folder that a unix socket lies in, and /proc; it must never answer with headers that open the door to
// pages of other origins.
package guard

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// ErrShutdown is why the context of a lifted response ends when the server shuts down.
var ErrShutdown = errors.New("the server shuts down")

// Options are the bounds of a server. The zero value of each stands for what is written beside it.
type Options struct {
	// Methods that are let through: GET, HEAD, POST.
	Methods []string
	// ContentTypes that a body may have: application/json. A page of any origin can send text/plain, forms and
	// multipart without being asked, so whoever adds one of these relies on the check of Origin alone.
	ContentTypes []string
	// Origins whose pages may ask, such as "https://console.example.com": none. No CORS header is sent to them either.
	Origins []string
	// MaxBody is the most bytes of a request's body: 2 MiB.
	MaxBody int64
	// MaxHeader is the most bytes of a request's header: 32 KiB.
	MaxHeader int
	// MaxConns is the most connections over all doors: 1024.
	MaxConns int
	// Times within which a header is read (10 s), a whole request is read (1 min), its answer is written (1 min), and
	// the next request on the same connection begins (2 min).
	HeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// StallTimeout is how long one write of a lifted response may take: 30 s.
	StallTimeout time.Duration
	// H2C lets clients without TLS speak HTTP/2.
	H2C bool
	// Log gets panics, and what net/http has to complain about: slog.Default().
	Log *slog.Logger
}

func (o Options) filled() Options {
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodGet, http.MethodHead, http.MethodPost}
	}
	if len(o.ContentTypes) == 0 {
		o.ContentTypes = []string{"application/json"}
	}
	o.MaxBody = cmp.Or(o.MaxBody, 2<<20)
	o.MaxHeader = cmp.Or(o.MaxHeader, 32<<10)
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, 10*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Server serves one handler, guarded.
type Server struct {
	opts    Options
	next    http.Handler
	http    *http.Server
	conns   atomic.Int64 // through all doors
	active  atomic.Int64 // requests at work
	closing context.Context
	close   context.CancelCauseFunc
	// wordTime is the constant, but in tests that want to hear the word.
	wordTime time.Duration

	mu    sync.Mutex
	fresh map[net.Conn]struct{} // connected, and nothing asked yet

	wire      *wire
	startWire sync.Once
}

// New makes a server. It serves nothing yet.
func New(next http.Handler, opts Options) *Server {
	s := &Server{opts: opts.filled(), next: next, fresh: map[net.Conn]struct{}{}, wire: newWire(), wordTime: wordTime}
	s.closing, s.close = context.WithCancelCause(context.Background())
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		MaxHeaderBytes:    s.opts.MaxHeader,
		ReadHeaderTimeout: s.opts.HeaderTimeout,
		ReadTimeout:       s.opts.ReadTimeout,
		WriteTimeout:      s.opts.WriteTimeout,
		IdleTimeout:       s.opts.IdleTimeout,
		ConnContext:       s.connContext,
		ConnState:         s.connState,
		ErrorLog:          slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 64},
		Protocols:         new(http.Protocols),
		// Else net/http would answer OPTIONS * itself, before any check.
		DisableGeneralOptionsHandler: true,
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetHTTP2(true) // over TLS
	s.http.Protocols.SetUnencryptedHTTP2(s.opts.H2C)
	return s
}

// Serve serves a listener until it is closed or the server shuts down, which closes it. Else it returns what went wrong.
func (s *Server) Serve(l *Listener) error {
	defer l.Close()
	err := s.http.Serve(&admitting{Listener: l, server: s})
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ServeConn serves one connection that came by another way than a listener, through a door of the caller's, and returns
// when it is over. It is cut when ctx ends. Whoever is at its other end has no Peer, and so is never the operator.
func (s *Server) ServeConn(ctx context.Context, c net.Conn, door *Door) {
	admitted := s.admit(c, door, nil)
	if admitted == nil {
		s.turnAway(c)
		return
	}
	s.startWire.Do(func() {
		go func() {
			// Its error is that the server shut down.
			_ = s.http.Serve(s.wire)
			s.wire.Close()
		}()
	})
	cut := context.AfterFunc(ctx, func() { admitted.Close() })
	defer cut()
	select {
	case s.wire.conns <- admitted:
	case <-s.wire.over:
		admitted.Close()
	}
	<-admitted.over
}

// Shutdown ends the server: nothing new is let in, streams are told (the contexts that Lift gave end, with ErrShutdown),
// and requests at work may finish until ctx ends. Then they are cut, and the error says how many that were.
func (s *Server) Shutdown(ctx context.Context) error {
	s.close(ErrShutdown)
	s.wire.Close()
	s.mu.Lock()
	for c := range s.fresh {
		c.Close() // net/http would wait five seconds for each to ask something
	}
	s.mu.Unlock()
	err := s.http.Shutdown(ctx)
	if err == nil {
		return nil
	}
	cut := s.active.Load()
	if closeErr := s.http.Close(); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	return fmt.Errorf("%d requests did not end in time, and were cut off: %w", cut, err)
}

// connState keeps the connections that nothing was asked on yet.
func (s *Server) connState(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state != http.StateNew {
		delete(s.fresh, c)
		return
	}
	s.fresh[c] = struct{}{}
	if s.closing.Err() != nil {
		c.Close()
	}
}

// Conn is the connection that a request came by.
type Conn struct {
	// Door is what it came through.
	Door *Door
	// Peer is the process at the other end, of unix sockets that ListenUnix made; else nil, which is never the operator.
	Peer *Peer
}

type connKey struct{}

// ConnOf is the connection of a request's context, and the zero Conn where there is none.
func ConnOf(ctx context.Context) Conn {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return Conn{}
	}
	return Conn{Door: c.door, Peer: c.peer}
}

func (s *Server) connContext(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// serve is the guard itself: what it does not refuse goes to the handler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.active.Add(1)
	defer s.active.Add(-1)
	out := &response{w: w, control: http.NewResponseController(w), server: s}
	defer out.finish()
	defer func() {
		switch p := recover(); {
		case p == nil:
		case p == http.ErrAbortHandler:
			panic(p)
		default:
			// What a panic says may hold what the request did, so it goes to the log and not to the caller.
			s.opts.Log.Error("a request's handler failed", "method", r.Method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if out.wrote {
				panic(http.ErrAbortHandler) // half an answer must not look like a whole one
			}
			clear(out.Header())
			WriteError(out, http.StatusInternalServerError, CodeInternal, "Ravi failed at this request", "the log of the daemon says more")
		}
	}()
	if len(r.TransferEncoding) > 0 {
		// A body in chunks may also have said a length, by which another would have found another end of it. What follows
		// on the connection is then not to be trusted.
		out.Header().Set("Connection", "close")
	}
	if refused := s.check(r); refused != nil {
		switch refused.status {
		case http.StatusMethodNotAllowed:
			out.Header().Set("Allow", s.allowed())
		case http.StatusServiceUnavailable:
			setRetry(out, time.Second)
		}
		if r.ContentLength != 0 {
			leave(w)
		}
		WriteError(out, refused.status, refused.code, refused.message, refused.hint)
		return
	}
	out.body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, s.opts.MaxBody)}
	r.Body = out.body
	s.next.ServeHTTP(out, r)
}
