package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"ravi/internal/procid"
	"ravi/internal/run"
	"ravi/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
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

func (w *world) end(runID string, how store.Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free[runID] <- how
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
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			w.t.Fatalf("%s did not come about", what)
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
	js, err := jetstream.New(w.nc)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := s.Info(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return info.State.Msgs
}

func TestAMessageBecomesARunAndAReply(t *testing.T) {
	w := newWorld(t)
	c := w.session("acme", "main")
	before := w.send(c, "said before", store.Normal) // while nobody dispatches
	w.dispatcher()
	k := w.send(c, "mend it", store.Normal)
	w.over(before, k)
	k = w.work(k.ID)
	if k.Status != store.WorkDone || k.ReplyID == "" || k.Tries != 0 {
		t.Errorf("the work is %+v", k)
	}
	if got := strings.Join(w.said(c), "|"); got != "said before|mend it|did: said before|did: mend it" &&
		got != "said before|did: said before|mend it|did: mend it" {
		t.Errorf("said was %s", got)
	}
	w.until("an empty queue", func() bool { return w.left(WorkStream) == 0 })
}

func TestOneOfASessionAtATimeAndOthersBeside(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	w.dispatcher(func(o *Options) { o.Runs = 3 })
	a, b := w.session("acme", "a"), w.session("acme", "b")
	first, second, other := w.send(a, "1", store.Normal), w.send(a, "2", store.Urgent), w.send(b, "3", store.Low)
	w.until("two runs", func() bool { return len(w.tries()) == 2 })
	if got := w.tries(); got[0].Work.ID == second.ID || got[1].Work.ID == second.ID {
		t.Errorf("the second of a session overtook the first: %+v", got)
	}
	w.end(w.work(first.ID).RunID, store.Run{Status: store.RunFailed})
	w.until("the second", func() bool { return w.work(second.ID).Status == store.WorkRunning })
	if k := w.work(first.ID); k.Status != store.WorkDone {
		t.Errorf("a run that failed has an outcome, and its work is %s", k.Status)
	}
	w.end(w.work(other.ID).RunID, store.Run{Status: store.RunCanceled})
	w.end(w.work(second.ID).RunID, store.Run{Status: store.RunSucceeded})
	w.over(second, other)
	if k := w.work(other.ID); k.Status != store.WorkCanceled {
		t.Errorf("the canceled one is %s", k.Status)
	}
}

// Who asks for much waits for who asks for little, and of one client's what is urgent goes first.
func TestClientsTakeTurns(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	var many []store.Work
	for i := range 12 {
		many = append(many, w.send(w.session("big", fmt.Sprint("big", i)), "x", store.Normal))
	}
	urgent := w.send(w.session("big", "urgent"), "x", store.Urgent)
	w.dispatcher(func(o *Options) { o.Runs = 2 })
	w.until("two runs", func() bool { return len(w.tries()) == 2 })
	if w.work(urgent.ID).Status != store.WorkRunning {
		t.Error("what is urgent waits")
	}
	small := w.send(w.session("small", "small"), "x", store.Low)
	w.until("the small client's message on the bus", func() bool { return w.work(small.ID).Published != nil })
	w.end(w.work(urgent.ID).RunID, store.Run{Status: store.RunSucceeded})
	w.until("a third run", func() bool { return len(w.tries()) == 3 })
	if got := w.tries()[2].Work.ID; got != small.ID {
		t.Errorf("the next was %s of the client that has two", got)
	}
	w.mu.Lock()
	w.gate = false
	for _, end := range w.free {
		select {
		case end <- store.Run{Status: store.RunSucceeded}:
		default:
		}
	}
	w.mu.Unlock()
	w.over(append(many, small)...)
}

func TestAClientsBound(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	c := w.session("acme", "a")
	one := 1
	if _, err := w.st.UpdateClient(t.Context(), "acme", func(c *store.Client) error { c.Most = one; return nil }); err != nil {
		t.Fatal(err)
	}
	first := w.send(c, "1", store.Normal)
	second := w.send(w.session("acme", "b"), "2", store.Normal)
	other := w.send(w.session("other", "c"), "3", store.Normal)
	w.dispatcher()
	w.until("two runs", func() bool { return len(w.tries()) == 2 })
	if w.work(other.ID).Status != store.WorkRunning {
		t.Error("the bound of one client holds up another's")
	}
	running := first
	if w.work(first.ID).Status != store.WorkRunning {
		running = second
	}
	w.end(w.work(running.ID).RunID, store.Run{Status: store.RunSucceeded})
	w.until("the next", func() bool { return len(w.tries()) == 3 })
	w.end(w.work(other.ID).RunID, store.Run{Status: store.RunSucceeded})
	w.end(w.tries()[2].RunID, store.Run{Status: store.RunSucceeded})
	w.over(first, second, other)
}

// A message that ends its run's process each time ends visibly.
func TestWhatComesToNothingIsADeadLetter(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	c := w.session("acme", "main")
	k, next := w.send(c, "crash", store.Normal), w.send(c, "next", store.Normal)
	w.dispatcher()
	for i := range 3 {
		w.until(fmt.Sprint("try ", i+1), func() bool { return len(w.tries()) == i+1 })
		try := w.tries()[i]
		if try.Work.ID != k.ID {
			t.Fatalf("try %d is of another message of the session", i+1)
		}
		w.until("the run", func() bool { _, err := w.st.Run(t.Context(), try.RunID); return err == nil })
		w.end(try.RunID, store.Run{Status: store.RunError, Reason: "owner_gone"})
	}
	w.over(k)
	got := w.work(k.ID)
	if got.Status != store.WorkFailed || !strings.Contains(got.Reason, "3 tries came to nothing; the last one: owner_gone") {
		t.Errorf("the work is %+v", got)
	}
	said := w.said(c)
	if len(said) != 3 || !strings.Contains(said[2], "was not worked on") || !strings.Contains(said[2], "ravi work retry "+k.ID) {
		t.Errorf("said was %q", said)
	}
	js, err := jetstream.New(w.nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), DeadStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(t.Context(), "dead.acme."+k.ID)
	if err != nil || !strings.Contains(string(m.Data), "owner_gone") || strings.Contains(string(m.Data), "crash") {
		t.Errorf("the dead letter is %s, %v", m.Data, err)
	}
	// And the session goes on.
	w.until("the next", func() bool { return w.work(next.ID).Status == store.WorkRunning })
	w.end(w.work(next.ID).RunID, store.Run{Status: store.RunSucceeded})
	w.over(next)
}

func TestWhatCanNeverBeDoneIsNotTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.starts = func(Try) error { return fmt.Errorf("%w: the repository is gone", ErrNever) }
	w.dispatcher()
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	w.over(k)
	if got := w.work(k.ID); got.Status != store.WorkFailed || !strings.Contains(got.Reason, "the repository is gone") || len(w.tries()) != 1 {
		t.Errorf("the work is %+v after %d tries", got, len(w.tries()))
	}
}

