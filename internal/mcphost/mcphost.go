// Package mcphost has MCP servers work for an agent whose hands are a sandbox. Servers that are programs run in there;
// their standard input and output are the conversation. Servers at a URL are reached by way of the sandbox's network,
// so what the sandbox may not reach they are not, and placeholders of secrets are replaced on the way.
//
// It starts processes in one sandbox, connects by way of it, and ends what it started. It must not start anything on
// the host, hold more of what a server says than its bounds allow, or let a server fail more than itself: what a server
// says is hostile, all of it, and goes to whoever asked as text, and to people escaped (Event). What a server asks of
// its client (a model's answer, a person's, files) is refused.
package mcphost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"ravi/internal/term"
	"ravi/sandbox"
)

// Bounds of one Host.
const (
	maxServers = 32
	maxArgs    = 4 << 20   // bytes of a call's arguments
	maxText    = 256 << 10 // bytes of a call's text: it ends up in what a model reads
	maxCalls   = 16        // of one server at once
)

// Errors of Call.
var (
	// ErrNoTool: no server has a tool of this name.
	ErrNoTool = errors.New("there is no such MCP tool")
	// ErrClosed: the host was closed.
	ErrClosed = errors.New("the MCP servers are closed")
)

// Kind says what an Event is.
type Kind string

// The kinds of events.
const (
	KindLog       Kind = "log"       // what a server wrote where a message should be
	KindWarning   Kind = "warning"   // what it wrote on standard error; what was left out; that it ended
	KindFailed    Kind = "failed"    // it does not work (any more)
	KindRestarted Kind = "restarted" // it works again
)

// Event is something about a server that people should know. Its text is fit for a terminal.
type Event struct {
	Server string `json:"server"`
	Kind   Kind   `json:"kind"`
	Text   string `json:"text"`
}

// Tool is a tool of a server.
type Tool struct {
	// Name is mcp_SERVER_TOOL, made to fit what providers of models take.
	Name string `json:"name"`
	// Server and Remote are whose it is, and what it is called there.
	Server string `json:"server"`
	Remote string `json:"remote"`
	// Description and InputSchema, a JSON object, are the server's words.
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// Status is how a server is.
type Status struct {
	Name      string `json:"name"`
	Transport string `json:"transport,omitempty"`
	// Program is what it calls itself, with its version.
	Program string `json:"program,omitempty"`
	OK      bool   `json:"ok"`
	// Problem says why it does not work; it is fit for a terminal.
	Problem string `json:"problem,omitempty"`
	Tools   int    `json:"tools"`
	// Started is how long it took to be ready, or to fail.
	Started time.Duration `json:"started"`
}

// Host is the servers of one sandbox. Its methods may be called by several goroutines.
type Host struct {
	sb      *sandbox.Sandbox
	servers []*server

	telling sync.Mutex
	tell    func(Event)

	// life ends when Close begins.
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup // what goes on until then

	mu     sync.Mutex
	tools  []Tool
	byName map[string]*server

	closing sync.Once
	closed  error
}

// Open connects to the servers, all at once, and returns when each is ready or has failed. One that fails is told of,
// and has no tools. tell, which may be nil, is called by one goroutine at a time, must be quick, and must not call the
// host. When ctx ends, those that are not ready have failed; the others stay until Close.
func Open(ctx context.Context, sb *sandbox.Sandbox, servers []Server, tell func(Event)) *Host {
	if tell == nil {
		tell = func(Event) {}
	}
	h := &Host{sb: sb, tell: tell, byName: map[string]*server{}}
	life, end := context.WithCancelCause(context.Background())
	h.life, h.end = life, func() { end(ErrClosed) }
	var starting sync.WaitGroup
	for i, conf := range servers {
		s := newServer(h, conf)
		if i >= maxServers {
			s.fail(fmt.Errorf("it is one of %d servers, and %d is the most", len(servers), maxServers))
		}
		h.servers = append(h.servers, s)
	}
	for _, s := range h.servers {
		starting.Go(func() { s.begin(ctx) })
	}
	starting.Wait()
	return h
}

// say tells an event, made fit for a terminal.
func (h *Host) say(server string, kind Kind, text string) {
	e := Event{Server: safe(server, 100), Kind: kind, Text: safe(text, 2000)}
	h.telling.Lock()
	defer h.telling.Unlock()
	h.tell(e)
}

// safe is the beginning of a text, fit for a terminal.
func safe(text string, most int) string { return term.Safe(bounded(text, most)) }

// Tools are the tools that there are now, in the order of their names.
func (h *Host) Tools() []Tool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.tools)
}

// Servers says how the servers are, in the order in which they were given.
func (h *Host) Servers() []Status {
	var all []Status
	for _, s := range h.servers {
		all = append(all, s.status())
	}
	return all
}

// setTools takes over what a server offers now.
func (h *Host) setTools() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tools, h.byName = nil, map[string]*server{}
	for _, s := range h.servers {
		for _, t := range s.offers() {
			t.Name = toolName(t.Server, t.Remote, func(name string) bool { return h.byName[name] != nil })
			h.byName[t.Name] = s
			h.tools = append(h.tools, t)
		}
	}
	slices.SortFunc(h.tools, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
}

// Call calls a tool with arguments, a JSON object or nothing. What comes of it is a text, also when the tool failed, the
// server did not answer within its time or ended. It is never called again by itself: nobody knows what was done. An
// error is the caller's: ctx has ended, there is no such tool, or the host is closed.
func (h *Host) Call(ctx context.Context, name string, args json.RawMessage) (text string, failed bool, err error) {
	h.mu.Lock()
	s := h.byName[name]
	i := slices.IndexFunc(h.tools, func(t Tool) bool { return t.Name == name })
	var remote string
	if i >= 0 {
		remote = h.tools[i].Remote
	}
	h.mu.Unlock()
	if s == nil {
		return "", false, fmt.Errorf("%w: %.100q", ErrNoTool, name)
	}
	return s.call(ctx, remote, args)
}

// Close ends the conversations, then the processes with all that they started. It may be called more than once. If ctx
// ends, what is left is killed at once.
func (h *Host) Close(ctx context.Context) error {
	h.closing.Do(func() {
		h.end()
		var all sync.WaitGroup
		errs := make([]error, len(h.servers))
		for i, s := range h.servers {
			all.Go(func() { errs[i] = s.close(ctx) })
		}
		all.Wait()
		h.work.Wait()
		h.closed = errors.Join(errs...)
	})
	return h.closed
}
