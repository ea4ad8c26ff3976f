// Package dispatch turns messages into runs: what is asked for is put on the bus, taken from there, and worked on, one
// message of a session at a time and in their order, the others side by side, fairly among clients.
//
// The record is the store: work is written down with its message, and so is each step of it. The bus carries it: work is
// published to a queue, and a delivery is held, with heartbeats, until the work is over; whatever was delivered twice, or
// lost with the bus, ends as the record says. One loop brings both together, and begins anew after any crash.
//
// The package may publish to and take from the control account of the bus, and starts runs by a function that it is given.
// It must not make sandboxes, know the command line, or put on the bus anything but ids: what was said, and all that is
// secret, stays in the store.
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/procid"
	"ravi/internal/run"
	"ravi/internal/store"
)

// Options say what a dispatcher works with.
type Options struct {
	Store *store.Store
	// Conn is the daemon's own connection to the control account.
	Conn *nats.Conn
	// Start starts a try at work: a run with that id, whose process it leaves behind, or an error when there is none. What
	// can never be done is ErrNever. It may take its time, and be called for several tries at once.
	Start func(ctx context.Context, t Try) error
	// Reply is what a run that came to an outcome has to say to the session; a message without a text is none.
	Reply func(ctx context.Context, w store.Work, r store.Run) (store.Message, error)
	// Runs is how many runs of this machine's own sandboxes there are at once; -1: none.
	Runs int
	// Free says how many more sandboxes this machine has room for just now; nil: as many as Runs.
	Free func() int
	// Runners are those on other machines; may be nil.
	Runners *Runners
	// Local says that a runner cannot do a piece of work; nil: each can do all.
	Local func(ctx context.Context, w store.Work) bool
	// News is told that something was said in a session that is worked on; may be nil.
	News func(ctx context.Context, running, next store.Work) error
	// Over is told that a run is over, whatever came of it; may be nil.
	Over func(ctx context.Context, runID string) error
	// Woken has a value soon after something may have been written to the Store; nil: it is looked at more often.
	Woken <-chan struct{}
	// Tries is how many tries may come to nothing; 0 is 3.
	Tries int
	Log   *slog.Logger

	// Of tests.
	taken              func(id string) // work was delivered; may be nil
	ackWait, beatEvery time.Duration   // 0: as below
}

// Try is one try at work.
type Try struct {
	Work  store.Work
	RunID string
	// Runner lends the sandbox; empty: this machine.
	Runner string
}

// ErrNever says that work cannot be done, however often it is tried. Its text is for people.
var ErrNever = errors.New("it cannot be done")

// ErrNoRunner says that a try's runner lends nothing any more. The work is no worse for it: it goes to another one.
var ErrNoRunner = errors.New("the runner lends nothing any more")

const (
	defaultTries = 3
	lookEvery    = 50 * time.Millisecond // at what was written, at most
	lookAnyway   = 10 * lookEvery        // where Woken says when
	stepEvery    = time.Second           // whether anything was written or not
	ackWait      = 30 * time.Second
	beatEvery    = 10 * time.Second
	answerWait   = 10 * time.Second // of the bus
	// mostPublished is how much is put on the bus at once.
	mostPublished = 500
	// waitForOther is how long work whose try came to nothing waits for another runner than the one of that.
	waitForOther = 30 * time.Second
	// mostStarting bounds the processes that are being started at once: each takes a processor for a while.
	mostStarting = 8
)

// Dispatcher is a dispatcher. It is used once.
type Dispatcher struct {
	o  Options
	js jetstream.JetStream

	delivered chan jetstream.Msg
	started   chan started

	// What follows is the loop's own.
	held      map[string]jetstream.Msg // by work: delivered, and not over
	consumers map[string]jetstream.ConsumeContext
	starting  map[string]Try // by run
	running   sync.WaitGroup
	feeds     *feeds
	stepped   time.Time // when the last step began
}

// started says how the start of a try ended.
type started struct {
	try Try
	err error
}

// New makes a dispatcher, which does nothing before Run.
func New(o Options) *Dispatcher {
	o.Tries = cmp.Or(o.Tries, defaultTries)
	o.ackWait, o.beatEvery = cmp.Or(o.ackWait, ackWait), cmp.Or(o.beatEvery, beatEvery)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Dispatcher{
		o: o, delivered: make(chan jetstream.Msg, 256), started: make(chan started),
		held: map[string]jetstream.Msg{}, consumers: map[string]jetstream.ConsumeContext{}, starting: map[string]Try{},
	}
}

