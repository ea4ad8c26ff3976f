// Package adapter knows the agent programs of other makers: what each needs to be quiet and to reach its model through
// the broker, how it takes a task, and how what it writes reads. It starts nothing and opens nothing: it says what is to
// be started, and reads what is written.
package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// The dialects that providers speak.
const (
	Anthropic = "anthropic"
	OpenAI    = "openai"
	Gemini    = "gemini"
)

// Program is an agent program.
type Program struct {
	Name  string // claude, codex, gemini, opencode, pi, command
	Title string // for people
	// Dialect is the provider's that it speaks: anthropic, openai, gemini; empty: any.
	Dialect string
	// KeyEnv are the variables in which its users have their key.
	KeyEnv []string
	// Package is what npm calls it, at the Version that was tried; empty: it is not installed by Ravi.
	Package, Version string
	// Bin is the program within an installation by npm, relative to it: the machine's own, where it has one, since a
	// launcher costs time. It is right for the machine that Ravi was built for.
	Bin string
	// Node says that Bin is a script for Node.js, and which release of it the least.
	Node int
	// StateDir is where it keeps its conversations, beneath its home; empty: it keeps none.
	StateDir string
	// NeedsModel says that it takes no model by itself.
	NeedsModel bool

	launch func(Setup) Launch
	reader func(*scribe) func(line []byte)
	exits  map[int]string // what its exit codes mean
}

// ErrNode says that there is no Node.js, or none that is new enough.
var ErrNode = errors.New("no fitting Node.js")

var nodeVersion = regexp.MustCompile(`^v([0-9]{1,6})\.[0-9]+\.[0-9]+`)

// CheckNode says whether a program can run on a Node.js, by what node --version says; nothing: there is none. Its error
// waits for a place to be named behind it.
func (p Program) CheckNode(said string) error {
	if p.Node == 0 {
		return nil
	}
	have := "there is none"
	if found := nodeVersion.FindStringSubmatch(said); found != nil {
		if release, err := strconv.Atoi(found[1]); err == nil && release >= p.Node {
			return nil
		}
		have = "there is " + found[0]
	} else if said != "" {
		have = fmt.Sprintf("what there is says %.40q", said)
	}
	return fmt.Errorf("%w: %s needs release %d or newer, and %s", ErrNode, p.Title, p.Node, have)
}

// Setup is what a program is started with.
type Setup struct {
	Prompt     string
	ContextDir string   // a folder with AGENTS.md and skills/, empty: none
	BaseURL    string   // of its provider at the broker, without a slash at the end
	Dialect    string   // of that provider; empty: the program's own
	Token      string   // the lease
	Model      string   // empty: what the program takes by itself
	Path       string   // of the program inside the sandbox
	Home       string   // inside
	Command    []string // of the program "command"
	Resume     string   // the program's own id of a conversation to go on with
	// WebSearch says that the provider may search the web, which the broker refuses unless its operator grants it.
	WebSearch bool
}

// File is one that has to be there before it starts, beneath Home.
type File struct {
	Path    string // relative
	Content string
	Link    string // instead of Content: what it is a symbolic link to, which need not be there
}

// Launch is how it is started. Its standard input has to be empty.
type Launch struct {
	Args  []string
	Env   map[string]string
	Files []File
}

// The kinds of events.
const (
	Start    = "start"    // the conversation's id and the model; again when one of them changes
	Text     = "text"     // what it says
	Thinking = "thinking" // what it says to itself
	Tool     = "tool"     // a tool that it calls
	Result   = "result"   // what came of that
	Usage    = "usage"    // what it counts, all in all
	Error    = "error"    // what went wrong, which need not be the end
	Note     = "note"     // about the stream: a line that was left out, a call that is tried again
	End      = "end"      // the last, always
)

// Event is something that a program says it does. What is in it is as the program wrote it, cut where it is long: nobody
// has looked whether it is true, or fit for a terminal.
type Event struct {
	Kind    string          `json:"kind"`
	Text    string          `json:"text,omitempty"`
	Tool    string          `json:"tool,omitempty"`
	ID      string          `json:"id,omitempty"` // of the tool call
	Input   json.RawMessage `json:"input,omitempty"`
	Parent  string          `json:"parent,omitempty"` // the tool call within which an agent below it says this
	Failed  bool            `json:"failed,omitempty"`
	Session string          `json:"session,omitempty"` // the program's own id of the conversation
	Model   string          `json:"model,omitempty"`
	// InputTokens (all of them, cached ones too) and OutputTokens are what the program counts; the broker counts by itself.
	// Of a conversation that goes on, claude and codex count what was before too.
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
}

var programs = []Program{claude, codex, gemini, opencode, pi, ownCommand}

// Programs are all programs that are known by name, and started in the sandbox.
func Programs() []Program { return slices.Clone(programs) }

