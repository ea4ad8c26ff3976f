package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"ravi/agent"
	"ravi/internal/broker/check"
	"ravi/internal/leaktest"
	"ravi/internal/modeltest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const key = "key-of-the-test"

// dialect is a way of speaking to a provider.
type dialect struct {
	name   string
	model  func(Options) agent.Model
	header string // that has the key
	value  string
	check  func([]byte, check.Grants) (check.Request, *check.Refusal)
}

var dialects = []dialect{
	{"anthropic", Anthropic, "X-Api-Key", key, check.Messages},
	{"openai", OpenAI, "Authorization", "Bearer " + key, check.Chat},
}

// each runs a test in each dialect.
func each(t *testing.T, test func(t *testing.T, d dialect)) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) { test(t, d) })
	}
}

// accepted looks whether the broker lets a request through.
func (d dialect) accepted(t testing.TB, body []byte) {
	t.Helper()
	r, no := d.check(body, nil)
	switch {
	case no != nil:
		t.Errorf("the broker refuses it: %v\n%.3000s", no, body)
	case !r.Stream || r.Model != "scripted-1" || r.MaxTokens != 16_384 && r.MaxTokens != 99:
		t.Errorf("the broker reads it as %+v", r)
	}
}

// plays serves a script, over real HTTP, and looks at all that was asked in the end.
func (d dialect) plays(t *testing.T, turns ...modeltest.Turn) (agent.Model, *modeltest.Server) {
	t.Helper()
	s := modeltest.New(modeltest.Script{Turns: turns}, modeltest.WithKey(d.header, d.value), modeltest.PlayAlways())
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		web.Close()
		for _, r := range s.Requests() {
			d.accepted(t, r.Body)
			if r.Problem != "" {
				t.Errorf("the provider says %q of %.2000s", r.Problem, r.Body)
			}
		}
	})
	return d.model(Options{BaseURL: web.URL, Key: key, Model: "scripted-1"}), s
}

// canned serves bodies as they are, one after another, and keeps what was asked.
type canned struct {
	mu     sync.Mutex
	bodies []string
	asked  [][]byte
}

func (c *canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	n := len(c.asked)
	c.asked = append(c.asked, body)
	c.mu.Unlock()
	if n >= len(c.bodies) {
		http.Error(w, "there is no more", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, c.bodies[n])
}

func (d dialect) answers(t *testing.T, bodies ...string) (agent.Model, *canned) {
	t.Helper()
	c := &canned{bodies: bodies}
	web := httptest.NewServer(c)
	t.Cleanup(func() {
		web.Close()
		for _, body := range c.asked {
			d.accepted(t, body)
		}
	})
	return d.model(Options{BaseURL: web.URL, Key: key, Model: "scripted-1"}), c
}

type object = map[string]any

func sse(name string, data any) string {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	return name + "data: " + string(b) + "\n\n"
}

// said is a streamed answer with a text, calls of which the arguments are as given, and a reason why it ended; empty: none.
type said struct {
	text   string
	calls  []string // arguments
	end    string
	blocks []object // of Anthropic, before all else
}

func (s said) stream(d dialect) string {
	var b strings.Builder
	if d.name == "anthropic" {
		b.WriteString(sse("message_start", object{"type": "message_start", "message": object{"id": "m", "type": "message", "role": "assistant", "usage": object{"input_tokens": 5, "output_tokens": 1}}}))
		index := 0
		block := func(start object, deltas ...object) {
			b.WriteString(sse("content_block_start", object{"type": "content_block_start", "index": index, "content_block": start}))
			for _, delta := range deltas {
				b.WriteString(sse("content_block_delta", object{"type": "content_block_delta", "index": index, "delta": delta}))
			}
			b.WriteString(sse("content_block_stop", object{"type": "content_block_stop", "index": index}))
			index++
		}
		for _, one := range s.blocks {
			block(one)
		}
		if s.text != "" {
			block(object{"type": "text", "text": ""}, object{"type": "text_delta", "text": s.text})
		}
		for i, args := range s.calls {
			block(object{"type": "tool_use", "id": fmt.Sprint("t", i), "name": "look", "input": object{}}, object{"type": "input_json_delta", "partial_json": args})
		}
		if s.end != "" {
			b.WriteString(sse("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": s.end}, "usage": object{"output_tokens": 7}}))
			b.WriteString(sse("message_stop", object{"type": "message_stop"}))
		}
		return b.String()
	}
	chunk := func(delta object, end any) {
		b.WriteString(sse("", object{"id": "c", "object": "chat.completion.chunk", "choices": []object{{"index": 0, "delta": delta, "finish_reason": end}}}))
	}
	if s.text != "" {
		chunk(object{"role": "assistant", "content": s.text}, nil)
	}
	for i, args := range s.calls {
		chunk(object{"tool_calls": []object{{"index": i, "id": fmt.Sprint("t", i), "type": "function", "function": object{"name": "look", "arguments": args}}}}, nil)
	}
	if s.end != "" {
		chunk(object{}, s.end)
		b.WriteString("data: [DONE]\n\n")
	}
	return b.String()
}

// ends are the reasons of the dialects, by what they mean.
func (d dialect) end(means string) string {
	return map[string]map[string]string{
		"anthropic": {"done": "end_turn", "calls": "tool_use", "cut": "max_tokens", "declined": "refusal"},
		"openai":    {"done": "stop", "calls": "tool_calls", "cut": "length", "declined": "content_filter"},
	}[d.name][means]
}

// look is a tool.
type look struct{ text string }

func (look) Spec() agent.Spec {
	return agent.Spec{Name: "look", Description: "looks", Schema: json.RawMessage(`{"type":"object","properties":{"at":{"type":"string"}},"additionalProperties":false}`)}
}

func (l look) Do(_ context.Context, args json.RawMessage) (agent.Result, error) {
	return agent.Result{Text: l.text + string(args), Failed: strings.Contains(string(args), "nothing")}, nil
}

// asked is a question without tools.
func asked(ctx context.Context, m agent.Model) (agent.Answer, string, error) {
	var heard strings.Builder
	a, err := m.Next(ctx, agent.Request{System: "You are here.", Messages: []agent.Message{{Role: agent.User, Text: "do it"}},
		Tools: []agent.Spec{look{}.Spec()}, MaxTokens: 99}, func(s string) { heard.WriteString(s) })
	return a, heard.String(), err
}

// turn has a loop do a turn that finishes.
func turn(t *testing.T, m agent.Model) agent.Outcome {
	t.Helper()
	l, err := agent.New(agent.Config{Model: m, Tools: []agent.Tool{look{"seen: "}}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.Turn(t.Context(), "do it")
	if err != nil || out.Reason != agent.Finished {
		t.Fatalf("%+v, %v", out, err)
	}
	return out
}
