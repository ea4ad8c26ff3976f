package modeltest

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestEverything plays a turn with all that a model says, in each dialect, streamed and in one piece.
func TestEverything(t *testing.T) {
	turn := Turn{
		Thinking("First I look around, naïvely."), Text("I look at \"both\" <files> & 漢字 of it.\n"), Shell("cat a && cat 'b'"),
		Call("read_file", object{"path": "ü", "big": json.Number("12345678901234567890"), "deep": []any{nil, true, object{}}}), Text("And then."),
	}
	for _, w := range ways {
		t.Run(w.name(), func(t *testing.T) {
			s, url := start(t, Script{Turns: []Turn{turn}})
			got := w.says(t, url, "u", w.offers())
			wanted := said{
				Thinking: "First I look around, naïvely.", Text: "I look at \"both\" <files> & 漢字 of it.\nAnd then.", Stop: "tools",
				Calls: []gotCall{
					{Name: "bash", Input: `{"command":"cat a \u0026\u0026 cat 'b'","description":"as the script says"}`},
					{Name: "read_file", Input: `{"big":12345678901234567890,"deep":[null,true,{}],"path":"ü"}`},
				},
			}
			for n := range wanted.Calls {
				if n < len(got.Calls) {
					wanted.Calls[n].ID = got.Calls[n].ID
				}
			}
			if got.Usage.Input < 10 || got.Usage.Output < 10 {
				t.Errorf("it used %+v", got.Usage)
			}
			wanted.Usage = got.Usage
			if diff := cmp.Diff(wanted, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Input" }, cmp.Comparer(sameJSON))); diff != "" {
				t.Error(diff)
			}
			again := w.says(t, url, "u", w.offers())
			ids := map[string]bool{}
			for _, c := range append(got.Calls, again.Calls...) {
				ids[c.ID] = true
			}
			if len(ids) != 4 || ids[""] {
				t.Errorf("the calls' ids are %v", ids)
			}
			if p := s.Requests()[0].Problem; p != "" {
				t.Error(p)
			}
		})
	}
}

// sameJSON says whether two texts are the same value.
func sameJSON(a, b string) bool {
	var x, y any
	dx, dy := json.NewDecoder(strings.NewReader(a)), json.NewDecoder(strings.NewReader(b))
	dx.UseNumber()
	dy.UseNumber()
	if dx.Decode(&x) != nil || dy.Decode(&y) != nil {
		return a == b
	}
	return cmp.Equal(x, y)
}

// TestPiecesAreTheWhole: whatever a model says, its pieces put together are it, and no piece is torn.
func TestPiecesAreTheWhole(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		whole, size := rapid.String().Draw(r, "text"), rapid.IntRange(1, 20).Draw(r, "size")
		all := pieces(whole, size)
		if strings.Join(all, "") != whole {
			r.Fatalf("%q is %q", whole, all)
		}
		for _, p := range all {
			if p == "" || !utf8.ValidString(p) || len(p) > size+3 {
				r.Fatalf("a piece is %q", p)
			}
		}
	})
}

