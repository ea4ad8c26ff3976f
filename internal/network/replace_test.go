package network

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"ravi/internal/network/policy"
)

// A policy that is replaced cuts what it does not allow any more, and leaves the rest.
func TestReplacedPolicyCuts(t *testing.T) {
	g := gateway(t, "kept.test", "cut.test", "cut.test:53/udp")
	ended := map[string]chan struct{}{}
	open := func(what string, f *flow) {
		started := make(chan struct{})
		ended[what] = make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		go func() {
			defer close(ended[what])
			g.open(f, func(ctx context.Context, _ net.Conn) {
				close(started)
				<-ctx.Done()
			})(ctx, nil)
		}()
		<-started
	}
	cut := func(what string) {
		t.Helper()
		select {
		case <-ended[what]:
		case <-time.After(time.Minute):
			t.Errorf("%s goes on", what)
		}
	}
	open("kept", &flow{name: "kept.test", port: 443})
	open("TCP", &flow{name: "cut.test", port: 443})
	open("UDP", &flow{name: "cut.test", port: 53, udp: true})
	g.SetPolicy(config(t, "kept.test"))
	cut("TCP")
	cut("UDP")
	// Whoever was let in by the old policy, and begins only now.
	open("late", &flow{name: "cut.test", port: 443})
	cut("late")
	select {
	case <-ended["kept"]:
		t.Error("what is allowed was cut")
	default:
	}
	// Nothing beneath the domain of services is the policy's, whatever that is.
	g.SetPolicy(Config{Policy: policy.All(), Seed: "sbx"})
	for _, name := range []string{"ravi.internal", "none.ravi.internal"} {
		if _, ok := g.Resolve(name); ok {
			t.Errorf("%s is answered", name)
		}
	}
	if g.Connect(netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), 443)) != nil {
		t.Error("an address of nobody is served")
	}
}
