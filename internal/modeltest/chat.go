package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// openai is what OpenAI's two endpoints have in common.
type openai struct{}

func (openai) failure(i Item, _ string) any {
	var code any
	switch i.status {
	case http.StatusUnauthorized:
		code = "invalid_api_key"
	case http.StatusTooManyRequests:
		code = "rate_limit_exceeded"
	}
	return object{"error": object{"message": i.text, "type": i.errType, "param": nil, "code": code}}
}

func (openai) headers(h http.Header, requestID string) {
	h.Set("X-Request-Id", requestID)
	h.Set("Openai-Organization", "org-modeltest")
	h.Set("Openai-Version", "2020-10-01")
	h.Set("X-Ratelimit-Limit-Requests", "10000")
	h.Set("X-Ratelimit-Remaining-Requests", "9999")
}

func (openai) keyless(given bool) Item {
	if given {
		return Error(http.StatusUnauthorized, "invalid_request_error", "Incorrect API key provided. You can find your API key at https://platform.openai.com/account/api-keys.")
	}
	return Error(http.StatusUnauthorized, "invalid_request_error", "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth.")
}

// chat is OpenAI's Chat Completions API.
type chat struct{ openai }

func (chat) read(a *asked, body []byte) error {
	var in struct {
		Model         string `json:"model"`
		Stream        bool   `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Messages []struct {
			Role string `json:"role"`
		} `json:"messages"`
		Tools []struct {
			Type     string `json:"type"`
			Function struct {
				Name       string `json:"name"`
				Parameters schema `json:"parameters"`
			} `json:"function"`
			Custom struct {
				Name string `json:"name"`
			} `json:"custom"`
		} `json:"tools"`
		ResponseFormat struct {
			JSONSchema struct {
				Schema *schema `json:"schema"`
			} `json:"json_schema"`
		} `json:"response_format"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	switch {
	case in.Model == "":
		return errors.New("you must provide a model parameter")
	case len(in.Messages) == 0:
		return errors.New("missing required parameter: 'messages'")
	}
	a.model, a.stream, a.sse, a.usage, a.wants = in.Model, in.Stream, true, in.StreamOptions.IncludeUsage, in.ResponseFormat.JSONSchema.Schema
	for _, t := range in.Tools {
		a.tools = append(a.tools, tool{Name: t.Function.Name + t.Custom.Name, Type: t.Type, Schema: t.Function.Parameters})
	}
	var by []rune
	for _, m := range in.Messages {
		switch m.Role {
		case "assistant":
			by = append(by, byModel)
		case "user":
			by = append(by, byUser)
		case "tool", "function":
			by = append(by, result)
		}
	}
	a.speakers = by
	return nil
}

func (chat) usage(r *reply) object {
	return object{
		"prompt_tokens": r.used.input(), "completion_tokens": r.used.Output, "total_tokens": r.used.input() + r.used.Output,
		"prompt_tokens_details":     object{"cached_tokens": r.used.CacheRead, "cache_write_tokens": r.used.CacheWrite, "audio_tokens": 0},
		"completion_tokens_details": object{"reasoning_tokens": r.thoughts, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
	}
}

func (chat) finish(r *reply) string {
	if r.calls() {
		return "tool_calls"
	}
	return "stop"
}

func (chat) head(r *reply, kind string) object {
	return object{"id": r.ident("chatcmpl-", 0), "object": kind, "created": r.at.Unix(), "model": r.model, "service_tier": "default", "system_fingerprint": "fp_modeltest"}
}

// toolCall is a call with so much of its input.
func (chat) toolCall(p part, input string) object {
	if p.call.Type == "custom" {
		return object{"id": "call_" + p.id, "type": "custom", "custom": object{"name": p.call.Name, "input": input}}
	}
	return object{"id": "call_" + p.id, "type": "function", "function": object{"name": p.call.Name, "arguments": input}}
}

func (c chat) stream(r *reply) []step {
	var s stream
	chunk := func(choices []object, usage any) {
		out := c.head(r, "chat.completion.chunk")
		out["choices"] = choices
		if r.usage {
			out["usage"] = usage
		}
		s.event("", out)
	}
	delta := func(d object, finish any) {
		chunk([]object{{"index": 0, "delta": d, "logprobs": nil, "finish_reason": finish}}, nil)
	}
	delta(object{"role": "assistant", "content": "", "refusal": nil}, nil)
	index := 0
	for _, p := range r.parts {
		switch p.kind {
		case text:
			for _, t := range words(p.text) {
				delta(object{"content": t}, nil)
			}
		case thinking: // not OpenAI's own, but of others who speak like it
			for _, t := range words(p.text) {
				delta(object{"reasoning_content": t}, nil)
			}
		case call:
			first := c.toolCall(p, "")
			first["index"] = index
			delta(object{"tool_calls": []object{first}}, nil)
			kind, field := "function", "arguments"
			if p.call.Type == "custom" {
				kind, field = "custom", "input"
			}
			for _, t := range partials(p.call.input()) {
				delta(object{"tool_calls": []object{{"index": index, kind: object{field: t}}}}, nil)
			}
			index++
		case fail:
			s.event("", c.failure(p.Item, r.id))
			return s.steps
		default:
			if s.happens(p.Item) {
				return s.steps
			}
		}
	}
	delta(object{}, c.finish(r))
	if r.usage {
		chunk([]object{}, c.usage(r))
	}
	s.event("", []byte("[DONE]"))
	return s.steps
}

func (c chat) whole(r *reply) any {
	var said, thought string
	var calls []object
	for _, p := range r.parts {
		switch p.kind {
		case text:
			said += p.text
		case thinking:
			thought += p.text
		case call:
			calls = append(calls, c.toolCall(p, p.call.input()))
		}
	}
	message := object{"role": "assistant", "content": nil, "refusal": nil, "annotations": []any{}}
	if said != "" {
		message["content"] = said
	}
	if thought != "" {
		message["reasoning_content"] = thought
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	out := c.head(r, "chat.completion")
	out["choices"] = []object{{"index": 0, "message": message, "logprobs": nil, "finish_reason": c.finish(r)}}
	out["usage"] = c.usage(r)
	return out
}
