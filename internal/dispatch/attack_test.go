package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/run"
	"ravi/internal/runner"
	"ravi/internal/store"
)

// listen hears runners of a world.
func (w *world) listen() *Runners {
	w.t.Helper()
	r, err := ListenRunners(w.nc, w.st, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return r
}

// says has a runner say what it has.
func (w *world) says(name string, c runner.Capacity) {
	w.t.Helper()
	b, err := json.Marshal(Said{Status: runner.Status{Capacity: c, Free: c}})
	if err == nil {
		err = w.nc.Publish(StatusSubject(name), b)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

var (
	boasts = runner.Capacity{CPUs: math.MaxFloat64, MemoryMiB: math.MaxInt64, Sandboxes: math.MaxInt}
	honest = runner.Capacity{CPUs: 8, MemoryMiB: 8 << 10, Sandboxes: 2}
)

// A runner that boasts gets the first try of a message, and spoils that one only, however it does so: the next is another's.
func TestARunnerSpoilsNoMoreThanATry(t *testing.T) {
	for _, reason := range []string{run.ReasonNotReached, run.ReasonNoRoom, "create", "runner_gone"} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t)
			r := w.listen()
			w.gate = true
			w.starts = func(try Try) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				how := store.Run{Status: store.RunSucceeded}
				if try.Runner == "evil" {
					how = store.Run{Status: store.RunError, Reason: reason}
				}
				w.free[try.RunID] <- how
				return nil
			}
			w.says("evil", boasts)
			w.says("good", honest)
			w.until("both", func() bool { return len(r.places(nil)) == 2 })
			w.dispatcher(func(o *Options) { o.Runs, o.Runners = -1, r })
			c := w.session("acme", "main")
			for range 3 {
				w.says("good", honest)
				w.says("evil", boasts)
				k := w.send(c, "x", store.Normal)
				w.over(k)
				if k = w.work(k.ID); k.Status != store.WorkDone || k.Runner != "good" || k.Tries > 1 {
					t.Fatalf("the work is %+v", k)
				}
			}
			of := map[string]int{}
			for _, try := range w.tries() {
				of[try.Runner]++
			}
			// One that does not answer is not even asked for a while.
			if of["good"] != 3 || of["evil"] == 0 || reason == run.ReasonNotReached && of["evil"] != 1 {
				t.Errorf("the tries were %v", of)
			}
		})
	}
}

// If there is nobody else, a runner gets another try.
func TestTheOnlyRunnerGetsItAgain(t *testing.T) {
	w := newWorld(t)
	r := w.listen()
	w.gate = true
	w.starts = func(try Try) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		how := store.Run{Status: store.RunSucceeded}
		if len(w.begun) == 1 {
			how = store.Run{Status: store.RunError, Reason: "runner_gone"}
		}
		w.free[try.RunID] <- how
		return nil
	}
	w.says("one", honest)
	w.until("it", func() bool { return len(r.places(nil)) == 1 })
	w.dispatcher(func(o *Options) { o.Runs, o.Runners = -1, r })
	k := w.send(w.session("acme", "main"), "x", store.Normal)
	w.over(k)
	if k = w.work(k.ID); k.Status != store.WorkDone || k.Tries != 1 {
		t.Errorf("the work is %+v", k)
	}
}

// What a runner says of its room is a number that can be reckoned with, whatever it says.
func TestRoomThatCannotBe(t *testing.T) {
	r := &Runners{log: slog.New(slog.DiscardHandler), of: map[string]*heard{}}
	for name, c := range map[string]runner.Capacity{
		"huge": boasts, "less than nothing": {CPUs: -math.MaxFloat64, MemoryMiB: math.MinInt64, Sandboxes: math.MinInt},
		"nothing": {}, "memory only": {MemoryMiB: math.MaxInt64}, "no memory": {CPUs: 1e300, Sandboxes: math.MaxInt},
	} {
		r.of = map[string]*heard{"a": {said: Said{Status: runner.Status{Capacity: c, Free: c}}, at: time.Now()}}
		for _, p := range r.places(nil) {
			if p.free < 0 || p.free > mostOfRunner || p.most < 1 || p.most > mostOfRunner {
				t.Errorf("%s: %d of %d", name, p.free, p.most)
			}
			if name == "huge" && p.free != mostOfRunner {
				t.Errorf("%s: %d", name, p.free)
			}
		}
	}
}

