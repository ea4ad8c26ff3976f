package network

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"

	"ravi/internal/network/inject"
)

// What is delegated comes to the owner as it is, and nothing else does.
func TestDelegated(t *testing.T) {
	for mode, want := range map[Delegation]map[string]bool{
		DelegateNone: {}, DelegateBound: {"bound.test": true}, DelegateAll: {"bound.test": true, "free.test": true},
	} {
		g := gateway(t, "bound.test", "free.test")
		c := config(t, "bound.test", "free.test")
		c.Delegate = mode
		g.SetPolicy(c)
		// The gateway has no value, and needs none.
		if err := g.SetSecrets([]inject.Secret{{Name: "S", Placeholder: inject.NewPlaceholder("S"), Hosts: []string{"bound.test", "denied.test"}, Headers: []string{inject.DefaultHeader}}}); err != nil {
			t.Fatal(err)
		}
		owner := called(t, g)(Hello{Services: true})
		if _, ok := g.Resolve("denied.test"); ok {
			t.Errorf("%q: a name that is not allowed is answered", mode)
		}
		for _, name := range []string{"bound.test", "free.test"} {
			addr, ok := g.Resolve(name)
			if !ok {
				t.Fatalf("%s is not answered", name)
			}
			serve := g.Connect(netip.AddrPortFrom(addr, 443))
			if serve == nil {
				t.Fatalf("%s is refused", name)
			}
			guest, ours := net.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				serve(context.Background(), ours)
			}()
			if want[name] {
				v, conn, err := ReadVisit(owner)
				if err != nil || v != (Visit{Host: name, Port: 443}) {
					t.Fatalf("%+v %v", v, err)
				}
				// Whatever it is: nobody looks into it here.
				if _, err := guest.Write([]byte{0, 1, 2, 255}); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 4)
				if _, err := io.ReadFull(conn, b); err != nil || string(b) != "\x00\x01\x02\xff" {
					t.Errorf("the owner got %q %v", b, err)
				}
				conn.Close()
			}
			guest.Close()
			<-done
			if udp := g.Datagram(netip.AddrPortFrom(addr, 443)); udp != nil && mode == DelegateAll {
				t.Errorf("%s is reached by UDP, which would leave from here", name)
			}
		}
	}
}

// Without an owner a connection that is delegated goes nowhere.
func TestDelegatedToNobody(t *testing.T) {
	g := gateway(t, "bound.test")
	c := config(t, "bound.test")
	c.Delegate = DelegateAll
	g.SetPolicy(c)
	addr, _ := g.Resolve("bound.test")
	g.events.take()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	guest, ours := net.Pipe()
	defer guest.Close()
	g.Connect(netip.AddrPortFrom(addr, 443))(ctx, ours)
	if _, err := guest.Read(make([]byte, 1)); err == nil {
		t.Error("something came back")
	}
}
