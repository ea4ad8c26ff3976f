package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/store"
)

func TestCalls(t *testing.T) {
	w := newWorld(t)
	token, key := w.key(contextkey.Request{}, "read:notes@not1", "write:notes.write@not1")
	full, _ := w.key(contextkey.Request{}, "read:*", "write:*")
	runToken, _ := w.key(contextkey.Request{RunID: "run1"}, "read:*")
	for name, c := range map[string]struct {
		to, token, command, body string
		status                   int
		code, want               string
	}{
		"operator on the socket":     {"", "", "notes/own", "", 200, "", `"said":"operator"`},
		"nobody over TCP":            {w.tcp, "", "notes/ls", "", 401, "UNAUTHORIZED", "there is none"},
		"operator only, by key":      {"", full, "notes/own", "", 403, "DENIED", "not for keys"},
		"local":                      {"", "", "notes/local", "", 404, "NOT_FOUND", ""},
		"key on the socket":          {"", token, "notes/ls", "", 200, "", key.ID},
		"key over TCP":               {w.tcp, token, "notes/show", `{"note":"not1"}`, 200, "", key.ID},
		"another object":             {"", token, "notes/show", `{"note":"not2"}`, 403, "DENIED", "read:notes.show@not2"},
		"an object that is not":      {"", token, "notes/show", `{"note":"not9"}`, 403, "DENIED", "read:notes.show@not9"},
		"is not, and may know":       {"", full, "notes/show", `{"note":"not9"}`, 404, "NOT_FOUND", ""},
		"write":                      {"", token, "notes/write", `{"note":"not1"}`, 200, "", key.ID},
		"write another":              {"", token, "notes/write", `{"note":"not2"}`, 403, "DENIED", "write:notes.write@not2"},
		"without the capability":     {"", token, "notes/print", "", 403, "DENIED", "read:notes.print"},
		"host resource":              {"", full, "notes/show", `{"note":"not1","backend":"host"}`, 403, "DENIED", "backend"},
		"run's key elsewhere":        {"", runToken, "notes/ls", "", 401, "UNAUTHORIZED", "another way"},
		"run's key over TCP":         {w.tcp, runToken, "notes/ls", "", 401, "UNAUTHORIZED", "another way"},
		"bad key, though on socket":  {"", "rctx_AAAAAAAAAAAAAAAAAAAAAAAA", "notes/ls", "", 401, "UNAUTHORIZED", "unknown"},
		"malformed, though on it":    {"", "operator", "notes/ls", "", 401, "UNAUTHORIZED", "not one"},
		"camel case":                 {"", full, "notes/ls", `{"longText":"x","wait":"90s","limit":3,"pairs":{"a":"b"},"words":["c"]}`, 200, "", `"wait":90000000000`},
		"unknown key":                {"", full, "notes/ls", `{"longtext":"x"}`, 400, "USAGE", "long_text"},
		"twice":                      {"", full, "notes/ls", `{"limit":1,"limit":2}`, 400, "USAGE", "limit"},
		"twice in both spellings":    {"", full, "notes/ls", `{"long_text":"a","longText":"b"}`, 400, "USAGE", "long"},
		"wrong type":                 {"", full, "notes/ls", `{"limit":"3"}`, 400, "USAGE", "limit"},
		"fraction":                   {"", full, "notes/ls", `{"limit":1.5}`, 400, "USAGE", "limit"},
		"array":                      {"", full, "notes/ls", `[]`, 400, "USAGE", "no JSON object"},
		"null":                       {"", full, "notes/ls", `null`, 400, "USAGE", "no JSON object"},
		"no JSON":                    {"", full, "notes/ls", `{`, 400, "USAGE", ""},
		"two documents":              {"", full, "notes/ls", `{}{}`, 400, "USAGE", ""},
		"not UTF-8":                  {"", full, "notes/ls", "{\"long_text\":\"\xff\"}", 400, "USAGE", ""},
		"deep":                       {"", full, "notes/ls", strings.Repeat(`{"a":`, 100_000), 400, "USAGE", ""},
		"wrong, and may not":         {"", token, "notes/print", `{"x":1}`, 403, "DENIED", "read:notes.print"},
		"no command":                 {"", full, "notes/gone", "", 404, "NOT_FOUND", ""},
		"no group":                   {"", full, "gone/ls", "", 404, "NOT_FOUND", ""},
		"alias":                      {"", full, "notes/list", "", 404, "NOT_FOUND", ""},
		"more behind it":             {"", full, "notes/ls/x", "", 404, "NOT_FOUND", ""},
		"slash behind it":            {"", full, "notes/ls/", "", 404, "NOT_FOUND", ""},
		"dots":                       {"", full, "notes/../notes/ls", "", 404, "NOT_FOUND", ""},
		"encoded slash":              {"", full, "notes%2fls", "", 404, "NOT_FOUND", ""},
		"encoded letter":             {"", full, "notes/l%73", "", 404, "NOT_FOUND", ""},
		"upper case":                 {"", full, "Notes/ls", "", 404, "NOT_FOUND", ""},
		"nothing":                    {"", full, "notes/nothing", "", 200, "", "{}"},
		"panic":                      {"", full, "notes/panic", "", 500, "INTERNAL", ""},
		"meta is no command":         {"", full, "_meta/registry", "", 405, "USAGE", ""},
		"stream is no command":       {"", full, "_stream/events", "", 405, "USAGE", ""},
		"unknown, and nobody's call": {"", "", "notes/none", "", 404, "NOT_FOUND", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.call(c.to, c.token, c.command, c.body)
			if r.status != c.status || r.Error.Code != c.code || !strings.Contains(r.body, c.want) {
				t.Errorf("got %d %s", r.status, r.body)
			}
			if strings.Contains(r.body, "secret inside") || c.token != "" && c.token != "operator" && strings.Contains(r.body, c.token) {
				t.Errorf("it tells too much: %s", r.body)
			}
		})
	}
	if r := w.do(http.MethodGet, "", Root+"notes/ls", full, ""); r.status != 405 || r.header.Get("Allow") != "POST" {
		t.Errorf("GET: %d, Allow %q", r.status, r.header.Get("Allow"))
	}
	if r := w.call("", full, "notes/print", "", "Accept", "text/plain"); r.body == "" || !strings.HasPrefix(r.body, "said ctx_") || r.header.Get(ExitHeader) != "3" {
		t.Errorf("as text: %q, exit %q", r.body, r.header.Get(ExitHeader))
	}
	if r := w.call("", "", "notes/print", "", "Accept", AgentType); r.header.Get("Content-Type") != AgentType || r.header.Get(ExitHeader) != "" ||
		!strings.HasPrefix(r.body, `{"text":"said operator (fenced: true)\n","value":{"said":"operator",`) || !strings.HasSuffix(r.body, `,"exit":3}`+"\n") {
		t.Errorf("for an agent: %q", r.body)
	}
	if r := w.call("", "", "notes/print", "", "Accept", "text/plain"); !strings.HasPrefix(r.body, "said operator (fenced: false)") {
		t.Errorf("the operator's text: %q", r.body)
	}
	if r := w.call("", "", "notes/nothing", "", "Accept", AgentType); r.body != `{"text":"","value":{},"exit":0}`+"\n" {
		t.Errorf("nothing for an agent: %q", r.body)
	}
	if r := w.call("", full, "notes/ls", `{"long_text":"`+strings.Repeat("x", 3<<20)+`"}`, "Expect", "100-continue"); r.status != 413 || r.Error.Code != "TOO_LARGE" {
		t.Errorf("3 MB: %d %s", r.status, r.body)
	}
}

