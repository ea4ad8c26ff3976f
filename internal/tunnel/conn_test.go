package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestFifoIsAQueue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var q fifo
		var model []byte
		next := byte(0)
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				p := make([]byte, rapid.IntRange(0, 3*chunkSize).Draw(rt, "n"))
				for i := range p {
					p[i] = next
					next = next*5 + 1
				}
				q.write(p)
				model = append(model, p...)
			},
			"read": func(rt *rapid.T) {
				p := make([]byte, rapid.IntRange(0, 2*chunkSize).Draw(rt, "n"))
				n := q.read(p)
				if n != min(len(p), len(model)) || !bytes.Equal(p[:n], model[:n]) {
					rt.Fatalf("read %d of %d", n, len(model))
				}
				model = model[n:]
			},
			"peek": func(rt *rapid.T) {
				at := rapid.IntRange(0, len(model)+10).Draw(rt, "at")
				p := make([]byte, rapid.IntRange(0, 2*chunkSize).Draw(rt, "n"))
				n := q.peek(at, p)
				if n != max(0, min(len(p), len(model)-at)) || n > 0 && !bytes.Equal(p[:n], model[at:at+n]) {
					rt.Fatalf("peek %d at %d of %d", n, at, len(model))
				}
			},
			"": func(rt *rapid.T) {
				if q.size != len(model) || len(q.chunks) > q.size/chunkSize+2 || q.size == 0 && len(q.chunks) > 0 {
					rt.Fatalf("%d bytes in %d chunks, where %d are due", q.size, len(q.chunks), len(model))
				}
			},
		})
	})
}

// A reader that does not read stops the writer, and neither end holds more than its window.
func TestWindowIsABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, far, stop := conns(t, b, options{window: leastWindow})
		defer stop()
		if err := near.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := near.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n != 2*leastWindow {
			t.Fatalf("%d bytes were taken that nobody reads: %v", n, err)
		}
		if far.buffer.size != leastWindow || near.unsent.size != leastWindow {
			t.Fatalf("%d bytes wait for the reader, %d to be sent", far.buffer.size, near.unsent.size)
		}
		if _, err := io.ReadFull(far, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	})
}

// A window that opens again is told of until the writer knows.
func TestOpenedWindowIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, far, stop := conns(t, b, options{window: leastWindow})
		defer stop()
		data := noise(3*leastWindow, 5)
		errs := make(chan error, 1)
		go send(near, data, errs)
		time.Sleep(time.Minute)
		b.mu.Lock()
		b.hook = func(subject string, p []byte) [][]byte { // what would tell is lost
			if subject == near.local {
				return nil
			}
			return [][]byte{p}
		}
		b.mu.Unlock()
		got := make([]byte, len(data))
		if _, err := io.ReadFull(far, got[:leastWindow]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.mu.Lock()
		b.hook = nil
		b.mu.Unlock()
		begin := time.Now()
		if _, err := io.ReadFull(far, got[leastWindow:]); err != nil || !bytes.Equal(got, data) {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > mostWait+time.Second {
			t.Fatalf("the writer knew after %s", d)
		}
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	})
}

// What was written before Close arrives with its end, also when the end is lost at first.
func TestCloseBringsWhatWasWritten(t *testing.T) {
	for lost := range 3 {
		synctest.Test(t, func(t *testing.T) {
			b := newMemBus()
			near, far, stop := conns(t, b, options{})
			defer stop()
			data := noise(700<<10, 6)
			if _, err := near.Write(data); err != nil {
				t.Fatal(err)
			}
			left := lost
			b.mu.Lock()
			b.hook = func(subject string, p []byte) [][]byte {
				if subject == far.local && left > 0 {
					left--
					return nil
				}
				return [][]byte{p}
			}
			b.mu.Unlock()
			if err := near.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(far)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d of %d bytes, %v", len(got), len(data), err)
			}
			<-near.done
			if err := near.reason(); !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
			if err := far.reason(); !errors.Is(err, ErrPeerClosed) {
				t.Fatal(err)
			}
			if _, err := near.Write(nil); !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
			if err := near.Close(); !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
		})
	}
}

