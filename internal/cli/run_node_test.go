package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/command"
	runs "ravi/internal/run"
	"ravi/sandbox"
)

// A program for Node.js is told before anything is made that there is none, or an old one. It is asked here only where
// it is this machine's, by the operator.
func TestNodeOfARun(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	t.Setenv("PATH", dir)
	p, ok := adapter.Lookup("gemini")
	if !ok {
		t.Fatal("there is no gemini")
	}
	asked := func(script string, by access.Caller, backend, image string) (*runs.Agent, error) {
		t.Helper()
		_ = os.Remove(filepath.Join(dir, "node"))
		_ = os.Remove(ran)
		if script != "" {
			if err := os.WriteFile(filepath.Join(dir, "node"), []byte("#!/bin/sh\n: >"+ran+"\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		o := runs.Options{Config: sandbox.Default()}
		o.Config.Backend, o.Config.Image = backend, image
		a := &runs.Agent{Program: p}
		return a, checkNode(t.Context(), &command.Env{Caller: by}, p, a, &o)
	}
	operator, key := access.AsOperator(), access.Caller{Key: &access.Key{ID: "ctx_x"}}
	for script, want := range map[string]string{
		"echo v20.3.1": "", "": "there is none on this machine", "echo v18.3.1": "there is v18.3.1 on this machine",
		"echo v20.3.1; exit 3":        "asking " + filepath.Join(dir, "node") + " for its version",
		`echo "v20.3.1$NODE_OPTIONS"`: "",
	} {
		t.Setenv("NODE_OPTIONS", "--require=evil")
		a, err := asked(script, operator, sandbox.BackendHost, "host")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || a.CheckNode {
			t.Errorf("%q: %v, want %q", script, err, want)
		}
	}
	told := command.AsError(func() error { _, err := asked("", operator, sandbox.BackendHost, "host"); return err }())
	if told.Code != command.CodeUnavailable || !strings.HasPrefix(told.Hint, "apt-get install -y nodejs") {
		t.Errorf("%+v", told)
	}
	// What is not in /usr the image has not.
	if _, err := asked("echo v20.3.1", operator, sandbox.BackendGVisor, "host"); err == nil || !strings.Contains(err.Error(), "there is none in /usr of this machine") {
		t.Errorf("of the image: %v", err)
	}
	for name, c := range map[string]struct {
		by             access.Caller
		backend, image string
	}{
		"another image": {operator, sandbox.BackendGVisor, "node:22"}, "a key": {key, sandbox.BackendGVisor, "host"}, "a key on the host": {key, sandbox.BackendHost, "host"},
	} {
		a, err := asked("echo v1.0.0", c.by, c.backend, c.image)
		if _, there := os.Stat(ran); err != nil || !a.CheckNode || there == nil {
			t.Errorf("%s: %v, %+v, and it was started: %v", name, err, a.CheckNode, there == nil)
		}
	}
}
