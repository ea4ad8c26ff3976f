package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"ravi/internal/adapter"
	"ravi/internal/broker"
	"ravi/internal/command"
	"ravi/internal/install"
	"ravi/internal/store"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

// agentProgram is an agent program as it is here.
type agentProgram struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Dialect string `json:"dialect,omitempty"` // of the providers that it speaks to; empty: any
	// Version is the one that Ravi was tried with, and installs; that of a program of the image is not known.
	Version string `json:"version,omitempty"`
	// From says where it is taken from: installed (by Ravi), image, or command (it is named with each run). Empty: it is
	// installed by the first run.
	From string `json:"from,omitempty"`
	Path string `json:"path,omitempty"` // the folder of the installation, or the program of the image
	// Providers are those that it could call, in the order in which they are taken.
	Providers []string `json:"providers"`
	// Problem says why there is none, or why the installation does not count.
	Problem string `json:"problem,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

const (
	fromInstalled = "installed"
	fromImage     = "image"
	fromCommand   = "command"
	fromRavi      = "ravi"
)

// agentPrograms are all agent programs. They say what this machine has, which is the operator's to know.
func agentPrograms(ctx context.Context, env *command.Env) ([]agentProgram, error) {
	out := []agentProgram{}
	if !env.Caller.IsOperator() {
		return out, nil
	}
	home, err := env.Home()
	if err != nil {
		return nil, err
	}
	file, err := env.Config()
	if err != nil {
		return nil, err
	}
	cfg := sandbox.Default()
	if err := file.Sandbox(&cfg); err != nil {
		return nil, err
	}
	m, err := modelsOf(ctx, env)
	if err != nil {
		return nil, err
	}
	for _, p := range append(adapter.Programs(), adapter.OwnLoop()) {
		out = append(out, programHere(p, home, cfg.Backend, m))
	}
	return out, nil
}

func programHere(p adapter.Program, home, backend string, m models) agentProgram {
	a := agentProgram{Name: p.Name, Title: p.Title, Dialect: p.Dialect, Providers: []string{}}
	providers, lacks := m.of(broker.Dialect(p.Dialect))
	if p.Name == adapter.Loop {
		providers = loopSpeaks(providers)
	}
	for _, p := range providers {
		a.Providers = append(a.Providers, p.Name)
	}
	if lacks != nil {
		told := command.AsError(lacks)
		a.Problem, a.Hint = told.Message, told.Hint
	}
	switch p.Name {
	case adapter.Command:
		a.From = fromCommand
		return a
	case adapter.Loop:
		a.From = fromRavi
		return a
	}
	i, err := install.Find(home, p)
	switch at, ok := inImage(p.Name, backend); {
	case err == nil:
		a.Version, a.From, a.Path = i.Version, fromInstalled, i.Dir
		return a
	case ok:
		a.From, a.Path = fromImage, at
	default:
		a.Version = p.Version
	}
	// That it is not there is no problem: the first run installs it. That it is damaged is worth to be known.
	if !errors.Is(err, install.ErrMissing) || errors.Is(err, install.ErrDamaged) {
		a.Problem, a.Hint = err.Error(), "ravi agents install "+p.Name
	}
	return a
}

// agentShown is an agent, or an agent program.
type agentShown struct {
	agent   store.Agent
	program *agentProgram
}

// MarshalJSON gives the one that it is.
func (s agentShown) MarshalJSON() ([]byte, error) {
	if s.program != nil {
		return json.Marshal(s.program)
	}
	return json.Marshal(s.agent)
}

// namesProgram says whether the operator means an agent program. For others there are none.
func namesProgram(env *command.Env, typed string) bool {
	_, ok := adapter.Lookup(typed)
	return ok && env.Caller.IsOperator()
}

func shownObject(ctx context.Context, env *command.Env, in agentInput) (string, error) {
	if namesProgram(env, in.Agent) {
		return in.Agent, nil
	}
	return agentObject(ctx, env, in)
}

func showAgent(ctx context.Context, env *command.Env, in agentInput) (s agentShown, err error) {
	if !namesProgram(env, in.Agent) {
		s.agent, err = findAgent(ctx, env, in.Agent)
		return s, err
	}
	all, err := agentPrograms(ctx, env)
	if err != nil {
		return s, err
	}
	for i := range all {
		if all[i].Name == in.Agent {
			s.program = &all[i]
			return s, nil
		}
	}
	return s, errors.New("a program that is known is not listed")
}

func printShown(env *command.Env, w io.Writer, s agentShown) error {
	if s.program == nil {
		return printAgent(env, w, s.agent)
	}
	p := s.program
	printLine(w, "program", p.Name)
	printLine(w, "title", p.Title)
	printLine(w, "version", p.Version)
	printLine(w, "from", from(*p))
	printLine(w, "path", p.Path)
	printLine(w, "dialect", p.Dialect)
	printLine(w, "providers", strings.Join(p.Providers, ", "))
	printLine(w, "problem", p.Problem)
	printLine(w, "hint", p.Hint)
	return nil
}

func printPrograms(w io.Writer, all []agentProgram) error {
	rows := make([][]string, len(all))
	for i, p := range all {
		models := strings.Join(p.Providers, ", ")
		if models == "" {
			models = "no key"
		}
		rows[i] = []string{p.Name, p.Version, from(p), models}
	}
	return safe.Table(w, widthOf(w), []safe.Column{{Title: "PROGRAM"}, {Title: "VERSION"}, {Title: "FROM", Flex: true}, {Title: "MODELS", Flex: true}}, rows)
}

// from says in words where a program is taken from.
func from(p agentProgram) string {
	switch p.From {
	case fromInstalled:
		return "installed"
	case fromImage:
		return p.Path
	case fromCommand:
		return "yours, after --"
	case fromRavi:
		return "a part of Ravi"
	}
	return "not installed yet"
}