// Close waits for a bus that is away no longer than it says, and for a reader no longer.
func TestCloseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, _, stop := conns(t, b, options{})
		defer stop()
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		b.set(true, false)
		begin := time.Now()
		if err := near.Close(); err != nil {
			t.Fatal(err)
		}
		<-near.done
		if d := time.Since(begin); d > linger {
			t.Fatalf("it took %s", d)
		}
		b.set(false, false)
	})
}

func TestDeadlinesWakeWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, _, stop := conns(t, b, options{window: leastWindow})
		defer stop()
		begin := time.Now()
		if err := near.SetDeadline(begin.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := near.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != time.Second {
			t.Fatalf("it took %s", d)
		}
		// A deadline that is moved wakes who waits already.
		if err := near.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			_ = near.SetReadDeadline(time.Now())
		}()
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != 2*time.Second {
			t.Fatalf("it took %s", d)
		}
	})
}

// The holder of the key who does not keep to the protocol ends the session, and that is all.
func TestFramesThatMakeNoSense(t *testing.T) {
	for name, f := range map[string]frame{
		"acknowledges what was not sent": {ack: 1},
		"has seen what was not sent":     {seen: 1 << 40},
		"beyond the window":              {offset: 1 << 30, data: []byte("x")},
		"an end beyond the window":       {offset: 1 << 30, flags: flagFin},
		"unknown flags":                  {flags: 0x80},
		"an end without a reason":        {flags: flagOver},
		"an offset that wraps":           {offset: 1<<64 - 1, data: []byte("xx")},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newMemBus()
			near, far, stop := conns(t, b, options{})
			defer stop()
			synctest.Wait()
			far.mu.Lock()
			counter := far.out.next
			far.out.next++
			far.mu.Unlock()
			packet := append(f.head(far.out.begin(nil, counter)), f.data...)
			b.inject(near.local, far.out.seal(packet, counter))
			<-near.done
			if err := near.reason(); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%s: %v", name, err)
			}
			<-far.done
			if err := far.reason(); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%s: the other end: %v", name, err)
			}
		})
	}
}

func TestBusThatIsClosedEndsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, far, stop := conns(t, b, options{})
		defer stop()
		synctest.Wait()
		b.set(false, true)
		for _, c := range []*conn{near, far} {
			<-c.done
			if err := c.reason(); !errors.Is(err, ErrBusDown) {
				t.Fatal(err)
			}
		}
	})
}

// How long an answer takes is measured by what is answered: the quiet between two messages is none of it.
func TestQuietIsNoDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, far, stop := conns(t, b, options{})
		defer stop()
		for range 20 {
			time.Sleep(13 * time.Second)
			for _, ends := range [][2]*conn{{near, far}, {far, near}} {
				if _, err := ends[0].Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(ends[1], make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range []*conn{near, far} {
			c.mu.Lock()
			if d := c.wait(); d != leastWait {
				t.Errorf("an answer is waited for %s", d)
			}
			c.mu.Unlock()
		}
	})
}

// stuckBus is a bus whose socket takes nothing while gate is not closed.
type stuckBus struct {
	*memBus
	stuck atomic.Bool
	gate  chan struct{}
}

func (b *stuckBus) wait() {
	if b.stuck.Load() {
		<-b.gate
	}
}

func (b *stuckBus) publish(subject string, packet []byte) error {
	b.wait()
	return b.memBus.publish(subject, packet)
}

func (b *stuckBus) limit() int {
	b.wait()
	return b.memBus.limit()
}

// An end that is stuck in its bus is found dead in its time, by itself too, and nobody who uses it is stuck with it.
func TestStuckBusIsNoLongerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &stuckBus{memBus: newMemBus(), gate: make(chan struct{})}
		near, far, stop := conns(t, b, options{})
		defer stop()
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		begin := time.Now()
		b.stuck.Store(true)
		if _, err := near.Write([]byte("y")); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*conn{far, near} {
			if _, err := io.Copy(io.Discard, c); !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(begin); d > defaultDead {
			t.Fatalf("it took %s", d)
		}
		b.stuck.Store(false)
		close(b.gate)
	})
}
