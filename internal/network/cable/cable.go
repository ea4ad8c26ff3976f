// Package cable is the far end of a sandbox's network device: a TCP/IP stack in
// this process, which takes every packet that the sandbox sends and decides what
// becomes of it.
//
// There is no route from here to anywhere. A connection goes on only in that
// whoever uses the package copies its bytes. The package reads what a guest
// writes; it must not open a socket of the host's.
package cable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"ravi/internal/network/tap"
)

// gatewayMAC is fixed (locally administered), like the sandbox's.
var gatewayMAC = tcpip.LinkAddress(tap.Sandbox.GatewayMAC)

// Handler decides on what a sandbox sends. Its methods are called by many
// goroutines.
type Handler interface {
	// Resolve answers a question for the IPv4 address of a name (lower case, no
	// dot at its end). ok is false for a name that does not exist, for this
	// sandbox.
	Resolve(name string) (addr netip.Addr, ok bool)
	// Connect decides on a TCP connection at its first packet. A nil serve
	// refuses it; else serve is called with the connection, and closes it.
	Connect(to netip.AddrPort) (serve func(context.Context, net.Conn))
	// Datagram decides on UDP packets that are no questions for names, at the
	// first one from a port of the guest's. A nil serve refuses them; else serve
	// is called with the connection, of which each read and write is a packet,
	// and closes it.
	Datagram(to netip.AddrPort) (serve func(context.Context, net.Conn))
}

// Bounds of one cable.
const (
	maxFlows   = 1024
	maxOpening = 512
	bufferMost = 2 << 20 // for one direction of one connection
)

// Cable is one sandbox's.
type Cable struct {
	handler Handler
	stack   *stack.Stack
	ctx     context.Context
	cancel  context.CancelCauseFunc
	quiet   time.Duration // the constant, but in tests

	serving sync.WaitGroup
	mu      sync.Mutex // guards what follows
	flows   int
	closed  bool
}

// ErrUnplugged is why a flow ends when its cable does.
var ErrUnplugged = errors.New("the sandbox's network is gone")

const nic = 1

// New serves the device behind fd (a TAP, Ethernet frames, not blocking). fd
// stays the caller's, who closes it after Close.
func New(fd int, h Handler) (*Cable, error) { return newCable(fd, h, quiet) }

func newCable(fd int, h Handler, quiet time.Duration) (*Cable, error) {
	c := &Cable{handler: h, quiet: quiet}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol}, // no IPv6
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	c.stack = s
	fail := func(what string, err any) (*Cable, error) {
		s.Close()
		return nil, fmt.Errorf("the sandbox's network: %s: %v", what, err)
	}
	// A connection that this side has closed must not stand in the way of a new
	// one from the same port: the stack would not answer it for a minute.
	wait := tcpip.TCPTimeWaitTimeoutOption(10 * time.Millisecond)
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 256 << 10, Max: bufferMost}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 256 << 10, Max: bufferMost}
	// The stack's recovery by time (RACK) was seen to go on with two small segments every 200 ms, for minutes, after many
	// of them in a row. Recovery by SACK alone was not.
	recovery := tcpip.TCPRecovery(0)
	for _, o := range []tcpip.SettableTransportProtocolOption{&wait, &sack, &receive, &send, &recovery} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fail("an option of TCP", err)
		}
	}
	// Before there is a device: from then on packets come.
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, 0, maxOpening, c.connect).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s, c.datagram).HandlePacket)
	link, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: uint32(tap.Sandbox.MTU), EthernetHeader: true, Address: gatewayMAC})
	if err != nil {
		return fail("its device", err)
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return fail("its device", err)
	}
	address := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(tap.Sandbox.Gateway.As4()), PrefixLen: tap.Sandbox.Bits},
	}
	if err := s.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		return fail("its address", err)
	}
	// Every packet is for this side, whatever address it is for.
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return fail("taking every packet", err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return fail("answering for every address", err)
	}
	if err := s.AddStaticNeighbor(nic, ipv4.ProtocolNumber, tcpip.AddrFrom4(tap.Sandbox.Addr.As4()), tcpip.LinkAddress(tap.Sandbox.MAC)); err != nil {
		return fail("the sandbox's address", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return c, nil
}

// Close ends every flow and waits for them.
func (c *Cable) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel(ErrUnplugged)
	c.stack.Close()
	c.serving.Wait()
	c.stack.Wait()
}

// Flows is how many connections there are.
func (c *Cable) Flows() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flows
}

// enter counts a flow, unless there are too many. Whoever entered must leave.
func (c *Cable) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.flows >= maxFlows {
		return false
	}
	c.flows++
	c.serving.Add(1)
	return true
}

func (c *Cable) leave() {
	c.mu.Lock()
	c.flows--
	c.mu.Unlock()
	c.serving.Done()
}

// from says whether a packet is from the only one who can send any. Another
// source is somebody in the sandbox who pretends.
func from(id stack.TransportEndpointID) bool {
	return id.RemoteAddress == tcpip.AddrFrom4(tap.Sandbox.Addr.As4())
}

func to(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
}

// connect is called for the first packet of each connection, on a goroutine of
// its own.
func (c *Cable) connect(r *tcp.ForwarderRequest) {
	if !from(r.ID()) {
		r.Complete(false)
		return
	}
	target := to(r.ID())
	var serve func(context.Context, net.Conn)
	if target.Port() == dnsPort {
		serve = c.serveDNS
	} else if target.Addr() != tap.Sandbox.Gateway {
		serve = c.handler.Connect(target)
	}
	if serve == nil || !c.enter() {
		r.Complete(true)
		return
	}
	defer c.leave()
	var queue waiter.Queue
	ep, err := r.CreateEndpoint(&queue)
	r.Complete(err != nil)
	if err != nil {
		return
	}
	// What is written goes out at once: the second half of an answer must not wait
	// until the guest has acknowledged the first.
	ep.SocketOptions().SetDelayOption(false)
	// A guest that vanishes without a word is noticed.
	ep.SocketOptions().SetKeepAlive(true)
	idle := tcpip.KeepaliveIdleOption(time.Minute)
	_ = ep.SetSockOpt(&idle)
	serve(c.ctx, &conn{TCPConn: gonet.NewTCPConn(&queue, ep), ep: ep})
}

// conn is one connection.
type conn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

// Read reads what the guest sends. A deadline that has passed is told the way
// that Go's own connections tell it, by which others go.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	return n, deadline("read", err)
}

// Write sends to the guest.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	return n, deadline("write", err)
}

func deadline(op string, err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, os.ErrDeadlineExceeded) {
		return &net.OpError{Op: op, Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	return err
}

// SetLinger says what becomes of the connection when it is closed: with 0
// seconds the guest sees a reset, as it would of the server itself.
func (c *conn) SetLinger(seconds int) error {
	c.ep.SocketOptions().SetLinger(tcpip.LingerOption{Enabled: seconds >= 0, Timeout: time.Duration(max(seconds, 0)) * time.Second})
	return nil
}
