package cable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"ravi/internal/leaktest"
	"ravi/internal/network/tap"
)

// handler allows one name and echoes what is sent to it.
type handler struct {
	mu        sync.Mutex
	asked     []string
	refused   []netip.AddrPort
	datagrams []netip.AddrPort
	cut       bool // connections after their first byte
}

var allowed = netip.MustParseAddr("198.18.1.7")

func (h *handler) Resolve(name string) (netip.Addr, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, name)
	return allowed, name == "allowed.test"
}

func (h *handler) Connect(to netip.AddrPort) func(context.Context, net.Conn) {
	h.mu.Lock()
	cut := h.cut
	h.mu.Unlock()
	if to.Addr() == allowed {
		return func(ctx context.Context, c net.Conn) {
			defer c.Close()
			if cut {
				// A deadline is told as by any connection of Go's.
				_ = c.SetReadDeadline(time.Now())
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
				_ = c.SetReadDeadline(time.Time{})
				_, _ = c.Read(make([]byte, 1))
				_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
				return
			}
			defer context.AfterFunc(ctx, func() { c.Close() })()
			_, _ = io.Copy(c, c)
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = append(h.refused, to)
	return nil
}

// seen is what the handler was asked.
func (h *handler) seen() (asked []string, refused, datagrams []netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked), slices.Clone(h.refused), slices.Clone(h.datagrams)
}

func (h *handler) Datagram(to netip.AddrPort) func(context.Context, net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.datagrams = append(h.datagrams, to)
	if to.Port() != echoPort {
		return nil
	}
	return func(ctx context.Context, c net.Conn) {
		defer c.Close()
		b := make([]byte, 2000)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
	}
}

// echoPort is where datagrams are answered.
const echoPort = 7

// What the handler serves passes both ways, each packet as it is.
func TestDatagramsAreServed(t *testing.T) {
	p := plug(t)
	c, err := p.dial(t, "udp", "198.18.1.7:7")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	for _, size := range []int{1, 0, 1400, 2} {
		if _, err := c.Write(bytes.Repeat([]byte("x"), size)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2000)
		if n, err := c.Read(b); err != nil || n != size {
			t.Errorf("%d bytes came back of %d: %v", n, size, err)
		}
	}
}

// The gateway answers an echo request for its own address, which is as far as one goes.
func TestEchoIsAnsweredHere(t *testing.T) {
	p := plug(t)
	request := []byte{8, 0, 0, 0, 0, 1, 0, 1, 'h', 'e', 'l', 'l', 'o', '!'} // RFC 792: type, code, checksum, id, sequence
	var sum uint32
	for i := 0; i < len(request); i += 2 {
		sum += uint32(request[i])<<8 | uint32(request[i+1])
	}
	sum = ^(sum>>16 + sum&0xffff)
	request[2], request[3] = byte(sum>>8), byte(sum)
	c, err := p.dial(t, "ip4:icmp", tap.Sandbox.Gateway.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(request); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	const header = 20 // of IPv4, which a read gives as well
	if err != nil || n != header+len(request) || b[header] != 0 || !bytes.Equal(b[header+4:n], request[4:]) {
		t.Errorf("%x, %v", b[:n], err)
	}
}

// plugged is a cable with real sockets at its near end.
type plugged struct {
	*Cable
	h  *handler
	ns *os.File
}

func plug(t *testing.T) *plugged {
	t.Helper()
	return plugFor(t, quiet)
}

func plugFor(t *testing.T, quiet time.Duration) *plugged {
	t.Helper()
	before := goleak.IgnoreCurrent()
	p, err := tap.New(tap.Sandbox)
	if errors.Is(err, tap.ErrNoDevice) || errors.Is(err, unix.EPERM) {
		t.Skipf("SKIP-FEATURE: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &handler{}
	c, err := newCable(int(p.Device.Fd()), h, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if n := c.Flows(); n != 0 {
			t.Errorf("%d flows are left", n)
		}
		p.Close()
		leaktest.None(t, before)
	})
	return &plugged{c, h, p.Namespace}
}

// in runs f on a thread of the sandbox's network namespace.
func (p *plugged) in(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := unix.Setns(int(p.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (p *plugged) dial(t *testing.T, network, addr string) (c net.Conn, err error) {
	t.Helper()
	err = p.in(t, func() error {
		d := net.Dialer{Timeout: 2 * time.Minute}
		c, err = d.Dial(network, addr)
		return err
	})
	return c, err
}

func (p *plugged) ask(t *testing.T, network, server, name string, kind uint16) *dns.Msg {
	t.Helper()
	c, err := p.dial(t, network, server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var q dns.Msg
	q.SetQuestion(dns.Fqdn(name), kind)
	conn := &dns.Conn{Conn: c}
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	if err := conn.WriteMsg(&q); err != nil {
		t.Fatal(err)
	}
	a, err := conn.ReadMsg()
	if err != nil {
		t.Fatalf("%s %s: %v", name, server, err)
	}
	return a
}

func TestNames(t *testing.T) {
	p := plug(t)
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []string{tap.Sandbox.Gateway.String(), "8.8.8.8", "198.18.1.7"} { // any server is this one
			a := p.ask(t, network, server+":53", "Allowed.TEST", dns.TypeA)
			if a.Rcode != dns.RcodeSuccess || len(a.Answer) != 1 || a.Answer[0].(*dns.A).A.String() != allowed.String() {
				t.Errorf("%s %s: %v", network, server, a)
			}
			if a := p.ask(t, network, server+":53", "denied.test", dns.TypeA); a.Rcode != dns.RcodeNameError {
				t.Errorf("%s %s: a name that is not allowed: %v", network, server, a)
			}
		}
	}
	for _, kind := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeTXT, dns.TypeMX} {
		if a := p.ask(t, "udp", "192.168.127.1:53", "allowed.test", kind); a.Rcode != dns.RcodeSuccess || len(a.Answer) != 0 {
			t.Errorf("%s: %v", dns.TypeToString[kind], a)
		}
	}
	names, _, _ := p.h.seen()
	for _, asked := range names {
		if asked != strings.ToLower(asked) || strings.HasSuffix(asked, ".") {
			t.Errorf("%q was asked for as it came", asked)
		}
	}
}

// A question that is there is answered, however long this side was held up before it looks.
func TestQuestionsAreNotDropped(t *testing.T) {
	p := plugFor(t, time.Nanosecond)
	for range 20 {
		if a := p.ask(t, "udp", tap.Sandbox.Gateway.String()+":53", "allowed.test", dns.TypeA); len(a.Answer) != 1 {
			t.Fatalf("%v", a)
		}
	}
}

func TestConnections(t *testing.T) {
	p := plug(t)
	c, err := p.dial(t, "tcp", "198.18.1.7:443")
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 3<<20)
	for i := range sent {
		sent[i] = byte(i * 31 >> 3)
	}
	go func() {
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || len(got) != len(sent) || string(got) != string(sent) {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
	}
	c.Close()
	for _, addr := range []string{"93.184.216.34:443", "169.254.169.254:80", "10.0.0.1:22", tap.Sandbox.Gateway.String() + ":22", "198.18.1.8:443", "1.1.1.1:853"} {
		if c, err := p.dial(t, "tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", addr, err)
			if c != nil {
				c.Close()
			}
		}
	}
	_, refused, _ := p.h.seen()
	slices.SortFunc(refused, netip.AddrPort.Compare)
	if all := slices.Compact(refused); len(all) != 5 { // all but the gateway's own address; one may be asked for anew
		t.Errorf("the handler saw %v", all)
	}
	if _, err := p.dial(t, "tcp6", "[2001:4860:4860::8888]:443"); err == nil {
		t.Error("there is IPv6")
	}
}

func TestDatagramsGoNowhere(t *testing.T) {
	p := plug(t)
	c, err := p.dial(t, "udp", "198.18.1.7:443") // as QUIC does
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v: a client would wait", err)
	}
	if _, _, datagrams := p.h.seen(); len(datagrams) != 1 {
		t.Errorf("the handler saw %v", datagrams)
	}
}

// Thousands of connections one after the other, of which none waits for another one's port.
func TestManyNewConnections(t *testing.T) {
	p := plug(t)
	n := 5000
	if testing.Short() {
		n = 500
	}
	err := p.in(t, func() error {
		d := net.Dialer{Timeout: 2 * time.Minute}
		b := make([]byte, 1)
		for i := range n {
			c, err := d.Dial("tcp4", "198.18.1.7:80")
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			if _, err := c.Write(b); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			_ = c.(*net.TCPConn).CloseWrite()
			if _, err := io.ReadAll(c); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			c.Close()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Whoever pretends to be somebody else is not heard.
func TestOtherSourcesAreNotHeard(t *testing.T) {
	p := plug(t)
	err := p.in(t, func() error {
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
		if err != nil {
			return err
		}
		defer unix.Close(s)
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: htons(unix.ETH_P_IP)}
		for _, source := range []string{"192.168.127.9", "127.0.0.1", "198.18.1.7", "10.0.0.1"} {
			if err := unix.Sendto(s, udpFrame(netip.MustParseAddr(source), tap.Sandbox.Gateway, 5353, 53, "allowed.test"), 0, to); err != nil {
				return err
			}
		}
		// The one that is heard comes last, so all before it have been looked at.
		return unix.Sendto(s, udpFrame(tap.Sandbox.Addr, tap.Sandbox.Gateway, 5353, 53, "heard.test"), 0, to)
	})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		names, _, _ := p.h.seen()
		asked := strings.Join(names, " ")
		if asked == "heard.test" {
			return
		}
		if asked != "" || time.Now().After(deadline) {
			t.Fatalf("heard: %q", asked)
		}
		time.Sleep(time.Millisecond)
	}
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// udpFrame is an Ethernet frame with a question for a name.
func udpFrame(from, to netip.Addr, fromPort, toPort uint16, name string) []byte {
	var q dns.Msg
	q.SetQuestion(dns.Fqdn(name), dns.TypeA)
	payload, _ := q.Pack()
	udp := append([]byte{byte(fromPort >> 8), byte(fromPort), byte(toPort >> 8), byte(toPort), byte((8 + len(payload)) >> 8), byte(8 + len(payload)), 0, 0}, payload...)
	ip := make([]byte, 20, 20+len(udp))
	total := 20 + len(udp)
	ip[0], ip[2], ip[3], ip[8], ip[9] = 0x45, byte(total>>8), byte(total), 64, 17
	f, d := from.As4(), to.As4()
	copy(ip[12:], f[:])
	copy(ip[16:], d[:])
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	ip[10], ip[11] = byte(^sum>>8), byte(^sum)
	eth := append(append([]byte(gatewayMAC), tap.Sandbox.MAC...), 0x08, 0x00)
	return append(append(eth, ip...), udp...)
}

// A connection that is cut looks cut to the guest, not ended.
func TestCutConnectionIsReset(t *testing.T) {
	p := plug(t)
	p.h.mu.Lock()
	p.h.cut = true
	p.h.mu.Unlock()
	c, err := p.dial(t, "tcp", "198.18.1.7:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
}

// Frames with which somebody claims an address, or asks for one, change nothing.
func TestClaimsOfAddressesAreNotHeard(t *testing.T) {
	p := plug(t)
	evil := net.HardwareAddr{2, 0, 0, 0, 0, 99}
	arp := func(op byte, mac net.HardwareAddr, ip, target netip.Addr) []byte {
		s, d := ip.As4(), target.As4()
		f := append(append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...), 0x08, 0x06)
		f = append(f, 0, 1, 8, 0, 6, 4, 0, op)
		f = append(append(append(f, mac...), s[:]...), tap.Sandbox.MAC...)
		return append(f, d[:]...)
	}
	err := p.in(t, func() error {
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		defer unix.Close(s)
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		frames := [][]byte{
			arp(2, evil, tap.Sandbox.Addr, tap.Sandbox.Gateway),    // the sandbox's address is at another place
			arp(2, evil, tap.Sandbox.Gateway, tap.Sandbox.Gateway), // so is the gateway's
			arp(1, evil, netip.MustParseAddr("192.168.127.9"), tap.Sandbox.Gateway),
			// DHCP: from nobody, to everybody.
			udpFrame(netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255"), 68, 67, "discover"),
		}
		for _, f := range frames {
			if err := unix.Sendto(s, f, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Answers still come to the one who is there.
	if a := p.ask(t, "udp", "192.168.127.1:53", "allowed.test", dns.TypeA); len(a.Answer) != 1 {
		t.Errorf("%v", a)
	}
	c, err := p.dial(t, "tcp", "198.18.1.7:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if asked, _, datagrams := p.h.seen(); len(datagrams) != 0 || strings.Join(asked, " ") != "allowed.test" {
		t.Errorf("the handler saw %v and %v", asked, datagrams)
	}
}
