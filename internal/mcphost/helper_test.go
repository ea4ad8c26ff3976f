package mcphost

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if packages != "" {
		os.RemoveAll(packages)
	}
	os.Exit(code)
}

// The servers that others wrote, at the versions that they were tried with.
const (
	everything = "@modelcontextprotocol/server-everything"
	filesystem = "@modelcontextprotocol/server-filesystem"
	version    = "2026.8.31"
)

var (
	packages  string
	installed = sync.OnceValue(func() error {
		var err error
		if packages, err = os.MkdirTemp("", "ravi-mcp-"); err != nil {
			return err
		}
		if err := os.Chmod(packages, 0o755); err != nil {
			return err
		}
		out, err := exec.Command("npm", "install", "--prefix", packages, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
			everything+"@"+version, filesystem+"@"+version).CombinedOutput()
		if err != nil {
			return fmt.Errorf("npm install: %w: %s", err, out)
		}
		return nil
	})
)

// withPackages shows them in a sandbox, installed on this side.
func withPackages(t *testing.T) sandbox.Option {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIP-FEATURE: there is no %s on this machine", program)
		}
	}
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	return sandbox.WithReadOnly(packages, "/opt/mcp")
}

// program is the main file of one of them, inside.
func program(name string) string { return "/opt/mcp/node_modules/" + name + "/dist/index.js" }

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

// own is the server of testdata, in a mode.
func own(mode string) Server {
	return Server{Name: "own", Command: "python3", Args: []string{"/opt/own/server.py", mode}}
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
	limit := time.After(time.Minute)
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
