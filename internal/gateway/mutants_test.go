package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/store"
)

// askingFrom has the test program ask a socket, and say what it was told, as a process of its own.
const askingFrom = "RAVI_TEST_GATEWAY_ASKS"

func init() {
	socket := os.Getenv(askingFrom)
	if socket == "" {
		return
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Fprintf(c, "POST %snotes/own HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", Root)
	if _, err := io.Copy(os.Stdout, c); err != nil {
		fmt.Println(err)
	}
	os.Exit(0)
}

// another serves a handler on a socket of its own, and makes that the world's.
func (w *world) another(h http.Handler) {
	w.t.Helper()
	dir := w.t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	l, err := guard.ListenUnix(filepath.Join(dir, "a.sock"))
	if err != nil {
		w.t.Fatal(err)
	}
	g := guard.New(h, guard.Options{})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			w.t.Error(err)
		}
		if err := <-served; err != nil {
			w.t.Error(err)
		}
	})
	w.socket = l.Addr().String()
}

// The socket alone makes nobody the operator: the process that connected has to be of the operator's world.
func TestTheSocketIsNoIdentity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: namespaces are made by root here")
	}
	w := newWorld(t)
	for name, c := range map[string]struct {
		flags uintptr
		want  string
	}{"the same": {0, "HTTP/1.1 200"}, "another network": {syscall.CLONE_NEWNET, "HTTP/1.1 401"}, "another mount": {syscall.CLONE_NEWNS, "HTTP/1.1 401"}} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), askingFrom+"="+w.socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.flags}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), c.want) {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}

