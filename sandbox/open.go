package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	"ravi/internal/backend"
	"ravi/internal/backend/gvisor"
	"ravi/internal/backend/host"
	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/keeper"
	"ravi/internal/network/policy"
	"ravi/internal/programs"
	"ravi/internal/rootfs"
)

// guestWorkspace is where the workspace is seen.
const guestWorkspace = "/workspace"

// Sandbox is a running sandbox. Its methods may be called by several
// goroutines.
type Sandbox struct {
	// ID names it: "sbx" and 26 characters, lower-case letters and digits.
	ID string
	// Notes are things that the user should be told once.
	Notes []string

	cfg       Config
	backend   string
	workspace string // real path on the host; empty: none
	root      string // the workspace as the sandbox sees it
	volumes   []Volume
	realPaths bool
	// workspaceOnly: nothing else of the files is seen or written
	workspaceOnly bool
	user          string
	env           map[string]string // for the caller's own commands; host backend only
	context       string            // where the folder of WithContext is seen
	floor         policy.Floor      // what the operator decided about the network
	beyond        beyond
	seed          string // of the addresses that names have
	away          *away  // nil: it is on this machine
	network       bool   // it was made with one
	own           bool   // this process is its owner
	inst          backend.Instance
	client        *guestapi.Client
	record        Recorder

	lanes        spareLanes
	line         *line // the owner's to the network's gateway; nil without one
	secrets      secrets
	serviceNames []string
	servicesDir  string  // where they listen; host backend only
	visits       *visits // nil without services
	debug        *debugBox

	closeOnce sync.Once
	closeErr  error
}

// Info describes a sandbox that is about to be made, for a Recorder.
type Info struct {
	ID, Backend, Image, Dir, Workspace string
	Config                             Config
}

// Recorder writes down that sandboxes are there, before they are made. Its
// methods must be quick.
type Recorder interface {
	// Creating is called before anything is made; an error stops it.
	Creating(ctx context.Context, i Info) error
	// Created is called when it runs; pid is its process on the host. It is
	// called again when another process has taken the sandbox over.
	Created(ctx context.Context, id string, pid int) error
	// Ended is called when nothing of it is left, with the reason.
	Ended(ctx context.Context, id, reason string) error
}

type options struct {
	home       string
	grace      time.Duration
	takeOver   *time.Duration
	context    string
	readOnly   []Volume
	recorder   Recorder
	mounts     []backend.Mount
	checkpoint string
	netEvents  func(NetEvent)
	netFloor   json.RawMessage
	proxy      *NetworkProxy
	extraCAs   map[string]string
	secrets    []Secret
	services   map[string]Service
	realPaths  bool
	backend    backend.Backend

	workspaceOnly bool
}

// Option changes how Open works.
type Option func(*options)

// WithHome sets Ravi's home; without it, that is RAVI_HOME or ~/.ravi.
func WithHome(dir string) Option { return func(o *options) { o.home = dir } }

// WithGrace lets the sandbox, once it is open, outlive its owner for a time in
// which another process may take it over (WithTakeOver). Without it, the sandbox
// ends with this process.
func WithGrace(d time.Duration) Option { return func(o *options) { o.grace = d } }

// WithRealPaths refuses a workspace or a volume whose path has a symbolic link in it: who asked was allowed the path as
// it stands, with every link followed, and no place that it leads to since.
func WithRealPaths() Option { return func(o *options) { o.realPaths = true } }

// WithRecorder has the sandbox recorded.
func WithRecorder(r Recorder) Option { return func(o *options) { o.recorder = r } }

// WithInput shows a folder of the host, read-only, as /.ravi/in.
func WithInput(dir string) Option {
	return func(o *options) {
		o.mounts = append(o.mounts, backend.Mount{Host: dir, Guest: "/.ravi/in", Overlay: true, Own: true, Copy: true})
	}
}

// WithCheckpoint restores the sandbox from a directory that Checkpoint wrote.
func WithCheckpoint(dir string) Option { return func(o *options) { o.checkpoint = dir } }

// NewID makes an id for a sandbox.
func NewID() string { return "sbx" + strings.ToLower(ulid.Make().String()) }

