package mcphost

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"ravi/internal/strictjson"
)

// The ways to speak with a server.
const (
	Stdio = "stdio" // a program in the sandbox, by its standard input and output
	HTTP  = "http"  // a URL, by MCP's streamable HTTP
	SSE   = "sse"   // a URL, by the older HTTP with server-sent events
)

// Times that apply where none are set. A server that npx first has to download takes a while.
const (
	DefaultToolTimeout  = 30 * time.Second
	DefaultStartTimeout = 2 * time.Minute
	maxTimeout          = 24 * time.Hour
)

// Server is an MCP server. In texts of Env and Headers, ${NAME} stands for the placeholder of the sandbox's secret of
// that name.
type Server struct {
	Name string
	// Transport is Stdio, HTTP or SSE. Empty: with a Command it is Stdio, with a URL that ends in /sse SSE, else HTTP.
	Transport string
	// Command is the program in the sandbox; it runs in the workspace.
	Command string
	Args    []string
	Env     map[string]string
	URL     string
	Headers map[string]string
	// ToolTimeout bounds a call, StartTimeout the time until it is ready; 0: the default.
	ToolTimeout, StartTimeout time.Duration
}

// written is a server as it stands in tools.mcp_servers of config.json.
type written struct {
	Type         string            `json:"type"`
	Command      string            `json:"command"`
	Args         []string          `json:"args"`
	Env          map[string]string `json:"env"`
	URL          string            `json:"url"`
	Headers      map[string]string `json:"headers"`
	ToolTimeout  *int              `json:"tool_timeout"`
	StartTimeout *int              `json:"start_timeout"`
}

// Servers are those of a block tools.mcp_servers, by their names.
type Servers []Server

// serverName keeps the names of tools readable.
var serverName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,31}$`)

// UnmarshalJSON reads an object of servers by their names; unknown keys are refused, and servers that cannot be.
func (all *Servers) UnmarshalJSON(b []byte) error {
	var blocks map[string]written
	if err := strictjson.Decode(b, &blocks); err != nil {
		return err
	}
	out := Servers{}
	for _, name := range slices.Sorted(maps.Keys(blocks)) {
		s, err := blocks[name].server(name)
		if err != nil {
			return err
		}
		out = append(out, s)
	}
	if len(out) > maxServers {
		return fmt.Errorf("there are %d MCP servers; %d is the most", len(out), maxServers)
	}
	*all = out
	return nil
}

func (w written) server(name string) (Server, error) {
	s := Server{Name: name, Transport: w.Type, Command: w.Command, Args: w.Args, Env: w.Env, URL: w.URL, Headers: w.Headers}
	if s.Transport == "streamableHttp" || s.Transport == "streamable_http" {
		s.Transport = HTTP
	}
	for _, t := range []struct {
		key  string
		from *int
		to   *time.Duration
	}{{"tool_timeout", w.ToolTimeout, &s.ToolTimeout}, {"start_timeout", w.StartTimeout, &s.StartTimeout}} {
		if t.from == nil {
			continue
		}
		if *t.from < 1 || *t.from > int(maxTimeout/time.Second) {
			return s, fmt.Errorf("the MCP server %s: %s is %d; it is a number of seconds from 1 to %d", name, t.key, *t.from, int(maxTimeout/time.Second))
		}
		*t.to = time.Duration(*t.from) * time.Second
	}
	if err := s.Validate(); err != nil {
		return s, fmt.Errorf("the MCP server %.40q: %w", name, err)
	}
	return s, nil
}

// Kind is the way to speak with the server.
func (s Server) Kind() string {
	switch {
	case s.Transport != "":
		return s.Transport
	case s.Command != "":
		return Stdio
	case s.URL == "":
		return ""
	case strings.HasSuffix(strings.TrimRight(path(s.URL), "/"), "/sse"):
		return SSE
	default:
		return HTTP
	}
}

func path(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Path
}

// Validate says what is wrong with the server, or nil.
func (s Server) Validate() error {
	if !serverName.MatchString(s.Name) {
		return errors.New("its name must be at most 32 letters, digits, _ and -, the first a letter or digit")
	}
	if s.ToolTimeout < 0 || s.StartTimeout < 0 {
		return errors.New("a time is negative")
	}
	switch s.Kind() {
	case "":
		return errors.New("it has neither a command nor a url: give one of them")
	case Stdio:
		switch {
		case s.Command == "":
			return errors.New("it is of the type stdio and has no command")
		case s.URL != "" || len(s.Headers) > 0:
			return errors.New("it is a command, and has a url or headers as well: give one or the other")
		}
		return nil
	case HTTP, SSE:
		if s.Command != "" || len(s.Args) > 0 || len(s.Env) > 0 {
			return errors.New("it is at a url, and has a command, args or env as well: give one or the other")
		}
		return checkURL(s.URL)
	}
	return fmt.Errorf("its type is %.40q: it must be stdio, http or sse", s.Transport)
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("its url is none: %w", errors.Unwrap(err))
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("its url %.200q must begin with https:// or http:// and a host", text)
	case u.User != nil:
		return errors.New("its url holds a user or password: name a secret with --secret, and give it in headers as ${NAME}")
	}
	return nil
}

// Timeouts are the times that apply: for a call, and for the start.
func (s Server) Timeouts() (call, start time.Duration) {
	return cmp.Or(s.ToolTimeout, DefaultToolTimeout), cmp.Or(s.StartTimeout, DefaultStartTimeout)
}

// reference is a secret in a text.
var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

// filled are texts with the placeholders of secrets in them. Only secrets of this sandbox can be named: the environment
// of Ravi itself is no place to take anything from.
func filled(texts, placeholders map[string]string) (map[string]string, error) {
	out := map[string]string{}
	var missing []string
	for key, text := range texts {
		out[key] = reference.ReplaceAllStringFunc(text, func(found string) string {
			name := found[2 : len(found)-1]
			holder, ok := placeholders[name]
			if !ok {
				missing = append(missing, name)
			}
			return holder
		})
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return nil, fmt.Errorf("it needs the secret %.40q, which the sandbox was not given: add --secret %.40s", missing[0], missing[0])
	}
	return out, nil
}
