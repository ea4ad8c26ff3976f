package policy

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// nowhere is a host with one public address of each family.
func nowhere() *Addresses {
	return &Addresses{Interfaces: func() ([]netip.Addr, error) { return []netip.Addr{addr("::ffff:8.8.4.4"), addr("2a00::7%eth0")}, nil }}
}

// closed has at least one address of every class, with its neighbours at both ends, and what the refusal calls it.
var closed = map[string]string{
	"127.0.0.1": "loopback", "127.255.255.255": "loopback", "::1": "loopback",
	"0.0.0.0": "unspecified", "::": "unspecified", "0.1.2.3": "this network",
	"10.0.0.0": "private", "10.255.255.255": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.0.1": "private", "fc00::1": "private", "fdff::1": "private",
	"169.254.0.1": "link-local", "169.254.255.255": "link-local", "fe80::1": "link-local", "febf::1": "link-local", "fe80::1%eth0": "link-local", "fec0::1": "site-local",
	"100.64.0.0": "CGNAT", "100.127.255.255": "CGNAT",
	"224.0.0.1": "multicast", "239.255.255.255": "multicast", "ff02::1": "multicast", "255.255.255.255": "broadcast", "240.0.0.1": "reserved", "255.255.255.254": "reserved",
	"192.0.0.1": "protocol", "192.0.0.255": "protocol", "192.0.2.1": "documentation", "198.51.100.1": "documentation", "203.0.113.1": "documentation", "192.88.99.1": "6to4 relay",
	"2001:db8::1": "documentation", "3fff::1": "documentation", "100::1": "discard", "2001:2::1": "protocol", "2001:20::1": "protocol",
	"::8.8.8.8": "IPv4-compatible", "::ffff:0:8.8.8.8": "IPv4-translated",
	"64:ff9b::8.8.8.8": "NAT64", "64:ff9b::169.254.169.254": "NAT64", "64:ff9b:1::1": "local NAT64", "2002:808:808::1": "6to4", "2002:7f00:1::": "6to4", "2001::1": "Teredo", "2001:0:808:808::": "Teredo",
	"5f00::1": "reserved", "4000::1": "reserved", "200::1": "reserved", "64:ff9b:2::1": "reserved", "100:0:0:1::1": "reserved", "8000::1": "reserved",
	"8.8.4.4": "address of this host", "2a00::7": "address of this host",
	"169.254.169.254": "metadata", "168.63.129.16": "metadata", "100.100.100.200": "metadata", "192.0.0.192": "metadata", "fd00:ec2::254": "metadata", "fd00:ec2::23": "metadata",
	"169.254.170.2": "metadata", "169.254.170.23": "metadata", "fd20:ce::254": "metadata", "fd00:c1::a9fe:a9fe": "metadata", "fd00:100::100:200": "metadata", "169.254.42.42": "metadata",
	"fd00:42::42": "metadata", "fd00:a9fe:a9fe::1": "metadata", "fe80::a9fe:a9fe%eth0": "metadata", "169.254.0.23": "metadata", "100.88.222.5": "metadata", "100.96.0.96": "metadata",
	"100.80.80.80": "metadata", "192.80.8.124": "metadata",
}

var open = []string{
	"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0",
	"192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.17", "2606:4700:4700::1111", "2a00::8", "2001:200::1", "2001:4860:4860::8888",
}

func TestCheck(t *testing.T) {
	a := nowhere()
	for text, class := range closed {
		var e *AddressError
		for _, one := range dressed(addr(text)) {
			if err := a.Check(one, false); !errors.Is(err, ErrClosed) || !errors.As(err, &e) || !strings.Contains(e.Class, class) || !strings.Contains(err.Error(), e.Addr.String()) {
				t.Errorf("%s: %v; want %q", one, err, class)
			}
		}
	}
	for _, text := range open {
		for _, one := range dressed(addr(text)) {
			if err := a.Check(one, false); err != nil {
				t.Errorf("%s: %v", one, err)
			}
		}
	}
	if err := a.Check(netip.Addr{}, true); !errors.Is(err, ErrClosed) {
		t.Errorf("no address: %v", err)
	}
	for _, who := range metadata {
		if who == "" {
			t.Error("a metadata address is nobody's, and so is not seen")
		}
	}
}

