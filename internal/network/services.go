package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/network/dial"
)

// ServiceDomain is where the owner's services are: they have no address outside,
// and no other name beneath it is answered, whatever the policy says.
const ServiceDomain = ".ravi.internal"

// Visit is what the gateway tells the owner of a connection to a service, a line
// of JSON together with one descriptor: the connection.
type Visit struct {
	Service string `json:"service,omitempty"` // without ServiceDomain
	Port    uint16 `json:"port"`
	// Host is whom a connection is for that is delegated (Config.Delegate), and to no service: a name or an address.
	Host string `json:"host,omitempty"`
}

// Bounds of the connections to services.
const (
	maxVisits    = 256              // at once
	maxDelegated = 1024             // connections that are delegated, at once
	awaitOwner   = 10 * time.Second // for an owner to take one, as when a new one takes over
	maxVisit     = 512              // bytes of a Visit
	visitsWrite  = 10 * time.Second
)

// door is where an owner that serves is called.
type door struct {
	mu     sync.Mutex
	owner  *net.UnixConn
	change chan struct{} // closed, and made anew, with every owner
	visits chan struct{}
	// delegated are connections that are the owner's.
	delegated chan struct{}
}

func newDoor() *door {
	return &door{change: make(chan struct{}), visits: make(chan struct{}, maxVisits), delegated: make(chan struct{}, maxDelegated)}
}

// serve has c take what comes from now on, until it is gone.
func (d *door) serve(c *net.UnixConn) {
	d.mu.Lock()
	if d.owner != nil {
		d.owner.Close() // there is one at a time
	}
	d.owner = c
	close(d.change)
	d.change = make(chan struct{})
	d.mu.Unlock()
	_, _ = c.Read(make([]byte, 1)) // nothing is ever sent here
	d.mu.Lock()
	if d.owner == c {
		d.owner = nil
	}
	d.mu.Unlock()
	c.Close()
}

var errNobody = errors.New("nobody serves it now: Ravi's own side has gone away")

// open calls the owner.
func (d *door) open(ctx context.Context, v Visit) (net.Conn, error) {
	wait, cancel := context.WithTimeout(ctx, awaitOwner)
	defer cancel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a connection to a service: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "service"), os.NewFile(uintptr(fds[1]), "service")
	defer ours.Close() // the connection has a copy
	defer theirs.Close()
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	for {
		d.mu.Lock()
		owner, change := d.owner, d.change
		if owner != nil {
			_ = owner.SetWriteDeadline(time.Now().Add(visitsWrite))
			_, _, err := owner.WriteMsgUnix(append(text, '\n'), unix.UnixRights(fds[1]), nil)
			d.mu.Unlock()
			if err == nil {
				return net.FileConn(ours)
			}
			owner.Close()
		} else {
			d.mu.Unlock()
		}
		select {
		case <-change:
		case <-wait.Done():
			return nil, errNobody
		}
	}
}

// CallForVisits has a gateway tell of connections to services over a connection that dial makes; see ReadVisit.
func CallForVisits(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*net.UnixConn, error) {
	c, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the gateway's socket is not a unix socket")
	}
	if err := json.NewEncoder(u).Encode(Hello{Services: true}); err != nil {
		u.Close()
		return nil, err
	}
	return u, nil
}

// ReadVisit takes the next connection to a service from c, which said Hello.
func ReadVisit(c *net.UnixConn) (Visit, net.Conn, error) {
	var v Visit
	text, rights := make([]byte, maxVisit), make([]byte, unix.CmsgSpace(4*4))
	// The kernel gives no two messages at once that carry descriptors.
	n, rn, _, _, err := c.ReadMsgUnix(text, rights)
	if err != nil {
		return v, nil, err
	}
	f, err := dial.File(rights[:rn], "service")
	if err != nil {
		return v, nil, fmt.Errorf("the gateway sent no connection: %w", err)
	}
	defer f.Close()
	if err := json.Unmarshal(text[:n], &v); err != nil {
		return v, nil, fmt.Errorf("the gateway's message: %w", err)
	}
	conn, err := net.FileConn(f)
	return v, conn, err
}

// service says whether a name is within the domain of services, and which of them
// it is.
func (g *Gateway) service(name string) (service string, reserved bool) {
	service, reserved = strings.CutSuffix(name, ServiceDomain)
	if !reserved {
		return "", name == strings.TrimPrefix(ServiceDomain, ".")
	}
	if !slices.Contains(g.services, service) {
		return "", true
	}
	return service, true
}

// visit serves a connection to a service. On port 443 it is inside TLS, which
// ends here.
func (g *Gateway) visit(ctx context.Context, guest net.Conn, service string, port uint16) {
	select {
	case g.door.visits <- struct{}{}:
		defer func() { <-g.door.visits }()
	default:
		g.proxy.Refuse(guest, service+ServiceDomain, port, fmt.Sprintf("this sandbox has %d connections to services, which is the most", maxVisits))
		return
	}
	g.proxy.ServeService(ctx, guest, service+ServiceDomain, port, func(ctx context.Context) (net.Conn, error) {
		return g.door.open(ctx, Visit{Service: service, Port: port})
	})
}
