package dial

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answerer answers datagrams on loopback.
func answerer(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-over })
	go func() {
		defer close(over)
		b := make([]byte, 100)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = l.WriteTo(b[:n], from)
		}
	}()
	return netip.MustParseAddrPort(l.LocalAddr().String())
}

// datagrams is a dialer that is as free with TCP as can be, and asks these about UDP.
func datagrams(answers map[string][]netip.Addr, allowed string, refused netip.Addr) *Server {
	s := server(answers, allowed, refused)
	s.AllowUDP, s.CheckUDP = s.Allow, s.Check
	s.Allow = func(string, netip.Addr, uint16) error { return nil }
	s.Check = s.Allow
	return s
}

func TestDialUDP(t *testing.T) {
	to, private := answerer(t), netip.MustParseAddr("10.9.9.9")
	conn, err := pair(t, datagrams(map[string][]netip.Addr{"a.test": {private, to.Addr()}}, "a.test", private)).DialUDP(t.Context(), "a.test", netip.Addr{}, to.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.RemoteAddr().String(); got != to.String() {
		t.Errorf("sends to %s, not to the address that was checked", got)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("%q %v", b[:n], err)
	}

	noUDP := server(map[string][]netip.Addr{"a.test": {to.Addr()}}, "a.test", private)
	proxied := datagrams(map[string][]netip.Addr{"a.test": {netip.MustParseAddr("203.0.113.7")}}, "a.test", private)
	up := upstream(t, Proxy{URL: "socks5://127.0.0.1:1"}, "")
	proxied.Upstream = func() *Upstream { return up }
	for name, c := range map[string]struct {
		server *Server
		name   string
		addr   netip.Addr
		code   Code
	}{
		"nobody decides on UDP":        {noUDP, "a.test", netip.Addr{}, Denied},
		"a name of TCP alone":          {datagrams(nil, "a.test", private), "b.test", netip.Addr{}, Denied},
		"an address":                   {datagrams(nil, "a.test", private), "", to.Addr(), Denied},
		"a name of a private address":  {datagrams(map[string][]netip.Addr{"a.test": {private}}, "a.test", private), "a.test", netip.Addr{}, Denied},
		"the same as IPv6 would say":   {datagrams(map[string][]netip.Addr{"a.test": {netip.MustParseAddr("::ffff:10.9.9.9")}}, "a.test", private), "a.test", netip.Addr{}, Denied},
		"a name that does not exist":   {datagrams(nil, "a.test", private), "a.test", netip.Addr{}, NoName},
		"past a proxy, which has none": {proxied, "a.test", netip.Addr{}, ProxyFailed},
	} {
		conn, err := pair(t, c.server).DialUDP(t.Context(), c.name, c.addr, to.Port())
		var e *Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: got %v, want %s", name, err, c.code)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// A name that answers otherwise the second time gains nothing with UDP, either.
func TestRebindingOfUDP(t *testing.T) {
	to, private := answerer(t), netip.MustParseAddr("10.9.9.9")
	var asked atomic.Int32
	s := datagrams(nil, "a.test", private)
	s.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		if asked.Add(1) > 1 {
			return []netip.Addr{private}, nil
		}
		return []netip.Addr{to.Addr()}, nil
	}
	conn, err := pair(t, s).DialUDP(t.Context(), "a.test", netip.Addr{}, to.Port())
	if err != nil || asked.Load() != 1 {
		t.Fatalf("%v, asked %d times", err, asked.Load())
	}
	defer conn.Close()
	if got := conn.RemoteAddr().String(); !strings.HasPrefix(got, to.Addr().String()) {
		t.Errorf("sends to %s", got)
	}
}
