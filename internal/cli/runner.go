package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"ravi/internal/bus"
	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/dispatch"
	"ravi/internal/programs"
	"ravi/internal/runner"
	"ravi/internal/store"
	safe "ravi/internal/term"
	"ravi/internal/tunnel"
)

func addRunner(t *command.Table) {
	t.AddGroup(command.Group{Name: "runner", Summary: "Lend this machine's sandboxes to a Ravi elsewhere"})
	add(t, command.Spec[runnerInput, struct{}]{
		Group: "runner", Name: "runner", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Lend this machine's sandboxes to a Ravi elsewhere",
		Long: `Makes sandboxes here for the runs of another Ravi, until Ctrl-C. It needs the
bus of that one and a credential for it, and nothing else: it dials out and
listens nowhere. What its sandboxes do with keys, secrets and models leaves from
there; none of these comes here.

It keeps what it needs in runner/ in Ravi's home. What network.always_deny of
config.json here names no sandbox reaches, whatever is said there. Asked to end
(Ctrl-C, SIGTERM) it takes nothing new, lets what is under way end, and ends;
asked again it ends at once, and its runs are done elsewhere.`,
		Examples: []command.Example{
			{What: "where Ravi is", Line: "ravi bus creds issue --runner far --out far.creds"},
			{What: "on this machine", Line: "ravi runner --bus tls://ravi.example.com:4222 --creds far.creds --ca ca.pem"},
			{What: "at most four sandboxes at once", Line: "ravi runner --bus tls://10.0.0.5:4222 --creds far.creds --ca ca.pem \\\n      --capacity 4"},
		},
		Handler: runRunner,
		Print:   func(*command.Env, io.Writer, struct{}) error { return nil },
	})
}

type runnerInput struct {
	Bus      string        `json:"bus" flag:"bus" value:"URL" host:"none" usage:"where the bus is, such as tls://ravi.example.com:4222"`
	Creds    string        `json:"creds" flag:"creds" value:"FILE" host:"path" usage:"the credential of ravi bus creds issue --runner"`
	CA       string        `json:"ca" flag:"ca" value:"FILE" host:"path" usage:"the authority of the bus's certificate (default: those of the system)"`
	Capacity int           `json:"capacity" flag:"capacity" value:"N" host:"size" usage:"how many sandboxes there are at once (default: what processors and memory allow)"`
	CPUs     float64       `json:"cpus" flag:"cpus" value:"N" host:"size" usage:"processors that they have in all (default: four times what there is)"`
	Memory   int64         `json:"memory" flag:"memory" value:"MiB" host:"size" usage:"memory that they have in all (default: seven eighths of what there is)"`
	Drain    time.Duration `json:"drain" flag:"drain" value:"DURATION" host:"size" usage:"how long what is under way may take at the end (default: as long as it does)"`
}

