package adapter

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden events anew")

// read gives a stream to a program's reader in pieces.
func read(program string, stream []byte, piece int) []Event {
	p, ok := Lookup(program)
	if !ok {
		panic(program)
	}
	var out []Event
	w := p.NewReader(func(e Event) { out = append(out, e) })
	for part := range slices.Chunk(stream, max(piece, 1)) {
		if n, err := w.Write(part); n != len(part) || err != nil {
			panic(fmt.Sprint(n, err))
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out
}

func show(events []Event) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, event := range events {
		if err := e.Encode(event); err != nil {
			panic(err)
		}
	}
	return b.String()
}

// streams are what the programs wrote, each at the version that is pinned, with a scripted model.
func streams(t testing.TB) []string {
	names, err := filepath.Glob("testdata/streams/*.jsonl")
	if err != nil || len(names) < 15 {
		t.Fatalf("there are %d streams, %v", len(names), err)
	}
	return names
}

func program(stream string) string {
	name, _, _ := strings.Cut(filepath.Base(stream), "-")
	return name
}

func TestStreams(t *testing.T) {
	for _, name := range streams(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			stream, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := show(read(program(name), stream, len(stream)))
			golden := strings.TrimSuffix(name, ".jsonl") + ".events"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("it says:\n%s\nnot:\n%s", got, want)
			}
			// However it comes in, it is the same, and a last line without its end too.
			for _, piece := range []int{1, 7, 4096} {
				if again := show(read(program(name), bytes.TrimSuffix(stream, []byte("\n")), piece)); again != got {
					t.Errorf("in pieces of %d:\n%s", piece, again)
				}
			}
		})
	}
}

// Cut anywhere, a stream has one end, and it is no good one before the program was done.
func TestCutStreams(t *testing.T) {
	for _, name := range streams(t) {
		if !strings.HasSuffix(name, "-hello.jsonl") {
			continue
		}
		stream, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(bytes.TrimSpace(stream), []byte("\n"))
		for n := range lines[:len(lines)-1] {
			events := read(program(name), bytes.Join(lines[:n], nil), 1<<20)
			end := events[len(events)-1]
			// pi ends with lines that say nothing new.
			if done := program(name) == "pi" && n > len(lines)-3; end.Kind != End || end.Failed == done {
				t.Errorf("%s after %d of %d lines: %+v", name, n, len(lines), end)
			}
		}
	}
}

