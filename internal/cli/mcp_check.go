package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/mcphost"
	"ravi/internal/secret"
	safe "ravi/internal/term"
)

// mcpCheck is what a check of MCP servers gave.
type mcpCheck struct {
	Items []mcpChecked `json:"items"`
	// Told is what the servers wrote beside, and what else there was to tell.
	Told []mcphost.Event `json:"told"`
}

type mcpChecked struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	OK      bool   `json:"ok"`
	Program string `json:"program,omitempty"` // what it calls itself
	Problem string `json:"problem,omitempty"`
	// Milliseconds is how long it took to be ready, or to fail.
	Milliseconds int64          `json:"ms"`
	Tools        []mcphost.Tool `json:"tools"`
}

type mcpCheckInput struct {
	Name      string   `json:"name" arg:"NAME" optional:"true" host:"none" usage:"only this one"`
	Workspace string   `json:"workspace" flag:"workspace" short:"w" value:"DIR" host:"path" usage:"a folder of this machine to see as /workspace"`
	Backend   string   `json:"backend" flag:"backend" value:"NAME" host:"backend" usage:"how the sandbox is made: auto, gvisor, host"`
	Volumes   []string `json:"volumes" flag:"volume" short:"v" value:"HOST:GUEST[:ro|rw]" host:"volume" usage:"a folder of this machine to see inside, read-only unless :rw"`
	AllowNet  []string `json:"allow_net" flag:"allow-net" value:"none|all|HOST,…" host:"network" usage:"what it may reach: names, NAME:PORT, *.NAME, @LIST; all is the public internet"`
	Secrets   []string `json:"secrets" flag:"secret" value:"NAME" host:"secret" usage:"a secret that it can use without having it; see ravi secrets"`
}

func addMCPCheck(t *command.Table) {
	command.Add(t, command.Spec[mcpCheckInput, mcpCheck]{
		Group: "mcp", Name: "check", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Try the MCP servers of config.json in a sandbox",
		Long: `Makes a sandbox with the defaults of config.json and what is given here, starts
or reaches the MCP servers from there as a run would, and lists their tools. The
sandbox is ended. No tool is called. The exit code is 1 if a server does not
work.`,
		Examples: []command.Example{
			{What: "all of them", Line: "ravi mcp check"},
			{What: "one that npx installs first", Line: "ravi mcp check files --allow-net registry.npmjs.org"},
			{What: "one at a URL, which wants a token", Line: "ravi mcp check wiki --allow-net mcp.example.com --secret WIKI_TOKEN"},
		},
		Handler: checkMCP,
		Print:   printMCPCheck,
		Exit: func(c mcpCheck) int {
			for _, s := range c.Items {
				if !s.OK {
					return command.ExitFailed
				}
			}
			return command.ExitOK
		},
	})
}

func checkMCP(ctx context.Context, env *command.Env, in mcpCheckInput) (out mcpCheck, err error) {
	out = mcpCheck{Items: []mcpChecked{}, Told: []mcphost.Event{}}
	file, err := env.Config()
	if err != nil {
		return out, err
	}
	servers, err := configuredServers(file)
	if err != nil {
		return out, err
	}
	if servers, err = serverNamed(servers, in.Name); err != nil {
		return out, err
	}
	asked := createInput{Workspace: in.Workspace, Backend: in.Backend, Volumes: in.Volumes, AllowNet: in.AllowNet, Secrets: in.Secrets}
	if err := asked.absolute(); err != nil {
		return out, err
	}
	w, err := asked.wanted(ctx, env)
	if err != nil {
		return out, err
	}
	boxes, err := ownBoxes(ctx, env)
	if err != nil {
		return out, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, boxes.Stop(ending, false))
	}()
	done := env.Progress.Step("Make the sandbox")
	row, notes, err := boxes.Create(ctx, w)
	done(err)
	if err != nil {
		return out, notCreated(err)
	}
	for _, note := range notes {
		env.Progress.Log(note)
	}
	sb, ok := boxes.Get(row.ID)
	if !ok {
		return out, errors.New("the sandbox ended at once")
	}
	done = env.Progress.Step("Reach the servers")
	var telling sync.Mutex
	told := []mcphost.Event{}
	host := mcphost.Open(ctx, sb, servers, func(e mcphost.Event) {
		telling.Lock()
		if len(told) < 1000 {
			told = append(told, e)
		}
		telling.Unlock()
		if e.Kind != mcphost.KindFailed { // which is what the answer says
			env.Progress.Log(e.Server + ": " + e.Text)
		}
	})
	done(nil)
	tools := host.Tools()
	for _, s := range host.Servers() {
		c := mcpChecked{Name: s.Name, Type: s.Transport, OK: s.OK, Program: s.Program, Problem: s.Problem, Milliseconds: s.Started.Milliseconds(), Tools: []mcphost.Tool{}}
		for _, tool := range tools {
			if tool.Server == s.Name {
				c.Tools = append(c.Tools, tool)
			}
		}
		out.Items = append(out.Items, c)
	}
	if err := host.Close(ctx); err != nil {
		return out, err
	}
	telling.Lock()
	defer telling.Unlock()
	out.Told = told
	return out, context.Cause(ctx)
}

// serverNamed is the server of that name alone; without a name all.
func serverNamed(all mcphost.Servers, name string) (mcphost.Servers, error) {
	if len(all) == 0 {
		return nil, command.Usage("there are no MCP servers to check", "add one; see ravi mcp ls --help")
	}
	if name == "" {
		return all, nil
	}
	var names []string
	for _, s := range all {
		if s.Name == name {
			return mcphost.Servers{s}, nil
		}
		names = append(names, s.Name)
	}
	return nil, command.Usage(fmt.Sprintf("there is no MCP server %q", name), "there are: "+strings.Join(names, ", "))
}

// ownBoxes are sandboxes of this process, recorded like the daemon's. They end with it.
func ownBoxes(ctx context.Context, env *command.Env) (*daemon.Sandboxes, error) {
	home, err := env.Home()
	if err != nil {
		return nil, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return nil, err
	}
	head, err := auditHead(env)
	if err != nil {
		return nil, err
	}
	return &daemon.Sandboxes{Home: home, Store: st, AuditHead: head, Vault: func() (*secret.Store, error) { return secretStore(env) }, Log: daemon.NewLogger(env.Stderr, true)}, nil
}

func printMCPCheck(env *command.Env, w io.Writer, c mcpCheck) error {
	for i, s := range c.Items {
		if i > 0 {
			fmt.Fprintln(w)
		}
		took := (time.Duration(s.Milliseconds) * time.Millisecond).Round(10 * time.Millisecond)
		if !s.OK {
			fmt.Fprintf(w, "%s (%s) does not work, after %v: %s\n", safe.Safe(s.Name), s.Type, took, s.Problem)
			continue
		}
		fmt.Fprintf(w, "%s (%s) works: %s, ready in %v, %d tools\n", safe.Safe(s.Name), s.Type, s.Program, took, len(s.Tools))
		if env.Quiet {
			continue
		}
		rows := make([][]string, len(s.Tools))
		for j, tool := range s.Tools {
			about, _, _ := strings.Cut(strings.TrimSpace(tool.Description), "\n")
			rows[j] = []string{tool.Name, about}
		}
		if len(rows) > 0 {
			if err := safe.Table(w, widthOf(w), []safe.Column{{Title: "TOOL"}, {Title: "WHAT IT SAYS", Flex: true}}, rows); err != nil {
				return err
			}
		}
	}
	return nil
}