func runRunner(ctx context.Context, env *command.Env, in runnerInput) (none struct{}, err error) {
	if in.Bus == "" || in.Creds == "" {
		return none, command.Usage("--bus or --creds is missing", "make a credential where Ravi is: ravi bus creds issue --runner NAME --out FILE")
	}
	cred, err := bus.ReadFile(in.Creds)
	if err != nil {
		return none, busError(err)
	}
	self, err := cred.Curve()
	if err != nil {
		return none, busError(err)
	}
	home, err := env.Home()
	if err != nil {
		return none, err
	}
	file, err := env.Config()
	if err != nil {
		return none, err
	}
	own, err := networkOf(file)
	if err != nil {
		return none, err
	}
	log := daemon.NewLogger(env.Stderr, env.StderrTerminal)
	programs.LayOutApart()
	r, err := runner.New(ctx, runner.Options{
		Home: filepath.Join(home, "runner"), Capacity: runner.Capacity{Sandboxes: in.Capacity, CPUs: in.CPUs, MemoryMiB: in.Memory},
		AlwaysDeny: own.floor().AlwaysDeny, Log: log,
	})
	if err != nil {
		return none, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.Prepare(ctx); err != nil {
		return none, err
	}
	ended := make(chan error, 1)
	nc, err := bus.Dial(ctx, in.Bus, cred, bus.WithTrust(bus.Trust{CA: in.CA}), bus.WithLog(log), bus.WithRenewal(bus.RenewFile(in.Creds)), bus.Persist(),
		bus.WithEnd(func(err error) { ended <- err }))
	if err != nil {
		return none, busError(err)
	}
	defer nc.Close()
	return none, busError(lend(ctx, r, nc, cred, self, in.Drain, ended, log))
}

// lend serves tunnels until ctx ends and what is under way has, or until the credential does.
func lend(ctx context.Context, r *runner.Runner, nc *nats.Conn, cred bus.Credential, self nkeys.KeyPair, drain time.Duration, ended <-chan error, log *slog.Logger) error {
	l, err := tunnel.Listen(nc, tunnel.Wildcard(cred.Name), self, cred.Peer, func(ctx context.Context, n tunnel.Name, s *tunnel.Session) {
		if err := r.Serve(ctx, s, n.RunID); err != nil && ctx.Err() == nil { // a session that ended is no failure
			log.Warn("a sandbox was not lent to its end", "run", n.RunID, "error", err.Error())
		}
	})
	if err != nil {
		return err
	}
	defer l.Close()
	again := make(chan os.Signal, 1)
	say := func(leaving bool) {
		host, _ := os.Hostname() // it is for people
		b, err := json.Marshal(dispatch.Said{Status: r.Status(), Version: Version(), Host: host, Leaving: leaving})
		if err == nil {
			err = nc.Publish(dispatch.StatusSubject(cred.Name), b)
		}
		if err != nil {
			log.Debug("the runner's status is not told", "error", err.Error())
		}
	}
	log.Info("lending sandboxes", "runner", cred.Name, "capacity", r.Status().Capacity.Sandboxes)
	say(false)
	tick := time.NewTicker(dispatch.StatusEvery)
	defer tick.Stop()
	stopping, drained := ctx.Done(), make(chan error, 1)
	for {
		select {
		case <-tick.C:
			say(false)
		case err := <-ended:
			return err // what it lends ends with the sessions
		case <-stopping:
			stopping = nil
			log.Info("ending once what is under way has ended; again: at once", "running", r.Status().Running)
			signal.Notify(again, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(again)
			l.Drain()
			draining, cancel := context.WithCancel(context.WithoutCancel(ctx))
			if drain > 0 {
				draining, cancel = context.WithTimeout(draining, drain)
			}
			defer cancel()
			go func() { drained <- r.Drain(draining) }()
			say(false)
		case <-again:
			say(true)
			return errors.Join(errors.New("ended before what was under way had"), nc.FlushTimeout(time.Second))
		case err := <-drained:
			say(true)
			return errors.Join(err, nc.FlushTimeout(time.Second))
		}
	}
}

func addRunners(t *command.Table) {
	t.AddGroup(command.Group{Name: "runners", Summary: "See who lends sandboxes"})
	add(t, command.Spec[runnersListInput, runnerList]{
		Group: "runners", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Reach: command.OperatorOnly,
		Summary: "List runners, and how they are",
		Long: `Lists the machines that lend sandboxes, this one first: what they have left, and
when they were heard last. One that was silent for ten seconds gets nothing new.`,
		Examples: []command.Example{{Line: "ravi runners ls"}},
		Handler:  listRunners, Print: printRunners,
	})
	add(t, command.Spec[runnersForgetInput, struct{}]{
		Group: "runners", Name: "forget", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Leave a runner out of the list",
		Long: `Forgets what a runner said of itself. If it still runs it says so again; its
credential is ended with ravi bus creds revoke.`,
		Examples: []command.Example{{Line: "ravi runners forget far"}},
		Handler: func(ctx context.Context, env *command.Env, in runnersForgetInput) (none struct{}, err error) {
			s, err := env.Store(ctx)
			if err != nil {
				return none, err
			}
			return none, s.ForgetRunner(ctx, in.Runner)
		},
		Print: func(*command.Env, io.Writer, struct{}) error { return nil },
	})
}

type (
	runnersListInput   struct{}
	runnersForgetInput struct {
		Runner string `json:"runner" arg:"RUNNER" host:"none" usage:"its name"`
	}
)

// runnerShown is a runner as it said it is.
type runnerShown struct {
	Name   string        `json:"name"`
	State  string        `json:"state"` // ready, draining, silent or ended
	Said   dispatch.Said `json:"said"`
	Work   int           `json:"work"` // how many runs of messages have its sandboxes
	SeenAt time.Time     `json:"seen_at"`
}

type runnerList struct {
	// Here is how many runs of messages have sandboxes of this machine.
	Here  int           `json:"here"`
	Items []runnerShown `json:"items"`
}

func listRunners(ctx context.Context, env *command.Env, _ runnersListInput) (out runnerList, err error) {
	out.Items = []runnerShown{}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	busy, err := s.ListWork(ctx, store.WorkFilter{Live: true, Status: store.WorkRunning})
	if err != nil {
		return out, err
	}
	work := map[string]int{}
	for _, w := range busy {
		work[w.Runner]++
	}
	out.Here = work[""]
	all, err := s.ListRunners(ctx)
	if err != nil {
		return out, err
	}
	const silent = 25 * time.Second // what is unchanged is written down every ten
	for _, r := range all {
		shown := runnerShown{Name: r.Name, Work: work[r.Name], SeenAt: r.SeenAt, State: "ready"}
		if err := json.Unmarshal(r.Status, &shown.Said); err != nil {
			return out, fmt.Errorf("what the runner %s said: %w", r.Name, err)
		}
		switch {
		case shown.Said.Leaving:
			shown.State = "ended"
		case time.Since(r.SeenAt) > silent:
			shown.State = "silent"
		case shown.Said.Draining:
			shown.State = "draining"
		}
		out.Items = append(out.Items, shown)
	}
	return out, nil
}

func printRunners(env *command.Env, w io.Writer, l runnerList) error {
	if env.Quiet {
		for _, r := range l.Items {
			fmt.Fprintln(w, safe.Safe(r.Name))
		}
		return nil
	}
	rows := [][]string{{"(this machine)", "ready", fmt.Sprint(l.Here), "", "", ""}}
	for _, r := range l.Items {
		free := r.Said.Free
		rows = append(rows, []string{r.Name, r.State, fmt.Sprint(r.Work), fmt.Sprintf("%.1f", min(free.CPUs, 1e6)), fmt.Sprint(free.MemoryMiB), age(time.Since(r.SeenAt))})
	}
	return printRows(env, w, "runners", []safe.Column{{Title: "NAME", Flex: true}, {Title: "STATE"}, {Title: "WORK", Right: true}, {Title: "FREE CPUS", Right: true},
		{Title: "FREE MIB", Right: true}, {Title: "HEARD", Right: true}}, rows, "")
}
