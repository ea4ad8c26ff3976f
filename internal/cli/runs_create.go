package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/bus"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/procid"
	runs "ravi/internal/run"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addRunsCreate(t *command.Table) {
	add(t, command.Spec[runsCreateInput, runItem]{
		Group: "runs", Name: "create", Aliases: []string{"start"}, Access: command.Write,
		Bounded: []string{"repo", "backend", "image", "cpus", "memory", "disk", "timeout", "env", "volumes", "allow_net", "secrets"},
		Summary: "Start a run that goes on by itself",
		Long: `Starts a run as ravi sandbox run does, in a process of its own, and returns at
once. It goes on when the terminal is closed and when the daemon ends.

A holder of a key can ask for what its profile lists; see ravi profiles.`,
		Examples: []command.Example{
			{Line: "ravi runs create --repo . -- make test"},
			{What: "and wait for its end", Line: "ravi runs wait $(ravi runs create -q --task-id tsk01jf -- ./my-agent)"},
		},
		Defaults: runsCreateInput{Repo: "."},
		Handler: func(ctx context.Context, env *command.Env, in runsCreateInput) (runItem, error) {
			r, err := createRun(ctx, env, in)
			return runItemOf(env, r), err
		},
		Print: func(env *command.Env, w io.Writer, r runItem) error {
			_, err := fmt.Fprintln(w, safe.Safe(r.ID))
			return err
		},
	})
	add(t, command.Spec[runsWaitInput, runItem]{
		Group: "runs", Name: "wait", Access: command.Read,
		Object: func(ctx context.Context, env *command.Env, in runsWaitInput) (string, error) {
			return runKind.object(ctx, env, "runs", in.Run)
		},
		Summary: "Wait until a run has ended",
		Long: `Waits, and ends with the run's exit code: its command's own, 124 when its time
ran out, 137 when its memory did, and 125 when Ravi could not do its part.`,
		Examples: []command.Example{{Line: "ravi runs wait run01jf"}},
		Handler: func(ctx context.Context, env *command.Env, in runsWaitInput) (runItem, error) {
			r, err := waitRun(ctx, env, in)
			return runItemOf(env, r), err
		},
		Print: func(env *command.Env, w io.Writer, r runItem) error {
			if env.Quiet {
				return nil
			}
			_, err := fmt.Fprintf(w, "%s: %s\n", safe.Safe(r.ID), r.Status)
			return err
		},
		Exit: exitOfRun,
	})
}

// runsCreateInput is runInput, less what needs somebody who waits.
type runsCreateInput struct {
	Repo     string            `json:"repo" flag:"repo" value:"PATH|URL" host:"path" usage:"the repository"`
	Ref      string            `json:"ref" flag:"ref" value:"REF" host:"none" usage:"start from this branch, tag or commit, not from the work tree"`
	Task     string            `json:"task" flag:"task" value:"TEXT" host:"none" usage:"what is to be done; the command finds it in TASK.md"`
	Agent    string            `json:"agent" flag:"agent" value:"AGENT" host:"none" usage:"a program that does the task, such as claude, or an agent of ravi agents that it is for"`
	Resume   string            `json:"resume" flag:"resume" value:"RUN" host:"none" usage:"have the agent program go on with its conversation of that run, which has ended"`
	Model    string            `json:"model" flag:"model" value:"NAME" host:"none" usage:"the model that the agent program asks for"`
	Tokens   int64             `json:"max_tokens" flag:"max-tokens" value:"N" host:"size" usage:"how many tokens it may use, in and out"`
	USD      float64           `json:"max_usd" flag:"max-usd" value:"DOLLARS" host:"size" usage:"what its models may cost"`
	Approval *time.Duration    `json:"approval_timeout" flag:"approval-timeout" value:"DURATION" host:"none" usage:"how long a command of --agent loop waits for ravi approvals grant (default 0: refused)"`
	Record   bool              `json:"record" flag:"record" host:"size" usage:"keep what its models are asked and answer in models.jsonl"`
	Session  string            `json:"session" flag:"session" value:"SESSION" host:"none" usage:"the conversation that it is about"`
	TaskID   string            `json:"task_id" flag:"task-id" value:"TASK" host:"none" usage:"a task of ravi tasks to work on"`
	Context  string            `json:"context" flag:"context" value:"none|snapshot" host:"none" usage:"a read-only copy of instructions, memory and conversation in /ravi/context"`
	Connect  string            `json:"connect" flag:"connect" value:"none|read|write=GROUP,…" host:"none" usage:"let it ask Ravi about its own session, task, memory and run, and write to groups of commands"`
	Backend  string            `json:"backend" flag:"backend" value:"NAME" host:"backend" usage:"how the sandbox is made: auto, gvisor, host"`
	Image    string            `json:"image" flag:"image" value:"NAME" host:"image" usage:"its root file system; host is this machine's own tools"`
	CPUs     *float64          `json:"cpus" flag:"cpus" value:"N" host:"size" usage:"processors"`
	Memory   *int              `json:"memory" flag:"memory" value:"MiB" host:"size" usage:"memory"`
	Disk     *int              `json:"disk" flag:"disk" value:"GiB" host:"size" usage:"what it may write"`
	Timeout  time.Duration     `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"end the command after this time, such as 10m"`
	Env      map[string]string `json:"env" flag:"env" short:"e" value:"NAME=VALUE" host:"secret" usage:"a variable for the command; credentials are refused"`
	Volumes  []string          `json:"volumes" flag:"volume" short:"v" value:"HOST:GUEST[:ro|rw]" host:"volume" usage:"a folder of this machine to see inside, read-only unless :rw"`
	AllowNet []string          `json:"allow_net" flag:"allow-net" value:"none|all|HOST,…" host:"network" usage:"what it may reach: names, NAME:PORT, *.NAME, @LIST; all is the public internet"`
	Secrets  []string          `json:"secrets" flag:"secret" value:"NAME" host:"secret" usage:"a secret that it can use without having it; see ravi secrets"`
	Command  []string          `json:"command" arg:"CMD" host:"command" optional:"true" usage:"what to run, after --"`
}

