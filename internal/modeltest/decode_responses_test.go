package modeltest

import (
	"encoding/json"
	"strings"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type responseItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Status    string          `json:"status"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments *string         `json:"arguments"`
	Input     *string         `json:"input"`
	Action    json.RawMessage `json:"action"`
	Encrypted string          `json:"encrypted_content"`
	Content   []responsePart  `json:"content"`
	Summary   []responsePart  `json:"summary"`
}

type responsePart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type response struct {
	ID     string         `json:"id"`
	Object string         `json:"object"`
	Status string         `json:"status"`
	Model  string         `json:"model"`
	Store  bool           `json:"store"`
	Output []responseItem `json:"output"`
	Usage  *struct {
		Input        int64 `json:"input_tokens"`
		InputDetails struct {
			Cached  int64 `json:"cached_tokens"`
			Written int64 `json:"cache_write_tokens"`
		} `json:"input_tokens_details"`
		Output        int64 `json:"output_tokens"`
		OutputDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
		Total int64 `json:"total_tokens"`
	} `json:"usage"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (r response) said(t rapid.TB) said {
	want(t, r.Object == "response" && r.Status == "completed" && strings.HasPrefix(r.ID, "resp_") && r.Error == nil, "no response: %+v", r)
	s := said{Stop: "end"}
	for _, i := range r.Output {
		switch i.Type {
		case "message":
			want(t, len(i.Content) == 1 && i.Content[0].Type == "output_text" && i.Role == "assistant", "a message: %+v", i)
			s.Text += i.Content[0].Text
		case "reasoning":
			s.Thinking += i.Summary[0].Text
		case "function_call":
			s.Calls = append(s.Calls, gotCall{i.Name, i.CallID, *i.Arguments})
		case "custom_tool_call":
			s.Calls = append(s.Calls, gotCall{i.Name, i.CallID, *i.Input})
		case "local_shell_call", "shell_call":
			s.Calls = append(s.Calls, gotCall{i.Type, i.CallID, string(i.Action)})
		default:
			t.Fatalf("an item of type %q", i.Type)
		}
	}
	if s.Calls != nil {
		s.Stop = "tools"
	}
	u := r.Usage
	want(t, u != nil && u.Total == u.Input+u.Output && u.OutputDetails.Reasoning <= u.Output, "the usage is %+v", u)
	s.Usage = Usage{u.Input - u.InputDetails.Cached - u.InputDetails.Written, u.Output, u.InputDetails.Cached, u.InputDetails.Written}
	return s
}

func wholeResponse(t rapid.TB, body string) said {
	var r response
	decode(t, body, &r)
	return r.said(t)
}

// readResponses follows the stream item by item; each is said three times (in pieces, done, in the end), and has to be the same.
func readResponses(t rapid.TB, all []event) said {
	t.Helper()
	var items []responseItem
	var pieces string
	var open *responseItem
	var part bool
	for n, e := range all {
		var in struct {
			Type      string       `json:"type"`
			Number    *int         `json:"sequence_number"`
			Response  response     `json:"response"`
			Output    int          `json:"output_index"`
			Item      responseItem `json:"item"`
			ItemID    string       `json:"item_id"`
			Delta     string       `json:"delta"`
			Text      string       `json:"text"`
			Part      responsePart `json:"part"`
			Name      string       `json:"name"`
			Arguments string       `json:"arguments"`
			Input     string       `json:"input"`
		}
		decode(t, e.data, &in)
		want(t, in.Type == e.name && in.Number != nil && *in.Number == n, "event %d is %s", n, e.data)
		if in.ItemID != "" {
			want(t, open != nil && open.ID == in.ItemID && in.Output == len(items), "of no item: %s", e.data)
		}
		last := n == len(all)-1
		want(t, (n == 0) == (e.name == "response.created") && (n == 1) == (e.name == "response.in_progress") && last == (e.name == "response.completed"), "event %d is %s", n, e.name)
		switch e.name {
		case "response.created", "response.in_progress":
			want(t, in.Response.Status == "in_progress" && in.Response.Usage == nil && in.Response.Output != nil, "it begins as %s", e.data)
		case "response.output_item.added":
			want(t, open == nil && in.Output == len(items) && in.Item.ID != "", "an item begins: %s", e.data)
			open, pieces = &in.Item, ""
		case "response.content_part.added", "response.reasoning_summary_part.added":
			want(t, !part && in.Part.Text == "", "a part begins: %s", e.data)
			part = true
		case "response.content_part.done", "response.reasoning_summary_part.done":
			want(t, part && in.Part.Text == pieces, "a part ends: %s, %q", e.data, pieces)
			part = false
		case "response.output_text.delta", "response.reasoning_summary_text.delta":
			want(t, part, "a piece of no part: %s", e.data)
			pieces += in.Delta
		case "response.function_call_arguments.delta", "response.custom_tool_call_input.delta":
			pieces += in.Delta
		case "response.output_text.done", "response.reasoning_summary_text.done":
			want(t, in.Text == pieces, "the text is %q, of %q", in.Text, pieces)
		case "response.function_call_arguments.done":
			want(t, in.Arguments == pieces && in.Name == open.Name, "the arguments are %s, of %q", e.data, pieces)
		case "response.custom_tool_call_input.done":
			want(t, in.Input == pieces, "the input is %q, of %q", in.Input, pieces)
		case "response.output_item.done":
			want(t, open != nil && open.ID == in.Item.ID && open.Type == in.Item.Type && !part, "an item ends: %s", e.data)
			items, open = append(items, in.Item), nil
			switch {
			case in.Item.Arguments != nil:
				want(t, *in.Item.Arguments == pieces, "an item ends: %s, %q", e.data, pieces)
			case in.Item.Content != nil:
				want(t, in.Item.Content[0].Text == pieces, "an item ends: %s, %q", e.data, pieces)
			}
		case "response.completed":
			want(t, open == nil && cmp.Diff(items, in.Response.Output, cmp.Comparer(func(a, b json.RawMessage) bool { return string(a) == string(b) })) == "" || len(items)+len(in.Response.Output) == 0,
				"the output is %+v, of %+v", in.Response.Output, items)
			return in.Response.said(t)
		default:
			t.Fatalf("an event %q", e.name)
		}
	}
	t.Fatalf("the response does not end")
	return said{}
}
