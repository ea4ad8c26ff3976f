package bus

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

// quick is the usual pace, a hundred times faster.
var quick = pace{first: 10 * time.Millisecond, most: 100 * time.Millisecond, auth: 150 * time.Millisecond, renew: 100 * time.Millisecond, grace: 600 * time.Millisecond}

// patient is quick, and waits for as long as a busy machine needs.
var patient = pace{first: quick.first, most: quick.most, auth: quick.auth, renew: quick.renew, grace: time.Minute}

func withPace(p pace) DialOption { return func(d *dialing) { d.pace = p } }

// crowd is many clients at once, each with a credential of its own.
type crowd struct {
	conns []*nats.Conn
	ends  chan error
	asked atomic.Int64 // for renewed ones
	log   lockedBuffer
}

const many = 50

// newCrowd connects them; renew gives a renewed credential, or the old one.
func newCrowd(t *testing.T, s *Server, p pace, ttl time.Duration, renew func(Credential) (Credential, error)) *crowd {
	t.Helper()
	c := &crowd{ends: make(chan error, many)}
	for range many {
		c.conns = append(c.conns, whileGood(t, ttl, func(ttl time.Duration) (*nats.Conn, error) {
			cred := issue(t, s, Request{Kind: KindRunner, Name: "r", TTL: ttl})
			opts := []DialOption{withPace(p), WithEnd(func(err error) { c.ends <- err }), WithLog(slog.New(slog.NewTextHandler(&c.log, nil))), WithTrust(s.Trust()),
				WithNATS(nats.Timeout(time.Minute))} // a try that is given up would be one more than there have to be
			if renew != nil {
				opts = append(opts, WithRenewal(func(context.Context) (Credential, error) {
					c.asked.Add(1)
					return renew(cred)
				}))
			}
			return tryDial(t, s.URL(), cred, opts...)
		}))
	}
	return c
}

func (c *crowd) working(t *testing.T) {
	t.Helper()
	for _, nc := range c.conns {
		until(t, func() error { return nc.FlushTimeout(5 * time.Second) })
		nc.Close()
	}
	for range many {
		if err := <-c.ends; err != nil {
			t.Error(err)
		}
	}
}

// connections are how many connections the server had so far.
func connections(t *testing.T, s *Server) int {
	t.Helper()
	v, err := s.ns.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	return int(v.TotalConnections)
}

// renewal issues a credential for the user of another.
func renewal(s *Server, ttl time.Duration) func(Credential) (Credential, error) {
	return func(c Credential) (Credential, error) {
		return s.Issue(context.Background(), Request{Kind: KindRunner, Name: "r", TTL: ttl, User: c.User})
	}
}

func TestExpiryOfManyRenewedInTime(t *testing.T) {
	s := start(t, options(t))
	// They are renewed within six seconds or so: one in which nothing goes on is no more than half of that.
	c := newCrowd(t, s, patient, 15*time.Second, renewal(s, time.Hour))
	before := connections(t, s)
	end := time.Now().Add(16 * time.Second) // a JWT knows whole seconds
	until(t, func() error {
		if time.Now().Before(end) {
			return errors.New("not over yet")
		}
		return nil
	})
	c.working(t)
	// They came anew one after the other before that, and were not all cut at once; a busy machine may be late for some.
	late := strings.Count(c.log.String(), nats.ErrAuthExpired.Error())
	if late > many/2 {
		t.Errorf("%d of %d were cut", late, many)
	}
	// One that was cut while it was about to come anew comes twice.
	if n := connections(t, s) - before; n > many+late {
		t.Errorf("%d tries of %d clients", n, many)
	}
}

func TestExpiryOfManyRenewedLate(t *testing.T) {
	s := start(t, options(t))
	var down atomic.Bool
	down.Store(true)
	c := newCrowd(t, s, patient, 2*time.Second, func(c Credential) (Credential, error) {
		if down.Load() {
			return Credential{}, errors.New("the issuer is down")
		}
		return renewal(s, time.Hour)(c)
	})
	until(t, func() error { return cut(c.conns) })
	before := connections(t, s)
	down.Store(false)
	c.working(t)
	if n := connections(t, s) - before; n > many {
		t.Errorf("%d tries of %d clients", n, many)
	}
}

// cut is nil when no connection is there any more.
func cut(conns []*nats.Conn) error {
	for _, nc := range conns {
		if nc.IsConnected() {
			return errors.New("one is still connected")
		}
	}
	return nil
}