// TestAnyTurn decodes streams of turns of any content, and finds what the script says.
func TestAnyTurn(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				var turn Turn
				wanted := said{Stop: "end"}
				for range rapid.IntRange(0, 6).Draw(r, "items") {
					s := rapid.String().Draw(r, "text")
					switch rapid.IntRange(0, 3).Draw(r, "kind") {
					case 0:
						turn, wanted.Text = append(turn, Text(s)), wanted.Text+s
					case 1:
						turn, wanted.Thinking = append(turn, Thinking(s)), wanted.Thinking+s
					case 2:
						turn = append(turn, Shell(s))
						wanted.Calls = append(wanted.Calls, gotCall{Name: "bash", Input: s})
					case 3:
						turn = append(turn, Call("other", s))
						wanted.Calls = append(wanted.Calls, gotCall{Name: "other", Input: s})
					}
				}
				if wanted.Calls != nil {
					wanted.Stop = "tools"
				}
				a := asked{dialect: w.dialect, endpoint: w.endpoint, model: "m", stream: true, sse: true, usage: true, tools: []tool{{Name: "bash", Type: "function"}}}
				reply, err := newReply(a, 1, turn)
				if err != nil {
					r.Fatal(err)
				}
				d := map[string]dialect{Messages: messages{}, Responses: responses{}, Chat: chat{}, Generate: gemini{}}[w.endpoint]
				var body strings.Builder
				for _, s := range d.stream(reply) {
					body.Write(s.data)
				}
				streamed := w.read(r, eventsOf(r, body.String()))
				whole := w.whole(r, string(encodeJSON(d.whole(reply))))
				for _, got := range []said{streamed, whole} {
					for n, c := range got.Calls {
						var s string
						var in struct{ Command string }
						if c.Name == "bash" && json.Unmarshal([]byte(c.Input), &in) == nil {
							s = in.Command
						} else if err := json.Unmarshal([]byte(c.Input), &s); err != nil {
							r.Fatal(err)
						}
						got.Calls[n].Input, got.Calls[n].ID = s, ""
					}
					wanted.Usage = reply.used
					if diff := cmp.Diff(wanted, got); diff != "" {
						r.Fatal(diff)
					}
				}
			})
		})
	}
}

func TestUsageAsTheScriptSays(t *testing.T) {
	for _, u := range []Usage{{Input: 1000, Output: 200, CacheRead: 30000, CacheWrite: 400}, {Output: 1}, {}} {
		testUsage(t, u)
	}
}

func testUsage(t *testing.T, u Usage) {
	script := Script{Turns: []Turn{{Thinking("more than one token"), Text("x"), Uses(u)}}}
	for _, w := range ways {
		_, url := start(t, script)
		wanted := u
		if w.dialect == Gemini { // which has no word for what is written to a cache
			wanted.Input, wanted.CacheWrite = u.Input+u.CacheWrite, 0
		}
		body := w.body("u", false, w.offers())
		for _, got := range []said{w.says(t, url, "u", w.offers()), w.whole(t, ask(t, "POST", url+w.path(false), body).body)} {
			if got.Usage != wanted {
				t.Errorf("%s: %+v", w.name(), got.Usage)
			}
		}
	}
}

// TestChatUsageIfAsked: a stream of chunks has no usage by itself, neither a last one nor a null.
func TestChatUsageIfAsked(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Text("x")}}})
	w := ways[2]
	body := w.body("u", true, w.offers())
	delete(body, "stream_options")
	a := ask(t, "POST", url+w.path(true), body)
	if got := w.read(t, events(t, a)); got.Usage != (Usage{}) || strings.Contains(a.body, "usage") {
		t.Errorf("%s", a.body)
	}
}

// TestGeminiArray is the stream without alt=sse: one array, which is valid when it is over.
func TestGeminiArray(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Text("in many pieces of text"), Shell("ls")}}})
	w := ways[3]
	a := ask(t, "POST", url+"/v1beta/models/m:streamGenerateContent", w.body("u", true, w.offers()))
	var all []json.RawMessage
	decode(t, a.body, &all)
	var stream []event
	for _, one := range all {
		stream = append(stream, event{data: string(one)})
	}
	if got := w.read(t, stream); got.Text != "in many pieces of text" || len(got.Calls) != 1 || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		t.Errorf("%+v", got)
	}
}

func TestReasoningInItsOpaqueForm(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Thinking("hm")}}})
	w := ways[1]
	for _, include := range []bool{false, true} {
		body := w.body("u", false, w.offers())
		if include {
			body["include"] = []string{"reasoning.encrypted_content"}
		}
		var r response
		decode(t, ask(t, "POST", url+w.path(false), body).body, &r)
		if (r.Output[0].Encrypted != "") != include || r.Store {
			t.Errorf("%v: %+v", include, r)
		}
	}
}
