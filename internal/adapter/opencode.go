package adapter

import "encoding/json"

// opencode reads its task from its standard input where that is no terminal. It knows no model of a provider that it does
// not know, so one has to be named. What a repository has in .opencode it takes as configuration, and asks npm's registry
// for what that may need.
var opencode = Program{
	Name: "opencode", Title: "opencode",
	KeyEnv:  []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"},
	Package: "opencode-ai", Version: "1.18.33",
	// The baseline is for machines without AVX2 too.
	Bin:        "node_modules/opencode-" + machine("linux-x64-baseline", "linux-arm64") + "/bin/opencode",
	StateDir:   ".local/share/opencode",
	NeedsModel: true,
	launch:     launchOpencode, reader: readOpencode,
}

// leaseEnv is where programs that are told of a provider in a file find the lease.
const leaseEnv = "RAVI_MODEL_TOKEN"

func launchOpencode(s Setup) Launch {
	var library, base string
	switch s.Dialect {
	case Anthropic:
		library, base = "@ai-sdk/anthropic", s.BaseURL+"/v1"
	case Gemini:
		library, base = "@ai-sdk/google", s.BaseURL+"/v1beta"
	default:
		library, base = "@ai-sdk/openai-compatible", s.BaseURL+"/v1"
	}
	type object map[string]any
	config := string(toJSON(object{
		"$schema": "https://opencode.ai/config.json", "autoupdate": false, "share": "disabled", "permission": "allow",
		"model": "ravi/" + s.Model, "small_model": "ravi/" + s.Model, "enabled_providers": []string{"ravi"},
		"provider": object{"ravi": object{
			"npm": library, "name": "Ravi",
			"options": object{"baseURL": base, "apiKey": "{env:" + leaseEnv + "}"},
			"models":  object{s.Model: object{"name": s.Model}},
		}},
	}, "  "))
	args := []string{"run", "--format", "json", "--thinking"}
	if s.Resume != "" {
		args = append(args, "--session", s.Resume)
	}
	l := Launch{Env: map[string]string{
		leaseEnv: s.Token, "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
		"OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_SHARE": "1",
	}}
	if s.WebSearch {
		l.Env["OPENCODE_ENABLE_EXA"] = "1"
	}
	var task File
	l.Args, task = byStdin(s, args...)
	const dir = ".config/opencode/"
	l.Files = append([]File{
		task, {Path: dir + "opencode.json", Content: config},
		// It installs its plugin library from npm unless that seems to be there. Nothing here needs it.
		{Path: dir + "node_modules/.keep", Content: ""},
		{Path: dir + "package-lock.json", Content: `{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}` + "\n"},
	}, links(s, dir+"AGENTS.md", ".agents/skills")...)
	return l
}

// opencodeLine is a line of opencode run --format json.
type opencodeLine struct {
	Type    string `json:"type"`
	Session string `json:"sessionID"`
	Part    struct {
		Text   string `json:"text"`
		Tool   string `json:"tool"`
		CallID string `json:"callID"`
		Reason string `json:"reason"`
		State  struct {
			Status string          `json:"status"`
			Input  json.RawMessage `json:"input"`
			Output string          `json:"output"`
			Error  string          `json:"error"`
			Meta   struct {
				Exit int `json:"exit"`
			} `json:"metadata"`
		} `json:"state"`
		Tokens struct {
			Input  int64 `json:"input"`
			Output int64 `json:"output"`
			Cache  struct {
				Read  int64 `json:"read"`
				Write int64 `json:"write"`
			} `json:"cache"`
		} `json:"tokens"`
	} `json:"part"`
	Error struct {
		Name string `json:"name"`
		Data struct {
			Message string `json:"message"`
		} `json:"data"`
	} `json:"error"`
}

func readOpencode(s *scribe) func([]byte) {
	return func(line []byte) {
		var l opencodeLine
		if !s.parse(line, &l) {
			return
		}
		s.start(l.Session, "")
		p := l.Part
		switch l.Type {
		case "text":
			s.text(Text, p.Text, "")
		case "reasoning":
			s.text(Thinking, p.Text, "")
		case "tool_use":
			// It is told when it is over.
			s.say(Event{Kind: Tool, Tool: p.Tool, ID: p.CallID, Input: p.State.Input})
			text := p.State.Output
			if p.State.Status == "error" {
				text = p.State.Error
			}
			s.say(Event{Kind: Result, ID: p.CallID, Text: text, Failed: p.State.Status == "error" || p.State.Meta.Exit != 0})
		case "step_start":
			s.ended = false
		case "step_finish":
			s.ended = p.Reason != "tool-calls"
			s.add(p.Tokens.Input, p.Tokens.Cache.Read, p.Tokens.Cache.Write, p.Tokens.Output)
			s.count()
		case "error":
			text := l.Error.Data.Message
			if text == "" {
				text = l.Error.Name
			}
			s.ended, s.failed = true, true
			s.wrong(text)
		}
	}
}
