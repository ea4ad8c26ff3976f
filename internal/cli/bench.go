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
	safe "ravi/internal/term"
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
  gateway  all that is about the daemon and its gateway, with 10,000 runs,
           10,000 tasks and 100,000 messages in the store: only if it is named
    gw_read    a task is read, with a key and by the operator; beside, the same
               listener with an answer that was there
    gw_rate    64 clients at once, and what processor time a read takes
    gw_lost    answers that have no row in the audit: after that, and with the
               daemon killed in the middle
    gw_inside  a task is read from inside a sandbox without network
    lists      the first page of every list
    daemon_start, daemon_mem, daemon_cpu
               from its start until it answers; what it takes when it is idle
  models   the model broker and agent programs: only if it is named
    model_first    what the broker adds until an answer's first byte is there
    model_streams  200 streams at once by a broker on one processor, and one
                   that hangs: the longest pause, and what a stream takes
    agent_turn     a small task that a script has claude and codex do, in the
                   sandbox and on the host (ravi agents install has them here),
                   and Ravi's own loop
  loop     Ravi's own agent loop, and agent_turn: only if it is named
    loop_exec  one command that a model asks for, gate and journal included;
               the same by package sandbox, and by a program inside
    loop_mcp   one call of an MCP server in a sandbox, and of the same server
               by runsc exec: one of Ravi's own, and for node
               @modelcontextprotocol/server-everything if npm has it here
    loop_subs  20 sub-agents at once, each in a sandbox of its own
    loop_gate  what the gate takes to say what a command would do
  dispatch  messages, the bus and runners: only if it is named
    msg_begin  from ravi sessions send until the command that works on the
               message is run, in a new sandbox with a small repository, and
               what of it takes how long; beside, ravi sandbox run of the same
    burst_rate 200 messages at once in 20 sessions: how many a second, how long
               they wait, and what was lost, done twice or out of order
    fleet_rate messages a second at home, and with one to three runners, for
               root in network namespaces; all on this machine's processors
    bus_mem    an idle daemon with and without the bus
    far_exec, far_write
               a command in a sandbox on a runner, and a file into it
  version  ravi --version

With --json, every single sample is given. The exit code is 1 when something of
Ravi's own could not be measured; no number makes it fail.`,
		Examples: []command.Example{
			{What: "everything", Line: "ravi bench"},
			{What: "only the start of a sandbox, more often, beside runsc alone", Line: "ravi bench --only create,first --runs 50 --beside runsc"},
			{What: "the network alone", Line: "ravi bench --only network"},
			{What: "the daemon and its gateway", Line: "ravi bench --only gateway"},
			{What: "the model broker and agent programs", Line: "ravi bench --only models --runs 7"},
			{What: "Ravi's own agent loop", Line: "ravi bench --only loop"},
			{What: "messages and runners", Line: "ravi bench --only dispatch"},
			{What: "every sample", Line: "ravi bench --json > bench.json"},
		},
		Defaults: benchInput{Runs: 20, Connections: 5000, Download: 200, Records: 10_000, Seconds: 5, Kills: 5, Idle: 60, Beside: bench.Besides()},
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
	Runs        int      `json:"runs" flag:"runs" short:"n" value:"N" host:"size" usage:"rounds of each measure"`
	Connections int      `json:"connections" flag:"connections" value:"N" host:"size" usage:"new connections that are made to measure the network"`
	Download    int      `json:"download" flag:"download" value:"MB" host:"size" usage:"what is downloaded at once"`
	Records     int      `json:"records" flag:"records" value:"N" host:"size" usage:"runs in the store of the daemon that is measured"`
	Seconds     int      `json:"seconds" flag:"seconds" value:"N" host:"size" usage:"how long many clients ask at once"`
	Kills       int      `json:"kills" flag:"kills" value:"N" host:"size" usage:"how often the daemon is killed meanwhile"`
	Idle        int      `json:"idle" flag:"idle" value:"SECONDS" host:"size" usage:"how long nobody asks the daemon anything"`
	Only        []string `json:"only" flag:"only" value:"NAME,…" host:"none" usage:"these measures only"`
	Beside      []string `json:"beside" flag:"beside" value:"NAME,…" host:"none" usage:"compare with these: runsc, docker, podman, bwrap, or none"`
}

func runBench(ctx context.Context, env *command.Env, in benchInput) (*bench.Report, error) {
	o := bench.Options{
		Runs: in.Runs, Connects: in.Connections, Download: in.Download, Records: in.Records, Seconds: in.Seconds, Kills: in.Kills, Idle: in.Idle, Only: names(in.Only), Beside: names(in.Beside), Version: Version(), Step: env.Progress.Step,
	}
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

// benchClient does what a benchmark started this process for, such as inside of a sandbox that it measures, if it did. The
// job touches nothing of Ravi's, so it makes no difference who does it.
func benchClient(args []string, stdin io.Reader, stdout, stderr io.Writer) (done bool, exit int) {
	job := bench.ClientJob()
	if job == "" || !slices.Equal(args, []string{"bench"}) {
		return false, 0
	}
	if err := bench.Client(context.Background(), job, stdin, stdout); err != nil {
		fmt.Fprintln(stderr, safe.Safe(err.Error()))
		return true, command.ExitFailed
	}
	return true, command.ExitOK
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