// Run dispatches until ctx ends. Runs that were started go on. What cannot be done now is told, and tried again.
func (d *Dispatcher) Run(ctx context.Context) error {
	var err error
	// The bus may start its streams anew, and answers nothing of what was under way then.
	if d.js, err = jetstream.New(d.o.Conn, jetstream.WithPublishAsyncTimeout(answerWait)); err != nil {
		return err
	}
	w, err := d.o.Store.Watch(ctx)
	if err != nil {
		return err
	}
	defer w.Close()
	defer d.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer d.stopConsuming()
	d.feeds = newFeeds(ctx, d.js, d.o.Log)
	defer d.feeds.end()
	every := lookEvery
	if d.o.Woken != nil {
		every = lookAnyway
	}
	look, step, beat := time.NewTicker(every), time.NewTicker(stepEvery), time.NewTicker(d.o.beatEvery)
	defer look.Stop()
	defer step.Stop()
	defer beat.Stop()
	told := ""
	for ready := false; ; {
		d.stepped = time.Now()
		err = nil
		if !ready {
			err = d.begin(ctx)
		}
		err = errors.Join(err, d.step(ctx)) // what needs no bus is done without one
		ready = err == nil                  // what failed may be that the bus has lost something
		if ctx.Err() != nil {
			return nil
		}
		// The same trouble is told once.
		if err != nil && err.Error() != told {
			told = err.Error()
			d.o.Log.Error("not all work could be dispatched, and it is tried again", "error", told)
		} else if err == nil {
			told = ""
		}
		if !d.await(ctx, w, look, step, beat) {
			return nil
		}
	}
}

// await waits until there is something to do; it says false when there is nothing to do any more.
func (d *Dispatcher) await(ctx context.Context, w *store.Watcher, look, step, beat *time.Ticker) bool {
	// What is written when nothing was for a while is looked at at once; the rest together with what follows it.
	var soon <-chan time.Time
	changed := func() bool {
		// What cannot be asked now is looked at anyway, every second.
		changed, err := w.Changed(ctx)
		return err == nil && changed
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-step.C:
			return true
		case <-beat.C:
			d.beat()
		case m := <-d.delivered:
			d.take(ctx, m)
			return true
		case s := <-d.started:
			delete(d.starting, s.try.RunID)
			d.began(ctx, s)
			return true
		case <-d.o.Woken:
			soon = time.After(max(0, lookEvery-time.Since(d.stepped)))
		case <-soon:
			if soon = nil; changed() {
				return true
			}
		case <-look.C:
			if changed() {
				return true
			}
		}
	}
}

// step brings the bus and the runs to the record.
func (d *Dispatcher) step(ctx context.Context) error {
	for range len(d.delivered) {
		d.take(ctx, <-d.delivered)
	}
	err := d.publish(ctx)
	err = errors.Join(err, d.consume(ctx))
	err = errors.Join(err, d.conclude(ctx))
	return errors.Join(err, d.schedule(ctx))
}

