package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/broker"
	"ravi/internal/command"
	"ravi/internal/modeltest"
	"ravi/internal/redact"
	runs "ravi/internal/run"
	"ravi/internal/store"
)

// agentCheck is what a check of an agent program gave.
type agentCheck struct {
	Program string `json:"program"`
	Version string `json:"version,omitempty"`
	Run     string `json:"run"`
	OK      bool   `json:"ok"`
	// Problems are what was not as it should be.
	Problems []string `json:"problems"`
	// Requests and Tokens are what it asked of the model.
	Requests int64 `json:"requests"`
	Tokens   int64 `json:"tokens"`
	// Milliseconds is how long the program took.
	Milliseconds int64 `json:"ms"`
	// Refused are names that it tried to reach besides.
	Refused []string `json:"refused"`
}

type agentsCheckInput struct {
	Program string `json:"program" arg:"PROGRAM" host:"none" usage:"claude, codex, gemini, opencode, pi or loop"`
	Backend string `json:"backend" flag:"backend" value:"NAME" host:"backend" usage:"how the sandbox is made: auto, gvisor, host"`
}

func addAgentCheck(t *command.Table) {
	command.Add(t, command.Spec[agentsCheckInput, agentCheck]{
		Group: "agents", Name: "check", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Try an agent program, with a model that plays a script",
		Long: `Has an agent program do a small task in a sandbox, with a model that plays a
script: no provider is asked, and no key is needed. It tells whether the change
came out, what the program asked of the model, and which other names it tried to
reach. The exit code is 1 if something is not as it should be.`,
		Examples: []command.Example{{Line: "ravi agents check claude"}},
		Handler:  checkAgent,
		Print:    printAgentCheck,
		Exit: func(c agentCheck) int {
			if !c.OK {
				return command.ExitFailed
			}
			return command.ExitOK
		},
	})
}

// checkedFile is what the script has the program make.
const checkedFile, checkedText = "checked-by-ravi.txt", "this was made in a sandbox"

func checkAgent(ctx context.Context, env *command.Env, in agentsCheckInput) (c agentCheck, err error) {
	p, ok := adapter.Lookup(in.Program)
	if !ok || p.Package == "" && p.Name != adapter.Loop {
		return c, command.Usage(fmt.Sprintf("there is no agent program %q to check", in.Program), meantProgram(in.Program, "claude, codex, gemini, opencode, pi and loop are"))
	}
	dir, err := os.MkdirTemp("", "ravi-check-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	repo := filepath.Join(dir, "repo")
	if err := emptyRepo(ctx, repo); err != nil {
		return c, err
	}
	model := modeltest.New(modeltest.Script{Turns: []modeltest.Turn{
		{modeltest.Text("I make the file."), modeltest.Shell("echo '" + checkedText + "' > " + checkedFile)},
		{modeltest.Text("It is made.")},
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return c, err
	}
	over := make(chan error, 1)
	go func() { over <- model.Serve(l) }()
	defer func() { err = errors.Join(err, model.Close(), <-over) }()
	env.Quiet = true // what the program says is the script's
	o, err := runOptions(ctx, env, runInput{Repo: repo, Agent: p.Name, Model: scriptedModel(p), Task: "Make the file " + checkedFile + ".", Context: "none", Backend: in.Backend},
		scripted(cmp.Or(p.Dialect, adapter.OpenAI), l.Addr().String()))
	if err != nil {
		return c, err
	}
	o.Timeout = 5 * time.Minute
	task, err := runs.Run(ctx, o)
	if err != nil {
		return c, ravis(err)
	}
	c = agentCheck{Program: p.Name, Version: p.Version, Run: task.ID, Problems: []string{}, Refused: task.Suggested, Milliseconds: task.Timings["command"]}
	if c.Refused == nil {
		c.Refused = []string{}
	}
	if task.Status != store.RunSucceeded || task.Error != "" {
		c.problem("it ended as %s: %s", task.Status, task.Error)
	}
	if m := task.Models; m == nil || m.Requests == 0 {
		c.problem("it asked no model")
	} else {
		c.Requests, c.Tokens = m.Requests, m.Input+m.Output+m.CacheRead+m.CacheWrite
	}
	patch, err := os.ReadFile(filepath.Join(task.Dir, runs.PatchFile))
	if err != nil || !strings.Contains(string(patch), "+"+checkedText) {
		c.problem("its change did not come out: there is no %s in the patch", checkedFile)
	}
	if len(c.Refused) > 0 {
		c.problem("it tried to reach others: %s", strings.Join(c.Refused, ", "))
	}
	c.OK = len(c.Problems) == 0
	return c, nil
}

func (c *agentCheck) problem(format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
}

// scripted are the models of a check: one provider, with a key that opens nothing.
func scripted(dialect, address string) sources {
	return sources{install: true, models: func(context.Context, *command.Env) (models, error) {
		const key = "opens-nothing"
		return models{
			Providers: []broker.Provider{{
				Name: "scripted", Dialect: broker.Dialect(dialect), BaseURL: &url.URL{Scheme: "http", Host: address},
				Keys: []broker.Key{{Name: "check", Value: func(context.Context) (string, error) { return key, nil }}},
			}},
			Known: []redact.Pair{},
		}, nil
	}}
}

// scriptedModel is what the model of a check is called, where a program takes none by itself, or, as codex, offers tools to
// the models that it knows in a way that no script speaks.
func scriptedModel(p adapter.Program) string {
	if p.Dialect == adapter.OpenAI || p.NeedsModel {
		return "scripted-1"
	}
	return ""
}

// emptyRepo makes a repository with one commit.
func emptyRepo(ctx context.Context, dir string) error {
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", dir},
		{"-C", dir, "-c", "user.name=ravi", "-c", "user.email=ravi@localhost", "commit", "-q", "--allow-empty", "-m", "A repository to be checked in"},
	} {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(dir), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("making a repository to check in: %w\n%s", err, out)
		}
	}
	return nil
}

func printAgentCheck(_ *command.Env, w io.Writer, c agentCheck) error {
	state := "works"
	if !c.OK {
		state = "does NOT work as it should"
	}
	fmt.Fprintf(w, "%s %s %s: %d model calls, %d tokens, %.1f s\n", c.Program, c.Version, state, c.Requests, c.Tokens, float64(c.Milliseconds)/1000)
	for _, p := range c.Problems {
		fmt.Fprintf(w, "  %s\n", p)
	}
	if !c.OK {
		fmt.Fprintf(w, "what it wrote: ravi runs logs %s\n", c.Run)
	}
	return nil
}
