package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"ravi/internal/network"
)

// line is the owner's line to a sandbox's network gateway: it hears there what
// the gateway decides, and gives it orders.
type line struct {
	// dial connects to the gateway.
	dial func(context.Context) (net.Conn, error)
	// hear takes what is heard; may be nil.
	hear func(NetEvent)

	over chan struct{} // closed when no more is heard
	stop context.CancelFunc

	asking sync.Mutex // one order at a time

	mu   sync.Mutex
	call *call // the one that is under way
}

// call is one connection of a line.
type call struct {
	conn    net.Conn
	in      *bufio.Reader
	answers chan network.Message
	next    chan struct{} // closed when another call took its place
}

var errNoGreeting = errors.New("it says nothing")

// newLine calls a gateway. What it gives besides is the certificate of the
// authority with which the gateway ends TLS.
func newLine(ctx context.Context, dial func(context.Context) (net.Conn, error), hear func(NetEvent)) (*line, string, error) {
	l := &line{dial: dial, hear: hear, over: make(chan struct{})}
	certificate, err := l.greet(ctx)
	if err != nil {
		return nil, "", err
	}
	ctx, l.stop = context.WithCancel(context.Background())
	go func() {
		defer close(l.over)
		l.listen(ctx)
	}()
	return l, certificate, nil
}

// greet makes a call.
func (l *line) greet(ctx context.Context) (certificate string, err error) {
	conn, err := l.dial(ctx)
	if err != nil {
		return "", err
	}
	// A gateway greets one owner at a time, so this may have to wait.
	hangUp := context.AfterFunc(ctx, func() { conn.Close() })
	in := bufio.NewReader(conn)
	var greeting network.Message
	if err = json.NewEncoder(conn).Encode(network.Hello{}); err == nil {
		greeting, err = readMessage(in)
	}
	if !hangUp() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil || greeting.CA == "" {
		conn.Close()
		return "", errors.Join(err, errNoGreeting)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.call != nil {
		close(l.call.next)
	}
	l.call = &call{conn: conn, in: in, answers: make(chan network.Message, 1), next: make(chan struct{})}
	return greeting.CA, nil
}

func (l *line) now() *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.call
}

// listen passes on what the gateway tells, until ctx or the sandbox ends. A
// gateway that could not get rid of its events in time, since this process was
// stopped, hangs up; it keeps what it can until it is called again.
func (l *line) listen(ctx context.Context) {
	for {
		c := l.now()
		hangUp := context.AfterFunc(ctx, func() { c.conn.Close() })
		for {
			m, err := readMessage(c.in)
			if err != nil {
				break
			}
			if m.Done {
				select {
				case c.answers <- m:
				default: // nobody asked
				}
			}
			if l.hear == nil {
				continue
			}
			if m.Lost > 0 {
				l.hear(NetEvent{Time: time.Now(), Kind: network.KindLost, Lost: m.Lost, Why: "there were more events at once than are kept"})
			}
			if m.Event != nil {
				l.hear(*m.Event)
			}
		}
		hangUp()
		c.conn.Close()
		if ctx.Err() != nil {
			return
		}
		if _, err := l.greet(ctx); err != nil {
			return // it has ended
		}
	}
}

// maxMessage bounds a line of a gateway's, in bytes: the names that a guest asked for are in one. A gateway on another
// machine may say anything.
const maxMessage = 8 << 20

func readMessage(r *bufio.Reader) (m network.Message, err error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxMessage {
			return m, fmt.Errorf("a line of more than %d bytes", maxMessage)
		}
		if err == nil {
			return m, json.Unmarshal(line, &m)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return m, err
		}
	}
}

// order has the gateway do something, and waits until it is done. If the gateway
// hangs up meanwhile it is told again: an order that was followed already changes
// nothing.
func (l *line) order(ctx context.Context, o network.Order) (network.Message, error) {
	none := network.Message{}
	text, err := json.Marshal(o)
	if err != nil {
		return none, err
	}
	l.asking.Lock()
	defer l.asking.Unlock()
	for {
		c := l.now()
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(30 * time.Second)
		}
		_ = c.conn.SetWriteDeadline(deadline)
		if _, err := c.conn.Write(append(text, '\n')); err != nil {
			c.conn.Close()
		}
		select {
		case m := <-c.answers:
			if m.Error != "" {
				return none, errors.New(m.Error)
			}
			return m, nil
		case <-c.next:
		case <-l.over:
			return none, errors.New("the network's gateway is gone")
		case <-ctx.Done():
			// A late answer must not be taken for the next one's.
			c.conn.Close()
			return none, context.Cause(ctx)
		}
	}
}

// hangUp ends the listening, and waits for it.
func (l *line) hangUp() {
	if l != nil {
		l.stop()
		<-l.over
	}
}

// hearSoFar waits until all that has happened until now is heard, if that can be: a gateway that ends with its sandbox tells
// no more.
func (l *line) hearSoFar(ctx context.Context) {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, _ = l.order(ctx, network.Order{Told: true}) // if it is gone there is nothing to hear
}

// hearTheRest waits until what the gateway of a sandbox that has ended told is
// heard.
func (l *line) hearTheRest() {
	if l == nil {
		return
	}
	select {
	case <-l.over:
	case <-time.After(5 * time.Second):
	}
	l.hangUp()
}
