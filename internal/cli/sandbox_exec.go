package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxExec(t *command.Table) {
	add(t, command.Spec[execInput, execOutput]{
		Group: "sandbox", Name: "exec", Access: command.Write, Bounded: []string{"env", "timeout"},
		Object: func(ctx context.Context, env *command.Env, in execInput) (string, error) {
			if in.Socket != "" {
				return "", nil // it is in no record
			}
			return boxKind.object(ctx, env, "sandbox", in.Sandbox)
		},
		Summary: "Run a command in a sandbox that is there",
		Long: `Runs CMD in the sandbox, in its workspace and as its ordinary user. Standard
input goes to it, and its output comes as it is written: every byte into a pipe,
and to a terminal all but what would control that. Ctrl-C ends it.

The exit code is CMD's own; 124 when its time ran out, 137 when its memory did,
126 and 127 when it could not be started, 130 after Ctrl-C.

With --json, and through the gateway, the output is collected: at most a MiB of
each stream, with the middle left out of more, and within 120 seconds if nothing
else was said.

With --socket the sandbox is one that a program of yours has opened by itself,
with debug.enabled. Collected output is then the first MiB of each stream.`,
		Examples: []command.Example{{Line: "ravi sandbox exec try -- make test"}, {What: "as root, elsewhere", Line: "ravi sandbox exec try --user root --dir /etc -- ls -l"}},
		Handler:  execSandbox, Print: printExec,
		Exit: func(o execOutput) int { return exitOf(o.ExitCode, o.Reason) },
	})
}

type execInput struct {
	Sandbox string            `json:"sandbox" arg:"SANDBOX" host:"none" usage:"the id, its beginning, or the name"`
	User    string            `json:"user" flag:"user" short:"u" value:"USER" host:"none" usage:"who it runs as inside"`
	Dir     string            `json:"dir" flag:"dir" value:"DIR" host:"command" usage:"where it runs inside; relative paths begin in the workspace"`
	Env     map[string]string `json:"env" flag:"env" short:"e" value:"NAME=VALUE" host:"secret" usage:"a variable for the command; credentials are refused"`
	Timeout *time.Duration    `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"end it after this time, such as 10m"`
	Input   string            `json:"input" flag:"input" value:"TEXT" host:"none" usage:"what it reads, in place of standard input"`
	NoStdin bool              `json:"no_stdin" flag:"no-stdin" short:"n" host:"none" usage:"it reads nothing"`
	Socket  string            `json:"socket" flag:"socket" value:"PATH" host:"path" usage:"in a sandbox of the program with this debug socket"`
	Command []string          `json:"command" arg:"CMD" host:"command" usage:"what to run, after --"`
}

