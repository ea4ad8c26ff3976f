// Package run is the life of a run: from a repository to a proven patch.
//
// A run takes a repository as it lies, makes a sandbox, clones inside, runs the
// command there, brings the changes out as a patch, and proves that patch on a
// clean checkout. Whatever happens on the way, what was gathered stays in the
// run's folder and task.json says what became of it.
//
// The package uses gitbox for everything that touches a repository, sandbox
// for everything that touches a sandbox, and the store for the record. It must
// not know of the command line or of HTTP.
package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"ravi/internal/audit"
	"ravi/internal/backend/remote"
	"ravi/internal/gitbox"
	"ravi/internal/network/policy"
	"ravi/internal/procid"
	"ravi/internal/redact"
	"ravi/internal/secret"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Options say what a run is to do.
type Options struct {
	Home  string
	Store *store.Store
	// RunID is a run that is recorded already, as queued, and becomes this process's; empty: it is recorded now.
	RunID string
	// AuditHead is the file of the audit's head; empty: where it is unless told otherwise.
	AuditHead string
	// Repo is a path or an address; Ref names what to start from, or is empty
	// for the work tree as it lies.
	Repo, Ref string
	// RealPaths takes volumes only where they were checked: their paths have no symbolic link in them. RepoAllowed, which
	// may be nil, is asked about the repository that was found, which may begin above Repo.
	RealPaths   bool
	RepoAllowed func(top string) error
	// Room is asked about each sandbox once it is recorded and before it is made; an error of it ends that. May be nil.
	Room func(context.Context) error
	// Task is the text of TASK.md; empty: none is laid.
	Task string
	// Whom the run is for, by full ids; all may be empty. CreatedBy is who asked for it, as in the audit.
	AgentID, SessionID, TaskID, CreatedBy string
	// Snapshot lays a read-only copy of the context into the sandbox; Connect lets the run call Ravi.
	Snapshot bool
	Connect  *Connect
	Command  []string
	Config   sandbox.Config
	// Timeout bounds the command; 0 means none.
	Timeout time.Duration
	Env     map[string]string
	// Keep leaves the sandbox there.
	Keep bool
	// Out is a folder that gets a copy of the run's.
	Out string
	// Apply lays the patch onto the repository's work tree; Decide is asked
	// about paths that something will execute, and refuses with an error.
	Apply  bool
	Decide func([]gitbox.RiskyPath) error
	// Stdout and Stderr get the command's output as it comes.
	Stdout, Stderr io.Writer
	// Step begins a step; the function that it returns ends it.
	Step func(name string) func(error)
	// Note tells something beside the steps.
	Note func(string)
	// Network hears of every decision of the sandbox's network; may be nil.
	Network func(sandbox.NetEvent)
	// NetworkFloor is what the operator decided about every sandbox's network.
	NetworkFloor policy.Floor
	// NetworkProxy is what its connections leave through; nil: nothing. ExtraCAs are
	// certificate authorities, as PEM, by the host that they hold for.
	NetworkProxy *sandbox.NetworkProxy
	ExtraCAs     map[string]string
	// Redact knows the secret values that nothing of a run may show: not its
	// files, the store, what the command writes, nor errors; may be nil. A patch
	// that holds one is held back.
	Redact *redact.Redactor
	// Secrets are names of those of the Vault that the sandbox can use. Their
	// values do not go into it.
	Secrets []string
	Vault   *secret.Store
	// Elsewhere opens a session with a runner, which makes one of the run's sandboxes; nil: they are this machine's.
	Elsewhere func(context.Context) (remote.Session, error)
	// Bus lets what runs in the sandbox speak on the bus; nil: it does not.
	Bus *Bus
	// Models are what the run may call by the broker; nil: nothing. Agent is the agent program that does the task; nil:
	// Command is run as it is.
	Models *Models
	Agent  *Agent
	// SaveEvery is how often the work is saved while the command runs.
	SaveEvery time.Duration
}

// Exit statuses of a run, besides the command's own.
const (
	exitTimeout  = 124
	exitRavi     = 125
	exitOOM      = 137
	exitCanceled = 130
)

// wrapUp bounds the end of a run: making, proving and applying the patch. A patch
// of hundreds of megabytes takes minutes.
const wrapUp = 10 * time.Minute

// workPrefix begins the name of a run's folder for what it needs on the way.
const workPrefix = "work-"

// keepFor is how long a kept sandbox lives without an owner.
const keepFor = 24 * time.Hour