func TestReaders(t *testing.T) {
	for _, c := range []struct{ name, program, stream, want string }{
		{"nothing", "claude", "", `{"kind":"end","text":"it ended before it was done","failed":true}` + "\n"},
		{"a command", Command, "one\n\n two \n", `{"kind":"text","text":"one"}
{"kind":"text","text":"two"}
{"kind":"end","text":"two"}
`},
		{"a command that says nothing", Command, "", `{"kind":"end"}` + "\n"},
		{"what is no JSON", "codex", "warning: \x1b[31mred\xff\n{\"type\":\n[1]\nnull\n", `{"kind":"note","text":"warning: \u001b[31mred�"}
{"kind":"note","text":"[1]"}
{"kind":"note","text":"null"}
{"kind":"end","text":"it ended before it was done","failed":true}
`},
		{"another form of one field", "claude", `{"type":"system","subtype":"init","session_id":"a","model":7,"message":"x"}
{"type":"result","is_error":false,"result":"Done.","modelUsage":{"m":{"inputTokens":"many","outputTokens":2},"n":{"cacheReadInputTokens":3,"outputTokens":1}}}
`, `{"kind":"start","session":"a"}
{"kind":"usage","input_tokens":3,"output_tokens":3}
{"kind":"end","text":"Done.","session":"a","input_tokens":3,"output_tokens":3}
`},
		{"names that are none", "claude", `{"type":"system","subtype":"init","session_id":"--settings","model":"a b"}` + "\n", `{"kind":"end","text":"it ended before it was done","failed":true}` + "\n"},
		{"a subagent", "claude", `{"type":"assistant","parent_tool_use_id":"t1","message":{"content":[{"type":"text","text":"below"}]}}
{"type":"assistant","message":{"content":[{"type":"text","text":"above"}]}}
{"type":"assistant","parent_tool_use_id":"t1","message":{"content":[{"type":"text","text":"below"}]}}
{"type":"result","is_error":false}
`, `{"kind":"text","text":"below","parent":"t1"}
{"kind":"text","text":"above"}
{"kind":"text","text":"below","parent":"t1"}
{"kind":"end","text":"above"}
`},
		{"claude's limits", "claude", `{"type":"result","subtype":"error_max_turns","is_error":true}` + "\n", `{"kind":"end","text":"error_max_turns","failed":true}` + "\n"},
		{"claude's errors", "claude", `{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["no conversation found"]}` + "\n", `{"kind":"end","text":"no conversation found","failed":true}` + "\n"},
		{"claude goes on after an overload, and is killed", "claude", `{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"error_status":529}
{"type":"assistant","message":{"content":[{"type":"text","text":"Well."}]}}
`, `{"kind":"note","text":"the provider answered 529; attempt 1 of 10"}
{"kind":"text","text":"Well."}
{"kind":"end","text":"it ended before it was done","failed":true}
`},
		{"codex's command fails", "codex", `{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"a > b","exit_code":2,"status":"completed"}}
{"type":"item.completed","item":{"id":"2","type":"command_execution","command":"a","exit_code":null,"status":"declined"}}
{"type":"turn.completed"}
`, `{"kind":"tool","tool":"shell","id":"1","input":{"command":"a > b"}}
{"kind":"result","id":"1","failed":true}
{"kind":"tool","tool":"shell","id":"2","input":{"command":"a"}}
{"kind":"result","id":"2","failed":true}
{"kind":"end"}
`},
		{"codex goes on after a broken line", "codex", `{"type":"turn.started"}
{"type":"error","message":"Reconnecting... 1/5"}
{"type":"turn.completed","usage":{"input_tokens":-5,"output_tokens":3}}
`, `{"kind":"note","text":"Reconnecting... 1/5"}
{"kind":"end"}
`},
		{"codex warns and goes on", "codex", `{"type":"item.completed","item":{"type":"error","message":"no metadata"}}
{"type":"turn.completed"}
`, `{"kind":"note","text":"no metadata"}
{"kind":"end"}
`},
		{"codex's other tools", "codex", `{"type":"item.started","item":{"id":"1","type":"mcp_tool_call","server":"files","tool":"read","arguments":{"a":1}}}
{"type":"item.completed","item":{"id":"1","type":"mcp_tool_call","server":"files","tool":"read","arguments":{"a":1},"result":{"content":[{"type":"text","text":"x"},{"type":"image"}]},"status":"completed"}}
{"type":"item.completed","item":{"id":"2","type":"mcp_tool_call","server":"files","tool":"write","error":{"message":"no"},"status":"failed"}}
{"type":"item.completed","item":{"id":"3","type":"web_search","query":"q"}}
{"type":"item.started","item":{"id":"4","type":"todo_list"}}
{"type":"turn.completed"}
`, `{"kind":"tool","tool":"files.read","id":"1","input":{"a":1}}
{"kind":"result","text":"x\n[image]","id":"1"}
{"kind":"tool","tool":"files.write","id":"2"}
{"kind":"result","text":"no","id":"2","failed":true}
{"kind":"tool","tool":"web_search","id":"3","input":{"query":"q"}}
{"kind":"result","id":"3"}
{"kind":"end"}
`},
		{"gemini says it in pieces", "gemini", `{"type":"message","role":"assistant","content":"a","delta":true}
{"type":"message","role":"assistant","content":"b","delta":true}
{"type":"error","severity":"warning","message":"loop"}
{"type":"message","role":"assistant","content":"c","delta":true}
{"type":"result","status":"success"}
`, `{"kind":"text","text":"ab"}
{"kind":"note","text":"loop"}
{"kind":"text","text":"c"}
{"kind":"end","text":"c"}
`},
		{"gemini's tool fails", "gemini", `{"type":"tool_result","tool_id":"1","status":"error","error":{"message":"denied"}}
{"type":"error","severity":"error","message":"turns"}
{"type":"result","status":"error"}
`, `{"kind":"result","text":"denied","id":"1","failed":true}
{"kind":"error","text":"turns","failed":true}
{"kind":"end","text":"turns","failed":true}
`},
		{"opencode's tool fails", "opencode", `{"type":"tool_use","sessionID":"ses_1","part":{"tool":"bash","callID":"c","state":{"status":"error","input":{"command":"x"},"error":"denied"}}}
{"type":"step_finish","sessionID":"ses_1","part":{"reason":"tool-calls"}}
`, `{"kind":"start","session":"ses_1"}
{"kind":"tool","tool":"bash","id":"c","input":{"command":"x"}}
{"kind":"result","text":"denied","id":"c","failed":true}
{"kind":"end","text":"it ended before it was done","failed":true,"session":"ses_1"}
`},
		{"pi tries again", "pi", `{"type":"message_end","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"429 slow"}}
{"type":"auto_retry_start","attempt":1,"maxAttempts":3,"errorMessage":"429 slow"}
{"type":"message_end","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"Done."}],"stopReason":"stop","model":"m"}}
`, `{"kind":"error","text":"429 slow","failed":true}
{"kind":"note","text":"429 slow; attempt 1 of 3"}
{"kind":"start","model":"m"}
{"kind":"thinking","text":"hm"}
{"kind":"text","text":"Done."}
{"kind":"end","text":"Done.","model":"m"}
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := show(read(c.program, []byte(c.stream), len(c.stream))); got != c.want {
				t.Errorf("it says:\n%s\nnot:\n%s", got, c.want)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	long := strings.Repeat("a", maxLine)
	for _, c := range []struct {
		name, program, stream string
		want                  func([]Event) bool
	}{
		{"a long line is left out, and the next is read", "claude", `{"type":"x` + long + "\n" + `{"type":"result","result":"Done."}`, func(e []Event) bool {
			return len(e) == 2 && e[0].Kind == Note && e[1].Text == "Done." && !e[1].Failed
		}},
		{"a long last line without an end", "claude", long + "a", func(e []Event) bool { return len(e) == 2 && e[0].Kind == Note }},
		{"a line of just that length", Command, long, func(e []Event) bool { return len(e) == 2 && e[0].Kind == Text && len(e[0].Text) == maxText+len("…") }},
		{"a long line that says nothing new", "pi", `{"type":"agent_end","messages":"` + long + "\"}\n", func(e []Event) bool { return len(e) == 1 }},
		{"many events of one line", "claude", `{"type":"assistant","message":{"content":[` + strings.Repeat(`{"type":"text","text":"a"},`, 5000) + `{}]}}`, func(e []Event) bool { return len(e) == maxEvents+1 }},
		{"a long input", "claude", `{"type":"assistant","message":{"content":[{"type":"tool_use","name":"` + long[:500] + `","input":{"a":"` + long[:maxInput] + `"}}]}}`, func(e []Event) bool {
			return len(e) == 2 && e[0].Input == nil && len(e[0].Tool) == maxName+len("…")
		}},
		{"a long answer", "claude", `{"type":"result","result":"` + strings.Repeat("é", maxText) + `"}`, func(e []Event) bool {
			return len(e[0].Text) <= maxText+len("…") && utf8.ValidString(e[0].Text)
		}},
		{"depth", "claude", strings.Repeat(`{"a":`, 200_000), func(e []Event) bool { return len(e) == 1 }},
		{"pieces that never end", "gemini", strings.Repeat(`{"type":"message","role":"assistant","content":"`+long[:10_000]+`"}`+"\n", 50), func(e []Event) bool {
			return len(e) > 5 && len(e[0].Text) <= maxText
		}},
		{"counts beyond counting", "pi", strings.Repeat(`{"type":"message_end","message":{"role":"assistant","usage":{"input":9223372036854775807,"output":1}}}`+"\n", 3), func(e []Event) bool {
			return len(e) == 1 && e[0].InputTokens == 0 && e[0].OutputTokens == 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e := read(c.program, []byte(c.stream), 1000); !c.want(e) {
				t.Errorf("%d events, the first %.300s", len(e), show(e[:1]))
			}
		})
	}
}

