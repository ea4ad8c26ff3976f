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
	// longestSaid is what one message of a guest may have, in bytes, and mostSaid all of a run, as they are passed on.
	longestSaid = 32 << 10
	mostSaid    = 4 << 20
	// mostWaiting bounds what of a client's guests waits to be heard, in messages and in bytes.
	mostWaiting, mostWaitingBytes = 4 << 10, 16 << 20
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
	sub, err := nc.Subscribe("run.*.up.>", func(m *nats.Msg) { w.hear(client, m) })
	if err == nil {
		err = sub.SetPendingLimits(mostWaiting, mostWaitingBytes)
	}
	if err == nil {
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
	id, now := parts[1], time.Now()
	if !w.may(client, id, len(m.Data), now) {
		return
	}
	said := guestSaid{Topic: parts[3]}
	switch {
	case json.Valid(m.Data):
		said.Data = m.Data
	case utf8.Valid(m.Data):
		said.Text = string(m.Data)
	}
	// What has a meaning in HTML or is no character is six bytes each then, so what is passed on is what counts.
	b, err := w.seal(id, said)
	if err == nil && b != nil {
		// The bus is asked to remember it, and is not waited for: what it cannot take is lost, as all that guests say may be.
		_, err = w.js.PublishAsync("run."+id+".guest", b, jetstream.WithMsgID("guest-"+id+"-"+strconv.FormatInt(now.UnixNano(), 36)))
	}
	if err != nil {
		w.log.Warn("what a guest said is not passed on", "run", id, "error", err.Error())
	}
}

// may says whether a message of so many bytes is looked at. It is asked before anything of it is read.
func (w *Warden) may(client, id string, size int, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.runs[id]
	if s == nil {
		s = &saying{client: client, tokens: saidAtOnce, filled: now}
		w.runs[id] = s
	}
	if s.client != client { // an account has only its own runs' subjects; this is for the day when that is wrong
		return false
	}
	s.tokens = min(saidAtOnce, s.tokens+now.Sub(s.filled).Seconds()*saidPerSecond)
	s.filled = now
	if size > longestSaid || s.tokens < 1 || s.bytes+size > mostSaid || !w.isLive(id, s, now) {
		s.dropped++
		return false
	}
	s.tokens--
	return true
}

// seal is what is passed on, which counts as said; nil: it is not.
func (w *Warden) seal(id string, said guestSaid) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.runs[id]
	if s == nil {
		return nil, nil // it is over
	}
	said.Dropped = s.dropped
	b, err := json.Marshal(said)
	if err != nil {
		return nil, err
	}
	if said.Data == nil && said.Text == "" || len(b) > longestMessage || s.bytes+len(b) > mostSaid {
		s.dropped++
		return nil, nil
	}
	s.bytes += len(b)
	s.dropped = 0
	return b, nil
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
