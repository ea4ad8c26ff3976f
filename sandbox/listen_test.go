package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"

	"ravi/internal/backend"
	"ravi/internal/network"
)

// hangingUp is an instance whose gateway hangs up after each of its speeches.
type hangingUp struct {
	backend.Instance
	speeches [][]network.Message
}

func (h *hangingUp) DialEvents(context.Context) (net.Conn, error) {
	if len(h.speeches) == 0 {
		return nil, errors.New("it has ended")
	}
	said := h.speeches[0]
	h.speeches = h.speeches[1:]
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		out := json.NewEncoder(theirs)
		hello(theirs)
		for _, m := range append([]network.Message{{CA: "certificate"}}, said...) {
			if out.Encode(m) != nil {
				return
			}
		}
	}()
	return ours, nil
}

// hello takes the line that an owner begins with.
func hello(c net.Conn) {
	for b := make([]byte, 1); b[0] != '\n'; {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// A gateway that hung up, since its events were not taken in time, is called again, and what it dropped is told.
func TestHungUpGatewayIsCalledAgain(t *testing.T) {
	event := func(name string) network.Message { return network.Message{Event: &network.Event{Name: name}} }
	lost := event("third")
	lost.Lost = 7
	gateway := &hangingUp{speeches: [][]network.Message{{event("first"), event("second")}, {}, {lost, event("fourth")}}}
	var heard []NetEvent
	l, certificate, err := newLine(t.Context(), gateway.DialEvents, func(e NetEvent) { heard = append(heard, e) })
	if err != nil || certificate != "certificate" {
		t.Fatalf("%q %v", certificate, err)
	}
	<-l.over
	want := []string{"first", "second", "", "third", "fourth"}
	if len(heard) != len(want) {
		t.Fatalf("heard %+v", heard)
	}
	for i, e := range heard {
		if e.Name != want[i] || (e.Kind == network.KindLost) != (i == 2) || e.Lost != map[bool]int{true: 7}[i == 2] {
			t.Errorf("event %d is %+v", i, e)
		}
	}
}

// Whoever lets go of a sandbox hears no more, and does not hold the line for the next owner.
func TestHangUp(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		hello(theirs)
		json.NewEncoder(theirs).Encode(network.Message{CA: "certificate"})
	}()
	l, _, err := newLine(t.Context(), func(context.Context) (net.Conn, error) { return ours, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.hangUp()
	if _, err := theirs.Write([]byte("x")); err == nil {
		t.Error("the line is still open")
	}
	l.hangUp() // once more does no harm
}

// An order is said again to a gateway that hung up before it answered, and an answer that comes too late is not the
// next order's.
func TestOrderIsSaidAgain(t *testing.T) {
	calls := make(chan net.Conn)
	l, err := func() (*line, error) {
		go func() {
			first := <-calls
			hello(first)
			json.NewEncoder(first).Encode(network.Message{CA: "certificate"})
		}()
		l, _, err := newLine(t.Context(), func(ctx context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			select {
			case calls <- theirs:
				return ours, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}, nil)
		return l, err
	}()
	if err != nil {
		t.Fatal(err)
	}
	defer l.hangUp()
	first := l.now()
	done := make(chan error, 1)
	go func() {
		_, err := l.order(t.Context(), network.Order{})
		done <- err
	}()
	first.conn.Close() // whether it was said by then or not
	second := <-calls
	hello(second)
	out := json.NewEncoder(second)
	out.Encode(network.Message{CA: "certificate"})
	if _, err := bufio.NewReader(second).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	out.Encode(network.Message{Done: true, Error: "no"})
	if err := <-done; err == nil || err.Error() != "no" {
		t.Errorf("the order gave %v", err)
	}
}

// A gateway on another machine may say anything: a line without end is not held.
func TestEndlessMessage(t *testing.T) {
	read := &endless{}
	if _, err := readMessage(bufio.NewReader(read)); err == nil || read.n > 2*maxMessage {
		t.Errorf("%d bytes were read: %v", read.n, err)
	}
}

type endless struct{ n int }

func (e *endless) Read(b []byte) (int, error) {
	e.n += len(b)
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}