// A runner that has no room is no try that failed.
func TestNoRoomIsNoTry(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	w.dispatcher()
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	for i := range 5 {
		w.until("a run", func() bool { return len(w.tries()) == i+1 })
		id := w.tries()[i].RunID
		w.until("the run", func() bool { _, err := w.st.Run(t.Context(), id); return err == nil })
		if i < 4 {
			w.end(id, store.Run{Status: store.RunError, Reason: run.ReasonNoRoom})
		} else {
			w.end(id, store.Run{Status: store.RunSucceeded})
		}
	}
	w.over(k)
	if got := w.work(k.ID); got.Status != store.WorkDone || got.Tries != 0 {
		t.Errorf("the work is %+v", got)
	}
}

// Whoever dispatches is killed, and comes back: nothing is done twice, and nothing is forgotten.
func TestRestarts(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	stop := w.dispatcher()
	c := w.session("acme", "main")
	k, next := w.send(c, "1", store.Normal), w.send(c, "2", store.Normal)
	w.until("a run", func() bool { _, err := w.st.Run(t.Context(), w.work(k.ID).RunID); return err == nil })
	stop()
	w.end(w.work(k.ID).RunID, store.Run{Status: store.RunSucceeded}) // meanwhile
	stop = w.dispatcher()
	w.over(k)
	w.until("the next", func() bool { _, err := w.st.Run(t.Context(), w.work(next.ID).RunID); return err == nil })
	stop()
	stop = w.dispatcher()
	w.end(w.work(next.ID).RunID, store.Run{Status: store.RunSucceeded})
	w.over(next)
	stop()
	if n := len(w.tries()); n != 2 {
		t.Errorf("two messages were begun %d times", n)
	}
	if got := len(w.said(c)); got != 4 {
		t.Errorf("said was %q", w.said(c))
	}
}

// A try whose run was never recorded was not begun, and is begun again without being counted.
func TestATryThatWasNotBegun(t *testing.T) {
	w := newWorld(t)
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	if _, err := w.st.BeginWork(t.Context(), k.ID, "run01neverrecorded", ""); err != nil {
		t.Fatal(err)
	}
	w.dispatcher()
	w.over(k)
	if got := w.work(k.ID); got.Status != store.WorkDone || got.Tries != 0 || len(w.tries()) != 1 {
		t.Errorf("the work is %+v after %d tries", got, len(w.tries()))
	}
}

