package provider

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ravi/agent"
)

// How an answer ended is told: that it was cut, that there is none, and that it is no answer.
func TestEnds(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		for name, c := range map[string]struct {
			said said
			cut  bool
			err  error
		}{
			"done":            {said{text: "so", end: d.end("done")}, false, nil},
			"nothing":         {said{end: d.end("done")}, false, nil},
			"cut":             {said{text: "so", end: d.end("cut")}, true, nil},
			"cut in a call":   {said{calls: []string{`{"at":`}, end: d.end("cut")}, true, nil},
			"declined":        {said{text: "so", end: d.end("declined")}, false, errDeclined},
			"without an end":  {said{text: "so"}, false, errHalf},
			"without a start": {said{}, false, errHalf},
		} {
			t.Run(name, func(t *testing.T) {
				body := c.said.stream(d)
				if name == "without a start" {
					body = ""
				}
				m, _ := d.answers(t, body)
				a, _, err := asked(t.Context(), m)
				if !errors.Is(err, c.err) || a.Cut != c.cut {
					t.Errorf("%+v, %v", a, err)
				}
				if err == nil && (a.Message.Text != c.said.text || len(a.Message.Calls) != len(c.said.calls)) {
					t.Errorf("%+v", a)
				}
			})
		}
	})
}

// Whatever a model wrote, the conversation goes on: each request is one that the broker takes, which looks at all of it.
func TestStrangeAnswers(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		deep := `{"at":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + "}"
		for name, s := range map[string]said{
			"half of the arguments": {calls: []string{`{"at": "`}},
			"no arguments":          {calls: []string{""}},
			"no object":             {calls: []string{`["at"]`}},
			"a key twice":           {calls: []string{`{"at":"a","at":"b"}`}},
			"deep ones":             {calls: []string{deep}},
			"many values":           {calls: []string{`{"at":[` + strings.Repeat("1,", 300_000) + `1]}`}},
			"long ones":             {calls: []string{`{"at":"` + strings.Repeat("x", 2<<20) + `"}`}},
			"a zero byte":           {text: "a\x00b", calls: []string{`{"at":"a\u0000b"}`}},
			"half a character":      {calls: []string{`{"at":"\ud800"}`}},
			"spaces and a call":     {text: " \n", calls: []string{"{}"}},
			"what is fine":          {calls: []string{`{"at":"a"}`, `{"at":"b"}`}},
		} {
			t.Run(name, func(t *testing.T) {
				s.end = d.end("calls")
				m, c := d.answers(t, s.stream(d), s.stream(d), said{text: "so it is", end: d.end("done")}.stream(d))
				if out := turn(t, m); out.Text != "so it is" || len(c.asked) != 3 {
					t.Errorf("%+v after %d questions", out, len(c.asked))
				}
				if n := len(c.asked[2]); n > 200<<10 {
					t.Errorf("the conversation has %d bytes", n)
				}
			})
		}
	})
}

// An answer with nothing in it is no message, in the turn after it.
func TestEmptyAnswers(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		for _, text := range []string{"", " ", "\n\n"} {
			m, c := d.answers(t, said{text: text, end: d.end("cut")}.stream(d), said{text: text, end: d.end("done")}.stream(d), said{text: "so", end: d.end("done")}.stream(d))
			l, err := agent.New(agent.Config{Model: m})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if out, err := l.Turn(t.Context(), "do it"); err != nil || out.Reason != agent.Finished {
					t.Fatal(out, err)
				}
			}
			if d.name == "anthropic" && strings.Contains(string(c.asked[2]), `"role":"assistant"`) {
				t.Errorf("%q is sent back: %s", text, c.asked[2])
			}
		}
	})
}

