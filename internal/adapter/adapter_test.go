package adapter

import (
	"encoding/json"
	"errors"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	lease = "rlease_0123456789abcdefghijkl"
	base  = "http://broker.ravi.internal/main"
	task  = "--help\nsay \"hello\" to $HOME; `id`"
)

func setup(p Program) Setup {
	s := Setup{
		Prompt: task, ContextDir: "/run/ravi/context", BaseURL: base, Dialect: p.Dialect, Token: lease, Path: "/opt/x/" + p.Name,
		Home: "/home/agent", Model: "some/model-1",
	}
	if s.Dialect == "" {
		s.Dialect = OpenAI
	}
	if p.Name == Command {
		s.Command = []string{"make", "it"}
	}
	return s
}

func launch(t *testing.T, p Program, s Setup) Launch {
	t.Helper()
	l, err := p.Launch(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func content(l Launch, name string) string {
	i := slices.IndexFunc(l.Files, func(f File) bool { return f.Path == name })
	if i < 0 {
		return ""
	}
	return l.Files[i].Content
}

func TestPrograms(t *testing.T) {
	var names []string
	for _, p := range Programs() {
		names = append(names, p.Name)
		if q, ok := Lookup(p.Name); !ok || q.Title != p.Title {
			t.Errorf("%s is not found by its name", p.Name)
		}
		if (p.Package == "") != (p.Name == Command) || (p.Bin == "") != (p.Package == "") || (p.Version == "") != (p.Package == "") {
			t.Errorf("%s: %q at %q has %q", p.Name, p.Package, p.Version, p.Bin)
		}
		if p.Package != "" && !strings.HasPrefix(p.Bin, "node_modules/") {
			t.Errorf("%s: %s does not lie in an installation", p.Name, p.Bin)
		}
		if len(p.KeyEnv) == 0 {
			t.Errorf("%s: nobody knows where its key is", p.Name)
		}
	}
	if want := []string{"claude", "codex", "gemini", "opencode", "pi", "command"}; !slices.Equal(names, want) {
		t.Errorf("the programs are %q", names)
	}
	if _, ok := Lookup("anna"); ok {
		t.Error("anna is a program")
	}
}

// The lease is in the environment alone, the task in its file alone, and nobody is told of another address than the
// broker's.
func TestWhatIsHandedOver(t *testing.T) {
	address := regexp.MustCompile(`https?://[^/"\s]+`)
	for _, p := range Programs() {
		for _, d := range []string{Anthropic, OpenAI, Gemini} {
			if p.Dialect != "" && p.Dialect != d {
				continue
			}
			t.Run(p.Name+" "+d, func(t *testing.T) {
				s := setup(p)
				s.Dialect = d
				l := launch(t, p, s)
				args := strings.Join(l.Args, "\x00")
				all := args
				if got := content(l, promptPath); got != task {
					t.Errorf("the task in its file is %q", got)
				}
				for _, f := range l.Files {
					all += "\n" + f.Content
					if strings.Contains(f.Content, lease) || f.Path != promptPath && strings.Contains(f.Content, "say ") {
						t.Errorf("%s holds the lease or the task:\n%s", f.Path, f.Content)
					}
					if path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || strings.HasPrefix(f.Path, "..") {
						t.Errorf("%s does not lie beneath the home", f.Path)
					}
					if f.Link != "" && (f.Content != "" || !strings.HasPrefix(f.Link, s.ContextDir+"/")) {
						t.Errorf("%s is a link to %s", f.Path, f.Link)
					}
				}
				if strings.Contains(args, lease) || strings.Contains(args, "say ") {
					t.Errorf("the lease or the task is an argument: %q", l.Args)
				}
				if !slices.Contains(slices.Collect(maps.Values(l.Env)), lease) {
					t.Error("the lease is not in its environment")
				}
				for k, v := range l.Env {
					all += "\n" + k + "=" + v
				}
				for _, a := range address.FindAllString(all, -1) {
					if a != "http://broker.ravi.internal" && a != "https://opencode.ai" {
						t.Errorf("it is told of %s", a)
					}
				}
				if !strings.Contains(all, base) {
					t.Error("it is not told of the broker")
				}
			})
		}
	}
}

// What a program needs to find its model where it looks.
func TestLaunch(t *testing.T) {
	find := func(name string) Program { p, _ := Lookup(name); return p }
	for _, c := range []struct {
		name    string
		program string
		change  func(*Setup)
		want    []string // of the arguments, in that order
		not     []string
		env     map[string]string
		files   map[string]string // what they hold
	}{
		{
			name: "claude", program: "claude",
			want: []string{"/bin/sh", "/home/agent/.ravi/task", "/opt/x/claude", "-p", "--disallowedTools=WebSearch", "some/model-1"}, not: []string{"--resume"},
			env: map[string]string{"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": lease, "IS_SANDBOX": "1", "ANTHROPIC_SMALL_FAST_MODEL": "some/model-1"},
		},
		{
			name: "claude, its own model, the web and a conversation", program: "claude",
			change: func(s *Setup) { s.Model, s.WebSearch, s.Resume = "", true, "0123-ab" },
			want:   []string{"--resume", "0123-ab"}, not: []string{"--model", "--disallowedTools=WebSearch"},
			env: map[string]string{"ANTHROPIC_SMALL_FAST_MODEL": ""},
		},
		{
			name: "codex", program: "codex", want: []string{"exec", "--json", "--model", "some/model-1", "-"}, not: []string{"resume"},
			env:   map[string]string{"OPENAI_API_KEY": lease},
			files: map[string]string{".codex/config.toml": "web_search = \"disabled\"\n|plugins = false\n|base_url = \"" + base + "/v1\"\n|env_key = \"OPENAI_API_KEY\""},
		},
		{
			name: "codex, the web and a conversation", program: "codex", change: func(s *Setup) { s.WebSearch, s.Resume = true, "01a2-b" },
			want: []string{"exec", "resume", "01a2-b", "-"}, files: map[string]string{".codex/config.toml": "web_search = \"live\""},
		},
		{
			name: "gemini", program: "gemini", want: []string{"--output-format", "stream-json", "--yolo", "--model", "some/model-1"},
			env:   map[string]string{"GOOGLE_GEMINI_BASE_URL": base, "GEMINI_API_KEY": lease, "GEMINI_CLI_TRUST_WORKSPACE": "true"},
			files: map[string]string{".gemini/settings.json": `"selectedType": "gemini-api-key"`, ".gemini/policies/ravi.toml": `"google_web_search", "web_fetch"`},
		},
		{
			name: "gemini, the web and a conversation", program: "gemini", change: func(s *Setup) { s.WebSearch, s.Resume = true, "ab-1" },
			want: []string{"--resume", "ab-1"}, files: map[string]string{".gemini/policies/ravi.toml": ""},
		},
		{
			name: "opencode", program: "opencode", want: []string{"run", "--format", "json"}, env: map[string]string{leaseEnv: lease, "OPENCODE_ENABLE_EXA": ""},
			files: map[string]string{
				".config/opencode/opencode.json":     `"@ai-sdk/openai-compatible"|"` + base + `/v1"|"ravi/some/model-1"|{env:` + leaseEnv + `}`,
				".config/opencode/package-lock.json": "@opencode-ai/plugin",
			},
		},
		{
			name: "opencode with Anthropic", program: "opencode", change: func(s *Setup) { s.Dialect, s.Resume, s.WebSearch = Anthropic, "ses_1", true },
			want: []string{"--session", "ses_1"}, env: map[string]string{"OPENCODE_ENABLE_EXA": "1"},
			files: map[string]string{".config/opencode/opencode.json": `"@ai-sdk/anthropic"|"` + base + `/v1"`},
		},
		{
			name: "opencode with Gemini", program: "opencode", change: func(s *Setup) { s.Dialect = Gemini },
			files: map[string]string{".config/opencode/opencode.json": `"@ai-sdk/google"|"` + base + `/v1beta"`},
		},
		{
			name: "pi", program: "pi", want: []string{"--mode", "json", "--provider", "ravi", "--model", "some/model-1"}, env: map[string]string{leaseEnv: lease, "PI_OFFLINE": "1"},
			files: map[string]string{".pi/agent/models.json": `"openai-completions"|"` + base + `/v1"|"` + leaseEnv + `"`},
		},
		{
			name: "pi with Anthropic", program: "pi", change: func(s *Setup) { s.Dialect, s.Resume = Anthropic, "ab-1" },
			want: []string{"--session", "ab-1"}, files: map[string]string{".pi/agent/models.json": `"anthropic-messages"|"` + base + `"`},
		},
		{
			name: "pi with Gemini", program: "pi", change: func(s *Setup) { s.Dialect = Gemini },
			files: map[string]string{".pi/agent/models.json": `"google-generative-ai"|"` + base + `/v1beta"`},
		},
		{
			name: "a command", program: Command, want: []string{"make", "it"},
			env: map[string]string{"OPENAI_BASE_URL": base + "/v1", "OPENAI_API_KEY": lease, "RAVI_TASK_FILE": "/home/agent/.ravi/task", "RAVI_CONTEXT": "/run/ravi/context", "RAVI_MODEL": "some/model-1"},
		},
		{
			name: "a command with Anthropic and no task", program: Command, change: func(s *Setup) { s.Dialect, s.Prompt = Anthropic, "" },
			env: map[string]string{"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": lease, "RAVI_TASK_FILE": ""}, files: map[string]string{promptPath: ""},
		},
		{
			name: "a command with Gemini", program: Command, change: func(s *Setup) { s.Dialect = Gemini },
			env: map[string]string{"GOOGLE_GEMINI_BASE_URL": base, "GEMINI_API_KEY": lease},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := find(c.program)
			s := setup(p)
			if c.change != nil {
				c.change(&s)
			}
			l := launch(t, p, s)
			rest := l.Args
			for _, w := range c.want {
				i := slices.Index(rest, w)
				if i < 0 {
					t.Fatalf("%q is not among the arguments, or not in its place: %q", w, l.Args)
				}
				rest = rest[i+1:]
			}
			for _, n := range c.not {
				if slices.Contains(l.Args, n) {
					t.Errorf("%q is among the arguments: %q", n, l.Args)
				}
			}
			for k, v := range c.env {
				if l.Env[k] != v {
					t.Errorf("%s is %q, not %q", k, l.Env[k], v)
				}
			}
			for name, holds := range c.files {
				got := content(l, name)
				if holds == "" && got != "" {
					t.Errorf("there is a file %s", name)
				}
				for _, h := range strings.Split(holds, "|") {
					if !strings.Contains(got, h) {
						t.Errorf("%s does not hold %s:\n%s", name, h, got)
					}
				}
				if strings.HasSuffix(name, ".json") && holds != "" && !json.Valid([]byte(got)) {
					t.Errorf("%s is no JSON:\n%s", name, got)
				}
			}
		})
	}
}

// Where each looks for what its user wants of every conversation.
func TestContext(t *testing.T) {
	for name, want := range map[string][2]string{
		"claude": {".claude/CLAUDE.md", ".claude/skills"}, "codex": {".codex/AGENTS.md", ".agents/skills"}, "gemini": {".gemini/GEMINI.md", ".agents/skills"},
		"opencode": {".config/opencode/AGENTS.md", ".agents/skills"}, "pi": {".pi/agent/AGENTS.md", ".agents/skills"},
	} {
		p, _ := Lookup(name)
		s := setup(p)
		links := map[string]string{}
		for _, f := range launch(t, p, s).Files {
			if f.Link != "" {
				links[f.Path] = f.Link
			}
		}
		if !maps.Equal(links, map[string]string{want[0]: "/run/ravi/context/AGENTS.md", want[1]: "/run/ravi/context/skills"}) {
			t.Errorf("%s has the links %v", name, links)
		}
		s.ContextDir = ""
		for _, f := range launch(t, p, s).Files {
			if f.Link != "" {
				t.Errorf("%s has the link %s without a context", name, f.Path)
			}
		}
	}
}

func TestLaunchRefuses(t *testing.T) {
	for _, c := range []struct {
		why, program string
		change       func(*Setup)
	}{
		{"there is no task", "claude", func(s *Setup) { s.Prompt = "" }},
		{"zero byte", "claude", func(s *Setup) { s.Prompt = "a\x00b" }},
		{"not said where it lies", "codex", func(s *Setup) { s.Path = "" }},
		{"there is no command", Command, func(s *Setup) { s.Command = nil }},
		{"its home is no absolute path", "pi", func(s *Setup) { s.Home = "home" }},
		{"context is no absolute path", "pi", func(s *Setup) { s.ContextDir = "../x" }},
		{"the address of its provider is none", "codex", func(s *Setup) { s.BaseURL = "http://x/\"\n[mcp_servers.x]" }},
		{"the address of its provider is none", "codex", func(s *Setup) { s.BaseURL = base + "/" }},
		{"the address of its provider is none", "codex", func(s *Setup) { s.BaseURL = "file:///etc" }},
		{"its lease is none", "claude", func(s *Setup) { s.Token = "" }},
		{"its lease is none", "claude", func(s *Setup) { s.Token = "a\nb" }},
		{"is no name of a model", "claude", func(s *Setup) { s.Model = "--mcp-config=x" }},
		{"is no name of a model", "codex", func(s *Setup) { s.Model = "a b" }},
		{"is no name of a model", "opencode", func(s *Setup) { s.Model = strings.Repeat("a", 200) }},
		{"it takes no model by itself", "opencode", func(s *Setup) { s.Model = "" }},
		{"it takes no model by itself", "pi", func(s *Setup) { s.Model = "" }},
		{"is no conversation of its", "claude", func(s *Setup) { s.Resume = "--settings" }},
		{"is no conversation of its", "pi", func(s *Setup) { s.Resume = "../../etc/passwd" }},
		{"it keeps no conversations", Command, func(s *Setup) { s.Resume = "a" }},
		{"it speaks to providers of the dialect anthropic", "claude", func(s *Setup) { s.Dialect = OpenAI }},
		{"is no dialect", "pi", func(s *Setup) { s.Dialect = "cohere" }},
		{"is no dialect", Command, func(s *Setup) { s.Dialect = "" }},
	} {
		p, _ := Lookup(c.program)
		s := setup(p)
		c.change(&s)
		_, err := p.Launch(s)
		if !errors.Is(err, ErrSetup) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s, %s: %v", c.program, c.why, err)
		}
	}
	// What is not said is the program's own.
	p, _ := Lookup("claude")
	s := setup(p)
	s.Dialect = ""
	launch(t, p, s)
}

func TestFailed(t *testing.T) {
	for _, c := range []struct {
		program string
		end     Event
		exit    int
		want    string
	}{
		{"claude", Event{Text: "Done."}, 0, ""},
		{"claude", Event{Text: "Done."}, 143, "claude ended with exit code 143"},
		{"pi", Event{Text: "400 refused", Failed: true}, 0, "pi failed: 400 refused"},
		{"gemini", Event{Text: "refused", Failed: true}, 147, "gemini ended with exit code 147 (the provider answered 403): refused"},
		{Command, Event{}, 0, ""},
		{Command, Event{Text: "said"}, 2, "command ended with exit code 2"},
	} {
		p, _ := Lookup(c.program)
		failed, why := p.Failed(c.end, c.exit)
		if why != c.want || failed != (c.want != "") {
			t.Errorf("%s, %+v, %d: %v %q", c.program, c.end, c.exit, failed, why)
		}
	}
}
