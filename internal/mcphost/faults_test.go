package mcphost

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/sandbox"
)

// A server that cannot begin fails alone, with a reason that says what to do, and what it left behind is gone.
func TestServersThatDoNotBegin(t *testing.T) {
	sb, e := open(t, sandbox.Default()), newEar()
	silent := own("silent")
	silent.Name, silent.StartTimeout = "silent", time.Second
	named := func(name string, s Server) Server { s.Name = name; return s }
	secret := own("plain")
	secret.Env = map[string]string{"KEY": "${NOT_GIVEN}"}
	h := connect(t, sb, e,
		silent, named("stranger", own("stranger")), named("flood", own("flood")), named("endless", own("endless")), named("secret", secret),
		Server{Name: "none", Command: "no-such-program"},
		Server{Name: "exits", Command: "sh", Args: []string{"-c", "echo the module is missing >&2; exit 4"}},
		Server{Name: "strange", Transport: "carrier-pigeon", Command: "sh"},
		Server{Name: "nothing"},
		Server{Name: "closed", URL: "https://mcp.example:8443/mcp"},
		named("good", own("plain")),
	)
	want := map[string]string{
		"silent": "not ready within 1s (start_timeout)", "stranger": "who are you",
		"flood": "4194304 bytes that are no messages", "endless": "a line of more than 16777216 bytes",
		"secret": "add --secret NOT_GIVEN", "none": "no-such-program: command not found", "exits": "exit code 4; its last words: the module is missing",
		"strange": "must be stdio, http or sse", "nothing": "neither a command nor a url", "closed": "no network: allow it with --allow-net mcp.example:8443", "good": "",
	}
	for _, st := range h.Servers() {
		if problem, ok := want[st.Name]; !ok || st.OK != (problem == "") || !strings.Contains(st.Problem, problem) {
			t.Errorf("%+v, want %q", st, problem)
		}
		if problem := want[st.Name]; problem != "" && e.count(KindFailed, problem) != 1 {
			t.Errorf("that %s failed was told %d times", st.Name, e.count(KindFailed, problem))
		}
	}
	for _, tool := range h.Tools() {
		if tool.Server != "good" {
			t.Errorf("there is a tool of %s", tool.Server)
		}
	}
	if got := works(t, h, "mcp_good_count", ""); got != "1" {
		t.Error(got)
	}
	left, err := sb.Processes(t.Context())
	if err != nil || len(left) != 1 || left[0].Tag != "mcp:good" {
		t.Errorf("%v, %+v", err, left)
	}
	for _, event := range e.events() {
		if strings.ContainsAny(event.Text, "\x1b\x07\n") {
			t.Errorf("a terminal would obey %q", event.Text)
		}
	}
}

// What is no message is skipped and told, the beginning of it and not without end; what is said beside does no harm.
func TestServerThatTalksBesides(t *testing.T) {
	sb := open(t, sandbox.Default())
	e := newEar()
	h := ready(t, sb, e, own("binary"))
	if got := works(t, h, "mcp_own_count", "null"); got != "1" {
		t.Error(got)
	}
	if e.count(KindLog, `no message: \x1b[2Jadded 3 packages`) != 1 || e.count(KindLog, "no message: 42") != 1 {
		t.Errorf("told were %+v", e.events())
	}
	for _, event := range e.events() {
		if strings.ContainsFunc(event.Text, func(r rune) bool { return r < ' ' }) || len(event.Text) > 400 {
			t.Errorf("told was %q", event.Text)
		}
	}
	if p := h.Servers()[0].Program; p != `bad\x1b[31m 1` {
		t.Errorf("it calls itself %q", p)
	}
	e = newEar()
	h = ready(t, sb, e, own("errors"))
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.await(t, KindWarning, "4900 lines on standard error were not told")
	if n := e.count(KindWarning, "stderr: complaint"); n != tellErrs {
		t.Errorf("%d lines were told", n)
	}
	works(t, ready(t, sb, newEar(), own("notices")), "mcp_own_count", "")
}

