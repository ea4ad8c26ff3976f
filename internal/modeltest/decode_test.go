package modeltest

import (
	"encoding/json"
	"strings"

	"pgregory.net/rapid"
)

// said is what an answer says, in whatever dialect.
type said struct {
	Thinking, Text string
	Calls          []gotCall
	Stop           string // "tools" or "end"
	Usage          Usage
}

type gotCall struct {
	Name, ID string
	Input    string
}

// decode reads JSON into what a client knows of it.
func decode(t rapid.TB, data string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

func want(t rapid.TB, ok bool, what string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(what, args...)
	}
}

type messageUsage struct {
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_input_tokens"`
	CacheWrite int64 `json:"cache_creation_input_tokens"`
}

func (u messageUsage) usage() Usage { return Usage(u) }

type messageBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text"`
	Thinking  *string         `json:"thinking"`
	Signature *string         `json:"signature"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
}

type message struct {
	ID         string         `json:"id"`
	Type       string         `json:"type"`
	Role       string         `json:"role"`
	Model      string         `json:"model"`
	Content    []messageBlock `json:"content"`
	StopReason *string        `json:"stop_reason"`
	Usage      messageUsage   `json:"usage"`
}

var messageStops = map[string]string{"tool_use": "tools", "end_turn": "end"}

func (m message) said(t rapid.TB) said {
	want(t, m.Type == "message" && m.Role == "assistant" && m.Model != "" && strings.HasPrefix(m.ID, "msg_"), "no message: %+v", m)
	var s said
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			s.Text += *b.Text
		case "thinking":
			want(t, *b.Signature != "", "thinking without a signature")
			s.Thinking += *b.Thinking
		case "tool_use":
			s.Calls = append(s.Calls, gotCall{b.Name, b.ID, string(b.Input)})
		default:
			t.Fatalf("a block of type %q", b.Type)
		}
	}
	s.Stop, s.Usage = messageStops[*m.StopReason], m.Usage.usage()
	return s
}

func wholeMessage(t rapid.TB, body string) said {
	var m message
	decode(t, body, &m)
	return m.said(t)
}

// readMessages puts a message together from its stream as Anthropic's clients do.
func readMessages(t rapid.TB, all []event) said {
	t.Helper()
	var m message
	open, input, over, pings := false, "", false, 0
	for n, e := range all {
		var in struct {
			Type    string       `json:"type"`
			Message message      `json:"message"`
			Index   int          `json:"index"`
			Block   messageBlock `json:"content_block"`
			Delta   struct {
				Type       string  `json:"type"`
				Text       *string `json:"text"`
				Thinking   *string `json:"thinking"`
				Signature  *string `json:"signature"`
				Partial    *string `json:"partial_json"`
				StopReason *string `json:"stop_reason"`
			} `json:"delta"`
			Usage messageUsage `json:"usage"`
		}
		decode(t, e.data, &in)
		want(t, in.Type == e.name, "the event %q is of type %q", e.name, in.Type)
		want(t, (n == 0) == (e.name == "message_start") && !over, "%s at %d", e.name, n)
		last := len(m.Content) - 1
		switch e.name {
		case "message_start":
			m = in.Message
			want(t, m.Content != nil && len(m.Content) == 0 && m.StopReason == nil && m.Usage.Output > 0, "a message begins as %s", e.data)
		case "content_block_start":
			want(t, !open && in.Index == last+1, "a block begins: %s", e.data)
			m.Content, open, input = append(m.Content, in.Block), true, ""
			want(t, in.Block.Type != "tool_use" || string(in.Block.Input) == "{}", "a call begins as %s", e.data)
		case "content_block_delta":
			want(t, open && in.Index == last, "a piece of no block: %s", e.data)
			b := &m.Content[last]
			switch in.Delta.Type {
			case "text_delta":
				*b.Text += *in.Delta.Text
			case "thinking_delta":
				*b.Thinking += *in.Delta.Thinking
			case "signature_delta":
				*b.Signature += *in.Delta.Signature
			case "input_json_delta":
				want(t, b.Type == "tool_use", "the input of no call")
				input += *in.Delta.Partial
			default:
				t.Fatalf("a delta of type %q", in.Delta.Type)
			}
		case "content_block_stop":
			want(t, open && in.Index == last, "a block ends: %s", e.data)
			open = false
			if m.Content[last].Type == "tool_use" {
				want(t, json.Valid([]byte(input)), "the input is %q", input)
				m.Content[last].Input = json.RawMessage(input)
			}
		case "ping":
			pings++
		case "message_delta":
			want(t, !open && m.StopReason == nil, "the message ends: %s", e.data)
			m.StopReason = in.Delta.StopReason
			want(t, m.Usage.Input == in.Usage.Input && m.Usage.CacheRead == in.Usage.CacheRead, "the usage is another: %s", e.data)
			m.Usage = in.Usage
		case "message_stop":
			want(t, m.StopReason != nil, "the message ends without a reason")
			over = true
		default:
			t.Fatalf("an event %q", e.name)
		}
	}
	want(t, over, "the message does not end")
	want(t, len(m.Content) == 0 || pings == 1, "%d pings", pings)
	return m.said(t)
}

type chatCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
	Custom struct {
		Name  string `json:"name"`
		Input string `json:"input"`
	} `json:"custom"`
}

func (c chatCall) got() gotCall {
	return gotCall{c.Function.Name + c.Custom.Name, c.ID, c.Function.Arguments + c.Custom.Input}
}

type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	Reasoning string     `json:"reasoning_content"`
	Calls     []chatCall `json:"tool_calls"`
}

type chatUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
	Details    struct {
		Cached  int64 `json:"cached_tokens"`
		Written int64 `json:"cache_write_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u *chatUsage) usage(t rapid.TB) Usage {
	want(t, u.Total == u.Prompt+u.Completion, "the total is %+v", u)
	return Usage{u.Prompt - u.Details.Cached - u.Details.Written, u.Completion, u.Details.Cached, u.Details.Written}
}

type completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Created int64  `json:"created"`
	Choices []struct {
		Delta        chatMessage `json:"delta"`
		Message      chatMessage `json:"message"`
		FinishReason *string     `json:"finish_reason"`
	} `json:"choices"`
	Usage *chatUsage `json:"usage"`
}

var chatStops = map[string]string{"tool_calls": "tools", "stop": "end"}

func wholeChat(t rapid.TB, body string) said {
	var c completion
	decode(t, body, &c)
	want(t, c.Object == "chat.completion" && len(c.Choices) == 1 && c.Created > 0, "no completion: %s", body)
	m := c.Choices[0].Message
	s := said{Thinking: m.Reasoning, Stop: chatStops[*c.Choices[0].FinishReason], Usage: c.Usage.usage(t)}
	if m.Content != nil {
		s.Text = *m.Content
	}
	for _, one := range m.Calls {
		s.Calls = append(s.Calls, one.got())
	}
	return s
}

// readChat puts chunks together. The usage is zero if it was not asked for.
func readChat(t rapid.TB, all []event) said {
	t.Helper()
	var s said
	var calls []chatCall
	id, finished := "", false
	for n, e := range all {
		want(t, e.name == "", "an event by name: %q", e.name)
		if n == len(all)-1 {
			want(t, e.data == "[DONE]", "the stream ends with %s", e.data)
			break
		}
		var c completion
		decode(t, e.data, &c)
		want(t, c.Object == "chat.completion.chunk" && c.Model != "" && (id == "" || c.ID == id), "no chunk: %s", e.data)
		id = c.ID
		if len(c.Choices) == 0 {
			want(t, finished && n == len(all)-2 && c.Usage != nil, "no choice: %s", e.data)
			s.Usage = c.Usage.usage(t)
			continue
		}
		want(t, c.Usage == nil && !finished, "a chunk after the end: %s", e.data)
		d := c.Choices[0].Delta
		want(t, (n == 0) == (d.Role == "assistant"), "the role at %d: %s", n, e.data)
		if d.Content != nil {
			s.Text += *d.Content
		}
		s.Thinking += d.Reasoning
		for _, one := range d.Calls {
			if one.ID != "" {
				want(t, one.Index == len(calls), "a call begins: %s", e.data)
				calls = append(calls, one)
				continue
			}
			want(t, one.Index == len(calls)-1, "a piece of no call: %s", e.data)
			calls[one.Index].Function.Arguments += one.Function.Arguments
			calls[one.Index].Custom.Input += one.Custom.Input
		}
		if r := c.Choices[0].FinishReason; r != nil {
			s.Stop, finished = chatStops[*r], true
		}
	}
	want(t, finished, "there is no reason why it ends")
	for _, one := range calls {
		s.Calls = append(s.Calls, one.got())
	}
	return s
}

type generated struct {
	Candidates []struct {
		Content struct {
			Role  string `json:"role"`
			Parts []struct {
				Text    string `json:"text"`
				Thought bool   `json:"thought"`
				Call    *struct {
					ID   string          `json:"id"`
					Name string          `json:"name"`
					Args json.RawMessage `json:"args"`
				} `json:"functionCall"`
			} `json:"parts"`
		} `json:"content"`
		FinishReason string `json:"finishReason"`
	} `json:"candidates"`
	Usage struct {
		Prompt   int64 `json:"promptTokenCount"`
		Cached   int64 `json:"cachedContentTokenCount"`
		Output   int64 `json:"candidatesTokenCount"`
		Thoughts int64 `json:"thoughtsTokenCount"`
		Total    int64 `json:"totalTokenCount"`
	} `json:"usageMetadata"`
	ModelVersion string `json:"modelVersion"`
}

func wholeGemini(t rapid.TB, body string) said {
	return readGemini(t, []event{{data: body}})
}

func readGemini(t rapid.TB, all []event) said {
	t.Helper()
	var s said
	for n, e := range all {
		var g generated
		decode(t, e.data, &g)
		want(t, e.name == "" && len(g.Candidates) == 1 && g.ModelVersion != "" && g.Candidates[0].Content.Role == "model", "no chunk: %s", e.data)
		want(t, (n == len(all)-1) == (g.Candidates[0].FinishReason == "STOP"), "the end at %d: %s", n, e.data)
		for _, p := range g.Candidates[0].Content.Parts {
			switch {
			case p.Call != nil:
				s.Calls = append(s.Calls, gotCall{p.Call.Name, p.Call.ID, string(p.Call.Args)})
			case p.Thought:
				s.Thinking += p.Text
			default:
				s.Text += p.Text
			}
		}
		u := g.Usage
		want(t, u.Total == u.Prompt+u.Output+u.Thoughts && u.Output >= 0, "the total is another: %s", e.data)
		s.Usage = Usage{Input: u.Prompt - u.Cached, Output: u.Output + u.Thoughts, CacheRead: u.Cached}
	}
	s.Stop = "end" // Gemini does not tell
	if s.Calls != nil {
		s.Stop = "tools"
	}
	return s
}
