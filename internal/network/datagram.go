package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ravi/internal/network/names"
	"ravi/internal/network/policy"
)

// udpSilence ends an exchange of datagrams, which has no end of its own.
const udpSilence = 2 * time.Minute

// Datagram decides on UDP, at the first packet from a port of the guest's.
func (g *Gateway) Datagram(to netip.AddrPort) func(context.Context, net.Conn) {
	f := &flow{addr: to.Addr(), port: to.Port(), udp: true}
	name, known := g.names.Name(to.Addr())
	switch {
	case known:
		f.name, f.addr = name, netip.Addr{}
		if _, reserved := g.service(name); reserved {
			g.refused(f, policy.Decision{Why: "services are reached by TCP"})
			return nil
		}
	case names.Range.Contains(to.Addr()):
		g.refused(f, policy.Decision{Why: "the address stands for no name: connect by name"})
		return nil
	}
	d := f.decide(g.now())
	if !d.Allowed {
		g.refused(f, d)
		return nil
	}
	if g.delegated(f) {
		g.refused(f, policy.Decision{Rule: d.Rule, Why: "of this sandbox only TCP leaves by way of Ravi's own side"})
		return nil
	}
	return g.open(f, func(ctx context.Context, guest net.Conn) {
		defer guest.Close()
		e := Event{Time: time.Now(), Kind: KindFlow, Name: f.name, Addr: f.addr, Port: f.port, Proto: "udp", Allowed: true, Rule: d.Rule}
		up, err := g.dialer.DialUDP(ctx, f.name, f.addr, f.port)
		if err != nil {
			e.Why = "cannot send to " + net.JoinHostPort(f.target(), strconv.Itoa(int(f.port))) + ": " + err.Error()
			g.events.add(e)
			return
		}
		e.BytesOut, e.BytesIn = exchange(ctx, guest, up)
		g.events.add(e)
	})
}

// exchange copies packets both ways until neither side says anything for a while,
// or ctx ends, and closes both.
func exchange(ctx context.Context, guest, up net.Conn) (out, in int64) {
	var once sync.Once
	end := func() {
		once.Do(func() {
			guest.Close()
			up.Close()
		})
	}
	defer end()
	defer context.AfterFunc(ctx, end)()
	idle := time.AfterFunc(udpSilence, end)
	defer idle.Stop()
	var sent, got atomic.Int64
	direction := func(dst, src net.Conn, n *atomic.Int64) {
		buf := make([]byte, 64<<10)
		for {
			k, err := src.Read(buf)
			if err != nil {
				// An answer that nobody listens there is not the end: whoever
				// asks may ask again.
				if src == up && errors.Is(err, syscall.ECONNREFUSED) {
					continue
				}
				end()
				return
			}
			idle.Reset(udpSilence)
			if _, err := dst.Write(buf[:k]); err == nil {
				n.Add(int64(k))
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { direction(guest, up, &got) })
	direction(up, guest, &sent)
	both.Wait()
	return sent.Load(), got.Load()
}