// Tools that are begun and never end do not gather without bound.
func TestUnendedTools(t *testing.T) {
	seen := ids{}
	for i := range 10 * maxEvents {
		if !seen.add(fmt.Sprint(i)) || seen.add(fmt.Sprint(i)) {
			t.Fatal(i)
		}
	}
	if len(seen) > maxEvents {
		t.Errorf("%d are kept", len(seen))
	}
}

func TestClosed(t *testing.T) {
	var events []Event
	p, _ := Lookup(Command)
	w := p.NewReader(func(e Event) { events = append(events, e) })
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := io.WriteString(w, "late\n"); n != 5 || err != nil || len(events) != 1 {
		t.Errorf("%d, %v, %d events", n, err, len(events))
	}
}

// sound is what holds for whatever is read.
func sound(t interface{ Fatalf(string, ...any) }, events []Event) {
	for i, e := range events {
		if last := i == len(events)-1; last != (e.Kind == End) {
			t.Fatalf("event %d of %d is %+v", i, len(events), e)
		}
		if len(e.Text) > maxText+3 || len(e.Input) > maxInput || len(e.Tool) > maxName+3 || len(e.ID) > maxName+3 || len(e.Parent) > maxName+3 {
			t.Fatalf("event %d is too large", i)
		}
		if e.Session != "" && !isSession.MatchString(e.Session) || e.Model != "" && !isModel.MatchString(e.Model) {
			t.Fatalf("event %d: %q, %q", i, e.Session, e.Model)
		}
		if e.InputTokens < 0 || e.OutputTokens < 0 {
			t.Fatalf("event %d: %d, %d", i, e.InputTokens, e.OutputTokens)
		}
		out, err := json.Marshal(e)
		if err != nil || bytes.ContainsRune(out, '\n') || !utf8.Valid(out) {
			t.Fatalf("event %d cannot be written: %v, %q", i, err, out)
		}
	}
	if len(events) == 0 {
		t.Fatalf("there is no end")
	}
}

