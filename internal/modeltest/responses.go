package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// responses is OpenAI's Responses API.
type responses struct{ openai }

// offered is a tool as the Responses API has it.
type offered struct {
	Type       string    `json:"type"`
	Name       string    `json:"name"`
	Parameters schema    `json:"parameters"`
	Tools      []offered `json:"tools"` // of a namespace
}

func (responses) read(a *asked, body []byte) error {
	var in struct {
		Model             string          `json:"model"`
		Stream            bool            `json:"stream"`
		Input             json.RawMessage `json:"input"`
		Include           []string        `json:"include"`
		Store             *bool           `json:"store"`
		ParallelToolCalls *bool           `json:"parallel_tool_calls"`
		Instructions      any             `json:"instructions"`
		Reasoning         any             `json:"reasoning"`
		Tools             []offered       `json:"tools"`
		Text              struct {
			Format struct {
				Schema *schema `json:"schema"`
			} `json:"format"`
		} `json:"text"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	switch {
	case in.Model == "":
		return errors.New("missing required parameter: 'model'")
	case len(in.Input) == 0 || string(in.Input) == "null":
		return errors.New("missing required parameter: 'input'")
	}
	a.model, a.stream, a.sse, a.wants = in.Model, in.Stream, true, in.Text.Format.Schema
	a.encrypted = slices.Contains(in.Include, "reasoning.encrypted_content")
	a.echo = object{
		"store": in.Store == nil || *in.Store, "parallel_tool_calls": in.ParallelToolCalls == nil || *in.ParallelToolCalls,
		"instructions": in.Instructions, "reasoning": in.Reasoning,
	}
	for _, t := range in.Tools {
		for _, inner := range t.Tools {
			a.tools = append(a.tools, tool{Name: inner.Name, Namespace: t.Name, Type: inner.Type, Schema: inner.Parameters})
		}
		switch t.Type {
		case "local_shell", "shell":
			t.Name = t.Type
		case "function", "custom":
		default:
			continue // the provider's own, which are not called from here
		}
		a.tools = append(a.tools, tool{Name: t.Name, Type: t.Type, Schema: t.Parameters})
	}
	var s string
	if json.Unmarshal(in.Input, &s) == nil {
		return nil
	}
	var items []struct {
		Type string `json:"type"`
		Role string `json:"role"`
	}
	if err := json.Unmarshal(in.Input, &items); err != nil {
		return fmt.Errorf("invalid type for 'input': %w", err)
	}
	var by []rune
	for _, i := range items {
		switch {
		case strings.HasSuffix(i.Type, "_output"):
			by = append(by, result)
		case i.Role == "user":
			by = append(by, byUser)
		case i.Role == "system" || i.Role == "developer":
		default:
			by = append(by, byModel)
		}
	}
	a.speakers = by
	return nil
}

func (responses) usage(r *reply) object {
	return object{
		"input_tokens": r.used.input(), "input_tokens_details": object{"cached_tokens": r.used.CacheRead, "cache_write_tokens": r.used.CacheWrite},
		"output_tokens": r.used.Output, "output_tokens_details": object{"reasoning_tokens": r.thoughts},
		"total_tokens": r.used.input() + r.used.Output,
	}
}

func (c responses) response(r *reply, status string, output []object) object {
	out := object{
		"id": r.ident("resp_", 0), "object": "response", "created_at": r.at.Unix(), "status": status, "background": false, "error": nil,
		"incomplete_details": nil, "max_output_tokens": nil, "model": r.model, "output": output, "previous_response_id": nil,
		"service_tier": "default", "temperature": 1.0, "text": object{"format": object{"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
		"tools": []any{}, "top_p": 1.0, "truncation": "disabled", "usage": nil, "user": nil, "metadata": object{},
	}
	for k, v := range r.echo {
		out[k] = v
	}
	if status == "completed" {
		out["usage"], out["completed_at"] = c.usage(r), r.at.Unix()
	}
	return out
}

// item is a part as an output item: as it begins, and what it is in the end.
func (responses) item(r *reply, p part) (begin, whole object) {
	both := func(kind, prefix string, fields object) (object, object) {
		begin, whole := object{"type": kind, "id": prefix + p.id, "status": "in_progress"}, object{"type": kind, "id": prefix + p.id, "status": "completed"}
		for k, v := range fields {
			begin[k], whole[k] = v, v
		}
		return begin, whole
	}
	switch p.kind {
	case text:
		begin, whole = both("message", "msg_", object{"role": "assistant"})
		begin["content"], whole["content"] = []object{}, []object{outputText(p.text)}
	case thinking:
		begin, whole = both("reasoning", "rs_", nil)
		delete(begin, "status")
		delete(whole, "status")
		begin["summary"], whole["summary"] = []object{}, []object{{"type": "summary_text", "text": p.text}}
		if r.encrypted {
			begin["encrypted_content"], whole["encrypted_content"] = "", "gAAAAAB"+p.id
		}
	case call:
		id := object{"call_id": "call_" + p.id}
		switch p.call.Type {
		case "local_shell":
			begin, whole = both("local_shell_call", "lsh_", id)
			begin["action"], whole["action"] = p.call.Input, p.call.Input
			return begin, whole
		case "shell":
			begin, whole = both("shell_call", "sh_", id)
			begin["action"], whole["action"] = p.call.Input, p.call.Input
			return begin, whole
		}
		id["name"] = p.call.Name
		if p.call.Namespace != "" {
			id["namespace"] = p.call.Namespace
		}
		if p.call.Type == "custom" {
			begin, whole = both("custom_tool_call", "ctc_", id)
			begin["input"], whole["input"] = "", p.call.input()
		} else {
			begin, whole = both("function_call", "fc_", id)
			begin["arguments"], whole["arguments"] = "", p.call.input()
		}
	}
	return begin, whole
}

func outputText(s string) object {
	return object{"type": "output_text", "text": s, "annotations": []any{}, "logprobs": []any{}}
}

func (c responses) stream(r *reply) []step {
	var s stream
	number := 0
	send := func(kind string, fields object) {
		fields["type"], fields["sequence_number"] = kind, number
		number++
		s.event(kind, fields)
	}
	send("response.created", object{"response": c.response(r, "in_progress", []object{})})
	send("response.in_progress", object{"response": c.response(r, "in_progress", []object{})})
	output := []object{}
	for _, p := range r.parts {
		if p.kind == fail {
			failed := c.response(r, "failed", output)
			failed["error"] = object{"code": p.errType, "message": p.text}
			send("response.failed", object{"response": failed})
			return s.steps
		}
		begin, whole := c.item(r, p)
		if begin == nil {
			if s.happens(p.Item) {
				return s.steps
			}
			continue
		}
		n := len(output)
		send("response.output_item.added", object{"output_index": n, "item": begin})
		inItem := func(kind string, fields object) {
			fields["item_id"], fields["output_index"] = begin["id"], n
			send(kind, fields)
		}
		switch p.kind {
		case text:
			inItem("response.content_part.added", object{"content_index": 0, "part": outputText("")})
			for _, t := range words(p.text) {
				inItem("response.output_text.delta", object{"content_index": 0, "delta": t, "logprobs": []any{}})
			}
			inItem("response.output_text.done", object{"content_index": 0, "text": p.text, "logprobs": []any{}})
			inItem("response.content_part.done", object{"content_index": 0, "part": outputText(p.text)})
		case thinking:
			inItem("response.reasoning_summary_part.added", object{"summary_index": 0, "part": object{"type": "summary_text", "text": ""}})
			for _, t := range words(p.text) {
				inItem("response.reasoning_summary_text.delta", object{"summary_index": 0, "delta": t})
			}
			inItem("response.reasoning_summary_text.done", object{"summary_index": 0, "text": p.text})
			inItem("response.reasoning_summary_part.done", object{"summary_index": 0, "part": object{"type": "summary_text", "text": p.text}})
		case call:
			kind, field := "", ""
			switch whole["type"] {
			case "function_call":
				kind, field = "response.function_call_arguments", "arguments"
			case "custom_tool_call":
				kind, field = "response.custom_tool_call_input", "input"
			}
			if kind != "" { // the others come all at once
				for _, t := range partials(p.call.input()) {
					inItem(kind+".delta", object{"delta": t})
				}
				done := object{field: p.call.input()}
				if field == "arguments" {
					done["name"] = p.call.Name
				}
				inItem(kind+".done", done)
			}
		}
		send("response.output_item.done", object{"output_index": n, "item": whole})
		output = append(output, whole)
	}
	send("response.completed", object{"response": c.response(r, "completed", output)})
	return s.steps
}

func (c responses) whole(r *reply) any {
	output := []object{}
	for _, p := range r.parts {
		if _, whole := c.item(r, p); whole != nil {
			output = append(output, whole)
		}
	}
	return c.response(r, "completed", output)
}
