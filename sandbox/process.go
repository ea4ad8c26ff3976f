package sandbox

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"ravi/internal/guestapi/process"
	"ravi/internal/guestapi/ravi"
)

// Cmd is a command to run in a sandbox.
type Cmd struct {
	// Args are the program and its arguments. Exactly one of Args and Shell
	// must be set.
	Args []string
	// Shell is a line for /bin/sh.
	Shell string
	// Dir is where it runs: empty for the workspace, relative to that, or a
	// path of the host that the sandbox sees.
	Dir string
	// GuestDir is a directory of the sandbox, taken as it is.
	GuestDir string
	// Env is added to the environment; values may hold any byte but NUL.
	Env map[string]string
	// User is who it runs as; empty for the ordinary user.
	User string
	// Tag is a name of the caller's by which it is found again (Reconnect).
	Tag string
	// Stdin is what it reads; nil: it sees the end of the file at once.
	Stdin io.Reader
	// Stdout and Stderr, for Start, get its output as it comes; nil discards.
	// A writer that blocks makes the command wait.
	Stdout, Stderr io.Writer
	// Timeout bounds its run; nil is the configuration's default for Exec and
	// none for Start; 0 ends it at once.
	Timeout *time.Duration
	// MaxOutput bounds what Exec keeps of each stream, in bytes; 0 is 1 MiB.
	MaxOutput int
	// Lane asks for a way to its standard input and output that nothing else of
	// the sandbox is on, which is quicker to and fro. A sandbox has eight, each for
	// one command, and none on the host, on another machine or once it was restored; without one the
	// command works as others do, and Process.NoLane says why. When this process
	// ends, so does that input, and nobody reads that output any more.
	Lane bool
	// TTY gives it a terminal of this size; output then comes on Stdout.
	TTY *Size
}

// Size is a terminal's.
type Size struct{ Cols, Rows uint16 }

// After is a helper for Cmd.Timeout.
func After(d time.Duration) *time.Duration { return &d }

// Errors of starting a command. The exit statuses in brackets are a shell's.
var (
	ErrCommandNotFound = errors.New("command not found")   // 127
	ErrNotExecutable   = errors.New("cannot be executed")  // 126
	ErrBadCommand      = errors.New("not a valid command") // the request itself
)

const (
	defaultMaxOutput = 1 << 20
	maxTag           = 256 // bytes
)

// drainTime is how long a command that was killed may take to be gone.
const drainTime = 10 * time.Second

// Exec runs a command to its end and returns what it wrote. A command that
// fails is a Result, not an error; an error means that there is no result.
func (s *Sandbox) Exec(ctx context.Context, c Cmd) (Result, error) {
	most := c.MaxOutput
	if most <= 0 {
		most = defaultMaxOutput
	}
	out, errs := &capture{most: most}, &capture{most: most}
	c.Stdout, c.Stderr = tee(out, c.Stdout), tee(errs, c.Stderr)
	if c.Timeout == nil {
		c.Timeout = After(time.Duration(s.cfg.DefaultTimeout) * time.Second)
	}
	start := time.Now()
	if *c.Timeout <= 0 {
		return Result{ExitCode: -1, Reason: ReasonTimeout, Stderr: timedOut(0)}, nil
	}
	p, err := s.Start(ctx, c)
	if err != nil {
		return Result{}, err
	}
	st, err := p.Wait()
	if err != nil {
		return Result{}, err
	}
	r := Result{ExitCode: st.ExitCode, Reason: st.Reason, Signal: st.Signal, Duration: time.Since(start),
		StdoutBytes: out.total, StderrBytes: errs.total}
	var all1, all2 bool
	r.Stdout, all1 = out.result()
	r.Stderr, all2 = errs.result()
	r.Truncated = !all1 || !all2 || st.OutputLeft
	if st.Reason == ReasonTimeout {
		if r.Stderr != "" && !strings.HasSuffix(r.Stderr, "\n") {
			r.Stderr += "\n"
		}
		r.Stderr += timedOut(*c.Timeout)
	}
	return r, nil
}

func timedOut(d time.Duration) string {
	return fmt.Sprintf("Command timed out after %gs", d.Seconds())
}

func tee(a, b io.Writer) io.Writer {
	if b == nil {
		return a
	}
	return io.MultiWriter(a, b)
}

