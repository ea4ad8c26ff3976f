package network

import (
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"
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

// Serve tells each owner that connects of the certificate authority, and the one
// that is connected of every event.
func (g *Gateway) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		// One after the other: an event is told once.
		g.tell(c)
	}
}

// tell serves one owner until it is gone.
func (g *Gateway) tell(c net.Conn) {
	defer c.Close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = c.Read(make([]byte, 1)) // nothing is ever sent here
	}()
	out := json.NewEncoder(c)
	if out.Encode(Message{CA: string(g.ca.PEM())}) != nil {
		return
	}
	for {
		events, lost, change := g.events.take()
		if len(events) == 0 {
			select {
			case <-change:
				continue
			case <-gone:
				return
			}
		}
		for i := range events {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if out.Encode(Message{Event: &events[i], Lost: lost}) != nil {
				return
			}
			lost = 0
		}
	}
}