func (in runsCreateInput) run() runInput {
	return runInput{
		Repo: in.Repo, Ref: in.Ref, Task: in.Task, Agent: in.Agent, Resume: in.Resume, Model: in.Model, Tokens: in.Tokens, USD: in.USD, Record: in.Record, Approval: in.Approval, Session: in.Session, TaskID: in.TaskID, Context: in.Context, Connect: in.Connect,
		Backend: in.Backend, Image: in.Image, CPUs: in.CPUs, Memory: in.Memory, Disk: in.Disk, Timeout: in.Timeout, Env: in.Env, Volumes: in.Volumes,
		AllowNet: in.AllowNet, Secrets: in.Secrets, Command: in.Command,
	}
}

type runsWaitInput struct {
	Run string `json:"run" arg:"RUN" host:"none" usage:"the id, or its beginning"`
}

// order is what the process of a run is told, over a pipe: what it is to do is for nobody else to see.
type order struct {
	RunID string   `json:"run_id"`
	Input runInput `json:"input"`
	// By is the key of who asked for it, and Wire the run over whose wires that was; empty for the operator.
	By   string `json:"by"`
	Wire string `json:"wire"`
	// Bus is how it reaches the bus; nil: it does not.
	Bus *orderBus `json:"bus,omitempty"`
}

// orderBus is how the process of a run reaches the bus.
type orderBus struct {
	URL   string    `json:"url"`
	Trust bus.Trust `json:"trust"`
	// Guest is the credential of what runs in the sandbox, as a file of credentials has it; empty: it has none.
	Guest string `json:"guest,omitempty"`
	// Runner lends the sandbox, and Peer is its public key; empty: this machine. Credential is the run's own for that, and
	// Try tells the tries of the work apart.
	Credential string `json:"credential,omitempty"`
	Runner     string `json:"runner,omitempty"`
	Peer       string `json:"peer,omitempty"`
	Try        int    `json:"try,omitempty"`
}

// ownerArg is the argument of a process that does a run by itself.
const ownerArg = "run-owner"

// orderFD is where such a process finds its order.
const orderFD = 3

func createRun(ctx context.Context, env *command.Env, in runsCreateInput) (store.Run, error) {
	return startRun(ctx, env, in, "", nil)
}