// However a stream is cut into pieces, it is the same stream.
func TestPieces(t *testing.T) {
	var all [][]byte
	for _, name := range streams(t) {
		stream, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.SplitAfter(stream, []byte("\n"))...)
	}
	names := []string{"claude", "codex", "gemini", "opencode", "pi", Command}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "program")
		var stream []byte
		for range rapid.IntRange(0, 20).Draw(t, "lines") {
			if rapid.Bool().Draw(t, "real") {
				stream = append(stream, rapid.SampledFrom(all).Draw(t, "line")...)
			} else {
				stream = append(append(stream, rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")...), '\n')
			}
		}
		whole := read(name, stream, len(stream))
		sound(t, whole)
		if pieces := read(name, stream, rapid.IntRange(1, 50).Draw(t, "piece")); show(pieces) != show(whole) {
			t.Fatalf("in pieces:\n%s\nwhole:\n%s", show(pieces), show(whole))
		}
	})
}

func FuzzReaders(f *testing.F) {
	for _, name := range streams(f) {
		stream, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(program(name), stream)
	}
	f.Add("claude", []byte(`{"type":"assistant","message":{"content":[{"type":"tool_use","input":{"a":"`+"\xff"+`"}}]}}`))
	f.Fuzz(func(t *testing.T, name string, stream []byte) {
		if _, ok := Lookup(name); !ok {
			return
		}
		sound(t, read(name, stream, len(stream)))
	})
}