// state is a run on its way.
type state struct {
	Options
	task *Task
	self procid.ID // this process
	dir  *folder
	base *gitbox.Base
	sb   *sandbox.Sandbox
	net  netLog

	audit     *netAudit
	leases    leased
	connected connected
	models    modeled
	homeTaken bool // a volume lies where the agent program's home would be

	saving  sync.Mutex // one capture at a time
	noting  sync.Mutex // an agent's calls that are done at once may each have something to tell
	opening sync.Mutex // one sandbox is recorded, and found to have room, at a time
	last    string     // the tree of the last capture
	capture *gitbox.Capture
	secrets []string // that its patch holds
	answer  string   // what the agent said last
}

// Run does one run. The Task is there even with an error, once the run was
// recorded; the error is then what Ravi could not do.
func Run(ctx context.Context, o Options) (*Task, error) {
	task, err := run(ctx, o)
	return scrub(o.Redact, task), scrubError(o.Redact, err)
}

func run(ctx context.Context, o Options) (*Task, error) {
	if o.Redact == nil {
		o.Redact = &redact.Redactor{}
	}
	if o.SaveEvery <= 0 {
		o.SaveEvery = 30 * time.Second
	}
	shown := o.Repo
	if IsAddress(shown) {
		shown = gitbox.RedactURL(shown) // a credential in it stays out of every record
	}
	self, err := procid.Self()
	if err != nil {
		return nil, err
	}
	id := cmp.Or(o.RunID, store.NewRunID())
	dir, err := newFolder(o.Home, id, o.Redact)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	// What is in the sandbox can be stolen, so the task does not bring a secret
	// there either.
	task := o.Task
	if o.Agent != nil && len(o.Command) == 0 {
		o.Command = []string{o.Agent.Program.Name}
	}
	o.Task = o.Redact.String(task)
	s := &state{Options: o, self: self, dir: dir, audit: newNetAudit(audit.Log{Store: o.Store, Head: o.AuditHead}, id), task: &Task{
		ID: id, Status: store.RunRunning, Command: o.Command, Repo: shown,
		Timings: map[string]int64{}, Backend: o.Config.Backend, Image: o.Config.Image,
		Limits: limits(o.Config), Dir: dir.dir, StartedAt: store.Now(),
	}}
	if o.Agent != nil {
		s.task.Agent, s.task.Conversation = o.Agent.Program.Name, o.Agent.conversation()
	}
	if err := dir.write(TaskTextFile, []byte(o.Task)); err != nil {
		return nil, fmt.Errorf("writing the run's folder: %w", err)
	}
	if err := s.record(ctx, shown); err != nil {
		return nil, fmt.Errorf("recording the run: %w", err)
	}
	// From now on there is a task.json; if this process is killed, the sweep
	// closes it.
	if err := dir.writeTask(s.task); err != nil {
		err = fmt.Errorf("writing the run's folder: %w", err)
		s.outcome(ctx, err)
		return s.task, errors.Join(err, s.finish(context.WithoutCancel(ctx)))
	}
	dir.event("started", map[string]any{"id": id, "command": o.Command, "repo": shown})
	if instead, found := o.Redact.Found(task); found {
		s.note("the task held the value of a secret; it says %s instead", instead)
	}
	// Not ended with ctx: what was decided has to be written in any case.
	s.audit.start(context.WithoutCancel(ctx), func(err error) { dir.event("audit_failed", map[string]any{"error": err.Error()}) })
	if err = s.beginTask(ctx); err != nil {
		err = &failure{"task", err}
	} else {
		err = s.all(ctx)
	}
	err = errors.Join(err, s.audit.close(context.WithoutCancel(ctx)))
	s.outcome(ctx, err)
	if s.task.Status != store.RunError {
		err = nil
	}
	return s.task, errors.Join(err, s.finish(context.WithoutCancel(ctx)))
}

// record writes the run down as this process's.
func (s *state) record(ctx context.Context, repo string) error {
	r := scrub(s.Redact, store.Run{
		ID: s.task.ID, AgentID: s.AgentID, SessionID: s.SessionID, TaskID: s.TaskID, CreatedBy: s.CreatedBy, Owner: s.self,
		Status: store.RunRunning, Command: s.Command, Repo: repo, Task: s.Task, Dir: s.dir.dir,
		CreatedAt: s.task.StartedAt, StartedAt: &s.task.StartedAt,
	})
	if s.RunID == "" {
		_, err := s.Store.InsertRun(ctx, r)
		return err
	}
	_, err := s.Store.UpdateRun(ctx, s.RunID, func(have *store.Run) error {
		r.CreatedAt, r.CreatedBy = have.CreatedAt, have.CreatedBy
		*have = r
		return nil
	})
	return err
}