// Lookup is the program of that name, or Ravi's own loop.
func Lookup(name string) (Program, bool) {
	if name == Loop {
		return ownLoop, true
	}
	i := slices.IndexFunc(programs, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return Program{}, false
	}
	return programs[i], true
}

// ErrSetup says that a program cannot be started so.
var ErrSetup = errors.New("the agent cannot be started")

// What becomes part of a command line, or of a file that a program reads, is plain.
var (
	isModel   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@/\[\]-]{0,127}$`)
	isSession = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)
	isURL     = regexp.MustCompile(`^https?://[A-Za-z0-9._~:/\[\]%-]{1,500}$`)
	isToken   = regexp.MustCompile(`^[A-Za-z0-9._-]{1,500}$`)
)

// Launch says how the program is started.
func (p Program) Launch(s Setup) (Launch, error) {
	if s.Dialect == "" {
		s.Dialect = p.Dialect
	}
	for _, c := range []struct {
		wrong bool
		why   string
	}{
		{s.Prompt == "" && p.Name != Command, "there is no task"},
		{strings.ContainsRune(s.Prompt, 0), "the task has a zero byte in it"},
		{s.Path == "" && p.Name != Command, "it is not said where it lies"},
		{p.Name == Command && len(s.Command) == 0, "there is no command"},
		{!strings.HasPrefix(s.Home, "/"), "its home is no absolute path"},
		{s.ContextDir != "" && !strings.HasPrefix(s.ContextDir, "/"), "the folder of its context is no absolute path"},
		{!isURL.MatchString(s.BaseURL) || strings.HasSuffix(s.BaseURL, "/"), "the address of its provider is none"},
		{!isToken.MatchString(s.Token), "its lease is none"},
		{s.Model != "" && !isModel.MatchString(s.Model), fmt.Sprintf("%.40q is no name of a model", s.Model)},
		{s.Model == "" && p.NeedsModel, "it takes no model by itself; name one: --model NAME"},
		{s.Resume != "" && !isSession.MatchString(s.Resume), fmt.Sprintf("%.40q is no conversation of its", s.Resume)},
		{s.Resume != "" && p.StateDir == "", "it keeps no conversations"},
		{p.Dialect != "" && s.Dialect != p.Dialect, fmt.Sprintf("it speaks to providers of the dialect %s, and this one's is %q", p.Dialect, s.Dialect)},
		{!slices.Contains([]string{Anthropic, OpenAI, Gemini}, s.Dialect), fmt.Sprintf("%q is no dialect", s.Dialect)},
	} {
		if c.wrong {
			return Launch{}, fmt.Errorf("%w: %s: %s", ErrSetup, p.Name, c.why)
		}
	}
	l := p.launch(s)
	if l.Env == nil {
		l.Env = map[string]string{}
	}
	return l, nil
}

// promptPath is where the task lies, beneath the home.
const promptPath = ".ravi/task"

// byStdin starts a program that reads its task from its standard input: one argument may have 128 KiB at most, and a
// task that begins with a dash would be taken for an option.
func byStdin(s Setup, args ...string) ([]string, File) {
	return append([]string{"/bin/sh", "-c", `exec "$@" <"$0"`, s.Home + "/" + promptPath, s.Path}, args...),
		File{Path: promptPath, Content: s.Prompt}
}

// links are the files of the context, each where a program looks for it.
func links(s Setup, agents, skills string) []File {
	if s.ContextDir == "" {
		return nil
	}
	out := []File{{Path: agents, Link: s.ContextDir + "/AGENTS.md"}}
	if skills != "" {
		out = append(out, File{Path: skills, Link: s.ContextDir + "/skills"})
	}
	return out
}

// machine is how a maker calls the machine that Ravi was built for.
func machine(amd64, arm64 string) string {
	if runtime.GOARCH == "arm64" {
		return arm64
	}
	return amd64
}

// NewReader reads the program's standard output, and tells what it says. Nothing that is written to it is an error. The
// last event, which Close tells, is the end: with what the program answered, or why it failed.
func (p Program) NewReader(tell func(Event)) io.WriteCloser {
	s := &scribe{tell: tell}
	return &lines{scribe: s, line: p.reader(s)}
}

// Failed says whether a run failed, and why in words, of how it exited and its last event. A program that exits with 0
// may still have failed: codex does where its provider refused it.
func (p Program) Failed(end Event, exit int) (failed bool, why string) {
	if exit == 0 && !end.Failed {
		return false, ""
	}
	if exit != 0 {
		why = fmt.Sprintf("%s ended with exit code %d", p.Name, exit)
		if meaning := p.exits[exit]; meaning != "" {
			why += " (" + meaning + ")"
		}
	} else {
		why = p.Name + " failed"
	}
	if end.Failed && end.Text != "" {
		why += ": " + end.Text
	}
	return true, why
}
