package link

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// EnvToken tells the guest agent, or a relay that begins anew, the token of the
// link's sessions.
const EnvToken = "RAVI_LINK_TOKEN"

// Sessions divides a link into sessions, each of which begins anew with the
// protocol's first byte. A sandbox that was restored from a checkpoint
// remembers a session with a keeper that is no more, in the middle of some
// message. So its new keeper writes the link's token, which is random and in
// nothing else that is sent; the guest ends the old session there, answers
// with the token, and both begin again.
type Sessions struct {
	conn  net.Conn
	token []byte

	buf  [64 << 10]byte
	rest []byte // the part of buf that is not yet delivered
	tail []byte // the end of what was delivered, as far as a token may begin there

	mu      sync.Mutex // guards writing and current
	current *session
}

// NewSessions divides conn by token. An empty token means one session only.
func NewSessions(conn net.Conn, token string) *Sessions {
	return &Sessions{conn: conn, token: []byte(token)}
}

// First is the session that begins with the link.
func (s *Sessions) First() net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begin()
}

func (s *Sessions) begin() net.Conn {
	s.current = &session{Conn: s.conn, all: s, over: make(chan struct{})}
	return s.current
}

// Next waits for the end of the present session. If the token ended it, the
// token is sent back and the next session returned; else the error is the
// link's end.
func (s *Sessions) Next() (net.Conn, error) {
	<-s.current.over
	if !s.current.followed.Load() {
		return nil, io.EOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.conn.Write(s.token); err != nil {
		return nil, err
	}
	return s.begin(), nil
}

// Restart is the keeper's side: it asks for a new session and waits for it.
// What the guest still sent of the old one is dropped, up to a bound.
func (s *Sessions) Restart() (net.Conn, error) {
	if len(s.token) == 0 {
		return nil, errors.New("the link has no token")
	}
	if _, err := s.conn.Write(s.token); err != nil {
		return nil, err
	}
	const most = 64 << 20
	buf := make([]byte, 64<<10)
	var held []byte
	for dropped := 0; dropped < most; {
		n, err := s.conn.Read(buf)
		held = append(held, buf[:n]...)
		if i := bytes.Index(held, s.token); i >= 0 {
			return &prefixed{Conn: s.conn, rest: held[i+len(s.token):]}, nil
		}
		if err != nil {
			return nil, err
		}
		if over := len(held) - len(s.token); over > 0 {
			dropped += over
			held = append(held[:0], held[over:]...)
		}
	}
	return nil, errors.New("the guest does not begin a new session")
}

// prefixed is a connection of which some bytes were read already.
type prefixed struct {
	net.Conn
	rest []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.rest) > 0 {
		n := copy(b, p.rest)
		p.rest = p.rest[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// session is one session of a link, on the guest's side.
type session struct {
	net.Conn
	all      *Sessions
	once     sync.Once
	over     chan struct{}
	followed atomic.Bool
}

func (c *session) Read(b []byte) (int, error) {
	s := c.all
	if len(b) == 0 {
		return 0, nil
	}
	select {
	case <-c.over:
		return 0, io.EOF // what follows is the next session's
	default:
	}
	for {
		if n, ended := s.deliver(b); n > 0 {
			return n, nil
		} else if ended {
			c.followed.Store(true)
			c.end()
			return 0, io.EOF
		}
		n, err := s.conn.Read(s.buf[:])
		s.rest = s.buf[:n]
		if err != nil && n == 0 {
			c.end()
			return 0, err
		}
	}
}

// deliver hands out what lies before a token; ended says that the token is next.
// Nothing is held back because a token might begin with it: it may be the end of
// a message, after which nothing comes for long. So the end of a session may be
// the beginning of a token. That does no harm: what is asked for by a token is
// that the session be given up.
func (s *Sessions) deliver(b []byte) (n int, ended bool) {
	free := len(s.rest)
	if len(s.token) > 0 && free > 0 {
		// A token may have begun in what was delivered, or lie in the rest.
		seam := append(s.tail[:len(s.tail):len(s.tail)], s.rest[:min(free, len(s.token)-1)]...)
		if i := bytes.Index(seam, s.token); i >= 0 {
			s.rest, s.tail = s.rest[i+len(s.token)-len(s.tail):], nil
			return 0, true
		}
		if i := bytes.Index(s.rest, s.token); i > 0 {
			free = i
		} else if i == 0 {
			s.rest, s.tail = s.rest[len(s.token):], nil
			return 0, true
		}
	}
	n = copy(b, s.rest[:free])
	s.keep(s.rest[:n])
	s.rest = s.rest[n:]
	return n, false
}

// keep remembers the end of what was delivered, as far as a token may begin there.
func (s *Sessions) keep(delivered []byte) {
	most := max(len(s.token)-1, 0)
	last := append(s.tail, delivered[max(len(delivered)-most, 0):]...)
	s.tail = append(s.tail[:0], last[len(last)-begins(last, s.token):]...)
}

// begins is the length of the longest end of b that a token may begin with.
func begins(b, token []byte) int {
	for n := min(len(b), len(token)-1); n > 0; n-- {
		if bytes.HasPrefix(token, b[len(b)-n:]) {
			return n
		}
	}
	return 0
}

func (c *session) Write(b []byte) (int, error) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.all.current != c || c.followed.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *session) end() { c.once.Do(func() { close(c.over) }) }

// Close ends the session. The link itself stays open for the next one, and is
// closed by whoever owns it.
func (c *session) Close() error {
	c.end()
	return nil
}