func limits(c sandbox.Config) store.Limits {
	disk := 4
	if c.DiskSizeGB != nil {
		disk = *c.DiskSizeGB
	}
	return store.Limits{CPUs: c.CPUs, MemoryMiB: int64(c.MemoryMiB), DiskMiB: int64(disk) << 10, Pids: sandbox.MaxProcesses}
}

// step does one part of the run, timed and told.
func (s *state) step(name, title string, f func() error) error {
	end := func(error) {}
	if s.Step != nil {
		end = s.Step(s.Redact.String(title))
	}
	start := time.Now()
	err := f()
	s.task.Timings[name] = time.Since(start).Milliseconds()
	end(scrubError(s.Redact, err))
	fields := map[string]any{"step": name, "ms": s.task.Timings[name]}
	if err != nil {
		fields["error"] = err.Error()
	}
	s.dir.event("step", fields)
	if err != nil {
		return &failure{name, err}
	}
	return nil
}

// all does the steps. It sets the task's status for how the command ended, and
// returns an error for what Ravi could not do.
func (s *state) all(ctx context.Context) (err error) {
	work, err := os.MkdirTemp(s.dir.dir, workPrefix)
	if err != nil {
		return &failure{"prepare", err}
	}
	defer os.RemoveAll(work)

	secrets, err := s.lease(ctx)
	defer s.giveBack()
	if err != nil {
		return &failure{"secrets", err}
	}
	// What is deferred first is done last: the key and the lease end after the sandbox, when nobody inside has a wire left
	// to use them on.
	defer func() { err = errors.Join(err, s.leaveContext(context.WithoutCancel(ctx))) }()
	if err := s.takeContext(ctx); err != nil {
		return &failure{"context", err}
	}
	defer func() { err = errors.Join(err, s.leaveModels(context.WithoutCancel(ctx))) }()
	if err := s.takeModels(ctx); err != nil {
		return &failure{"models", err}
	}
	free, err := s.holdProgram()
	if err != nil {
		return &failure{"agent", err}
	}
	defer free()
	// The sandbox starts while the repository is read.
	opened := make(chan error, 1)
	var took time.Duration
	go func() {
		start := time.Now()
		var err error
		s.sb, err = s.open(ctx, secrets)
		took = time.Since(start)
		opened <- err
	}()
	exportErr := s.step("export", "Read the repository", func() error { return s.export(ctx, filepath.Join(work, "base")) })
	openErr := s.step("create", "Start the sandbox", func() error { return <-opened })
	s.task.Timings["create"] = took.Milliseconds() // not what of it was waited for
	if s.sb != nil {
		defer func() { err = errors.Join(err, s.close()) }()
		defer s.heedCancel(ctx)()
		s.renew(context.WithoutCancel(ctx))
		defer s.stopRenewing()
	}
	if err := errors.Join(exportErr, openErr); err != nil {
		return err
	}
	if err := s.reachModels(ctx); err != nil {
		return &failure{"models", err}
	}
	for _, n := range s.sb.Notes {
		s.note("%s", n)
	}
	if err := s.step("clone", "Clone inside", func() error { return s.enterInTime(ctx) }); err != nil {
		return s.ended(ctx, err)
	}
	if err := s.checkNode(ctx); err != nil {
		return s.ended(ctx, err)
	}
	leaveBus, err := s.giveBus(ctx)
	if err != nil {
		return s.ended(ctx, &failure{"bus", err})
	}
	defer leaveBus()
	stopSaving := s.saveNowAndThen(ctx)
	err = s.step("command", "Run "+s.Command[0], func() error { return s.command(ctx) })
	stopSaving()
	if err != nil {
		err = s.ended(ctx, err)
	}

	// From here on the user's Ctrl-C ends nothing: what was done is brought
	// out, in a bounded time. A second one ends the program.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), wrapUp, fmt.Errorf("it took more than %v", wrapUp))
	defer cancel()
	err = errors.Join(err, s.bringOut(ctx))
	s.keepConversation(ctx, work)
	if err == nil && s.Apply && s.task.Patch != nil && s.task.Patch.Files > 0 {
		err = s.step("apply", "Apply to the work tree", func() error { return s.apply(ctx) })
	}
	return err
}

