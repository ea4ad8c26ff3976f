package connected

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestACallAndItsAnswer(t *testing.T) {
	g, url := newGateway(t)
	g.answer = func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Ravi-Exit", "7")
		if r.Header.Get("Accept") == "text/plain" {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "ID   TEXT\ncom1 evil \x1b]0;x\a\u202e "+testKey+"\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{\"id\":\"com1\",\"text\":\"\u009b \u202e "+testKey+"\", \"n\":1.50}")
	}
	r := ravi(t, envOf(url), "", "tasks", "comment", "tsk1", "--text", "it works")
	if want := "ID   TEXT\ncom1 evil \\x1b]0;x\\a\\u202e rctx_…\n"; r.exit != 7 || r.stdout != want || r.stderr != "" {
		t.Errorf("got %+v, want %q", r, want)
	}
	seen := g.requests()
	if len(seen) != 2 || seen[0].path != "/api/v1/_meta/registry" || seen[0].auth != "Bearer "+testKey {
		t.Fatalf("it asked %+v", seen)
	}
	if seen[1].path != "/api/v1/tasks/comment" || seen[1].accept != "text/plain" || seen[1].body != `{"task":"tsk1","text":"it works"}` {
		t.Errorf("it asked %+v", seen[1])
	}
	r = ravi(t, envOf(url), "", "--json", "tasks", "note", "tsk1")
	if want := `{"id":"com1","text":"\u009b \u202e rctx_…", "n":1.50}` + "\n"; r.exit != 7 || r.stdout != want || r.stderr != "" {
		t.Errorf("got %+v, want %q", r, want)
	}
	if last := g.requests()[3]; last.path != "/api/v1/tasks/comment" || last.accept != "application/json" {
		t.Errorf("an alias asks %+v", last)
	}
}

func TestAnswersThatMakeNoSense(t *testing.T) {
	g, url := newGateway(t)
	for _, c := range []struct {
		name, kind, exit, body string
		args                   []string
		want                   string
	}{
		{"not JSON", "application/json", "", `{"a":`, []string{"--json", "bench"}, "is not JSON"},
		{"not JSON, though it says so", "application/json", "", "\x1b[2J", []string{"bench"}, "is not JSON"},
		{"no exit code", "text/plain", "abc", "x", []string{"bench"}, "exit code"},
		{"a large exit code", "text/plain", "256", "x", []string{"bench"}, "exit code"},
		{"a negative exit code", "text/plain", "-1", "x", []string{"bench"}, "exit code"},
	} {
		g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			if c.exit != "" {
				w.Header().Set("Ravi-Exit", c.exit)
			}
			_, _ = io.WriteString(w, c.body)
		}
		r := ravi(t, envOf(url), "", c.args...)
		if r.exit != ExitFailed || !strings.Contains(r.stdout+r.stderr, c.want) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	// JSON for people: a command that has no other form.
	g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, "{\"a\":\"\x9b\u202e\"}")
	}
	if r := ravi(t, envOf(url), "", "bench"); r.exit != 0 || r.stdout != "{\"a\":\"\uFFFD\\u202e\"}\n" {
		t.Errorf("JSON for people: %+v", r)
	}
	g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{\"a\":\"\x9b31m\"}") }
	if r := ravi(t, envOf(url), "", "bench", "--json"); r.exit != 0 || r.stdout != "{\"a\":\"\uFFFD31m\"}\n" {
		t.Errorf("JSON that is not UTF-8: %+v", r)
	}
}

