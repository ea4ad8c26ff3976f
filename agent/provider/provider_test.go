package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/agent"
	"ravi/internal/modeltest"
)

// An answer comes in pieces, and is put together: text, calls, and what it used, caches included.
func TestAnswer(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		text := "I look for it, in all places: é€😀."
		m, s := d.plays(t, modeltest.Turn{modeltest.Thinking("where could it be?"), modeltest.Text(text), modeltest.Call("look", object{"at": "the first place, which is far away"}),
			modeltest.Call("look", object{}), modeltest.Call("finish", object{"summary": "<done> & \"gone\""}), modeltest.Uses(modeltest.Usage{Input: 100, Output: 20, CacheRead: 3000, CacheWrite: 400})})
		a, heard, err := asked(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if heard != text || a.Message.Text != text || a.Message.Role != agent.Assistant || a.Cut {
			t.Errorf("heard was %q, and the answer is %+v", heard, a)
		}
		if a.Usage != (agent.Usage{Input: 3500, Output: 20}) {
			t.Errorf("it used %+v", a.Usage)
		}
		var got []string
		ids := map[string]bool{}
		for _, c := range a.Message.Calls {
			got = append(got, c.Name+string(c.Args)+c.Wrong)
			ids[c.ID] = true
		}
		if want := []string{`look{"at":"the first place, which is far away"}`, `look{}`, `finish{"summary":"<done> & \"gone\""}`}; !slices.Equal(got, want) || len(ids) != 3 || ids[""] {
			t.Errorf("the calls are %q, by %v", got, ids)
		}
		r := s.Requests()[0]
		if !r.Has("You are here.") || !r.Has("do it") || r.Header.Get(d.header) != d.value || !slices.Equal(r.Tools, []string{"look"}) {
			t.Errorf("it was asked %s with %v", r.Body, r.Header)
		}
	})
}

// A loop goes on over a provider: what the tools answered, and what the model thought, is in the next request.
func TestGoesOn(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		m, s := d.plays(t,
			modeltest.Turn{modeltest.Thinking("I think about it"), modeltest.Text("I look."), modeltest.Call("look", object{"at": "one"}), modeltest.Call("look", object{"at": "nothing"})},
			modeltest.Turn{modeltest.Call("look", object{})},
			modeltest.Turn{modeltest.Call("finish", object{"summary": ""})})
		l, err := agent.New(agent.Config{Model: m, Tools: []agent.Tool{look{"seen: "}}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // an empty result, and a turn after it
			if out, err := l.Turn(t.Context(), "do it"); err != nil || out.Reason != agent.Finished {
				t.Fatalf("%+v, %v", out, err)
			}
		}
		requests := s.Requests()
		if len(requests) != 4 {
			t.Fatalf("%d requests", len(requests))
		}
		var body struct {
			Messages []struct {
				Role       string
				Content    json.RawMessage
				ToolCallID string                `json:"tool_call_id"`
				ToolCalls  []struct{ ID string } `json:"tool_calls"`
			}
		}
		if err := json.Unmarshal(requests[1].Body, &body); err != nil {
			t.Fatal(err)
		}
		if d.name == "openai" {
			got := body.Messages // system, user, answer, two results
			if len(got) != 5 || len(got[2].ToolCalls) != 2 || got[3].ToolCallID != got[2].ToolCalls[0].ID || got[4].ToolCallID != got[2].ToolCalls[1].ID || !bytes.Contains(got[3].Content, []byte("seen: ")) {
				t.Errorf("the messages are %s", requests[1].Body)
			}
			return
		}
		type block struct {
			Type, Thinking, Signature, Text, ID string
			ToolUseID                           string `json:"tool_use_id"`
			IsError                             bool   `json:"is_error"`
		}
		var answer, results []block
		if err := json.Unmarshal(body.Messages[1].Content, &answer); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body.Messages[2].Content, &results); err != nil {
			t.Fatal(err)
		}
		if len(answer) != 4 || answer[0].Type != "thinking" || answer[0].Thinking != "I think about it" || !strings.HasPrefix(answer[0].Signature, "EqoBCk") ||
			answer[1].Text != "I look." || answer[2].Type != "tool_use" || answer[3].Type != "tool_use" {
			t.Errorf("the answer comes back as %s", body.Messages[1].Content)
		}
		if len(results) != 2 || results[0].ToolUseID != answer[2].ID || results[0].IsError || results[1].ToolUseID != answer[3].ID || !results[1].IsError {
			t.Errorf("the results come as %s", body.Messages[2].Content)
		}
		if n := bytes.Count(requests[3].Body, []byte(`"cache_control"`)); n != 2 {
			t.Errorf("%d marks for the cache", n)
		}
	})
}

