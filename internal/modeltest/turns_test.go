package modeltest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWhichTurn(t *testing.T) {
	numbered := func(name string, n int) Script {
		var s Script
		for i := range n {
			s.Turns = append(s.Turns, Turn{Text(fmt.Sprintf("%s%d", name, i))})
		}
		return s
	}
	script := numbered("first", 3)
	script.Then = []Script{numbered("second", 1), numbered("third", 2)}
	for _, w := range ways {
		t.Run(w.name(), func(t *testing.T) {
			s, url := start(t, script)
			for _, c := range []struct{ speakers, want string }{
				{"u", "first0"},
				{"uu", "first0"}, // some programs put what they know of the machine before the task
				{"umr", "first1"},
				{"umrr", "first1"}, // of calls at once
				{"umru", "first1"}, // with a reminder
				{"umrmr", "first2"},
				{"umrmrmr", "That was all of the script."},
				{"umu", "second0"},
				{"umrmu", "second0"},
				{"umrmumr", "That was all of the script."},
				{"umumu", "third0"},
				{"umumumr", "third1"},
				{"umumumu", "third0"}, // the last one goes on
				{"mu", "first0"},
				{"u", "first0"}, // and nothing was counted
			} {
				if got := w.says(t, url, c.speakers, w.offers()); got.Text != c.want {
					t.Errorf("%s: %q, not %q", c.speakers, got.Text, c.want)
				}
			}
			all := s.Requests()
			if got := all[14]; got.Turn != 0 || got.Prompt != 1 || got.Dialect != w.dialect || got.Endpoint != w.endpoint || got.Model != "m-1" || !got.Stream || all[15].Stream ||
				!slices.Equal(got.Tools, []string{"read_file", "bash"}) || got.Problem != "" {
				t.Errorf("the request is noted as %+v", got)
			}
		})
	}
}

func TestWithoutThenTheScriptBeginsAnew(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Text("one")}, {Text("two")}}})
	w := ways[0]
	if got := w.says(t, url, "umrmumr", w.offers()); got.Text != "two" {
		t.Errorf("said %q", got.Text)
	}
}

func TestPlaceOfAnyConversation(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		speakers := []rune(rapid.StringMatching(`[umr]{0,20}`).Draw(r, "speakers"))
		var script Script
		before := script.placeOf(speakers)
		if before.prompt < 0 || before.round < 0 || before.prompt+before.round > len(speakers) {
			r.Fatalf("%+v", before)
		}
		// Each round of results is one turn further, and a text of the user's begins anew.
		if got := script.placeOf(append(slices.Clone(speakers), 'm', 'r')); got != (place{before.prompt, before.round + 1}) {
			r.Fatalf("a round later: %+v, before %+v", got, before)
		}
		if got := script.placeOf(append(slices.Clone(speakers), 'm', 'u')); got.round != 0 {
			r.Fatalf("with a new text: %+v", got)
		}
	})
}

// TestGoingOnAfterABreak: a program may keep what it got of an answer, and ask for the rest with a text of its own.
func TestGoingOnAfterABreak(t *testing.T) {
	script := Script{
		Turns: []Turn{{Text("first"), Shell("ls")}, {Text("half"), Cut().Times(1), Shell("ls")}, {Text("last")}},
		Then:  []Script{{Turns: []Turn{{Text("second")}}}},
	}
	for _, w := range ways {
		// An error before anything was said leaves nothing to go on with.
		_, url := start(t, Script{Turns: []Turn{{Overloaded(), Text("first")}}, Then: script.Then})
		if got := w.says(t, url, "umu", w.offers()); got.Text != "second" {
			t.Errorf("%s: said %q", w.name(), got.Text)
		}

		_, url = start(t, script)
		if a := ask(t, "POST", url+w.path(true), w.body("umr", true, w.offers())); a.err == nil {
			t.Errorf("%s: %+v", w.name(), a)
		}
		for _, c := range []struct{ speakers, want string }{{"umrmu", "half"}, {"umrmumr", "last"}, {"umrmumrmu", "second"}, {"umu", "second"}} {
			if got := w.says(t, url, c.speakers, w.offers()); got.Text != c.want {
				t.Errorf("%s: %s: %q, not %q", w.name(), c.speakers, got.Text, c.want)
			}
		}
	}
}

// TestSideRequests: titles and the like offer no tools, get a short text, and use up nothing.
func TestSideRequests(t *testing.T) {
	script := Script{Turns: []Turn{{Overloaded(), Text("said")}}}
	for _, w := range ways {
		t.Run(w.name(), func(t *testing.T) {
			s, url := start(t, script)
			for range 3 {
				if got := w.says(t, url, "u", nil); got.Text != "A short text" || got.Stop != "end" {
					t.Errorf("said %+v", got)
				}
			}
			if got := s.Requests()[0]; got.Turn != -1 {
				t.Errorf("a turn was played: %+v", got)
			}
			if a := ask(t, "POST", url+w.path(false), w.body("u", false, w.offers())); a.status < 500 {
				t.Errorf("the error was used up: %d %s", a.status, a.body)
			}

			_, url = start(t, Script{Side: "mine"})
			if got := w.says(t, url, "u", nil); got.Text != "mine" {
				t.Errorf("said %+v", got)
			}
			_, url = start(t, Script{Turns: []Turn{{Text("said")}}}, PlayAlways())
			if got := w.says(t, url, "u", nil); got.Text != "said" {
				t.Errorf("said %+v", got)
			}
		})
	}
}

