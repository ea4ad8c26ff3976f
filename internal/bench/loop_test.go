package bench

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/agent"
	"ravi/internal/adapter"
)

// The measures of the loop are taken only if they are named. Some need no sandbox of the benchmark's own.
func TestLoopOnlyWhenNamed(t *testing.T) {
	all := &bench{}
	for _, name := range loopMeasures {
		if all.want(name) {
			t.Errorf("%s is measured though nobody named it", name)
		}
	}
	named := &bench{Options: Options{Only: expand([]string{loopAll})}}
	if !named.want(loopAdds) || !named.want(loopLost) || !named.want(loopSubsAll) || !named.want(agentTurn) || named.want("model_first") || named.alone() {
		t.Errorf("%v is wrong", named.Only)
	}
	for name, alone := range map[string]bool{loopExec: false, loopMCP: false, loopSubs: true, loopGate: true} {
		if b := (&bench{Options: Options{Only: []string{name}}}); b.alone() != alone {
			t.Errorf("%s alone: %v", name, b.alone())
		}
	}
	if !slices.Contains(Groups(), loopAll) {
		t.Errorf("there is no group %s in %v", loopAll, Groups())
	}
}

// A command that fails is no sample: the turn of the model that asked for it fails.
func TestOneCall(t *testing.T) {
	m := &oneCall{}
	ask := func(messages ...agent.Message) (agent.Answer, error) {
		return m.Next(t.Context(), agent.Request{Messages: messages}, nil)
	}
	first, err := ask(agent.Message{Role: agent.User, Text: "Run it."})
	if err != nil || len(first.Message.Calls) != 1 || first.Message.Calls[0].Name != "exec" || string(first.Message.Calls[0].Args) != `{"command":"/bin/true"}` {
		t.Fatalf("%+v, %v", first, err)
	}
	if m.took != 0 {
		t.Errorf("nothing was done, which took %v", m.took)
	}
	if _, err := ask(agent.Message{Role: agent.User, Results: []agent.Result{{Text: "no such file", Failed: true}}}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a command that failed: %v", err)
	}
	last, err := ask(agent.Message{Role: agent.User, Results: []agent.Result{{Text: "exit code 0"}}})
	if err != nil || len(last.Message.Calls) > 0 || m.took <= 0 {
		t.Errorf("%+v, %v, %v", last, err, m.took)
	}
}