// startRun starts a run with an id that was chosen before, or a new one, and with a bus or none.
func startRun(ctx context.Context, env *command.Env, in runsCreateInput, id string, onBus *orderBus) (run store.Run, err error) {
	if err := ownSubject(ctx, env, &in); err != nil {
		return run, err
	}
	if in.Repo, err = absoluteRepo(in.Repo, env); err != nil {
		return run, err
	}
	// Everything that can be refused is refused before anything is recorded: who is refused may ask again and again.
	if err := roomForOne(ctx, env); err != nil {
		return run, err
	}
	o, err := runOptions(ctx, env, in.run(), sources{models: modelsOf})
	if err != nil {
		return run, err
	}
	self, err := procid.Self()
	if err != nil {
		return run, err
	}
	var shown []string
	for _, arg := range o.Command {
		shown = append(shown, o.Redact.String(arg))
	}
	run, err = o.Store.InsertRun(ctx, store.Run{
		ID: id, AgentID: o.AgentID, SessionID: o.SessionID, TaskID: o.TaskID, CreatedBy: env.Caller.Name(), Owner: self,
		Command: shown, Task: o.Redact.String(o.Task),
	})
	if err != nil {
		return run, err
	}
	giveUp := func(err error) (store.Run, error) {
		_, uerr := o.Store.UpdateRun(context.WithoutCancel(ctx), run.ID, func(r *store.Run) error {
			r.Status, r.Reason = store.RunCanceled, "not started"
			return nil
		})
		return store.Run{}, errors.Join(err, uerr)
	}
	if err := boundCount(ctx, env, o.Store); err != nil {
		return giveUp(err)
	}
	input := in.run()
	input.Repo, input.Timeout, input.Backend = o.Repo, o.Timeout, o.Config.Backend
	input.TaskID = o.TaskID
	if o.TaskID != "" {
		input.Task = ""
	}
	if o.Agent != nil && o.Agent.Resume != nil {
		input.Resume = o.Agent.Resume.RunID
	}
	told := order{RunID: run.ID, Input: input, Bus: onBus}
	if key := env.Caller.Key; key != nil {
		told.By, told.Wire = key.ID, key.RunID
	}
	owner, err := startOwner(o.Home, told)
	if err != nil {
		return giveUp(fmt.Errorf("starting the run's process: %w", err))
	}
	run, err = o.Store.UpdateRun(ctx, run.ID, func(r *store.Run) error {
		if r.Status == store.RunQueued {
			r.Owner = owner
		}
		return nil
	})
	return run, err
}