func TestErrorsOfTheGateway(t *testing.T) {
	g, url := newGateway(t)
	for _, c := range []struct {
		status        int
		code          string
		exit          int
		header, value string
	}{
		{400, "USAGE", 2, "", ""}, {400, "BAD", 2, "", ""}, {401, "UNAUTHORIZED", 1, "", ""}, {403, "DENIED", 1, "", ""},
		{404, "NOT_FOUND", 1, "", ""}, {409, "CONFLICT", 1, "", ""}, {413, "TOO_LARGE", 1, "", ""}, {500, "INTERNAL", 1, "", ""},
		{403, "DENIED", 9, "Ravi-Exit", "9"},
	} {
		g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
			if c.header != "" {
				w.Header().Set(c.header, c.value)
			}
			refuse(w, c.status, c.code, "needs read:sessions.transcript@ses2\x1b[2J\nhint: forged", "ask for it")
		}
		r := ravi(t, envOf(url), "", "tasks", "show", "tsk2")
		want := "error: needs read:sessions.transcript@ses2\\x1b[2J\n  hint: forged\nhint: ask for it\n"
		if r.exit != c.exit || r.stdout != "" || r.stderr != want {
			t.Errorf("%d: %+v, want exit %d and %q", c.status, r, c.exit, want)
		}
		r = ravi(t, envOf(url), "", "tasks", "show", "tsk2", "--json")
		if code, message, hint := errorOf(t, r); code != c.code || hint != "ask for it" || !strings.HasPrefix(message, "needs ") || r.exit != c.exit {
			t.Errorf("%d: %+v", c.status, r)
		}
	}
	// Whoever answers like this is not the gateway.
	for _, body := range []string{"", "<html>" + testKey, `{"error":"x"}`, `{"error":{"message":"only"}}`, `[]`, strings.Repeat("x", 3*maxError)} {
		g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			_, _ = io.WriteString(w, body)
		}
		r := ravi(t, envOf(url), "", "tasks", "show", "--json")
		if code, message, _ := errorOf(t, r); code != codeInternal || !strings.Contains(message, "502 Bad Gateway") || r.exit != ExitFailed {
			t.Errorf("%.40q: %+v", body, r)
		}
	}
}

