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
	// StatusEvery is how often a runner says how it is, and silentAfter how long what it said holds.
	StatusEvery = 2 * time.Second
	silentAfter = 10 * time.Second
	// noteEvery is how often what is unchanged is written down again.
	noteEvery = 10 * time.Second
	// longestStatus and mostRunners bound what is kept of what runners say.
	longestStatus = 4 << 10
	mostRunners   = 1000
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

	mu sync.Mutex
	of map[string]*heard
}

// heard is what a runner said last.
type heard struct {
	said  Said
	raw   []byte
	at    time.Time // by this machine's clock, as durations are measured
	noted time.Time
}

// ListenRunners hears what runners say, until Close.
func ListenRunners(nc *nats.Conn, st *store.Store, log *slog.Logger) (*Runners, error) {
	r := &Runners{st: st, log: log, of: map[string]*heard{}}
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
	var said Said
	if len(parts) != 3 || len(m.Data) > longestStatus || json.Unmarshal(m.Data, &said) != nil {
		return
	}
	name, now := parts[1], time.Now()
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

// places are the runners that can be reached and have room; used is how much of our work each has.
func (r *Runners) places(used map[string]int) (out []*place) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	usual := sandbox.Default()
	fits := func(c runner.Capacity) int {
		n := min(c.Sandboxes, int(c.MemoryMiB)/max(usual.MemoryMiB, 1))
		if usual.CPUs > 0 {
			n = min(n, int(c.CPUs/usual.CPUs))
		}
		return n
	}
	for name, h := range r.of {
		if time.Since(h.at) > silentAfter || h.said.Draining || h.said.Leaving {
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
