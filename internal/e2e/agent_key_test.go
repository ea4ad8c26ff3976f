package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A holder of a key has an agent program work only where its profile says so, with the models that it lists. The key of
// the provider is a secret of Ravi's: neither the daemon's environment has it, nor the caller's.
func TestModelsOfAKey(t *testing.T) {
	w := newWorld(t)
	r := plain(t)
	e := newEcho(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(e.url, "http://"), ":")
	set := w.command("secrets", "set", "ANTHROPIC_API_KEY", "--host", "localhost:"+port)
	set.Stdin = strings.NewReader(canary)
	w.finish(set).want(0)
	w.ravi("config", "set", "models.providers", `{"anthropic": {"base_url": "http://localhost:`+port+`"}}`).want(0)
	bounds := []string{"--backend", "gvisor", "--image", "host", "--repo", r.dir, "--network", "none", "--cpus", "2", "--memory", "2048", "--disk", "4", "--timeout", "5m", "--sandboxes", "4"}
	profiles := 0
	keyFor := func(more ...string) string {
		profiles++
		name := fmt.Sprintf("p%d", profiles)
		w.ravi(slices.Concat([]string{"profiles", "set", name}, bounds, more)...).want(0)
		return w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", name)
	}
	address := w.withDaemon()
	body, err := json.Marshal(map[string]any{"repo": r.dir, "agent": "command", "cpus": 2, "memory": 2048, "disk": 4, "command": []string{"sh", "-c", askers + `
		say listed; say other; head -c 300 /tmp/a/listed /tmp/a/other
		printf %s "$LEASE" | cut -c1-7 >lease.txt; env | grep -c canary >canary.txt; true`}})
	must(t, err)
	for name, c := range map[string]struct {
		flags []string
		says  string
	}{
		"nothing":        {nil, "command"},
		"program alone":  {[]string{"--program", "command"}, "any model"},
		"another":        {[]string{"--program", "claude", "--model", "anthropic/*"}, "command"},
		"models alone":   {[]string{"--model", "anthropic/*"}, "command"},
		"other provider": {[]string{"--program", "command", "--model", "openai/*"}, "any model of"},
	} {
		status, answer := call(t, address, keyFor(c.flags...), "runs/create", string(body))
		if status != 403 || !strings.Contains(answer, c.says) {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if runs := w.ravi("runs", "ls", "-q").want(0).stdout; runs != "" || len(e.calls()) > 0 {
		t.Errorf("runs began: %s", runs)
	}
	status, answer := call(t, address, keyFor("--program", "command", "--model", "anthropic/listed"), "runs/create", string(body))
	if status != 200 {
		t.Fatalf("what is allowed: %d %s", status, answer)
	}
	var run struct{ ID string }
	must(t, json.Unmarshal([]byte(answer), &run))
	w.ravi("runs", "wait", run.ID).want(0)
	dir := filepath.Join(w.home, "runs", run.ID)
	out := read(t, filepath.Join(dir, "logs", "stdout.log"))
	for _, want := range []string{"== listed 200", "== other 403", "is not one that this run may use"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if patch := read(t, filepath.Join(dir, "changes.patch")); !strings.Contains(patch, "+rlease_") || !strings.Contains(patch, "+0") {
		t.Errorf("the patch:\n%s", patch)
	}
	if calls := e.calls(); len(calls) != 1 || calls[0].Key != canary || calls[0].Model != "listed" {
		t.Errorf("the provider got %+v", calls)
	}
	for name, b := range files(t, w.home) {
		if bytes.Contains(b, []byte(canary)) {
			t.Errorf("%s holds the key", name)
		}
	}
	if usage := w.ravi("usage", "--run", run.ID, "--json").want(0).stdout; !strings.Contains(usage, "listed") {
		t.Errorf("ravi usage says %s", usage)
	}
	w.ravi("audit", "verify").want(0)
}