func TestExpiryOfManyNeverRenewed(t *testing.T) {
	s := start(t, options(t))
	var same sync.Map
	c := newCrowd(t, s, quick, 2*time.Second, func(c Credential) (Credential, error) {
		same.Store(c.User, true)
		return c, nil
	})
	before := connections(t, s)
	for range many {
		select {
		case err := <-c.ends:
			var told *Error
			if !errors.Is(err, ErrExpired) || !errors.As(err, &told) || told.Hint == "" {
				t.Error(err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("one is idle, and does not end")
		}
	}
	if n := connections(t, s) - before; n > 0 {
		t.Errorf("%d tries with a credential that is over", n)
	}
}

// A credential of somebody else renews none: what waits for answers would wait at an inbox that is not its own.
func TestRenewedByAnother(t *testing.T) {
	s := start(t, options(t))
	other := issue(t, s, Request{Kind: KindRunner, Name: "other"})
	end := make(chan error, 1)
	nc := whileGood(t, time.Second, func(ttl time.Duration) (*nats.Conn, error) {
		return tryDial(t, s.URL(), issue(t, s, Request{Kind: KindRunner, Name: "r", TTL: ttl}), withPace(quick), WithEnd(func(err error) { end <- err }),
			WithRenewal(func(context.Context) (Credential, error) { return other, nil }))
	})
	select {
	case err := <-end:
		if !errors.Is(err, ErrExpired) {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it goes on", nc.Status())
	}
}

// How often many try and ask, at the pace that there is: a few times a second in all.
func TestPaceOfMany(t *testing.T) {
	const minutes = 10
	tries := func(wait func(n int) time.Duration) float64 {
		total := 0
		for range many {
			for at, n := time.Duration(0), 1; at < minutes*time.Minute; n++ {
				at += wait(n)
				total++
			}
		}
		return float64(total) / (minutes * 60)
	}
	for name, wait := range map[string]func(int) time.Duration{
		"server gone":     func(n int) time.Duration { return usual.backoff(n, usual.most) },
		"refused":         func(n int) time.Duration { return usual.backoff(n+2, usual.auth) },
		"credential over": func(int) time.Duration { return usual.spread(usual.renew) },
	} {
		if got := tries(wait); got > 8 || got < 1 {
			t.Errorf("%s: %.1f a second", name, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1<<20).Draw(t, "n")
		if d := usual.backoff(n, usual.most); d < 0 || d > usual.most {
			t.Fatal(d)
		}
	})
}

// restarted is the server again, on the port that it had.
func restarted(t *testing.T, s *Server) *Server {
	t.Helper()
	o := s.opts
	o.Port = int(s.Addrs()[0].Port())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return start(t, o)
}

func TestServerIsRestarted(t *testing.T) {
	s := start(t, options(t))
	c := issue(t, s, guest("acme", run1))
	nc := dial(t, s, c, withPace(quick))
	sub := subscribe(t, nc, "run."+run1+".down.>")
	s = restarted(t, s)
	until(t, func() error { return nc.FlushTimeout(5 * time.Second) })
	if err := warden(t, s, "acme").Publish("run."+run1+".down.x", nil); err != nil {
		t.Fatal(err)
	}
	next(t, sub)
}

func TestRevokedWhileAway(t *testing.T) {
	s := start(t, options(t))
	c := issue(t, s, guest("acme", run1))
	end := make(chan error, 1)
	dial(t, s, c, withPace(quick), WithEnd(func(err error) { end <- err }))
	port := int(s.Addrs()[0].Port())
	o := s.opts
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, o)
	if err := s.Revoke(t.Context(), "acme", map[string]time.Time{c.User: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.Port = port
	start(t, o)
	select {
	case err := <-end:
		if !errors.Is(err, ErrRefused) {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it tries for ever")
	}
}

func TestPersist(t *testing.T) {
	o := options(t)
	s := start(t, o)
	c := issue(t, s, guest("acme", run1))
	url := s.URL()
	o.Port = int(s.Addrs()[0].Port())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), url, c, WithLog(quiet())); !errors.Is(err, ErrUnreachable) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, url, c, Persist(), withPace(quick), WithLog(quiet())); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		nc, err := Dial(t.Context(), url, c, Persist(), withPace(quick), WithLog(quiet()))
		if err == nil {
			nc.Close()
		}
		got <- err
	}()
	start(t, o)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestURLs(t *testing.T) {
	for _, c := range []struct {
		url    string
		way    bool
		secure bool
		cause  error
	}{
		{"nats://127.0.0.1:4222", false, false, nil},
		{"127.0.0.1:4222", false, false, nil},
		{"nats://[::1]:4222", false, false, nil},
		{"nats://localhost", false, false, nil},
		{"tls://127.0.0.1:4222", false, true, nil},
		{"nats://bus.example.com", false, true, nil},
		{"nats://bus.example.com", true, false, nil},
		{"nats://192.0.2.7:4222,nats://192.0.2.8:4222", false, true, nil},
		{"wss://bus.example.com", false, true, nil},
		{"ws://127.0.0.1:80", false, false, nil},
		{"ws://bus.example.com", false, false, ErrExposed},
		{"nats://u:p@127.0.0.1", false, false, ErrOptions},
		{"nats://tok@127.0.0.1", false, false, ErrOptions},
		{"http://127.0.0.1", false, false, ErrOptions},
		{"", false, false, ErrOptions},
		{"nats://%zz:secret@x", false, false, ErrOptions},
	} {
		_, secure, err := checkURL(c.url, c.way)
		if !errors.Is(err, c.cause) || err == nil && secure != c.secure {
			t.Errorf("%s: %v %v", c.url, secure, err)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "tok@")) {
			t.Errorf("%s: it repeats a password: %v", c.url, err)
		}
	}
}

// Something that is no bus, or says nothing, is given up.
func TestNoBusThere(t *testing.T) {
	c := issue(t, start(t, options(t)), guest("acme", run1))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Dial(t.Context(), l.Addr().String(), c, WithLog(quiet())); !errors.Is(err, ErrUnreachable) {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), l.Addr().String(), Credential{Name: "empty"}); !errors.Is(err, ErrCredential) {
		t.Fatal(err)
	}
}
