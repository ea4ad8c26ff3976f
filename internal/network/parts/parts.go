// Package parts is what the two processes of a sandbox's network do when they
// start: take the descriptors that they were born with, give up everything else,
// and serve.
//
// A keeper starts both (keeper.Network). Descriptor 3 is where policies come, a
// line of JSON each, the first one at once. The dialer's 4 is its socket. The
// gateway's 4 is its end of that, 5 the sandbox's device, 6 a listening socket
// for its owner.
package parts

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/log"

	"ravi/internal/confine"
	"ravi/internal/network"
	"ravi/internal/network/cable"
	"ravi/internal/network/dial"
	"ravi/internal/network/policy"
)

// Bounds of the two processes.
const (
	gatewayMemory = 768 << 20
	dialerMemory  = 256 << 20
	files         = 8192
)

// policies reads the policies of this process.
type policies struct{ lines *json.Decoder }

func openPolicies() policies {
	return policies{json.NewDecoder(bufio.NewReader(os.NewFile(3, "policies")))}
}

func (p policies) next() (c network.Config, err error) {
	if err := p.lines.Decode(&c); err != nil {
		return c, fmt.Errorf("the network's policy: %w", err)
	}
	return c, nil
}

// follow hands on each policy that comes, until none can come any more.
func (p policies) follow(set func(network.Config)) error {
	for {
		c, err := p.next()
		if err != nil {
			return err
		}
		set(c)
	}
}

// Gateway serves the sandbox's cable. It returns only with an error.
func Gateway(uid uint32) error {
	in := openPolicies()
	config, err := in.next()
	if err != nil {
		return err
	}
	// While there still are files.
	roots, err := x509.SystemCertPool()
	if err != nil {
		return fmt.Errorf("the host's certificate authorities: %w", err)
	}
	dialer, err := packetSocket(4)
	if err != nil {
		return err
	}
	events := os.NewFile(6, "events")
	listener, err := net.FileListener(events)
	events.Close() // the listener has a copy
	if err != nil {
		return fmt.Errorf("the owner's socket: %w", err)
	}
	err = confine.Process(confine.To{
		UID: uid, GID: uid, Memory: gatewayMemory, Files: files,
		// What the stack reads its device with.
		Calls: []string{"ppoll", "poll", "recvmmsg", "fstat", "getuid"},
	})
	if err != nil {
		return fmt.Errorf("confining the gateway: %w", err)
	}
	// The stack says what is odd about packets, of which a guest can send any
	// number.
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	g, err := network.NewGateway(config, dial.NewClient(dialer), roots)
	if err != nil {
		return err
	}
	if _, err := cable.New(5, g); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- g.Serve(listener) }()
	go func() { ended <- in.follow(g.SetPolicy) }()
	return <-ended
}

// Dialer serves a gateway. It returns only with an error.
func Dialer(uid uint32) error {
	in := openPolicies()
	config, err := in.next()
	if err != nil {
		return err
	}
	socket, err := packetSocket(4)
	if err != nil {
		return err
	}
	err = confine.Process(confine.To{
		UID: uid, GID: uid, Memory: dialerMemory, Files: files,
		// The host's resolver is described by files, as /etc/resolv.conf.
		KeepRoot: true,
		Calls: []string{
			"socket", "connect", "bind", "openat", "fstat", "newfstatat", "lseek", "ppoll", "poll",
			"getuid", "geteuid", "getgid", "getegid",
		},
	})
	if err != nil {
		return fmt.Errorf("confining the dialer: %w", err)
	}
	var now atomic.Pointer[policy.Effective]
	set := func(c network.Config) {
		e := c.Effective()
		now.Store(&e)
	}
	set(config)
	own := &policy.Addresses{}
	s := &dial.Server{
		Allow: func(name string, addr netip.Addr, port uint16) error {
			if d := now.Load().Connect(name, addr, port); !d.Allowed {
				return fmt.Errorf("%w: %s", policy.ErrDenied, d.Why)
			}
			return nil
		},
		Check: func(name string, final netip.Addr, port uint16) error {
			return now.Load().Dial(own, name, final, port)
		},
	}
	ended := make(chan error, 2)
	go func() {
		if err := s.Serve(socket); err != nil {
			ended <- err
			return
		}
		ended <- fmt.Errorf("the gateway has ended")
	}()
	go func() { ended <- in.follow(set) }()
	return <-ended
}

// packetSocket takes a descriptor that this process was born with.
func packetSocket(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "dialer")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("the dialer's socket: %w", err)
	}
	return c.(*net.UnixConn), nil
}
