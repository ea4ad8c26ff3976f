package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/broker"
	"ravi/internal/command"
	"ravi/internal/install"
	runs "ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
)

func nothingToRun(task string) error {
	if task != "" {
		return command.Usage("there is a task, and nothing that does it", "name an agent program, such as --agent claude, or add what does it after --, such as: -- ./my-agent")
	}
	return command.Usage("there is nothing to run", "add a command after --, such as: ravi sandbox run -- make test")
}

// runAgent finds the agent program that does a run's task. What is missing is told here, before anything is made.
func runAgent(ctx context.Context, env *command.Env, in *runInput, o *runs.Options) error {
	p, ok, err := programOf(ctx, env, in, o.Store)
	if err != nil {
		return err
	}
	if !ok {
		switch {
		case len(in.Command) == 0:
			return nothingToRun(in.Task)
		case in.Resume != "":
			return command.Usage("--resume goes on with the conversation of an agent program, and there is none", "name the one that had it, such as --agent claude")
		case in.Model != "" || in.Tokens != 0 || in.USD != 0 || in.Record:
			return command.Usage("--model, --max-tokens, --max-usd and --record are about an agent program, and there is none", "add --agent, such as --agent command for a command of yours")
		}
		return nil
	}
	switch {
	case p.Name == adapter.Command && len(in.Command) == 0:
		return command.Usage("--agent command runs a command of yours, and there is none", "add it after --, such as: -- ./my-agent")
	case p.Name != adapter.Command && len(in.Command) > 0:
		return command.Usage(fmt.Sprintf("%s takes a task, and no command", p.Title), "say it with --task, or leave --agent out to run the command alone")
	case p.Name != adapter.Command && in.Task == "" && in.TaskID == "":
		return command.Usage(fmt.Sprintf("%s has nothing to do", p.Title), `say it with --task "…", --task-file or --task-id`)
	case p.Name != adapter.Loop && in.Approval != nil:
		return command.Usage("--approval-timeout is about the commands of --agent loop", "leave it out")
	case in.Tokens < 0 || in.USD < 0:
		return command.Usage("--max-tokens or --max-usd is negative", "leave it out for no bound")
	}
	o.Agent = &runs.Agent{Program: p, Model: in.Model}
	return nil
}

// sources are where a run gets what it needs beside its input.
type sources struct {
	// models finds the providers that it may call, and their keys.
	models func(context.Context, *command.Env) (models, error)
	// install says that an agent program that is missing is installed first.
	install bool
}

// runModels finds what the agent program of a run is installed as, and the models that it may call.
func runModels(ctx context.Context, env *command.Env, in runInput, from sources, o *runs.Options) error {
	if o.Agent == nil {
		return nil
	}
	a, p := o.Agent, o.Agent.Program
	allowed, err := allowedModels(ctx, env, o.Store)
	if err != nil {
		return err
	}
	m, err := from.models(ctx, env)
	if err != nil {
		return err
	}
	if allowed != nil {
		m = m.within(own(env).Profile, allowed)
	}
	providers, err := m.of(broker.Dialect(p.Dialect))
	if err != nil {
		return err
	}
	for _, have := range providers {
		if in.USD > 0 && len(have.Prices) == 0 {
			return command.Usage(fmt.Sprintf("--max-usd bounds money, and no price of %s is known", have.Name),
				fmt.Sprintf("set models.providers.%s.prices in config.json (docs/models.md), or bound --max-tokens", have.Name))
		}
	}
	limits := m.Limits
	limits.Tokens, limits.USD = tighter(limits.Tokens, in.Tokens), tighter(limits.USD, in.USD)
	o.Models = &runs.Models{Providers: providers, Grants: m.Grants, Limits: limits, Record: in.Record}
	o.Redact.Add(m.Known...)
	switch p.Name {
	case adapter.Command:
		return nil
	case adapter.Loop:
		file, err := env.Config()
		if err != nil {
			return err
		}
		return runLoop(env, in, file, providers, o)
	}
	return findProgram(ctx, env, p, a, o, from.install)
}

// allowedModels are the models that a caller's profile lists; nil is all.
func allowedModels(ctx context.Context, env *command.Env, st *store.Store) ([]string, error) {
	if env.Caller.IsOperator() {
		return nil, nil
	}
	name := own(env).Profile
	profile, err := profileOf(ctx, st, name)
	if err == nil && len(profile.Models) == 0 {
		err = command.Denied(&access.Denied{Caller: "the profile " + name, Missing: "any model"})
	}
	return profile.Models, err
}

// tighter is the tighter of two bounds, of which 0 is none.
func tighter[N int64 | float64](a, b N) N {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// programOf is the program that was named, or that of the agent whom the run is for. With a command that is command, or none.
func programOf(ctx context.Context, env *command.Env, in *runInput, st *store.Store) (p adapter.Program, ok bool, err error) {
	if p, ok = adapter.Lookup(in.Agent); ok {
		in.Agent = ""
		return p, true, nil
	}
	if len(in.Command) > 0 && in.Agent == "" && in.Session == "" && in.TaskID == "" {
		return p, false, nil
	}
	var o runs.Options
	o.Store = st
	if err := runSubject(ctx, env, *in, &o); err != nil {
		return p, false, err
	}
	if in.Task == "" && len(in.Command) == 0 {
		in.Task = o.Task
	}
	if o.AgentID == "" {
		return p, false, nil
	}
	agent, err := st.Agent(ctx, o.AgentID)
	if err != nil || agent.Program == "" || len(in.Command) > 0 && agent.Program != adapter.Command {
		return p, false, err
	}
	if p, ok = adapter.Lookup(agent.Program); !ok {
		return p, false, command.Usage(fmt.Sprintf("the agent %s has the program %q, which this Ravi does not know", agent.Name, agent.Program), "set another with ravi agents edit --program")
	}
	return p, true, nil
}

// inImage finds a program among the host's tools. They are what the image has as far as they lie in /usr, links to
// elsewhere left out; on the host itself all of them count.
func inImage(name, backend string) (at string, ok bool) {
	at, err := exec.LookPath(name)
	if err != nil {
		return "", false
	}
	if backend == sandbox.BackendHost {
		return at, true
	}
	real, err := filepath.EvalSymlinks(at)
	return at, err == nil && strings.HasPrefix(at, "/usr/") && strings.HasPrefix(real, "/usr/")
}

// findProgram looks for the program: installed by Ravi, or a part of the image.
func findProgram(ctx context.Context, env *command.Env, p adapter.Program, a *runs.Agent, o *runs.Options, missing bool) error {
	if err := checkNode(ctx, env, p, a, o); err != nil {
		return err
	}
	i, err := install.Find(o.Home, p)
	if err == nil {
		a.Dir, a.Path = i.Dir, i.Path
		return nil
	}
	if !errors.Is(err, install.ErrMissing) {
		return err
	}
	if _, ok := inImage(p.Name, o.Config.Backend); ok && hostTools(o) {
		a.Path = p.Name
		return nil
	}
	if missing {
		env.Progress.Log(fmt.Sprintf("%s is not here yet: installing %s %s, once", p.Title, p.Package, p.Version))
		if i, err = installProgram(ctx, env, p, "", false); err != nil {
			return err
		}
		a.Dir, a.Path = i.Dir, i.Path
		return nil
	}
	return &command.Error{Code: command.CodeNotFound, Message: fmt.Sprintf("%s is not installed", p.Title), Hint: "ravi agents install " + p.Name, Exit: command.ExitRavi, Err: err}
}
