package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"ravi/internal/strictjson"
)

// The roles of messages.
const (
	User      = "user"
	Assistant = "assistant"
)

// Message is one of a conversation. A user's has Text, or Results of the calls in the message before; an assistant's has
// Text, Calls or both.
type Message struct {
	Role    string   `json:"role"`
	Text    string   `json:"text,omitempty"`
	Calls   []Call   `json:"calls,omitempty"`
	Results []Result `json:"results,omitempty"`
	// Opaque is what a provider wants to be given back as it was, such as its signed thoughts. Nobody else reads it.
	Opaque json.RawMessage `json:"opaque,omitempty"`
}

// Call is a tool call that a model asks for.
type Call struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Args is a JSON object. Wrong says why there is none.
	Args  json.RawMessage `json:"args"`
	Wrong string          `json:"wrong,omitempty"`
}

// Result is what came of a call.
type Result struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool,omitempty"`
	Text   string `json:"text"`
	// Failed says that it was not done as asked.
	Failed bool `json:"failed,omitempty"`
	// Final says that the turn is over with this.
	Final bool `json:"final,omitempty"`
	// Trusted is a text of Ravi's own, which needs no fence.
	Trusted bool `json:"trusted,omitempty"`
}

// Spec is what a model is told of a tool.
type Spec struct {
	Name        string
	Description string
	Schema      json.RawMessage // of its arguments, an object
}

// Usage counts tokens. Input is what was read anew and written to or read from a provider's cache alike.
type Usage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

// Request is what a model is asked.
type Request struct {
	System   string
	Messages []Message
	Tools    []Spec
	// MaxTokens bounds the answer.
	MaxTokens int64
}

// Answer is a model's.
type Answer struct {
	Message Message
	Usage   Usage
	// Cut says that it ended since it had as many tokens as it may.
	Cut bool
}

// ErrSpent is of a Model's errors the one that says that it may not be asked any more, since all that may be used is used.
var ErrSpent = errors.New("what may be used of models is used up")

// Model is asked for the next message of a conversation. say gets its text as it comes. Package provider has those of the
// usual providers.
type Model interface {
	Next(ctx context.Context, r Request, say func(delta string)) (Answer, error)
}

const (
	// mostArgs bounds the arguments of one call, in bytes.
	mostArgs = 1 << 20
	// mostArgValues are in them, and mostArgDepth of these inside each other.
	mostArgValues = 10_000
	mostArgDepth  = 64
	// mostCalls is how many calls of one message are done.
	mostCalls = 64
	// callsAtOnce of them are done at the same time.
	callsAtOnce = 8
)

// NewCall makes a call of what a model wrote. Arguments that are no object, or too long, are left out: what is in a
// conversation is sent to the model again and again, and a provider takes no other.
func NewCall(id, name, args string) Call {
	c := Call{ID: id, Name: name, Args: json.RawMessage("{}")}
	raw := bytes.TrimSpace([]byte(args))
	switch {
	case len(raw) == 0: // some write nothing where there is nothing to say
	case len(raw) > mostArgs:
		c.Wrong = tooMuch("the arguments have", len(raw), mostArgs)
	case !json.Valid(raw):
		c.Wrong = "the arguments are no JSON"
	case raw[0] != '{':
		c.Wrong = "the arguments are no JSON object"
	default:
		if c.Wrong = overdone(raw); c.Wrong == "" {
			c.Args = raw
		}
	}
	return c
}

// overdone says why JSON would not be taken by all who read a conversation, of which it is a small part.
func overdone(raw []byte) string {
	v, err := strictjson.Read(raw)
	if err != nil { // a key that is there twice, say
		return fmt.Sprintf("the arguments: %v", err)
	}
	values := 0
	var count func(v strictjson.Value, depth int) bool
	count = func(v strictjson.Value, depth int) bool {
		if values++; values > mostArgValues || depth > mostArgDepth {
			return false
		}
		for _, item := range v.Items() {
			if !count(item, depth+1) {
				return false
			}
		}
		for _, member := range v.Members() {
			if !count(member, depth+1) {
				return false
			}
		}
		return true
	}
	if !count(v, 1) {
		return fmt.Sprintf("the arguments have more than %d values, or more than %d inside each other", mostArgValues, mostArgDepth)
	}
	return ""
}
