package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// DialPort connects to a port on which something in the sandbox listens on
// loopback; ErrNotFound if nothing does. The connection goes over the sandbox's
// private link: no port opens anywhere, and the sandbox needs no network. ctx is
// for the connecting alone. At most 64 are open at once.
//
// What is read was written by the sandbox. CloseWrite, which the connection has,
// ends its input; when the other side has ended its own, all has.
func (s *Sandbox) DialPort(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("the port %d is not between 1 and 65535", port)
	}
	life, cut := context.WithCancel(context.WithoutCancel(ctx))
	c := &portConn{addr: portAddr{s.ID, port}, cut: cut}
	var in, out net.Conn // this end's others
	c.in, in = net.Pipe()
	c.out, out = net.Pipe()
	fail := func(err error) (net.Conn, error) {
		cut()
		for _, p := range []net.Conn{c.in, in, c.out, out} {
			p.Close()
		}
		return nil, err
	}
	req, err := http.NewRequestWithContext(life, http.MethodPost, fmt.Sprintf("http://guest/port?port=%d", port), out)
	if err != nil {
		return fail(err)
	}
	giveUp := context.AfterFunc(ctx, cut)
	res, err := s.client.HTTP.Do(req)
	if !giveUp() && err == nil {
		res.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		return fail(s.explain(ctx, err))
	}
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // what there is of a reason
		res.Body.Close()
		err = fmt.Errorf("port %d: %s", port, errorText(b))
		if res.StatusCode == http.StatusNotFound {
			err = fmt.Errorf("%w: %w", ErrNotFound, err)
		}
		return fail(err)
	}
	go func() {
		defer cut()
		defer res.Body.Close()
		_, err := io.Copy(in, res.Body)
		switch {
		case errors.Is(err, io.ErrClosedPipe): // by Close, which bounds this
			_, _ = io.Copy(io.Discard, res.Body)
		case err != nil:
			c.end(s.explain(life, err))
		}
		in.Close()
	}()
	return c, nil
}

// portConn is a connection to a port of a sandbox: two pipes, of which the other
// ends are a request's body and a response's.
type portConn struct {
	in, out net.Conn
	addr    portAddr
	cut     context.CancelFunc

	mu  sync.Mutex
	err error // why it was cut
}

func (c *portConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *portConn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	if err == io.EOF {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err != nil {
			err = c.err
		}
	}
	return n, err
}

func (c *portConn) Write(b []byte) (int, error) { return c.out.Write(b) }

// CloseWrite ends the input of what listens.
func (c *portConn) CloseWrite() error { return c.out.Close() }

// portLinger is how long what was written before Close is still carried.
const portLinger = 2 * time.Second

func (c *portConn) Close() error {
	err := errors.Join(c.out.Close(), c.in.Close())
	time.AfterFunc(portLinger, c.cut)
	return err
}

func (c *portConn) LocalAddr() net.Addr                { return c.addr }
func (c *portConn) RemoteAddr() net.Addr               { return c.addr }
func (c *portConn) SetReadDeadline(t time.Time) error  { return c.in.SetReadDeadline(t) }
func (c *portConn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }

func (c *portConn) SetDeadline(t time.Time) error {
	return errors.Join(c.in.SetReadDeadline(t), c.out.SetWriteDeadline(t))
}

// portAddr names a port of a sandbox.
type portAddr struct {
	id   string
	port int
}

func (a portAddr) Network() string { return "sandbox" }
func (a portAddr) String() string  { return fmt.Sprintf("%s:%d", a.id, a.port) }
