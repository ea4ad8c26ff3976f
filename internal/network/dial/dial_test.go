package dial

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"ravi/internal/leaktest"
)

// sockets are the two ends between a dialer and its client.
func sockets(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "dialer")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	return ends
}

// pair runs a dialer and returns a client of it.
func pair(t *testing.T, s *Server) *Client {
	t.Helper()
	before := goleak.IgnoreCurrent()
	ends := sockets(t)
	over := make(chan error, 1)
	go func() { over <- s.Serve(ends[0]) }()
	client := NewClient(ends[1])
	t.Cleanup(func() {
		client.Close()
		if err := <-over; err != nil {
			t.Errorf("the dialer: %v", err)
		}
		ends[0].Close()
		leaktest.None(t, before)
	})
	return client
}

func echo(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

var errNo = errors.New("no rule allows it")

func server(answers map[string][]netip.Addr, allowed string, refused netip.Addr) *Server {
	return &Server{
		Allow: func(name string, _ netip.Addr, _ uint16) error {
			if name != allowed {
				return errNo
			}
			return nil
		},
		Check: func(_ string, a netip.Addr, _ uint16) error {
			if a == refused {
				return errors.New("the address " + a.String() + " is private")
			}
			return nil
		},
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if a, ok := answers[name]; ok {
				return a, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
	}
}

func TestDial(t *testing.T) {
	to := echo(t)
	closed := netip.MustParseAddr("127.0.0.99")
	private := netip.MustParseAddr("10.9.9.9")
	c := pair(t, server(map[string][]netip.Addr{"a.test": {private, to.Addr()}}, "a.test", private))
	conn, err := c.Dial(t.Context(), "a.test", netip.Addr{}, to.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("%q %v", got, err)
	}
	if conn.RemoteAddr().String() != to.String() {
		t.Errorf("connected to %v, not to the address that was checked", conn.RemoteAddr())
	}
	for name, c := range map[string]struct {
		client *Client
		name   string
		addr   netip.Addr
		code   Code
	}{
		"a name that is not allowed":  {c, "b.test", netip.Addr{}, Denied},
		"an address":                  {c, "", to.Addr(), Denied},
		"a name that does not exist":  {pair(t, server(nil, "a.test", private)), "a.test", netip.Addr{}, NoName},
		"a name of a private address": {pair(t, server(map[string][]netip.Addr{"a.test": {private}}, "a.test", private)), "a.test", netip.Addr{}, Denied},
		"the same as IPv6 would say":  {pair(t, server(map[string][]netip.Addr{"a.test": {netip.MustParseAddr("::ffff:10.9.9.9")}}, "a.test", private)), "a.test", netip.Addr{}, Denied},
		"an address where nobody is":  {pair(t, server(map[string][]netip.Addr{"a.test": {closed}}, "a.test", private)), "a.test", netip.Addr{}, Refused},
		"a name with no addresses":    {pair(t, server(map[string][]netip.Addr{"a.test": {}}, "a.test", private)), "a.test", netip.Addr{}, NoName},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.client.Dial(t.Context(), c.name, c.addr, to.Port())
			var e *Error
			if !errors.As(err, &e) || e.Code != c.code {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

// A name that answers otherwise the second time gains nothing: what was checked is what is dialled.
func TestRebinding(t *testing.T) {
	to := echo(t)
	private := netip.MustParseAddr("10.9.9.9")
	var asked atomic.Int32
	s := server(nil, "a.test", private)
	s.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		if asked.Add(1) > 1 {
			return []netip.Addr{private}, nil
		}
		return []netip.Addr{to.Addr()}, nil
	}
	c := pair(t, s)
	conn, err := c.Dial(t.Context(), "a.test", netip.Addr{}, to.Port())
	if err != nil || asked.Load() != 1 {
		t.Fatalf("%v, asked %d times", err, asked.Load())
	}
	conn.Close()
}

func TestManyDialAtOnce(t *testing.T) {
	to := echo(t)
	c := pair(t, server(map[string][]netip.Addr{"a.test": {to.Addr()}}, "a.test", netip.Addr{}))
	errs := make(chan error, 200)
	for range cap(errs) {
		go func() {
			conn, err := c.Dial(t.Context(), "a.test", netip.Addr{}, to.Port())
			if err == nil {
				conn.Close()
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestDialerThatEnds(t *testing.T) {
	hang := make(chan struct{})
	s := server(map[string][]netip.Addr{}, "a.test", netip.Addr{})
	entered := make(chan struct{})
	s.Lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
		close(entered)
		<-ctx.Done()
		close(hang)
		return nil, ctx.Err()
	}
	conns := sockets(t)
	go func() { _ = s.Serve(conns[0]) }()
	c := NewClient(conns[1])
	got := make(chan error, 1)
	go func() { _, err := c.Dial(t.Context(), "a.test", netip.Addr{}, 1); got <- err }()
	<-entered
	conns[0].Close()
	select {
	case err := <-got:
		if err == nil {
			t.Error("connected by nobody")
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a dialer that is gone")
	}
	<-hang
	if _, err := c.Dial(t.Context(), "a.test", netip.Addr{}, 1); err == nil {
		t.Error("connected by nobody")
	}
	c.Close()
}
