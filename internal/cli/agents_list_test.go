package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/secret"
	"ravi/sandbox"
)

// The programs say what the operator's machine has, so a holder of a key sees none, and one that it names is as if it
// were not there.
func TestProgramsAreTheOperators(t *testing.T) {
	w := newWorld(t)
	if out := w.allow(access.AsOperator(), "agents.ls", ""); strings.Count(out, `"dialect":"anthropic"`) != 1 {
		t.Errorf("the operator: %s", out)
	}
	w.allow(access.AsOperator(), "agents.show", `{"agent":"claude"}`, `"title":"Claude Code"`)
	for _, capability := range []string{"read:agents@MINE.AGENT", "read:agents", "read:*"} {
		if out := w.allow(w.holder(capability), "agents.ls", "", `"programs":[]`); strings.Contains(out, "claude") {
			t.Errorf("%s: %s", capability, out)
		}
		if out, err := w.call(w.holder(capability), "agents.show", `{"agent":"claude"}`); err == nil {
			t.Errorf("%s: %s", capability, out)
		}
	}
}

// A program has the providers that there is a key for, and each kind of key counts.
func TestProgramsProviders(t *testing.T) {
	env := modelsHome(t, "", map[string]string{"OPENAI_API_KEY": "sk-something-long"}, map[string]secret.Change{"GEMINI_API_KEY": stored("AIza-something-long", "generativelanguage.googleapis.com")})
	all, err := agentPrograms(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		want := map[string][]string{"claude": {}, "codex": {"openai"}, "gemini": {"gemini"}, "loop": {"openai"}}[p.Name]
		if want == nil {
			want = []string{"openai", "gemini"}
		}
		if !slices.Equal(p.Providers, want) || (p.Problem == "") != (len(want) > 0) {
			t.Errorf("%s: %v (%s), want %v", p.Name, p.Providers, p.Problem, want)
		}
	}
	if b, err := json.Marshal(all); err != nil || strings.Contains(string(b), "something-long") || len(all) != len(adapter.Programs())+1 {
		t.Errorf("%s, %v", b, err)
	}
}

// What the image has is in /usr; on the host all of it counts.
func TestInImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "claude"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin")
	if at, ok := inImage("claude", sandbox.BackendAuto); ok {
		t.Errorf("the image has %s", at)
	}
	if at, ok := inImage("claude", sandbox.BackendHost); !ok || at != filepath.Join(dir, "claude") {
		t.Errorf("the host: %s, %v", at, ok)
	}
	if at, ok := inImage("env", sandbox.BackendAuto); !ok || at != "/usr/bin/env" {
		t.Errorf("the image has no env: %s, %v", at, ok)
	}
	if _, ok := inImage("no-such-program", sandbox.BackendHost); ok {
		t.Error("what is nowhere is there")
	}
}
