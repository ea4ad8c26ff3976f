package cable

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"ravi/internal/network/tap"
)

const (
	sandbox = "192.168.127.2"
	gateway = "192.168.127.1"
)

// What these tests send, no program in a sandbox can: gVisor gives it no such
// socket. A kernel that was taken over can.

// wire sends any frame, and sees all that come.
type wire struct {
	t    *testing.T
	fd   int
	at   int    // the index of the device
	port uint16 // that asked last
}

func (p *plugged) wire(t *testing.T) *wire {
	t.Helper()
	w := &wire{t: t}
	err := p.in(t, func() (err error) {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		w.at = i.Index
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wire) send(frames ...[]byte) {
	w.t.Helper()
	for _, f := range frames {
		if err := unix.Sendto(w.fd, f, 0, &unix.SockaddrLinklayer{Ifindex: w.at}); err != nil {
			w.t.Fatalf("a frame of %d bytes: %v", len(f), err)
		}
	}
}

// until gives the frames that come before the answer to a question that is asked
// now: what was sent before has been looked at by then.
func (w *wire) until(name string) (others [][]byte) {
	w.t.Helper()
	w.port++ // the kernel answers that nobody listens at the last one
	w.send(udpFrame(tap.Sandbox.Addr, tap.Sandbox.Gateway, 20_000+w.port, dnsPort, name))
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			w.t.Fatalf("no answer about %s: %v", name, err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		f := slices.Clone(buf[:n])
		var a dns.Msg
		if len(f) > 42 && f[23] == 17 && a.Unpack(f[42:]) == nil && len(a.Question) == 1 && a.Question[0].Name == dns.Fqdn(name) {
			return others
		}
		others = append(others, f)
	}
}

var (
	sandboxMAC = tcpip.LinkAddress(tap.Sandbox.MAC)
	otherMAC   = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x99")
	broadcast  = header.EthernetBroadcastAddress
)

func ether(from, to tcpip.LinkAddress, kind uint16, payload []byte) []byte {
	f := append([]byte(to), []byte(from)...)
	return append(binary.BigEndian.AppendUint16(f, kind), payload...)
}

// ip is a packet of IPv4; change sees its header before it is summed up.
func ip(from, to string, protocol uint8, payload []byte, change ...func(*header.IPv4Fields)) []byte {
	f := header.IPv4Fields{
		TotalLength: uint16(header.IPv4MinimumSize + len(payload)), TTL: 64, Protocol: protocol,
		SrcAddr: tcpip.AddrFrom4(netip.MustParseAddr(from).As4()), DstAddr: tcpip.AddrFrom4(netip.MustParseAddr(to).As4()),
	}
	for _, c := range change {
		c(&f)
	}
	b := make(header.IPv4, header.IPv4MinimumSize)
	b.Encode(&f)
	b.SetChecksum(^b.CalculateChecksum())
	return append([]byte(b), payload...)
}

// frame is what the sandbox sends if it pretends nothing but what is in the packet.
func frame(packet []byte) []byte { return ether(sandboxMAC, gatewayMAC, 0x0800, packet) }

func segment(from, to string, fromPort, toPort uint16, flags header.TCPFlags) []byte {
	b := make(header.TCP, header.TCPMinimumSize)
	b.Encode(&header.TCPFields{SrcPort: fromPort, DstPort: toPort, SeqNum: 7, AckNum: 9, DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 1000})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, tcpip.AddrFrom4(netip.MustParseAddr(from).As4()), tcpip.AddrFrom4(netip.MustParseAddr(to).As4()), header.TCPMinimumSize)
	b.SetChecksum(^b.CalculateChecksum(sum))
	return ip(from, to, 6, b)
}

// datagramTo is a packet of UDP without a sum.
func datagramTo(from, to string, fromPort, toPort uint16, payload []byte) []byte {
	b := make(header.UDP, header.UDPMinimumSize)
	b.Encode(&header.UDPFields{SrcPort: fromPort, DstPort: toPort, Length: uint16(header.UDPMinimumSize + len(payload))})
	return ip(from, to, 17, append([]byte(b), payload...))
}

func question(name string) []byte {
	var q dns.Msg
	q.SetQuestion(dns.Fqdn(name), dns.TypeA)
	b, err := q.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// claim asks for an address (1) or says where one is (2).
func claim(op byte, from tcpip.LinkAddress, ip, target string) []byte {
	s, d := netip.MustParseAddr(ip).As4(), netip.MustParseAddr(target).As4()
	f := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, from...)
	f = append(append(f, s[:]...), make([]byte, 6)...)
	return ether(from, broadcast, 0x0806, append(f, d[:]...))
}

// fragment is a piece of what is in a packet of UDP, cut at multiples of 8 bytes.
func fragment(payload []byte, first, last int, id uint16) []byte {
	more := uint8(header.IPv4FlagMoreFragments)
	if last >= len(payload) {
		last, more = len(payload), 0
	}
	return frame(ip(sandbox, gateway, 17, payload[first:last], func(f *header.IPv4Fields) {
		f.ID, f.Flags, f.FragmentOffset = id, more, uint16(first)
	}))
}

func control(kind, code byte, rest []byte) []byte {
	b := header.ICMPv4(append([]byte{kind, code, 0, 0, 0, 1, 0, 1}, rest...))
	b.SetChecksum(^checksum.Checksum(b, 0))
	return b
}

// forged are frames that must not be heard, each with a question for evil.test, a connection or datagram to anybody, or a
// lie about who is where.
func forged() map[string][][]byte {
	evil := datagramTo(sandbox, gateway, 4000, dnsPort, question("evil.test"))
	udp, syn := evil[header.IPv4MinimumSize:], header.TCPFlags(header.TCPFlagSyn)
	changed := func(at int, value byte) []byte {
		b := slices.Clone(evil)
		b[at] = value
		return frame(b)
	}
	v6 := func(next byte, payload []byte) []byte {
		b := make([]byte, 40, 40+len(payload))
		b[0], b[5], b[6], b[7] = 0x60, byte(len(payload)), next, 255
		copy(b[8:], "\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x52\x41\xff\xfe\x56\x49\x02")
		copy(b[24:], "\x20\x01\x48\x60\x48\x60\x00\x00\x00\x00\x00\x00\x00\x00\x88\x88")
		h := header.IPv6(b)
		sum := header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(next), h.SourceAddress(), h.DestinationAddress(), uint16(len(payload)))
		switch payload := slices.Clone(payload); next {
		case 6:
			t := header.TCP(payload)
			t.SetChecksum(0)
			t.SetChecksum(^checksum.Checksum(payload, sum))
			b = append(b, payload...)
		case 17:
			u := header.UDP(payload)
			u.SetChecksum(^checksum.Checksum(payload, sum))
			b = append(b, payload...)
		default:
			binary.BigEndian.PutUint16(payload[2:], ^checksum.Checksum(payload, sum))
			b = append(b, payload...)
		}
		return ether(sandboxMAC, gatewayMAC, 0x86dd, b)
	}
	all := map[string][][]byte{
		"a tag of VLAN":         {ether(sandboxMAC, gatewayMAC, 0x8100, append([]byte{0, 5, 8, 0}, evil...)), ether(sandboxMAC, gatewayMAC, 0x88a8, append([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, evil...))},
		"a tag of MPLS":         {ether(sandboxMAC, gatewayMAC, 0x8847, append([]byte{0, 0, 1, 64}, evil...))},
		"PPPoE":                 {ether(sandboxMAC, gatewayMAC, 0x8864, append([]byte{0x11, 0, 0, 1, 0, byte(len(evil) + 2), 0, 0x21}, evil...))},
		"IPv6: question":        {v6(17, udp)},
		"IPv6: connection":      {v6(6, segment(sandbox, gateway, 4000, 443, syn)[header.IPv4MinimumSize:])},
		"IPv6: echo":            {v6(58, []byte{128, 0, 0, 0, 0, 1, 0, 1})},
		"IPv6: where is it":     {v6(58, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, "\x20\x01\x48\x60\x48\x60\x00\x00\x00\x00\x00\x00\x00\x00\x88\x88"...))},
		"IPv6: who routes":      {v6(58, []byte{133, 0, 0, 0, 0, 0, 0, 0})},
		"IPv6 within IPv4":      {frame(ip(sandbox, gateway, 41, v6(17, udp)[14:]))},
		"IPv4 within IPv4":      {frame(ip(sandbox, gateway, 4, evil)), frame(ip(sandbox, gateway, 47, append([]byte{0, 0, 8, 0}, evil...)))},
		"DHCP":                  {ether(sandboxMAC, broadcast, 0x0800, datagramTo("0.0.0.0", "255.255.255.255", 68, 67, []byte("discover"))), frame(datagramTo(sandbox, gateway, 68, 67, []byte("renew")))},
		"question of multicast": {ether(sandboxMAC, "\x01\x00\x5e\x00\x00\xfb", 0x0800, datagramTo(sandbox, "224.0.0.251", 5353, 5353, question("evil.test")))},
		"routes, redirected":    {frame(ip(gateway, sandbox, 1, control(5, 1, evil))), frame(ip("10.0.0.1", gateway, 1, control(5, 1, evil))), frame(ip("10.0.0.1", gateway, 1, control(9, 0, evil)))},
		"to another MAC":        {ether(sandboxMAC, otherMAC, 0x0800, evil), ether(sandboxMAC, sandboxMAC, 0x0800, evil), ether(sandboxMAC, "\x00\x00\x00\x00\x00\x00", 0x0800, evil)},
		"to a group of MACs":    {ether(sandboxMAC, "\x01\x00\x5e\x00\x00\x01", 0x0800, evil), ether(sandboxMAC, "\x33\x33\x00\x00\x00\x01", 0x0800, evil)},
		"the gateway is here":   {claim(2, otherMAC, gateway, gateway), claim(1, otherMAC, gateway, gateway), claim(1, otherMAC, "0.0.0.0", gateway)},
		"the sandbox is here":   {claim(2, otherMAC, sandbox, gateway), claim(1, otherMAC, sandbox, gateway), claim(1, otherMAC, sandbox, sandbox)},
		"the world is here":     {claim(2, otherMAC, "198.18.1.7", gateway), claim(1, otherMAC, "8.8.8.8", gateway), claim(1, otherMAC, "255.255.255.255", "224.0.0.1")},
		"pieces that overlap":   {fragment(udp, 0, 24, 1), fragment(udp, 16, 99, 1)},
		"the same, turned":      {fragment(udp, 16, 99, 2), fragment(udp, 0, 24, 2)},
		"a piece in a piece":    {fragment(udp, 0, 32, 3), fragment(udp, 8, 16, 3), fragment(udp, 24, 99, 3)},
		"pieces of two ends":    {fragment(udp, 16, 99, 4), fragment(append(slices.Clone(udp), make([]byte, 32)...), 16, 99, 4), fragment(udp, 0, 24, 4)},
		"a piece beyond 64 KiB": {fragment(udp, 0, 16, 5), frame(ip(sandbox, gateway, 17, make([]byte, 64), func(f *header.IPv4Fields) { f.ID, f.FragmentOffset = 5, 65528 }))},
		"an empty piece":        {frame(ip(sandbox, gateway, 17, nil, func(f *header.IPv4Fields) { f.ID, f.Flags = 6, header.IPv4FlagMoreFragments }))},
		"a bad sum":             {changed(10, evil[10]+1)},
		"IPv5":                  {changed(0, 0x55)},
		"a header of 0 words":   {changed(0, 0x40)},
		"a header of 15 words":  {changed(0, 0x4f)},
		"longer than it is":     {frame(ip(sandbox, gateway, 17, udp, func(f *header.IPv4Fields) { f.TotalLength = 4000 }))},
		"shorter than a header": {frame(ip(sandbox, gateway, 17, udp, func(f *header.IPv4Fields) { f.TotalLength = 10 }))},
		"hardly anything":       {frame(nil), frame([]byte{0x45}), frame(evil[:19]), frame(ip(sandbox, gateway, 17, udp[:7])), frame(ip(sandbox, gateway, 6, udp[:19])), frame(ip(sandbox, gateway, 1, nil)), ether(sandboxMAC, broadcast, 0x0806, []byte{0, 1, 8})},
	}
	// Whoever sends is the sandbox, and no other.
	for _, source := range []string{gateway, "192.168.127.9", "127.0.0.1", "198.18.1.7", "10.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "169.254.169.254"} {
		all["from "+source] = [][]byte{
			frame(datagramTo(source, gateway, 4000, dnsPort, question("evil.test"))),
			frame(datagramTo(source, "198.18.1.7", 4000, echoPort, []byte("x"))),
			frame(segment(source, "198.18.1.7", 4000, 443, syn)),
			frame(segment(source, "198.18.1.7", 4000, 443, header.TCPFlagAck)),
			frame(segment(source, "93.184.216.34", 4000, 443, syn)),
			frame(ip(source, gateway, 1, control(8, 0, []byte("hello")))),
		}
	}
	return all
}

