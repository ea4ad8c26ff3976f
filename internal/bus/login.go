package bus

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// pace is how a connection that was lost comes back. All of it is jittered: many are lost at once.
type pace struct {
	first time.Duration // the first try is within this after the loss
	most  time.Duration // the longest wait between tries
	auth  time.Duration // the longest one after a refusal
	renew time.Duration // the mean of the time between looks for a renewed credential
	grace time.Duration // how long a credential that is refused or over is held to be one that will be renewed
}

// With 50 clients of a server that is gone this is about seven tries a second in all; of one that refuses them, four; and
// when their credentials are over, five looks for new ones and no tries. A cut of 40 s is mended within 50.
var usual = pace{first: time.Second, most: 10 * time.Second, auth: 15 * time.Second, renew: 10 * time.Second, grace: time.Minute}

// spread is a time whose mean is d: from half of it to one and a half.
func (p pace) spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}

// backoff is how long to wait before try n, which is 1 at first.
func (p pace) backoff(n int, most time.Duration) time.Duration {
	d := p.first << min(n-1, 16)
	if d >= most || d <= 0 {
		return most/2 + time.Duration(rand.Int64N(int64(most)/2+1))
	}
	return time.Duration(rand.Int64N(int64(d) + 1))
}

// login is the credential of a connection, as it is now.
type login struct {
	*dialing
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	nc      *nats.Conn
	current Credential
	refused time.Time // since when the server refuses it; zero if it does not
	ended   error     // why it ended for good
}

func (l *login) expired(c Credential) error {
	return refuse(ErrExpired, "get a new one: ravi bus creds issue", "the credential %s was good until %s, and was not renewed",
		c.Name, c.Expires.UTC().Format(time.RFC3339))
}

func over(c Credential, now time.Time) bool { return !c.Expires.IsZero() && !now.Before(c.Expires) }

func (l *login) credential() Credential {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

func (l *login) jwt() (string, error) { return l.credential().JWT, nil }

func (l *login) sign(nonce []byte) ([]byte, error) {
	pair, err := nkeys.FromSeed([]byte(l.credential().Seed.Reveal()))
	if err != nil {
		return nil, errors.New("the key of the credential is none") // the cause could show it
	}
	defer pair.Wipe()
	return pair.Sign(nonce)
}

// look asks for a renewed credential, and says whether there is one.
func (l *login) look(ctx context.Context) bool {
	if l.dialing == nil || l.renew == nil {
		return false
	}
	fresh, err := l.renew(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.log.Warn("no renewed credential of the bus", "error", err)
		}
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if fresh.User != l.current.User || fresh.JWT == l.current.JWT || over(fresh, time.Now()) {
		return false
	}
	// One that renews another has the key of that one.
	next, err := l.current.Renewed(fresh)
	if err != nil {
		return false
	}
	l.current, l.refused = next, time.Time{}
	return true
}

// taken notes that the server took the credential.
func (l *login) taken() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = time.Time{}
}

// complain hears of what went wrong in passing.
func (l *login) complain(nc *nats.Conn, sub *nats.Subscription, err error) {
	if isAuth(err) {
		l.mu.Lock()
		if l.refused.IsZero() {
			l.refused = time.Now()
		}
		if errors.Is(err, nats.ErrAuthRevoked) {
			l.refused = time.Now().Add(-l.pace.grace) // this is no matter of time
		}
		l.mu.Unlock()
	}
	complain(l.log)(nc, sub, err)
}

// delay is how long the library waits before its next try. It is asked before each one, the first included, and waits here
// itself for a credential that can be tried with.
func (l *login) delay(try int) time.Duration {
	c := l.credential()
	l.mu.Lock()
	refused := l.refused
	l.mu.Unlock()
	switch {
	case over(c, time.Now()):
		return l.awaitRenewed(c)
	case refused.IsZero():
		return l.pace.backoff(try, l.pace.most)
	}
	if l.look(l.ctx) {
		return 0
	}
	if time.Since(refused) >= l.pace.grace {
		l.finish(refuse(ErrRefused, "look whether it is there and not revoked: ravi bus creds ls", "the bus takes the credential %s no more: it is revoked, or of another bus", c.Name))
		return 0
	}
	return l.pace.backoff(try+2, l.pace.auth)
}

// awaitRenewed waits until a credential that is over is renewed, and ends the connection when it is not.
func (l *login) awaitRenewed(c Credential) time.Duration {
	for wait := time.Duration(rand.Int64N(int64(l.pace.renew) + 1)); ; wait = l.pace.spread(l.pace.renew) {
		select {
		case <-l.ctx.Done():
			return 0
		case <-time.After(wait):
		}
		if l.look(l.ctx) {
			return 0
		}
		if time.Since(c.Expires) >= l.pace.grace {
			l.finish(l.expired(c))
			return 0
		}
	}
}

// finish ends the connection for good.
func (l *login) finish(err error) {
	l.mu.Lock()
	nc := l.nc
	if nc != nil && l.ended == nil {
		l.ended = err
	}
	l.mu.Unlock()
	if nc != nil {
		l.log.Error("the connection to the bus has ended", "error", err)
		nc.Close()
	}
}

func (l *login) closed(*nats.Conn) {
	l.stop()
	l.mu.Lock()
	err := l.ended
	l.mu.Unlock()
	l.end(err)
}

// watch takes a renewed credential before the one in use ends, at a time of its own, so that many do not do it at once.
func (l *login) watch(nc *nats.Conn) {
	for {
		c := l.credential()
		if c.Expires.IsZero() {
			return
		}
		left := time.Until(c.Expires)
		wait := time.Duration(float64(left) * (0.5 + 0.4*rand.Float64()))
		if left < 2*l.pace.renew {
			wait = l.pace.spread(l.pace.renew)
		}
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(wait):
		}
		// One that is over is looked after by delay.
		if over(c, time.Now()) || !l.look(l.ctx) {
			continue
		}
		// The server holds a connection to the end of the credential that it began with.
		if nc.ForceReconnect() != nil {
			return
		}
	}
}
