package sandbox

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"ravi/internal/keeper"
	"ravi/internal/link"
)

// laneOf is a process with a lane, and the process's ends of it.
func laneOf(t *testing.T) (*Process, link.End) {
	t.Helper()
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outW.Close(); inR.Close() })
	return &Process{lane: &lane{in: inW, out: outR, over: make(chan struct{})}}, link.End{R: inR, W: outW}
}

// What the command wrote is passed on though something else holds its output still, whatever that writes is dropped, and
// nothing of it is kept.
func TestLaneThatIsHeld(t *testing.T) {
	p, its := laneOf(t)
	if _, err := its.W.WriteString("its own"); err != nil {
		t.Fatal(err)
	}
	// As when the caller's writer was busy for all the time that there was.
	if err := p.lane.out.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p.carryOut(&out)
	if out.String() != "its own" || !p.lane.left {
		t.Errorf("%q came, left: %v", out.String(), p.lane.left)
	}
	p.endLane()
	if !p.status.OutputLeft || p.err != nil {
		t.Errorf("%+v %v", p.status, p.err)
	}
	if _, err := its.R.Read(make([]byte, 1)); err == nil {
		t.Error("its input goes on")
	}
	// More than the pipe holds: somebody reads it.
	if err := its.W.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := its.W.Write(make([]byte, 4<<20)); err != nil {
		t.Errorf("another is held up: %v", err)
	}
	if out.String() != "its own" {
		t.Errorf("%d bytes came", out.Len())
	}
}

// There is a bound on what is read after the end, however much comes.
func TestLaneThatIsFlooded(t *testing.T) {
	p, its := laneOf(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		block := make([]byte, 64<<10)
		for {
			if _, err := its.W.Write(block); err != nil {
				return
			}
		}
	}()
	if err := p.lane.out.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var out counting
	p.carryOut(&out)
	if p.lane.left && out > laneLeft+32<<10 {
		t.Errorf("%d bytes came", out)
	}
	its.W.Close()
	<-over
}

type counting int

func (c *counting) Write(b []byte) (int, error) {
	*c += counting(len(b))
	return len(b), nil
}

// The end of the output is the end, and a writer that fails late is told.
func TestLaneThatEnds(t *testing.T) {
	p, its := laneOf(t)
	its.W.Close()
	p.carryOut(nil)
	p.endLane()
	if p.lane.left || p.status.OutputLeft || p.err != nil {
		t.Errorf("%+v %v", p.status, p.err)
	}
	p, its = laneOf(t)
	if _, err := its.W.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := p.lane.out.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	p.carryOut(writerFunc(func([]byte) (int, error) { return 0, broken }))
	p.endLane()
	if !errors.Is(p.err, broken) {
		t.Errorf("it is told as %v", p.err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A write waits for room, as long as its caller does, and the next one is not held up by that.
func TestLaneTakesInput(t *testing.T) {
	p, its := laneOf(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- p.lane.write(ctx, make([]byte, 4<<20)) }()
	if _, err := its.R.Read(make([]byte, 1)); err != nil { // it is under way
		t.Fatal(err)
	}
	enough := errors.New("enough")
	cancel(enough)
	if err := <-waits; !errors.Is(err, enough) {
		t.Errorf("one that gave up: %v", err)
	}
	if err := p.lane.write(ctx, []byte("x")); !errors.Is(err, enough) {
		t.Errorf("one that gave up before: %v", err)
	}
	go func() { waits <- p.lane.write(t.Context(), []byte("the next")) }()
	var got []byte
	for !strings.HasSuffix(string(got), "the next") {
		b := make([]byte, 64<<10)
		n, err := its.R.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got[max(len(got)-8, 0):], b[:n]...)
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
	its.R.Close()
	if err := p.lane.write(t.Context(), []byte("x")); !errors.Is(err, errUnread) {
		t.Errorf("to nobody: %v", err)
	}
	p.lane.in.Close()
	if err := p.lane.write(t.Context(), []byte("x")); !errors.Is(err, errUnread) {
		t.Errorf("after the end: %v", err)
	}
}

// Lanes that were not used are not left open.
func TestSpareLanes(t *testing.T) {
	var s spareLanes
	ours, theirs, err := link.NewLane()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	s.add(keeper.Lane{Number: 3, End: ours})
	if l, ok := s.take(); !ok || l.Number != 3 {
		t.Error(l, ok)
	}
	if _, ok := s.take(); ok {
		t.Error("there is another")
	}
	s.add(keeper.Lane{Number: 3, End: ours})
	s.close()
	if _, err := theirs.R.Read(make([]byte, 1)); err == nil {
		t.Error("it is open")
	}
}
