package adapter

import (
	"encoding/json"
	"strings"
)

// gemini reads its task from its standard input where that is no terminal. Without a model it asks a small one first
// which of its models is to do the task.
var gemini = Program{
	Name: "gemini", Title: "Gemini CLI", Dialect: Gemini,
	KeyEnv:  []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"},
	Package: "@google/gemini-cli", Version: "0.61.0",
	Bin: "node_modules/@google/gemini-cli/bundle/gemini.js", Node: 20,
	StateDir: ".gemini/tmp",
	launch:   launchGemini, reader: readGemini,
	exits: map[int]string{
		41: "it found no key", 42: "it did not take the task", 52: "its settings are wrong", 53: "it took too many turns",
		// It exits with the provider's status, of which eight bits are left.
		144: "the provider answered 400", 145: "the provider answered 401", 147: "the provider answered 403", 148: "the provider answered 404",
		173: "the provider answered 429", 244: "the provider answered 500", 246: "the provider answered 502", 247: "the provider answered 503",
	},
}

// geminiSettings names the way to log in, without which it does not start, and keeps it quiet.
const geminiSettings = `{
  "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false}
}
`

// geminiPolicy takes away the two tools with which the provider would reach out.
const geminiPolicy = `[[rule]]
toolName = ["google_web_search", "web_fetch"]
decision = "deny"
priority = 999
`

func launchGemini(s Setup) Launch {
	args := []string{"--output-format", "stream-json", "--yolo"}
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Resume != "" {
		args = append(args, "--resume", s.Resume)
	}
	l := Launch{Env: map[string]string{
		"GEMINI_API_KEY": s.Token, "GOOGLE_GEMINI_BASE_URL": s.BaseURL, "GEMINI_CLI_TRUST_WORKSPACE": "true",
		// It would start itself a second time for a larger heap.
		"GEMINI_CLI_NO_RELAUNCH": "true",
	}}
	var task File
	l.Args, task = byStdin(s, args...)
	l.Files = []File{task, {Path: ".gemini/settings.json", Content: geminiSettings}}
	if !s.WebSearch {
		l.Files = append(l.Files, File{Path: ".gemini/policies/ravi.toml", Content: geminiPolicy})
	}
	l.Files = append(l.Files, links(s, ".gemini/GEMINI.md", ".agents/skills")...)
	return l
}

// geminiLine is a line of its stream-json.
type geminiLine struct {
	Type     string          `json:"type"`
	Session  string          `json:"session_id"`
	Model    string          `json:"model"`
	Role     string          `json:"role"`
	Content  string          `json:"content"`
	ToolName string          `json:"tool_name"`
	ToolID   string          `json:"tool_id"`
	Params   json.RawMessage `json:"parameters"`
	Status   string          `json:"status"`
	Output   string          `json:"output"`
	Severity string          `json:"severity"`
	Message  string          `json:"message"`
	Error    struct {
		Message string `json:"message"`
	} `json:"error"`
	Stats struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
	} `json:"stats"`
}

func readGemini(s *scribe) func([]byte) {
	return func(line []byte) {
		var l geminiLine
		if !s.parse(line, &l) {
			return
		}
		if l.Type == "message" && l.Role == "assistant" {
			// It comes in pieces.
			s.piece(l.Content)
			return
		}
		s.join()
		switch l.Type {
		case "init":
			s.start(l.Session, l.Model)
		case "tool_use":
			s.say(Event{Kind: Tool, Tool: l.ToolName, ID: l.ToolID, Input: l.Params})
		case "tool_result":
			text := l.Output
			if text == "" {
				text = l.Error.Message
			}
			s.say(Event{Kind: Result, ID: l.ToolID, Text: text, Failed: l.Status == "error"})
		case "error":
			if l.Severity == "warning" {
				s.text(Note, l.Message, "")
			} else {
				s.wrong(l.Message)
			}
		case "result":
			s.ended, s.failed = true, l.Status != "success"
			s.in, s.out = 0, 0
			s.add(l.Stats.Input, 0, 0, l.Stats.Output)
			s.count()
			if s.failed {
				text := strings.TrimSuffix(strings.TrimPrefix(l.Error.Message, "[API Error: "), "]")
				if text = messageOf(text); text != "" && text != s.failure {
					s.wrong(text)
				}
			}
		}
	}
}