// dressed is the address, and the same as IPv6 where it is IPv4.
func dressed(a netip.Addr) []netip.Addr {
	if a.Is4() {
		return []netip.Addr{a, netip.AddrFrom16(a.As16())}
	}
	return []netip.Addr{a}
}

func TestNamedAddressesOpen(t *testing.T) {
	a := nowhere()
	for text := range closed {
		one := addr(text)
		err := a.Check(one, true)
		if inner := embedded(plainAddr(one)); len(inner) > 0 {
			if want := a.Check(inner[0], false); (err == nil) != (want == nil) && len(inner) == 1 {
				t.Errorf("%s, named: %v, but %s: %v", one, err, inner[0], want)
			}
		} else if err != nil {
			t.Errorf("%s, named: %v", one, err)
		}
	}
	// The synthetic range is ours, in every form, named or not.
	for _, text := range []string{"198.18.0.0", "198.19.255.255", "::ffff:198.18.0.1"} {
		for _, named := range []bool{false, true} {
			var e *AddressError
			if err := a.Check(addr(text), named); !errors.As(err, &e) || !e.Never {
				t.Errorf("%s, named %v: %v", text, named, err)
			}
		}
	}
}

// Naming a translator's address names nothing behind it.
func TestEmbedded(t *testing.T) {
	a := nowhere()
	for text, fine := range map[string]bool{
		"64:ff9b::1.1.1.1": true, "64:ff9b::10.0.0.1": false, "64:ff9b::169.254.169.254": false, "64:ff9b::8.8.4.4": false, "64:ff9b::198.18.0.1": false, "64:ff9b::168.63.129.16": false,
		"2002:101:101::1": true, "2002:a00:1::1": false, "2002:7f00:1::1": false, "2002:a9fe:a9fe::": false,
		// Teredo: the server stands as it is, the client with its bits turned (1.1.1.1 is fefe:fefe, 10.0.0.1 is f5ff:fffe).
		"2001:0:101:101:0:0:fefe:fefe": true, "2001:0:101:101:0:0:f5ff:fffe": false, "2001:0:a00:1:0:0:fefe:fefe": false,
		// RFC 6052: 1.1.1.1 and 10.0.0.1 after a prefix of 48, 56, 64 and 96 bits.
		"64:ff9b:1:101:1:100::": true, "64:ff9b:1:a00:0:100::": false, "64:ff9b:1:1:1:101::": true, "64:ff9b:1:a:0:1::": false,
		"64:ff9b:1:0:1:101:100:0": true, "64:ff9b:1:0:a:0:100:0": false, "64:ff9b:1::1.1.1.1": true, "64:ff9b:1::10.0.0.1": false,
		"::1.1.1.1": true, "::10.0.0.1": false, "::ffff:0:1.1.1.1": true, "::ffff:0:127.0.0.1": false,
	} {
		if err := a.Check(addr(text), true); (err == nil) != fine || err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", text, err)
		}
		if err := a.Check(addr(text), false); err == nil {
			t.Errorf("%s was open without being named", text)
		}
	}
}