// Thoughts go back as they came, those that nobody may read too; one that is not whole is left out, and so is an answer
// that has nothing else.
func TestThoughts(t *testing.T) {
	d := dialects[0]
	signed, secret := object{"type": "thinking", "thinking": "so <it> is", "signature": "sig=="}, object{"type": "redacted_thinking", "data": "opaque=="}
	half := object{"type": "thinking", "thinking": "half a", "signature": ""}
	m, c := d.answers(t, said{blocks: []object{signed, secret, half}, calls: []string{"{}"}, end: "tool_use"}.stream(d),
		said{blocks: []object{half}, end: "max_tokens"}.stream(d), said{blocks: []object{signed}, end: "max_tokens"}.stream(d), said{text: "so", end: "end_turn"}.stream(d))
	turn(t, m)
	for _, want := range []string{`{"signature":"sig==","thinking":"so \u003cit\u003e is","type":"thinking"}`, `{"data":"opaque==","type":"redacted_thinking"}`} {
		if !strings.Contains(string(c.asked[1]), want) && !strings.Contains(string(c.asked[1]), strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(want)) {
			t.Errorf("%s is not in %s", want, c.asked[1])
		}
	}
	if last := string(c.asked[3]); strings.Contains(last, "half a") || strings.Count(last, `"thinking":`) != 1 {
		t.Errorf("what is sent in the end is %s", last)
	}
}

// An answer without end is given up, and so is an error page that is none of the provider's.
func TestTooMuch(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		piece := said{text: strings.Repeat("x", 1<<20)}.stream(d)
		call := said{calls: []string{strings.Repeat("x", 1<<20)}}.stream(d)
		for name, body := range map[string]string{"text": piece, "arguments": call} {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 1000 {
					if _, err := io.WriteString(w, body); err != nil {
						return
					}
				}
			}))
			if _, _, err := asked(t.Context(), d.model(Options{BaseURL: web.URL, Key: key, Model: "scripted-1"})); !errors.Is(err, errTooLong) {
				t.Errorf("%s: %v", name, err)
			}
			web.Close()
		}
		for body, want := range map[string]string{
			"<html>\n<b>Bad  gateway</b>": "the provider answered 404: <html> <b>Bad gateway</b>", "": "the provider answered 404: Not Found", `{"error":"no such page"}`: "the provider answered 404: no such page",
			`{"message":"said plainly"}`: "the provider answered 404: said plainly",
		} {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, body)
			}))
			_, _, err := asked(t.Context(), d.model(Options{BaseURL: web.URL, Key: key, Model: "scripted-1"}))
			if err == nil || err.Error() != want {
				t.Errorf("%q is told as %v", body, err)
			}
			web.Close()
		}
	})
}

// What a provider says is told as far as anybody would read it.
func TestLongError(t *testing.T) {
	e := &apiError{status: 500, body: `{"error":{"message":"` + strings.Repeat("é", 2000) + `"}}`, err: io.EOF}
	if text := e.Error(); len([]rune(text)) > mostWhy+40 || !strings.HasSuffix(text, "é…") || !errors.Is(e, io.EOF) {
		t.Errorf("%d characters: %.100s", len([]rune(text)), text)
	}
}

// Servers that number none of several calls mean several.
func TestCallsWithoutNumbers(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		if d.name != "openai" {
			return
		}
		var b strings.Builder
		for _, delta := range []object{
			{"id": "a", "type": "function", "function": object{"name": "look", "arguments": `{"at":`}},
			{"function": object{"arguments": `"x"}`}},
			{"id": "b", "type": "function", "function": object{"name": "look", "arguments": `{"at":"y"}`}},
		} {
			b.WriteString(sse("", object{"id": "c", "object": "chat.completion.chunk", "choices": []object{{"index": 0, "delta": object{"tool_calls": []object{delta}}}}}))
		}
		b.WriteString(sse("", object{"id": "c", "object": "chat.completion.chunk", "choices": []object{{"index": 0, "delta": object{}, "finish_reason": "tool_calls"}}}))
		m, _ := d.answers(t, b.String()+"data: [DONE]\n\n")
		a, _, err := asked(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if c := a.Message.Calls; len(c) != 2 || c[0].ID != "a" || string(c[0].Args) != `{"at":"x"}` || c[1].ID != "b" || string(c[1].Args) != `{"at":"y"}` {
			t.Errorf("the calls are %+v", c)
		}
	})
}
