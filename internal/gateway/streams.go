package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/store"
)

const (
	lookEvery   = 100 * time.Millisecond // at what was written
	pingEvery   = 15 * time.Second
	streamPage  = 500
	mostStreams = 64      // of one caller
	longestLine = 1 << 20 // of a run's events
)

// Streams are what can be listened to: what happens, a run's events, and the audit. Each event has a number, and
// whoever comes back with the last one it heard (Last-Event-ID) gets all that came after it.
type Streams struct {
	Store *store.Store
	Keys  contextkey.Keys
	// Runs is the directory with the folders of runs.
	Runs string

	// The numbers of the last event and the last audit row, as far as looked: a listener who heard them need not read.
	eventsEnd, auditEnd atomic.Int64

	mu        sync.Mutex
	listeners int
	changed   chan struct{} // closed when something was written
	stop      context.CancelFunc
	over      chan struct{}
	open      map[string]int // by caller
}

// feed is where a stream's events come from.
type feed interface {
	// next gives what comes after a position, at most a page; done says that nothing more will come.
	next(ctx context.Context, after int64) (items []item, done bool, err error)
	// news says whether there may be something after a position.
	news(after int64) bool
	// end is the position at which somebody starts who names none.
	end(ctx context.Context) (int64, error)
}

// item is one event of a stream. A silent one only moves the position.
type item struct {
	id     int64
	event  string
	data   any
	silent bool
}

// enter counts a listener in, and starts the looking with the first.
func (s *Streams) enter(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[string]int{}
	}
	if s.open[name] >= mostStreams && name != access.Operator {
		return fmt.Errorf("%s has %d streams open, which is the most", name, mostStreams)
	}
	if s.listeners == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		w, err := s.Store.Watch(ctx)
		if err != nil {
			cancel()
			return err
		}
		s.stop, s.over, s.changed = cancel, make(chan struct{}), make(chan struct{})
		go s.look(ctx, w, s.over)
	}
	s.listeners++
	s.open[name]++
	return nil
}

func (s *Streams) leave(name string) {
	s.mu.Lock()
	s.listeners--
	if s.open[name]--; s.open[name] == 0 {
		delete(s.open, name)
	}
	var over chan struct{}
	if s.listeners == 0 {
		s.stop()
		over = s.over
	}
	s.mu.Unlock()
	if over != nil {
		<-over
	}
}

// look tells the listeners that something was written, by whichever process.
func (s *Streams) look(ctx context.Context, w *store.Watcher, over chan struct{}) {
	defer close(over)
	defer w.Close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := w.Changed(ctx)
		if err == nil && !changed {
			continue
		}
		for end, of := range map[*atomic.Int64]func(context.Context) (int64, error){&s.eventsEnd: s.Store.EventsEnd, &s.auditEnd: s.Store.AuditEnd} {
			n, err := of(ctx)
			if err != nil {
				n = math.MaxInt64 // each looks for itself, and says what is wrong
			}
			end.Store(n)
		}
		s.mu.Lock()
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
	}
}

func (s *Streams) change() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// stream serves /api/v1/_stream/….
func (s *Server) stream(w http.ResponseWriter, r *http.Request, who caller, name string) {
	if s.Streams == nil {
		guard.WriteError(w, http.StatusNotFound, command.CodeNotFound, "there are no streams here", "the daemon's gateway has them")
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		guard.WriteError(w, http.StatusMethodNotAllowed, command.CodeUsage, "streams are read with GET", "")
		return
	}
	from, started, err := lastEvent(r)
	if err != nil {
		s.fail(w, err)
		return
	}
	f, object, err := s.Streams.feed(r.Context(), who, name)
	record := audit.Record{Action: "stream." + strings.SplitN(name, "/", 2)[0], Object: object, Decision: store.Allowed, Caller: who.Name(), RunID: who.RunID()}
	switch {
	case errors.Is(err, access.ErrDenied):
		record.Decision, record.Reason = store.Denied, err.Error()
		if werr := s.Auditor.Denied(r.Context(), record); werr != nil {
			err = command.NoAudit(werr)
		}
		s.fail(w, err)
		return
	case err != nil:
		s.fail(w, err)
		return
	}
	if err := s.Streams.enter(who.Name()); err != nil {
		guard.WriteTooMany(w, time.Second, err.Error())
		return
	}
	defer s.Streams.leave(who.Name())
	if err := s.Auditor.Append(r.Context(), record); err != nil {
		s.fail(w, command.NoAudit(err))
		return
	}
	if !started {
		if from, err = f.end(r.Context()); err != nil {
			s.fail(w, err)
			return
		}
	}
	ctx, err := guard.Lift(w, r)
	if err != nil {
		s.fail(w, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	s.Streams.serve(ctx, w, who, f, from)
}

// lastEvent is the number of the last event that the client heard.
func lastEvent(r *http.Request) (id int64, given bool, err error) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = r.URL.Query().Get("after")
	}
	if text == "" {
		return 0, false, nil
	}
	id, err = strconv.ParseInt(text, 10, 64)
	if err != nil || id < 0 {
		return 0, false, command.Usage("Last-Event-ID is no number of an event", "send the id of the last event that was heard, or none")
	}
	return id, true, nil
}