// On a run's wires nobody is the operator without a key, be its process the operator's own.
func TestNoOperatorOnARunsWires(t *testing.T) {
	w := newWorld(t)
	token, key := w.key(contextkey.Request{RunID: "run1"}, "read:*")
	w.another(w.server.Handler(contextkey.Wire{RunID: "run1"}))
	for _, path := range []string{"notes/ls", "notes/own", "_meta/registry", "_stream/events"} {
		if r := w.call("", "", path, ""); r.status != 401 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	if r := w.call("", token, "notes/ls", ""); r.status != 200 || !strings.Contains(r.body, key.ID) {
		t.Errorf("its key: %d %s", r.status, r.body)
	}
	if r := w.call("", token, "notes/own", ""); r.status != 403 {
		t.Errorf("its key, as the operator: %d %s", r.status, r.body)
	}
}

// raw sends a request as it stands to the socket.
func (w *world) raw(text string) (status int, body string) {
	w.t.Helper()
	c, err := net.Dial("unix", w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// A request says once who sends it, and in one way.
func TestAuthorizationIsPlain(t *testing.T) {
	w := newWorld(t)
	token, key := w.key(contextkey.Request{}, "read:*")
	for header, want := range map[string]int{
		"Authorization: Bearer " + token: 200, "authorization: bearer " + token: 200, "Authorization: Bearer  " + token + " ": 200,
		"Authorization: Bearer " + token + "\r\nAuthorization: Bearer " + token:        401,
		"Authorization: Bearer " + token + "\r\nAuthorization: Bearer x":               401,
		"Authorization: Bearer x\r\nAuthorization: Bearer " + token:                    401,
		"Authorization:\r\nAuthorization: Bearer " + token:                             401,
		"Authorization: Basic " + token:                                                401,
		"Authorization: " + token:                                                      401,
		"Authorization: Token " + token:                                                401,
		"Authorization: Bearer":                                                        401,
		"Authorization:":                                                               401,
		"Authorization: Bearer " + token + " " + token:                                 401,
		"Authorization: Bearer " + token + ", Bearer " + token:                         401,
		"X-Authorization: x\r\nAuthorization: Bearer\t" + token:                        401,
		"Proxy-Authorization: Bearer " + token + "\r\nAuthorization: Bearer " + key.ID: 401,
	} {
		status, body := w.raw("POST " + Root + "notes/ls HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		if status != want || want == 200 && !strings.Contains(body, key.ID) || want != 200 && strings.Contains(body, "operator\"") {
			t.Errorf("%q: %d %s", header, status, body)
		}
	}
}

// What is beside the API is nothing, and needs no key to be that.
func TestBesideTheAPI(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/", "/api", "/api/v1", "/api/v2/notes/ls", "/notes/ls", "//api/v1/notes/ls"} {
		if r := w.do(http.MethodPost, w.tcp, path, "", ""); r.status != 404 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// Who asks too often waits, each key by itself, and the operator never.
func TestOftenByEachKey(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	w.server.Limit = guard.NewLimiter(1, 2, 10, func() time.Time { return now })
	one, _ := w.key(contextkey.Request{}, "read:*")
	two, _ := w.key(contextkey.Request{}, "read:*")
	for i, want := range []int{200, 200, 429, 429} {
		path, method := "notes/ls", http.MethodPost
		if i == 3 {
			path, method = "_meta/registry", http.MethodGet
		}
		r := w.do(method, "", Root+path, one, "")
		if r.status != want || want == 429 && (r.Error.Code != guard.CodeTooMany || r.header.Get("Retry-After") == "") {
			t.Errorf("the call %d: %d %s", i, r.status, r.body)
		}
	}
	if r := w.call("", two, "notes/ls", ""); r.status != 200 {
		t.Errorf("another key: %d %s", r.status, r.body)
	}
	for range 4 {
		if r := w.call("", "", "notes/ls", ""); r.status != 200 {
			t.Errorf("the operator: %d %s", r.status, r.body)
		}
	}
	now = now.Add(time.Second)
	if r := w.call("", one, "notes/ls", ""); r.status != 200 {
		t.Errorf("after a while: %d %s", r.status, r.body)
	}
}

// That a call made no sense is told after that it was not allowed, which is written down; and what a command must have is
// asked for in every form of a body.
func TestWhatIsToldFirst(t *testing.T) {
	w := newWorld(t)
	type needs struct {
		Note string `json:"note" arg:"NOTE" host:"none" usage:"a note"`
		More string `json:"more" flag:"more" host:"none" usage:"more"`
	}
	command.Add(w.server.Table, command.Spec[needs, string]{Group: "notes", Name: "must", Summary: "Do it", Access: command.Read,
		Handler: func(_ context.Context, _ *command.Env, in needs) (string, error) { return "did " + in.Note, nil }})
	server := &Server{Table: w.server.Table, Keys: w.keys, Auditor: w.audit, NewEnv: w.server.NewEnv}
	w.another(server.Handler(contextkey.Wire{}))
	token, _ := w.key(contextkey.Request{}, "read:*")
	few, key := w.key(contextkey.Request{}, "read:notes.ls")
	for body, want := range map[string]int{``: 400, ` `: 400, `{}`: 400, `{"more": "x"}`: 400, `{"note": ""}`: 400, `{"note": "x"}`: 200} {
		r := w.call("", token, "notes/must", body)
		if r.status != want || want == 400 && !strings.Contains(r.Error.Message, "note is missing") {
			t.Errorf("%q: %d %s", body, r.status, r.body)
		}
	}
	for _, body := range []string{``, `{"x": 1}`, `[`} {
		if r := w.call("", few, "notes/must", body); r.status != 403 || strings.Contains(r.body, "missing\"") {
			t.Errorf("%q, of who may not: %d %s", body, r.status, r.body)
		}
	}
	denied := 0
	for _, r := range w.records() {
		if r.Caller == key.ID && r.Action == "command.notes.must" && r.Decision == store.Denied {
			denied++
		}
	}
	if denied != 3 {
		t.Errorf("%d denials are in the audit", denied)
	}
	if r := w.call("", token, "notes/nothing", "", "Accept", "text/plain"); r.status != 200 || r.body != "{}\n" {
		t.Errorf("a command that prints nothing: %d %s", r.status, r.body)
	}
	if r := w.do(http.MethodGet, "", Root+"_stream/events", token, ""); r.status != 404 {
		t.Errorf("a stream of a gateway without: %d %s", r.status, r.body)
	}
	if r := w.call("", token, "notes/print", "", "Accept", "text/plain"); !strings.Contains(r.body, "(fenced: true)") {
		t.Errorf("what a key gets is not fenced: %s", r.body)
	}
}

// What cannot be written down is answered to nobody: who is not known, and a stream, allowed or not. That a call is denied
// is told in any case.
func TestWithoutAnAudit(t *testing.T) {
	w := newWorld(t)
	token, _ := w.key(contextkey.Request{}, "read:runs")
	if err := w.audit.Close(); err != nil {
		t.Fatal(err)
	}
	for name, status := range map[string]int{
		"no key":          w.call(w.tcp, "", "notes/ls", "").status,
		"a wrong key":     w.call("", "rctx_AAAAAAAAAAAAAAAAAAAAAAAA", "notes/ls", "").status,
		"a denial":        w.call("", token, "notes/ls", "").status,
		"a denied stream": w.listen("audit", token, "").res.StatusCode,
		"a stream":        w.listen("events", token, "").res.StatusCode,
		"the operator's":  w.listen("audit", "", "").res.StatusCode,
	} {
		if status != 503 {
			t.Errorf("%s: %d", name, status)
		}
	}
}

func callerOf(t *testing.T, capabilities ...string) access.Caller {
	t.Helper()
	c, err := access.ParseCapabilities(capabilities)
	if err != nil {
		t.Fatal(err)
	}
	return access.WithKey(access.Key{ID: "ctx_1", Capabilities: c})
}

// An event is shown to who could look at what it is about: memory's is of the memory, though it names the agent, and what is
// about nothing known is the operator's.
func TestVisible(t *testing.T) {
	for name, c := range map[string]struct {
		capability string
		kind       string
		object     string
		want       bool
	}{
		"its task":                {"read:tasks@tsk1", "task.created", "tsk1", true},
		"another task":            {"read:tasks@tsk1", "task.created", "tsk2", false},
		"its task, by ls":         {"read:tasks.ls@tsk1", "task.created", "tsk1", false},
		"to write it":             {"write:tasks@tsk1", "task.created", "tsk1", false},
		"memory":                  {"read:memory@agt1", "memory.written", "agt1", true},
		"memory, by its agent":    {"read:agents@agt1", "memory.written", "agt1", false},
		"the agent, by memory":    {"read:memory@agt1", "agent.created", "agt1", false},
		"an approval":             {"read:approvals@run1", "approval.asked", "run1", true},
		"an approval, by its run": {"read:runs@run1", "approval.asked", "run1", false},
		"the run, by approvals":   {"read:approvals@run1", "run.changed", "run1", false},
		"the agent":               {"read:agents@agt1", "agent.created", "agt1", true},
		"nothing known, and all":  {"read:*", "odd.thing", "odd1", false},
		"nothing, and all":        {"read:*", "odd.thing", "", false},
		"all":                     {"read:*", "run.created", "run1", true},
	} {
		if got := visible(t.Context(), &command.Env{Caller: callerOf(t, c.capability)}, store.Event{Kind: c.kind, Object: c.object}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if visible(t.Context(), &command.Env{}, store.Event{Kind: "task.created", Object: "tsk1"}) {
		t.Error("nobody sees something")
	}
}

// A run is heard by its id and by its beginning; who may hear none is not told which there are.
func TestWhichRunIsHeard(t *testing.T) {
	w := newWorld(t)
	run, err := w.store.InsertRun(t.Context(), store.Run{Status: store.RunSucceeded})
	if err != nil {
		t.Fatal(err)
	}
	mine, _ := w.key(contextkey.Request{}, "read:runs@"+run.ID)
	none, _ := w.key(contextkey.Request{}, "read:tasks", "write:runs", "read:runs.show@"+run.ID)
	short := run.ID[:len(run.ID)-2]
	for _, number := range []string{"-1", "1.5", "9223372036854775808"} {
		if l := w.listen("runs/"+run.ID, mine, number); l.res.StatusCode != 400 {
			t.Errorf("after %s: %d", number, l.res.StatusCode)
		}
	}
	for _, id := range []string{run.ID, short} {
		if l := w.listen("runs/"+id, mine, ""); l.res.StatusCode != 200 {
			t.Errorf("%s: %d", id, l.res.StatusCode)
		}
	}
	for _, id := range []string{short, "run0"} {
		r := w.do(http.MethodGet, "", Root+"_stream/runs/"+id, none, "")
		if r.status != 403 || strings.Contains(r.body, run.ID) || !strings.Contains(r.body, "read:runs.logs") {
			t.Errorf("%s, of who may hear none: %d %s", id, r.status, r.body)
		}
	}
}

// Of where a run is on this machine who is not the operator hears in no field.
func TestRunEventsHideThisMachine(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	run, err := w.store.InsertRun(t.Context(), store.Run{Status: store.RunRunning})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", longestLine)
	text := `{"event":"a","repo":"/home/1","dir":"/home/2","path":"/home/3","workspace":"/home/4","kept":"/5"}` + "\n" +
		`{"event":"b","text":"` + long + `"}` + "\n" + `[1]` + "\n" + `{"event":"c\r\nd: e\u0085\u007f"}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []bool{true, false} {
		items, done, err := runFeed{w.server.Streams, run.ID, dir, foreign}.next(t.Context(), 0)
		if err != nil || done || len(items) != 4 {
			t.Fatalf("%d items, %v, %v", len(items), done, err)
		}
		got := fmt.Sprint(items[0].data)
		for _, path := range []string{"/home/1", "/home/2", "/home/3", "/home/4"} {
			if strings.Contains(got, path) == foreign {
				t.Errorf("foreign %v: %s", foreign, got)
			}
		}
		if !strings.Contains(got, "/5") || !items[1].silent || !items[2].silent || items[3].silent || strings.ContainsAny(items[3].event, "\r\n\x7f") {
			t.Errorf("foreign %v: %+v", foreign, items[3])
		}
	}
}

// A place is free again when a stream is over, and no number of them is too many for the operator.
func TestPlacesOfStreams(t *testing.T) {
	w := newWorld(t)
	s := w.server.Streams
	open := map[string]int{}
	enter := func(name string) error {
		err := s.enter(name)
		if err == nil {
			open[name]++
		}
		return err
	}
	defer func() {
		for name, n := range open {
			for range n {
				s.leave(name)
			}
		}
	}()
	for range mostStreams {
		if err := enter("ctx_1"); err != nil {
			t.Fatal(err)
		}
	}
	if enter("ctx_1") == nil {
		t.Error("one more than the most")
	}
	if err := enter("ctx_2"); err != nil {
		t.Errorf("another key: %v", err)
	}
	s.leave("ctx_1")
	open["ctx_1"]--
	if err := enter("ctx_1"); err != nil {
		t.Errorf("after one was over: %v", err)
	}
	for range mostStreams + 1 {
		if err := enter(access.Operator); err != nil {
			t.Fatalf("the operator: %v", err)
		}
	}
}

// A stream of a run's key goes on over its run's wires, and is over with the key though nothing happens.
func TestAQuietStreamEndsWithItsKey(t *testing.T) {
	w := newWorld(t)
	token, _ := w.key(contextkey.Request{RunID: "run1"}, "read:*")
	w.another(w.server.Handler(contextkey.Wire{RunID: "run1"}))
	l := w.listen("events", token, "")
	task := w.task("x")
	for got := l.next(); !strings.Contains(got.data, task.ID); got = l.next() {
		if got.event == "end" {
			t.Fatalf("it ended: %+v", got)
		}
	}
	if _, err := w.store.RevokeRunKeys(t.Context(), "run1", "over"); err != nil {
		t.Fatal(err)
	}
	for {
		if got := l.next(); got.event == "end" {
			if !strings.Contains(got.data, "revoked") {
				t.Errorf("got %+v", got)
			}
			break
		}
	}
}

// A key ends at its time, which nothing in the store tells.
func TestAStreamEndsAtItsKeysTime(t *testing.T) {
	w := newWorld(t)
	var later atomic.Int64
	w.server.Streams.Keys.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	task := w.task("x")
	token, _ := w.key(contextkey.Request{}, "read:tasks@"+task.ID)
	l := w.listen("events", token, "")
	later.Store(int64(2 * contextkey.DefaultTTL))
	if got := l.next(); got.event != "end" || !strings.Contains(got.data, "expired") {
		t.Errorf("got %+v", got)
	}
}
