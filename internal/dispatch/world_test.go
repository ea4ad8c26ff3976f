package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/leaktest"
	"ravi/internal/procid"
	"ravi/internal/run"
	"ravi/internal/store"
)

func TestMain(m *testing.M) {
	// What a runner said once holds for all of a test, and one that did not answer stays out of it, however slow the machine.
	silentAfter, firstPause = time.Hour, time.Hour
	leaktest.Main(m)
}

// world is a record, a bus, and runs that are not real.
type world struct {
	t     *testing.T
	home  string
	st    *store.Store
	nc    *nats.Conn
	agent map[string]store.Agent

	mu     sync.Mutex
	begun  []Try
	free   map[string]chan store.Run // by run: how it is to end
	starts func(Try) error           // asked before a run begins; may be nil
	// gate keeps runs going until end is called for them.
	gate bool
}

func newBus(t *testing.T, dir string) (*server.Server, *nats.Conn) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true, DisableShortFirstPing: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s, nc
}

// newJetStream is one that waits for as long as a loaded machine takes.
func newJetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, home: t.TempDir(), agent: map[string]store.Agent{}, free: map[string]chan store.Run{}}
	var err error
	if w.st, err = store.Open(t.Context(), w.home); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.st.Close() })
	_, w.nc = newBus(t, t.TempDir())
	return w
}

// dispatcher runs one until the function that it returns is called.
func (w *world) dispatcher(change ...func(*Options)) (stop func()) {
	o := Options{Store: w.st, Conn: w.nc, Start: w.start, Runs: 4, Reply: func(_ context.Context, _ store.Work, r store.Run) (store.Message, error) {
		return store.Message{Role: store.RoleAssistant, Author: "ravi", RunID: r.ID, Text: "did: " + r.Task}, nil
	}}
	for _, c := range change {
		c(&o)
	}
	wake, err := store.Wake(w.home)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { wake.Close() })
	o.Woken = wake.C
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := New(o).Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-over })
	w.t.Cleanup(stop)
	return stop
}

// start begins a run that ends by itself, or with gate when it is told to.
func (w *world) start(ctx context.Context, t Try) error {
	w.mu.Lock()
	w.begun = append(w.begun, t)
	starts, gate := w.starts, w.gate
	end := make(chan store.Run, 1)
	w.free[t.RunID] = end
	w.mu.Unlock()
	if starts != nil {
		if err := starts(t); err != nil {
			return err
		}
	}
	m, err := w.st.Message(ctx, t.Work.MessageID)
	if err != nil {
		return err
	}
	self, err := procid.Self()
	if err != nil {
		return err
	}
	dir := filepath.Join(w.home, "runs", t.RunID)
	if err := os.MkdirAll(filepath.Join(dir, run.LogsDir), 0o700); err != nil {
		return err
	}
	if _, err := w.st.InsertRun(ctx, store.Run{ID: t.RunID, Status: store.RunRunning, Owner: self, Task: m.Text, Dir: dir}); err != nil {
		return err
	}
	if !gate {
		end <- store.Run{Status: store.RunSucceeded}
	}
	go func() {
		how := <-end
		_, err := w.st.UpdateRun(context.Background(), t.RunID, func(r *store.Run) error {
			r.Status, r.Reason, r.Owner = how.Status, how.Reason, procid.ID{}
			return nil
		})
		if err != nil {
			w.t.Error(err)
		}
	}()
	return nil
}

// end has a run end, once it is begun: the record has it before.
func (w *world) end(runID string, how store.Run) {
	w.t.Helper()
	w.until("the beginning of the run "+runID, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		select {
		case w.free[runID] <- how: // or nil, on which nothing can be sent
			return true
		default:
			return false
		}
	})
}

func (w *world) tries() []Try {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Try{}, w.begun...)
}

// session makes a session of a client's.
func (w *world) session(client, name string) store.Session {
	w.t.Helper()
	ctx := w.t.Context()
	if _, err := w.st.Client(ctx, client); errors.Is(err, store.ErrNotFound) {
		if _, err := w.st.InsertClient(ctx, store.Client{Name: client}); err != nil {
			w.t.Fatal(err)
		}
	}
	a, err := w.st.InsertAgent(ctx, store.Agent{Name: "agent-" + name, Client: client, Work: json.RawMessage(`{}`)})
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.st.InsertSession(ctx, store.Session{AgentID: a.ID, Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) send(c store.Session, text string, p store.Priority) store.Work {
	w.t.Helper()
	_, k, err := w.st.AppendWork(w.t.Context(), store.Message{SessionID: c.ID, Role: store.RoleUser, Text: text}, store.Work{Priority: p})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// until waits for a condition that the dispatcher brings about.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	until(w.t, what, is)
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(5 * time.Minute) // on a machine that does much else
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			t.Fatalf("%s did not come about", what)
		case <-tick.C:
		}
	}
}

func (w *world) work(id string) store.Work {
	w.t.Helper()
	k, err := w.st.Work(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) over(all ...store.Work) {
	w.t.Helper()
	for _, k := range all {
		w.until("the end of "+k.ID, func() bool { return w.work(k.ID).Status.Final() })
	}
}

func (w *world) said(c store.Session) (texts []string) {
	w.t.Helper()
	all, err := w.st.Messages(w.t.Context(), c.ID, store.MessageFilter{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range all {
		texts = append(texts, m.Text)
	}
	return texts
}

// left is how many messages a stream holds.
func (w *world) left(stream string) uint64 {
	w.t.Helper()
	s, err := newJetStream(w.t, w.nc).Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := s.Info(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return info.State.Msgs
}
