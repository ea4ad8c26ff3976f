// Package outlet is the way out, at home, of connections of a sandbox that is made on another machine: those that need
// what must not get there, as the value of a secret. The gateway there hands them over as they are
// (network.Config.Delegate), and here they are decided on, looked into, given secrets and dialled as those of a sandbox of
// this machine are.
//
// It is a gateway and a dialer within the process that owns the sandbox, without a cable. What it reads is hostile: a
// guest wrote it, or a runner that was taken over. It opens connections that the policy allows, and nothing else.
package outlet

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ravi/internal/network"
	"ravi/internal/network/dial"
	"ravi/internal/network/inject"
	"ravi/internal/network/policy"
)

// Options are of New.
type Options struct {
	Config network.Config
	// Auth holds the credentials for Config.Proxy; nil: there are none.
	Auth io.Reader
	// Hear hears of what is decided, from one goroutine.
	Hear func(network.Event)

	roots  *x509.CertPool                                               // of tests; nil: the system's
	lookup func(ctx context.Context, name string) ([]netip.Addr, error) // of tests; nil: the system's
}

// Outlet is that of one sandbox. A nil Outlet can be closed, and has no authority.
type Outlet struct {
	gateway *network.Gateway
	auth    *dial.Auth
	now     atomic.Pointer[orders]
	client  *dial.Client
	stop    context.CancelFunc
	work    sync.WaitGroup
	once    sync.Once
	err     error
}

// What this process holds for a guest at once is bounded: requests, and bytes of the head of each.
const (
	mostRequests = 256
	mostHead     = 256 << 10
)

// orders are what the dialer goes by.
type orders struct {
	policy   policy.Effective
	upstream *dial.Upstream
}

// New makes one, which must be closed.
func New(o Options) (*Outlet, error) {
	out := &Outlet{}
	if o.Auth != nil {
		var err error
		if out.auth, err = dial.ReadAuth(o.Auth); err != nil {
			return nil, err
		}
	}
	if err := out.order(o.Config); err != nil {
		return nil, err
	}
	asks, answers, err := pair()
	if err != nil {
		return nil, err
	}
	out.client = dial.NewClient(asks)
	if out.gateway, err = network.NewGateway(o.Config, out.client, o.roots); err != nil {
		out.client.Close()
		answers.Close()
		return nil, err
	}
	out.gateway.Limit(mostRequests, mostHead)
	server := out.server(o.lookup)
	out.work.Go(func() {
		defer answers.Close()
		_ = server.Serve(answers) // it ends with the client
	})
	ctx, stop := context.WithCancel(context.Background())
	out.stop = stop
	out.work.Go(func() { out.gateway.Hear(ctx, o.Hear) })
	return out, nil
}

// pair are the ends of a packet socket.
func pair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("the way out: %w", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "dialer")
		c, cerr := net.FileConn(f)
		f.Close()
		if cerr != nil {
			err = fmt.Errorf("the way out: %w", cerr)
			continue
		}
		ends[i] = c.(*net.UnixConn)
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}

// order has the dialer go by a policy from now on.
func (o *Outlet) order(c network.Config) error {
	next := &orders{policy: c.Effective()}
	if c.Proxy != nil {
		var err error
		if next.upstream, err = dial.NewUpstream(*c.Proxy, o.auth); err != nil {
			return err
		}
	}
	o.now.Store(next)
	return nil
}

func (o *Outlet) server(lookup func(context.Context, string) ([]netip.Addr, error)) *dial.Server {
	own := &policy.Addresses{}
	return &dial.Server{
		Allow: func(name string, addr netip.Addr, port uint16) error {
			if d := o.now.Load().policy.Connect(name, addr, port); !d.Allowed {
				return fmt.Errorf("%w: %s", policy.ErrDenied, d.Why)
			}
			return nil
		},
		Check: func(name string, final netip.Addr, port uint16) error {
			return o.now.Load().policy.Dial(own, name, final, port)
		},
		Upstream: func() *dial.Upstream { return o.now.Load().upstream },
		Lookup:   lookup,
	}
}

// Authority is the certificate, as PEM, with which TLS is ended here. The sandbox has to trust it.
func (o *Outlet) Authority() string {
	if o == nil {
		return ""
	}
	return o.gateway.Authority()
}

// SetPolicy replaces what may be reached. Connections that are not allowed any more are cut.
func (o *Outlet) SetPolicy(c network.Config) error {
	if err := o.order(c); err != nil {
		return err
	}
	o.gateway.SetPolicy(c)
	return nil
}

// SetSecrets replaces the secrets.
func (o *Outlet) SetSecrets(list []inject.Secret) error { return o.gateway.SetSecrets(list) }

// Serve serves a connection to host, a name or an address, and port that came to be delegated. It closes the connection,
// and returns when all is over.
func (o *Outlet) Serve(ctx context.Context, conn net.Conn, host string, port uint16) {
	o.gateway.Take(ctx, conn, host, port)
}

// Close ends it, once all that was decided is heard. What is still served must have been ended before.
func (o *Outlet) Close() error {
	if o == nil {
		return nil
	}
	o.once.Do(func() {
		o.err = o.client.Close()
		o.stop()
		o.work.Wait()
	})
	return o.err
}
