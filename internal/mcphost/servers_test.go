package mcphost

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/mcphost/mcptest"
	"ravi/sandbox"
)

// The same server, spoken with in each way, does the same.
func TestEverything(t *testing.T) {
	sb := open(t, sandbox.Default(), withPackages(t))
	for _, s := range []Server{
		{Name: "stdio", Command: "node", Args: []string{mcptest.Program(mcptest.Everything)}},
		{Name: "http", URL: "http://localhost:3101/mcp"},
		{Name: "sse", URL: "http://127.0.0.1:3102/sse"},
	} {
		t.Run(s.Name, func(t *testing.T) {
			switch s.Name {
			case "http":
				serveInside(t, sb, "3101", "streamableHttp")
			case "sse":
				serveInside(t, sb, "3102", "sse")
			}
			s.ToolTimeout, s.StartTimeout = patience, patience
			h := ready(t, sb, newEar(), s)
			s.ToolTimeout = 5 * time.Second
			everythingWorks(t, h, ready(t, sb, newEar(), s), "mcp_"+s.Name+"_")
		})
	}
}

// serveInside starts the server at a port of the sandbox's own loopback, and waits until it listens.
func serveInside(t *testing.T, sb *sandbox.Sandbox, port, transport string) {
	t.Helper()
	up := make(chan struct{})
	var once sync.Once
	var said strings.Builder
	p, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"node", mcptest.Program(mcptest.Everything), transport}, Env: map[string]string{"PORT": port},
		Stderr: writerFunc(func(b []byte) {
			if said.Write(b); strings.Contains(said.String(), port) { // it may come in pieces
				once.Do(func() { close(up) })
			}
		})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			t.Error(err)
		}
	})
	select {
	case <-up:
	case <-p.Done():
		t.Fatal("the server ended")
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// everythingWorks calls the tools of a host; hasty is another one, whose calls take five seconds at most.
func everythingWorks(t *testing.T, h, hasty *Host, prefix string) {
	t.Helper()
	st := h.Servers()[0]
	if !strings.HasPrefix(st.Program, "mcp-servers/everything ") || st.Tools < 10 || st.Tools != len(h.Tools()) {
		t.Errorf("it is %+v", st)
	}
	i := slices.IndexFunc(h.Tools(), func(tool Tool) bool { return tool.Name == prefix+"get-sum" })
	if i < 0 {
		t.Fatalf("the tools are %v", names(h))
	}
	var schema struct {
		Type       string
		Properties map[string]any
	}
	sum := h.Tools()[i]
	if err := json.Unmarshal(sum.InputSchema, &schema); err != nil || schema.Type != "object" || len(schema.Properties) != 2 || sum.Description == "" || sum.Remote != "get-sum" {
		t.Errorf("%+v %v", sum, err)
	}
	if got := works(t, h, prefix+"echo", `{"message":"grüße\n\u0000"}`); got != "Echo: grüße\n\x00" {
		t.Errorf("echo: %q", got)
	}
	if got := works(t, h, prefix+"get-sum", `{"a":2,"b":40}`); !strings.Contains(got, "42") {
		t.Errorf("sum: %q", got)
	}
	if got := fails(t, h, prefix+"get-sum", `{"a":"two"}`); !strings.Contains(got, "nvalid") {
		t.Errorf("a sum of words: %q", got)
	}
	if got := works(t, h, prefix+"get-tiny-image", ""); !strings.Contains(got, "(an image, image/png, ") {
		t.Errorf("image: %q", got)
	}
	if got := works(t, h, prefix+"get-resource-links", `{"count":2}`); strings.Count(got, "(a link to the resource ") != 2 {
		t.Errorf("links: %q", got)
	}
	if got := works(t, h, prefix+"get-structured-content", `{"location":"Chicago"}`); !strings.Contains(got, "temperature") {
		t.Errorf("structured: %q", got)
	}
	if got := fails(t, hasty, prefix+"trigger-long-running-operation", `{"duration":60,"steps":60}`); got != "(MCP tool call timed out after 5s)" {
		t.Errorf("a long one: %q", got)
	}
	if _, _, err := h.Call(t.Context(), prefix+"no-such-tool", nil); !errors.Is(err, ErrNoTool) {
		t.Errorf("a tool that is not there: %v", err)
	}
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if text, failed, err := h.Call(t.Context(), prefix+"echo", json.RawMessage(`{"message":"at once"}`)); text != "Echo: at once" || failed || err != nil {
				t.Errorf("%q %t %v", text, failed, err)
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, _, err := h.Call(ctx, prefix+"trigger-long-running-operation", json.RawMessage(`{"duration":60,"steps":60}`))
		asked <- err
	}()
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is given up: %v", err)
	}
	works(t, h, prefix+"echo", `{"message":"x"}`)
}

// A server that works with files sees those of the sandbox, and what it writes in the workspace is there.
func TestFilesystem(t *testing.T) {
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "a.txt"), []byte("first\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), sandbox.Default(), work, withPackages(t), sandbox.WithHome(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	h := ready(t, sb, newEar(), Server{Name: "fs", Command: "node", Args: []string{mcptest.Program(mcptest.Filesystem), "/workspace"}, ToolTimeout: patience, StartTimeout: patience})
	if got := works(t, h, "mcp_fs_read_text_file", `{"path":"/workspace/a.txt"}`); got != "first\n" {
		t.Errorf("%q", got)
	}
	works(t, h, "mcp_fs_edit_file", `{"path":"/workspace/a.txt","edits":[{"oldText":"first","newText":"second"}]}`)
	if b, err := os.ReadFile(filepath.Join(work, "a.txt")); string(b) != "second\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if got := fails(t, h, "mcp_fs_read_text_file", `{"path":"/etc/passwd"}`); !strings.Contains(got, "denied") {
		t.Errorf("%q", got)
	}
	// Of this machine there is nothing to see.
	if got := fails(t, h, "mcp_fs_read_text_file", `{"path":"`+filepath.Join(work, "a.txt")+`"}`); !strings.Contains(got, "denied") {
		t.Errorf("%q", got)
	}
}
