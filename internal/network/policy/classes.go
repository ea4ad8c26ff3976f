package policy

import (
	"net/netip"
	"slices"
)

// synthetic is where the gateway's DNS puts the names of a sandbox (RFC 2544's benchmarking range). Nothing of the
// world is reached there, whatever a rule says.
var synthetic = netip.MustParsePrefix("198.18.0.0/15")

// class is a range of addresses that is no part of the public internet.
type class struct {
	prefix netip.Prefix
	what   string // reads on after "10.0.0.1 is"
}

// classes are in order: the first that holds an address is its class. From the IANA special-purpose registries for
// IPv4 and IPv6 and the RFCs named there.
var classes = []class{
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("0.0.0.0/32"), "the unspecified address"},
	{netip.MustParsePrefix("0.0.0.0/8"), "an address of \"this network\" (0.0.0.0/8)"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "an address shared by carriers (CGNAT)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "an address for protocol assignments"},
	{netip.MustParsePrefix("192.0.2.0/24"), "a documentation address"},
	{netip.MustParsePrefix("198.51.100.0/24"), "a documentation address"},
	{netip.MustParsePrefix("203.0.113.0/24"), "a documentation address"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a 6to4 relay address"},

	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("::/128"), "the unspecified address"},
	{netip.MustParsePrefix("::/96"), "an IPv4-compatible address"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "an IPv4-translated address"},
	{netip.MustParsePrefix("fc00::/7"), "a private address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("fec0::/10"), "a site-local address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("2001:db8::/32"), "a documentation address"},
	{netip.MustParsePrefix("3fff::/20"), "a documentation address"},
	{netip.MustParsePrefix("100::/64"), "a discard address"},
	{netip.MustParsePrefix("64:ff9b::/96"), "a NAT64 address"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "a local NAT64 address"},
	{netip.MustParsePrefix("2002::/16"), "a 6to4 address"},
	{netip.MustParsePrefix("2001::/32"), "a Teredo address"},
	{netip.MustParsePrefix("2001::/23"), "an address for protocol assignments"},
	// Only 2000::/3 is given out to the world; the rest of IPv6 is closed until it is.
	{netip.MustParsePrefix("::/3"), "a reserved address"},
	{netip.MustParsePrefix("4000::/2"), "a reserved address"},
	{netip.MustParsePrefix("8000::/1"), "a reserved address"},
}

// metadata are the addresses at which clouds answer their machines with credentials and configuration. Some look
// public or private, so no range catches them. Sources: the clouds' own documentation and the addresses that
// cloud-init's data sources and the clouds' own SDKs ask.
var metadata = map[netip.Addr]string{
	netip.MustParseAddr("169.254.169.254"):    "AWS, Google, Azure, Oracle, OpenStack and most others",
	netip.MustParseAddr("fd00:ec2::254"):      "AWS",                     // docs.aws.amazon.com, EC2 instance metadata
	netip.MustParseAddr("169.254.170.2"):      "AWS ECS",                 // docs.aws.amazon.com, ECS task metadata
	netip.MustParseAddr("169.254.170.23"):     "AWS EKS",                 // docs.aws.amazon.com, EKS Pod Identity agent
	netip.MustParseAddr("fd00:ec2::23"):       "AWS EKS",                 // the same page
	netip.MustParseAddr("168.63.129.16"):      "Azure",                   // WireServer: learn.microsoft.com; public
	netip.MustParseAddr("fd20:ce::254"):       "Google Cloud",            // cloud.google.com, metadata of IPv6-only machines
	netip.MustParseAddr("192.0.0.192"):        "Oracle Cloud Classic",    // docs.oracle.com, compute classic
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"): "Oracle Cloud",            // cloud-init, DataSourceOracle
	netip.MustParseAddr("100.100.100.200"):    "Alibaba Cloud",           // cloud-init, DataSourceAliYun
	netip.MustParseAddr("fd00:100::100:200"):  "Alibaba Cloud",           // cloud-init, DataSourceAliYun
	netip.MustParseAddr("169.254.42.42"):      "Scaleway",                // cloud-init, DataSourceScaleway
	netip.MustParseAddr("fd00:42::42"):        "Scaleway",                // cloud-init, DataSourceScaleway
	netip.MustParseAddr("fd00:a9fe:a9fe::1"):  "Akamai",                  // cloud-init, DataSourceAkamai
	netip.MustParseAddr("fe80::a9fe:a9fe"):    "OpenStack and Akamai",    // docs.openstack.org, Nova metadata over IPv6
	netip.MustParseAddr("169.254.0.23"):       "Tencent Cloud",           // metadata.tencentyun.com
	netip.MustParseAddr("100.88.222.5"):       "Tencent Cloud",           // its older address
	netip.MustParseAddr("100.96.0.96"):        "Volcengine and BytePlus", // github.com/volcengine/cello
	netip.MustParseAddr("100.80.80.80"):       "UCloud",                  // github.com/ucloud/ucloud-sdk-go, metadata
	netip.MustParseAddr("192.80.8.124"):       "Equinix Metal",           // metadata.packet.net; public
}

func classify(addr netip.Addr) (class, bool) {
	at := slices.IndexFunc(classes, func(c class) bool { return c.prefix.Contains(addr) })
	if at < 0 {
		return class{}, false
	}
	return classes[at], true
}

// Closed says what the address is when it is no part of the public internet, such as "a private address". The host's own
// addresses are not known here.
func Closed(addr netip.Addr) (string, bool) {
	if synthetic.Contains(addr) {
		return "an address that stands for a name inside the sandbox", true
	}
	if who := metadata[addr]; who != "" {
		return "a cloud metadata address (" + who + ")", true
	}
	c, closed := classify(addr)
	return c.what, closed
}

// embedded are the IPv4 addresses that an IPv6 address may lead to through a translator or a tunnel.
func embedded(addr netip.Addr) []netip.Addr {
	c, closed := classify(addr)
	if !closed || addr.Is4() {
		return nil
	}
	b := addr.As16()
	at := func(i ...int) netip.Addr { return netip.AddrFrom4([4]byte{b[i[0]], b[i[1]], b[i[2]], b[i[3]]}) }
	last := at(12, 13, 14, 15)
	switch c.prefix.String() {
	case "64:ff9b::/96", "::/96", "::ffff:0:0:0/96":
		return []netip.Addr{last}
	case "64:ff9b:1::/48":
		// Where the address stands depends on the network's own prefix (RFC 6052, 2.2); no translator leads to
		// 0.0.0.0/8, so a reading that gives it is the wrong one.
		all := []netip.Addr{at(6, 7, 9, 10), at(7, 9, 10, 11), at(9, 10, 11, 12), last}
		return slices.DeleteFunc(all, func(a netip.Addr) bool { return a.As4()[0] == 0 })
	case "2002::/16":
		return []netip.Addr{at(2, 3, 4, 5)}
	case "2001::/32":
		// The server as it is, the client with every bit turned (RFC 4380, 4).
		client := last.As4()
		for i := range client {
			client[i] ^= 0xff
		}
		return []netip.Addr{at(4, 5, 6, 7), netip.AddrFrom4(client)}
	}
	return nil
}