func (s *state) open(ctx context.Context, secrets []sandbox.Secret) (*sandbox.Sandbox, error) {
	opts, err := s.sandboxOptions()
	if err != nil {
		return nil, err
	}
	if s.Keep {
		opts = append(opts, sandbox.WithGrace(keepFor))
	}
	opts = append(opts, append(s.modelOptions(), s.agentOptions()...)...)
	if len(secrets) > 0 {
		opts = append(opts, sandbox.WithSecrets(secrets...))
	}
	// The repository is cloned inside, so there is no workspace of the host.
	sb, err := sandbox.Open(ctx, s.Config, "", opts...)
	if err == nil {
		s.task.Sandbox, s.task.Backend = sb.ID, sb.Backend()
		network := NetworkNone
		switch {
		case sb.Backend() == sandbox.BackendHost:
			network = NetworkOpen
		case sb.HasNetwork():
			network = NetworkWatched
		}
		s.dir.event("sandbox", map[string]any{"id": sb.ID, "backend": sb.Backend(), "network": network})
	}
	return sb, err
}

// sandboxOptions are what every sandbox of the run is made with.
func (s *state) sandboxOptions() ([]sandbox.Option, error) {
	opts := []sandbox.Option{sandbox.WithHome(s.Home), sandbox.WithRecorder(recorder{Recorder{Store: s.Store, RunID: s.task.ID, Redact: s.Redact, AuditHead: s.AuditHead}, s.audit, &s.opening, s.Room}), sandbox.WithNetEvents(s.hear)}
	if f := s.NetworkFloor; f.Max != nil || len(f.AlwaysDeny)+len(f.AlwaysAllow) > 0 {
		raw, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sandbox.WithNetworkFloor(raw))
	}
	if s.NetworkProxy != nil {
		opts = append(opts, sandbox.WithNetworkProxy(*s.NetworkProxy))
	}
	opts = append(opts, sandbox.WithExtraCAs(s.ExtraCAs))
	opts = append(append(opts, s.contextOptions()...), s.busOptions()...)
	if s.RealPaths {
		opts = append(opts, sandbox.WithRealPaths())
	}
	if s.Elsewhere != nil {
		opts = append(opts, sandbox.WithBackend(remote.Dial(s.Elsewhere)))
	}
	return append(opts, s.restrict()...), nil
}

func (s *state) export(ctx context.Context, dir string) error {
	path := s.Repo
	if IsAddress(path) {
		path = filepath.Join(filepath.Dir(dir), "source.git")
		if err := gitbox.CloneURL(ctx, s.Repo, path); err != nil {
			return err
		}
	}
	repo, err := gitbox.Open(ctx, path)
	if err != nil {
		return err
	}
	if s.RepoAllowed != nil && path == s.Repo {
		if err := s.RepoAllowed(repo.Top); err != nil {
			return err
		}
	}
	s.base, err = repo.Export(ctx, s.Ref, dir, gitbox.Limits{Beside: s.Home})
	if err != nil {
		return err
	}
	s.task.Base = s.base
	if path == s.Repo {
		s.task.Repo = repo.Top
	}
	if d := s.base.Dirty; d.Any() {
		s.note("the work tree's changes are taken along: %d modified, %d new, %d deleted (use --ref to leave them)", d.Modified, d.Added, d.Deleted)
	}
	if n := s.base.LFS; n.Count > 0 {
		s.note("%d files are under Git LFS: the sandbox sees their pointers, and changes of their content are not in the patch (%s)", n.Count, first(n))
	}
	if n := s.base.Filtered; n.Count > 0 {
		s.note("%d changed files were not taken along, since a filter converts them (%s)", n.Count, first(n))
	}
	if n := s.base.Submodules; n.Count > 0 {
		s.note("%d submodules are not taken along (%s)", n.Count, first(n))
	}
	if n := s.base.Left; n.Count > 0 {
		s.note("%d things in the work tree are no plain files and were left (%s)", n.Count, first(n))
	}
	_, err = s.Store.UpdateRun(ctx, s.task.ID, func(r *store.Run) error {
		r.Repo, r.Base = s.Redact.String(s.task.Repo), s.base.Commit
		return nil
	})
	return err
}