// Status is how a process ended.
type Status struct {
	ExitCode int
	Signal   int
	Reason   string
	// OutputLeft says that children of it still held its output when it had
	// ended, so that what they write later is not seen.
	OutputLeft bool
}

// Process is a command that runs.
type Process struct {
	sb  *Sandbox
	pid uint32
	tty bool

	stop   context.CancelFunc // ends the stream
	done   chan struct{}
	over   chan struct{} // closed when the stream is read to its end
	status Status
	err    error

	lane   *lane  // nil: its input and output go through the guest agent
	noLane string // why that is so, of one that asked for a lane

	writing  sync.Mutex // held while a writer of the caller's is called
	borrowed bool       // by Reconnect: it goes on when the caller's context ends

	mu     sync.Mutex
	killed string // the reason for which it was killed
	let    error  // why it was let go of
}

// Start starts a command. Its output goes to the writers of c as it comes. If
// ctx or the timeout ends, the command is killed with all that it started.
func (s *Sandbox) Start(ctx context.Context, c Cmd) (*Process, error) {
	req, err := s.request(c)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // nothing was begun
	}
	// The stream lives as long as the process, not as the caller's context:
	// a killed process's last output and end still come over it.
	p := &Process{sb: s, done: make(chan struct{}), over: make(chan struct{}), tty: c.TTY != nil}
	if c.Lane {
		if err := p.takeLane(ctx, req.Msg); err != nil {
			return nil, s.explain(ctx, err)
		}
	}
	streamCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	stream, err := s.client.Process.Start(streamCtx, req)
	if err != nil {
		stop()
	} else {
		err = p.follow(ctx, eventsOf(stream, (*process.StartResponse).GetEvent), c)
	}
	if err != nil {
		p.leaveLane(err)
		return nil, s.startError(ctx, c, err)
	}
	return p, nil
}

// follow begins to carry the stream's events, once the first has come.
func (p *Process) follow(ctx context.Context, stream eventStream, c Cmd) error {
	started := make(chan error, 1)
	go p.read(stream, c, started)
	var err error
	select {
	case err = <-started:
	case <-ctx.Done():
		// The word that it has begun may be on its way. If it comes, it is a command as others are, that is canceled: what
		// nobody knows of would go on for ever.
		select {
		case err = <-started:
		case <-time.After(drainTime):
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		p.stop()
		return err
	}
	if c.Stdin != nil {
		go p.copyStdin(c.Stdin)
	} else if p.lane != nil {
		p.lane.in.Close()
	}
	go p.watch(ctx, c.Timeout)
	return nil
}

// eventStream is what the guest tells of a process that was started, or
// connected to.
type eventStream struct {
	next  func() (*process.ProcessEvent, error)
	close func() error
}

func eventsOf[M any](s *connect.ServerStreamForClient[M], of func(*M) *process.ProcessEvent) eventStream {
	return eventStream{close: s.Close, next: func() (*process.ProcessEvent, error) {
		if s.Receive() {
			return of(s.Msg()), nil
		}
		if err := s.Err(); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	}}
}

func (s *Sandbox) request(c Cmd) (*connect.Request[process.StartRequest], error) {
	if (len(c.Args) > 0) == (c.Shell != "") {
		return nil, fmt.Errorf("%w: give either Args or Shell", ErrBadCommand)
	}
	if c.Lane && c.TTY != nil {
		return nil, fmt.Errorf("%w: a lane is no terminal", ErrBadCommand)
	}
	args := c.Args
	if c.Shell != "" {
		args = []string{"/bin/sh", "-c", c.Shell}
	}
	if !utf8.ValidString(c.Tag) || len(c.Tag) > maxTag {
		return nil, fmt.Errorf("%w: the tag is not UTF-8 of at most %d bytes", ErrBadCommand, maxTag)
	}
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return nil, fmt.Errorf("%w: an argument holds a NUL byte", ErrBadCommand)
		}
		if !utf8.ValidString(a) {
			return nil, fmt.Errorf("%w: an argument is not UTF-8", ErrBadCommand)
		}
	}
	if err := s.checkUser(c.User); err != nil {
		return nil, err
	}
	dir := s.guestPath(c.GuestDir)
	if dir == "" {
		var err error
		if dir, err = s.guestDir(c.Dir); err != nil {
			return nil, err
		}
	}
	stdin := c.Stdin != nil
	m := &process.StartRequest{
		Process: &process.ProcessConfig{Cmd: args[0], Args: args[1:], Cwd: &dir, Envs: map[string]string{}},
		Stdin:   &stdin,
	}
	maps.Copy(m.Process.Envs, s.baseEnv(c.User))
	for k, v := range c.Env {
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00") || !utf8.ValidString(k):
			return nil, fmt.Errorf("%w: %q is not a name for a variable", ErrBadCommand, k)
		case strings.ContainsRune(v, 0):
			return nil, fmt.Errorf("%w: the value of %s holds a NUL byte", ErrBadCommand, k)
		case utf8.ValidString(v):
			m.Process.Envs[k] = v
		default:
			if m.RawEnvs == nil {
				m.RawEnvs = map[string][]byte{}
			}
			m.RawEnvs[k] = []byte(v)
		}
	}
	if c.Tag != "" {
		m.Tag = &c.Tag
	}
	if c.TTY != nil {
		m.Pty = &process.PTY{Size: &process.PTY_Size{Cols: uint32(c.TTY.Cols), Rows: uint32(c.TTY.Rows)}}
	}
	req := connect.NewRequest(m)
	user := c.User
	if user == "" {
		user = s.user
	}
	setUser(req.Header(), user)
	return req, nil
}

