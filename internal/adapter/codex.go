package adapter

import (
	"encoding/json"
	"fmt"
	"strings"
)

// codex reads its task from its standard input with "-". Its configuration is a file, so that a codex that the agent
// starts by itself reaches the model too.
var codex = Program{
	Name: "codex", Title: "Codex", Dialect: OpenAI,
	KeyEnv:  []string{"OPENAI_API_KEY"},
	Package: "@openai/codex", Version: "0.171.0",
	Bin: "node_modules/@openai/codex-linux-" + machine("x64", "arm64") + "/vendor/" +
		machine("x86_64", "aarch64") + "-unknown-linux-musl/bin/codex",
	StateDir: ".codex/sessions",
	launch:   launchCodex, reader: readCodex,
}

// codexConfig takes the address of the provider, and whether the web is searched. Plugins are looked for at two sites of
// its maker's and at GitHub, before anything else and again in the end. A snapshot of the shell is ten processes more before the first call, each of which costs in a sandbox.
const codexConfig = `model_provider = "ravi"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = %q

[analytics]
enabled = false

[features]
plugins = false
shell_snapshot = false
apps = false

[model_providers.ravi]
name = "Ravi"
base_url = "%s/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
`

func launchCodex(s Setup) Launch {
	args := []string{"exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"}
	if s.Model != "" {
		args = append(args, "--model", s.Model)
	}
	if s.Resume != "" {
		args = append(args, "resume", s.Resume)
	}
	search := "disabled"
	if s.WebSearch {
		search = "live"
	}
	l := Launch{Env: map[string]string{"OPENAI_API_KEY": s.Token}}
	var task File
	l.Args, task = byStdin(s, append(args, "-")...)
	l.Files = append([]File{task, {Path: ".codex/config.toml", Content: fmt.Sprintf(codexConfig, search, s.BaseURL)}},
		// It writes skills of its own into .codex/skills.
		links(s, ".codex/AGENTS.md", ".agents/skills")...)
	return l
}

// codexLine is a line of codex exec --json.
type codexLine struct {
	Type    string    `json:"type"`
	Thread  string    `json:"thread_id"`
	Message string    `json:"message"`
	Item    codexItem `json:"item"`
	Error   struct {
		Message string `json:"message"`
	} `json:"error"`
	Usage struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
	} `json:"usage"`
}

type codexItem struct {
	ID      string          `json:"id"`
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Message string          `json:"message"`
	Status  string          `json:"status"`
	Command string          `json:"command"`
	Output  string          `json:"aggregated_output"`
	Exit    *int            `json:"exit_code"`
	Changes json.RawMessage `json:"changes"`
	Server  string          `json:"server"`
	Tool    string          `json:"tool"`
	Args    json.RawMessage `json:"arguments"`
	Query   string          `json:"query"`
	Prompt  string          `json:"prompt"`
	Result  struct {
		Content json.RawMessage `json:"content"`
	} `json:"result"`
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

func readCodex(s *scribe) func([]byte) {
	begun := ids{}
	return func(line []byte) {
		var l codexLine
		if !s.parse(line, &l) {
			return
		}
		switch l.Type {
		case "thread.started":
			s.start(l.Thread, "")
		case "turn.started":
			s.ended, s.failed = false, false
		case "turn.completed":
			s.ended, s.failed = true, false
			// Of a conversation that goes on, it counts what was before too.
			s.in, s.out = 0, 0
			s.add(l.Usage.Input, 0, 0, l.Usage.Output)
			s.count()
		case "turn.failed":
			s.ended, s.failed = true, true
			if text := messageOf(l.Error.Message); text != s.failure {
				s.wrong(text)
			}
		case "error":
			if strings.HasPrefix(l.Message, "Reconnecting") {
				s.say(Event{Kind: Note, Text: l.Message})
				return
			}
			s.wrong(messageOf(l.Message))
		case "item.started", "item.completed":
			s.codexItem(l.Item, l.Type == "item.completed", begun)
		}
	}
}

func (s *scribe) codexItem(i codexItem, done bool, begun ids) {
	var tool string
	var input any
	switch i.Type {
	case "agent_message", "reasoning", "error":
		if !done {
			return
		}
		switch i.Type {
		case "agent_message":
			s.text(Text, i.Text, "")
		case "reasoning":
			s.text(Thinking, i.Text, "")
		default:
			// A warning: what ends a turn is no item.
			s.text(Note, messageOf(i.Message), "")
		}
		return
	case "command_execution":
		tool, input = "shell", map[string]string{"command": i.Command}
	case "file_change":
		tool, input = "apply_patch", map[string]json.RawMessage{"changes": i.Changes}
	case "mcp_tool_call":
		tool, input = i.Server+"."+i.Tool, i.Args
	case "collab_tool_call":
		tool, input = i.Tool, map[string]string{"prompt": i.Prompt}
	case "web_search":
		tool, input = i.Type, map[string]string{"query": i.Query}
	default:
		return
	}
	if begun.add(i.ID) {
		s.say(Event{Kind: Tool, Tool: tool, ID: i.ID, Input: toJSON(input, "")})
	}
	if done {
		text := i.Output
		if text == "" {
			text = textOf(i.Result.Content)
		}
		if i.Error.Message != "" {
			text = i.Error.Message
		}
		delete(begun, cut(i.ID, maxName))
		s.say(Event{Kind: Result, ID: i.ID, Text: text, Failed: i.Status == "failed" || i.Status == "declined" || i.Exit != nil && *i.Exit != 0})
	}
}
