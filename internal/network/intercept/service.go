package intercept

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
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
		f.unavailable(guest, err)
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

// Pass copies between the guest and what open connects to, and looks at nothing. It closes guest, and returns when all is
// over. Only what does not come about is told of: the rest is for who is at the other end to tell.
func (p *Proxy) Pass(ctx context.Context, guest net.Conn, name string, port uint16, open func(context.Context) (net.Conn, error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &flow{Proxy: p, limits: p.setUp(), ctx: ctx, name: name, port: port, begun: time.Now()}
	f.hold(guest)
	stop := context.AfterFunc(ctx, f.cutAll)
	defer f.cutAll()
	defer stop()
	up, err := open(ctx)
	if err != nil {
		f.refuse(guest, "unknown", err.Error(), "")
		return
	}
	f.hold(up)
	_, _, _ = copyBoth(guest, guest, up, up, f.limits.CopyTimeout)
}

// unavailableBody is what a client of a service reads when nobody serves it.
const unavailableBody = `{"error":{"code":"UNAVAILABLE","message":"Ravi's own side does not answer now","hint":"try again in a few seconds"}}`

// unavailable ends a connection to a service that nobody serves. A client that
// speaks HTTP/1 is told by an answer to its request, another one by the cut.
func (f *flow) unavailable(guest net.Conn, why error) {
	e := Event{Proto: protoService, Allowed: true, Rule: f.may.Rule, Why: why.Error()}
	conn := &replay{Conn: guest}
	kind, _, err := f.sniff(conn, nil)
	var req *http.Request
	if err == nil && kind == kindHTTP1 {
		conn.SetReadDeadline(time.Now().Add(f.limits.HeaderTimeout))
		req, err = http.ReadRequest(bufio.NewReader(io.LimitReader(conn, int64(f.limits.HeaderBytes))))
	}
	if err != nil || req == nil {
		f.event(e)
		reset(guest)
		return
	}
	e.Method, e.Path, e.Status = req.Method, req.URL.EscapedPath(), http.StatusServiceUnavailable
	w := bufio.NewWriter(guest)
	fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nRetry-After: 5\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		e.Status, http.StatusText(e.Status), len(unavailableBody))
	if req.Method != http.MethodHead {
		w.WriteString(unavailableBody)
	}
	w.Flush() // a guest that is gone misses nothing
	f.event(e)
	closeGently(guest)
}

// Refuse ends a connection to a service, and says why.
func (p *Proxy) Refuse(guest net.Conn, name string, port uint16, why string) {
	p.serviceFlow(context.Background(), name, port).refuse(guest, protoService, why, "")
}

func (p *Proxy) serviceFlow(ctx context.Context, name string, port uint16) *flow {
	return &flow{Proxy: p, limits: p.setUp(), ctx: ctx, name: name, port: port, begun: time.Now(), may: Verdict{Allowed: true, Rule: "a service of Ravi's"}}
}
