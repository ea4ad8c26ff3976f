package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"ravi/internal/leaktest"
	"ravi/sandbox"
)

// Every failure of Open is an InitError that names its stage and what mends
// it, and leaves nothing.
func TestOpenFails(t *testing.T) {
	ws := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		change    func(*sandbox.Config)
		workspace string
		ctx       context.Context
		program   string
		stage     string
		says      string
		noHint    bool
	}{
		"microvm":             {change: func(c *sandbox.Config) { c.Backend = "microvm" }, stage: "backend", says: "microvm"},
		"boxlite":             {change: func(c *sandbox.Config) { c.Backend = "boxlite" }, stage: "backend", says: "boxlite"},
		"docker":              {change: func(c *sandbox.Config) { c.Backend = "docker" }, stage: "backend", says: "docker"},
		"e2b":                 {change: func(c *sandbox.Config) { c.Backend = "e2b" }, stage: "backend", says: "e2b"},
		"unknown backend":     {change: func(c *sandbox.Config) { c.Backend = "vmware" }, stage: "config", says: "vmware"},
		"unknown image":       {change: func(c *sandbox.Config) { c.Image = "ubuntu:22.04" }, stage: "create", says: "ubuntu:22.04"},
		"no rule":             {change: func(c *sandbox.Config) { c.AllowNet.Rules = []string{"pypi.org/simple"} }, stage: "config", says: "allow_net"},
		"rules on the host":   {change: func(c *sandbox.Config) { c.Backend, c.AllowNet.Rules = "host", []string{"pypi.org"} }, stage: "config", says: "allow_net"},
		"workspace missing":   {workspace: filepath.Join(ws, "missing"), stage: "workspace", says: "missing"},
		"workspace is a file": {workspace: file, stage: "workspace", says: "folder"},
		"workspace is home":   {workspace: "HOME", stage: "workspace", says: "reach"},
		"volume missing": {change: func(c *sandbox.Config) {
			c.ExtraVolumes = []sandbox.Volume{{Host: filepath.Join(ws, "nope"), Guest: "/mnt/x"}}
		}, stage: "workspace", says: "nope"},
		"volume of sockets": {change: func(c *sandbox.Config) {
			c.ExtraVolumes = []sandbox.Volume{{Host: "/run", Guest: "/mnt/x"}}
		}, stage: "workspace", says: "/run"},
		"no program":       {program: "/no/such/ravi", stage: "create", says: "/no/such/ravi"},
		"another program":  {program: "/bin/true", stage: "create", says: "/bin/true"},
		"already canceled": {ctx: canceled, stage: "create", says: "canceled", noHint: true},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			if c.program != "" {
				t.Setenv("RAVI_PROGRAM", c.program)
			}
			cfg := sandbox.Default()
			if c.change != nil {
				c.change(&cfg)
			}
			switch c.workspace {
			case "":
				c.workspace = ws
			case "HOME":
				c.workspace = home
			}
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			sb, err := sandbox.Open(c.ctx, cfg, c.workspace, sandbox.WithHome(home))
			if err == nil {
				sb.Close()
				t.Fatal("it was opened")
			}
			var ie *sandbox.InitError
			if !errors.As(err, &ie) {
				t.Fatalf("%T: %v, want an InitError", err, err)
			}
			if ie.Stage != c.stage {
				t.Errorf("stage %q, want %q (%v)", ie.Stage, c.stage, err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
			if ie.Hint == "" && !c.noHint {
				t.Errorf("no hint with %q", err)
			}
			if list, err := os.ReadDir(filepath.Join(home, "sandboxes")); err == nil && len(list) > 0 {
				t.Errorf("left in the home: %v", list)
			}
		})
	}
}

// What is recorded: first that it will be made, in the end that nothing is left.
func TestRecorder(t *testing.T) {
	home := t.TempDir()
	log := &recorder{t: t, home: home}
	sb := openAt(t, home, t.TempDir(), sandbox.WithRecorder(log))
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(log.calls, " "); got != "creating created ended:closed" {
		t.Errorf("recorded: %s", got)
	}
	// A record that cannot be written stops it before anything is made.
	refuse := &recorder{t: t, home: home, refuse: errors.New("the disk is full")}
	cfg := sandbox.Default()
	_, err := sandbox.Open(t.Context(), cfg, t.TempDir(), sandbox.WithHome(home), sandbox.WithRecorder(refuse))
	if !errors.Is(err, refuse.refuse) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(home, "sandboxes")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	// One that fails is recorded as ended, too.
	failed := &recorder{t: t, home: home}
	cfg.Image = "no-such-image"
	if _, err := sandbox.Open(t.Context(), cfg, t.TempDir(), sandbox.WithHome(home), sandbox.WithRecorder(failed)); err == nil {
		t.Error("an unknown image was opened")
	}
	if got := strings.Join(failed.calls, " "); got != "creating ended:not_made" {
		t.Errorf("recorded: %s", got)
	}
}

type recorder struct {
	t      *testing.T
	home   string
	calls  []string
	refuse error
}

func (r *recorder) Creating(_ context.Context, i sandbox.Info) error {
	if _, err := os.Stat(i.Dir); err == nil {
		r.t.Errorf("%s is there before it was recorded", i.Dir)
	}
	if r.refuse != nil {
		return r.refuse
	}
	r.calls = append(r.calls, "creating")
	return nil
}

func (r *recorder) Created(_ context.Context, id string, pid int) error {
	if pid <= 0 || len(remains(r.home, id)) == 0 {
		r.t.Errorf("recorded as made with pid %d, and not there", pid)
	}
	r.calls = append(r.calls, "created")
	return nil
}

func (r *recorder) Ended(_ context.Context, id, reason string) error {
	if left := remains(r.home, id); len(left) > 0 {
		r.t.Errorf("recorded as ended, and left are %v", left)
	}
	r.calls = append(r.calls, "ended:"+reason)
	return nil
}

// Goroutines of this process end with the sandbox.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	sb := openAt(t, t.TempDir(), t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := sb.Exec(ctx, sandbox.Cmd{Shell: "cat; echo x", Stdin: strings.NewReader("in")}); err != nil {
		t.Fatal(err)
	}
	events, err := sb.Files().Watch(ctx, "/tmp", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(ctx, sandbox.Cmd{Shell: "sleep 60"}); err != nil {
		t.Fatal(err)
	}
	cancel()
	for range events {
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	leaktest.None(t, before)
}
