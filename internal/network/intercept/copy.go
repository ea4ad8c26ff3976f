package intercept

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// beneath is the connection that carries this one.
func beneath(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// reset closes a connection so that the peer sees that it was cut, not ended.
func reset(conn net.Conn) {
	raw := beneath(conn)
	if c, ok := raw.(interface{ SetLinger(int) error }); ok {
		c.SetLinger(0)
	}
	raw.Close()
}

// closeWrite ends one direction, if the connection can.
func closeWrite(conn net.Conn) error {
	for {
		if c, ok := conn.(interface{ CloseWrite() error }); ok {
			return c.CloseWrite()
		}
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = outer.NetConn()
	}
}

// closeGently closes a connection to which something was just written. What
// still comes is read for a while: closing with bytes unread would reset the
// connection, and the peer lose what was written last.
func closeGently(conn net.Conn) {
	closeWrite(conn)
	raw := beneath(conn)
	if raw != conn {
		closeWrite(raw)
	}
	raw.SetReadDeadline(time.Now().Add(2 * time.Second))
	io.CopyN(io.Discard, raw, 1<<20)
	raw.Close()
}

var errSilence = errors.New("cut, since nothing was said for too long")

// copyBoth copies between a and b until both directions have ended, and closes
// both. A direction that ends is ended on the other side too, one that is cut
// cuts everything. ar and br are what a and b are read from.
func copyBoth(a net.Conn, ar io.Reader, b net.Conn, br io.Reader, silence time.Duration) (ab, ba int64, err error) {
	var once sync.Once
	cut := func(why error) {
		once.Do(func() {
			err = why
			reset(a)
			reset(b)
		})
	}
	idle := time.AfterFunc(silence, func() { cut(errSilence) })
	defer idle.Stop()

	direction := func(dst net.Conn, src io.Reader, n *int64) {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		for {
			got, rerr := src.Read(*buf)
			if got > 0 {
				idle.Reset(silence)
				wrote, werr := dst.Write((*buf)[:got])
				*n += int64(wrote)
				if werr != nil {
					cut(werr)
					return
				}
			}
			if rerr == io.EOF {
				closeWrite(dst)
				return
			}
			if rerr != nil {
				cut(rerr)
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { direction(b, ar, &ab) })
	direction(a, br, &ba)
	wg.Wait()
	once.Do(func() {}) // the timer may be about to fire
	a.Close()
	b.Close()
	return ab, ba, err
}
