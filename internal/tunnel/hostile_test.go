package tunnel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// hostile is a bus that does with packets what it likes. Rates are in percent.
type hostile struct {
	drop, double, delay, change, cutOff, replay, cross, forge int
	rand                                                      *rand.Rand
	old                                                       [][]byte // packets of before, of this session and others
	held                                                      []heldBack
	last                                                      map[string]uint64
	reused                                                    error
}

type heldBack struct {
	subject string
	packet  []byte
	after   int
}

func (h *hostile) chance(percent int) bool { return h.rand.IntN(100) < percent }

func (h *hostile) spoil(subject string, p []byte) [][]byte {
	h.counters(subject, p)
	var out [][]byte
	for i := 0; i < len(h.held); i++ {
		if h.held[i].after--; h.held[i].after <= 0 && h.held[i].subject == subject {
			out = append(out, h.held[i].packet)
			h.held = append(h.held[:i], h.held[i+1:]...)
			i--
		}
	}
	if len(h.old) < 200 {
		h.old = append(h.old, bytes.Clone(p))
	} else {
		h.old[h.rand.IntN(len(h.old))] = bytes.Clone(p)
	}
	switch {
	case h.chance(h.drop):
	case h.chance(h.delay):
		h.held = append(h.held, heldBack{subject, p, 1 + h.rand.IntN(8)})
	case h.chance(h.change):
		q := bytes.Clone(p)
		q[h.rand.IntN(len(q))] ^= byte(1 + h.rand.IntN(255))
		out = append(out, q)
	case h.chance(h.cutOff):
		out = append(out, p[:h.rand.IntN(len(p))])
	default:
		out = append(out, p)
	}
	if h.chance(h.double) {
		out = append(out, p)
	}
	if h.chance(h.replay) { // of any session, and of either direction
		out = append(out, bytes.Clone(h.old[h.rand.IntN(len(h.old))]))
	}
	if h.chance(h.cross) { // an old packet with the number of a new one
		q := bytes.Clone(h.old[h.rand.IntN(len(h.old))])
		copy(q[:min(outerSize, len(q))], p)
		out = append(out, q)
	}
	if h.chance(h.forge) {
		q := make([]byte, h.rand.IntN(200))
		for i := range q {
			q[i] = byte(h.rand.Uint32())
		}
		if len(q) > outerSize {
			copy(q, p[:outerSize])
			binary.BigEndian.PutUint64(q[1+idSize:], h.rand.Uint64())
		}
		out = append(out, q)
	}
	h.rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// counters holds the sender to using each nonce once.
func (h *hostile) counters(subject string, p []byte) {
	id, counter, ok := frameID(p)
	if !ok {
		return
	}
	key := fmt.Sprint(subject, id)
	if last, seen := h.last[key]; seen && counter <= last {
		h.reused = fmt.Errorf("counter %d came behind %d", counter, last)
	}
	h.last[key] = counter
}

func newHostile(rates func() int, seed uint64) *hostile {
	return &hostile{drop: rates(), double: rates(), delay: rates(), change: rates(), cutOff: rates(), replay: rates(), cross: rates(),
		forge: rates(), rand: rand.New(rand.NewPCG(seed, 1)), last: map[string]uint64{}}
}

// Whatever a bus does, what is read is what was written; and as long as some packets pass, all of it arrives.
func TestHostileBusChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		h := newHostile(func() int { return rapid.IntRange(0, 25).Draw(rt, "rate") }, seed)
		window := rapid.SampledFrom([]int{leastWindow, 3 * leastWindow, defaultWindow}).Draw(rt, "window")
		sizes := [2]int{rapid.IntRange(0, 1<<20).Draw(rt, "down"), rapid.IntRange(0, 1<<20).Draw(rt, "up")}
		limit := rapid.SampledFrom([]int{minPacket, 8 << 10, maxPacket}).Draw(rt, "limit")
		cuts := rapid.IntRange(0, 3).Draw(rt, "cuts")
		var err error
		synctest.Test(t, func(t *testing.T) { err = hostileRun(t, h, window, sizes, limit, cuts) })
		if err == nil {
			err = h.reused
		}
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func hostileRun(t *testing.T, h *hostile, window int, sizes [2]int, limit, cuts int) error {
	own := rand.New(rand.NewPCG(uint64(sizes[0]), uint64(sizes[1])))
	b := newMemBus()
	b.size = limit
	// A first session, whose packets are played again in the second.
	near, far, stop := conns(t, b, options{window: window})
	b.mu.Lock()
	b.hook = func(_ string, p []byte) [][]byte { h.old = append(h.old, bytes.Clone(p)); return [][]byte{p} }
	b.mu.Unlock()
	if _, err := near.Write(noise(5000, own.Uint64())); err != nil {
		return err
	}
	if _, err := io.ReadFull(far, make([]byte, 5000)); err != nil {
		return err
	}
	stop()
	b.mu.Lock()
	b.hook = h.spoil
	b.mu.Unlock()
	near, far, stop = conns(t, b, options{window: window, dead: time.Hour})
	defer stop()
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for i, ends := range [][2]*conn{{near, far}, {far, near}} {
		data := noise(sizes[i], own.Uint64())
		pieces := rand.New(rand.NewPCG(uint64(sizes[i]), 2))
		wg.Go(func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+pieces.IntN(100<<10))
				if _, err := ends[0].Write(rest[:n]); err != nil {
					errs <- fmt.Errorf("write: %w", err)
					return
				}
				rest = rest[n:]
			}
		})
		wg.Go(func() {
			got := make([]byte, len(data))
			n, err := io.ReadFull(ends[1], got)
			switch {
			case !bytes.Equal(got[:n], data[:n]):
				errs <- errors.New("other bytes were read than were written")
			case err != nil && len(data) > 0:
				errs <- fmt.Errorf("read: %w", err)
			}
		})
	}
	for range cuts {
		time.Sleep(time.Duration(own.IntN(3000)) * time.Millisecond)
		b.set(true, false)
		time.Sleep(time.Duration(own.IntN(30)) * time.Second)
		b.set(false, false)
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// A bus that lets nothing pass that is whole can stop a session, and no more.
func TestBusThatChangesAllStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		b.hook = func(_ string, p []byte) [][]byte {
			p[len(p)-1] ^= 1
			return [][]byte{p}
		}
		near, far, stop := conns(t, b, options{})
		defer stop()
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for _, c := range []*conn{near, far} {
			<-c.done
			if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, ErrSilent) {
				t.Fatal(n, err)
			}
		}
		if d := time.Since(begin); d != defaultDead {
			t.Fatalf("it took %s", d)
		}
	})
}