// The host's addresses are those of this second, and when they cannot be read nothing is dialled.
func TestOwnAddressesAreLive(t *testing.T) {
	var own []netip.Addr
	var failure error
	reads, now := 0, time.Unix(1000, 0)
	a := &Addresses{Interfaces: func() ([]netip.Addr, error) { reads++; return own, failure }, Now: func() time.Time { return now }, Also: []netip.Addr{addr("::ffff:9.9.9.9")}}
	one := addr("1.2.3.4")
	if err := a.Check(one, false); err != nil || reads != 1 {
		t.Fatalf("%v after %d reads", err, reads)
	}
	if err := a.Check(addr("9.9.9.9"), false); !errors.Is(err, ErrClosed) {
		t.Errorf("an address that the cloud translates to this host: %v", err)
	}
	own = []netip.Addr{one}
	now = now.Add(time.Second - 1)
	if err := a.Check(one, false); err != nil || reads != 1 {
		t.Errorf("within a second: %v after %d reads", err, reads)
	}
	now = now.Add(1)
	if err := a.Check(one, false); !errors.Is(err, ErrClosed) || reads != 2 {
		t.Errorf("a new address: %v after %d reads", err, reads)
	}
	own, now = nil, now.Add(-time.Hour)
	if err := a.Check(one, false); err != nil || reads != 3 {
		t.Errorf("a clock that was set back: %v after %d reads", err, reads)
	}
	failure, now = errors.New("no netlink"), now.Add(time.Second)
	if err := a.Check(one, false); !errors.Is(err, ErrClosed) || !errors.Is(err, failure) {
		t.Errorf("unreadable: %v", err)
	}
	if err := a.Check(one, true); err != nil {
		t.Errorf("unreadable, but named: %v", err)
	}
	failure = nil
	if err := a.Check(one, false); err != nil {
		t.Errorf("readable again: %v", err)
	}
}

// Every address that this machine has is refused, whatever it is.
func TestThisHost(t *testing.T) {
	var a Addresses
	list, err := net.InterfaceAddrs()
	if err != nil || len(list) == 0 {
		t.Skipf("SKIP-FEATURE: this machine shows no addresses: %v", err)
	}
	for _, one := range list {
		ip, ok := netip.AddrFromSlice(one.(*net.IPNet).IP)
		if !ok {
			t.Fatalf("%v is no address", one)
		}
		if err := a.Check(ip, false); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", ip, err)
		}
		if own, err := a.isOwn(plainAddr(ip)); err != nil || !own {
			t.Errorf("%s is not seen as this host's: %v", ip, err)
		}
	}
	if err := a.Check(addr("1.1.1.1"), false); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	p := list(t, "10.1.2.3:5432", "10.2.0.0/16:443", "169.254.169.254:80", "169.254.0.0/16:80", "0.0.0.0/0:443", "192.0.0.0/8:443", "8.0.0.0/8:22", "[fc00::/7]:443", "[::/0]:443",
		"[fd00:ec2::/32]:80", "host.example", "[64:ff9b::/96]:443")
	for _, c := range []struct {
		addr  string
		port  uint16
		named bool
	}{
		{"10.1.2.3", 5432, true}, {"::ffff:10.1.2.3", 5432, true}, {"10.1.2.3", 443, false}, {"10.1.2.4", 5432, false},
		{"10.2.3.4", 443, true}, {"10.2.3.4", 80, false}, {"10.3.0.1", 443, false},
		// A metadata address is named by itself only.
		{"169.254.169.254", 80, true}, {"169.254.170.2", 80, false}, {"169.254.1.1", 80, true}, {"fd00:ec2::254", 80, false}, {"fd00:ec2::254", 443, false}, {"fd00:ec2::1", 80, true},
		// A network that is larger than the class is not about the class.
		{"127.0.0.1", 443, false}, {"10.9.9.9", 443, false}, {"192.168.1.1", 443, false}, {"8.8.4.4", 443, false}, {"8.8.4.4", 22, true}, {"2a00::7", 443, false}, {"::1", 443, false},
		{"fd12::1", 443, true}, {"64:ff9b::1.1.1.1", 443, true}, {"1.1.1.1", 443, false},
	} {
		if got := p.Names(addr(c.addr), c.port); got != c.named {
			t.Errorf("Names(%s, %d) = %v", c.addr, c.port, got)
		}
	}
	// Ports count for the large network as for any other, and the public internet stays open to it.
	if d := p.Connect("", addr("1.1.1.1"), 443); !d.Allowed {
		t.Errorf("%+v", d)
	}
	if p.Names(netip.Addr{}, 443) {
		t.Error("no address was named")
	}
}
