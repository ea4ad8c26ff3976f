package check

import (
	"encoding/json"
	"fmt"
)

// Messages reads the body of Anthropic's POST /v1/messages.
func Messages(body []byte, g Grants) (Request, *Refusal) { return first(body, g) }

// CountTokens reads the body of Anthropic's POST /v1/messages/count_tokens.
func CountTokens(body []byte, g Grants) (Request, *Refusal) { return first(body, g) }

// Responses reads the body of OpenAI's POST /v1/responses.
func Responses(body []byte, g Grants) (Request, *Refusal) { return first(body, g) }

// Chat reads the body of OpenAI's POST /v1/chat/completions.
func Chat(body []byte, g Grants) (Request, *Refusal) { return first(body, g) }

// Gemini reads the body of POST /v1beta/models/MODEL:generateContent and :streamGenerateContent; which of them, the
// path says.
func Gemini(model string, body []byte, g Grants) (Request, *Refusal) {
	r, refusal := first(body, g)
	r.Model = model
	return r, refusal
}

// GeminiCount reads the body of POST /v1beta/models/MODEL:countTokens.
func GeminiCount(model string, body []byte, g Grants) (Request, *Refusal) {
	return Gemini(model, body, g)
}

// first knows function tools only.
func first(body []byte, _ Grants) (Request, *Refusal) {
	var b struct {
		Model     string
		Stream    bool
		MaxTokens int64  `json:"max_tokens"`
		Max2      int64  `json:"max_completion_tokens"`
		Max3      int64  `json:"max_output_tokens"`
		Previous  string `json:"previous_response_id"`
		Tools     []struct{ Type string }
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return Request{}, &Refusal{Status: 400, Message: fmt.Sprintf("the body is not valid JSON: %v", err)}
	}
	for _, tool := range b.Tools {
		if tool.Type != "" && tool.Type != "function" && tool.Type != "custom" {
			return Request{}, refuse(WebSearch, "a tool of type %q is not allowed here", tool.Type)
		}
	}
	r := Request{Model: b.Model, Stream: b.Stream, MaxTokens: max(b.MaxTokens, b.Max2, b.Max3), Body: body}
	if b.Previous != "" {
		r.Previous = []string{b.Previous}
	}
	return r, nil
}