// serve writes a stream until the client goes, the server shuts down, the key is over, or there is nothing more to come.
func (s *Streams) serve(ctx context.Context, w http.ResponseWriter, who caller, f feed, at int64) {
	out := bufio.NewWriter(w)
	control := http.NewResponseController(w)
	flush := func() bool { return out.Flush() == nil && control.Flush() == nil }
	goodbye := func(reason string) {
		data, err := json.Marshal(map[string]string{"reason": reason}) // %q is no JSON
		if err == nil {
			fmt.Fprintf(out, "event: end\ndata: %s\n\n", data)
		}
		flush()
	}
	out.WriteString(": connected\n\n")
	if !flush() {
		return
	}
	defer func() {
		if errors.Is(context.Cause(ctx), guard.ErrShutdown) {
			goodbye("the daemon stops")
		}
	}()
	ping, recheck := time.NewTicker(pingEvery), time.NewTicker(recheckEvery)
	defer ping.Stop()
	defer recheck.Stop()
	for first := true; ; first = false {
		changed := s.change() // asked for before reading: what is written in between is not missed
		for more := true; more; {
			var items []item
			var done bool
			if first || f.news(at) {
				var err error
				if items, done, err = f.next(ctx, at); err != nil {
					if ctx.Err() == nil {
						goodbye("it could not be read: " + err.Error())
					}
					return
				}
			}
			// A key is looked at after the reading: nothing is shown that happened after its end.
			if err := who.still(ctx, s.Keys); err != nil {
				if ctx.Err() == nil {
					goodbye(err.Error())
				}
				return
			}
			for _, i := range items {
				at = i.id
				if i.silent {
					continue
				}
				data, err := json.Marshal(i.data)
				if err != nil {
					goodbye(err.Error())
					return
				}
				fmt.Fprintf(out, "id: %d\nevent: %s\ndata: %s\n\n", i.id, i.event, data)
			}
			if len(items) > 0 && !flush() {
				return
			}
			if done {
				goodbye("it has ended")
				return
			}
			more = len(items) >= streamPage
		}
	wait:
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				break wait
			case <-recheck.C:
				break wait
			case <-ping.C:
				out.WriteString(": ping\n\n")
				if !flush() {
					return
				}
			}
		}
	}
}

// feed finds what a path names, if the caller may listen to it.
func (s *Streams) feed(ctx context.Context, who caller, name string) (f feed, object string, err error) {
	kind, id, _ := strings.Cut(name, "/")
	switch {
	case kind == "events" && id == "":
		return eventsFeed{s, s.env(who)}, "", nil // it shows to each what it may see
	case kind == "audit" && id == "":
		return auditFeed{s}, "", who.Check(access.Ask{Access: access.Read, Group: "audit", Command: "tail"})
	case kind == "runs" && id != "" && !strings.Contains(id, "/"):
		ask := access.Ask{Access: access.Read, Group: "runs", Command: "logs"}
		if err := who.Somewhere(ask); err != nil {
			return nil, id, err
		}
		run, err := s.Store.Run(ctx, id)
		if ask.Object = id; err == nil {
			ask.Object = run.ID
		}
		if denied := s.env(who).Check(ctx, ask); denied != nil {
			// The refusal says what was typed: a beginning of an id leads nobody to the id.
			ask.Object = id
			return nil, id, &access.Denied{Caller: who.Name(), Missing: ask.Capability().String()}
		}
		return runFeed{s, run.ID, filepath.Join(s.Runs, run.ID), !who.IsOperator()}, run.ID, err
	}
	return nil, "", &command.Error{Code: command.CodeNotFound, Message: "there is no such stream", Hint: "events, audit and runs/ID are", Status: http.StatusNotFound}
}

// env is what a caller is looked at in.
func (s *Streams) env(who caller) *command.Env {
	env := command.In("", s.Store)
	env.Caller = who.Caller
	return env
}

