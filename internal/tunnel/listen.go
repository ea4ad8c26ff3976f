package tunnel

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Option is a choice of a listener.
type Option func(*options)

// WithDead is Config.Dead for every session.
func WithDead(d time.Duration) Option { return func(o *options) { o.dead = d } }

// WithWindow is Config.Window for every session.
func WithWindow(bytes int) Option { return func(o *options) { o.window = bytes } }

// WithSessions bounds the sessions at one time; whoever dials beyond gets ErrBusy. Without it they are 256.
func WithSessions(n int) Option { return func(o *options) { o.sessions = n } }

// Listener takes sessions on a wildcard subject.
type Listener struct {
	bus     bus
	party   party
	options options
	accept  func(context.Context, Name, *Session)
	cancel  func() error
	unwatch func()
	closing context.Context
	close   context.CancelFunc
	serving sync.WaitGroup

	mu       sync.Mutex
	half     []*halfOpen // the oldest first
	sessions map[sessionID]*served
	names    map[string]*served
	draining bool
}

// halfOpen is a session whose first frame did not come yet.
type halfOpen struct {
	agreed *agreed
	name   string // the subject
	hash   [sha256.Size]byte
	answer []byte
	until  time.Time
}

type served struct {
	conn *conn
	name string
	hash [sha256.Size]byte // of the hello
}

// Listen takes the sessions that peer begins on the subject, which is as Wildcard has it. accept is called for each, in a
// goroutine of its own; its context ends with the session, and the session ends when it returns. A session that the same
// run begins anew, with the same try, ends the one before.
func Listen(nc *nats.Conn, subject string, self nkeys.KeyPair, peer string, accept func(context.Context, Name, *Session), opts ...Option) (*Listener, error) {
	if nc == nil {
		return nil, errors.New("a tunnel needs a connection to the bus")
	}
	return listen(natsBus{nc}, subject, party{self, peer}, accept, opts...)
}

func listen(b bus, subject string, p party, accept func(context.Context, Name, *Session), opts ...Option) (*Listener, error) {
	o := options{sessions: 256, halfOpen: 64, halfOpenLife: 10 * time.Second}
	for _, opt := range opts {
		opt(&o)
	}
	if err := errors.Join(o.complete(), p.check()); err != nil {
		return nil, err
	}
	l := &Listener{bus: b, party: p, options: o, accept: accept, sessions: map[sessionID]*served{}, names: map[string]*served{}}
	l.closing, l.close = context.WithCancel(context.Background())
	cancel, err := b.subscribe(subject, l.take)
	if err != nil {
		l.close()
		return nil, err
	}
	l.cancel = cancel
	l.unwatch = b.watch(l.up)
	return l, nil
}

// Drain takes no more sessions: who dials gets ErrBusy. Those that are there go on.
func (l *Listener) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
}

// Sessions is how many there are.
func (l *Listener) Sessions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions)
}

// Close ends all sessions, and returns when every accept has.
func (l *Listener) Close() error {
	l.Drain()
	l.close()
	l.serving.Wait()
	l.unwatch()
	return l.cancel()
}

func (l *Listener) up() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		s.conn.up()
	}
}

// take never waits for a session: what its reader does not read is not acknowledged.
func (l *Listener) take(subject string, packet []byte) {
	if len(packet) == 0 {
		return
	}
	switch packet[0] {
	case kindHello:
		l.hello(subject, packet)
	case kindFrame:
		l.frame(subject, packet)
	}
}

// hello answers, and makes nothing that lasts. What is not a hello of the peer is dropped without a word.
func (l *Listener) hello(subject string, packet []byte) {
	name, err := parseName(subject)
	if err != nil {
		return
	}
	if answer := l.answer(subject, packet, time.Now()); answer != nil {
		_, up := name.Subjects()
		// A welcome that does not go out is as good as lost: the hello comes again.
		_ = l.bus.publish(up, answer)
	}
}

func (l *Listener) answer(subject string, packet []byte, now time.Time) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	hash := sha256.Sum256(packet)
	for len(l.half) > 0 && !now.Before(l.half[0].until) {
		l.half = l.half[1:]
	}
	for _, h := range l.half {
		if h.hash == hash && h.name == subject {
			return h.answer
		}
	}
	if s := l.names[subject]; s != nil && s.hash == hash { // it has its session, and this is an echo
		return nil
	}
	code := byte(codeOpen)
	if !l.room(subject) {
		code = codeBusy
	}
	a, answer, err := welcome(l.party, subject, packet, code)
	if err != nil {
		return nil
	}
	if a.accepted {
		if len(l.half) >= l.options.halfOpen {
			l.half = append(l.half[:0], l.half[1:]...)
		}
		l.half = append(l.half, &halfOpen{a, subject, hash, answer, now.Add(l.options.halfOpenLife)})
	}
	return answer
}

// room says whether a session of the name may begin: beside the others, or in place of the one before.
func (l *Listener) room(subject string) bool {
	return !l.draining && (len(l.sessions) < l.options.sessions || l.names[subject] != nil)
}

func (l *Listener) frame(subject string, packet []byte) {
	id, _, ok := frameID(packet)
	if !ok {
		return
	}
	l.mu.Lock()
	s := l.sessions[id]
	if s == nil {
		l.promote(subject, id, packet)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if s.name == subject {
		s.conn.receive(packet)
	}
}

// promote makes a session of a half-open one if the packet is of who said the hello.
func (l *Listener) promote(subject string, id sessionID, packet []byte) {
	for i, h := range l.half {
		if h.agreed.id != id || h.name != subject || !time.Now().Before(h.until) {
			continue
		}
		name, err := parseName(subject)
		if err != nil {
			return
		}
		plain, err := h.agreed.in.open(packet)
		if err != nil {
			return
		}
		l.half = append(l.half[:i], l.half[i+1:]...)
		down, up := name.Subjects()
		c := newConn(l.bus, up, down, h.agreed, l.options)
		c.opened(plain)
		s := &served{c, subject, h.hash}
		if !l.room(subject) {
			c.fail(ErrBusy, overBusy)
		}
		if c.reason() != nil {
			go c.run() // it tells the other end, and no more
			return
		}
		if old := l.names[subject]; old != nil {
			old.conn.fail(ErrReplaced, overReplaced)
			delete(l.sessions, old.conn.out.id)
		}
		l.sessions[id], l.names[subject] = s, s
		l.serving.Add(1)
		go l.serve(name, s)
		return
	}
}

func (l *Listener) serve(name Name, s *served) {
	defer l.serving.Done()
	go s.conn.run()
	session, err := newSession(s.conn, name, false, func() error { l.forget(s); return nil })
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(l.closing)
	defer cancel()
	stop := context.AfterFunc(l.closing, func() { _ = session.Close() })
	defer stop()
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	l.accept(ctx, name, session)
	_ = session.Close()
	cancel()
	<-over
}

func (l *Listener) forget(s *served) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[s.conn.out.id] == s {
		delete(l.sessions, s.conn.out.id)
	}
	if l.names[s.name] == s {
		delete(l.names, s.name)
	}
}
