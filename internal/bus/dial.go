package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// dialing is what Dial is told.
type dialing struct {
	trust   Trust
	renew   func(context.Context) (Credential, error)
	end     func(error)
	log     *slog.Logger
	persist bool
	dialer  nats.CustomDialer
	extra   []nats.Option
	pace    pace
}

// DialOption changes how Dial connects.
type DialOption func(*dialing)

// WithTrust says how the server's certificate is checked; else it is by what the system trusts.
func WithTrust(t Trust) DialOption { return func(d *dialing) { d.trust = t } }

// WithRenewal says where a renewed credential of the same user comes from: f is asked before the one in use ends, and
// every few seconds when it has. It gives the one there is, renewed or not. See RenewFile.
func WithRenewal(f func(context.Context) (Credential, error)) DialOption {
	return func(d *dialing) { d.renew = f }
}

// WithEnd is told once why the connection ended for good: ErrExpired or ErrRefused, or nil when it was closed.
func WithEnd(f func(error)) DialOption { return func(d *dialing) { d.end = f } }

// WithLog is where the connection says what goes on with it: slog.Default().
func WithLog(l *slog.Logger) DialOption { return func(d *dialing) { d.log = l } }

// Persist makes Dial try until there is a server, or ctx ends. A refused credential ends it at once all the same.
func Persist() DialOption { return func(d *dialing) { d.persist = true } }

// WithDialer is another way to a TCP connection.
func WithDialer(c nats.CustomDialer) DialOption { return func(d *dialing) { d.dialer = c } }

// WithNATS adds options of the library, such as handlers. What Dial sets itself must not be among them.
func WithNATS(opts ...nats.Option) DialOption {
	return func(d *dialing) { d.extra = append(d.extra, opts...) }
}

// RenewFile reads a credential from its file each time: whoever renews it writes it there.
func RenewFile(path string) func(context.Context) (Credential, error) {
	return func(context.Context) (Credential, error) { return ReadFile(path) }
}

// Dial connects to a bus, the one way for all of ours: with an inbox of its own, and again and again when the connection
// is lost, at a pace that many can have at once. ctx bounds the first connection only. A credential that is over and is not
// renewed within a minute ends it.
func Dial(ctx context.Context, rawURL string, c Credential, opts ...DialOption) (*nats.Conn, error) {
	d := &dialing{log: slog.Default(), pace: usual, end: func(error) {}}
	for _, o := range opts {
		o(d)
	}
	servers, secure, err := checkURL(rawURL, d.dialer != nil)
	if err != nil {
		return nil, err
	}
	if c.Seed.IsZero() || c.JWT == "" {
		return nil, refuse(ErrCredential, "", "the credential %s has no key", c.Name)
	}
	l := &login{current: c, dialing: d}
	l.ctx, l.stop = context.WithCancel(context.Background())
	all, err := l.options(ctx, c, secure)
	if err != nil {
		l.stop()
		return nil, err
	}
	nc, err := l.connect(ctx, servers, all)
	if err != nil {
		l.stop()
		return nil, err
	}
	l.mu.Lock()
	l.nc = nc
	l.mu.Unlock()
	go l.watch(nc)
	return nc, nil
}

// checkURL takes a list of servers: nats, tls, ws or wss. No credential may stand in one: it would be in logs and
// arguments. What is not on this machine is dialed with TLS whatever the URL says, unless the way there is the caller's.
func checkURL(raw string, way bool) (servers string, secure bool, err error) {
	list := strings.Split(raw, ",")
	for i, one := range list {
		one = strings.TrimSpace(one)
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil || u.Host == "" {
			return "", false, refuse(ErrOptions, "such as tls://bus.example.com:4222", "the URL of the bus is none") // it may hold a password
		}
		if u.User != nil {
			return "", false, refuse(ErrOptions, "leave it out, and give a file of credentials", "there is a password or token in the URL of the bus")
		}
		elsewhere := !way && !loopbackHost(u.Hostname())
		switch u.Scheme {
		case "tls", "wss":
			secure = true
		case "nats":
			secure = secure || elsewhere
		case "ws":
			if elsewhere {
				return "", false, refuse(ErrExposed, "say wss:// in its place", "the bus at %s is on another machine, and is not dialed without TLS", u.Host)
			}
		default:
			return "", false, refuse(ErrOptions, "nats, tls, ws or wss", "the URL of the bus has the scheme %q", u.Scheme)
		}
		list[i] = one
	}
	return strings.Join(list, ","), secure, nil
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (l *login) options(ctx context.Context, c Credential, secure bool) ([]nats.Option, error) {
	all := []nats.Option{
		nats.Name(c.Name), nats.CustomInboxPrefix(c.Inbox()), nats.UserJWT(l.jwt, l.sign),
		nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.CustomReconnectDelay(l.delay),
		// What a server says of others is not followed: they would have other names in their certificates.
		nats.IgnoreDiscoveredServers(), nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		// A write into a full socket holds the client's lock, and until it gives up nobody finds out that the line is dead.
		nats.FlusherTimeout(5 * time.Second),
		nats.Timeout(timeout(ctx)), nats.ErrorHandler(l.complain), nats.ClosedHandler(l.closed),
		nats.ReconnectHandler(func(*nats.Conn) { l.taken() }),
	}
	if l.dialer != nil {
		all = append(all, nats.SetCustomDialer(l.dialer))
	}
	if secure {
		config, err := l.trust.config()
		if err != nil {
			return nil, err
		}
		all = append(all, nats.Secure(config))
	}
	return append(all, l.extra...), nil
}

func timeout(ctx context.Context) time.Duration {
	const usual = 5 * time.Second
	if end, ok := ctx.Deadline(); ok {
		return max(min(time.Until(end), usual), time.Millisecond)
	}
	return usual
}

// connect makes the first connection.
func (l *login) connect(ctx context.Context, servers string, all []nats.Option) (*nats.Conn, error) {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if c := l.credential(); over(c, time.Now()) {
			if !l.look(ctx) {
				return nil, l.expired(c)
			}
		}
		nc, err := nats.Connect(servers, all...)
		if err == nil {
			return nc, nil
		}
		err = l.failed(err)
		if !l.persist || !errors.Is(err, ErrUnreachable) {
			return nil, err
		}
		select {
		case <-time.After(l.pace.backoff(try, l.pace.most)):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
}

// failed is why a connection could not be made, for people.
func (l *login) failed(err error) error {
	c := l.credential()
	switch {
	case isAuth(err):
		return refuse(errors.Join(ErrRefused, err), "look whether it is there and not revoked: ravi bus creds ls",
			"the bus refused the credential %s: it is revoked, over, of another bus, or used from where it may not be", c.Name)
	case isTLS(err) || errors.Is(err, nats.ErrSecureConnWanted):
		return refuse(errors.Join(ErrTLS, err), "give the authority of the bus, <home>/bus/tls/ca.pem of its machine, and a URL with a name that is in its certificate",
			"the certificate of the bus is not trusted: %s", err)
	}
	return refuse(errors.Join(ErrUnreachable, err), "see whether it runs: ravi daemon status, on its machine", "the bus cannot be reached: %s", err)
}

func isTLS(err error) bool {
	text := err.Error()
	return strings.Contains(text, "x509: ") || strings.Contains(text, "tls: ")
}

func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired)
}