// conclude looks what became of the runs of work that is worked on.
func (d *Dispatcher) conclude(ctx context.Context) error {
	all, err := d.o.Store.ListWork(ctx, store.WorkFilter{Live: true, Status: store.WorkRunning})
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range all {
		if _, ok := d.starting[w.RunID]; ok {
			continue
		}
		if err := d.concludeOne(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("work %s: %w", w.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (d *Dispatcher) concludeOne(ctx context.Context, w store.Work) error {
	r, err := d.o.Store.Run(ctx, w.RunID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		// Whoever began the try did not live to record its run, so nothing of it was done.
		return d.retry(ctx, w, "it was not begun", false)
	case err != nil:
		return err
	case !r.Status.Final() || procid.Alive(r.Owner):
		d.feeds.follow(r)
		return nil
	case r.Status == store.RunError && r.Reason == run.ReasonNoRoom:
		return d.retry(ctx, w, r.Reason, false)
	case r.Status == store.RunError:
		if r.Reason == run.ReasonNotReached {
			d.o.Runners.didNotAnswer(w.Runner)
		}
		return d.retry(ctx, w, r.Reason, true)
	}
	d.o.Runners.answered(w.Runner)
	reply, err := d.o.Reply(ctx, w, r)
	if err != nil {
		return err
	}
	status, reason := store.WorkDone, ""
	if r.Status == store.RunCanceled {
		status, reason = store.WorkCanceled, r.Reason
	}
	d.feeds.follow(r)
	if err := d.over(ctx, r.ID); err != nil {
		return err
	}
	return d.end(ctx, w, status, reason, reply)
}

// retry has work wait for another try, or ends it when there were enough.
func (d *Dispatcher) retry(ctx context.Context, w store.Work, reason string, counted bool) error {
	if err := d.over(ctx, w.RunID); err != nil {
		return err
	}
	if counted && w.Tries+1 >= d.o.Tries {
		// What else there is to say may name what is of the host, and is not for everybody who reads the session.
		return d.fail(ctx, w, fmt.Sprintf("%d tries came to nothing; the last one: %s (ravi runs show %s)", w.Tries+1, cmp.Or(reason, "unknown"), w.RunID))
	}
	wait := time.Duration(0)
	if counted {
		wait = min(time.Second<<(2*w.Tries), 30*time.Second) // 1 s, 4 s, 16 s
	} else if reason == run.ReasonNoRoom {
		wait = time.Second
	}
	_, err := d.o.Store.RetryWork(ctx, w.ID, w.RunID, reason, store.Now().Add(wait), counted)
	if errors.Is(err, store.ErrFinal) {
		return nil
	}
	return err
}

// fail ends work that came to nothing: visibly, in its session and among the dead letters.
func (d *Dispatcher) fail(ctx context.Context, w store.Work, reason string) error {
	if err := d.bury(ctx, w, reason); err != nil {
		return err
	}
	return d.end(ctx, w, store.WorkFailed, reason, store.Message{
		Role: store.RoleSystem, Author: "ravi", RunID: w.RunID, Text: "This message was not worked on: " + reason + ". Try again: ravi work retry " + w.ID,
	})
}

// over ends what a run had of the bus.
func (d *Dispatcher) over(ctx context.Context, runID string) error {
	d.feeds.finish(runID)
	if d.o.Over == nil {
		return nil
	}
	return d.o.Over(ctx, runID)
}

func (d *Dispatcher) end(ctx context.Context, w store.Work, status store.WorkStatus, reason string, reply store.Message) error {
	_, err := d.o.Store.EndWork(ctx, w.ID, status, reason, reply)
	if err != nil && !errors.Is(err, store.ErrFinal) {
		return err
	}
	d.letGo(w.ID)
	return nil
}

// schedule begins tries at what waits, as long as there is room.
func (d *Dispatcher) schedule(ctx context.Context) error {
	busy, err := d.o.Store.ListWork(ctx, store.WorkFilter{Live: true, Status: store.WorkRunning})
	if err != nil {
		return err
	}
	places := d.places(busy)
	if len(places) == 0 {
		return nil
	}
	all, err := d.o.Store.ListClients(ctx, true)
	if err != nil {
		return err
	}
	var queues []*queue
	for _, c := range all {
		q := &queue{client: c}
		for _, w := range busy {
			if w.Client == c.Name {
				q.running++
			}
		}
		if c.ArchivedAt == nil {
			queues = append(queues, q)
		}
	}
	for len(places) > 0 && len(d.starting) < mostStarting {
		// Who has the least gets the next place; of equals, who has waited longest.
		slices.SortStableFunc(queues, func(a, b *queue) int {
			return cmp.Or(cmp.Compare(a.running, b.running), a.oldest(ctx, d).Compare(b.oldest(ctx, d)))
		})
		i := slices.IndexFunc(queues, func(q *queue) bool {
			return (q.client.Most == 0 || q.running < q.client.Most) && q.first(ctx, d) != nil
		})
		if i < 0 {
			break
		}
		q := queues[i]
		w := *q.first(ctx, d)
		q.waiting = q.waiting[1:]
		p := d.placeFor(ctx, w, places)
		if p == nil {
			continue // it waits for this machine, or for another, and keeps nothing else waiting
		}
		if err := d.beginTry(ctx, w, p.name); err != nil {
			return err
		}
		q.running++
		if p.free--; p.free == 0 {
			places = slices.DeleteFunc(places, func(o *place) bool { return o == p })
		}
	}
	for _, q := range queues {
		err = errors.Join(err, q.err)
	}
	return err
}

// queue is what of a client waits.
type queue struct {
	client  store.Client
	running int
	loaded  bool
	waiting []store.Work
	err     error
}

// first is what would be begun next: what the bus has delivered.
func (q *queue) first(ctx context.Context, d *Dispatcher) *store.Work {
	if !q.loaded {
		q.loaded = true
		var found []store.Work
		found, q.err = d.o.Store.WaitingWork(ctx, q.client.Name, store.Now(), 4*mostStarting)
		for _, w := range found {
			if _, ok := d.held[w.ID]; ok {
				q.waiting = append(q.waiting, w)
			}
		}
	}
	if len(q.waiting) == 0 {
		return nil
	}
	return &q.waiting[0]
}

func (q *queue) oldest(ctx context.Context, d *Dispatcher) time.Time {
	if w := q.first(ctx, d); w != nil {
		return w.CreatedAt
	}
	return time.Now().Add(time.Hour)
}

// place is where sandboxes can be made.
type place struct {
	name       string // of the runner; empty: here
	free, most int
}

// places are those that have room.
func (d *Dispatcher) places(busy []store.Work) (out []*place) {
	used := map[string]int{}
	for _, w := range busy {
		used[w.Runner]++
	}
	if d.o.Runs > 0 {
		p := &place{free: d.o.Runs - used[""], most: d.o.Runs}
		if d.o.Free != nil {
			// Those that are being started have not taken their room yet.
			p.free = min(p.free, d.o.Free()-len(d.starting))
			if used[""] == 0 {
				p.free = max(p.free, 1) // a machine that has too little for any does one after the other
			}
		}
		out = append(out, p)
	}
	out = append(out, d.o.Runners.places(used)...)
	return slices.DeleteFunc(out, func(p *place) bool { return p.free <= 0 })
}

// choose is the place with the most room for its size; of equals the first, which is this machine.
func choose(places []*place) *place {
	return slices.MaxFunc(places, func(a, b *place) int { return cmp.Compare(a.free*b.most, b.free*a.most) })
}

// placeFor is where a try at work is begun; nil: nowhere yet. The runner of the last try gets it again only if there is none
// other, or none has had room for a while: one that always says that it has room, and then spoils the try or finds that it
// has none, is not to spoil all of them.
func (d *Dispatcher) placeFor(ctx context.Context, w store.Work, places []*place) *place {
	p := choose(places)
	if p.name != "" && d.o.Local != nil && d.o.Local(ctx, w) {
		return local(places)
	}
	if p.name == "" || p.name != w.Runner {
		return p
	}
	if rest := slices.DeleteFunc(slices.Clone(places), func(o *place) bool { return o == p }); len(rest) > 0 {
		return choose(rest)
	}
	waited := w.NotBefore == nil || time.Since(*w.NotBefore) > waitForOther
	if w.Reason == run.ReasonNoRoom || waited || d.o.Runs <= 0 && !d.o.Runners.others(p.name) {
		return p
	}
	return nil
}

// local is this machine, if it has room.
func local(places []*place) *place {
	if i := slices.IndexFunc(places, func(p *place) bool { return p.name == "" }); i >= 0 {
		return places[i]
	}
	return nil
}

// beginTry records a try and has it started. Its run's id is in the record before there is anything of the run.
func (d *Dispatcher) beginTry(ctx context.Context, w store.Work, runner string) error {
	t := Try{RunID: store.NewRunID(), Runner: runner}
	var err error
	t.Work, err = d.o.Store.BeginWork(ctx, w.ID, t.RunID, runner)
	if errors.Is(err, store.ErrBusy) || errors.Is(err, store.ErrFinal) {
		return nil // somebody canceled it meanwhile
	}
	if err != nil {
		return err
	}
	d.starting[t.RunID] = t
	d.running.Go(func() {
		s := started{try: t, err: d.o.Start(ctx, t)}
		select {
		case d.started <- s:
		case <-ctx.Done(): // whoever comes next finds the run, or finds none
		}
	})
	return nil
}

// began notes that a try could not be begun.
func (d *Dispatcher) began(ctx context.Context, s started) {
	if s.err == nil || ctx.Err() != nil {
		return
	}
	var err error
	switch {
	case errors.Is(s.err, ErrNever):
		err = d.fail(ctx, s.try.Work, s.err.Error())
	case errors.Is(s.err, ErrNoRunner):
		d.o.Runners.forget(s.try.Runner)
		err = d.retry(ctx, s.try.Work, s.err.Error(), false)
	default:
		err = d.retry(ctx, s.try.Work, s.err.Error(), true)
	}
	if err != nil {
		d.o.Log.Error("a try that could not be begun is looked at again", "work", s.try.Work.ID, "error", err.Error())
	}
}