// A bus that keeps packets back, and lets one go whenever it would be silent for too long, keeps nobody alive: what it
// lets go answers nothing that was sent of late.
func TestPacketsThatWereKeptBackProveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		var kept [][]byte
		near, far, stop := conns(t, b, options{})
		defer stop()
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.hook = func(subject string, p []byte) [][]byte {
			if subject == near.local {
				kept = append(kept, p)
			}
			return nil
		}
		b.mu.Unlock()
		begin := time.Now()
		for dead := false; !dead; {
			select {
			case <-near.done:
				dead = true
			case <-time.After(defaultDead / 4):
				b.mu.Lock()
				if len(kept) > 0 {
					b.deliver(near.local, kept[0])
					kept = kept[1:]
				}
				b.mu.Unlock()
			}
		}
		if d := time.Since(begin); d > defaultDead {
			t.Fatalf("the end that hears only of the past lived for %s", d)
		}
		if err := near.reason(); !errors.Is(err, ErrSilent) {
			t.Fatal(err)
		}
	})
}

// Nobody is found dead while the bus is idle but there, nor by a cut that is shorter than Dead; a longer one ends both.
func TestCutsAndDead(t *testing.T) {
	for _, c := range []struct {
		cut   time.Duration
		lives bool
	}{{5 * time.Second, true}, {40 * time.Second, true}, {53 * time.Second, true}, {61 * time.Second, false}, {120 * time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			b := newMemBus()
			near, far, stop := conns(t, b, options{})
			defer stop()
			time.Sleep(10 * time.Minute)
			begin := time.Now()
			b.set(true, false)
			time.Sleep(c.cut)
			b.set(false, false)
			synctest.Wait()
			for _, e := range []*conn{near, far} {
				if err := e.reason(); (err == nil) != c.lives || err != nil && !errors.Is(err, ErrSilent) {
					t.Fatalf("after a cut of %s: %v", c.cut, err)
				}
			}
			if !c.lives {
				return
			}
			if _, err := near.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > c.cut+time.Second {
				t.Fatalf("after a cut of %s it took %s until bytes passed", c.cut, d)
			}
			time.Sleep(10 * time.Minute)
			if near.reason() != nil || far.reason() != nil {
				t.Fatal(near.reason(), far.reason())
			}
		})
	}
}

// What was under way when the bus went is sent again when it is back, and not when a clock says so.
func TestSentAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		near, far, stop := conns(t, b, options{})
		defer stop()
		time.Sleep(time.Second)
		b.mu.Lock()
		b.hook = func(string, []byte) [][]byte { return nil }
		b.mu.Unlock()
		data := noise(500<<10, 4)
		if _, err := near.Write(data); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.mu.Lock()
		b.hook = nil
		b.mu.Unlock()
		begin := time.Now()
		b.set(false, false)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, data) {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 0 {
			t.Fatalf("it took %s", d)
		}
	})
}

// The idle say little: two questions and their answers in a twelfth of Dead.
func TestIdleIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemBus()
		_, _, stop := conns(t, b, options{})
		defer stop()
		time.Sleep(time.Minute)
		n := 0
		b.mu.Lock()
		b.hook = func(_ string, p []byte) [][]byte { n++; return [][]byte{p} }
		b.mu.Unlock()
		time.Sleep(time.Hour)
		b.mu.Lock()
		defer b.mu.Unlock()
		if n < 2*720 || n > 4*720+4 {
			t.Fatalf("%d packets in an hour", n)
		}
	})
}
