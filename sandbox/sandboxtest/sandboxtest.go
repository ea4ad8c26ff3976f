// Package sandboxtest is the conformance suite that every backend must pass.
//
// A backend's test makes a Factory and calls Run. What a backend cannot do, its
// Factory says; the rest must hold for all alike, so that a caller may change
// the backend and nothing else. The package writes only beneath the folders
// that the test gives it, with one exception that is named there: the canary of
// the isolation tests below /usr/local/share.
package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/programs"
	"ravi/sandbox"
)

// Factory makes sandboxes of one backend and says what it can do.
type Factory struct {
	// Open starts a sandbox with the backend's name put into cfg, or ends the
	// test. The suite closes it.
	Open func(t testing.TB, cfg sandbox.Config, workspace string, opts ...sandbox.Option) *sandbox.Sandbox
	// Home is Ravi's home of the sandboxes that Open makes.
	Home string

	Isolated   bool // the host cannot be reached; there are users of its own
	Pause      bool
	Checkpoint bool
	Limits     bool // memory, processor time, processes and disk are bounded
	Overlay    bool // the workspace can be copy-on-write
	Lanes      bool // a command can have its input and output to itself
	// Elsewhere: it is on another machine. Open is given no workspace and no volumes, and no other process attaches.
	Elsewhere bool
}

// Run runs the whole suite.
func Run(t *testing.T, f Factory) {
	s := suite{f}
	t.Run("exec", s.exec)
	t.Run("output", s.output)
	t.Run("end", s.end)
	t.Run("stream", func(t *testing.T) { s.stream(t, false) })
	t.Run("terminal", s.terminal)
	t.Run("files", s.files)
	t.Run("tar", s.tar)
	t.Run("state", s.state)
	if !f.Elsewhere {
		t.Run("attach", s.attach)
	}
	if f.Lanes {
		t.Run("lanes", s.lanes)
	} else {
		t.Run("no lanes", s.noLanes)
	}
	if f.Isolated {
		t.Run("isolation", s.isolation)
	}
	if f.Limits {
		t.Run("limits", s.limits)
	}
}

// UseProgram makes Open find the ravi program: the one that RAVI_PROGRAM names,
// or else what was built in this checkout. It is for TestMain.
func UseProgram() error {
	if os.Getenv(programs.EnvProgram) != "" {
		return nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			return errors.New("this test does not run within the repository")
		}
		dir = up
	}
	path := filepath.Join(dir, "bin", "ravi")
	if _, err := os.Stat(path); err != nil {
		return errors.New("there is no bin/ravi: run `make build`")
	}
	return os.Setenv(programs.EnvProgram, path)
}

type suite struct{ f Factory }

// room is a sandbox in use by a test.
type room struct {
	*sandbox.Sandbox
	ws  string // the workspace on the host; empty: it is not there
	dir string // the same as the sandbox sees it
	// lane has what Start starts have a lane, or the test fails.
	lane bool
}

// Start is the sandbox's.
func (r *room) Start(ctx context.Context, c sandbox.Cmd) (*sandbox.Process, error) {
	c.Lane = c.Lane || r.lane
	p, err := r.Sandbox.Start(ctx, c)
	if err == nil && r.lane && p.NoLane() != "" {
		err = errors.New(p.NoLane())
	}
	return p, err
}

func (s suite) config() sandbox.Config {
	cfg := sandbox.Default()
	cfg.MemoryMiB = 1024
	cfg.DefaultTimeout, cfg.VerifyTimeout = 600, 120 // which only a hang can reach
	return cfg
}

// room opens a sandbox on an empty workspace.
func (s suite) room(t *testing.T, change ...func(*sandbox.Config)) *room {
	t.Helper()
	if s.f.Elsewhere {
		return s.roomOn(t, "", change...)
	}
	return s.roomOn(t, t.TempDir(), change...)
}

func (s suite) roomOn(t *testing.T, ws string, change ...func(*sandbox.Config)) *room {
	t.Helper()
	cfg := s.config()
	for _, c := range change {
		c(&cfg)
	}
	sb := s.f.Open(t, cfg, ws)
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("closing the sandbox: %v", err)
		}
	})
	r := &room{Sandbox: sb, ws: ws}
	r.dir = strings.TrimSuffix(r.run(t, sandbox.Cmd{Shell: "pwd"}).Stdout, "\n")
	return r
}

// path is a path in the workspace as the sandbox sees it.
func (r *room) path(name string) string { return r.dir + "/" + name }

// put writes a file of the workspace from outside.
func (r *room) put(t testing.TB, name, text string, mode os.FileMode) {
	t.Helper()
	if r.ws != "" {
		write(t, filepath.Join(r.ws, name), text, mode)
		return
	}
	if err := r.Files().Write(ctx(t), r.path(name), strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	r.sh(t, fmt.Sprintf("chmod %o %s", mode, name))
}

// get reads a file of the workspace from outside, if it is seen there.
func (r *room) get(t testing.TB, name string) ([]byte, error) {
	if r.ws != "" {
		return os.ReadFile(filepath.Join(r.ws, name))
	}
	return r.Files().ReadFile(ctx(t), r.path(name), 1<<20)
}

// there says whether a file of the workspace is there, looked at from outside.
func (r *room) there(t testing.TB, name string) bool {
	t.Helper()
	var err error
	if r.ws != "" {
		_, err = os.Stat(filepath.Join(r.ws, name))
	} else {
		_, err = r.Files().Stat(ctx(t), r.path(name))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, sandbox.ErrNotFound) {
		t.Error(err)
	}
	return err == nil
}

// run runs a command that must have a result.
func (r *room) run(t testing.TB, c sandbox.Cmd) sandbox.Result {
	t.Helper()
	res, err := r.Exec(ctx(t), c)
	if err != nil {
		t.Fatalf("%s%q: %v", c.Shell, c.Args, err)
	}
	return res
}

// sh runs a line that must succeed, and returns its output.
func (r *room) sh(t testing.TB, line string) string {
	t.Helper()
	return r.shAs(t, "", line)
}

func (r *room) shAs(t testing.TB, user, line string) string {
	t.Helper()
	res := r.run(t, sandbox.Cmd{Shell: line, User: user})
	if res.ExitCode != 0 {
		t.Fatalf("%s: exit code %d (%s)\n%s%s", line, res.ExitCode, res.Reason, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// ctx is the test's, with a bound that only a hang can reach.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("the test hangs"))
	t.Cleanup(cancel)
	return c
}

// patience bounds waiting for what must happen; nothing is measured by it.
const patience = 5 * time.Minute

// eventually waits for a condition that must come true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, short(got), short(want))
	}
}

func short(v any) string {
	s := fmt.Sprintf("%#v", v)
	if len(s) > 300 {
		s = s[:150] + " … " + s[len(s)-150:]
	}
	return s
}

// alive says which processes in the sandbox have this text in their arguments.
func (r *room) alive(t testing.TB, text string) string {
	t.Helper()
	// The pattern does not match itself, nor what only looks like the text: numbers of others are anything.
	pattern := "[" + text[:1] + "]" + strings.ReplaceAll(text[1:], ".", "[.]")
	return r.run(t, sandbox.Cmd{Shell: `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null | grep -q '` + pattern +
		`' && echo "$p $(tr '\0' ' ' < $p/cmdline)"; done; true`}).Stdout
}