// Open starts a sandbox. workspace is the folder of the host that it works on,
// or empty for none. The caller must Close it; if this process ends without
// that, even by SIGKILL, the sandbox ends with it. Every error is an *InitError.
func Open(ctx context.Context, cfg Config, workspace string, opts ...Option) (opened *Sandbox, err error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	fail := func(stage string, err error, hint string) (*Sandbox, error) {
		var ie *InitError
		if errors.As(err, &ie) {
			return nil, ie
		}
		var f *keeper.Failure
		if hint == "" && errors.As(err, &f) {
			hint = f.Hint
		}
		return nil, &InitError{Stage: stage, Err: err, Hint: hint}
	}
	if err := cfg.Validate(); err != nil {
		return fail("config", err, "see docs/configuration.md for every key")
	}
	be, name, err := o.pick(cfg)
	if err != nil {
		return fail("backend", err, "")
	}
	_, elsewhere := be.(backend.Elsewhere)
	if elsewhere {
		if err := o.checkElsewhere(cfg, workspace); err != nil {
			return fail("config", err, "leave it out, or have the sandbox made on this machine")
		}
	}
	if err := checkNet(cfg, name); err != nil {
		return fail("config", err, "see docs/network.md for what a rule looks like, or set allow_net to false")
	}
	if o.workspaceOnly && (len(cfg.ExtraVolumes) > 0 || o.checkpoint != "") {
		return fail("config", errors.New("a sandbox that sees its workspace only has no volumes, and is made of no checkpoint"), "leave these out, or WithWorkspaceOnly")
	}
	if err := o.findHome(); err != nil {
		return fail("config", err, "set RAVI_HOME to a directory of yours")
	}
	floor, err := readFloor(o.netFloor, name)
	if err != nil {
		return fail("config", err, "see docs/network.md for what the block network of config.json may say")
	}
	out, err := readBeyond(o, name)
	if err != nil {
		return fail("config", err, "see docs/network.md for proxies and certificate authorities of your own")
	}
	sb := &Sandbox{ID: NewID(), cfg: cfg, backend: name, record: o.recorder, root: guestWorkspace, user: "user", floor: floor, beyond: out, own: true, workspaceOnly: o.workspaceOnly}
	dir := filepath.Join(o.home, "sandboxes", sb.ID)
	if elsewhere {
		dir = "" // it has none here
	}
	if name == BackendHost {
		sb.onHost(dir)
	}
	before, err := readLife(o.checkpoint)
	if err != nil {
		return fail("config", err, "make the checkpoint anew")
	}
	sb.seed = cmp.Or(before.Seed, sb.ID)
	if err := sb.takeSecrets(o.secrets, before.Placeholders); err != nil {
		return fail("config", err, "see docs/secrets.md for what a secret can be")
	}
	if err := sb.takeServices(o.services); err != nil {
		return fail("config", err, "")
	}
	if elsewhere {
		sb.away = sb.sendAway()
	}
	sb.realPaths = o.realPaths
	mounts, err := sb.mounts(o.home, workspace)
	if err != nil {
		return fail("workspace", err, "")
	}
	shown, err := sb.takeContext(o.context, o.readOnly)
	if err != nil {
		return fail("workspace", err, "check the path")
	}
	if err := sb.joinDebug(o.home); err != nil {
		return fail("config", err, "")
	}
	defer func() {
		if opened == nil {
			_ = sb.debug.leave() // the failure that is being reported is the one to know
		}
	}()
	if sb.record != nil {
		if err := sb.record.Creating(ctx, Info{ID: sb.ID, Backend: name, Image: cfg.Image, Dir: dir, Workspace: sb.workspace, Config: cfg}); err != nil {
			return fail("create", fmt.Errorf("recording the sandbox: %w", err), "")
		}
	}
	ended := func(reason string) {
		if sb.record != nil {
			// The failure that is being reported is the one to know.
			_ = sb.record.Ended(context.WithoutCancel(ctx), sb.ID, reason)
		}
	}
	if name == BackendGVisor && os.Geteuid() != 0 && len(mounts) > 0 && sb.cfg.Workspace != WorkspaceOverlay {
		// On shared folders only the sandbox's root is somebody outside: us.
		sb.user = "root"
	}
	if !elsewhere {
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			ended(keeper.ReasonFailed)
			return fail("create", err, "check that "+o.home+" is writable and has room")
		}
	}
	create, cancel := context.WithTimeoutCause(ctx, time.Duration(cfg.CreateTimeout)*time.Second,
		fmt.Errorf("it was not made within %d s (create_timeout)", cfg.CreateTimeout))
	defer cancel()
	disk := int64(4)
	if cfg.DiskSizeGB != nil {
		disk = int64(*cfg.DiskSizeGB)
	}
	net, err := sb.networkConfig(cfg.AllowNet)
	if err != nil {
		ended(keeper.ReasonFailed)
		return fail("config", fmt.Errorf("allow_net: %w", err), "see docs/network.md for what a rule looks like")
	}
	sb.network = net != nil
	keep, err := sb.keep(dir)
	if err != nil {
		ended(keeper.ReasonFailed)
		return fail("create", err, "")
	}
	sb.inst, err = be.Create(create, backend.Spec{
		ID: sb.ID, Dir: dir, Home: o.home, Image: cfg.Image,
		CPUs: cfg.CPUs, Memory: int64(cfg.MemoryMiB) << 20, Disk: disk << 30, Processes: MaxProcesses,
		Mounts: append(append(mounts, o.mounts...), shown...), Network: net, RootsFile: os.Getenv("SSL_CERT_FILE"), ProxyAuthFile: sb.proxyAuth(),
		Owner: keep, Checkpoint: o.checkpoint, Sealed: sb.sealed(), WorkspaceOnly: sb.workspaceOnly,
	})
	if err != nil {
		if dir != "" {
			_ = os.RemoveAll(dir) // nothing was made yet
		}
		ended(keeper.ReasonFailed)
		return fail("create", err, hintFor(err))
	}
	sb.client = guestapi.NewClient(guestapi.NewHTTPClient(sb.inst.Dial), "http://guest")
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	answer := sb.ask(asking)
	if sb.Notes, err = sb.inst.Ready(create); err == nil {
		err = sb.verify(ctx, answer)
	}
	if err == nil && net != nil {
		err = sb.setUpNetwork(create, o.netEvents, before.Names)
	}
	if err == nil && (len(o.services) > 0 || sb.away.delegates()) {
		sb.visits, err = sb.serve(create, o.services)
	}
	if err == nil && sb.record != nil {
		err = sb.record.Created(ctx, sb.ID, sb.inst.PID())
	}
	if err == nil && o.grace > 0 {
		// Not before: one that is half set up is of no use to another owner.
		err = sb.inst.SetGrace(create, o.grace)
	}
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		_ = sb.inst.Close(closing)
		sb.line.hangUp()
		sb.visits.end()
		_ = sb.away.close()
		ended(keeper.ReasonFailed)
		return fail("create", err, "")
	}
	sb.debug.show()
	return sb, nil
}

