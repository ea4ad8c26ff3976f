// Package dial opens connections for a process that has no network itself.
//
// The network gateway reads what a guest writes, so it is kept in a network
// namespace with nothing in it. When it wants a connection it asks the dialer, a
// process of its own that never reads a guest's byte: that one looks the name
// up, checks the final address, connects to that very address, and hands over
// the socket. So a gateway that was taken over reaches what the policy allows,
// and nothing else.
//
// Where connections leave through a proxy of the operator's (Proxy), it asks that
// for the address that it checked, and hands over the socket when it is through.
//
// The dialer may resolve names and connect, and talk with the proxy; it must not
// read from or write to the connections that it makes.
package dial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/network/policy"
)

// Code says what became of a request.
type Code string

// The codes of an Error.
const (
	Denied      Code = "denied"      // the policy does not allow the name or the address
	NoName      Code = "no_name"     // the host's resolver does not know the name
	Refused     Code = "refused"     // the other side refused the connection
	Unreachable Code = "unreachable" // there is no way to it, or no answer in time
	Busy        Code = "busy"        // too many requests at once
	ProxyFailed Code = "proxy"       // the upstream proxy did not connect
	NoProxy     Code = "no_proxy"    // the upstream proxy cannot be used at all
)

// Error is why there is no connection.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// request and reply are one packet each. A reply without an error carries one
// descriptor.
type request struct {
	ID   uint64     `json:"id"`
	Name string     `json:"name,omitempty"`
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port"`
	UDP  bool       `json:"udp,omitempty"`
}

type reply struct {
	ID    uint64         `json:"id"`
	Addr  netip.AddrPort `json:"addr,omitzero"`
	Code  Code           `json:"code,omitempty"`
	Error string         `json:"error,omitempty"`
}

// Bounds of the dialer.
const (
	maxPacket   = 4096
	maxAtOnce   = 256
	tryTime     = 5 * time.Second // for one address
	resolveTime = 5 * time.Second
)

// Server is the dialer.
type Server struct {
	// Allow says whether a name (or, without one, an address) may be dialled at
	// a port, before anything is looked up.
	Allow func(name string, addr netip.Addr, port uint16) error
	// Check says whether a final address may be dialled for it.
	Check func(name string, final netip.Addr, port uint16) error
	// AllowUDP and CheckUDP say so for UDP; nil: it is never dialled.
	AllowUDP func(name string, addr netip.Addr, port uint16) error
	CheckUDP func(name string, final netip.Addr, port uint16) error
	// Upstream is the proxy to go through at this moment; nil, or a nil one: none.
	Upstream func() *Upstream
	// Lookup resolves a name; nil: the host's resolver.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
}

// Serve answers requests until conn, a packet socket, ends.
func (s *Server) Serve(conn *net.UnixConn) error {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	slots := make(chan struct{}, maxAtOnce)
	buf := make([]byte, maxPacket)
	for {
		n, err := conn.Read(buf)
		if err != nil || n == 0 {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				err = nil
			}
			return err
		}
		var req request
		if err := json.Unmarshal(buf[:n], &req); err != nil {
			return fmt.Errorf("the gateway asked for no connection: %w", err)
		}
		select {
		case slots <- struct{}{}:
			all.Go(func() {
				defer func() { <-slots }()
				s.answer(ctx, conn, req)
			})
		default:
			send(conn, reply{ID: req.ID, Code: Busy, Error: fmt.Sprintf("more than %d connections are being opened", maxAtOnce)}, -1)
		}
	}
}

func (s *Server) answer(ctx context.Context, conn *net.UnixConn, req request) {
	c, to, err := s.open(ctx, req)
	if err != nil {
		r := reply{ID: req.ID, Code: Unreachable, Error: err.Error()}
		var e *Error
		if errors.As(err, &e) {
			r.Code = e.Code
		}
		send(conn, r, -1)
		return
	}
	defer c.Close()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { send(conn, reply{ID: req.ID, Addr: to}, int(fd)) })
}