// What is for a moment only is tried again; what is not is told at once, as the provider says it.
func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		text := modeltest.Text("so it is")
		for name, c := range map[string]struct {
			turn  modeltest.Turn
			says  string // empty: it is fine in the end
			asked int
		}{
			"400":                      {modeltest.Turn{modeltest.Error(400, "invalid_request_error", "your prompt is too long"), text}, "the provider answered 400: your prompt is too long", 1},
			"403":                      {modeltest.Turn{modeltest.Error(403, "permission_error", strings.Repeat("no ", 1000)), text}, "the provider answered 403: no no", 1},
			"429, then fine":           {modeltest.Turn{modeltest.Error(429, "rate_limit_error", "slower").Times(1).RetryAfter(time.Second), text}, "", 2},
			"overloaded, then fine":    {modeltest.Turn{modeltest.Overloaded(), text}, "", 2},
			"cut off, then fine":       {modeltest.Turn{modeltest.Cut().Times(1), text}, "", 2},
			"an error in mid-stream":   {modeltest.Turn{modeltest.Text("so"), modeltest.Error(529, "overloaded_error", "too much to do")}, "the provider broke its answer off: too much to do", 1},
			"it is cut in mid-stream":  {modeltest.Turn{modeltest.Text("so it was"), modeltest.Cut()}, "EOF", 1},
			"it is cut within a call":  {modeltest.Turn{modeltest.Call("look", object{}), modeltest.Cut()}, "EOF", 1},
			"it is silent, and we go":  {modeltest.Turn{modeltest.Text("so"), modeltest.Silent()}, "canceled", 1},
			"it is silent from before": {modeltest.Turn{modeltest.Silent()}, "canceled", 1},
		} {
			t.Run(name, func(t *testing.T) {
				m, s := d.plays(t, c.turn)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.says == "canceled" {
					go func() { // once it was asked
						for len(s.Requests()) == 0 && ctx.Err() == nil {
							time.Sleep(time.Millisecond)
						}
						cancel()
					}()
				}
				a, _, err := asked(ctx, m)
				switch {
				case c.says == "" && (err != nil || a.Message.Text != "so it is"):
					t.Errorf("%+v, %v", a, err)
				case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 700):
					t.Errorf("it says %v", err)
				}
				if n := len(s.Requests()); n != c.asked {
					t.Errorf("it was asked %d times", n)
				}
			})
		}
	})
}

// A wrong key is told as what it is, and is in no message.
func TestWrongKey(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		s := modeltest.New(modeltest.Script{}, modeltest.WithKey(d.header, "another"))
		web := httptest.NewServer(s)
		defer web.Close()
		defer s.Close()
		_, _, err := asked(t.Context(), d.model(Options{BaseURL: web.URL + "/", Key: key, Model: "scripted-1"}))
		if err == nil || !strings.HasPrefix(err.Error(), "the provider answered 401: ") || strings.Contains(err.Error(), key) {
			t.Errorf("it says %v", err)
		}
		if n := len(s.Requests()); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
	})
}

// A provider cannot send a call, and the key with it, elsewhere.
func TestRedirect(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		var came atomic.Int32
		elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came.Add(1) }))
		defer elsewhere.Close()
		for _, status := range []int{301, 302, 303, 307, 308} {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL+r.URL.Path, status) }))
			if a, _, err := asked(t.Context(), d.model(Options{BaseURL: web.URL, Key: key, Model: "scripted-1"})); err == nil {
				t.Errorf("%d gives %+v", status, a)
			}
			web.Close()
		}
		if came.Load() != 0 {
			t.Errorf("%d calls went elsewhere", came.Load())
		}
	})
}

// The environment is for others: neither an address, nor a key, nor a header of it is used.
func TestEnvironment(t *testing.T) {
	var came atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came.Add(1) }))
	defer elsewhere.Close()
	const mark = "of-the-environment"
	for name, value := range map[string]string{
		"ANTHROPIC_API_KEY": mark, "ANTHROPIC_AUTH_TOKEN": mark, "ANTHROPIC_BASE_URL": elsewhere.URL, "ANTHROPIC_CUSTOM_HEADERS": "X-Mark: " + mark, "ANTHROPIC_PROFILE": mark,
		"ANTHROPIC_MODEL": mark, "OPENAI_API_KEY": mark, "OPENAI_BASE_URL": elsewhere.URL, "OPENAI_ORG_ID": mark, "OPENAI_PROJECT_ID": mark, "OPENAI_ADMIN_KEY": mark,
		"OPENAI_CUSTOM_HEADERS": "X-Mark: " + mark, "HTTP_PROXY": elsewhere.URL, "http_proxy": elsewhere.URL, "ALL_PROXY": elsewhere.URL,
	} {
		t.Setenv(name, value)
	}
	each(t, func(t *testing.T, d dialect) {
		m, s := d.plays(t, modeltest.Turn{modeltest.Text("so it is")})
		if _, _, err := asked(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		r := s.Requests()[0]
		if r.Has(mark) || r.Header.Get(d.header) != d.value || len(r.Header.Values(d.header)) != 1 {
			t.Errorf("it was asked with %v", r.Header)
		}
		for _, other := range dialects {
			if other.name != d.name && r.Header.Get(other.header) != "" {
				t.Errorf("it was asked with a key for another: %v", r.Header)
			}
		}
	})
	if came.Load() != 0 {
		t.Errorf("%d calls went elsewhere", came.Load())
	}
	// Nothing goes over a proxy, which no test on loopback sees.
	if direct, ok := (Options{}).client().Transport.(*http.Transport); !ok || direct.Proxy != nil {
		t.Error("a proxy of the environment is used")
	}
}

// What makes the calls may be the caller's.
func TestOwnClient(t *testing.T) {
	each(t, func(t *testing.T, d dialect) {
		c := &canned{bodies: []string{said{text: "so", end: d.end("done")}.stream(d)}}
		m := d.model(Options{BaseURL: "http://nowhere.invalid/there", Key: key, Model: "scripted-1", Client: &http.Client{Transport: through{c}}})
		if a, _, err := asked(t.Context(), m); err != nil || a.Message.Text != "so" {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// through has a handler answer, over no network.
type through struct{ h http.Handler }

func (p through) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != "nowhere.invalid" || !strings.HasPrefix(r.URL.Path, "/there/v1/") {
		return nil, http.ErrNotSupported
	}
	w := httptest.NewRecorder()
	p.h.ServeHTTP(w, r)
	return w.Result(), nil
}