// MaxProcesses bounds the threads on the host that one sandbox may use.
const MaxProcesses = 8192

// pick finds the backend, and never another than the one that was asked for.
func pick(cfg Config) (backend.Backend, string, error) {
	switch cfg.Backend {
	case BackendAuto, BackendGVisor:
		return gvisor.Backend{}, BackendGVisor, nil
	case BackendHost, BackendNone:
		return host.Backend{}, BackendHost, nil
	case BackendMicroVM, BackendBoxlite, BackendDocker, BackendE2B:
		return nil, "", &InitError{Stage: "backend",
			Err:  fmt.Errorf("%w: %s is known, but this version of Ravi cannot make it", backend.ErrUnavailable, cfg.Backend),
			Hint: `use the backend "gvisor", which needs no KVM and no daemon`}
	}
	return nil, "", fmt.Errorf("%w: %s", backend.ErrUnavailable, cfg.Backend)
}

func hintFor(err error) string {
	switch {
	case errors.Is(err, programs.ErrMissing):
		return "build ravi with `make build`, and put it in PATH or set " + programs.EnvProgram
	case errors.Is(err, rootfs.ErrUnknownImage):
		return `use the image "host", which is the host's own tools`
	case errors.Is(err, backend.ErrUnsupported):
		return `use the backend "gvisor"`
	}
	return ""
}

// findHome sets Ravi's home, unless it is given, and makes it absolute.
func (o *options) findHome() (err error) {
	if o.home == "" {
		if o.home, err = defaultHome(); err != nil {
			return err
		}
	}
	o.home, err = filepath.Abs(o.home)
	return err
}

func defaultHome() (string, error) {
	if h := os.Getenv("RAVI_HOME"); h != "" {
		return h, nil
	}
	h, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding Ravi's home: %w", err)
	}
	return filepath.Join(h, ".ravi"), nil
}

// ask calls the guest agent for the first time, and gives out what comes of it.
// It is asked before it is there: meanwhile this process and the relay do what
// the first call of a kind costs, and the answer is the agent's first act.
func (s *Sandbox) ask(ctx context.Context) <-chan error {
	answer := make(chan error, 1)
	go func() {
		_, err := s.client.Process.List(ctx, connect.NewRequest(&process.ListRequest{}))
		answer <- err
	}()
	return answer
}

