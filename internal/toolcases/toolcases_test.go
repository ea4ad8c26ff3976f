package toolcases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	os.Exit(m.Run())
}

// room is an open sandbox and the workspace that it shares with the host.
type room struct {
	*sandbox.Sandbox
	ws string
}

func open(t *testing.T, change ...func(*sandbox.Config)) *room {
	t.Helper()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendGVisor
	cfg.DefaultTimeout = 590
	for _, c := range change {
		c(&cfg)
	}
	r := &room{ws: t.TempDir()}
	var err error
	r.Sandbox, err = sandbox.Open(context.WithoutCancel(t.Context()), cfg, r.ws, sandbox.WithHome(t.TempDir()))
	if err != nil {
		var ie *sandbox.InitError
		if errors.As(err, &ie) {
			t.Fatalf("%v\nhint: %s", err, ie.Hint)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("closing the sandbox: %v", err)
		}
	})
	return r
}

// ctx ends with the test, or when only a hang can be the reason.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("the test hangs"))
	t.Cleanup(cancel)
	return c
}

func (r *room) run(t testing.TB, c sandbox.Cmd) sandbox.Result {
	t.Helper()
	res, err := r.Exec(ctx(t), c)
	if err != nil {
		t.Fatalf("%s%q: %v", c.Shell, c.Args, err)
	}
	return res
}

// sh runs a line that must succeed, and returns what it wrote.
func (r *room) sh(t testing.TB, line string) string {
	t.Helper()
	res := r.run(t, sandbox.Cmd{Shell: line})
	if res.ExitCode != 0 {
		t.Fatalf("%s\nexit code %d %s\n%s%s", line, res.ExitCode, res.Reason, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// needs skips a test whose tools the host does not have.
func (r *room) needs(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if r.run(t, sandbox.Cmd{Shell: "command -v " + tool}).ExitCode != 0 {
			t.Skipf("SKIP-FEATURE: this host has no %s", tool)
		}
	}
}

// put writes a file into the workspace, as whoever runs the test.
func (r *room) put(t testing.TB, name, content string) {
	t.Helper()
	if err := r.Files().Write(ctx(t), "/workspace/"+name, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s does not hold %q:\n%s", what, p, text)
		}
	}
}
