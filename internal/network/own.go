package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"ravi/internal/network/policy"
)

// maxOwn bounds the connections that an owner has made as the sandbox.
const maxOwn = 64

// dialFor makes c, an owner's, one to where a process of the sandbox would come
// with the same address. It is decided on, told of, looked into and given secrets
// like that process's. The owner says nothing more before it is answered.
func (g *Gateway) dialFor(c net.Conn, address string) {
	serve, why := g.asGuest(address)
	if serve != nil {
		select {
		case g.own <- struct{}{}:
			defer func() { <-g.own }()
		default:
			serve, why = nil, fmt.Sprintf("%d connections are open by way of this sandbox's network, which is the most", maxOwn)
		}
	}
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err := json.NewEncoder(c).Encode(Message{CA: string(g.ca.PEM()), Done: true, Error: why}); err != nil || serve == nil {
		c.Close()
		return
	}
	_ = c.SetWriteDeadline(time.Time{})
	serve(context.Background(), c) // which ends with c
}

// asGuest does what comes of an address when a process of the sandbox connects to
// it: the name is asked for, then what it stands for dialled.
func (g *Gateway) asGuest(address string) (serve func(context.Context, net.Conn), why string) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err.Error()
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Sprintf("%.20q is not a port", text)
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		name, err := policy.WireHost(strings.TrimSuffix(host, "."))
		if err != nil {
			return nil, err.Error()
		}
		if addr, why = g.resolve(name); why != "" {
			return nil, why
		}
	}
	return g.connect(netip.AddrPortFrom(addr, uint16(port)))
}