func send(conn *net.UnixConn, r reply, fd int) {
	b, err := json.Marshal(r)
	if err != nil || len(b) > maxPacket {
		b, _ = json.Marshal(reply{ID: r.ID, Code: r.Code, Error: "the connection failed"})
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	// The gateway that does not read any more is gone.
	_, _, _ = conn.WriteMsgUnix(b, rights, nil)
}

// upstream is the proxy to go through now, or nil.
func (s *Server) upstream() *Upstream {
	if s.Upstream == nil {
		return nil
	}
	return s.Upstream()
}

// open makes a connection, which is one of the kernel's.
func (s *Server) open(ctx context.Context, req request) (net.Conn, netip.AddrPort, error) {
	if req.UDP {
		return s.dialUDP(ctx, req)
	}
	c, to, err := s.dial(ctx, req)
	if err != nil {
		return nil, to, err // not a nil *net.TCPConn
	}
	return c, to, nil
}

// dialUDP gives a socket that sends to one address and hears from it alone.
func (s *Server) dialUDP(ctx context.Context, req request) (net.Conn, netip.AddrPort, error) {
	none := netip.AddrPort{}
	if s.AllowUDP == nil || s.CheckUDP == nil {
		return nil, none, &Error{Denied, "UDP is not passed on"}
	}
	if err := s.AllowUDP(req.Name, req.Addr, req.Port); err != nil {
		return nil, none, &Error{Denied, err.Error()}
	}
	up := s.upstream()
	addrs := []netip.Addr{req.Addr}
	if req.Name != "" {
		var err error
		if addrs, err = s.resolve(ctx, req.Name); err != nil {
			return nil, none, err
		}
	}
	var last error
	for _, a := range addrs {
		a = a.Unmap()
		to := netip.AddrPortFrom(a, req.Port)
		if err := s.CheckUDP(req.Name, a, req.Port); err != nil {
			last = &Error{Denied, err.Error()}
			continue
		}
		if !up.direct(req.Name, a, req.Port) {
			last = &Error{ProxyFailed, fmt.Sprintf("UDP to %s cannot go through the proxy; name it in network.proxy_direct of config.json", to)}
			continue
		}
		c, err := new(net.Dialer).DialContext(ctx, "udp", to.String())
		if err == nil {
			return c, to, nil
		}
		last = &Error{Unreachable, err.Error()}
	}
	return nil, none, last
}

// dial also returns the address that it connected to, or had the proxy connect
// to, if it knows that.
func (s *Server) dial(ctx context.Context, req request) (*net.TCPConn, netip.AddrPort, error) {
	none := netip.AddrPort{}
	if err := s.Allow(req.Name, req.Addr, req.Port); err != nil {
		return nil, none, &Error{Denied, err.Error()}
	}
	up := s.upstream()
	addrs := []netip.Addr{req.Addr}
	if req.Name != "" {
		var err error
		addrs, err = s.resolve(ctx, req.Name)
		if up.byName(req.Name, addrs, req.Port) {
			c, err := s.dialName(ctx, up, req, addrs)
			return c, none, err
		}
		if err != nil {
			return nil, none, err
		}
	}
	through, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	var last error
	for _, a := range addrs {
		a = a.Unmap()
		if err := s.Check(req.Name, a, req.Port); err != nil {
			if last == nil {
				last = &Error{Denied, err.Error()}
			}
			continue
		}
		to := netip.AddrPortFrom(a, req.Port)
		if !up.direct(req.Name, a, req.Port) {
			c, err := up.connect(through, to.String())
			if err == nil {
				return c, to, nil
			}
			last = err
			if e := (*Error)(nil); errors.As(err, &e) && e.Code == NoProxy {
				break
			}
			continue
		}
		d := net.Dialer{Timeout: tryTime}
		c, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			return c.(*net.TCPConn), to, nil
		}
		last = &Error{Unreachable, err.Error()}
		if errors.Is(err, syscall.ECONNREFUSED) {
			last = &Error{Refused, err.Error()}
		}
	}
	return nil, none, last
}

// dialName leaves it to the proxy where a name leads. What the host knows of
// that is checked all the same, all of it, since the proxy chooses.
func (s *Server) dialName(ctx context.Context, up *Upstream, req request, addrs []netip.Addr) (*net.TCPConn, error) {
	for _, a := range addrs {
		if err := s.Check(req.Name, a.Unmap(), req.Port); err != nil {
			return nil, &Error{Denied, err.Error()}
		}
	}
	// It becomes part of what the proxy is asked, so it must be a name in any case.
	name, err := policy.WireHost(req.Name)
	if err != nil {
		return nil, &Error{Denied, err.Error()}
	}
	return up.connect(ctx, net.JoinHostPort(name, fmt.Sprint(req.Port)))
}

