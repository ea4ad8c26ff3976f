package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"ravi/internal/backend"
	"ravi/internal/network"
)

// Service serves one connection that a process of the sandbox made, and closes it.
// What it reads is hostile. ctx ends with the sandbox, or when this process lets
// go of it.
type Service func(ctx context.Context, conn net.Conn)

// WithService has the sandbox's processes reach serve at NAME.ravi.internal, on any
// port, whatever AllowNet says. On port 443 they speak TLS, which is ended before.
// No port is opened anywhere: the connection goes through the sandbox's own gateway.
//
// On the host backend it also has the sandbox sealed: Ravi's own files and processes
// are hidden from its commands, or Open fails. There the service is reached at the
// socket that ServiceURL names.
func WithService(name string, serve Service) Option {
	return func(o *options) {
		if o.services == nil {
			o.services = map[string]Service{}
		}
		o.services[name] = serve
	}
}

// HTTPService is a Service of an HTTP handler.
func HTTPService(h http.Handler) Service {
	return func(ctx context.Context, conn net.Conn) {
		one := &oneConn{conn: conn, over: make(chan struct{})}
		server := &http.Server{Handler: h, BaseContext: func(net.Listener) context.Context { return ctx }, ConnState: one.state}
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		_ = server.Serve(one) // its error is that there is no second connection
		<-one.over
	}
}

// oneConn is a listener with one connection.
type oneConn struct {
	once sync.Once
	conn net.Conn
	over chan struct{}
	end  sync.Once
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.conn })
	if c == nil {
		<-l.over
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *oneConn) state(_ net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		l.end.Do(func() { close(l.over) })
	}
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

var serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// takeServices checks the services' names.
func (s *Sandbox) takeServices(given map[string]Service) error {
	for name, serve := range given {
		if !serviceName.MatchString(name) || serve == nil {
			return fmt.Errorf("%q is not a name for a service: small letters, digits and - only", name)
		}
		s.serviceNames = append(s.serviceNames, name)
	}
	slices.Sort(s.serviceNames)
	if s.sealed() {
		s.seal()
	}
	return nil
}

// visits is the serving of a sandbox's services.
type visits struct {
	stop context.CancelFunc
	over chan struct{}
}

// nextVisit waits for the next connection to a service, until ctx or the sandbox ends.
type nextVisit func(ctx context.Context) (network.Visit, net.Conn, error)

// callGateway has a gateway bring visits over a connection that dial makes.
func callGateway(ctx context.Context, dial func(context.Context) (net.Conn, error)) (nextVisit, error) {
	u, err := network.CallForVisits(ctx, dial)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (network.Visit, net.Conn, error) {
		hangUp := context.AfterFunc(ctx, func() { u.Close() })
		visit, conn, err := network.ReadVisit(u)
		if !hangUp() || err != nil {
			u.Close()
		}
		return visit, conn, err
	}, nil
}

// visitsOf says how the visits of a sandbox come.
func visitsOf(inst backend.Instance) func(context.Context) (nextVisit, error) {
	if v, ok := inst.(backend.Visited); ok {
		return func(ctx context.Context) (nextVisit, error) { return v.Visits(ctx) }
	}
	return func(ctx context.Context) (nextVisit, error) { return callGateway(ctx, inst.DialEvents) }
}

// receive serves what processes of the sandbox connect to, as find says. call has them come; it is called again when none
// come any more.
func receive(ctx context.Context, call func(context.Context) (nextVisit, error), find func(network.Visit) Service) (*visits, error) {
	next, err := call(ctx)
	if err != nil {
		return nil, fmt.Errorf("its network gateway: %w", err)
	}
	v := &visits{over: make(chan struct{})}
	ctx, v.stop = context.WithCancel(context.Background())
	go func() {
		defer close(v.over)
		var all sync.WaitGroup
		defer all.Wait()
		defer v.stop()
		for {
			for {
				visit, conn, err := next(ctx)
				if err != nil {
					break
				}
				serve := find(visit)
				if serve == nil {
					conn.Close()
					continue
				}
				all.Go(func() {
					defer conn.Close()
					cut := context.AfterFunc(ctx, func() { conn.Close() })
					defer cut()
					serve(ctx, conn)
				})
			}
			// If another process serves from now on, the two must not take
			// turns at full speed.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			if next, err = call(ctx); err != nil {
				return // it has ended
			}
		}
	}()
	return v, nil
}

// end lets go of the services, and waits for those that are at work.
func (v *visits) end() {
	if v != nil {
		v.stop()
		<-v.over
	}
}