// IsAddress says whether a repository is to be fetched from elsewhere. A path
// that exists is never an address.
func IsAddress(repo string) bool {
	_, err := os.Lstat(repo)
	return err != nil && gitbox.IsURL(repo)
}

func first(n gitbox.Names) string {
	const most = 3
	if len(n.First) <= most {
		return strings.Join(n.First, ", ")
	}
	return strings.Join(n.First[:most], ", ") + ", …"
}

// command runs the user's command and notes how it ended.
func (s *state) command(ctx context.Context) error {
	if s.Agent != nil && s.Agent.Loop != nil {
		return s.loop(ctx)
	}
	c := sandbox.Cmd{Args: s.Command, Env: s.contextEnv()}
	maps.Copy(c.Env, s.modelEnv())
	maps.Copy(c.Env, s.busEnv())
	show := s.Stdout
	if s.Agent != nil {
		l, err := s.launch(ctx)
		if err != nil {
			return err
		}
		c.Args = l.Args
		maps.Copy(c.Env, l.Env)
	}
	if s.talking() {
		events, last := s.agentEvents()
		show = events
		defer func() {
			events.Close()
			end := last()
			s.judge(end)
			s.converse(end)
		}()
	}
	out, err := newLog(s.dir.path(filepath.Join(LogsDir, "stdout.log")), show, s.Redact)
	if err != nil {
		return err
	}
	defer out.close()
	errs, err := newLog(s.dir.path(filepath.Join(LogsDir, "stderr.log")), s.Stderr, s.Redact)
	if err != nil {
		return err
	}
	defer errs.close()
	c.Stdout, c.Stderr = out, errs
	if s.Timeout > 0 {
		c.Timeout = &s.Timeout
	}
	s.models.began.Store(int64(time.Since(s.models.since)))
	p, err := s.sb.Start(ctx, c)
	switch {
	case errors.Is(err, sandbox.ErrCommandNotFound), errors.Is(err, sandbox.ErrNotExecutable):
		// What a shell would say: the command is wrong, Ravi is not.
		code := 127
		if errors.Is(err, sandbox.ErrNotExecutable) {
			code = 126
		}
		fmt.Fprintln(errs, "ravi:", err)
		s.exit(store.RunFailed, code, "")
		return nil
	case err != nil:
		return err
	}
	st, err := p.Wait()
	out.close()
	errs.close()
	s.task.Output = Output{Bytes: out.total + errs.total, Truncated: out.left+errs.left > 0 || st.OutputLeft}
	if err != nil {
		return err
	}
	s.task.Signal = st.Signal
	switch st.Reason {
	case sandbox.ReasonTimeout:
		s.task.Status, s.task.Reason, s.task.Exit = store.RunTimeout, st.Reason, exitTimeout
	case sandbox.ReasonCanceled:
		s.task.Status, s.task.Reason, s.task.Exit = store.RunCanceled, st.Reason, exitCanceled
	case sandbox.ReasonOOM:
		s.exit(store.RunOOM, exitOOM, st.Reason)
		s.task.Error = fmt.Sprintf("the command was ended for want of memory (limit %d MiB)", s.Config.MemoryMiB)
		s.task.Hint = "give it more with --memory"
	default:
		status := store.RunSucceeded
		if st.ExitCode != 0 {
			status = store.RunFailed
		}
		s.exit(status, st.ExitCode, st.Reason)
	}
	return nil
}

func (s *state) exit(status store.RunStatus, code int, reason string) {
	s.task.Status, s.task.ExitCode, s.task.Reason, s.task.Exit = status, &code, reason, code
}

// ended turns an error into what it means for the run: its cancellation, the
// sandbox's own end, or a failure of Ravi's.
func (s *state) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		s.task.Status, s.task.Reason, s.task.Exit = store.RunCanceled, sandbox.ReasonCanceled, exitCanceled
		return nil
	}
	var end *sandbox.EndError
	if errors.As(err, &end) && end.Reason == "oom" {
		s.task.Status, s.task.Reason, s.task.Exit = store.RunOOM, end.Reason, exitOOM
		s.task.Error, s.task.Hint = end.Error(), "give it more with --memory"
		return nil
	}
	return err
}

func (s *state) close() error {
	if s.Keep {
		s.note("the sandbox %s is kept for %v; end it with `ravi sandbox kill %s`", s.sb.ID, keepFor, s.sb.ID)
		s.withdraw()
		s.sb.Detach()
		return nil
	}
	return s.step("close", "Remove the sandbox", s.sb.Close)
}
