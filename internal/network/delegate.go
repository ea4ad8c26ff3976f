package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"ravi/internal/network/intercept"
	"ravi/internal/network/policy"
)

// delegated says whether a flow is the owner's.
func (g *Gateway) delegated(f *flow) bool {
	g.mu.Lock()
	mode := g.delegate
	g.mu.Unlock()
	switch mode {
	case DelegateAll:
		return true
	case DelegateBound:
		return !f.udp && g.secrets.Bound(f.target(), f.port)
	}
	return false
}

// handOver gives a connection to the owner, who decides on it once more and tells what became of it.
func (g *Gateway) handOver(ctx context.Context, guest net.Conn, f *flow) {
	open := func(ctx context.Context) (net.Conn, error) {
		return g.door.open(ctx, Visit{Host: f.target(), Port: f.port})
	}
	select {
	case g.door.delegated <- struct{}{}:
		defer func() { <-g.door.delegated }()
	default:
		open = func(context.Context) (net.Conn, error) {
			return nil, fmt.Errorf("this sandbox has %d connections by way of Ravi's own side, which is the most", maxDelegated)
		}
	}
	g.proxy.Pass(ctx, guest, f.target(), f.port, open)
}

// Limit bounds the requests that are under way at once, and the bytes of a head. It is for a gateway that is not in a process
// of its own, which would be bounded as a whole. It must be called before anything is served.
func (g *Gateway) Limit(requests, headerBytes int) {
	g.proxy.Limits = intercept.Limits{Requests: requests, HeaderBytes: headerBytes}
}

// Authority is the certificate, as PEM, of the authority with which the gateway ends TLS.
func (g *Gateway) Authority() string { return string(g.ca.PEM()) }

// Hear tells of events until ctx ends, those before included.
func (g *Gateway) Hear(ctx context.Context, hear func(Event)) {
	for over := false; !over; {
		select {
		case <-ctx.Done():
			over = true
		default:
		}
		events, lost, change := g.events.take()
		if lost > 0 {
			hear(Event{Kind: KindLost, Lost: lost, Why: "there were more events at once than are kept"})
		}
		for _, e := range events {
			hear(e)
		}
		if over || len(events) > 0 {
			continue
		}
		select {
		case <-change:
		case <-ctx.Done():
		}
	}
}

// Take serves a connection that another gateway delegated: it is decided on here as if the guest had made it here. Only
// what is delegated is taken, so that a gateway that was taken over gets no more of this machine's network than that.
func (g *Gateway) Take(ctx context.Context, guest net.Conn, host string, port uint16) {
	f, err := taken(host, port)
	d := policy.Decision{}
	switch {
	case err != nil:
		d.Why = err.Error()
	case !g.delegated(f):
		d.Why = "it does not have to leave by way of Ravi's own side"
	default:
		d = f.decide(g.now())
	}
	if !d.Allowed {
		g.refused(f, d)
		guest.Close()
		return
	}
	g.open(f, func(ctx context.Context, guest net.Conn) { g.proxy.Serve(ctx, guest, f.target(), f.port) })(ctx, guest)
}

// taken is the flow that another gateway says that there is.
func taken(host string, port uint16) (*flow, error) {
	f := &flow{port: port}
	if port == 0 {
		return f, errors.New("0 is not a port")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		f.addr = addr
		return f, nil
	}
	name, err := policy.WireHost(host)
	if err != nil {
		return f, err
	}
	f.name = name
	return f, nil
}
