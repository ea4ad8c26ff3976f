// Package parts is what the two processes of a sandbox's network do when they
// start: take the descriptors that they were born with, give up everything else,
// and serve.
//
// A keeper starts both (keeper.Network). Descriptor 3 is a socket where policies
// come, each as JSON in a file whose descriptor is sent, the first one at once.
// The dialer's 4 is its socket, and its 5 a file with the credentials for an
// upstream proxy, empty if there are none. The gateway's 4 is its end of that
// socket, 5 the sandbox's device, 6 a listening socket for its owner.
package parts

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
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

// maxPolicy bounds a policy, in bytes. A keeper sends none that is larger.
const maxPolicy = 1 << 20

// policies is where the policies of this process come.
type policies struct{ conn *net.UnixConn }

func openPolicies() (policies, error) {
	conn, err := packetSocket(3)
	return policies{conn}, err
}

func (p policies) next() (c network.Config, err error) {
	rights := make([]byte, unix.CmsgSpace(4))
	n, oob, _, _, err := p.conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil || n == 0 {
		return c, errors.Join(errors.New("no more policies can come"), err)
	}
	f, err := dial.File(rights[:oob], "policy")
	if err != nil {
		return c, fmt.Errorf("the network's policy: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPolicy))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return c, fmt.Errorf("the network's policy: %w", err)
	}
	return c, nil
}

// follow hands on each policy that comes, until none can come any more.
func (p policies) follow(set func(network.Config) error) error {
	for {
		c, err := p.next()
		if err == nil {
			err = set(c)
		}
		if err != nil {
			return err
		}
	}
}

// Gateway serves the sandbox's cable. It returns only with an error.
func Gateway(uid uint32) error {
	in, err := openPolicies()
	if err != nil {
		return err
	}
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
		Calls: []string{"ppoll", "poll", "recvmmsg", "fstat", "getuid",
			// What it hands its owner connections to services with.
			"socketpair"},
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
	go func() { ended <- g.Serve(listener.(*net.UnixListener)) }()
	go func() {
		ended <- in.follow(func(c network.Config) error {
			g.SetPolicy(c)
			return nil
		})
	}()
	return <-ended
}

// orders are what the dialer goes by.
type orders struct {
	policy   policy.Effective
	upstream *dial.Upstream
}

// Dialer serves a gateway. It returns only with an error.
func Dialer(uid uint32) error {
	in, err := openPolicies()
	if err != nil {
		return err
	}
	config, err := in.next()
	if err != nil {
		return err
	}
	socket, err := packetSocket(4)
	if err != nil {
		return err
	}
	file := os.NewFile(5, "credentials")
	auth, err := dial.ReadAuth(file)
	file.Close()
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
	var now atomic.Pointer[orders]
	set := func(c network.Config) error {
		o := &orders{policy: c.Effective()}
		if c.Proxy != nil {
			up, err := dial.NewUpstream(*c.Proxy, auth)
			if err != nil {
				return err
			}
			o.upstream = up
		}
		now.Store(o)
		return nil
	}
	if err := set(config); err != nil {
		return err
	}
	own := &policy.Addresses{}
	s := &dial.Server{
		Allow: func(name string, addr netip.Addr, port uint16) error {
			if d := now.Load().policy.Connect(name, addr, port); !d.Allowed {
				return fmt.Errorf("%w: %s", policy.ErrDenied, d.Why)
			}
			return nil
		},
		Check: func(name string, final netip.Addr, port uint16) error {
			return now.Load().policy.Dial(own, name, final, port)
		},
		AllowUDP: func(name string, addr netip.Addr, port uint16) error {
			if d := now.Load().policy.Datagram(name, addr, port); !d.Allowed {
				return fmt.Errorf("%w: %s", policy.ErrDenied, d.Why)
			}
			return nil
		},
		CheckUDP: func(name string, final netip.Addr, port uint16) error {
			return now.Load().policy.DialUDP(own, name, final, port)
		},
		Upstream: func() *dial.Upstream { return now.Load().upstream },
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
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("the socket at descriptor %d: %w", fd, err)
	}
	return c.(*net.UnixConn), nil
}
