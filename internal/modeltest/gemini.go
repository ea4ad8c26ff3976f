package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// gemini is Google's Gemini API.
type gemini struct{}

func (gemini) read(a *asked, body []byte) error {
	type turn struct {
		Role  string  `json:"role"`
		Parts content `json:"parts"`
	}
	var in struct {
		Contents []turn `json:"contents"`
		Tools    []struct {
			FunctionDeclarations []struct {
				Name                 string  `json:"name"`
				Parameters           *schema `json:"parameters"`
				ParametersJSONSchema *schema `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
		GenerationConfig struct {
			ResponseSchema     *schema `json:"responseSchema"`
			ResponseJSONSchema *schema `json:"responseJsonSchema"`
		} `json:"generationConfig"`
		GenerateContentRequest struct {
			Contents []turn `json:"contents"`
		} `json:"generateContentRequest"` // of countTokens
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return fmt.Errorf("invalid JSON payload received: %w", err)
	}
	if len(in.Contents)+len(in.GenerateContentRequest.Contents) == 0 {
		return errors.New("* GenerateContentRequest.contents: contents is not specified")
	}
	for _, t := range in.Tools {
		for _, f := range t.FunctionDeclarations {
			one := tool{Name: f.Name, Type: "function"}
			if f.Parameters != nil {
				one.Schema = *f.Parameters
			}
			if f.ParametersJSONSchema != nil {
				one.Schema = *f.ParametersJSONSchema
			}
			a.tools = append(a.tools, one)
		}
	}
	if a.wants = in.GenerationConfig.ResponseJSONSchema; a.wants == nil {
		a.wants = in.GenerationConfig.ResponseSchema
	}
	var by []rune
	for _, c := range in.Contents {
		switch c.Role {
		case "model":
			by = append(by, byModel)
		case "function":
			by = append(by, result)
		default:
			by = append(by, byUser)
			for _, p := range c.Parts {
				if p.FunctionResponse != nil {
					by = append(by, result)
				}
			}
		}
	}
	a.speakers = by
	return nil
}

func (gemini) usage(r *reply, output, thoughts int64) object {
	u := object{
		"promptTokenCount": r.used.input(), "totalTokenCount": r.used.input() + output + thoughts,
		"promptTokensDetails": []object{{"modality": "TEXT", "tokenCount": r.used.input()}},
	}
	// What is zero is left out, as in all of Google's JSON.
	for name, n := range map[string]int64{"candidatesTokenCount": output, "thoughtsTokenCount": thoughts, "cachedContentTokenCount": r.used.CacheRead} {
		if n > 0 {
			u[name] = n
		}
	}
	return u
}

func (g gemini) answer(r *reply, parts []object, last bool) object {
	one := object{"content": object{"parts": parts, "role": "model"}, "index": 0}
	usage := g.usage(r, 0, r.thoughts)
	if last {
		one["finishReason"] = "STOP"
		usage = g.usage(r, r.used.Output-r.thoughts, r.thoughts)
	}
	return object{"candidates": []object{one}, "usageMetadata": usage, "modelVersion": r.model, "responseId": r.ident("", 0)}
}

// parts are those of one item, as many as a stream makes of it.
func (gemini) parts(p part, cut func(string) []string) []object {
	var out []object
	switch p.kind {
	case text:
		for _, t := range cut(p.text) {
			out = append(out, object{"text": t})
		}
	case thinking:
		for _, t := range cut(p.text) {
			out = append(out, object{"text": t, "thought": true})
		}
	case call:
		out = append(out, object{
			"functionCall":     object{"id": p.id, "name": p.call.Name, "args": p.call.Input},
			"thoughtSignature": "CqEBAdHtim8" + p.id,
		})
	}
	return out
}

func (g gemini) stream(r *reply) []step {
	var s stream
	sent := false
	send := func(v any) {
		switch {
		case r.sse:
			s.event("", v)
		case sent:
			s.raw(append([]byte(",\r\n"), encodeJSON(v)...))
		default:
			s.raw(append([]byte("["), encodeJSON(v)...))
		}
		sent = true
	}
	for _, p := range r.parts {
		if p.kind == fail {
			send(g.failure(p.Item, r.id))
			return s.steps
		}
		parts := g.parts(p, words)
		if parts == nil && s.happens(p.Item) {
			return s.steps
		}
		for _, one := range parts {
			send(g.answer(r, []object{one}, false))
		}
	}
	send(g.answer(r, []object{{"text": ""}}, true))
	if !r.sse {
		s.raw([]byte("]"))
	}
	return s.steps
}

func (g gemini) whole(r *reply) any {
	if r.endpoint == CountTokens {
		return object{"totalTokens": r.used.input(), "promptTokensDetails": []object{{"modality": "TEXT", "tokenCount": r.used.input()}}}
	}
	parts := []object{}
	for _, p := range r.parts {
		parts = append(parts, g.parts(p, func(s string) []string { return []string{s} })...)
	}
	return g.answer(r, parts, true)
}

func (gemini) failure(i Item, _ string) any {
	e := object{"code": i.status, "message": i.text, "status": i.errType}
	if i.tool != "" {
		e["details"] = []object{{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": i.tool, "domain": "googleapis.com"}}
	}
	return object{"error": e}
}

func (gemini) headers(h http.Header, _ string) { h.Set("Server-Timing", "gfet4t7; dur=120") }

// keyless is not a 401: Google calls a wrong key a wrong argument.
func (gemini) keyless(given bool) Item {
	if !given {
		return Error(http.StatusForbidden, "PERMISSION_DENIED", "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.")
	}
	i := Error(http.StatusBadRequest, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.")
	i.tool = "API_KEY_INVALID"
	return i
}
