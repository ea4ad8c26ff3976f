// Package check reads the bodies of model calls, and refuses what would have a provider reach out, remember or run
// something: what it fetches, stores or executes is outside of the sandbox, and nobody's decision. It is pure: it opens
// nothing and knows no network. What it gives to be forwarded is what it has checked.
//
// It fails closed. The tables of a dialect name each field, tool and part of content that is known to be harmless, and
// each that needs a grant; what is in neither is refused, and the message says which grant would let it pass. What has
// no meaning for the provider beyond being text for the model, such as a tool's schema or its input, is not looked at.
package check

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"ravi/internal/strictjson"
)

// Grants are what the operator allows beyond plain generation, by name; see the constants.
type Grants map[string]bool

// Names of grants. field:NAME allows a field that is not known here, wherever it stands; type:NAME a tool or a part of
// content of a type that is not known here. Neither opens what has a grant of its own.
const (
	WebSearch       = "web_search"
	WebFetch        = "web_fetch"
	CodeExecution   = "code_execution"
	MCP             = "mcp"
	URLs            = "urls"
	Files           = "files"
	Store           = "store"
	Background      = "background"
	ImageGeneration = "image_generation"
	FileSearch      = "file_search"
	FieldPrefix     = "field:"
	TypePrefix      = "type:"
)

// reasons say why a grant is needed.
var reasons = map[string]string{
	WebSearch:       "the provider would search the web",
	WebFetch:        "the provider would fetch pages",
	CodeExecution:   "the provider would run code on machines of its own",
	MCP:             "the provider would connect to other servers",
	URLs:            "the provider would fetch it from its address; send what is there as data",
	Files:           "it names something that is kept at the provider; send it as data",
	Store:           "the provider would keep the conversation, or go on from what it has kept",
	Background:      "the provider would go on when nobody waits for it",
	ImageGeneration: "the provider would make pictures with another model",
	FileSearch:      "the provider would search what is kept there",
}

// Known says whether a grant of this name means something.
func Known(grant string) bool {
	for _, prefix := range []string{FieldPrefix, TypePrefix} {
		if name, ok := strings.CutPrefix(grant, prefix); ok {
			return plainName.MatchString(name)
		}
	}
	return reasons[grant] != ""
}

// Request is a body that was found harmless.
type Request struct {
	Model     string
	Stream    bool
	MaxTokens int64 // of the answer; 0: it does not say
	// Body is what is forwarded.
	Body []byte
	// Previous are ids of responses that it goes on from; the broker knows which this lease made.
	Previous []string
	// HideUsage says that the answer has a last piece with usage that was asked for by the broker, not by the agent
	// (Chat Completions, streamed).
	HideUsage bool
}

// Refusal says what is not let through. It is an error.
type Refusal struct {
	Status  int    // 400 what is no proper request, 403 what is not granted
	Message string // for the agent, and for people
	Grant   string // that would allow it; empty: none would
}

func (r *Refusal) Error() string { return r.Message }

// refusal is the fault as the outside sees it.
func (f *fault) refusal() *Refusal {
	m := f.at
	if m == "" {
		m = "the body"
	}
	if f.kind != "" {
		m += " (" + strconv.QuoteToASCII(f.kind) + ")"
	}
	m += ": " + f.what
	if f.grant != "" {
		m += fmt.Sprintf("; the operator of Ravi can allow it by adding %q to models.allow in config.json", f.grant)
		return &Refusal{Status: 403, Message: m, Grant: f.grant}
	}
	return &Refusal{Status: 400, Message: m}
}

// read reads the body of a dialect.
func read(body []byte, g Grants, r rule) (strictjson.Value, *fault) {
	v, err := strictjson.Read(body)
	if err != nil {
		return v, bad("%v", err)
	}
	if v.Kind() != strictjson.Object {
		return v, bad("expected an object, got %s", v.Kind())
	}
	return v, r(g, v)
}

// modelName is what a name may be, so that it can stand in a path and in a record. Two dots could climb.
var modelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$`)

func checkModel(name string) *fault {
	if !modelName.MatchString(name) || strings.Contains(name, "..") {
		return bad("%s is no name of a model", quote(name)).in("model")
	}
	return nil
}

// common reads what all of the dialects but Gemini's have.
func common(body []byte, v strictjson.Value, limits ...string) (Request, *fault) {
	r := Request{Body: body}
	name, ok := v.Get("model")
	if !ok || name.Kind() != strictjson.String {
		return r, bad("it has no model")
	}
	r.Model = name.Text()
	if f := checkModel(r.Model); f != nil {
		return r, f
	}
	r.Stream = literal(v, "stream", "true")
	for _, limit := range limits {
		r.MaxTokens = max(r.MaxTokens, number(v, limit))
	}
	return r, nil
}

// literal says whether a field is there as exactly this.
func literal(v strictjson.Value, key, want string) bool {
	item, ok := v.Get(key)
	return ok && string(item.Raw()) == want
}

// number is a field that the rule whole has passed, or 0.
func number(v strictjson.Value, key string) int64 {
	item, ok := v.Get(key)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(item.Text(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