// The bus is another one than before: what waits is put on it again.
func TestALostBus(t *testing.T) {
	w := newWorld(t)
	stop := w.dispatcher(func(o *Options) { o.Runs = -1 })
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	w.until("it on the bus", func() bool { return w.work(k.ID).Published != nil })
	stop()
	_, w.nc = newBus(t, t.TempDir())
	w.dispatcher()
	w.over(k)
}

// What others put on the bus that nobody asked for is dropped, and does not stop what is behind it.
func TestWorkThatNobodyAskedFor(t *testing.T) {
	w := newWorld(t)
	w.dispatcher()
	c := w.session("acme", "main")
	w.over(w.send(c, "first", store.Normal))
	for _, subject := range []string{"work.acme.wrk01nobody", "work.acme.x"} {
		js, _ := jetstream.New(w.nc)
		if _, err := js.Publish(t.Context(), subject, []byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	w.over(w.send(c, "second", store.Normal))
	w.until("an empty queue", func() bool { return w.left(WorkStream) == 0 })
	if n := len(w.tries()); n != 2 {
		t.Errorf("%d runs were begun", n)
	}
}

// Two hundred messages at once: all done, none twice, each session in its order.
func TestABurst(t *testing.T) {
	w := newWorld(t)
	w.dispatcher(func(o *Options) { o.Runs = 8 })
	var sessions []store.Session
	for i := range 20 {
		sessions = append(sessions, w.session([]string{"one", "two", "three"}[i%3], fmt.Sprint("s", i)))
	}
	var all []store.Work
	for i := range 200 {
		all = append(all, w.send(sessions[i%20], fmt.Sprint(i), store.Priority(i%4)))
	}
	w.over(all...)
	seen := map[string]int{}
	for _, try := range w.tries() {
		if seen[try.Work.ID]++; seen[try.Work.ID] > 1 {
			t.Errorf("%s was begun twice", try.Work.ID)
		}
	}
	for _, c := range sessions {
		var done []string
		for _, text := range w.said(c) {
			if text, ok := strings.CutPrefix(text, "did: "); ok {
				done = append(done, text)
			}
		}
		last := -1
		for _, text := range done {
			var n int
			if _, err := fmt.Sscan(text, &n); err != nil || n <= last {
				t.Errorf("session %s was done in the order %v", c.Name, done)
			}
			last = n
		}
		if len(done) != 10 {
			t.Errorf("session %s has %d replies", c.Name, len(done))
		}
	}
}

// What a run writes is on the bus once, also when the dispatcher comes back in the middle.
func TestWhatRunsWriteIsOnTheBus(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	stop := w.dispatcher()
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	w.until("a run", func() bool { _, err := w.st.Run(t.Context(), w.work(k.ID).RunID); return err == nil })
	id := w.work(k.ID).RunID
	dir := filepath.Join(w.home, "runs", id)
	write := func(name, text string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(run.LogsDir, "stdout.log")
	write(run.EventsFile, "{\"event\":\"a\"}\n{\"eve")
	big := strings.Repeat("x", 3*piece)
	write(log, big)
	w.until("an event", func() bool { return w.left(RunsStream) >= 4 })
	stop()
	write(run.EventsFile, "nt\":\"b\"}\n")
	write(log, "end\n")
	w.dispatcher()
	w.end(id, store.Run{Status: store.RunSucceeded})
	w.over(k)
	var events, out []string
	collect := func() bool {
		events, out = nil, nil
		js, err := jetstream.New(w.nc)
		if err != nil {
			t.Fatal(err)
		}
		s, err := js.OrderedConsumer(t.Context(), RunsStream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"run." + id + ".>"}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.FetchNoWait(100)
		if err != nil {
			t.Fatal(err)
		}
		for m := range got.Messages() {
			if strings.HasSuffix(m.Subject(), ".event") {
				events = append(events, string(m.Data()))
			} else {
				out = append(out, string(m.Data()))
			}
		}
		return strings.HasSuffix(strings.Join(out, ""), "end\n")
	}
	w.until("the end of the log", collect)
	if got := strings.Join(events, ""); got != "{\"event\":\"a\"}\n{\"event\":\"b\"}\n" || len(events) != 2 {
		t.Errorf("the events are %q", events)
	}
	if got := strings.Join(out, ""); got != big+"end\n" {
		t.Errorf("the log has %d bytes", len(got))
	}
}
