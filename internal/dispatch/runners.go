package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ravi/internal/runner"
	"ravi/internal/store"
	"ravi/sandbox"
)

const (
	// StatusEvery is how often a runner says how it is.
	StatusEvery = 2 * time.Second
	// noteEvery is how often what is unchanged is written down again.
	noteEvery = 10 * time.Second
	// longestStatus and mostRunners bound what is kept of what runners say, and saidApart how often each is heard once it
	// has said saidInARow things: one that floods is not to keep the others from being heard.
	longestStatus = 4 << 10
	mostRunners   = 1000
	saidApart     = 200 * time.Millisecond
	saidInARow    = 10
	// mostOfRunner is how many sandboxes a runner is believed to have room for.
	mostOfRunner = 10_000
	// longestPause is how long a runner that never answers is given nothing at most.
	longestPause = 5 * time.Minute
)

// Tests, which do not know how long they take, make these longer.
var (
	// silentAfter is how long what a runner said holds.
	silentAfter = 10 * time.Second
	// firstPause is how long a runner that did not answer is given nothing.
	firstPause = 5 * time.Second
)

// Said is what a runner says of itself on the bus, as JSON.
type Said struct {
	runner.Status
	Version string `json:"version"`
	Host    string `json:"host"`
	// Leaving says that it ends.
	Leaving bool `json:"leaving,omitempty"`
}

// StatusSubject is where a runner says how it is.
func StatusSubject(name string) string { return "runner." + name + ".status" }

// Runners are those on other machines that lend sandboxes, as they say it. Who may say it for a name is for the bus.
type Runners struct {
	st  *store.Store
	log *slog.Logger
	sub *nats.Subscription

	mu     sync.Mutex
	of     map[string]*heard
	failed map[string]*failing
}

// failing is a runner that says that it is there, and did not answer the last times.
type failing struct {
	times int
	until time.Time // it is given nothing
}

// heard is what a runner said last.
type heard struct {
	said  Said
	raw   []byte
	at    time.Time // by this machine's clock, as durations are measured
	noted time.Time
	// even is when all that it said would have been said, had it been saidApart.
	even time.Time
}

// ListenRunners hears what runners say, until Close.
func ListenRunners(nc *nats.Conn, st *store.Store, log *slog.Logger) (*Runners, error) {
	r := &Runners{st: st, log: log, of: map[string]*heard{}, failed: map[string]*failing{}}
	var err error
	if r.sub, err = nc.Subscribe("runner.*.status", r.hear); err != nil {
		return nil, fmt.Errorf("listening for runners: %w", err)
	}
	return r, nil
}

// Close ends the listening.
func (r *Runners) Close() error { return r.sub.Unsubscribe() }

func (r *Runners) hear(m *nats.Msg) {
	parts := strings.Split(m.Subject, ".")
	if len(parts) != 3 || len(m.Data) > longestStatus {
		return
	}
	name, now := parts[1], time.Now()
	if r.tooOften(name, now) {
		return
	}
	var said Said
	if json.Unmarshal(m.Data, &said) != nil {
		return
	}
	r.mu.Lock()
	h := r.of[name]
	if h == nil {
		if len(r.of) >= mostRunners {
			r.mu.Unlock()
			return
		}
		h = &heard{}
		r.of[name] = h
	}
	note := now.Sub(h.noted) >= noteEvery || !bytes.Equal(h.raw, m.Data) && now.Sub(h.noted) >= StatusEvery/2
	h.said, h.raw, h.at = said, slices.Clone(m.Data), now
	if note {
		h.noted = now
	}
	r.mu.Unlock()
	if note {
		if err := r.st.PutRunner(context.Background(), store.Runner{Name: name, Status: m.Data, SeenAt: store.Now()}); err != nil {
			r.log.Warn("what a runner says of itself is not written down", "runner", name, "error", err.Error())
		}
	}
}

// forget has a runner take nothing until it is heard again.
func (r *Runners) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, name)
}

// tooOften says that a runner says more than it has to. It is asked before anything is read.
func (r *Runners) tooOften(name string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.of[name]
	if h == nil {
		return false
	}
	if h.even.Before(now) {
		h.even = now
	}
	if h.even.Sub(now) >= saidInARow*saidApart {
		return true
	}
	h.even = h.even.Add(saidApart)
	return false
}

// didNotAnswer notes that a runner was given a try and did not answer: it is given nothing for a while, and longer the next
// time.
func (r *Runners) didNotAnswer(name string) {
	if r == nil || name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f, now := r.failed[name], time.Now()
	if f == nil {
		f = &failing{}
		r.failed[name] = f
	}
	if now.Before(f.until) {
		return // it was one of those that were begun together
	}
	f.until = now.Add(min(firstPause<<min(f.times, 10), longestPause))
	f.times++
}

// answered notes that a runner had a run that came to an outcome.
func (r *Runners) answered(name string) {
	if r == nil || name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failed, name)
}

// others says whether there is another runner than that, whether it has room or not.
func (r *Runners) others(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, h := range r.of {
		if other != name && h.takes() {
			return true
		}
	}
	return false
}

// takes says that a runner takes something new, as far as is known.
func (h *heard) takes() bool {
	return time.Since(h.at) <= silentAfter && !h.said.Draining && !h.said.Leaving
}

// places are the runners that can be reached and have room; used is how much of our work each has.
func (r *Runners) places(used map[string]int) (out []*place) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	usual := sandbox.Default()
	fits := func(c runner.Capacity) int {
		// What it says is its word: any number at all.
		n := min(int64(c.Sandboxes), c.MemoryMiB/int64(max(usual.MemoryMiB, 1)), mostOfRunner)
		if usual.CPUs > 0 {
			n = int64(min(float64(n), c.CPUs/usual.CPUs))
		}
		return int(max(n, 0))
	}
	for name, h := range r.of {
		if !h.takes() {
			continue
		}
		if f := r.failed[name]; f != nil && time.Now().Before(f.until) {
			continue
		}
		p := &place{name: name, free: fits(h.said.Free), most: max(fits(h.said.Capacity), 1)}
		// What was begun since it spoke has not taken its room yet.
		p.free = min(p.free, p.most-used[name])
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *place) int { return strings.Compare(a.name, b.name) })
	return out
}