func TestWithoutAGateway(t *testing.T) {
	const good = "http://gateway.ravi.internal"
	for _, c := range []struct {
		name, key, url, want string
	}{
		{"nothing", "", "", "not connected"},
		{"no key", "", good, envKey + " is not set"},
		{"no address", testKey, "", envURL + " is not set"},
		{"another kind of key", "sk-" + strings.Repeat("a", 40), good, "is not a key"},
		{"a short key", "rctx_abc", good, "is not a key"},
		{"a long key", "rctx_" + strings.Repeat("a", 1<<20), good, "is not a key"},
		{"a key with a line feed", testKey + "\nX-Other: 1", good, "is not a key"},
		{"a key with a space", testKey + " ", good, "is not a key"},
		{"no scheme", testKey, "gateway.ravi.internal", "is not an address"},
		{"another scheme", testKey, "ftp://gateway.ravi.internal", "is not an address"},
		{"a file", testKey, "file:///etc/passwd", "is not an address"},
		{"no host", testKey, "http://", "is not an address"},
		{"a control character", testKey, "http://gateway.ravi.internal\x1b", "is not an address"},
		{"a user", testKey, "http://me:secret@gateway.ravi.internal", "user or password"},
		{"a path", testKey, good + "/other", "more in it"},
		{"a query", testKey, good + "/?x=1", "more in it"},
		{"a fragment", testKey, good + "#x", "more in it"},
		{"port 0", testKey, good + ":0", "port"},
		{"a large port", testKey, good + ":70000", "port"},
		{"plain text through the network", testKey, "http://example.com", "plain text"},
		{"plain text to a name that only looks near", testKey, "http://gateway.ravi.internal.example.com", "plain text"},
		{"plain text to an address", testKey, "http://192.0.2.1", "plain text"},
		{"a relative socket", testKey, "unix:run/gateway.sock", "whole path"},
		{"no socket", testKey, "unix:", "whole path"},
	} {
		env := map[string]string{envKey: c.key, envURL: c.url}
		for _, args := range [][]string{{"tasks", "show"}, nil, {"sandbox", "run", "--", "sh"}} {
			r := ravi(t, env, "", append([]string{"--json"}, args...)...)
			code, message, hint := errorOf(t, r)
			if r.exit != ExitFailed || code != codeRequired || !strings.Contains(message, c.want) || hint == "" {
				t.Errorf("%s: %+v", c.name, r)
			}
			if c.key != "" && strings.Contains(r.stdout, c.key) || strings.Contains(r.stdout, "secret") {
				t.Errorf("%s: what was wrong is repeated: %.300s", c.name, r.stdout)
			}
		}
	}
	for _, wait := range []string{"soon", "-1s", "11m", "10"} {
		if r := ravi(t, envOf(good, envWait, wait), "", "tasks"); r.exit != ExitUsage || !strings.Contains(r.stderr, envWait) {
			t.Errorf("%s: %+v", wait, r)
		}
	}
	for _, url := range []string{"https://ravi.example.com", "https://192.0.2.1:7777", "http://127.0.0.1:7777/", "http://[::1]:7777", "http://localhost:7777", "unix:/run/x.sock", "unix:///run/x.sock"} {
		if to, err := targetOf(func(name string) string { return envOf(url)[name] }, ""); err != nil || to.base == "" {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("d", 60), strings.Repeat("e", 60))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	// A long path cannot be bound to, only renamed to.
	for _, path := range []string{filepath.Join(dir, "g"), filepath.Join(long, "gateway.sock")} {
		short := filepath.Join(dir, "s")
		g := newUnixGateway(t, short)
		if err := os.Rename(short, path); err != nil {
			t.Fatal(err)
		}
		r := ravi(t, envOf("unix:"+path), "", "tasks", "show")
		if r.exit != 0 || r.stdout != "done\n" {
			t.Errorf("%s: %+v", path, r)
		}
		if seen := g.requests(); len(seen) != 2 || seen[1].host != serviceHost {
			t.Errorf("%s: it asked %+v", path, seen)
		}
	}
}

func TestUnknownCommands(t *testing.T) {
	g, url := newGateway(t)
	for _, c := range []struct{ args, message, hint string }{
		{"task show", `there is no command "task"`, "did you mean ravi tasks?"},
		{"tasks shwo", `there is no command "shwo" in ravi tasks`, "did you mean ravi tasks show?"},
		{"tasks frobnicate", `there is no command "frobnicate"`, "see ravi tasks --help"},
		{"xyzzy", `there is no command "xyzzy"`, "see ravi --help"},
		{"../../etc show", `there is no command "../../etc"`, "see ravi --help"},
		{"tasks ../x", `there is no command "../x"`, "see ravi tasks --help"},
		{"tasks show --jsn", "unknown flag: --jsn", "did you mean --json?"},
		{"tasks comment t --txet x", "unknown flag: --txet", "did you mean --text?"},
		{"tasks --frob show", "unknown flag --frob before the command", "write the command before"},
		{"--frob tasks show", "unknown flag --frob before the command", "see ravi --help"},
		{"--json=perhaps tasks", "--json: write true or false", ""},
		{testKey, `there is no command "rctx_…"`, "see ravi --help"},
	} {
		r := ravi(t, envOf(url), "", strings.Fields(c.args)...)
		if r.exit != ExitUsage || !strings.Contains(r.stderr, c.message) || !strings.Contains(r.stderr, c.hint) || r.stdout != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
	for _, s := range g.requests() {
		// What was not named is asked for with nothing in it, for the gateway to say what the key lacks.
		if s.method != http.MethodGet && (s.body != "{}" || !slices.Contains([]string{"/api/v1/task/show", "/api/v1/tasks/shwo", "/api/v1/tasks/frobnicate"}, s.path)) {
			t.Errorf("it asked %+v", s)
		}
	}
	if r := ravi(t, envOf(url), "", "tasks", "shwo", "--json"); r.exit != ExitUsage {
		t.Errorf("%+v", r)
	} else if code, _, _ := errorOf(t, r); code != codeUsage {
		t.Errorf("%+v", r)
	}
}

// A command that the key may not use is refused by the gateway, which says what is missing and writes it down.
func TestDeniedCommand(t *testing.T) {
	g, url := newGateway(t)
	g.answer = func(_ int, w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "DENIED", "this needs read:secrets.ls", "h")
	}
	r := ravi(t, envOf(url), "", "secrets", "ls")
	if r.exit != ExitFailed || !strings.Contains(r.stderr, "this needs read:secrets.ls") {
		t.Errorf("%+v", r)
	}
}