// Every call stands in the audit, by the key's id and never by the key; and nothing happens without.
func TestCallsAreAudited(t *testing.T) {
	w := newWorld(t)
	token, key := w.key(contextkey.Request{RunID: ""}, "read:notes@not1", "write:notes.write@not1")
	w.call("", token, "notes/show", `{"note":"not1","long_text":"`+token+`"}`)
	w.call("", token, "notes/show", `{"note":"not2"}`)
	w.call("", token, "notes/write", `{"note":"not1"}`)
	w.call("", "", "notes/ls", "")
	w.call(w.tcp, "", "notes/ls", "")
	var got []string
	for _, r := range w.records() {
		if strings.Contains(string(r.Detail)+r.Reason+r.Object, token) {
			t.Errorf("the audit holds the key: %+v", r)
		}
		if strings.HasPrefix(r.Action, "audit.") {
			continue
		}
		got = append(got, r.Caller+" "+r.Action+" "+r.Object+" "+string(r.Decision))
	}
	want := []string{
		key.ID + " command.notes.show not1 allowed", key.ID + " command.notes.show not2 denied",
		key.ID + " command.notes.write not1 allowed", key.ID + " outcome.notes.write not1 allowed",
		"operator command.notes.ls  allowed", "nobody gateway.unauthorized  denied",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := w.audit.Close(); err != nil {
		t.Fatal(err)
	}
	if r := w.call("", token, "notes/write", `{"note":"not1"}`); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("without an audit: %d %s", r.status, r.body)
	}
	if r := w.call("", token, "notes/show", `{"note":"not1"}`); r.status != 503 || strings.Contains(r.body, "said") {
		t.Errorf("without an audit: %d %s", r.status, r.body)
	}
}

