package cli

import (
	"net/netip"
	"slices"
	"testing"

	"ravi/internal/bus"
	"ravi/internal/config"
)

type listening struct {
	bus.Bus
	at []netip.AddrPort
}

func (l listening) Addrs() []netip.AddrPort { return l.at }

// What runs hold for the bus is good from this machine only, wherever the bus listens.
func TestCredentialsOfRunsAreOfThisMachine(t *testing.T) {
	for at, want := range map[string]string{"127.0.0.1:4222": "127.0.0.1/32", "10.0.0.5:4222": "10.0.0.5/32", "[2001:db8::5]:1": "2001:db8::5/128", "0.0.0.0:4222": "127.0.0.0/8", "[::]:4222": "::1/128"} {
		d := &daemonBus{file: &config.Config{}, bus: listening{at: []netip.AddrPort{netip.MustParseAddrPort(at)}}}
		all := d.fromHere()
		if !slices.Contains(all, netip.MustParsePrefix(want)) {
			t.Errorf("%s: %v", at, all)
		}
		for _, p := range all {
			if !p.IsSingleIP() && p != netip.MustParsePrefix("127.0.0.0/8") {
				t.Errorf("%s: %v", at, p)
			}
		}
	}
	d := &daemonBus{file: &config.Config{}}
	d.file.Bus.URL = "nats://elsewhere:4222"
	if all := d.fromHere(); all != nil {
		t.Errorf("with another's bus: %v", all)
	}
}
