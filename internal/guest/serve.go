package guest

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"ravi/internal/link"
)

// The descriptors that a guest is born with: its end of the link. Those of its
// lanes follow (link.FirstLane).
const (
	LinkRead  = 3
	LinkWrite = 4
)

// ServeLink serves the one connection, and returns when it ends. The token
// divides it into sessions; see link.Sessions.
func (s *Server) ServeLink(conn net.Conn, token string) error {
	defer conn.Close()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	sessions := link.NewSessions(conn, token)
	for c := sessions.First(); ; {
		if err := serve(s.Handler(), newOneListener(c), protocols); err != nil {
			return err
		}
		var err error
		if c, err = sessions.Next(); err != nil {
			return nil
		}
	}
}

// ServeTCP serves a listener on loopback, guarded, with HTTP/1.1 and HTTP/2.
func (s *Server) ServeTCP(l net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return serve(s.Guarded(), l, protocols)
}

// Listen opens a listener for ServeTCP. It has no TLS, and so no address but
// loopback's.
func Listen(addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", addr, err)
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("listen address %q is not on loopback: a guest is reached from elsewhere by its link only; use 127.0.0.1:PORT", addr)
	}
	return net.Listen("tcp", addr)
}

func serve(h http.Handler, l net.Listener, protocols *http.Protocols) error {
	srv := &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			// Every attached process holds a stream open.
			MaxConcurrentStreams:          4096,
			MaxReadFrameSize:              256 << 10,
			MaxReceiveBufferPerConnection: 4 << 20,
			MaxReceiveBufferPerStream:     1 << 20,
		},
	}
	err := srv.Serve(l)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// oneListener gives out one connection, and then waits until it is closed.
type oneListener struct {
	conn   net.Conn
	given  sync.Once
	closed chan struct{}
	once   sync.Once
}

func newOneListener(conn net.Conn) *oneListener {
	return &oneListener{conn: conn, closed: make(chan struct{})}
}

func (l *oneListener) Accept() (net.Conn, error) {
	var c net.Conn
	l.given.Do(func() { c = &closingConn{Conn: l.conn, closed: l.shut} })
	if c != nil {
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneListener) shut() { l.once.Do(func() { close(l.closed) }) }

func (l *oneListener) Close() error {
	l.shut()
	return nil
}

func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }

// closingConn tells the listener of its end.
type closingConn struct {
	net.Conn
	closed func()
}

func (c *closingConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
