package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"ravi/internal/adapter"
	"ravi/internal/command"
)

// hostileText is what a terminal would obey, in the ways in which programs say it.
const hostileText = "a\x1b[2J\x1b]0;title\x07b\r\u202ec\u0085d\x9be"

func TestGist(t *testing.T) {
	for input, want := range map[string]string{
		`{"command":"make test","description":"x"}`: "make test",
		`{"description":"look around"}`:             "look around",
		`{"command":["bash","-lc","make test"]}`:    "bash -lc make test",
		`{"cmd":"  cat <<E\nsecret\nE\n"}`:          "cat <<E …",
		`{"command":"one\n"}`:                       "one",
		`{"file_path":"a.go","content":"x"}`:        "a.go",
		`{"filePath":"b.go"}`:                       "b.go",
		`{"task":"long","label":"short"}`:           "short",
		`{"z":1,"a":2}`:                             "a, z",
		`{"command":7,"path":"p"}`:                  "p",
		`{}`:                                        "",
		`null`:                                      "",
		``:                                          "",
		`["x"]`:                                     `["x"]`,
		`{"command":"` + strings.Repeat("é", 161) + `"}`: strings.Repeat("é", 160) + "…",
		`{"command":"` + strings.Repeat("é", 160) + `"}`: strings.Repeat("é", 160),
		`{"` + strings.Repeat("k", 121) + `":1}`:         strings.Repeat("k", 120) + "…",
		`"` + strings.Repeat("x", 200) + `"`:             `"` + strings.Repeat("x", 119) + "…",
		`{"command":[{"a":"b"},null,"c"]}`:               "map[a:b] <nil> c",
	} {
		if got := gist(json.RawMessage(input)); got != want {
			t.Errorf("%.60s: %q, want %q", input, got, want)
		}
	}
}

// viewed gives what is shown of an event.
func viewed(t *testing.T, env *command.Env, events ...adapter.Event) string {
	t.Helper()
	var out bytes.Buffer
	env.Stdout = &out
	show := newAgentView(env)
	for _, e := range events {
		show(e)
	}
	return out.String()
}

func TestAgentView(t *testing.T) {
	for name, c := range map[string]struct {
		event adapter.Event
		want  string
	}{
		"what it says":      {adapter.Event{Kind: adapter.Text, Text: "one\ntwo\n\n"}, "one\ntwo\n"},
		"a tool":            {adapter.Event{Kind: adapter.Tool, Tool: "Bash", Input: json.RawMessage(`{"command":"ls"}`)}, "> Bash: ls\n"},
		"a result":          {adapter.Event{Kind: adapter.Result, Text: "fine"}, ""},
		"one that failed":   {adapter.Event{Kind: adapter.Result, Failed: true, Text: "\nno such file\nmore"}, "! no such file\n"},
		"on standard error": {adapter.Event{Kind: adapter.Result, Failed: true, Text: "STDERR:\nfatal: no\n\nExit code: 1"}, "! fatal: no\n"},
		"one that is long":  {adapter.Event{Kind: adapter.Result, Failed: true, Text: strings.Repeat("x", 300)}, "! " + strings.Repeat("x", 200) + "…\n"},
		"an error":          {adapter.Event{Kind: adapter.Error, Text: "overloaded\n"}, "! overloaded\n"},
		"of a sub-agent":    {adapter.Event{Kind: adapter.Tool, Tool: "exec", Input: json.RawMessage(`{"command":"ls"}`), Parent: "sub-1"}, "  > exec: ls\n"},
		"which failed":      {adapter.Event{Kind: adapter.Result, Failed: true, Text: "no such file", Parent: "sub-1"}, "  ! no such file\n"},
		"a note":            {adapter.Event{Kind: adapter.Note, Text: "tried again"}, ""},
		"of a failure":      {adapter.Event{Kind: adapter.Note, Text: "MCP server x: failed\nat once", Failed: true}, `! MCP server x: failed\nat once` + "\n"},
		"thinking":          {adapter.Event{Kind: adapter.Thinking, Text: "hm"}, ""},
		"start, usage, end": {adapter.Event{Kind: adapter.End, Text: "done"}, ""},
	} {
		if got := viewed(t, &command.Env{}, c.event); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := viewed(t, &command.Env{Quiet: true}, c.event); got != "" {
			t.Errorf("%s: with -q %q", name, got)
		}
	}
}

// Nothing that a program says is obeyed by a terminal: no control character comes through but the ends of lines, and
// what is one line stays one.
func TestAgentViewHostile(t *testing.T) {
	input, err := json.Marshal(map[string]string{"command": hostileText})
	if err != nil {
		t.Fatal(err)
	}
	events := []adapter.Event{
		{Kind: adapter.Text, Text: hostileText},
		{Kind: adapter.Tool, Tool: hostileText + "\nerror: forged", Input: input},
		{Kind: adapter.Tool, Tool: "x", Input: json.RawMessage(hostileText)},
		{Kind: adapter.Tool, Tool: "x", Input: json.RawMessage(`{"a\u001b[2J\nerror: forged":1}`)},
		{Kind: adapter.Result, Failed: true, Text: hostileText},
		{Kind: adapter.Error, Text: hostileText},
	}
	for _, e := range events {
		got := viewed(t, &command.Env{}, e)
		for _, r := range got {
			if r != '\n' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e') {
				t.Errorf("%s: %q has %U", e.Kind, got, r)
			}
		}
		if strings.Count(got, "\n") != 1 || strings.Contains(got, "\nerror") {
			t.Errorf("%s: %q is not one line", e.Kind, got)
		}
	}
	// Of Ravi's own there are two, around a whole line.
	var out bytes.Buffer
	(&agentView{w: &out, colour: true}).show(events[1])
	if got := out.String(); strings.Count(got, "\x1b") != 2 || !strings.HasPrefix(got, "\x1b[2m> a") || !strings.HasSuffix(got, "\x1b[0m\n") {
		t.Errorf("in colour: %q", got)
	}
}

// With --json each event is a value of its own in a line, whole, also with -q.
func TestAgentViewJSON(t *testing.T) {
	e := adapter.Event{Kind: adapter.Tool, Tool: "Bash", ID: "t1", Input: json.RawMessage(`{"command": "a\nb"}`)}
	got := viewed(t, &command.Env{JSON: true, Quiet: true}, e, adapter.Event{Kind: adapter.Text, Text: hostileText})
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 2 || lines[0] != `{"event":"agent","kind":"tool","tool":"Bash","id":"t1","input":{"command":"a\nb"}}` {
		t.Fatalf("got %q", lines)
	}
	var back struct {
		Event string `json:"event"`
		Kind  string `json:"kind"`
		Text  string `json:"text"`
	}
	if err := json.Unmarshal([]byte(lines[1]), &back); err != nil || back.Event != "agent" || back.Kind != adapter.Text || strings.ContainsAny(lines[1], "\x1b\u0085\u202e") {
		t.Errorf("%q: %+v, %v", lines[1], back, err)
	}
}