// What a server asks of its client is refused, but that it is there.
func TestServerThatAsks(t *testing.T) {
	h := ready(t, open(t, sandbox.Default()), newEar(), own("asks"))
	if got := works(t, h, "mcp_own_answers", ""); got != "q0:ok q1:-32601 q2:-32601 q3:-32601" {
		t.Error(got)
	}
}

// A server that dies fails the call that it died of, which is not made again, and works again for the next.
func TestServerThatDies(t *testing.T) {
	e := newEar()
	h := ready(t, open(t, sandbox.Default()), e, own("plain"))
	if got := fails(t, h, "mcp_own_die", "{}"); !strings.Contains(got, "exit code 7; its last words: something broke") {
		t.Errorf("the call: %s", got)
	}
	if got := works(t, h, "mcp_own_count", "{}"); got != "1" {
		t.Errorf("the new server had %s calls before", got)
	}
	e.await(t, KindWarning, "something broke; it is started again")
	e.await(t, KindRestarted, "")
}

// A server that does not come back is given up after some tries.
func TestServerThatStaysDead(t *testing.T) {
	wait := firstRestart
	firstRestart = time.Millisecond
	defer func() { firstRestart = wait }()
	e := newEar()
	h := ready(t, open(t, sandbox.Default()), e, own("once"))
	fails(t, h, "mcp_own_die", "{}")
	e.await(t, KindFailed, "exit code 3; its last words: I was here; it was started again 5 times, and is given up")
	if n := e.count(KindWarning, "it is started again"); n != maxRestarts {
		t.Errorf("it was started again %d times", n)
	}
	if st := h.Servers()[0]; st.OK || len(h.Tools()) > 0 {
		t.Errorf("%+v, %v", st, names(h))
	}
	if _, _, err := h.Call(t.Context(), "mcp_own_count", nil); !errors.Is(err, ErrNoTool) {
		t.Error(err)
	}
}

