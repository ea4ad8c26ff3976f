package policy

import (
	"errors"
	"net/netip"
	"testing"
)

// UDP passes by a rule that says so, and TCP by none of these.
func TestDatagrams(t *testing.T) {
	p := list(t, "ntp.test:123/udp", "*.below.test:500/udp", "10.0.0.0/8:53/udp", "web.test", "both.test:9", "both.test:9/udp")
	for _, c := range []struct {
		name, addr string
		port       uint16
		udp, tcp   bool
	}{
		{"ntp.test", "", 123, true, false}, {"ntp.test", "", 124, false, false}, {"x.ntp.test", "", 123, false, false},
		{"a.below.test", "", 500, true, false}, {"below.test", "", 500, false, false},
		{"", "10.1.2.3", 53, true, false}, {"", "11.1.2.3", 53, false, false},
		{"web.test", "", 443, false, true}, {"both.test", "", 9, true, true}, {"other.test", "", 443, false, false},
	} {
		a, _ := netip.ParseAddr(c.addr)
		if d := p.Datagram(c.name, a, c.port); d.Allowed != c.udp || d.Why == "" {
			t.Errorf("UDP to %s%s:%d: %+v", c.name, c.addr, c.port, d)
		}
		if d := p.Connect(c.name, a, c.port); d.Allowed != c.tcp || d.Why == "" {
			t.Errorf("TCP to %s%s:%d: %+v", c.name, c.addr, c.port, d)
		}
	}
	if d := p.Resolve("ntp.test"); !d.Allowed {
		t.Errorf("the name: %+v", d)
	}
	if d := All().Datagram("ntp.test", netip.Addr{}, 123); d.Allowed {
		t.Errorf("true: %+v", d)
	}
}

func TestDatagramsOnAFloor(t *testing.T) {
	own := &Addresses{}
	ask := func(f Floor, p Policy, name, to string, port uint16) error {
		return f.Apply(p).DialUDP(own, name, addr(to), port)
	}
	rules := list(t, "ntp.test:123/udp", "in.test:123/udp", "10.0.0.1:123/udp", "tcp.test:123")
	for name, c := range map[string]struct {
		floor    string
		host, to string
		want     error
	}{
		"as it is":                        {`{}`, "ntp.test", "192.0.3.1", nil},
		"no rule about UDP":               {`{}`, "tcp.test", "192.0.3.1", ErrDenied},
		"a closed address":                {`{}`, "in.test", "10.0.0.2", ErrClosed},
		"a closed address that is named":  {`{}`, "in.test", "10.0.0.1", nil},
		"denied by host":                  {`{"always_deny":["ntp.test"]}`, "ntp.test", "192.0.3.1", ErrDenied},
		"denied by protocol":              {`{"always_deny":["ntp.test:123/udp"]}`, "ntp.test", "192.0.3.1", ErrDenied},
		"denied behind a name":            {`{"always_deny":["192.0.3.1"]}`, "ntp.test", "192.0.3.1", ErrDenied},
		"within a bound":                  {`{"max":["ntp.test:123/udp"]}`, "ntp.test", "192.0.3.1", nil},
		"a bound about TCP":               {`{"max":["ntp.test:123"]}`, "ntp.test", "192.0.3.1", ErrDenied},
		"the internet as bound":           {`{"max":true}`, "ntp.test", "192.0.3.1", nil},
		"no network as bound":             {`{"max":false}`, "ntp.test", "192.0.3.1", ErrDenied},
		"always allowed":                  {`{"always_allow":["dns.test:53/udp","dns.test:123/udp"]}`, "dns.test", "192.0.3.1", nil},
		"a bound does not open addresses": {`{"max":true}`, "in.test", "10.0.0.2", ErrClosed},
	} {
		if err := ask(floor(t, c.floor), rules, c.host, c.to, 123); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	// A denial of UDP leaves TCP alone.
	if d := floor(t, `{"always_deny":["tcp.test:123/udp"]}`).Apply(rules).Connect("tcp.test", netip.Addr{}, 123); !d.Allowed {
		t.Errorf("TCP: %+v", d)
	}
}
