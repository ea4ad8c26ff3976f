package dispatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/run"
	"ravi/internal/store"
)

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
	var taken sync.Map
	w.dispatcher(func(o *Options) { o.Runs, o.taken = 2, func(id string) { taken.Store(id, true) } })
	delivered := func(k store.Work) {
		w.until("the delivery of "+k.ID, func() bool { _, ok := taken.Load(k.ID); return ok })
	}
	// Both places are taken until all is there that is to be chosen from.
	all := []store.Work{w.send(w.session("first", "one"), "x", store.Normal), w.send(w.session("first", "two"), "x", store.Normal)}
	w.until("two runs", func() bool { return len(w.tries()) == 2 })
	for i := range 12 {
		all = append(all, w.send(w.session("big", fmt.Sprint("big", i)), "x", store.Normal))
	}
	urgent := w.send(w.session("big", "urgent"), "x", store.Urgent)
	all = append(all, urgent)
	for _, k := range all {
		delivered(k)
	}
	next := func(ended, want store.Work, why string) {
		t.Helper()
		n := len(w.tries())
		w.until("the run", func() bool { _, err := w.st.Run(t.Context(), w.work(ended.ID).RunID); return err == nil })
		w.end(w.work(ended.ID).RunID, store.Run{Status: store.RunSucceeded})
		w.until("another run", func() bool { return len(w.tries()) > n })
		if got := w.tries()[n].Work.ID; got != want.ID {
			t.Errorf("%s is not begun next: %s is", why, got)
		}
	}
	next(all[0], urgent, "what is urgent")
	small := w.send(w.session("small", "small"), "x", store.Low)
	delivered(small)
	next(all[1], small, "the only one of a client that has none")
	w.mu.Lock()
	w.gate = false
	for _, end := range w.free {
		select {
		case end <- store.Run{Status: store.RunSucceeded}:
		default:
		}
	}
	w.mu.Unlock()
	w.over(append(all, small)...)
}

// What the machine has memory for bounds what is begun; one is begun in any case.
func TestRoomIsMemoryToo(t *testing.T) {
	w := newWorld(t)
	w.gate = true
	var left atomic.Int64
	w.dispatcher(func(o *Options) { o.Free = func() int { return int(left.Load()) } })
	one, two := w.send(w.session("acme", "a"), "1", store.Normal), w.send(w.session("acme", "b"), "2", store.Normal)
	w.until("one run", func() bool { return len(w.tries()) == 1 })
	w.until("both on the bus", func() bool { return w.work(one.ID).Published != nil && w.work(two.ID).Published != nil })
	first := w.tries()[0]
	w.until("the run", func() bool { _, err := w.st.Run(t.Context(), first.RunID); return err == nil })
	third := w.send(w.session("other", "c"), "3", store.Urgent) // the dispatcher looks again, and finds no room
	w.until("it on the bus", func() bool { return w.work(third.ID).Published != nil })
	if n := len(w.tries()); n != 1 {
		t.Fatalf("%d runs were begun without memory for them", n)
	}
	left.Store(5)
	w.until("the others", func() bool { return len(w.tries()) == 3 })
	for _, try := range w.tries() {
		w.end(try.RunID, store.Run{Status: store.RunSucceeded})
	}
	w.over(one, two, third)
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
	if got.Status != store.WorkFailed || !strings.Contains(got.Reason, "3 tries came to nothing; the last one: owner_gone (ravi runs show "+got.RunID+")") {
		t.Errorf("the work is %+v", got)
	}
	said := w.said(c)
	if len(said) != 3 || !strings.Contains(said[2], "was not worked on") || !strings.Contains(said[2], "ravi work retry "+k.ID) {
		t.Errorf("said was %q", said)
	}
	s, err := newJetStream(t, w.nc).Stream(t.Context(), DeadStream)
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
		if _, err := newJetStream(t, w.nc).Publish(t.Context(), subject, []byte("{")); err != nil {
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
		s, err := newJetStream(t, w.nc).OrderedConsumer(t.Context(), RunsStream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"run." + id + ".>"}})
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
		// Each file is published by itself: the end of one says nothing of the other.
		return strings.HasSuffix(strings.Join(out, ""), "end\n") && len(events) >= 2
	}
	w.until("the end of both files", collect)
	if got := strings.Join(events, ""); got != "{\"event\":\"a\"}\n{\"event\":\"b\"}\n" || len(events) != 2 {
		t.Errorf("the events are %q", events)
	}
	if got := strings.Join(out, ""); got != big+"end\n" {
		t.Errorf("the log has %d bytes", len(got))
	}
}
