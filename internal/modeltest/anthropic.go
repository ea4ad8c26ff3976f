package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// messages is Anthropic's Messages API.
type messages struct{}

// content is a text, or an array of blocks of which the types matter here.
type content []struct {
	Type             string          `json:"type"`
	FunctionResponse json.RawMessage `json:"functionResponse"` // Gemini's
}

func (c *content) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		return nil
	}
	type plain content
	return json.Unmarshal(b, (*plain)(c))
}

func (messages) read(a *asked, body []byte) error {
	var in struct {
		Model     string `json:"model"`
		MaxTokens int    `json:"max_tokens"`
		Stream    bool   `json:"stream"`
		Messages  []struct {
			Role    string  `json:"role"`
			Content content `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name        string `json:"name"`
			InputSchema schema `json:"input_schema"`
		} `json:"tools"`
		OutputFormat struct {
			Schema *schema `json:"schema"`
		} `json:"output_format"`
		OutputConfig struct {
			Format struct {
				Schema *schema `json:"schema"`
			} `json:"format"`
		} `json:"output_config"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return fmt.Errorf("the request body is not valid JSON: %w", err)
	}
	switch {
	case in.Model == "":
		return errors.New("model: Field required")
	case len(in.Messages) == 0:
		return errors.New("messages: at least one message is required")
	case in.MaxTokens <= 0 && a.endpoint == Messages:
		return errors.New("max_tokens: Field required")
	}
	a.model, a.stream, a.sse = in.Model, in.Stream, true
	for _, t := range in.Tools {
		a.tools = append(a.tools, tool{Name: t.Name, Type: "function", Schema: t.InputSchema})
	}
	if a.wants = in.OutputConfig.Format.Schema; a.wants == nil {
		a.wants = in.OutputFormat.Schema
	}
	var by []rune
	for _, m := range in.Messages {
		switch m.Role {
		case "assistant":
			by = append(by, byModel)
		case "user":
			by = append(by, byUser)
			for _, block := range m.Content {
				if block.Type == "tool_result" {
					by = append(by, result)
				}
			}
		}
	}
	a.speakers = by
	return nil
}

func (messages) usage(r *reply, output int64) object {
	return object{
		"input_tokens": r.used.Input, "cache_creation_input_tokens": r.used.CacheWrite, "cache_read_input_tokens": r.used.CacheRead,
		"cache_creation": object{"ephemeral_5m_input_tokens": r.used.CacheWrite, "ephemeral_1h_input_tokens": 0},
		"output_tokens":  output, "output_tokens_details": object{"thinking_tokens": min(r.thoughts, output)}, "server_tool_use": nil,
		"service_tier": "standard", "inference_geo": "not_available",
	}
}

func (m messages) message(r *reply, blocks []object, stop any, output int64) object {
	return object{
		"id": r.ident("msg_01", 0), "type": "message", "role": "assistant", "model": r.model, "content": blocks,
		"stop_reason": stop, "stop_sequence": nil, "stop_details": nil, "container": nil, "usage": m.usage(r, output),
	}
}

func (messages) stop(r *reply) string {
	if r.calls() {
		return "tool_use"
	}
	return "end_turn"
}

// signature is opaque; programs hand it back as it is.
func signature(p part) string { return "EqoBCkgIARABGAIiQ" + p.id }

// block is a part as content: as it begins, and what it is in the end.
func (messages) block(p part) (begin, whole object) {
	switch p.kind {
	case thinking:
		return object{"type": "thinking", "thinking": "", "signature": ""}, object{"type": "thinking", "thinking": p.text, "signature": signature(p)}
	case call:
		with := func(input any) object {
			return object{"type": "tool_use", "id": "toolu_01" + p.id, "name": p.call.Name, "input": input, "caller": object{"type": "direct"}}
		}
		return with(object{}), with(p.call.Input)
	case text:
		return object{"type": "text", "text": ""}, object{"type": "text", "text": p.text}
	}
	return nil, nil
}

func (m messages) stream(r *reply) []step {
	var s stream
	s.event("message_start", object{"type": "message_start", "message": m.message(r, []object{}, nil, 1)})
	index := 0
	for _, p := range r.parts {
		if p.kind == fail {
			s.event("error", m.failure(p.Item, r.id))
			return s.steps
		}
		begin, _ := m.block(p)
		if begin == nil {
			if s.happens(p.Item) {
				return s.steps
			}
			continue
		}
		s.event("content_block_start", object{"type": "content_block_start", "index": index, "content_block": begin})
		if index == 0 {
			s.event("ping", object{"type": "ping"})
		}
		delta := func(kind, field, value string) {
			s.event("content_block_delta", object{"type": "content_block_delta", "index": index, "delta": object{"type": kind, field: value}})
		}
		switch p.kind {
		case text:
			for _, t := range words(p.text) {
				delta("text_delta", "text", t)
			}
		case thinking:
			for _, t := range words(p.text) {
				delta("thinking_delta", "thinking", t)
			}
			delta("signature_delta", "signature", signature(p))
		case call:
			delta("input_json_delta", "partial_json", "")
			for _, t := range partials(p.call.input()) {
				delta("input_json_delta", "partial_json", t)
			}
		}
		s.event("content_block_stop", object{"type": "content_block_stop", "index": index})
		index++
	}
	usage := m.usage(r, r.used.Output)
	delete(usage, "cache_creation")
	delete(usage, "service_tier")
	delete(usage, "inference_geo")
	s.event("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": m.stop(r), "stop_sequence": nil, "stop_details": nil, "container": nil}, "usage": usage})
	s.event("message_stop", object{"type": "message_stop"})
	return s.steps
}

func (m messages) whole(r *reply) any {
	if r.endpoint == CountTokens {
		return object{"input_tokens": r.used.input()}
	}
	blocks := []object{}
	for _, p := range r.parts {
		if _, whole := m.block(p); whole != nil {
			blocks = append(blocks, whole)
		}
	}
	return m.message(r, blocks, m.stop(r), r.used.Output)
}

func (messages) failure(i Item, requestID string) any {
	return object{"type": "error", "error": object{"type": i.errType, "message": i.text}, "request_id": requestID}
}

func (messages) headers(h http.Header, requestID string) {
	h.Set("Request-Id", requestID)
	h.Set("Anthropic-Organization-Id", "00000000-0000-4000-8000-000000000001")
	h.Set("Anthropic-Ratelimit-Requests-Limit", "4000")
	h.Set("Anthropic-Ratelimit-Requests-Remaining", "3999")
}

func (messages) keyless(given bool) Item {
	if given {
		return Error(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
	}
	return Error(http.StatusUnauthorized, "authentication_error", "x-api-key header is required")
}
