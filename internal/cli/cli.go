// Package cli is the command line: it turns the command table into cobra commands, prints results, errors and
// progress, and minds the signals. Each group of commands has a file of its own.
//
// It writes to the streams that it is given and touches nothing else itself; the commands do, by way of their Env.
// It must not import a backend, nor decide anything that the daemon would have to decide as well.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/guard"
	runs "ravi/internal/run"
	safe "ravi/internal/term"
)

// Main runs one command line, the program's name first as in os.Args, and gives the exit code.
//
// With a context key in the environment this program does nothing itself: whatever is asked for goes to the gateway, which
// knows whose key it is.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	args = args[min(1, len(args)):]
	if done, exit := benchClient(args, stdin, stdout, stderr); done {
		return exit
	}
	if _, keyed := os.LookupEnv(runs.EnvKey); keyed && isMCPServe(args) {
		return mcpForKey(args, stdin, stdout, stderr) // it does nothing but ask the gateway either
	} else if keyed {
		return asKeyHolder(args, stdin, stdout, stderr)
	}
	if len(args) == 1 && args[0] == ownerArg {
		return runOwner(stderr)
	}
	return run(args, stdin, stdout, stderr, program())
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer, parts parts) int {
	ctx, stop := interruptible(context.Background(), stderr)
	defer stop()

	env := &command.Env{
		Stdin: stdin, Stdout: stdout, Stderr: stderr, NewSweeper: parts.newSweeper, Caller: access.AsOperator(),
		StdinTerminal: isTerminal(stdin), StdoutTerminal: isTerminal(stdout), StderrTerminal: isTerminal(stderr),
	}
	exit := command.ExitOK
	root := newRoot(newTable(parts), env, &exit)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	err = errors.Join(err, env.Close())
	if err != nil {
		// Flags stop being read at the first wrong one, which may stand before --json.
		env.JSON = env.JSON || command.AsError(err).Code == command.CodeUsage && wantsJSON(args)
		return fail(ctx, env, err)
	}
	return exit
}

// newTable is the table with all commands.
func newTable(parts parts) *command.Table {
	t := &command.Table{}
	addSandbox(t, parts.boxes)
	addSecrets(t)
	addAgents(t)
	addAgentPrograms(t)
	addAgentCheck(t)
	addAgentsWork(t)
	addClients(t)
	addSessions(t)
	addWork(t)
	addBus(t, parts.bus)
	addRunner(t)
	addRunners(t)
	addMemory(t)
	addTasks(t)
	addRuns(t)
	addWatch(t)
	addApprovals(t)
	addContext(t)
	addProfiles(t)
	addAudit(t)
	addDaemon(t, parts.daemon)
	addConfig(t)
	addContextSnapshot(t)
	addMCP(t)
	addUsage(t)
	addDoctor(t)
	for _, register := range parts.register {
		register(t)
	}
	return t
}

// fail tells an error, and gives the exit code. People read it on stderr; with --json it is the one document on
// stdout, where a program looks for the answer.
func fail(ctx context.Context, env *command.Env, err error) int {
	told := command.AsError(err)
	if cause := new(interruption); errors.As(context.Cause(ctx), cause) && told.Code == command.CodeCanceled {
		told.Exit = cause.exit()
	}
	if env.JSON {
		var doc struct {
			Error struct {
				Code    string `json:"code"`
				Message string `json:"message"`
				Hint    string `json:"hint"`
			} `json:"error"`
		}
		doc.Error.Code, doc.Error.Message, doc.Error.Hint = told.Code, told.Message, told.Hint
		if printJSON(env.Stdout, doc) == nil {
			return told.Exit
		}
	}
	bold, plain := "", ""
	if colours(env.StderrTerminal) {
		bold, plain = "\x1b[1;31m", "\x1b[0m"
	}
	fmt.Fprintf(env.Stderr, "%serror:%s %s\n", bold, plain, indentAfterFirst(safe.SafeText(told.Message)))
	if told.Hint != "" {
		fmt.Fprintf(env.Stderr, "hint: %s\n", indentAfterFirst(safe.SafeText(told.Hint)))
	}
	return told.Exit
}