// eventsFeed is what happens in the store.
type eventsFeed struct {
	*Streams
	env *command.Env // of who listens
}

// groupOf is the group of commands that is about an object, by the beginning of its id.
var groupOf = map[string]string{
	"run": "runs", "sbx": "sandbox", "agt": "agents", "ses": "sessions", "tsk": "tasks", "ctx": "context",
}

// visible says whether a caller could look at what an event is about.
func visible(ctx context.Context, env *command.Env, e store.Event) bool {
	if env.Caller.IsOperator() {
		return true
	}
	group := ""
	if len(e.Object) > 3 {
		group = groupOf[e.Object[:3]]
	}
	if strings.HasPrefix(e.Kind, "memory.") {
		group = "memory"
	}
	if strings.HasPrefix(e.Kind, "approval.") {
		group = "approvals"
	}
	return group != "" && env.Check(ctx, access.Ask{Access: access.Read, Group: group, Command: "show", Object: e.Object}) == nil
}

func (f eventsFeed) news(after int64) bool { return f.eventsEnd.Load() > after }

func (f eventsFeed) end(ctx context.Context) (int64, error) { return f.Store.EventsEnd(ctx) }

func (f eventsFeed) next(ctx context.Context, after int64) (items []item, done bool, err error) {
	events, err := f.Store.Events(ctx, after, streamPage)
	for i, e := range events {
		if i == 0 && e.Seq != after+1 && after > 0 {
			// What was forgotten is told, not passed over.
			items = append(items, item{id: e.Seq - 1, event: "lost", data: map[string]int64{"from": after + 1, "to": e.Seq - 1}})
		}
		items = append(items, item{e.Seq, e.Kind, e, !visible(ctx, f.env, e)})
	}
	return items, false, err
}

// auditFeed is the audit.
type auditFeed struct{ *Streams }

func (f auditFeed) news(after int64) bool { return f.auditEnd.Load() > after }

func (f auditFeed) end(ctx context.Context) (int64, error) { return f.Store.AuditEnd(ctx) }

func (f auditFeed) next(ctx context.Context, after int64) (items []item, done bool, err error) {
	rows, err := f.Store.Audit(ctx, audit.Filter{After: after, Limit: streamPage})
	for _, r := range rows {
		items = append(items, item{id: r.Seq, event: r.Action, data: r})
	}
	return items, false, err
}

// runFeed is the file of a run's events. A position is the number of bytes before it.
type runFeed struct {
	*Streams
	id, dir string
	foreign bool // who listens has no business with paths of this machine
}

func (f runFeed) news(int64) bool { return true } // a file tells nobody that it grew

func (f runFeed) end(context.Context) (int64, error) { return 0, nil } // a run is heard from its start

func (f runFeed) next(ctx context.Context, after int64) (items []item, done bool, err error) {
	// Looked at first: what is written before its end is then read below.
	run, err := f.Store.Run(ctx, f.id)
	if err != nil {
		return nil, false, err
	}
	file, err := os.Open(filepath.Join(f.dir, "events.jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, run.Status.Final(), nil
	}
	if err != nil {
		return nil, false, f.withoutPath(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, false, f.withoutPath(err)
	}
	if after > info.Size() {
		return nil, false, errors.New("there is no such event")
	}
	if _, err := file.Seek(after, io.SeekStart); err != nil {
		return nil, false, f.withoutPath(err)
	}
	in := bufio.NewReaderSize(file, 64<<10)
	for len(items) < streamPage {
		line, err := in.ReadBytes('\n')
		if err != nil { // the end, or a line that is still being written
			return items, run.Status.Final(), nil
		}
		after += int64(len(line))
		var fields map[string]any
		if len(line) > longestLine || json.Unmarshal(line, &fields) != nil {
			items = append(items, item{id: after, silent: true})
			continue
		}
		event, _ := fields["event"].(string)
		if f.foreign {
			for _, hidden := range []string{"repo", "dir", "path", "workspace"} {
				delete(fields, hidden)
			}
		}
		items = append(items, item{id: after, event: oneLine(event), data: fields})
	}
	return items, false, nil
}

// withoutPath is what went wrong with the file, and not where it is.
func (f runFeed) withoutPath(err error) error {
	var at *fs.PathError
	if f.foreign && errors.As(err, &at) {
		return fmt.Errorf("the events of %s: %w", f.id, at.Err)
	}
	return err
}

// oneLine is a name of an event that cannot be more than that.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