func setUser(h map[string][]string, user string) {
	h["Authorization"] = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))}
}

// startError says why a command could not be started.
func (s *Sandbox) startError(ctx context.Context, c Cmd, err error) error {
	err = s.explain(ctx, err)
	name := "sh"
	if len(c.Args) > 0 {
		name = c.Args[0]
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		switch ce.Code() {
		case connect.CodeNotFound:
			return fmt.Errorf("%s: %w", name, ErrCommandNotFound)
		case connect.CodePermissionDenied, connect.CodeFailedPrecondition:
			return fmt.Errorf("%s: %w", name, ErrNotExecutable)
		}
	}
	return err
}

// read carries the stream's events to the writers, until the end.
func (p *Process) read(stream eventStream, c Cmd, started chan<- error) {
	defer close(p.over)
	defer stream.close()
	p.events(stream, c, started)
	if p.lane != nil && p.pid != 0 {
		p.endLane()
	}
	if p.err == nil && p.pid != 0 {
		// That was the end, for whoever waits. What follows is only the
		// stream's, which is left in order.
		close(p.done)
		for err := error(nil); err == nil; {
			_, err = stream.next()
		}
		return
	}
	close(p.done)
}

// events reads up to the end event, or what is in its place.
func (p *Process) events(stream eventStream, c Cmd, started chan<- error) {
	var end error
	for {
		var event *process.ProcessEvent
		if event, end = stream.next(); end != nil {
			break
		}
		switch e := event.GetEvent().(type) {
		case *process.ProcessEvent_Start:
			p.pid = e.Start.GetPid()
			if p.lane != nil {
				go p.carryOut(c.Stdout)
			}
			started <- nil
		case *process.ProcessEvent_Data:
			var err error
			switch d := e.Data.GetOutput().(type) {
			case *process.ProcessEvent_DataEvent_Stdout:
				err = p.write(c.Stdout, d.Stdout)
			case *process.ProcessEvent_DataEvent_Stderr:
				err = p.write(c.Stderr, d.Stderr)
			case *process.ProcessEvent_DataEvent_Pty:
				err = p.write(c.Stdout, d.Pty)
			}
			if err != nil {
				p.err = writeError(err)
				if !p.borrowed {
					p.kill(ReasonCanceled)
				}
				return
			}
		case *process.ProcessEvent_End:
			p.mu.Lock()
			p.status = status(e.End)
			if p.killed != "" && p.status.Reason == ReasonSignal {
				p.status.Reason, p.status.ExitCode = p.killed, -1
			}
			p.mu.Unlock()
			return
		}
	}
	if p.pid == 0 {
		started <- end
		return
	}
	p.mu.Lock()
	p.err = p.let
	p.mu.Unlock()
	if p.err == nil {
		p.err = p.sb.explain(context.Background(), end)
	}
}

// write calls a writer of the caller's, never two at once: they may be one.
func (p *Process) write(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := w.Write(b)
	return err
}

func writeError(err error) error { return fmt.Errorf("writing the command's output: %w", err) }