// astray is whether the gateway tells somebody else than the sandbox more than where it is, that it is there, and that
// there is no connection.
func astray(f []byte) bool {
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0806:
		return false
	case 0x0800:
		packet := header.IPv4(f[14:])
		switch {
		case string(f[:6]) == string(sandboxMAC) && packet.DestinationAddress().String() == sandbox, packet.Protocol() == 1:
			return false
		case packet.Protocol() == 6:
			return !header.TCP(packet.Payload()).Flags().Contains(header.TCPFlagRst)
		}
	}
	return true
}

// None of these frames is heard, and what is open stays open.
func TestForgedFrames(t *testing.T) {
	p := plug(t)
	w := p.wire(t)
	c, err := p.dial(t, "tcp", "198.18.1.7:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, frames := range forged() {
		w.send(frames...)
		for _, f := range w.until("heard.test") {
			if astray(f) {
				t.Errorf("%s: answered with %x", name, f)
			}
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		asked, refused, datagrams := p.h.seen()
		if slices.Contains(asked, "evil.test") || len(refused)+len(datagrams) > 0 {
			t.Fatalf("%s: the handler saw %q, %v, %v", name, asked, refused, datagrams)
		}
	}
}

// A question from another MAC address may be heard; the answer goes to the sandbox's.
func TestAnswersGoToTheSandbox(t *testing.T) {
	p := plug(t)
	w := p.wire(t)
	w.send(claim(2, otherMAC, sandbox, gateway), ether(otherMAC, gatewayMAC, 0x0800, datagramTo(sandbox, "198.18.1.7", 4000, echoPort, []byte("hello"))))
	for {
		for _, f := range w.until("heard.test") {
			switch {
			case string(f[:6]) == string(otherMAC):
				t.Fatalf("another one got %x", f)
			case len(f) > 42 && f[23] == 17 && string(f[42:]) == "hello":
				return
			}
		}
	}
}

// One sandbox has so many connections and no more.
func TestFlowsAreBounded(t *testing.T) {
	p := plug(t)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range maxFlows {
		c, err := p.dial(t, "tcp", "198.18.1.7:443")
		if err != nil {
			t.Fatalf("connection %d: %v", len(open)+1, err)
		}
		open = append(open, c)
	}
	if c, err := p.dial(t, "tcp", "198.18.1.7:443"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("one more: %v", err)
		if c != nil {
			c.Close()
		}
	}
	open[0].Close()
	for deadline := time.Now().Add(time.Minute); ; {
		c, err := p.dial(t, "tcp", "198.18.1.7:443")
		if err == nil {
			open[0] = c
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after another one ended: %v", err)
		}
	}
}
