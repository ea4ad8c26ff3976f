package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/internal/backend"
	"ravi/internal/mcphost"
	"ravi/internal/programs"
	"ravi/sandbox"
)

const (
	loopMCP = "loop_mcp"

	// jobMCP serves MCP on standard input and output: a tool that says what it is told.
	jobMCP = "mcp"

	// The servers that are measured: one of Ravi's own, and one of others for node, if npm has it here.
	ownServer  = "own"
	nodeServer = "node"

	nodePackage = "@modelcontextprotocol/server-everything"
	nodeGuest   = "/srv/node_modules"

	mcpCallsARound = 20
)

// mcpServer is a server as both get it.
type mcpServer struct {
	name string
	argv []string
	env  map[string]string
	from string // a file or folder of this machine
	to   string // where it is in there
}

// mcpCaller calls the tool of a server that runs somewhere.
type mcpCaller struct {
	where string // ours or besideRunsc
	call  func(ctx context.Context, text string) (string, error)
	close func(context.Context) error
}

// loopMCPs measures calls of MCP servers: as the loop makes them, and by the pipes of a runsc exec.
func (b *bench) loopMCPs(ctx context.Context) error {
	text, err := json.Marshal(job{Do: jobMCP})
	if err != nil {
		return err
	}
	servers := []mcpServer{{name: ownServer, argv: []string{guestProgram, "bench"}, env: map[string]string{EnvClient: string(text), "HOME": "/tmp"}, from: b.Program, to: guestProgram}}
	modules, err := nodeModules(ctx)
	if err != nil {
		b.skip(loopMCP+", "+nodeServer, err)
	} else {
		servers = append(servers, mcpServer{name: nodeServer, argv: []string{"node", path.Join(nodeGuest, nodePackage, "dist/index.js")}, from: modules, to: nodeGuest})
	}
	for _, s := range servers {
		if err := b.loopMCP(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// nodeModules is the folder in which npm has the server for everybody.
func nodeModules(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "", fmt.Errorf("%w: there is no npm", errMissing)
	}
	dir, err := output(program(ctx, "npm", "root", "--global"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(nodePackage), "dist", "index.js")); err != nil {
		return "", fmt.Errorf("%w; it is with: npm install --global %s", errMissing, nodePackage)
	}
	return dir, nil
}

func (b *bench) loopMCP(ctx context.Context, s mcpServer) (err error) {
	var opened, all []*mcpCaller
	defer func() {
		clean, cancel := cleaning(ctx)
		defer cancel()
		for _, c := range opened {
			err = errors.Join(err, c.close(clean))
		}
	}()
	opens := map[string]func(context.Context, mcpServer) (*mcpCaller, error){ours: b.mcpInSandbox, besideRunsc: b.mcpByRunsc}
	for _, where := range []string{ours, besideRunsc} {
		if where == besideRunsc && b.Beside != nil && !slices.Contains(b.Beside, besideRunsc) {
			continue
		}
		by := turnBy(s.name, where)
		c, err := opens[where](ctx, s)
		if err == nil {
			opened = append(opened, c)
			_, err = c.echo(ctx, 0) // the first one does not count
		}
		switch {
		case err == nil:
			all = append(all, c)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, backend.ErrUnavailable):
			b.skip(loopMCP+", "+by, err)
		case err != nil:
			b.fail(loopMCP, by, err)
		}
	}
	n := 0
	return inTurns(ctx, b.Runs*mcpCallsARound, all, func(c *mcpCaller) error {
		n++
		took, err := c.echo(ctx, n)
		if err == nil {
			b.addTime(loopMCP, turnBy(s.name, c.where), took)
		}
		return err
	}, func(c *mcpCaller, err error) { b.fail(loopMCP, turnBy(s.name, c.where), err) })
}

// echo has the server say the n-th text, and gives how long that took.
func (c *mcpCaller) echo(ctx context.Context, n int) (time.Duration, error) {
	text := fmt.Sprintf("the call %d", n)
	start := time.Now()
	said, err := c.call(ctx, text)
	took := time.Since(start)
	if err == nil && !strings.Contains(said, text) {
		err = fmt.Errorf("the server was to say %q, and said %.200q", text, said)
	}
	return took, err
}

// mcpInSandbox has the server run in a sandbox, as the loop does.
func (b *bench) mcpInSandbox(ctx context.Context, s mcpServer) (*mcpCaller, error) {
	x := b.ourBox()
	cfg := sandbox.Default()
	cfg.Backend = ours
	cfg.ExtraVolumes = []sandbox.Volume{{Host: s.from, Guest: s.to, ReadOnly: true}}
	sb, err := sandbox.Open(ctx, cfg, "", sandbox.WithHome(x.home), sandbox.WithRecorder(x.record))
	if err != nil {
		return nil, err
	}
	host := mcphost.Open(ctx, sb, []mcphost.Server{{Name: s.name, Command: s.argv[0], Args: s.argv[1:], Env: s.env}}, nil)
	c := &mcpCaller{where: ours, close: func(ctx context.Context) error { return errors.Join(host.Close(ctx), sb.Close()) }}
	if st := host.Servers()[0]; !st.OK {
		clean, cancel := cleaning(ctx)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("the server does not work: %s", st.Problem), c.close(clean))
	}
	c.call = func(ctx context.Context, text string) (string, error) {
		args, err := json.Marshal(echoed{text})
		if err != nil {
			return "", err
		}
		said, failed, err := host.Call(ctx, "mcp_"+s.name+"_echo", args)
		if err == nil && failed {
			err = fmt.Errorf("the call failed: %.400s", said)
		}
		return said, err
	}
	return c, nil
}

