package network

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"ravi/internal/network/inject"
)

// keep is how many events wait for somebody to take them.
const keep = 4096

// feed keeps events for whoever listens. A guest makes them as fast as it
// likes, so the oldest are dropped, and counted, when nobody keeps up.
type feed struct {
	mu     sync.Mutex
	queue  []Event
	lost   int
	change chan struct{} // closed, and made anew, with every event
}

func newFeed() *feed { return &feed{change: make(chan struct{})} }

func (f *feed) add(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == keep {
		f.queue = f.queue[1:]
		f.lost++
	}
	f.queue = append(f.queue, e)
	close(f.change)
	f.change = make(chan struct{})
}

// take empties the queue; if it is empty, it says when to look again.
func (f *feed) take() (events []Event, lost int, change <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	events, lost = f.queue, f.lost
	f.queue, f.lost = nil, 0
	return events, lost, f.change
}

// Serve serves the owners that connect: each says Hello first.
func (g *Gateway) Serve(l *net.UnixListener) error {
	listening := make(chan struct{}, 1)
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			in := bufio.NewReader(c)
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			var hello Hello
			if err := readLine(in, &hello); err != nil {
				c.Close()
				return
			}
			_ = c.SetReadDeadline(time.Time{})
			if hello.Services {
				g.door.serve(c)
				return
			}
			if hello.Dial != "" {
				g.dialFor(c, hello.Dial)
				return
			}
			// One after the other: an event is told once.
			listening <- struct{}{}
			defer func() { <-listening }()
			g.tell(c, in)
		}()
	}
}

// Order is what an owner says on the socket where it hears of events, a line of
// JSON each. Orders are answered in their turn.
type Order struct {
	// Secrets are those that the sandbox has from now on; nil: as before.
	Secrets *[]inject.Secret `json:"secrets,omitempty"`
	// Names are those that the sandbox asked for in an earlier life, in their
	// order: their addresses stand for them again.
	Names []string `json:"names,omitempty"`
	// ListNames has the answer say the names that were asked for.
	ListNames bool `json:"list_names,omitempty"`
	// Told has the answer come after all that has happened until now was told.
	Told bool `json:"told,omitempty"`
}

// maxOrder bounds an Order, in bytes.
const maxOrder = 4 << 20

// tell serves one owner until it is gone.
func (g *Gateway) tell(c net.Conn, in *bufio.Reader) {
	defer c.Close()
	type answer struct {
		Message
		told bool // not before all that has happened
	}
	gone, answers := make(chan struct{}), make(chan answer)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(gone)
		for {
			var order Order
			if err := readLine(in, &order); err != nil {
				return
			}
			select {
			case answers <- answer{g.follow(order), order.Told}:
			case <-stop:
				return
			}
		}
	}()
	out := json.NewEncoder(c)
	send := func(m Message) bool {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		return out.Encode(m) == nil
	}
	if !send(Message{CA: string(g.ca.PEM())}) {
		return
	}
	// tellAll tells what has happened until now.
	tellAll := func() (change <-chan struct{}, ok bool) {
		events, lost, change := g.events.take()
		for i := range events {
			if !send(Message{Event: &events[i], Lost: lost}) {
				return nil, false
			}
			lost = 0
		}
		if len(events) > 0 {
			change = again
		}
		return change, true
	}
	for {
		change, ok := tellAll()
		if !ok {
			return
		}
		// Of what is there one is chosen by lot: a guest that makes events
		// without end does not keep its owner from an answer.
		select {
		case <-change:
		case a := <-answers:
			if a.told {
				if _, ok := tellAll(); !ok {
					return
				}
			}
			if !send(a.Message) {
				return
			}
		case <-gone:
			return
		}
	}
}

// again is a channel that never waits.
var again = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// follow does what an owner says.
func (g *Gateway) follow(o Order) Message {
	done := Message{Done: true}
	if o.Secrets != nil {
		if err := g.SetSecrets(*o.Secrets); err != nil {
			done.Error = err.Error()
		}
	}
	for _, name := range o.Names {
		if _, err := g.names.Addr(name); err != nil {
			done.Error = err.Error()
			break
		}
	}
	if o.ListNames {
		done.Names = g.names.Names()
	}
	return done
}

// readLine reads what an owner says.
func readLine(in *bufio.Reader, what any) error {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxOrder {
			return fmt.Errorf("a line of more than %d bytes", maxOrder)
		}
		if err == nil {
			return json.Unmarshal(line, what)
		}
		if err != bufio.ErrBufferFull {
			return err
		}
	}
}