// All the commands that are judged are allowed; one that is not is no sample.
func TestLoopGates(t *testing.T) {
	b := &bench{Options: Options{Runs: 2, Only: loopMeasures}, report: &Report{}}
	if err := b.loopGates(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := b.report.find(loopGate, byOrdinary)
	if x == nil || x.Failures > 0 || len(x.Samples) != 2*gatesARound || slices.Min(x.Samples) <= 0 {
		t.Fatalf("%+v", x)
	}
	before := ordinary
	defer func() { ordinary = before }()
	ordinary = append(slices.Clone(before), "git push --force")
	b.report = &Report{}
	if err := b.loopGates(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x := b.report.find(loopGate, byOrdinary); x == nil || x.Failures != 1 || len(x.Samples) > 0 || !strings.Contains(x.Error, "git push") {
		t.Errorf("%+v", x)
	}
}

// The server of Ravi's own says what it is told, and ends with its input.
func TestMCPJob(t *testing.T) {
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	over := make(chan error, 1)
	go func() { over <- Client(context.Background(), `{"do":"mcp"}`, in, out) }()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &sdk.IOTransport{Reader: stdout, Writer: stdin}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &mcpCaller{call: func(ctx context.Context, text string) (string, error) { return echoBy(ctx, session, text) }}
	for n := range 3 {
		if took, err := c.echo(t.Context(), n); err != nil || took <= 0 {
			t.Errorf("%v, %v", took, err)
		}
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// What a server says that is not what it was told is no sample.
func TestEcho(t *testing.T) {
	c := &mcpCaller{call: func(context.Context, string) (string, error) { return "the call 8", nil }}
	if _, err := c.echo(t.Context(), 8); err != nil {
		t.Error(err)
	}
	if _, err := c.echo(t.Context(), 9); err == nil || !strings.Contains(err.Error(), "the call 8") {
		t.Error(err)
	}
}

// Without node's server the report says what installs it.
func TestNodeModules(t *testing.T) {
	bin, root := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	if _, err := nodeModules(t.Context()); !errors.Is(err, errMissing) {
		t.Errorf("without npm: %v", err)
	}
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\n[ \"$*\" = 'root --global' ] && echo "+root+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := nodeModules(t.Context()); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "npm install --global "+nodePackage) {
		t.Errorf("without the package: %v", err)
	}
	dist := filepath.Join(root, nodePackage, "dist")
	if err := errors.Join(os.MkdirAll(dist, 0o755), os.WriteFile(filepath.Join(dist, "index.js"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if got, err := nodeModules(t.Context()); err != nil || got != root {
		t.Errorf("%q, %v", got, err)
	}
}

// The provider has whoever can spawn spawn, and the others look.
func TestSubModels(t *testing.T) {
	url, end, err := newSubModels(3).serve()
	if err != nil {
		t.Fatal(err)
	}
	c := newModelClient("x")
	says := func(tools ...string) string {
		t.Helper()
		var offered []string
		for _, name := range tools {
			offered = append(offered, `{"name": "`+name+`", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}`)
		}
		body := strings.TrimSuffix(question("scripted-1", 10), "}") + `,"tools":[` + strings.Join(offered, ",") + `]}`
		stream, err := c.open(t.Context(), url, body)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		b, err := io.ReadAll(stream)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := says("exec", "spawn"); strings.Count(got, `"name":"spawn"`) != 3 {
		t.Errorf("whoever may spawn hears %s", got)
	}
	if got := says("exec", "finish"); strings.Contains(got, "spawn") || strings.Count(got, `"name":"exec"`) != 1 {
		t.Errorf("a sub-agent hears %s", got)
	}
	resp, err := http.Post(url+"/v1/messages", "application/json", strings.NewReader("no JSON"))
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%v, %v", resp, err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	c.close()
	if err := end(); err != nil {
		t.Error(err)
	}
}

// When sub-agents worked and what came of them is read from what the run wrote.
func TestSubsIn(t *testing.T) {
	const (
		events = `{"event":"started","id":"r","command":["x"],"agent":1}
{"time":"2026-01-01T00:00:01Z","event":"subagent","id":"sub-1","label":"a"}
{"time":"2026-01-01T00:00:02Z","event":"subagent","id":"sub-2","label":"b"}
{"time":"2026-01-01T00:00:03Z","event":"agent","agent":{"kind":"result","parent":"sub-1"}}
{"time":"2026-01-01T00:00:04Z","event":"agent","agent":{"kind":"note","text":"about nobody"}}
{"time":"2026-01-01T00:00:05Z","event":"agent","agent":{"kind":"note","text":"a: done","parent":"sub-1"}}
`
		second  = `{"time":"2026-01-01T00:00:06Z","event":"agent","agent":{"kind":"note","text":"b: timeout","parent":"sub-2"}}` + "\n"
		journal = `{"spawn":"sub-1"}
{"sub":{"id":"sub-1","label":"a","status":"done","text":"fine"}}
{"sub":{"id":"sub-2","label":"b","status":"timeout","text":"too slow"}}
`
	)
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	got, err := subsIn([]byte(events+second), []byte(journal))
	want := []sub{{"sub-1", at(1), at(5), agent.SubDone, "fine"}, {"sub-2", at(2), at(6), agent.SubTimeout, "too slow"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sub{})); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for what, c := range map[string]struct{ events, journal, says string }{
		"no end":     {events, journal, `"sub-2"`},
		"no report":  {events + second, `{"sub":{"id":"sub-1","status":"done"}}`, `"sub-2"`},
		"no begin":   {second, journal, "had not begun"},
		"no event":   {"{", journal, "events"},
		"no journal": {events + second, "{", "journal"},
	} {
		if _, err := subsIn([]byte(c.events), []byte(c.journal)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for most, subs := range map[int][]sub{
		0: nil,
		1: {{begin: at(1), end: at(2)}, {begin: at(2), end: at(3)}},
		2: {{begin: at(1), end: at(5)}, {begin: at(2), end: at(3)}, {begin: at(3), end: at(4)}},
		3: {{begin: at(1), end: at(5)}, {begin: at(1), end: at(3)}, {begin: at(2), end: at(4)}},
	} {
		if got := mostAtOnce(subs); got != most {
			t.Errorf("%d at once, not %d: %v", got, most, subs)
		}
	}
}

// The goals of the loop are compared with what they are meant to be.
func TestLoopGoals(t *testing.T) {
	for _, c := range []struct {
		factor float64
		met    bool
	}{{1, true}, {2, false}} {
		b := &bench{Options: Options{Only: loopMeasures}, report: &Report{}}
		add := func(name, by string, values ...float64) {
			for _, v := range values {
				b.add(name, by, v)
			}
		}
		add(loopAdds, byTool, 6*c.factor, 9*c.factor, 40)
		add(loopMCP, turnBy(ownServer, ours), 1.4*c.factor)
		add(loopMCP, turnBy(ownServer, besideRunsc), 1)
		add(loopMCP, turnBy(nodeServer, ours), 2.9*c.factor)
		add(loopMCP, turnBy(nodeServer, besideRunsc), 2)
		add(loopLost, ours, 0, c.factor-1, 0)
		add(agentTurn, turnBy(adapter.Loop, ours), 800*c.factor)
		add(agentTurn, turnBy("claude", ours), 1000)
		b.report.finish()
		met := map[string]bool{}
		for _, g := range b.report.Goals {
			met[g.Name] = g.Met
		}
		want := map[string]bool{}
		for _, name := range []string{"added to a command by the loop", "MCP call, own, as 1.5 runsc exec", "MCP call, node, as 1.5 runsc exec", "20 sub-agents at once, not done", "a turn of the loop, as one of claude"} {
			want[name] = c.met
		}
		if diff := cmp.Diff(want, met); diff != "" {
			t.Errorf("%v: %s", c.factor, diff)
		}
	}
	for by, want := range map[string]bool{byTool: true, byExec: true, byInside: true, byOrdinary: true, turnBy(ownServer, ours): true, turnBy(ownServer, besideRunsc): false} {
		if isOurs(by) != want {
			t.Errorf("%s: %v", by, isOurs(by))
		}
	}
}
