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
		for _, m := range append([]network.Message{{CA: "certificate"}}, said...) {
			if out.Encode(m) != nil {
				return
			}
		}
	}()
	return ours, nil
}

// A gateway that hung up, since its events were not taken in time, is called again, and what it dropped is told.
func TestHungUpGatewayIsCalledAgain(t *testing.T) {
	event := func(name string) network.Message { return network.Message{Event: &network.Event{Name: name}} }
	lost := event("third")
	lost.Lost = 7
	s := &Sandbox{inst: &hangingUp{speeches: [][]network.Message{{event("first"), event("second")}, {}, {lost, event("fourth")}}}}
	conn, in, greeting, err := s.greet(t.Context())
	if err != nil || greeting.CA != "certificate" {
		t.Fatalf("%+v %v", greeting, err)
	}
	var heard []NetEvent
	s.listen(t.Context(), conn, in, func(e NetEvent) { heard = append(heard, e) })
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
func TestHearNoMore(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	s := &Sandbox{inst: &hangingUp{}}
	ctx, stop := context.WithCancel(t.Context())
	s.told, s.stopHearing = make(chan struct{}), stop
	go func() {
		defer close(s.told)
		s.listen(ctx, ours, bufio.NewReader(ours), nil)
	}()
	s.hearNoMore()
	if _, err := theirs.Write([]byte("x")); err == nil {
		t.Error("the line is still open")
	}
	s.hearNoMore() // once more does no harm
}