func status(e *process.ProcessEvent_EndEvent) Status {
	st := Status{ExitCode: int(e.GetExitCode()), Signal: int(e.GetSignal()), OutputLeft: e.GetOutputLeft()}
	if st.Signal > 0 {
		st.ExitCode, st.Reason = 128+st.Signal, ReasonSignal
	}
	if e.GetOom() {
		st.Reason = ReasonOOM
	}
	if e.GetTimedOut() {
		st.Reason, st.ExitCode = ReasonTimeout, -1
	}
	return st
}

// watch kills the process when its time is up or the caller has gone.
func (p *Process) watch(ctx context.Context, timeout *time.Duration) {
	defer p.stop()
	var limit <-chan time.Time
	if timeout != nil {
		t := time.NewTimer(*timeout)
		defer t.Stop()
		limit = t.C
	}
	select {
	case <-p.done:
	case <-limit:
		p.kill(ReasonTimeout)
	case <-ctx.Done():
		if p.borrowed {
			p.mu.Lock()
			p.let = context.Cause(ctx)
			p.mu.Unlock()
			return
		}
		p.kill(ReasonCanceled)
	}
	select {
	case <-p.over:
	case <-time.After(drainTime):
		// What could not be killed does not hold up the caller; stopping the
		// stream makes read end.
	}
}

// kill ends the process with all that it started.
func (p *Process) kill(reason string) {
	p.mu.Lock()
	if p.killed == "" {
		p.killed = reason
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	// If it fails, the process is gone, or the sandbox is; both show in read.
	_, _ = p.sb.client.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: p.selector()}))
}

// PID is the process's number in the sandbox.
func (p *Process) PID() int { return int(p.pid) }

// Done is closed when the process has ended and all its output is written.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end.
func (p *Process) Wait() (Status, error) {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		if p.killed != "" && !errors.Is(p.err, ErrEnded) {
			return Status{ExitCode: -1, Reason: p.killed}, nil
		}
		return Status{}, p.err
	}
	return p.status, nil
}

func (p *Process) selector() *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: p.pid}}
}

// Signal sends a signal to the process alone; ErrNotFound if it has ended.
func (p *Process) Signal(ctx context.Context, sig syscall.Signal) error {
	alone := false
	res, err := p.sb.client.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: p.selector(), Signal: int32(sig), Tree: &alone}))
	if err == nil && res.Msg.GetSignalled() == 0 {
		return fmt.Errorf("process %d has ended: %w", p.pid, ErrNotFound)
	}
	return p.sb.explain(ctx, err)
}

// Kill ends the process with all that it started.
func (p *Process) Kill(ctx context.Context) error {
	_, err := p.sb.client.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: p.selector()}))
	return p.sb.explain(ctx, err)
}

// Resize changes the size of its terminal.
func (p *Process) Resize(ctx context.Context, size Size) error {
	_, err := p.sb.client.Process.Update(ctx, connect.NewRequest(&process.UpdateRequest{
		Process: p.selector(),
		Pty:     &process.PTY{Size: &process.PTY_Size{Cols: uint32(size.Cols), Rows: uint32(size.Rows)}},
	}))
	return p.sb.explain(ctx, err)
}

// Write sends bytes to its standard input, or to its terminal.
func (p *Process) Write(ctx context.Context, b []byte) error {
	if p.lane != nil {
		return p.sb.explain(ctx, p.lane.write(ctx, b))
	}
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: b}}
	if p.tty {
		in.Input = &process.ProcessInput_Pty{Pty: b}
	}
	_, err := p.sb.client.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: p.selector(), Input: in}))
	return p.sb.explain(ctx, err)
}

// CloseStdin gives it an end of file.
func (p *Process) CloseStdin(ctx context.Context) error {
	if p.lane != nil {
		p.lane.in.Close()
		return nil
	}
	_, err := p.sb.client.Process.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: p.selector()}))
	return p.sb.explain(ctx, err)
}

// copyStdin feeds the process from r until either ends. Each piece is a call of its own, which the process has read, or has
// room for, when it is answered: a stream of them that nobody reads would fill what the connection lets be on its way, and
// with it hold up every other call, the one that kills the process among them.
func (p *Process) copyStdin(r io.Reader) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-p.done; cancel() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && p.Write(ctx, buf[:n]) != nil {
			return // it has ended or closed its input
		}
		if err != nil {
			if !p.tty {
				_ = p.CloseStdin(ctx)
			}
			return
		}
	}
}