// mcpByRunsc has the server run by runsc exec, and speaks with it by the pipes of that program.
func (b *bench) mcpByRunsc(ctx context.Context, s mcpServer) (c *mcpCaller, err error) {
	parts, err := programs.Find(ctx, b.Home)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "mcp-"+s.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	e := newRunsc(dir, parts.Kernel, b.image.with(s.from, s.to))
	in, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	running, kill := context.WithCancel(ctx)
	argv := []string{"/usr/bin/env"}
	for name, value := range s.env {
		argv = append(argv, name+"="+value)
	}
	cmd := e.exec(running, in.(*engineSession).name, append(argv, s.argv...)...)
	var said tail
	cmd.Stderr = &said
	started := false
	c = &mcpCaller{where: besideRunsc, close: func(ctx context.Context) error {
		err := in.close(ctx) // with which the server's ends of the pipes are gone
		kill()
		if started {
			_ = cmd.Wait() // that it was killed is what was wanted
		}
		return err
	}}
	fail := func(err error) (*mcpCaller, error) {
		clean, cancel := cleaning(ctx)
		defer cancel()
		err = errors.Join(err, c.close(clean))
		return nil, said.explain(cmd, err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fail(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	started = true
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "ravi-bench", Version: "1"}, nil).Connect(starting, &sdk.IOTransport{Reader: stdout, Writer: stdin}, nil)
	if err != nil {
		return fail(err)
	}
	end := c.close
	c.close = func(ctx context.Context) error {
		_ = session.Close() // the server is killed, whatever it makes of that
		return end(ctx)
	}
	c.call = func(ctx context.Context, text string) (string, error) { return echoBy(ctx, session, text) }
	return c, nil
}

// echoBy calls the tool.
func echoBy(ctx context.Context, session *sdk.ClientSession, text string) (string, error) {
	res, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "echo", Arguments: echoed{text}})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, content := range res.Content {
		if t, ok := content.(*sdk.TextContent); ok {
			out.WriteString(t.Text)
		}
	}
	if res.IsError {
		return "", fmt.Errorf("the call failed: %.400s", out.String())
	}
	return out.String(), nil
}

// echoed is what the tools are told.
type echoed struct {
	Message string `json:"message"`
}

// mcp serves until its input ends.
func (j job) mcp(ctx context.Context, in io.Reader, out io.Writer) error {
	s := sdk.NewServer(&sdk.Implementation{Name: "ravi-bench", Version: "1"}, nil)
	sdk.AddTool(s, &sdk.Tool{Name: "echo", Description: "Says what it is told."}, func(_ context.Context, _ *sdk.CallToolRequest, a echoed) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "It says: " + a.Message}}}, nil, nil
	})
	return s.Run(ctx, &sdk.IOTransport{Reader: io.NopCloser(in), Writer: unclosed{out}})
}

// unclosed is a writer that others may close, and that stays open.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
