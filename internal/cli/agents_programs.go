package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"ravi/internal/adapter"
	"ravi/internal/command"
	"ravi/internal/install"
	runs "ravi/internal/run"
	"ravi/sandbox"
)

func addAgentPrograms(t *command.Table) {
	command.Add(t, command.Spec[agentsInstallInput, install.Installed]{
		Group: "agents", Name: "install", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Install an agent program",
		Long: `Installs an agent program of another maker from npm: claude, codex, gemini,
opencode or pi, at the version that this Ravi was tried with. It is done in a
sandbox that reaches the registry and nothing else; no script of the packages is
run, and each package must have the hash that Ravi knows. Runs see it read-only.

One that is there already is left as it is. A registry of yours is named with
--registry or npm_config_registry.`,
		Examples: []command.Example{{Line: "ravi agents install claude"}},
		Handler:  installAgent,
		Print: func(_ *command.Env, w io.Writer, i install.Installed) error {
			fmt.Fprintf(w, "%s %s is installed: ravi sandbox run --agent %s --task \"…\"\n", i.Program, i.Version, i.Program)
			return nil
		},
	})
}

type agentsInstallInput struct {
	Program  string `json:"program" arg:"PROGRAM" host:"none" usage:"claude, codex, gemini, opencode or pi"`
	Registry string `json:"registry" flag:"registry" value:"URL" host:"network" usage:"where packages come from (default the registry of npm)"`
	Again    bool   `json:"again" flag:"again" host:"none" usage:"install it also if it is there; runs that use that one lose it"`
}

func installAgent(ctx context.Context, env *command.Env, in agentsInstallInput) (i install.Installed, err error) {
	p, ok := adapter.Lookup(in.Program)
	if ok && p.Package == "" {
		return i, command.Usage(fmt.Sprintf("there is nothing to install: %s is %s", p.Name, p.Title), `it is there: ravi sandbox run --agent `+p.Name+` --task "…"`)
	}
	if !ok {
		return i, command.Usage(fmt.Sprintf("there is no agent program %q to install", in.Program), meantProgram(in.Program, "claude, codex, gemini, opencode and pi are"))
	}
	return installProgram(ctx, env, p, in.Registry, in.Again)
}

// installProgram installs a program from a registry, empty for the user's.
func installProgram(ctx context.Context, env *command.Env, p adapter.Program, registry string, again bool) (i install.Installed, err error) {
	home, err := env.Home()
	if err != nil {
		return i, err
	}
	opts, err := ownSandbox(ctx, env)
	if err != nil {
		return i, err
	}
	if registry == "" {
		registry = os.Getenv("npm_config_registry")
	}
	i, err = install.Install(ctx, p, install.Options{Home: home, Registry: registry, Again: again, Step: env.Progress.Step, Note: env.Progress.Log, Sandbox: opts})
	if errors.Is(err, install.ErrRegistry) {
		return i, command.Usage(err.Error(), "name it with --registry or npm_config_registry")
	}
	return i, err
}

// ownSandbox are the options of a sandbox that Ravi makes for itself: recorded, and in the operator's network.
func ownSandbox(ctx context.Context, env *command.Env) ([]sandbox.Option, error) {
	st, err := env.Store(ctx)
	if err != nil {
		return nil, err
	}
	file, err := env.Config()
	if err != nil {
		return nil, err
	}
	own, err := networkOf(file)
	if err != nil {
		return nil, err
	}
	opts := []sandbox.Option{sandbox.WithRecorder(runs.Recorder{Store: st, CreatedBy: env.Caller.Name()})}
	if p := own.proxy(); p != nil {
		opts = append(opts, sandbox.WithNetworkProxy(*p))
	}
	cas, err := own.extraCAs()
	if err != nil {
		return nil, err
	}
	return append(opts, sandbox.WithExtraCAs(cas)), nil
}
