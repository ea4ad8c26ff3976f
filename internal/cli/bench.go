package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"ravi/internal/bench"
	"ravi/internal/command"
)

func addBench(t *command.Table) {
	t.AddGroup(command.Group{Name: "bench", Summary: "Measure this machine"})
	command.Add(t, command.Spec[benchInput, *bench.Report]{
		Group: "bench", Name: "bench", Access: command.Write,
		Summary: "Measure what sandboxes cost on this machine",
		Long: `Measures how long a sandbox takes to be made, to answer and to run a command,
how fast bytes go in and out, and how much memory it needs. In the same run, and
in turns, it measures others beside: this very program as plain runsc, and
docker, podman and bwrap where they are installed. It takes some minutes.

The measures are:
  create   from nothing to a sandbox that answers
  first    from nothing to the first byte of a command's output
  exec     one command in a sandbox that runs, from start to end
  spawn    the same command, started by a program inside
  output   20 MB that a command writes, compared byte by byte
  write    a file of 64 MB into a sandbox
  read     the same file out of it
  clone    git clone of 5,000 files inside, and on the host
  memory   what an idle sandbox takes, its keeper included
  storm    50 sandboxes made at once
  version  ravi --version

With --json, every single sample is given. The exit code is 1 when something of
Ravi's own could not be measured; no number makes it fail.`,
		Examples: []command.Example{
			{What: "everything", Line: "ravi bench"},
			{What: "only the start of a sandbox, more often, beside runsc alone", Line: "ravi bench --only create,first --runs 50 --beside runsc"},
			{What: "every sample", Line: "ravi bench --json > bench.json"},
		},
		Defaults: benchInput{Runs: 20, Beside: bench.Besides()},
		Handler:  runBench,
		Print: func(_ *command.Env, w io.Writer, r *bench.Report) error {
			return bench.Print(w, widthOf(w), r)
		},
		Exit: func(r *bench.Report) int {
			if r.Failed() {
				return command.ExitFailed
			}
			return command.ExitOK
		},
	})
}

type benchInput struct {
	Runs   int      `json:"runs" flag:"runs" short:"n" value:"N" host:"size" usage:"rounds of each measure"`
	Only   []string `json:"only" flag:"only" value:"NAME,…" usage:"these measures only"`
	Beside []string `json:"beside" flag:"beside" value:"NAME,…" host:"none" usage:"compare with these: runsc, docker, podman, bwrap, or none"`
}

func runBench(ctx context.Context, env *command.Env, in benchInput) (*bench.Report, error) {
	o := bench.Options{Runs: in.Runs, Only: names(in.Only), Beside: names(in.Beside), Version: Version(), Step: env.Progress.Step}
	if slices.Equal(o.Beside, []string{"none"}) {
		o.Beside = []string{}
	}
	err := o.Validate()
	if errors.Is(err, bench.ErrOptions) {
		return nil, command.Usage(err.Error(), "see ravi bench --help")
	}
	if o.Home, err = env.Home(); err != nil {
		return nil, err
	}
	if o.Store, err = env.Store(ctx); err != nil {
		return nil, err
	}
	if o.Program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	return bench.Run(ctx, o)
}

// names takes apart lists with commas. What was given and names nothing is not the same as nothing given.
func names(given []string) []string {
	if given == nil {
		return nil
	}
	out := []string{}
	for _, g := range given {
		out = append(out, strings.FieldsFunc(g, func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	return out
}