// ownSubject makes what a holder of a key did not say its own, and refuses what is not.
func ownSubject(ctx context.Context, env *command.Env, in *runsCreateInput) error {
	key := env.Caller.Key
	if key == nil {
		return nil
	}
	if in.TaskID == "" && in.Task == "" && key.TaskID != "" {
		in.TaskID = key.TaskID
	}
	if in.Session == "" && in.TaskID == "" {
		in.Session = key.SessionID
	}
	if in.Agent == "" && in.Session == "" && in.TaskID == "" {
		in.Agent = key.AgentID
	}
	agent := in.Agent
	if _, ok := adapter.Lookup(agent); ok {
		agent = "" // it is no agent of anybody's; whether it may work is for the profile to say
	}
	// A run sees the session, memory and task that it is for, so only who may read them can have one made.
	for _, subject := range []struct {
		group, given string
		find         func(context.Context, *command.Env, string, string) (string, error)
	}{
		{"sessions", in.Session, sesKind.object}, {"tasks", in.TaskID, taskKind.object}, {"memory", agent, agentKind.object},
	} {
		if subject.given == "" {
			continue
		}
		id, err := subject.find(ctx, env, subject.group, subject.given)
		if may := env.Caller.Check(access.Ask{Access: access.Read, Group: subject.group, Command: "show", Object: id}); may != nil {
			return command.Denied(may)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// absoluteRepo makes a path of the operator's absolute: the run's process stands elsewhere.
func absoluteRepo(repo string, env *command.Env) (string, error) {
	if runs.IsAddress(repo) || filepath.IsAbs(repo) {
		return repo, nil
	}
	if !env.Caller.IsOperator() {
		return "", command.Usage(fmt.Sprintf("the repository %.100q is no absolute path and no address", repo), "name one that the profile lists: ravi context whoami shows it")
	}
	return filepath.Abs(repo)
}

// startOwner starts a process that does a run. It belongs to nobody: neither the end of this process nor a signal to its
// terminal reaches it.
func startOwner(home string, o order) (procid.ID, error) {
	var none procid.ID
	program, err := os.Executable()
	if err != nil {
		return none, err
	}
	dir := filepath.Join(home, "runs", o.RunID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return none, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "owner.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return none, err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return none, err
	}
	defer w.Close()
	defer r.Close()
	cmd := exec.Command(program, ownerArg)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{r}
	cmd.Env = append(os.Environ(), "RAVI_HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return none, err
	}
	id, err := procid.Of(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // what came of it stands in the record
	r.Close()
	if err == nil {
		err = json.NewEncoder(w).Encode(o)
	}
	return id, err
}

// runOwner is a process that does one run.
func runOwner(stderr io.Writer) int {
	env := &command.Env{Stdout: io.Discard, Stderr: stderr, Caller: access.AsOperator(), NewSweeper: newSweeper, JSON: true}
	env.Progress = newProgress(env)
	err := ownRun(context.Background(), env)
	if err = errors.Join(err, env.Close()); err != nil {
		return fail(context.Background(), env, err)
	}
	return command.ExitOK
}

func ownRun(ctx context.Context, env *command.Env) error {
	if err := isOperator(); err != nil {
		return err
	}
	pipe := os.NewFile(orderFD, "order")
	if pipe == nil {
		return command.Usage(ownerArg+" is started by ravi runs create", "")
	}
	const most = 8 << 20
	var o order
	if err := json.NewDecoder(io.LimitReader(pipe, most)).Decode(&o); err != nil {
		return fmt.Errorf("the run's order: %w", err)
	}
	pipe.Close()
	st, err := env.Store(ctx)
	if err != nil {
		return err
	}
	if o.By != "" {
		if env.Caller, err = (contextkey.Keys{Store: st}).Recheck(ctx, o.By, contextkey.Wire{RunID: o.Wire}); err != nil {
			return notStarted(ctx, st, o.RunID, err)
		}
	}
	opts, err := runOptions(ctx, env, o.Input, sources{models: modelsOf})
	if err != nil {
		return notStarted(ctx, st, o.RunID, err)
	}
	opts.RunID = o.RunID
	if o.Bus != nil {
		leave, err := joinBus(ctx, env, o, &opts)
		if err != nil {
			return notStarted(ctx, st, o.RunID, err)
		}
		defer leave()
	}
	_, err = runs.Run(ctx, opts)
	return err
}

// notStarted records why a run did not begin.
func notStarted(ctx context.Context, st *store.Store, id string, why error) error {
	_, err := st.UpdateRun(ctx, id, func(r *store.Run) error {
		r.Status, r.Reason, r.Owner = store.RunError, command.AsError(why).Message, procid.ID{}
		return nil
	})
	return errors.Join(why, err)
}

// waitRun waits until a run has ended and what came of it is written down: one that was canceled still brings its work out.
func waitRun(ctx context.Context, env *command.Env, in runsWaitInput) (store.Run, error) {
	run, err := runKind.get(ctx, env, in.Run)
	if err != nil || isSettled(run) {
		return run, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return run, err
	}
	w, err := st.Watch(ctx)
	if err != nil {
		return run, err
	}
	defer w.Close()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for looked := time.Now(); ; {
		changed, err := w.Changed(ctx)
		if err != nil {
			return run, err
		}
		if changed {
			if run, err = st.Run(ctx, run.ID); err != nil || isSettled(run) {
				return run, err
			}
		}
		if !procid.Alive(run.Owner) && time.Since(looked) > time.Second {
			// Nobody would ever say that it has ended.
			sweeper, err := env.Sweeper(ctx)
			if err != nil {
				return run, err
			}
			if _, err := sweeper.Prune(ctx); err != nil {
				return run, err
			}
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return run, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func isSettled(r store.Run) bool { return r.Status.Final() && !procid.Alive(r.Owner) }

// exitOfRun is the exit code of a run as ravi sandbox run has it.
func exitOfRun(r runItem) int {
	switch r.Status {
	case store.RunTimeout:
		return command.ExitTimeout
	case store.RunOOM:
		return command.ExitOOM
	case store.RunCanceled:
		return command.ExitCanceled
	case store.RunError:
		return command.ExitRavi
	}
	if r.ExitCode != nil {
		return *r.ExitCode
	}
	return command.ExitOK
}
