package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ravi/internal/command"
	"ravi/internal/connected"
	"ravi/internal/daemon"
	"ravi/internal/guard"
	"ravi/internal/mcp"
)

// addMCP adds the group mcp.
func addMCP(t *command.Table) {
	t.AddGroup(command.Group{Name: "mcp", Summary: "MCP servers for agents, and the commands as one"})
	command.Add(t, command.Spec[mcpServeInput, struct{}]{
		Group: "mcp", Name: "serve", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Serve the commands as MCP tools on stdin and stdout",
		Long: `Speaks the Model Context Protocol on standard input and output, until the input
ends. Each command that the caller may use through the gateway is a tool, such
as tasks_comment; every call goes to the gateway, which decides and records it.

With RAVI_CONTEXT_KEY set the tools are those of the key, at the gateway in
RAVI_GATEWAY_URL or at the socket of Ravi's home. Without, they are the
operator's: the daemon is asked, and started if none runs. An agent with the
operator's tools can do what you can; give it a key (ravi context issue).

It is a program of the host. Inside a sandbox there is no ravi mcp serve: agents
in there call ravi GROUP COMMAND, with the key of their run.`,
		Examples: []command.Example{
			{What: "an agent on this machine, with a key that may read", Line: "claude mcp add ravi --env RAVI_CONTEXT_KEY=$KEY -- ravi mcp serve"},
			{Line: "ravi mcp serve"},
		},
		Handler: func(ctx context.Context, env *command.Env, _ mcpServeInput) (none struct{}, err error) {
			env.JSON = false // stdout is for the protocol, also when something goes wrong
			if err := startDaemon(ctx, env); err != nil {
				return none, err
			}
			home, err := env.Home()
			if err != nil {
				return none, err
			}
			socket := filepath.Join(home, daemon.Socket)
			return none, serveMCP(ctx, env, connected.Options{
				Getenv: os.Getenv, Socket: socket,
				Operator: func(ctx context.Context) (net.Conn, error) { return guard.DialUnix(ctx, socket) },
			})
		},
		Print: func(*command.Env, io.Writer, struct{}) error { return nil },
	})
	addMCPList(t)
	addMCPCheck(t)
}

type mcpServeInput struct{}

// isMCPServe says whether a command line is for the one command that a holder of a key runs in this process.
func isMCPServe(args []string) bool { return len(args) >= 2 && args[0] == "mcp" && args[1] == "serve" }

// mcpForKey serves the tools of a key. Its command line is read as the operator's is; nothing of the operator is touched.
func mcpForKey(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := interruptible(context.Background(), stderr)
	defer stop()
	env := &command.Env{Stdin: stdin, Stdout: stdout, Stderr: stderr, StderrTerminal: isTerminal(stderr)}
	table, exit := &command.Table{}, command.ExitOK
	addMCP(table)
	root := newRoot(table, env, &exit)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	serve, _, err := root.Find([]string{"mcp", "serve"})
	if err == nil {
		serve.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(cmd, fmt.Errorf("%q is one argument too many", args[0]))
			}
			env.JSON = false
			return serveMCP(cmd.Context(), env, connected.Options{Getenv: os.Getenv, Socket: gatewayPath()})
		}
		err = root.ExecuteContext(ctx)
	}
	if err != nil {
		return fail(ctx, env, err)
	}
	return exit
}

// serveMCP serves the tools of whoever asks the gateway.
func serveMCP(ctx context.Context, env *command.Env, o connected.Options) error {
	gateway, err := connected.Dial(o)
	if err != nil {
		return asCommandError(err)
	}
	defer gateway.Close()
	return asCommandError(mcp.Serve(ctx, mcp.Options{
		Gateway: gateway, Version: Version(), In: env.Stdin, Out: env.Stdout,
		Log: func(line string) { io.WriteString(env.Stderr, indentAfterFirst(gateway.Mask(line))+"\n") },
	}))
}

// asCommandError is what the gateway refused as a command's failure.
func asCommandError(err error) error {
	var e *connected.Error
	if !errors.As(err, &e) {
		return err
	}
	return &command.Error{Code: e.Code, Message: e.Message, Hint: e.Hint, Status: http.StatusServiceUnavailable, Exit: e.Exit, Err: err}
}
