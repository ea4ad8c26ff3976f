package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ravi/internal/run"
	"ravi/internal/store"
)

const (
	// dispatchAll is the name for all measures of messages, the bus and runners.
	dispatchAll = "dispatch"

	msgBegin   = "msg_begin"
	msgSteps   = "msg_steps"
	burstRate  = "burst_rate"
	burstWait  = "burst_wait"
	burstWrong = "burst_wrong"
	burstMem   = "burst_mem"
	fleetRate  = "fleet_rate"
	fleetWait  = "fleet_wait"
	busMem     = "bus_mem"
	busCPU     = "bus_cpu"
	farExec    = "far_exec"
	farWrite   = "far_write"

	// From when the time of a message counts, and what does without a bus.
	fromSend   = "from send"
	fromCommit = "from its commit"
	bySandbox  = "sandbox run"

	atHome                       = "at home"
	withBus, withoutBus, busAdds = "with the bus", "without it", "added by it"
	onRunner                     = "on a runner"

	// clockRoom is how far the clock inside may be from the one outside, and the time of an event from what it tells of.
	clockRoom = 10 * time.Millisecond
	// workWait bounds how long all that was sent may take.
	workWait = 5 * time.Minute
)

// dispatchMeasures are what Only may name at once as "dispatch". They need the machine for themselves for minutes, so they
// are asked for by name.
var dispatchMeasures = []string{msgBegin, burstRate, fleetRate, fleetWait, busMem, farExec, farWrite}

// dispatch measures messages from their sender to a sandbox.
func (b *bench) dispatch(ctx context.Context) (err error) {
	if b.wantAny(msgBegin, burstRate, fleetRate, fleetWait) {
		if err := b.messages(ctx); err != nil {
			return err
		}
	}
	if err := b.phases(ctx, phase{"an idle daemon, with and without the bus", busMem, b.idleBus}); err != nil || !b.wantAny(farExec, farWrite) {
		return err
	}
	return b.step("a sandbox on a runner", func() error { return b.far(ctx) })
}

// messages measures a daemon that works on messages, alone and with runners.
func (b *bench) messages(ctx context.Context) (err error) {
	o, err := b.newOffice(ctx, "office", nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	return b.phases(ctx,
		phase{"from a message to its command", msgBegin, o.begins},
		phase{fmt.Sprintf("%d messages at once", o.burstSize()), burstRate, o.bursts},
		phase{"runners", fleetRate, func(ctx context.Context) error { return o.fleet(ctx, busyFleet) }},
		phase{"runners with work that waits", fleetWait, func(ctx context.Context) error { return o.fleet(ctx, waitingFleet) }},
	)
}

// office is a daemon that works on messages, in a home of its own, with an agent and a small repository.
type office struct {
	*gateway
	d    *daemonProcess
	st   *store.Store
	repo string
}

// The agent of an office.
const officeAgent = "bench"

// newOffice makes one on a host, or with none on this machine as it is. settings are what config.json says further.
func (b *bench) newOffice(ctx context.Context, name string, at *netHost, settings map[string]any) (o *office, err error) {
	o = &office{gateway: &gateway{bench: b, home: filepath.Join(b.dir, name), at: at}, repo: filepath.Join(b.dir, name+"-repo")}
	config := map[string]any{"gateway": map[string]any{"port": 0}, "bus": map[string]any{"port": 0}}
	for key, value := range settings {
		config[key] = value
	}
	file, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.home, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.home, "config.json"), file, 0o600); err != nil {
		return nil, err
	}
	if err := emptyRepo(ctx, o.repo); err != nil {
		return nil, err
	}
	if _, err := o.call(ctx, "agents", "create", officeAgent); err != nil {
		return nil, err
	}
	if o.st, err = store.Open(ctx, o.home); err != nil {
		return nil, err
	}
	if o.d, err = o.startDaemon(ctx); err != nil {
		return nil, errors.Join(err, o.st.Close())
	}
	return o, nil
}

func (o *office) close() error { return errors.Join(o.d.stop(), o.st.Close()) }

// works says what is done with a message.
func (o *office) works(ctx context.Context, argv ...string) error {
	_, err := o.call(ctx, append([]string{"agents", "work", officeAgent, "--repo", o.repo, "--backend", ours, "--"}, argv...)...)
	return err
}

