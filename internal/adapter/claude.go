package adapter

import (
	"encoding/json"
	"fmt"
)

// claude reads its task from its standard input with -p. As root it wants IS_SANDBOX to leave out its questions.
var claude = Program{
	Name: "claude", Title: "Claude Code", Dialect: Anthropic,
	KeyEnv:  []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"},
	Package: "@anthropic-ai/claude-code", Version: "2.1.332",
	Bin:      "node_modules/@anthropic-ai/claude-code-linux-" + machine("x64", "arm64") + "/claude",
	StateDir: ".claude/projects",
	launch:   launchClaude, reader: readClaude,
}

func launchClaude(s Setup) Launch {
	args := []string{
		"-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
		// It asks its maker's site about each address before it reads one.
		"--settings", `{"skipWebFetchPreflight":true}`,
	}
	if !s.WebSearch {
		args = append(args, "--disallowedTools=WebSearch")
	}
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Resume != "" {
		args = append(args, "--resume", s.Resume)
	}
	l := Launch{Env: map[string]string{
		"ANTHROPIC_BASE_URL": s.BaseURL, "ANTHROPIC_API_KEY": s.Token, "IS_SANDBOX": "1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1",
	}}
	if s.Model != "" {
		// What it does beside the task (a summary of a page, a title) goes to the same model: a lease may have no other.
		l.Env["ANTHROPIC_SMALL_FAST_MODEL"], l.Env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] = s.Model, s.Model
	}
	var task File
	l.Args, task = byStdin(s, args...)
	l.Files = append([]File{task}, links(s, ".claude/CLAUDE.md", ".claude/skills")...)
	return l
}

// claudeLine is a line of its stream-json.
type claudeLine struct {
	Type    string `json:"type"`
	Subtype string `json:"subtype"`
	Session string `json:"session_id"`
	Model   string `json:"model"`
	Parent  string `json:"parent_tool_use_id"`
	Message struct {
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	APIError    bool     `json:"is_api_error_message"`
	IsError     bool     `json:"is_error"`
	Result      string   `json:"result"`
	Errors      []string `json:"errors"`
	Attempt     int      `json:"attempt"`
	MaxRetries  int      `json:"max_retries"`
	ErrorStatus int      `json:"error_status"`
	// Models are what each model used up to now, the agents below it included.
	Models map[string]struct {
		Input      int64 `json:"inputTokens"`
		CacheRead  int64 `json:"cacheReadInputTokens"`
		CacheWrite int64 `json:"cacheCreationInputTokens"`
		Output     int64 `json:"outputTokens"`
	} `json:"modelUsage"`
}

type claudeBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
}

func readClaude(s *scribe) func([]byte) {
	return func(line []byte) {
		var l claudeLine
		if !s.parse(line, &l) {
			return
		}
		switch l.Type {
		case "system":
			switch l.Subtype {
			case "init":
				s.start(l.Session, l.Model)
			case "api_retry":
				s.failure = fmt.Sprintf("the provider answered %d; attempt %d of %d", l.ErrorStatus, l.Attempt, l.MaxRetries)
				s.say(Event{Kind: Note, Text: s.failure})
			}
		case "assistant", "user":
			s.failure = ""
			var blocks []claudeBlock
			if json.Unmarshal(l.Message.Content, &blocks) != nil {
				return
			}
			for _, b := range blocks {
				s.claudeBlock(l, b)
			}
		case "result":
			// There is one for each turn; the last counts.
			s.ended, s.failed, s.answer = true, l.IsError, cut(l.Result, maxText)
			s.in, s.out = 0, 0
			for _, m := range l.Models {
				s.add(m.Input, m.CacheRead, m.CacheWrite, m.Output)
			}
			s.count()
			if l.IsError {
				s.failure = s.answer
				if s.failure == "" && len(l.Errors) > 0 {
					s.failure = cut(l.Errors[0], maxText)
				}
				if s.failure == "" {
					s.failure = cut(l.Subtype, maxName)
				}
			}
		}
	}
}

func (s *scribe) claudeBlock(l claudeLine, b claudeBlock) {
	switch {
	case l.Type == "user" && b.Type == "tool_result":
		s.say(Event{Kind: Result, ID: b.ToolUseID, Text: textOf(b.Content), Failed: b.IsError, Parent: l.Parent})
	case l.Type == "user":
	case l.APIError && b.Type == "text":
		s.wrong(b.Text)
	case b.Type == "text":
		s.text(Text, b.Text, l.Parent)
	case b.Type == "thinking":
		s.text(Thinking, b.Thinking, l.Parent)
	case b.Type == "tool_use":
		s.say(Event{Kind: Tool, Tool: b.Name, ID: b.ID, Input: b.Input, Parent: l.Parent})
	}
}