func (s *Server) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	lookup := s.Lookup
	if lookup == nil {
		lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			if strings.Contains(name, ".") {
				name += "." // no search domain is tried
			}
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	addrs, err := lookup(ctx, name)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound, err == nil && len(addrs) == 0:
		return nil, &Error{NoName, "the host's resolver does not know " + name}
	case err != nil:
		return nil, &Error{Unreachable, fmt.Sprintf("looking up %s: %v", name, err)}
	}
	return addrs, nil
}

// Client asks a dialer. It may be used by several goroutines.
type Client struct {
	conn *net.UnixConn

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan answer
	err     error
}

type answer struct {
	conn net.Conn
	err  error
}

// NewClient asks the dialer at the other end of conn, a packet socket, which it
// then owns.
func NewClient(conn *net.UnixConn) *Client {
	c := &Client{conn: conn, waiting: map[uint64]chan answer{}}
	go c.read()
	return c
}

// Close ends the client; what is asked for then fails.
func (c *Client) Close() error { return c.conn.Close() }

// Dial opens a connection to a name, or without one to an address.
func (c *Client) Dial(ctx context.Context, name string, addr netip.Addr, port uint16) (net.Conn, error) {
	return c.ask(ctx, request{Name: name, Addr: addr, Port: port})
}

// DialUDP is Dial for UDP: each Read and Write is a datagram.
func (c *Client) DialUDP(ctx context.Context, name string, addr netip.Addr, port uint16) (net.Conn, error) {
	return c.ask(ctx, request{Name: name, Addr: addr, Port: port, UDP: true})
}

func (c *Client) ask(ctx context.Context, req request) (net.Conn, error) {
	got := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	req.ID = c.next
	c.waiting[req.ID] = got
	c.mu.Unlock()
	b, err := json.Marshal(req)
	if err == nil {
		_, err = c.conn.Write(b)
	}
	if err != nil {
		c.forget(req.ID, got)
		return nil, &Error{Unreachable, "asking the dialer: " + err.Error()}
	}
	select {
	case a := <-got:
		return a.conn, a.err
	case <-ctx.Done():
		c.forget(req.ID, got)
		return nil, context.Cause(ctx)
	}
}

// forget gives up on an answer, and closes what may have come of it.
func (c *Client) forget(id uint64, got chan answer) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	select {
	case a := <-got:
		if a.conn != nil {
			a.conn.Close()
		}
	default:
	}
}

func (c *Client) read() {
	buf, rights := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4))
	for {
		n, oob, _, _, err := c.conn.ReadMsgUnix(buf, rights)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			c.fail(&Error{Unreachable, "the dialer has ended"})
			return
		}
		var r reply
		conn, err := received(rights[:oob])
		if jerr := json.Unmarshal(buf[:n], &r); jerr != nil {
			err = errors.Join(err, jerr)
		}
		a := answer{conn, err}
		switch {
		case r.Code != "":
			a.err = &Error{r.Code, r.Error}
		case err == nil && conn == nil:
			a.err = &Error{Unreachable, "the dialer sent no connection"}
		}
		if a.err != nil && conn != nil {
			conn.Close()
			a.conn = nil
		}
		c.mu.Lock()
		got, ok := c.waiting[r.ID]
		delete(c.waiting, r.ID)
		if ok {
			got <- a
		}
		c.mu.Unlock()
		if !ok && a.conn != nil {
			a.conn.Close()
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, got := range c.waiting {
		got <- answer{err: err}
		delete(c.waiting, id)
	}
}

// received takes the connection that a packet may carry.
func received(rights []byte) (net.Conn, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	f, err := File(rights, "connection")
	if err != nil {
		return nil, fmt.Errorf("what the dialer sent: %w", err)
	}
	defer f.Close()
	return net.FileConn(f)
}

// ErrNoFile says that a message carried no descriptor, or several.
var ErrNoFile = errors.New("it came without a descriptor, or with several")

// File takes the one descriptor out of a message's control part (unix(7)). It was
// received with close-on-exec, as package net does; if there are several, none is
// left open.
func File(rights []byte, name string) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range messages {
		more, err := unix.ParseUnixRights(&m)
		fds = append(fds, more...)
		if err != nil {
			fds = append(fds, -1) // not what was meant
		}
	}
	if len(fds) != 1 || fds[0] < 0 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, ErrNoFile
	}
	return os.NewFile(uintptr(fds[0]), name), nil
}
