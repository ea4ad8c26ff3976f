package bus

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	s := start(t, options(t))
	a, err := Probe(t.Context(), s.Addrs()[0])
	if err != nil || a.ID != s.ns.ID() || !a.AuthRequired || a.TLSRequired {
		t.Fatal(a, err)
	}
	for name, c := range map[string]struct {
		says  string
		cause error
	}{
		"another protocol": {"220 mail.example.com\r\n", ErrNotBus},
		"a broken one":     {"INFO {\r\n", ErrNotBus},
		"an empty one":     {"INFO {}\r\n", ErrNotBus},
		"who hangs up":     {"", io.EOF},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.WriteString(conn, c.says)
				conn.Close()
			}
		}()
		if _, err := Probe(t.Context(), l.Addr().(*net.TCPAddr).AddrPort()); !errors.Is(err, c.cause) || !errors.Is(err, ErrNotBus) {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
	}
	silent, err := net.Listen("tcp", ownHost()+":0") // a port that nobody else takes when it is free again
	if err != nil {
		t.Fatal(err)
	}
	at := silent.Addr().(*net.TCPAddr).AddrPort()
	// Longer when the machine needs longer to connect, which is another error.
	for wait := time.Second; ; wait *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := Probe(ctx, at)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && errors.Is(err, ErrNotBus) {
			break
		}
		if err == nil || wait > time.Minute {
			t.Fatal(err)
		}
	}
	silent.Close()
	if _, err := Probe(t.Context(), at); !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, ErrNotBus) {
		t.Error(err)
	}
}

func TestView(t *testing.T) {
	o := options(t)
	made, err := makeTLS(t, o, []string{"bus.example.com", "192.0.2.7"})
	if err != nil {
		t.Fatal(err)
	}
	o.TLS, o.WebSocket, o.AllowFrom = &made, &WebSocket{Origins: []string{"https://a.example"}}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	o.MaxStore = 5 << 20
	s := start(t, o)
	issue(t, s, guest("zeta", run1))
	nc := dial(t, s, issue(t, s, guest("acme", run1)))
	flush(t, nc)
	if _, err := workStream(t, s).Publish(t.Context(), "work.acme.1", make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	if v.ID != s.ns.ID() || !v.TLS || len(v.Listens) != 2 || !slices.Equal(v.Clients, []string{"acme", "zeta"}) || !slices.Contains(v.CertNames, "bus.example.com") ||
		!slices.Contains(v.CertNames, "192.0.2.7") || time.Until(v.CertUntil) < 24*time.Hour || v.Connections < 2 || v.Stored < 1000 || v.MaxStore != 5<<20 || v.Full ||
		!slices.Equal(v.Origins, []string{"https://a.example"}) || !slices.Equal(v.AllowFrom, o.AllowFrom) || v.Hub != "" {
		t.Errorf("%+v", v)
	}
	if a, err := Probe(t.Context(), v.Listens[0]); err != nil || a.ID != v.ID || !a.TLSRequired || !a.AuthRequired {
		t.Error(a, err)
	}
}