func TestRegistryShowsWhatMayBeUsed(t *testing.T) {
	w := newWorld(t)
	names := func(token string) (out []string) {
		r := w.do(http.MethodGet, "", Root+"_meta/registry", token, "")
		var reg Registry
		if err := json.Unmarshal([]byte(r.body), &reg); err != nil || r.status != 200 {
			t.Fatalf("%d %s: %v", r.status, r.body, err)
		}
		for _, e := range reg.Commands {
			out = append(out, e.Command)
		}
		return out
	}
	token, _ := w.key(contextkey.Request{}, "read:notes@not1")
	if got := strings.Join(names(token), " "); got != "show ls" {
		t.Errorf("a scoped key sees %s", got)
	}
	if got := strings.Join(names(""), " "); got != "show ls write print nothing panic hang own" {
		t.Errorf("the operator sees %s", got)
	}
	for _, path := range []string{"version", "registry", "openapi.json"} {
		if r := w.do(http.MethodGet, w.tcp, Root+"_meta/"+path, "", ""); r.status != 401 {
			t.Errorf("%s without a key over TCP: %d", path, r.status)
		}
	}
	if r := w.do(http.MethodGet, "", Root+"_meta/version", token, ""); !strings.Contains(r.body, `"version":"1.2.3"`) {
		t.Errorf("version: %s", r.body)
	}
}

// What a run's wire takes is that run's key, and nothing else: no operator, no other run.
func TestRunWire(t *testing.T) {
	w := newWorld(t)
	serve, end := w.server.Service("run1", "gateway.ravi.internal")
	defer end(t.Context())
	run1, key := w.key(contextkey.Request{RunID: "run1"}, "read:*")
	run2, _ := w.key(contextkey.Request{RunID: "run2"}, "read:*")
	plain, _ := w.key(contextkey.Request{}, "read:*")
	ask := func(host, token string) reply { return overPipe(t, serve, host, token) }
	if r := ask("gateway.ravi.internal", run1); r.status != 200 || !strings.Contains(r.body, key.ID) {
		t.Errorf("its own key: %d %s", r.status, r.body)
	}
	for name, token := range map[string]string{"another run's": run2, "no run's": plain, "none": ""} {
		if r := ask("gateway.ravi.internal", token); r.status != 401 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if r := ask("evil.example.com", run1); r.status != 403 {
		t.Errorf("another host's name: %d %s", r.status, r.body)
	}
	if _, err := w.store.RevokeRunKeys(t.Context(), "run1", "over"); err != nil {
		t.Fatal(err)
	}
	if r := ask("gateway.ravi.internal", run1); r.status != 401 || !strings.Contains(r.body, "revoked") {
		t.Errorf("after the run: %d %s", r.status, r.body)
	}
	for _, r := range w.records() {
		if r.Caller == key.ID && (r.RunID != "run1" || r.Decision != store.Allowed) {
			t.Errorf("record %+v", r)
		}
	}
}

// A run that makes children of its key may ask no more often than one that does not.
func TestChildrenShareTheRate(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	w.server.Limit = guard.NewLimiter(1, 2, 10, func() time.Time { return now })
	const run, host = "run00000000000000000000000001", "gateway.ravi.internal"
	first, key := w.key(contextkey.Request{RunID: run}, "read:notes", "write:context.issue")
	serve, end := w.server.Service(run, host)
	defer func() {
		if err := end(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	parent, err := w.keys.Recheck(t.Context(), key.ID, contextkey.Wire{RunID: run})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		token := first
		if i > 0 {
			if token, _, err = w.keys.Issue(t.Context(), parent, contextkey.Request{Capabilities: parent.Key.Capabilities}); err != nil {
				t.Fatal(err)
			}
		}
		if r := overPipe(t, serve, host, token); r.status != want {
			t.Errorf("call %d: %d, want %d: %s", i, r.status, want, r.body)
		}
	}
}

// A call that waits ends with the key that it was made with, and what it would have said is not said.
func TestCallEndsWithItsKey(t *testing.T) {
	w := newWorld(t)
	for name, end := range map[string]func(key store.Key) error{
		"revoked": func(key store.Key) error {
			_, err := w.keys.Revoke(t.Context(), access.AsOperator(), key.ID, "stolen")
			return err
		},
		"lives": func(store.Key) error { w.block <- struct{}{}; return nil },
	} {
		token, key := w.key(contextkey.Request{}, "read:notes")
		said := make(chan reply, 1)
		go func() { said <- w.call("", token, "notes/hang", "{}") }()
		w.block <- struct{}{}
		if err := end(key); err != nil {
			t.Fatal(err)
		}
		switch got := <-said; {
		case name == "lives" && (got.status != 200 || !strings.Contains(got.body, "at last")):
			t.Errorf("with a key that lives: %d %s", got.status, got.body)
		case name == "revoked" && (got.status != 401 || !strings.Contains(got.Error.Message, "revoked") || strings.Contains(got.body, "at last")):
			t.Errorf("with one that was revoked: %d %s", got.status, got.body)
		}
	}
	// It is the operator's as long as it takes.
	said := make(chan reply, 1)
	go func() { said <- w.call("", "", "notes/hang", "{}") }()
	w.block <- struct{}{}
	w.block <- struct{}{}
	if got := <-said; got.status != 200 {
		t.Errorf("the operator's: %d %s", got.status, got.body)
	}
}
