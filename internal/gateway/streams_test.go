package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/store"
)

// listener is an open stream.
type listener struct {
	t   *testing.T
	res *http.Response
	in  *bufio.Reader
}

// frame is an event as it came.
type frame struct{ id, event, data string }

func (w *world) listen(name, token, after string) *listener {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://localhost"+Root+"_stream/"+name, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	res, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	l := &listener{w.t, res, bufio.NewReader(res.Body)}
	w.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode == http.StatusOK {
		if line, err := l.in.ReadString('\n'); err != nil || line != ": connected\n" {
			w.t.Fatalf("the stream begins with %q, %v", line, err)
		}
	}
	return l
}

// next waits for the next event.
func (l *listener) next() frame {
	l.t.Helper()
	var f frame
	for {
		line, err := l.in.ReadString('\n')
		if err != nil {
			l.t.Fatalf("the stream ended: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && f.event != "":
			return f
		case name == "id":
			f.id = value
		case name == "event":
			f.event = value
		case name == "data":
			f.data = value
		}
	}
}

func (w *world) task(title string) store.Task {
	w.t.Helper()
	task, err := w.store.InsertTask(w.t.Context(), store.Task{Title: title})
	if err != nil {
		w.t.Fatal(err)
	}
	return task
}

func TestEventsAreReplayed(t *testing.T) {
	w := newWorld(t)
	first := w.task("one")
	l := w.listen("events", "", "0")
	begun := l.next()
	for begun.event != store.EventTaskCreated {
		begun = l.next()
	}
	if !strings.Contains(begun.data, first.ID) {
		t.Errorf("got %+v", begun)
	}
	second := w.task("two")
	if got := l.next(); got.event != store.EventTaskCreated || !strings.Contains(got.data, second.ID) {
		t.Errorf("live: %+v", got)
	}
	l.res.Body.Close()
	third := w.task("three")
	again := w.listen("events", "", begun.id)
	for _, want := range []string{second.ID, third.ID} {
		if got := again.next(); !strings.Contains(got.data, want) {
			t.Errorf("replayed: %+v, want %s", got, want)
		}
	}
	// Without a number only what comes is heard.
	fresh := w.listen("events", "", "")
	fourth := w.task("four")
	if got := fresh.next(); !strings.Contains(got.data, fourth.ID) {
		t.Errorf("fresh: %+v", got)
	}
	// What was forgotten is told.
	if err := w.store.TrimEvents(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := w.listen("events", "", begun.id).next(); got.event != "lost" {
		t.Errorf("after a gap: %+v", got)
	}
}

func TestEventsShowWhatMayBeSeen(t *testing.T) {
	w := newWorld(t)
	mine, other := w.task("mine"), w.task("other")
	token, _ := w.key(contextkey.Request{}, "read:tasks@"+mine.ID)
	l := w.listen("events", token, "0")
	if got := l.next(); !strings.Contains(got.data, mine.ID) {
		t.Errorf("got %+v", got)
	}
	for _, id := range []string{other.ID, mine.ID} {
		if _, err := w.store.AddComment(t.Context(), store.TaskComment{TaskID: id, Kind: store.CommentPlain, Text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.next(); got.event != store.EventTaskCommented || !strings.Contains(got.data, mine.ID) {
		t.Errorf("got %+v", got)
	}
}

func TestStreamEndsWithItsKey(t *testing.T) {
	w := newWorld(t)
	task := w.task("x")
	parentToken, parent := w.key(contextkey.Request{}, "read:*")
	by, err := w.keys.Resolve(t.Context(), parentToken, contextkey.Wire{})
	if err != nil {
		t.Fatal(err)
	}
	caps, err := access.ParseCapabilities([]string{"read:tasks@" + task.ID})
	if err != nil {
		t.Fatal(err)
	}
	childToken, _, err := w.keys.Issue(t.Context(), by, contextkey.Request{Capabilities: caps})
	if err != nil {
		t.Fatal(err)
	}
	streams := []*listener{w.listen("events", childToken, ""), w.listen("events", parentToken, ""), w.listen("audit", parentToken, "")}
	if _, err := w.keys.Revoke(t.Context(), access.AsOperator(), parent.ID, "stolen"); err != nil {
		t.Fatal(err)
	}
	// What happens after the revocation is for nobody who held the key.
	if _, err := w.store.AddComment(t.Context(), store.TaskComment{TaskID: task.ID, Kind: store.CommentPlain, Text: "after"}); err != nil {
		t.Fatal(err)
	}
	for i, l := range streams {
		for {
			got := l.next()
			if strings.Contains(got.data, store.EventTaskCommented) {
				t.Errorf("stream %d told %+v after the revocation", i, got)
			}
			if got.event == "end" {
				if !strings.Contains(got.data, "revoked") {
					t.Errorf("stream %d ended with %+v", i, got)
				}
				break
			}
		}
	}
}

// meanwhile is a feed that reads an event, as what happens at the same time does.
type meanwhile struct{ happens func() }

func (f meanwhile) next(context.Context, int64) ([]item, bool, error) {
	f.happens()
	return []item{{id: 1, event: store.EventTaskCommented, data: "after"}}, true, nil
}
func (meanwhile) news(int64) bool                    { return true }
func (meanwhile) end(context.Context) (int64, error) { return 0, nil }

// What was read just as a key ended is not shown: it may have happened after.
func TestKeyThatEndsWhileEventsAreRead(t *testing.T) {
	w := newWorld(t)
	_, key := w.key(contextkey.Request{}, "read:*")
	said := httptest.NewRecorder()
	w.server.Streams.serve(t.Context(), said, caller{Caller: access.WithKey(access.Key{ID: key.ID})}, meanwhile{func() {
		if _, err := w.keys.Revoke(t.Context(), access.AsOperator(), key.ID, "stolen"); err != nil {
			t.Error(err)
		}
	}}, 0)
	if got := said.Body.String(); strings.Contains(got, "after") || !strings.Contains(got, "revoked") {
		t.Errorf("told %q", got)
	}
}

func TestStreamsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	token, key := w.key(contextkey.Request{}, "read:runs@run1")
	for name, want := range map[string]int{"audit": 403, "runs/run2": 403, "runs/run1": 404, "gone": 404, "runs/": 404, "runs/../x": 404} {
		if l := w.listen(name, token, ""); l.res.StatusCode != want {
			t.Errorf("%s: %d", name, l.res.StatusCode)
		}
	}
	if l := w.listen("events", token, "x"); l.res.StatusCode != 400 {
		t.Errorf("a wrong number: %d", l.res.StatusCode)
	}
	if r := w.do(http.MethodGet, w.tcp, Root+"_stream/events", "", ""); r.status != 401 {
		t.Errorf("without a key: %d", r.status)
	}
	// The beginning of a run's id leads nobody to the id.
	run, err := w.store.InsertRun(t.Context(), store.Run{})
	if err != nil {
		t.Fatal(err)
	}
	short := run.ID[:len(run.ID)-2]
	l := w.listen("runs/"+short, token, "")
	if said, err := io.ReadAll(l.res.Body); err != nil || l.res.StatusCode != 403 || !strings.Contains(string(said), short) || strings.Contains(string(said), run.ID) {
		t.Errorf("by its beginning: %d %s, %v", l.res.StatusCode, said, err)
	}
	denied := 0
	for _, r := range w.records() {
		if r.Caller == key.ID && r.Decision == store.Denied && strings.HasPrefix(r.Action, "stream.") {
			denied++
		}
	}
	if denied != 3 {
		t.Errorf("%d denials are in the audit", denied)
	}
}

func TestRunStream(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	run, err := w.store.InsertRun(ctx, store.Run{Status: store.RunRunning})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.server.Streams.Runs, run.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "events.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write := func(text string) {
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"event":"started","repo":"/home/x"}` + "\n" + `{"event":"ste`)
	token, _ := w.key(contextkey.Request{}, "read:runs@"+run.ID)
	l := w.listen("runs/"+run.ID, token, "")
	first := l.next()
	if first.event != "started" || strings.Contains(first.data, "/home/x") {
		t.Errorf("got %+v", first)
	}
	write(`p"}` + "\nnot JSON\n" + `{"event":"ended\nevent: forged"}` + "\n")
	if got := l.next(); got.event != "step" {
		t.Errorf("got %+v", got)
	}
	if got := l.next(); got.event != "ended_event: forged" {
		t.Errorf("got %+v", got)
	}
	if _, err := w.store.UpdateRun(ctx, run.ID, func(r *store.Run) error { r.Status = store.RunSucceeded; return nil }); err != nil {
		t.Fatal(err)
	}
	if got := l.next(); got.event != "end" || !strings.Contains(got.data, "it has ended") {
		t.Errorf("got %+v", got)
	}
	if got := w.listen("runs/"+run.ID, "", first.id).next(); got.event != "step" {
		t.Errorf("from the middle: %+v", got)
	}

	// What goes wrong is told as JSON, and to a key without the place.
	for _, after := range []string{"9223372036854775807", "100000"} {
		got := w.listen("runs/"+run.ID, token, after).next()
		if got.event != "end" || got.data != `{"reason":"it could not be read: there is no such event"}` {
			t.Errorf("after %s: %+v", after, got)
		}
	}
	file.Close()
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(file.Name()), file.Name()); err != nil { // to itself: it cannot be opened
		t.Fatal(err)
	}
	got := w.listen("runs/"+run.ID, token, "").next()
	if got.event != "end" || !json.Valid([]byte(got.data)) || strings.Contains(got.data, dir) || !strings.Contains(got.data, "too many levels") {
		t.Errorf("got %+v", got)
	}
}

func TestManyStreams(t *testing.T) {
	w := newWorld(t)
	const many = 200
	var all []*listener
	for range many {
		all = append(all, w.listen("events", "", ""))
	}
	task := w.task("seen by all")
	var group sync.WaitGroup
	for _, l := range all {
		group.Go(func() {
			if got := l.next(); !strings.Contains(got.data, task.ID) {
				t.Errorf("got %+v", got)
			}
		})
	}
	group.Wait()
	// One key cannot take them all.
	token, _ := w.key(contextkey.Request{}, "read:*")
	refused := 0
	for range mostStreams + 1 {
		if l := w.listen("events", token, ""); l.res.StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d streams were refused", refused)
	}
}

// A stream is told when the server stops, and does not hold it up.
func TestStreamsAreTold(t *testing.T) {
	w := newWorld(t)
	g := guard.New(w.server.Handler(contextkey.Wire{}), guard.Options{})
	l, err := guard.ListenUnix(filepath.Join(t.TempDir(), "o.sock"))
	if err != nil {
		// The directory of a test may be open to others.
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if l, err = guard.ListenUnix(filepath.Join(dir, "o.sock")); err != nil {
			t.Fatal(err)
		}
	}
	w.socket = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	s := w.listen("events", "", "")
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stopped <- g.Shutdown(ctx)
	}()
	if got := s.next(); got.event != "end" || !strings.Contains(got.data, "stops") {
		t.Errorf("got %+v", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
