package intercept

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// protoService is what an event says of a connection to a service of the owner's.
const protoService = "service"

// ServeService copies between the guest and a service of the owner's, which open
// connects to. On port 443 the guest speaks TLS, which is ended here. It closes
// guest, and returns when all is over.
func (p *Proxy) ServeService(ctx context.Context, guest net.Conn, name string, port uint16, open func(context.Context) (net.Conn, error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := p.serviceFlow(ctx, name, port)
	f.hold(guest)
	stop := context.AfterFunc(ctx, f.cutAll)
	defer f.cutAll()
	defer stop()

	if port == 443 {
		inner := tls.Server(guest, f.ending())
		handshake, cancel := context.WithTimeout(ctx, f.limits.HeaderTimeout)
		err := inner.HandshakeContext(handshake)
		cancel()
		if err != nil {
			f.refuse(guest, protoService, "the client ended the TLS handshake: "+err.Error(), f.handshakeHint(err))
			return
		}
		f.secure, guest = true, inner
	}
	up, err := open(ctx)
	if err != nil {
		f.event(Event{Proto: protoService, Allowed: true, Rule: f.may.Rule, Why: err.Error()})
		reset(guest)
		return
	}
	f.hold(up)
	out, in, err := copyBoth(guest, guest, up, up, f.limits.CopyTimeout)
	e := Event{Proto: protoService, Allowed: true, Rule: f.may.Rule, BytesOut: out, BytesIn: in}
	if err != nil {
		e.Why = err.Error()
	}
	f.event(e)
}

// Refuse ends a connection to a service, and says why.
func (p *Proxy) Refuse(guest net.Conn, name string, port uint16, why string) {
	p.serviceFlow(context.Background(), name, port).refuse(guest, protoService, why, "")
}

func (p *Proxy) serviceFlow(ctx context.Context, name string, port uint16) *flow {
	return &flow{Proxy: p, limits: p.setUp(), ctx: ctx, name: name, port: port, begun: time.Now(), may: Verdict{Allowed: true, Rule: "a service of Ravi's"}}
}
