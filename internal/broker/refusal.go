package broker

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// refusal is an answer of the broker's own: what it does not send on, or what went wrong on the way.
type refusal struct {
	status  int
	message string        // for the agent, and for people
	after   time.Duration // when to try again; 0: it does not say
	// failed is for the audit alone, where it says more than the message; without secrets.
	failed string
}

func (r *refusal) Error() string { return r.message }

// shape is how a dialect tells an error: the body of an answer.
func (d Dialect) shape(status int, message string) []byte {
	var doc any
	kind := kinds[d][status]
	switch d {
	case Anthropic:
		if kind == "" {
			kind = "api_error"
		}
		doc = map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": message}}
	case Gemini:
		if kind == "" {
			kind = "UNKNOWN"
		}
		doc = map[string]any{"error": map[string]any{"code": status, "message": message, "status": kind}}
	default:
		doc = map[string]any{"error": openAIError(status, message)}
	}
	return encode(doc)
}

// event is how a dialect's stream tells an error, in the middle of it.
func (e endpoint) event(status int, message string) []byte {
	switch e {
	case messages, countTokens:
		return append(append([]byte("event: error\ndata: "), Anthropic.shape(status, message)...), "\n\n"...)
	case responses:
		// Some read what is inside, some what is beside it, and some only know a response that failed.
		doc := openAIError(status, message)
		failed := encode(map[string]any{"type": "response.failed", "response": map[string]any{
			"id": "resp_failed", "object": "response", "status": "failed", "output": []any{},
			"error": map[string]any{"code": doc["code"], "message": message}}})
		doc["type"] = "error"
		doc["error"] = openAIError(status, message)
		return append(append(append(append([]byte("event: error\ndata: "), encode(doc)...),
			"\n\nevent: response.failed\ndata: "...), failed...), "\n\n"...)
	case chat:
		return append(append([]byte("data: "), OpenAI.shape(status, message)...), "\n\n"...)
	default:
		return append(append([]byte("data: "), Gemini.shape(status, message)...), "\n\n"...)
	}
}

func openAIError(status int, message string) map[string]any {
	kind, code := "invalid_request_error", kinds[OpenAI][status]
	switch {
	case status == http.StatusTooManyRequests:
		kind = "requests"
	case status >= 500:
		kind = "server_error"
	}
	if code == "" {
		code = "server_error"
	}
	return map[string]any{"message": message, "type": kind, "param": nil, "code": code}
}

// kinds are the dialects' words for a status.
var kinds = map[Dialect]map[int]string{
	Anthropic: {
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		405: "invalid_request_error", 413: "request_too_large", 415: "invalid_request_error", 429: "rate_limit_error",
		529: "overloaded_error",
	},
	OpenAI: {
		400: "invalid_request", 401: "invalid_api_key", 403: "permission_denied", 404: "not_found", 405: "method_not_allowed",
		413: "request_too_large", 415: "unsupported_media_type", 429: "rate_limit_exceeded",
	},
	Gemini: {
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 405: "INVALID_ARGUMENT",
		413: "INVALID_ARGUMENT", 415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "UNAVAILABLE",
		503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
	},
}

func encode(doc any) []byte {
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err) // texts and numbers can be encoded
	}
	return b
}

// write answers with an error. What a status leaves open about trying again is said in the way that the makers' own
// client libraries obey.
func (r *refusal) write(w http.ResponseWriter, d Dialect) {
	h := w.Header()
	if r.after > 0 {
		h.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(r.after.Seconds())))))
	}
	if r.status < 500 && r.status != http.StatusTooManyRequests {
		h.Set("X-Should-Retry", "false")
	}
	body := d.shape(r.status, r.message)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(r.status)
	_, _ = w.Write(body) // an agent that has gone gets no answer
}
