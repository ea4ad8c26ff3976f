package bench

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/audit"
	"ravi/internal/guard"
	"ravi/internal/store"
)

// filled is a gateway with a small store.
func filled(t *testing.T, records int) *gateway {
	t.Helper()
	dir := t.TempDir()
	g := &gateway{bench: &bench{Options: Options{Records: records, Runs: 1}, dir: dir, report: &Report{}}, home: filepath.Join(dir, "home")}
	if err := mkdirPrivate(g.home); err != nil {
		t.Fatal(err)
	}
	if err := g.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// What is copied is as many as it is to be, and a column that is not there is told.
func TestFill(t *testing.T) {
	g := filled(t, 50)
	s, err := store.Open(t.Context(), g.home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	runs, e1 := s.CountRuns(t.Context(), store.RunFilter{})
	tasks, e2 := s.CountTasks(t.Context(), store.TaskFilter{Status: store.TaskDone})
	sessions, e3 := s.CountSessions(t.Context(), store.SessionFilter{})
	messages, e4 := s.CountMessages(t.Context(), fmt.Sprintf("ses%026d", 1))
	end, e5 := s.AuditEnd(t.Context())
	if err := errors.Join(e1, e2, e3, e4, e5, s.Check(t.Context())); err != nil {
		t.Fatal(err)
	}
	if runs != 51 || tasks != 17 || sessions != 6 || messages < 99 || end != 500 {
		t.Errorf("%d runs, %d tasks, %d sessions, %d messages, %d rows", runs, tasks, sessions, messages, end)
	}
	if len(g.keys) != gatewayClients {
		t.Errorf("%d keys", len(g.keys))
	}
	db, err := sql.Open("sqlite", filepath.Join(g.home, store.File))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := (copies{"runs", 1, map[string]string{"nothing": "1"}}).make(t.Context(), db); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a column that is not there: %v", err)
	}
}

// An answer without its row is seen, and a row without an answer.
func TestWithoutRow(t *testing.T) {
	g := filled(t, 10)
	before, err := g.rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), g.home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		err = errors.Join(err, audit.Log{Store: s}.Append(t.Context(),
			audit.Record{Caller: g.keys[0].id, Action: "command.tasks.show", Decision: store.Allowed},
			audit.Record{Caller: g.keys[1].id, Action: "command.tasks.show", Decision: store.Allowed},
			audit.Record{Caller: g.keys[1].id, Action: "command.tasks.show", Decision: store.Denied}))
	}
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]int64, len(g.keys))
	answers[0], answers[1], answers[2] = 5, 2, 1
	without, more, err := g.withoutRow(t.Context(), before, answers)
	if err != nil || without != 3 || more != 1 {
		t.Errorf("%d without, %d more, %v", without, more, err)
	}
}

func mkdirPrivate(dir string) error { return os.Mkdir(dir, 0o700) }

// serveTCP serves on loopback, and gives the URL.
func serveTCP(t *testing.T, s *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return "http://" + l.Addr().String()
}

// listening serves a handler on a socket.
func listening(t *testing.T, h http.HandlerFunc) (socket string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private")
	if err := mkdirPrivate(dir); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := guard.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	s := guard.New(h, guard.Options{})
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Shutdown(context.Background())
		<-ended
	})
	return socket
}

// Of the clients at once each counts what it got whole; a refusal counts for none and ends that client.
func TestCrowdOf(t *testing.T) {
	var served atomic.Int64
	socket := listening(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer bad" {
			guard.WriteError(w, http.StatusForbidden, "DENIED", "no", "")
			return
		}
		served.Add(1)
		_, _ = io.WriteString(w, "{}")
	})
	g := &gateway{bench: &bench{}, keys: []gatewayKey{{"a", "good"}, {"b", "bad"}, {"c", "good"}}}
	answers, _, err := g.crowdOf(t.Context(), socket, time.Millisecond, true)
	if why, ok := errors.AsType[*refused](err); !ok || why.status != http.StatusForbidden {
		t.Errorf("the refusal: %v", err)
	}
	if answers[0] < 1 || answers[1] != 0 || answers[2] < 1 || sum(answers) != served.Load() {
		t.Errorf("answers %v, served %d", answers, served.Load())
	}
}

// The server beside gives its text to whoever asks, and ends with its input.
func TestServeConstant(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "private")
	if err := mkdirPrivate(dir); err != nil {
		t.Fatal(err)
	}
	in, end := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error)
	text, err := json.Marshal(job{Do: jobServe, Base: filepath.Join(dir, "s"), Body: `{"a":1}`})
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- Client(t.Context(), string(text), in, out) }()
	if _, err := io.ReadFull(said, make([]byte, len(word))); err != nil {
		t.Fatal(err)
	}
	c, err := dialAsker(t.Context(), filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for range 2 {
		got, err := c.ask(request("POST", readAsk, "", []byte(`{"task":"tsk"}`)))
		if err != nil || string(got) != `{"a":1}` {
			t.Errorf("%q, %v", got, err)
		}
	}
	end.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Who asks from inside sends its key, and its first question does not count.
func TestAsk(t *testing.T) {
	var asked atomic.Int64
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer rctx_x" || string(b) != `{"task":"t"}` || r.URL.Path != "/api/v1/tasks/show" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		asked.Add(1)
	})}
	base := serveTCP(t, s)
	t.Setenv("RAVI_CONTEXT_KEY", "rctx_x")
	t.Setenv("RAVI_GATEWAY_URL", base)
	var out bytes.Buffer
	text := `{"do":"ask","n":3,"body":"{\"task\":\"t\"}"}`
	if err := Client(t.Context(), text, nil, &out); err != nil {
		t.Fatal(err)
	}
	var o outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil || len(o.Through) != 3 || asked.Load() != 4 {
		t.Errorf("%v, asked %d times, %v", o, asked.Load(), err)
	}
	t.Setenv("RAVI_CONTEXT_KEY", "rctx_y")
	if err := Client(t.Context(), text, nil, &out); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a refusal: %v", err)
	}
}

// Each filter of a list is asked alone, beside what the list is about; pages are bounded.
func TestFilters(t *testing.T) {
	g := &gateway{subject: subject{"agt", "ses", "tsk"}}
	e := entry{Name: "memory.history", Group: "memory"}
	for _, name := range []string{"path", "agent", "limit", "since", "follow"} {
		e.Fields = append(e.Fields, struct{ Name, Type string }{Name: name})
	}
	got := g.filters(e)
	if len(got) != 2 || got[0]["agent"] != "agt" || got[0]["path"] == nil || got[1]["since"] != "1h" || got[1]["agent"] != "agt" || got[1]["limit"] != 100 {
		t.Errorf("%v", got)
	}
	if slices.ContainsFunc(got, func(in map[string]any) bool { return in["follow"] != nil }) {
		t.Error("a list is followed without end")
	}
}

func TestAlone(t *testing.T) {
	for only, want := range map[string]bool{"gw_read,version": true, "gw_inside": false, "exec,gw_read": false, "version": true} {
		if got := (&bench{Options: Options{Only: strings.Split(only, ",")}}).alone(); got != want {
			t.Errorf("%s: %v", only, got)
		}
	}
	if (&bench{}).alone() || (&bench{}).want("gw_read") || (&bench{}).want("gw_cpu") || !(&bench{}).want("storm_all") {
		t.Error("by default")
	}
}
