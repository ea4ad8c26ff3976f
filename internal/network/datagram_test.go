package network

import (
	"net/netip"
	"strings"
	"testing"

	"ravi/internal/network/policy"
)

// UDP goes where a rule about UDP says, and nowhere else.
func TestDatagramsNeedARule(t *testing.T) {
	g := gateway(t, "ntp.test:123/udp", "web.test", "192.0.3.1:53/udp")
	g.services = []string{"echo"}
	at := func(name string, port uint16) netip.AddrPort {
		a, ok := g.Resolve(name)
		if !ok {
			t.Fatalf("%s has no address", name)
		}
		return netip.AddrPortFrom(a, port)
	}
	ntp, web, echo := at("ntp.test", 123), at("web.test", 443), at("echo.ravi.internal", 80)
	for to, want := range map[netip.AddrPort]string{ // why it is refused
		ntp:                                     "",
		netip.MustParseAddrPort("192.0.3.1:53"): "",
		web:                                     "UDP passes only where a rule names it",
		netip.AddrPortFrom(ntp.Addr(), 124):     "UDP passes only where a rule names it",
		netip.AddrPortFrom(ntp.Addr().Next(), 123):    "stands for no name",
		netip.MustParseAddrPort("192.0.3.1:54"):       "UDP passes only where a rule names it",
		netip.MustParseAddrPort("192.0.3.2:53"):       "UDP passes only where a rule names it",
		netip.MustParseAddrPort("255.255.255.255:67"): "UDP passes only where a rule names it",
		echo: "by TCP",
	} {
		g.events.take()
		serve := g.Datagram(to)
		if (serve != nil) != (want == "") {
			t.Errorf("%v: served %t", to, serve != nil)
		}
		events, _, _ := g.events.take()
		if want == "" {
			continue
		}
		if len(events) != 1 || events[0].Allowed || events[0].Proto != "udp" || !strings.Contains(events[0].Why, want) {
			t.Errorf("%v: told %+v, want %q", to, events, want)
		}
	}
	// A rule about UDP says nothing about TCP.
	if g.Connect(ntp) != nil {
		t.Error("TCP passes by a rule about UDP")
	}
	// With all of the internet, there still is no UDP without a rule.
	c := Config{Policy: policy.All(), Seed: "sbx"}
	g.SetPolicy(c)
	for _, to := range []netip.AddrPort{ntp, web, netip.MustParseAddrPort("1.1.1.1:443")} {
		if g.Datagram(to) != nil {
			t.Errorf("%v: served without a rule", to)
		}
	}
}

// Where names are, nothing else is, also for whom all of the internet is allowed.
func TestWhatStandsForNoName(t *testing.T) {
	g := gateway(t, "known.test")
	g.SetPolicy(Config{Policy: policy.All(), Seed: "sbx"})
	known, _ := g.Resolve("known.test")
	g.events.take()
	if g.Connect(netip.AddrPortFrom(known, 443)) == nil {
		t.Error("the name is refused")
	}
	if g.Connect(netip.AddrPortFrom(known.Next(), 443)) != nil {
		t.Error("an address without a name is served")
	}
	if events, _, _ := g.events.take(); len(events) != 1 || !strings.Contains(events[0].Why, "stands for no name") {
		t.Errorf("told %+v", events)
	}
}
