package cable

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"ravi/internal/network/tap"
)

const dnsPort = 53

// ttl is what answers may be kept for. They never change, but a policy may.
const ttl = 60

// quiet is how long a port from which nothing is asked any more is kept.
const quiet = 250 * time.Millisecond

// datagram is called for the first packet from a port of the guest's to an
// address. Questions for names are answered whatever server they were meant
// for; what is refused is answered by the stack as unreachable, at which a
// client of QUIC falls back.
func (c *Cable) datagram(r *udp.ForwarderRequest) bool {
	if !from(r.ID()) {
		return true // dropped
	}
	target := to(r.ID())
	var serve func(context.Context, net.Conn)
	if target.Port() != dnsPort {
		if target.Addr() != tap.Sandbox.Gateway {
			serve = c.handler.Datagram(target)
		}
		if serve == nil {
			return false
		}
	}
	if !c.enter() {
		return true
	}
	var queue waiter.Queue
	ep, err := r.CreateEndpoint(&queue)
	if err != nil {
		c.leave()
		return true
	}
	go func() {
		defer c.leave()
		conn := gonet.NewUDPConn(&queue, ep)
		if serve == nil {
			c.answerQuestions(c.ctx, conn, func() bool { return ep.Readiness(waiter.ReadableEvents) != 0 })
			return
		}
		serve(c.ctx, conn)
	}()
	return true
}

// answerQuestions answers questions for names, a packet each. waiting says whether one is there.
func (c *Cable) answerQuestions(ctx context.Context, conn net.Conn, waiting func() bool) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	buf := make([]byte, 4096)
	for {
		// A resolver asks for IPv4 and IPv6 at once, from a port that it then
		// leaves; whoever asks from it later is served anew. Until then the port
		// counts as a flow, of which there are so many only.
		_ = conn.SetReadDeadline(time.Now().Add(c.quiet))
		n, err := conn.Read(buf)
		if late := net.Error(nil); errors.As(err, &late) && late.Timeout() && waiting() {
			// This side was held up, not the resolver: what it asked is not dropped.
			_ = conn.SetReadDeadline(time.Time{})
			n, err = conn.Read(buf)
		}
		if err != nil {
			return
		}
		if a := c.answer(buf[:n]); a != nil {
			if _, err := conn.Write(a); err != nil {
				return
			}
		}
	}
}

// serveDNS answers questions for names over TCP.
func (c *Cable) serveDNS(ctx context.Context, guest net.Conn) {
	conn := &dns.Conn{Conn: guest}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { guest.Close() })()
	for {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		a := c.answer(buf[:n])
		if a == nil {
			return
		}
		if _, err := conn.Write(a); err != nil {
			return
		}
	}
}

// answer answers one packet; nil for one that deserves none.
func (c *Cable) answer(packet []byte) []byte {
	var q, a dns.Msg
	if err := q.Unpack(packet); err != nil || q.Response {
		return nil
	}
	a.SetReply(&q)
	a.RecursionAvailable = true
	switch {
	case q.Opcode != dns.OpcodeQuery:
		a.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1:
		a.Rcode = dns.RcodeFormatError
	default:
		c.resolve(q.Question[0], &a)
	}
	if opt := q.IsEdns0(); opt != nil {
		a.SetEdns0(1232, false)
	}
	b, err := a.Pack()
	if err != nil {
		return nil
	}
	return b
}

func (c *Cable) resolve(q dns.Question, a *dns.Msg) {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	addr, ok := netip.Addr{}, false
	if q.Qclass == dns.ClassINET && !strings.ContainsRune(name, '\\') { // escapes: no name of a host
		addr, ok = c.handler.Resolve(name)
	}
	switch {
	case !ok:
		a.Rcode = dns.RcodeNameError
	case q.Qtype == dns.TypeA, q.Qtype == dns.TypeANY:
		a.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl},
			A:   addr.AsSlice(),
		}}
	}
	// Of a name that exists, other kinds (AAAA, HTTPS) are an empty answer.
}
