package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/store"
)

// What guests publish no stream listens to. The warden hears it, in each client's account, and says it again in the control
// account as its own: without headers and reply subject, which would have meanings there, and only as much of one run as
// leaves room for the others.

const (
	// longestSaid is what one message of a guest may have, in bytes, and mostSaid all of a run.
	longestSaid = 32 << 10
	mostSaid    = 4 << 20
	// saidPerSecond and saidAtOnce bound how often a run is heard.
	saidPerSecond, saidAtOnce = 50, 500
	// mostTopic bounds the subject below run.ID.up.
	mostTopic = 100
)

// Warden passes on what guests say.
type Warden struct {
	st  *store.Store
	js  jetstream.JetStream
	log *slog.Logger
	// dial connects to a client's account.
	dial func(ctx context.Context, client string) (*nats.Conn, error)

	mu      sync.Mutex
	clients map[string]*nats.Conn
	runs    map[string]*saying
}

// saying is what a run said.
type saying struct {
	client  string
	live    bool // when it was looked last
	looked  time.Time
	bytes   int
	tokens  float64
	filled  time.Time
	dropped int64
}

// Said by a guest is what stands in run.ID.guest.
type guestSaid struct {
	Topic string `json:"topic"` // what stood behind run.ID.up.
	// Data is the message, if it is JSON; Text if it is only text.
	Data json.RawMessage `json:"data,omitempty"`
	Text string          `json:"text,omitempty"`
	// Dropped is how many messages of the run were not passed on until now.
	Dropped int64 `json:"dropped,omitempty"`
}

// NewWarden makes a warden that passes on to the control account by nc.
func NewWarden(nc *nats.Conn, st *store.Store, dial func(ctx context.Context, client string) (*nats.Conn, error), log *slog.Logger) (*Warden, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return &Warden{st: st, js: js, log: log, dial: dial, clients: map[string]*nats.Conn{}, runs: map[string]*saying{}}, nil
}

// Watch hears the guests of a client from now on.
func (w *Warden) Watch(ctx context.Context, client string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clients[client] != nil {
		return nil
	}
	nc, err := w.dial(ctx, client)
	if err != nil {
		return err
	}
	if _, err := nc.Subscribe("run.*.up.>", func(m *nats.Msg) { w.hear(client, m) }); err == nil {
		err = nc.Flush() // what is said from now on is heard
	}
	if err != nil {
		nc.Close()
		return fmt.Errorf("hearing the guests of client %s: %w", client, err)
	}
	w.clients[client] = nc
	return nil
}

// Close hears no more.
func (w *Warden) Close() {
	w.mu.Lock()
	all := w.clients
	w.clients = map[string]*nats.Conn{}
	w.mu.Unlock()
	for _, nc := range all {
		nc.Close()
	}
}

// Tell says something to the guest of a run: run.ID.down.TOPIC in its client's account.
func (w *Warden) Tell(client, runID, topic string, what any) error {
	w.mu.Lock()
	nc := w.clients[client]
	w.mu.Unlock()
	if nc == nil {
		return nil // none of its runs is on the bus
	}
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return nc.Publish("run."+runID+".down."+topic, b)
}

// Forget drops what is remembered of a run that is over.
func (w *Warden) Forget(runID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.runs, runID)
}

// hear passes on one message.
func (w *Warden) hear(client string, m *nats.Msg) {
	parts := strings.SplitN(m.Subject, ".", 4)
	if len(parts) != 4 || len(parts[3]) > mostTopic {
		return
	}
	id, said := parts[1], guestSaid{Topic: parts[3]}
	switch {
	case len(m.Data) > longestSaid:
	case json.Valid(m.Data):
		said.Data = m.Data
	case utf8.Valid(m.Data):
		said.Text = string(m.Data)
	}
	ok, dropped := w.may(client, id, len(m.Data), said.Data != nil || said.Text != "")
	if !ok {
		return
	}
	said.Dropped = dropped
	b, err := json.Marshal(said)
	if err == nil {
		// The bus is asked to remember it, and is not waited for: what it cannot take is lost, as all that guests say may be.
		_, err = w.js.PublishAsync("run."+id+".guest", b, jetstream.WithMsgID("guest-"+id+"-"+strconv.FormatInt(time.Now().UnixNano(), 36)))
	}
	if err != nil {
		w.log.Warn("what a guest said is not passed on", "run", id, "error", err.Error())
	}
}

// may says whether a message of so many bytes is passed on, and how many of the run were not since the last that was.
func (w *Warden) may(client, id string, size int, fit bool) (ok bool, dropped int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	s := w.runs[id]
	if s == nil {
		s = &saying{client: client, tokens: saidAtOnce, filled: now}
		w.runs[id] = s
	}
	if s.client != client { // an account has only its own runs' subjects; this is for the day when that is wrong
		return false, 0
	}
	s.tokens = min(saidAtOnce, s.tokens+now.Sub(s.filled).Seconds()*saidPerSecond)
	s.filled = now
	if !fit || s.tokens < 1 || s.bytes+size > mostSaid || !w.isLive(id, s, now) {
		s.dropped++
		return false, 0
	}
	s.tokens--
	s.bytes += size
	dropped, s.dropped = s.dropped, 0
	return true, dropped
}

// isLive says whether a run goes on, as it was a second ago at most.
func (w *Warden) isLive(id string, s *saying, now time.Time) bool {
	if now.Sub(s.looked) < time.Second {
		return s.live
	}
	r, err := w.st.Run(context.Background(), id)
	s.looked, s.live = now, err == nil && r.ID == id && !r.Status.Final()
	if errors.Is(err, store.ErrNotFound) {
		delete(w.runs, id)
	}
	return s.live
}