// indentAfterFirst keeps what a message says inside the message: no line of it can look like one of Ravi's own.
func indentAfterFirst(s string) string {
	return strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ")
}

// printJSONLine prints a value on one line.
func printJSONLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(safe.SafeJSON(b), '\n'))
	return err
}

func printJSON(w io.Writer, v any) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(safe.SafeJSON([]byte(b.String())))
	return err
}

func isTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalWidth is how many cells a table may take on stdout: the terminal's, and 80 elsewhere.
func terminalWidth(stream any) int {
	if f, ok := stream.(interface{ Fd() uintptr }); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// runCommand runs one command of the table and prints what it gives.
func runCommand(ctx context.Context, env *command.Env, c *command.Command, in any) (exit int, err error) {
	width := terminalWidth(env.Stdout)
	progress := newProgress(env)
	env.Progress, env.Stdout, env.Stderr = progress, progress.stdout(), progress.stderr()
	if err := isOperator(); err != nil {
		return 0, err
	}
	// What the operator changes is written down; what this program only reads for whoever started it is not.
	if c.Access == command.Write && c.Reach != command.LocalOnly {
		env.Auditor, err = newAuditor(ctx, env)
	}
	var out any
	if err == nil {
		out, err = c.Call(ctx, env, in)
	}
	progress.close(err)
	if err != nil {
		return 0, err
	}
	if env.JSON || !c.HasPrint() {
		return c.Exit(out), printJSON(env.Stdout, out)
	}
	var b strings.Builder
	if err := c.Print(env, &sized{Builder: &b, width: width}, out); err != nil {
		return 0, err
	}
	_, err = io.WriteString(env.Stdout, b.String())
	return c.Exit(out), err
}

// isOperator says whether this process is positively the operator's. An agent that put its key away is not.
func isOperator() error {
	err := guard.SelfIsOperator()
	if err == nil {
		return nil
	}
	told := &command.Error{Code: command.CodeGateway, Message: err.Error(), Hint: "set " + runs.EnvKey + " and " + runs.EnvURL + " as this sandbox got them", Exit: command.ExitFailed, Err: err}
	var why *guard.Error
	if errors.As(err, &why) {
		told.Hint = why.Hint
	}
	return told
}

// newAuditor opens the audit, and what takes secrets out of it.
func newAuditor(ctx context.Context, env *command.Env) (command.Auditor, error) {
	scrub, err := newScrubber(ctx, env, func(error) {}) // nothing that this command writes down comes from a later state
	if err != nil {
		return nil, err
	}
	env.Scrub = scrub.Now
	log, err := auditLog(ctx, env)
	return plainAudit{log}, err
}

// plainAudit is the audit of one command.
type plainAudit struct{ audit.Log }

func (a plainAudit) Denied(ctx context.Context, r audit.Record) error { return a.Append(ctx, r) }

// sized is where commands print to; it knows how wide a table may be.
type sized struct {
	*strings.Builder
	width int
}

func widthOf(w io.Writer) int {
	if s, ok := w.(*sized); ok {
		return s.width
	}
	return 80
}

func usageError(cmd *cobra.Command, err error) error {
	if secret := (secretFlagError{}); errors.As(err, &secret) {
		err = secret.error
	}
	// No flag's name is a number.
	if none := (interface{ GetSpecifiedName() string })(nil); errors.As(err, &none) && strings.Trim(none.GetSpecifiedName(), "0123456789") == "" {
		return command.Usage(err.Error(), fmt.Sprintf("a negative number comes after --: %s -- …", cmd.CommandPath()))
	}
	return command.Usage(err.Error(), fmt.Sprintf("see %s --help", cmd.CommandPath()))
}
