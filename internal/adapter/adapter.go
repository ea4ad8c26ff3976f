// Package adapter knows the agent programs of other makers: what each needs to be quiet and to reach its model through
// the broker, how it takes a task, and how what it writes reads. It starts nothing and opens nothing: it says what is to
// be started, and reads what is written.
package adapter

import "encoding/json"

// Program is an agent program.
type Program struct {
	Name  string // claude, codex, gemini, opencode, pi, command
	Title string // for people
	// Dialect is the provider's that it speaks: anthropic, openai, gemini; empty: any.
	Dialect string
	// KeyEnv is the variable in which its users have their key.
	KeyEnv []string
	// Package is what npm calls it, at the Version that was tried; empty: it is not installed by Ravi.
	Package, Version string
	// Bin is the program within an installation, relative to it.
	Bin string
}

// Setup is what a program is started with.
type Setup struct {
	Prompt     string
	ContextDir string   // a folder with AGENTS.md and skills/, empty: none
	BaseURL    string   // of its provider at the broker, without a slash at the end
	Token      string   // the lease
	Model      string   // empty: what the program takes by itself
	Path       string   // of the program inside the sandbox
	Home       string   // inside
	Command    []string // of the program "command"
	Resume     string   // the program's own id of a conversation to go on with
}

// File is one that has to be there before it starts, beneath Home.
type File struct {
	Path    string // relative
	Content string
	Link    string // instead of Content: what it is a symbolic link to
}

// Launch is how it is started.
type Launch struct {
	Args  []string
	Env   map[string]string
	Files []File
}

// Event is something that a program says it does.
type Event struct {
	Kind    string          `json:"kind"` // start, text, thinking, tool, result, usage, error, end
	Text    string          `json:"text,omitempty"`
	Tool    string          `json:"tool,omitempty"`
	ID      string          `json:"id,omitempty"` // of the tool call
	Input   json.RawMessage `json:"input,omitempty"`
	Failed  bool            `json:"failed,omitempty"`
	Session string          `json:"session,omitempty"` // the program's own id of the conversation
	Model   string          `json:"model,omitempty"`
	// InputTokens and OutputTokens are what the program counts; the broker counts by itself.
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
}