// A call takes no longer than it may, also of a server that does not even read; what it costs is bounded.
func TestServerThatDoesNotAnswer(t *testing.T) {
	sb := open(t, sandbox.Default())
	deaf := own("deaf")
	deaf.ToolTimeout = time.Second
	h := ready(t, sb, newEar(), deaf)
	args := `{"text":"` + strings.Repeat("x", 2<<20) + `"}`
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	done := make(chan string, 64)
	for range cap(done) {
		go func() {
			text, _, _ := h.Call(t.Context(), "mcp_own_count", []byte(args))
			done <- text
		}()
	}
	for range cap(done) {
		if got := <-done; got != "(MCP tool call timed out after 1s)" {
			t.Error(got)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	// Sixteen messages wait, and what the processes on the way hold is not ours.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 80<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
}

// Who gives a call up has the server told.
func TestCallThatIsGivenUp(t *testing.T) {
	h := ready(t, open(t, sandbox.Default()), newEar(), own("plain"))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("changed my mind")
	asked := make(chan error, 1)
	go func() {
		_, _, err := h.Call(ctx, "mcp_own_wait", nil)
		asked <- err
	}()
	// The server has heard of that call when it counts one more than these.
	for n := 1; works(t, h, "mcp_own_count", "") == fmt.Sprint(n); n++ {
	}
	cancel(why)
	if err := <-asked; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if got := works(t, h, "mcp_own_cancelled", ""); got != "cancelled" {
		t.Error(got)
	}
}

// A large answer is cut in the middle, arguments that are none are not sent.
func TestSizes(t *testing.T) {
	h := ready(t, open(t, sandbox.Default()), newEar(), own("plain"))
	got := works(t, h, "mcp_own_large", "")
	if len(got) > maxText+100 || !strings.HasPrefix(got, "first€") || !strings.HasSuffix(got, "€last") || !strings.Contains(got, " bytes are left out here)") {
		t.Errorf("%d bytes: %.40q", len(got), got)
	}
	for _, args := range []string{"[]", "1", "{", `{"a":"` + strings.Repeat("x", maxArgs) + `"}`} {
		if got := fails(t, h, "mcp_own_count", args); !strings.Contains(got, "arguments") {
			t.Errorf("%.10s: %s", args, got)
		}
	}
	if got := works(t, h, "mcp_own_count", ""); got != "2" {
		t.Errorf("the server was called %s times", got)
	}
}

// However much a server offers, what is taken is bounded and has names that fit; what is left out is told.
func TestToolsThatAreTooMany(t *testing.T) {
	sb, e := open(t, sandbox.Default()), newEar()
	h := ready(t, sb, e, own("tools"))
	all := h.Tools()
	if len(all) != maxTools {
		t.Errorf("there are %d tools", len(all))
	}
	seen := map[string]bool{}
	for _, tool := range all {
		if len(tool.Name) > maxName || strings.ContainsAny(tool.Name, " .") || seen[tool.Name] {
			t.Errorf("the name %q", tool.Name)
		}
		if len(tool.Description) > maxDescription+3 || len(tool.InputSchema) > maxSchema {
			t.Errorf("%s is large", tool.Name)
		}
		if !strings.Contains(string(tool.InputSchema), `"type":"object"`) {
			t.Errorf("of %s no provider takes the schema %.100s", tool.Name, tool.InputSchema)
		}
		seen[tool.Name] = true
	}
	if !seen["mcp_own_white_space"] || !seen["mcp_own_t100"] || seen["mcp_own_t199"] {
		t.Errorf("the tools are %v", names(h))
	}
	for _, told := range []string{"more than 65536", "is no object", "not of the type object", "has anyOf at its top", "longer than 256 bytes", "more than 128 tools"} {
		if e.count(KindWarning, told) == 0 {
			t.Errorf("%q was not told: %+v", told, e.events())
		}
	}
	e = newEar()
	h = ready(t, sb, e, own("pages"))
	if n := len(h.Tools()); n != maxPages || e.count(KindWarning, "does not end") != 1 {
		t.Errorf("%d tools of a list without an end", n)
	}
}

// Tools that come later are there.
func TestToolsThatChange(t *testing.T) {
	e := newEar()
	h := ready(t, open(t, sandbox.Default()), e, own("plain"))
	works(t, h, "mcp_own_grow", "")
	e.await(t, KindLog, "it offers 8 tools now")
	if !slices.Contains(names(h), "mcp_own_grown") {
		t.Errorf("the tools are %v", names(h))
	}
}

// When the servers are closed nothing of them is left in the sandbox: not one that does not want to go, nor what one
// left behind. Who still calls is told.
func TestNothingIsLeft(t *testing.T) {
	sb := open(t, sandbox.Default())
	stubborn, daemon := own("stubborn"), own("daemon")
	stubborn.Name, daemon.Name = "stubborn", "daemon"
	h := connect(t, sb, newEar(), stubborn, daemon)
	if len(h.Tools()) != 14 {
		t.Fatalf("%+v", h.Servers())
	}
	running := func() string {
		res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Stdout
	}
	if got := running(); !strings.Contains(got, "sleep 7654321") || !strings.Contains(got, "server.py stubborn") {
		t.Fatalf("there runs %q", got)
	}
	asked := make(chan error, 1)
	go func() {
		_, _, err := h.Call(t.Context(), "mcp_stubborn_wait", nil)
		asked <- err
	}()
	works(t, h, "mcp_stubborn_count", "")
	for range 2 {
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := <-asked; !errors.Is(err, ErrClosed) {
		t.Errorf("who waited got %v", err)
	}
	if _, _, err := h.Call(t.Context(), "mcp_daemon_count", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("who calls gets %v", err)
	}
	if got := running(); strings.Contains(got, "7654321") || strings.Contains(got, "server.py") {
		t.Errorf("there still runs %q", got)
	}
}

// The end of the sandbox is the end of the servers, and no reason to start them again.
func TestSandboxThatEnds(t *testing.T) {
	sb, e := open(t, sandbox.Default()), newEar()
	h := ready(t, sb, e, own("plain"))
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	e.await(t, KindFailed, "sandbox")
	if n := e.count(KindWarning, "started again"); n > 0 {
		t.Errorf("it was started again %d times", n)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