// over waits until nothing waits or is worked on.
func (o *office) over(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, workWait, fmt.Errorf("not all messages were worked on within %v", workWait))
	defer cancel()
	for {
		left, err := o.st.CountWork(ctx, store.WorkFilter{Live: true})
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tellTime is a command that says when it is run, by the clock inside, in nanoseconds.
var tellTime = []string{"date", "+%s%N"}

// begins measures from a message until its command is run, and from sandbox run of the same command. Both are new
// processes of the program, and each makes a sandbox and clones the repository in it.
func (o *office) begins(ctx context.Context) error {
	if err := o.works(ctx, tellTime...); err != nil {
		return err
	}
	// The first one pays for cold caches, and does not count.
	for _, by := range []func(context.Context) (began, error){o.bySend, o.byRun} {
		if _, err := by(ctx); err != nil {
			o.fail(msgBegin, fromSend, err)
			return ctx.Err()
		}
	}
	for _, by := range []string{fromSend, fromCommit, bySandbox} {
		o.result(msgBegin, by) // so that they are shown in this order
	}
	return inTurns(ctx, o.Runs, []string{fromSend, bySandbox}, func(by string) error {
		if by == bySandbox {
			got, err := o.byRun(ctx)
			if err == nil {
				o.addTime(msgBegin, by, got.command.Sub(got.start))
			}
			return err
		}
		got, err := o.bySend(ctx)
		if err != nil {
			return err
		}
		o.addTime(msgBegin, fromSend, got.command.Sub(got.start))
		o.addTime(msgBegin, fromCommit, got.command.Sub(got.committed))
		last := got.start
		for _, s := range []struct {
			name string
			at   time.Time
		}{{"1 until its commit", got.committed}, {"2 until its run", got.started}, {"3 sandbox, export", got.created}, {"4 clone inside", got.cloned}, {"5 command", got.command}} {
			o.addTime(msgSteps, s.name, s.at.Sub(last))
			last = s.at
		}
		return nil
	}, func(by string, err error) { o.fail(msgBegin, by, err) })
}

// began is when the parts of a run began.
type began struct {
	start     time.Time // of the process that asks for it
	committed time.Time // of the message; zero: there is none
	started   time.Time // of the run, in a process of its own
	created   time.Time // the sandbox, with the repository read
	cloned    time.Time
	command   time.Time
}

// sent is what is said of a message.
type sent struct {
	ID        string
	SessionID string    `json:"session_id"`
	CreatedAt time.Time `json:"created_at"`
	Work      *struct{ ID string }
}

func (o *office) bySend(ctx context.Context) (began, error) {
	start := time.Now()
	said, err := o.call(ctx, "sessions", "send", "main", "go", "--agent", officeAgent, "--json")
	if err != nil {
		return began{}, err
	}
	var m sent
	if err := json.Unmarshal([]byte(said), &m); err != nil || m.Work == nil {
		return began{}, fmt.Errorf("nobody works on the message: %.300q: %w", said, err)
	}
	if err := o.over(ctx); err != nil {
		return began{}, err
	}
	w, err := o.st.Work(ctx, m.Work.ID)
	if err == nil && w.Status != store.WorkDone {
		err = fmt.Errorf("the message is %s: %s", w.Status, w.Reason)
	}
	if err != nil {
		return began{}, err
	}
	got, err := readBegan(filepath.Join(o.home, "runs", w.RunID))
	got.start, got.committed = start, m.CreatedAt
	return got, err
}

func (o *office) byRun(ctx context.Context) (began, error) {
	start := time.Now()
	said, err := o.call(ctx, append([]string{"sandbox", "run", "--json", "--quiet", "--backend", ours, "--repo", o.repo, "--"}, tellTime...)...)
	if err != nil {
		return began{}, err
	}
	task, err := readRan(said)
	if err != nil {
		return began{}, err
	}
	got, err := readBegan(filepath.Join(o.home, "runs", task.ID))
	got.start = start
	return got, err
}

// readBegan reads when the parts of a run of tellTime began. What the command says must be when it was run by the run's
// own record, too: the clock inside is another.
func readBegan(dir string) (began, error) {
	events, err := os.ReadFile(filepath.Join(dir, run.EventsFile))
	if err != nil {
		return began{}, err
	}
	said, err := os.ReadFile(filepath.Join(dir, run.LogsDir, "stdout.log"))
	if err != nil {
		return began{}, err
	}
	return parseBegan(events, string(said))
}

func parseBegan(events []byte, said string) (got began, err error) {
	ns, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
	if err != nil {
		return got, fmt.Errorf("the command was to say when it was run, and said %.100q", said)
	}
	got.command = time.Unix(0, ns)
	var ended time.Time
	for line := range bytes.Lines(events) {
		var e struct {
			Event, Step string
			Time        time.Time
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return got, fmt.Errorf("the run's events: %w", err)
		}
		switch e.Event + " " + e.Step {
		case "started ":
			got.started = e.Time
		case "step create":
			got.created = e.Time
		case "step clone":
			got.cloned = e.Time
		case "step command":
			ended = e.Time
		}
	}
	if got.started.IsZero() || got.created.IsZero() || got.cloned.IsZero() || ended.IsZero() {
		return got, errors.New("the run's events do not tell of all its steps")
	}
	if got.command.Before(got.cloned.Add(-clockRoom)) || got.command.After(ended.Add(clockRoom)) {
		return got, fmt.Errorf("the command was run at %v by its own clock, and from %v to %v by the run's", got.command, got.cloned, ended)
	}
	return got, nil
}

// start starts a program on the gateway's host.
func (g *gateway) start(cmd *exec.Cmd) error { return g.at.do(cmd.Start) }

// call runs the program there to its end, and gives what it said.
func (g *gateway) call(ctx context.Context, args ...string) (said string, err error) {
	err = g.at.do(func() error {
		said, err = output(g.ravi(ctx, args...))
		return err
	})
	return said, err
}
