package guard

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Door is a way in: the names it answers to, and how many may be inside. A handler tells by ConnOf which one a request
// came through.
type Door struct {
	names map[string]bool
	max   int64
	conns atomic.Int64
}

// doorConns is how many connections come through a listener at once. One that is full leaves room for the others.
const doorConns = 512

// NewDoor makes a door for connections that come by ServeConn. A name is what the client calls the server by, exactly as
// its Host header says, port included where it is not the usual one.
func NewDoor(maxConns int, names ...string) *Door {
	d := &Door{names: map[string]bool{}, max: int64(maxConns)}
	for _, name := range names {
		if name != "" {
			d.names[name] = true
		}
	}
	return d
}

// Listener is a listener that a Server serves.
type Listener struct {
	inner net.Listener
	addr  net.Addr
	door  *Door
	tls   *tls.Config
	unix  bool
	once  sync.Once
	end   func() error // closes it
	err   error
}

// Door is the door of this listener.
func (l *Listener) Door() *Door { return l.door }

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops listening. What was let in stays.
func (l *Listener) Close() error {
	l.once.Do(func() { l.err = l.end() })
	return l.err
}

// admitting is a listener whose connections are counted.
type admitting struct {
	*Listener
	server *Server
}

func (a *admitting) Accept() (net.Conn, error) {
	for {
		c, err := a.inner.Accept()
		if err != nil {
			return nil, err
		}
		var peer *Peer
		if u, ok := c.(*net.UnixConn); ok && a.unix {
			peer = peerOf(u)
		}
		switch admitted := a.server.admit(c, a.door, peer); {
		case admitted == nil && a.tls != nil:
			c.Close() // to say why would need the handshake
		case admitted == nil:
			a.server.turnAway(c)
		case a.tls != nil:
			return tls.Server(admitted, a.tls), nil
		default:
			return admitted, nil
		}
	}
}

// conn is a connection that was let in.
type conn struct {
	net.Conn
	door *Door
	peer *Peer
	once sync.Once
	free func()
	over chan struct{}
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.peer.close()
		c.free()
		close(c.over)
	})
	return err
}

// CloseWrite is for net/http, which says its last word so before it closes on a client that is still sending; else the
// client might not get to read it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// admit lets a connection in. Where there are too many it returns nil, and the connection is the caller's to end.
func (s *Server) admit(c net.Conn, door *Door, peer *Peer) *conn {
	inside, all := door.conns.Add(1), s.conns.Add(1)
	free := func() {
		door.conns.Add(-1)
		s.conns.Add(-1)
	}
	if inside > door.max || all > int64(s.opts.MaxConns) {
		free()
		peer.close()
		return nil
	}
	return &conn{Conn: c, door: door, peer: peer, free: free, over: make(chan struct{})}
}

const full = `{"error":{"code":"` + CodeUnavailable + `","message":"too many connections","hint":"try again in a few seconds"}}` + "\n"

// wordTime is how long it may take to say that there is no room: meanwhile nobody else is let in.
const wordTime = 100 * time.Millisecond

// turnAway says that there is no room, without waiting for what the client has to say, and not long for it to listen.
func (s *Server) turnAway(c net.Conn) {
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(s.wordTime)); err != nil {
		return
	}
	// Who does not get it sees the connection closed.
	_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
		"Retry-After: 1\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%s", len(full), full)
}

// wire is a listener for connections that come one by one.
type wire struct {
	conns chan *conn
	once  sync.Once
	over  chan struct{}
}

func newWire() *wire { return &wire{conns: make(chan *conn), over: make(chan struct{})} }

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.over:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.over) })
	return nil
}

func (w *wire) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
