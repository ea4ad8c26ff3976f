package mcphost

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/mcphost/mcptest"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	mcptest.Remove()
	os.Exit(code)
}

// withPackages shows the servers that others wrote in a sandbox, installed on this side.
func withPackages(t *testing.T) sandbox.Option {
	t.Helper()
	if program := mcptest.Missing(); program != "" {
		t.Skipf("SKIP-FEATURE: there is no %s on this machine", program)
	}
	dir, err := mcptest.Install()
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.WithReadOnly(dir, mcptest.Dir)
}

func open(t *testing.T, cfg sandbox.Config, opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	if !cfgClosed(cfg) && os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root there is no network device here")
	}
	own, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	opts = append(opts, sandbox.WithHome(t.TempDir()), sandbox.WithReadOnly(own, "/opt/own"))
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, t.TempDir(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func cfgClosed(c sandbox.Config) bool { return !c.AllowNet.All && len(c.AllowNet.Rules) == 0 }

// patience is how long a tool may take that is not to be cut off, on a machine that does much else.
const patience = 5 * time.Minute

// own is the server of testdata, in a mode.
func own(mode string) Server {
	return Server{Name: "own", Command: "python3", Args: []string{"/opt/own/server.py", mode}, ToolTimeout: patience, StartTimeout: patience}
}

// ear hears what is told.
type ear struct {
	mu   sync.Mutex
	all  []Event
	more chan struct{}
}

func newEar() *ear { return &ear{more: make(chan struct{}, 1)} }

func (e *ear) hear(event Event) {
	e.mu.Lock()
	e.all = append(e.all, event)
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *ear) events() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Event{}, e.all...)
}

func (e *ear) count(k Kind, part string) (n int) {
	for _, event := range e.events() {
		if event.Kind == k && strings.Contains(event.Text, part) {
			n++
		}
	}
	return n
}

// await waits until something is told.
func (e *ear) await(t *testing.T, k Kind, part string) {
	t.Helper()
	limit := time.After(patience)
	for e.count(k, part) == 0 {
		select {
		case <-e.more:
		case <-limit:
			t.Fatalf("no %s %q was told: %+v", k, part, e.events())
		}
	}
}

// connect opens the servers, and closes them with the test.
func connect(t *testing.T, sb *sandbox.Sandbox, e *ear, servers ...Server) *Host {
	t.Helper()
	h := Open(t.Context(), sb, servers, e.hear)
	t.Cleanup(func() {
		if err := h.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return h
}

// slower is what is told of a server that has its input and output not to itself.
const slower = "calls take longer than they could"

// ready is connect of one server that must work.
func ready(t *testing.T, sb *sandbox.Sandbox, e *ear, s Server) *Host {
	t.Helper()
	h := connect(t, sb, e, s)
	if st := h.Servers()[0]; !st.OK {
		t.Fatalf("%s does not work: %s; told was %+v", s.Name, st.Problem, e.events())
	}
	return h
}

// works calls a tool that must not fail.
func works(t *testing.T, h *Host, tool, args string) string {
	t.Helper()
	text, failed, err := h.Call(t.Context(), tool, json.RawMessage(args))
	if failed || err != nil {
		t.Fatalf("%s: %t, %v: %s", tool, failed, err, text)
	}
	return text
}

// fails calls a tool that must fail as a tool does.
func fails(t *testing.T, h *Host, tool, args string) string {
	t.Helper()
	text, failed, err := h.Call(t.Context(), tool, json.RawMessage(args))
	if !failed || err != nil {
		t.Fatalf("%s: %t, %v: %s", tool, failed, err, text)
	}
	return text
}

func names(h *Host) (all []string) {
	for _, tool := range h.Tools() {
		all = append(all, tool.Name)
	}
	return all
}
