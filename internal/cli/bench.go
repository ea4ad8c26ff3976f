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
		Group: "bench", Name: "bench", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Measure what sandboxes cost on this machine",
		Long: `Measures how long a sandbox takes to be made, to answer and to run a command,
how fast bytes go in and out, and how much memory it needs. In the same run, and
in turns, it measures others beside: this very program as plain runsc, and
docker, podman and bwrap where they are installed. It takes some minutes. What
passes a sandbox's network is measured beside the same network with nothing
looked at; servers are on this machine's loopback.

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
  network  all that is about a sandbox's network:
    connect  a name, a new connection, TLS and one request
    kept     one request on a connection that is there
    sse      the first event of a stream
    http, https1, https2
             a download without TLS, and intercepted over HTTP/1.1 and HTTP/2
    cable    what the TCP/IP stack of an idle sandbox holds
    netmem   what the network's two processes take
  crowd    100 sandboxes that receive at once: only if it is named
  version  ravi --version

With --json, every single sample is given. The exit code is 1 when something of
Ravi's own could not be measured; no number makes it fail.`,
		Examples: []command.Example{
			{What: "everything", Line: "ravi bench"},
			{What: "only the start of a sandbox, more often, beside runsc alone", Line: "ravi bench --only create,first --runs 50 --beside runsc"},
			{What: "the network alone", Line: "ravi bench --only network"},
			{What: "every sample", Line: "ravi bench --json > bench.json"},
		},
		Defaults: benchInput{Runs: 20, Connections: 5000, Download: 200, Beside: bench.Besides()},
		Handler:  runBench,
		Print: func(_ *command.Env, w io.Writer, r *bench.Report) error {
			if r == nil {
				return nil // a client has said what it found
			}
			return bench.Print(w, widthOf(w), r)
		},
		Exit: func(r *bench.Report) int {
			if r != nil && r.Failed() {
				return command.ExitFailed
			}
			return command.ExitOK
		},
	})
}

type benchInput struct {
	Runs        int      `json:"runs" flag:"runs" short:"n" value:"N" host:"size" usage:"rounds of each measure"`
	Connections int      `json:"connections" flag:"connections" value:"N" host:"size" usage:"new connections that are made to measure the network"`
	Download    int      `json:"download" flag:"download" value:"MB" host:"size" usage:"what is downloaded at once"`
	Only        []string `json:"only" flag:"only" value:"NAME,…" host:"none" usage:"these measures only"`
	Beside      []string `json:"beside" flag:"beside" value:"NAME,…" host:"none" usage:"compare with these: runsc, docker, podman, bwrap, or none"`
}

func runBench(ctx context.Context, env *command.Env, in benchInput) (*bench.Report, error) {
	if job := bench.ClientJob(); job != "" {
		// Inside of a sandbox that another run measures.
		return nil, bench.Client(ctx, job, env.Stdout)
	}
	o := bench.Options{Runs: in.Runs, Connects: in.Connections, Download: in.Download, Only: names(in.Only), Beside: names(in.Beside), Version: Version(), Step: env.Progress.Step}
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
