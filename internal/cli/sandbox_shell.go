package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"ravi/internal/command"
	"ravi/sandbox"
)

func addSandboxShell(t *command.Table) {
	add(t, command.Spec[shellInput, execOutput]{
		Group: "sandbox", Name: "shell", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Work in a sandbox on this terminal",
		Long: `Opens a shell in the sandbox, or CMD, on this terminal. What runs there writes
to the terminal as it likes, as after ssh. Ctrl-] three times in a row lets go
of a sandbox that does not answer. The exit code is the shell's own.

With --socket the sandbox is one that a program of yours has opened by itself,
with debug.enabled.`,
		Examples: []command.Example{{Line: "ravi sandbox shell try"}, {What: "as root", Line: "ravi sandbox shell try --user root"}},
		Handler:  shellSandbox, Print: printExec,
		Exit: func(o execOutput) int { return exitOf(o.ExitCode, o.Reason) },
	})
}

type shellInput struct {
	Sandbox string   `json:"sandbox" arg:"SANDBOX" host:"none" usage:"the id, its beginning, or the name"`
	User    string   `json:"user" flag:"user" short:"u" value:"USER" host:"none" usage:"who it runs as inside"`
	Socket  string   `json:"socket" flag:"socket" value:"PATH" host:"path" usage:"in a sandbox of the program with this debug socket"`
	Command []string `json:"command" arg:"CMD" optional:"true" host:"command" usage:"what to run, after --, in place of a shell"`
}

// loginShell is the best shell that there is.
const loginShell = "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"

func shellSandbox(ctx context.Context, env *command.Env, in shellInput) (out execOutput, err error) {
	out.streamed = true
	tty, ok := env.Stdin.(*os.File)
	if !ok || !env.StdinTerminal || !env.StdoutTerminal {
		return out, command.Usage("a shell needs a terminal, and this is none", "run commands with: ravi sandbox exec "+in.Sandbox+" -- CMD")
	}
	start, done, err := in.hold(ctx, env, &out)
	if err != nil {
		return out, err
	}
	defer done()
	screen, err := takeScreen(tty)
	if err != nil {
		return out, err
	}
	defer screen.giveBack()
	// The first signal ends ctx, the second the program: the terminal is in order before either.
	ctx, letGo := context.WithCancelCause(ctx)
	defer letGo(nil)
	defer context.AfterFunc(ctx, screen.giveBack)()
	quits := make(chan os.Signal, 1)
	signal.Notify(quits, syscall.SIGQUIT)
	defer signal.Stop(quits)
	go func() {
		select {
		case <-quits:
			letGo(interruption{syscall.SIGQUIT})
		case <-ctx.Done():
		}
	}()

	cmd := sandbox.Cmd{Args: in.Command, User: in.User, TTY: &sandbox.Size{}, Env: map[string]string{"TERM": os.Getenv("TERM")}, Stdout: env.Stdout}
	if len(in.Command) == 0 {
		cmd.Args = []string{"/bin/sh", "-c", loginShell}
	}
	*cmd.TTY = screen.size()
	cmd.Stdin = &escapes{in: tty, found: func() { letGo(errLetGo) }}
	p, err := start(ctx, cmd)
	if err != nil {
		return out, execError(err)
	}
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	defer signal.Stop(winch)
	go func() {
		for {
			select {
			case <-winch:
				_ = p.Resize(ctx, screen.size()) // the next one is another chance
			case <-ctx.Done():
				return
			}
		}
	}()
	ended := make(chan struct{})
	var st sandbox.Status
	var waited error // not err, which is what this returns, also when it does not wait
	go func() { defer close(ended); st, waited = p.Wait() }()
	select {
	case <-ended:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), errLetGo) {
			screen.reset(env.Stdout)
			return out, &command.Error{Code: command.CodeCanceled, Message: "let go of " + out.Sandbox + ", which goes on", Exit: command.ExitCanceled, Err: errLetGo}
		}
		<-ended // it is being killed, in a bounded time
	}
	out.ExitCode, out.Reason, out.Signal = st.ExitCode, st.Reason, st.Signal
	if waited != nil || st.Reason != "" {
		screen.reset(env.Stdout)
	}
	return out, execError(waited)
}

// shellProcess is a shell that runs.
type shellProcess interface {
	Wait() (sandbox.Status, error)
	Resize(context.Context, sandbox.Size) error
}

type startShell func(context.Context, sandbox.Cmd) (shellProcess, error)

// hold takes hold of the sandbox that is meant: how a shell is started there, and what lets go of it.
func (in shellInput) hold(ctx context.Context, env *command.Env, out *execOutput) (start startShell, done func(), err error) {
	if in.Socket != "" {
		out.Sandbox = in.Sandbox
		d := openSocket(in.Socket)
		return func(ctx context.Context, c sandbox.Cmd) (shellProcess, error) {
			p, err := d.start(ctx, in.Sandbox, c)
			if err != nil {
				return nil, err
			}
			out.Sandbox = p.sandbox
			return p, nil
		}, d.close, nil
	}
	sb, b, err := attach(ctx, env, "shell", in.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	out.Sandbox = b.ID
	return func(ctx context.Context, c sandbox.Cmd) (shellProcess, error) {
		p, err := sb.Start(ctx, c)
		if err != nil {
			return nil, err
		}
		return p, nil
	}, func() { _ = sb.Close() }, nil // it only lets go
}

var errLetGo = errors.New("let go")

// screen is a terminal in raw mode.
type screen struct {
	fd     int
	before *term.State
	once   sync.Once
}

func takeScreen(tty *os.File) (*screen, error) {
	s := &screen{fd: int(tty.Fd())}
	var err error
	if s.before, err = term.MakeRaw(s.fd); err != nil {
		return nil, fmt.Errorf("the terminal: %w", err)
	}
	return s, nil
}

// giveBack makes the terminal what it was.
func (s *screen) giveBack() {
	s.once.Do(func() { _ = term.Restore(s.fd, s.before) }) // if it is gone, nothing is to be done
}

func (s *screen) size() sandbox.Size {
	cols, rows, err := term.GetSize(s.fd)
	if err != nil || cols <= 0 || rows <= 0 {
		return sandbox.Size{Cols: 80, Rows: 24}
	}
	return sandbox.Size{Cols: uint16(min(cols, 1<<16-1)), Rows: uint16(min(rows, 1<<16-1))}
}

// reset undoes what a program leaves on a terminal that did not end by itself: its other screen, a hidden cursor, colours,
// and reports of the mouse and of what is pasted.
func (s *screen) reset(w io.Writer) {
	fmt.Fprint(w, "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m\r\n")
	s.giveBack()
}

// escapes passes on what is typed, until Ctrl-] comes three times in a row.
type escapes struct {
	in    io.Reader
	found func()
	seen  int
}

const (
	escapeKey   = 0x1d
	escapeTimes = 3
)

func (e *escapes) Read(p []byte) (int, error) {
	n, err := e.in.Read(p)
	for _, b := range p[:n] {
		if e.seen++; b != escapeKey {
			e.seen = 0
		}
		if e.seen == escapeTimes {
			e.found()
			return 0, io.EOF
		}
	}
	return n, err
}
