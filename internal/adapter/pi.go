package adapter

import (
	"encoding/json"
	"fmt"
)

// pi reads its task from its standard input where that is no terminal. It knows no model of a provider that it does not
// know, so one has to be named. It exits with 0 whatever happened.
var pi = Program{
	Name: "pi", Title: "pi",
	KeyEnv:  []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"},
	Package: "@mariozechner/pi-coding-agent", Version: "0.73.1",
	Bin: "node_modules/@mariozechner/pi-coding-agent/dist/cli.js", Node: 20,
	StateDir:   ".pi/agent/sessions",
	NeedsModel: true,
	launch:     launchPi, reader: readPi,
}

func launchPi(s Setup) Launch {
	var api, base string
	switch s.Dialect {
	case Anthropic:
		api, base = "anthropic-messages", s.BaseURL
	case Gemini:
		api, base = "google-generative-ai", s.BaseURL+"/v1beta"
	default:
		api, base = "openai-completions", s.BaseURL+"/v1"
	}
	type object map[string]any
	models := string(toJSON(object{"providers": object{"ravi": object{
		"baseUrl": base, "api": api, "apiKey": leaseEnv, "models": []object{{"id": s.Model}},
	}}}, "  "))
	args := []string{"--mode", "json", "--provider", "ravi", "--model", s.Model}
	if s.Resume != "" {
		args = append(args, "--session", s.Resume)
	}
	l := Launch{Env: map[string]string{leaseEnv: s.Token, "PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}}
	var task File
	l.Args, task = byStdin(s, args...)
	l.Files = append([]File{task, {Path: ".pi/agent/models.json", Content: models}}, links(s, ".pi/agent/AGENTS.md", ".agents/skills")...)
	return l
}

// piLine is a line of pi --mode json.
type piLine struct {
	Type    string `json:"type"`
	ID      string `json:"id"`
	Message struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Model   string          `json:"model"`
		Stop    string          `json:"stopReason"`
		Error   string          `json:"errorMessage"`
		Usage   struct {
			Input      int64 `json:"input"`
			Output     int64 `json:"output"`
			CacheRead  int64 `json:"cacheRead"`
			CacheWrite int64 `json:"cacheWrite"`
		} `json:"usage"`
	} `json:"message"`
	CallID string          `json:"toolCallId"`
	Tool   string          `json:"toolName"`
	Args   json.RawMessage `json:"args"`
	Result struct {
		Content json.RawMessage `json:"content"`
	} `json:"result"`
	IsError  bool   `json:"isError"`
	Attempt  int    `json:"attempt"`
	Attempts int    `json:"maxAttempts"`
	Error    string `json:"errorMessage"`
}

func readPi(s *scribe) func([]byte) {
	// Each piece comes with all that was before it, and the end with the whole conversation: that is in the others too.
	s.skip = []string{`{"type":"message_update"`, `{"type":"tool_execution_update"`, `{"type":"turn_end"`, `{"type":"agent_end"`, `{"type":"message_start"`}
	return func(line []byte) {
		var l piLine
		if !s.parse(line, &l) {
			return
		}
		switch l.Type {
		case "session":
			s.start(l.ID, "")
		case "message_end":
			if l.Message.Role == "assistant" {
				s.piMessage(l)
			}
		case "tool_execution_start":
			s.say(Event{Kind: Tool, Tool: l.Tool, ID: l.CallID, Input: l.Args})
		case "tool_execution_end":
			s.say(Event{Kind: Result, ID: l.CallID, Text: textOf(l.Result.Content), Failed: l.IsError})
		case "auto_retry_start":
			s.say(Event{Kind: Note, Text: fmt.Sprintf("%s; attempt %d of %d", l.Error, l.Attempt, l.Attempts)})
		}
	}
}

func (s *scribe) piMessage(l piLine) {
	m := l.Message
	s.start(s.session, m.Model)
	var blocks []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Thinking string `json:"thinking"`
	}
	if json.Unmarshal(m.Content, &blocks) == nil {
		for _, b := range blocks {
			switch b.Type {
			case "text":
				s.text(Text, b.Text, "")
			case "thinking":
				s.text(Thinking, b.Thinking, "")
			}
		}
	}
	s.add(m.Usage.Input, m.Usage.CacheRead, m.Usage.CacheWrite, m.Usage.Output)
	s.count()
	s.ended, s.failed = m.Stop != "toolUse", m.Stop == "error" || m.Stop == "aborted"
	if s.failed {
		text := m.Error
		if text == "" {
			text = m.Stop
		}
		s.wrong(text)
	}
}
