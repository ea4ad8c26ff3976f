// Package check reads the bodies of model calls, and refuses what would have a provider reach out, remember or run
// something: what it fetches, stores or executes is outside of the sandbox, and nobody's decision. It is pure: it opens
// nothing and knows no network. What it gives to be forwarded is what it has checked.
package check

import "fmt"

// Grants are what the operator allows beyond plain generation, by name; see the constants.
type Grants map[string]bool

// Names of grants. field:NAME allows a field of a body that is not known here.
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
)

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

// refuse is a refusal of what a grant would allow.
func refuse(grant, format string, args ...any) *Refusal {
	return &Refusal{Status: 403, Grant: grant, Message: fmt.Sprintf(format, args...) +
		fmt.Sprintf("; the operator of Ravi can allow it by adding %q to models.allow in config.json", grant)}
}