// execOutput is how a command ended, and what it wrote if that was collected.
type execOutput struct {
	Sandbox   string `json:"sandbox"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	ExitCode  int    `json:"exit_code"`
	Reason    string `json:"reason,omitempty"`
	Signal    int    `json:"signal,omitempty"`
	Truncated bool   `json:"truncated"`
	// StdoutBytes and StderrBytes are how much it wrote.
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
	Millis      int64 `json:"ms"`

	streamed bool
}

// exitOf is the exit code of ravi for how a command ended.
func exitOf(code int, reason string) int {
	switch reason {
	case sandbox.ReasonTimeout:
		return command.ExitTimeout
	case sandbox.ReasonCanceled:
		return command.ExitCanceled
	case sandbox.ReasonOOM:
		return command.ExitOOM
	}
	return code
}

func execSandbox(ctx context.Context, env *command.Env, in execInput) (out execOutput, err error) {
	cmd, err := in.cmd(ctx, env)
	if err != nil {
		return out, err
	}
	if in.Socket != "" {
		return execBySocket(ctx, env, in, cmd)
	}
	sb, b, err := attach(ctx, env, "exec", in.Sandbox)
	if err != nil {
		return out, err
	}
	defer sb.Close()
	out.Sandbox = b.ID
	// Streams are this process's own only where it was started for this.
	if out.streamed = !env.JSON; !out.streamed {
		r, err := sb.Exec(ctx, cmd)
		if err != nil {
			return out, execError(err)
		}
		out.Stdout, out.Stderr, out.ExitCode, out.Reason, out.Signal, out.Truncated = r.Stdout, r.Stderr, r.ExitCode, r.Reason, r.Signal, r.Truncated
		out.StdoutBytes, out.StderrBytes, out.Millis = r.StdoutBytes, r.StderrBytes, r.Duration.Milliseconds()
		return out, nil
	}
	start := time.Now()
	cmd.Stdout, cmd.Stderr = outputs(env)
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return out, execError(err)
	}
	st, err := p.Wait()
	out.ExitCode, out.Reason, out.Signal, out.Millis = st.ExitCode, st.Reason, st.Signal, time.Since(start).Milliseconds()
	return out, execError(err)
}

// outputs are where a command's streams go.
func outputs(env *command.Env) (stdout, stderr io.Writer) {
	stdout, stderr = env.Stdout, env.Stderr
	if env.StdoutTerminal {
		stdout = safe.NewWriter(stdout)
	}
	if env.StderrTerminal {
		stderr = safe.NewWriter(stderr)
	}
	return stdout, stderr
}

// cmd is the command that an input asks for, checked, with what it reads.
func (in execInput) cmd(ctx context.Context, env *command.Env) (c sandbox.Cmd, err error) {
	if len(in.Command) == 0 || in.Command[0] == "" {
		return c, command.Usage("there is nothing to run", "add a command after --, such as: -- make test")
	}
	if in.Timeout != nil && *in.Timeout <= 0 {
		return c, command.Usage("--timeout is not above 0", "leave it out for no bound")
	}
	if err := checkEnv(in.Env); err != nil {
		return c, err
	}
	if _, _, err := refuseSecrets(ctx, env, in.Command, in.Env); err != nil {
		return c, err
	}
	if err := boundExec(ctx, env, in.Timeout); err != nil {
		return c, err
	}
	c = sandbox.Cmd{Args: in.Command, User: in.User, Env: in.Env, Timeout: in.Timeout}
	// A path is always the sandbox's: what it is called on this machine is not asked.
	if c.Dir = in.Dir; filepath.IsAbs(in.Dir) {
		c.Dir, c.GuestDir = "", in.Dir
	}
	switch {
	case in.Input != "":
		c.Stdin = strings.NewReader(in.Input)
	case !in.NoStdin && !env.JSON:
		c.Stdin = env.Stdin
	}
	return c, nil
}

// boundExec holds a command's time against the caller's profile.
func boundExec(ctx context.Context, env *command.Env, timeout *time.Duration) error {
	if env.Caller.IsOperator() || timeout == nil {
		return nil
	}
	st, err := env.Store(ctx)
	if err != nil {
		return err
	}
	name := own(env).Profile
	p, err := profileOf(ctx, st, name)
	if err != nil {
		return err
	}
	if longest := time.Duration(p.Timeout) * time.Second; *timeout > longest {
		return command.Denied(&access.Denied{Caller: "the profile " + name, Missing: fmt.Sprintf("a time of %v (of at most %v)", *timeout, longest)})
	}
	return nil
}

// execError tells why a command gave no outcome.
func execError(err error) error {
	if err == nil {
		return nil
	}
	told := &command.Error{Code: command.CodeUsage, Message: err.Error(), Status: http.StatusBadRequest, Exit: command.ExitUsage, Err: err}
	switch {
	case errors.Is(err, sandbox.ErrCommandNotFound):
		told.Code, told.Status, told.Exit = command.CodeNotFound, http.StatusNotFound, exitNotFound
	case errors.Is(err, sandbox.ErrNotExecutable):
		told.Exit = exitNotExecutable
	case errors.Is(err, sandbox.ErrBadCommand), errors.Is(err, sandbox.ErrOutside), errors.Is(err, sandbox.ErrNotFound):
	case errors.Is(err, sandbox.ErrEnded):
		told.Code, told.Status, told.Exit, told.Hint = command.CodeConflict, http.StatusConflict, command.ExitRavi, "see ravi sandbox ls --all"
		if end := new(sandbox.EndError); errors.As(err, &end) && end.Reason == sandbox.ReasonOOM {
			told.Exit = command.ExitOOM
		}
	default:
		return err
	}
	return told
}

// Exit codes of commands that could not be started, as a shell has them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

func printExec(env *command.Env, w io.Writer, o execOutput) error {
	if o.streamed {
		if !env.Quiet && o.Reason != "" && o.Reason != sandbox.ReasonSignal {
			fmt.Fprintf(env.Stderr, "ended: %s\n", safe.Safe(o.Reason))
		}
		return nil
	}
	for _, s := range []struct{ name, text string }{{"standard output", o.Stdout}, {"standard error", o.Stderr}} {
		if s.text == "" {
			continue
		}
		if err := printRaw(env, w, s.name, s.text); err != nil {
			return err
		}
		if !strings.HasSuffix(s.text, "\n") && !env.ForAgent {
			fmt.Fprintln(w)
		}
	}
	if env.ForAgent {
		fmt.Fprintf(w, "exit code %d", o.ExitCode)
		if o.Reason != "" {
			fmt.Fprintf(w, " (%s)", safe.Safe(o.Reason))
		}
		fmt.Fprintln(w)
	}
	return nil
}
