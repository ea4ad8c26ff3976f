package cli

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/mcphost"
	safe "ravi/internal/term"
)

// mcpServer is an MCP server of config.json. Values of variables and headers may be credentials, and are not shown.
type mcpServer struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"env,omitempty"` // names
	URL     string   `json:"url,omitempty"`
	Headers []string `json:"headers,omitempty"` // names
	// Seconds that a call, and the start, may take.
	ToolTimeout  int `json:"tool_timeout"`
	StartTimeout int `json:"start_timeout"`
}

type mcpListInput struct{}

type mcpList struct {
	Items []mcpServer `json:"items"`
}

func addMCPList(t *command.Table) {
	command.Add(t, command.Spec[mcpListInput, mcpList]{
		Group: "mcp", Name: "ls", Access: command.Read, Reach: command.LocalOnly,
		Summary: "List the MCP servers of config.json",
		Long: `Lists the MCP servers in tools.mcp_servers of config.json. Nothing is started.
Of variables and headers only the names are shown.`,
		Examples: []command.Example{
			{Line: "ravi mcp ls"},
			{What: "add one", Line: `ravi config set tools.mcp_servers.mine '{"command": "my-server"}'`},
		},
		Handler: func(_ context.Context, env *command.Env, _ mcpListInput) (out mcpList, err error) {
			file, err := env.Config()
			if err != nil {
				return out, err
			}
			out.Items, err = mcpServers(file)
			return out, err
		},
		Print: func(env *command.Env, w io.Writer, l mcpList) error {
			if len(l.Items) == 0 {
				if env.Quiet {
					return nil
				}
				_, err := io.WriteString(w, "no MCP servers; see ravi mcp ls --help for how to add one\n")
				return err
			}
			rows := make([][]string, len(l.Items))
			for i, s := range l.Items {
				rows[i] = []string{s.Name, s.Type, s.where()}
			}
			return safe.Table(w, widthOf(w), []safe.Column{{Title: "NAME"}, {Title: "TYPE"}, {Title: "WHERE", Flex: true}}, rows)
		},
	})
}

// where is its command or URL.
func (s mcpServer) where() string {
	if s.URL != "" {
		return s.URL
	}
	return strings.Join(append([]string{s.Command}, s.Args...), " ")
}

// configuredServers are the MCP servers of config.json.
func configuredServers(file *config.Config) (all mcphost.Servers, err error) {
	err = file.MCPServers(&all)
	return all, err
}

func mcpServers(file *config.Config) ([]mcpServer, error) {
	all, err := configuredServers(file)
	if err != nil {
		return nil, err
	}
	out := []mcpServer{}
	for _, s := range all {
		calls, start := s.Timeouts()
		out = append(out, mcpServer{
			Name: s.Name, Type: s.Kind(), Command: s.Command, Args: s.Args, Env: slices.Sorted(maps.Keys(s.Env)), URL: s.URL, Headers: slices.Sorted(maps.Keys(s.Headers)),
			ToolTimeout: int(calls.Seconds()), StartTimeout: int(start.Seconds()),
		})
	}
	return out, nil
}