// A runner that floods is heard now and then, and the others are.
func TestARunnerThatFloods(t *testing.T) {
	r := &Runners{st: newWorld(t).st, log: slog.New(slog.DiscardHandler), of: map[string]*heard{}, failed: map[string]*failing{}}
	begun, heard, last := time.Now(), 0, ""
	for n := range 10_000 {
		r.hear(&nats.Msg{Subject: StatusSubject("evil"), Data: fmt.Appendf(nil, `{"host":"%d"}`, n)})
		if now := r.of["evil"].said.Host; now != last {
			heard, last = heard+1, now
		}
	}
	if most := 2 + saidInARow + int(time.Since(begun)/saidApart); heard > most {
		t.Errorf("it was heard %d times, more than %d", heard, most)
	}
	r.hear(&nats.Msg{Subject: StatusSubject("good"), Data: []byte(`{"host":"here"}`)})
	if r.of["good"] == nil {
		t.Error("the other one was not")
	}
	for _, bad := range []string{"", "{", `[]`, `"x"`, `{"capacity":"much"}`, `{"host":"` + strings.Repeat("x", longestStatus) + `"}`} {
		r.hear(&nats.Msg{Subject: StatusSubject("odd"), Data: []byte(bad)})
	}
	if r.of["odd"] != nil {
		t.Error("nonsense was taken")
	}
	for n := range 2 * mostRunners {
		r.hear(&nats.Msg{Subject: StatusSubject(fmt.Sprint("n", n)), Data: []byte(`{}`)})
	}
	if len(r.of) > mostRunners {
		t.Errorf("%d runners are remembered", len(r.of))
	}
}

// warden is a warden of a world, and a run that goes on.
func (w *world) warden() (*Warden, string) {
	w.t.Helper()
	v, err := NewWarden(w.nc, w.st, func(context.Context, string) (*nats.Conn, error) { return w.nc, nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := w.st.InsertRun(w.t.Context(), store.Run{ID: store.NewRunID(), Status: store.RunRunning})
	if err != nil {
		w.t.Fatal(err)
	}
	return v, r.ID
}

// What a guest says may not grow on its way beyond what is allowed of a run: in JSON, < and control characters are six bytes.
func TestWhatAGuestSaysDoesNotGrow(t *testing.T) {
	for name, data := range map[string]string{
		"json": `"` + strings.Repeat("<&>", 5_000) + `"`, "text": strings.Repeat("\x01", 15_000), "plain": strings.Repeat("x", 30_000),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, id := w.warden()
			var bytes, n int
			sub, err := w.nc.SubscribeSync("run.*.guest")
			if err != nil {
				t.Fatal(err)
			}
			for range saidAtOnce {
				v.hear("acme", &nats.Msg{Subject: "run." + id + ".up.x", Data: []byte(data)})
			}
			if err := w.nc.FlushTimeout(time.Minute); err != nil {
				t.Fatal(err)
			}
			for {
				m, err := sub.NextMsg(100 * time.Millisecond)
				if err != nil {
					break
				}
				if n++; len(m.Data) > longestMessage {
					t.Fatalf("a message has %d bytes", len(m.Data))
				}
				bytes += len(m.Data)
			}
			if bytes > mostSaid || n == 0 {
				t.Errorf("%d messages with %d bytes were passed on", n, bytes)
			}
		})
	}
}

// A run that writes without end does not have the stream forget the others'.
func TestAFloodOfOutput(t *testing.T) {
	w := newWorld(t)
	_, id := w.warden()
	path := w.t.TempDir() + "/stdout.log"
	writeSparse(t, path, mostFed+10*piece)
	d := New(Options{Store: w.st, Conn: w.nc, Start: w.start})
	js := w.streams(d)
	for range 2 { // and one who comes after goes on where it stands
		f := tail{js: js, subject: "run." + id + ".log.stdout", path: path}
		over := make(chan struct{})
		close(over)
		if err := f.run(t.Context(), over); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.left(RunsStream); n == 0 || n > mostFed/piece+1 {
		t.Errorf("the stream has %d pieces of %d", n, piece)
	}
}

// writeSparse makes a file of so many bytes.
func writeSparse(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// streams makes those of a dispatcher.
func (w *world) streams(d *Dispatcher) jetstream.JetStream {
	w.t.Helper()
	d.js = newJetStream(w.t, w.nc)
	if err := d.begin(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return d.js
}