func TestSideRequestsForJSON(t *testing.T) {
	wanted := object{
		"type": "object",
		"properties": object{
			"who": object{"type": "string", "enum": []string{"user", "model"}}, "ok": object{"type": "boolean"}, "n": object{"type": []string{"integer", "null"}},
			"list": object{"type": "array"}, "inner": object{"anyOf": []object{{"type": "object", "required": []string{"x"}, "properties": object{"x": object{"const": 5}}}}}, "left": object{"type": "string"},
		},
		"required": []string{"who", "ok", "n", "list", "inner"},
	}
	const want = `{"inner":{"x":5},"list":[],"n":0,"ok":false,"who":"user"}`
	_, url := start(t, Script{})
	for n, extra := range []object{
		{"output_config": object{"format": object{"type": "json_schema", "schema": wanted}}},
		{"text": object{"format": object{"type": "json_schema", "schema": wanted}}},
		{"response_format": object{"type": "json_schema", "json_schema": object{"schema": wanted}}},
		{"generationConfig": object{"responseJsonSchema": wanted}},
		{"generationConfig": object{"responseSchema": wanted}},
		{"output_format": object{"schema": wanted}},
	} {
		w := ways[n%4]
		if n == 4 {
			w = ways[3]
		} else if n == 5 {
			w = ways[0]
		}
		body := w.body("u", false, nil)
		for k, v := range extra {
			body[k] = v
		}
		if got := w.whole(t, ask(t, "POST", url+w.path(false), body).body); got.Text != want {
			t.Errorf("%s: %s", w.name(), got.Text)
		}
	}
}

func TestRequestsAreKept(t *testing.T) {
	s, url := start(t, Script{})
	ask(t, "POST", url+"/x/v1/messages?beta=true&q=in-query", `{"model":"in-body"}`, "X-Api-Key", "in-header", "X-In-Name", "1")
	all := s.Requests()
	if len(all) != 1 {
		t.Fatalf("%d requests", len(all))
	}
	r := all[0]
	for _, there := range []string{"in-query", "in-body", "in-header", "In-Name", "/x/v1/", strings.TrimPrefix(url, "http://")} {
		if !r.Has(there) {
			t.Errorf("%q is not found", there)
		}
	}
	if r.Has("rlease_") || r.Method != "POST" || r.Path != "/x/v1/messages" || r.Query.Get("beta") != "true" || r.Header.Get("X-Api-Key") != "in-header" {
		t.Errorf("%+v", r)
	}
	if r.Problem == "" || r.Turn != -1 {
		t.Errorf("a request without messages is noted as %+v", r)
	}
}

func TestWhatIsAskedBesides(t *testing.T) {
	s, url := start(t, Script{}, WithModels("a-1", "b-2"), WithKey("authorization", "Bearer k"))
	if a := ask(t, "HEAD", url+"/anthropic/", nil); a.status != http.StatusOK || a.body != "" {
		t.Errorf("%+v", a)
	}
	a := ask(t, "GET", url+"/openai/v1/models", nil, "Authorization", "Bearer k")
	var list struct {
		Object string
		Data   []struct{ ID, Object string }
	}
	decode(t, a.body, &list)
	if a.status != http.StatusOK || list.Object != "list" || len(list.Data) != 2 || list.Data[1].ID != "b-2" || list.Data[1].Object != "model" {
		t.Errorf("%s", a.body)
	}
	if a := ask(t, "GET", url+"/openai/v1/models", nil); a.status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", a.status)
	}
	for _, c := range [][2]string{{"GET", "/v1/messages"}, {"POST", "/v1/files"}, {"POST", "/v1beta/models/m:embedContent"}, {"GET", "/v1beta/models/m:generateContent"}, {"DELETE", "/v1/responses/resp_1"}} {
		a := ask(t, c[0], url+c[1], nil, "Authorization", "Bearer k")
		if a.status != http.StatusNotFound || !strings.Contains(a.body, `"error"`) {
			t.Errorf("%v: %d %s", c, a.status, a.body)
		}
	}
	if all := s.Requests(); len(all) != 8 || all[0].Endpoint != Probe || all[1].Endpoint != Models || all[7].Dialect != "" || all[7].Problem == "" {
		t.Errorf("%+v", all)
	}
}

func TestCounting(t *testing.T) {
	_, url := start(t, Script{})
	w := ways[0]
	body := w.body("u", false, w.offers())
	delete(body, "max_tokens")
	var counted struct {
		Input int `json:"input_tokens"`
	}
	if a := ask(t, "POST", url+"/v1/messages/count_tokens", body); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	} else if decode(t, a.body, &counted); counted.Input < 10 {
		t.Errorf("%s", a.body)
	}
	var total struct{ TotalTokens int }
	contents := ways[3].body("u", false, nil)
	for _, body := range []object{contents, {"generateContentRequest": contents}} {
		if decode(t, ask(t, "POST", url+"/v1beta/models/m:countTokens", body).body, &total); total.TotalTokens < 10 {
			t.Errorf("%+v", total)
		}
	}
}