// verify waits for the guest agent's first answer.
func (s *Sandbox) verify(ctx context.Context, answer <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(s.cfg.VerifyTimeout)*time.Second,
		fmt.Errorf("it did not answer within %d s (verify_timeout)", s.cfg.VerifyTimeout))
	defer cancel()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return &InitError{Stage: "verify", Err: s.explain(ctx, err)}
	}
	return nil
}

// reasonTime is how long the reason of a sandbox's end may follow the cut of its link: as long as a busy machine takes to
// remove what was made for it.
const reasonTime = 10 * time.Second

// explain turns the failure of a call into why: the sandbox's end, the
// caller's own deadline, or the failure itself.
func (s *Sandbox) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// A cut link is how a sandbox's end shows first; its reason follows.
	if isCut(err) {
		select {
		case <-s.inst.Ended():
			return s.endError()
		case <-time.After(reasonTime):
		case <-ctx.Done():
		}
	}
	select {
	case <-s.inst.Ended():
		return s.endError()
	default:
		return fromGuest(err)
	}
}

func (s *Sandbox) endError() error {
	end := s.inst.End()
	return &EndError{Reason: end.Reason, Detail: end.Detail, MemoryMiB: s.cfg.MemoryMiB}
}

// Workspace is the folder in which commands run, as the sandbox sees it.
func (s *Sandbox) Workspace() string { return s.root }

// User is who commands run as that name nobody.
func (s *Sandbox) User() string { return s.user }

// Backend is the name of the backend that made it.
func (s *Sandbox) Backend() string { return s.backend }

// Config is what it was made with.
func (s *Sandbox) Config() Config { return s.cfg }

// Client speaks the guest's own protocol (E2B's envd protocol) to it.
func (s *Sandbox) Client() *http.Client { return s.client.HTTP }

// Ended is closed when the sandbox is gone, whoever ended it, or when this
// process let go of it.
func (s *Sandbox) Ended() <-chan struct{} { return s.inst.Ended() }

// Err says why the sandbox ended, as an *EndError; nil while it runs.
func (s *Sandbox) Err() error {
	select {
	case <-s.inst.Ended():
		return s.endError()
	default:
		return nil
	}
}

// Pause freezes everything in the sandbox. Time goes on outside, so deadlines
// of commands still pass.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.explain(ctx, s.inst.Pause(ctx))
}

// Resume lets a paused sandbox go on.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.explain(ctx, s.inst.Resume(ctx))
}

// Checkpoint saves the sandbox's state (memory, processes, files) in dir, from
// which WithCheckpoint restores it, also more than once. The sandbox goes on.
func (s *Sandbox) Checkpoint(ctx context.Context, dir string) error {
	if !s.own {
		return ErrNotOwner
	}
	if err := s.inst.Checkpoint(ctx, dir); err != nil {
		return s.explain(ctx, err)
	}
	return s.saveLife(ctx, dir)
}

// Detach lets go of the sandbox without ending it. Of an owner it lives on for
// the grace that it was opened or taken over with.
func (s *Sandbox) Detach() {
	// First, while what was started by way of it can still be ended. How the
	// socket itself ended is in the program's log.
	_ = s.debug.leave()
	s.inst.Detach()
	s.line.hangUp()
	s.visits.end()
	_ = s.away.close() // all that it could say is that it is closed
	s.client.HTTP.CloseIdleConnections()
	s.lanes.close()
}

// Close ends the sandbox and waits until nothing of it is left; of one that this
// process does not own it only lets go. It may be called more than once, and on a
// sandbox that has ended.
func (s *Sandbox) Close() error {
	s.closeOnce.Do(func() {
		if !s.own {
			s.Detach()
			return
		}
		ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, errors.New("it did not end within 30 s"))
		defer cancel()
		select {
		case <-s.inst.Ended():
		default:
			s.line.hearSoFar(ctx)
		}
		s.closeErr = errors.Join(s.inst.Close(ctx), s.debug.leave())
		s.line.hearTheRest()
		s.visits.end()
		s.closeErr = errors.Join(s.closeErr, s.away.close())
		s.client.HTTP.CloseIdleConnections()
		s.lanes.close()
		if s.record != nil {
			s.closeErr = errors.Join(s.closeErr, s.record.Ended(ctx, s.ID, s.inst.End().Reason))
		}
	})
	return s.closeErr
}
