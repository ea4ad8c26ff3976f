package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/modeltest"
)

// mayLoop makes a profile with which a loop may work on a repository, and more.
func (w *world) mayLoop(name string, r *repo, more ...string) {
	w.t.Helper()
	w.ravi(append([]string{"profiles", "set", name, "--backend", "gvisor", "--image", "host", "--repo", r.dir, "--network", "none",
		"--cpus", "2", "--memory", "2048", "--disk", "4", "--timeout", "10m", "--sandboxes", "4"}, more...)...).want(0)
}

// aLoop is what a holder of a key sends for a run of a loop.
func aLoop(t *testing.T, r *repo, more object) string {
	t.Helper()
	body := object{"repo": r.dir, "agent": "loop", "model": "scripted-1", "task": "do it", "cpus": 2, "memory": 2048, "disk": 4}
	for k, v := range more {
		body[k] = v
	}
	b, err := json.Marshal(body)
	must(t, err)
	return string(b)
}

func began(t *testing.T, status int, answer string) string {
	t.Helper()
	var run struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &run); err != nil || status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	return run.ID
}

// The daemon is killed in each phase of a loop that a holder of a key began: the loop goes on, what it says can be read all
// along, whoever approves reaches it, and it ends with its patch.
func TestLoopOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	c := loops[0]
	w, r := newWorld(t), plain(t)
	// held is a command that waits until it may go on.
	held := func(n int) string {
		return fmt.Sprintf("echo held %d; touch /tmp/held-%d; while [ ! -e /tmp/go-%d ]; do sleep 0.05; done; echo %d >>done.txt", n, n, n, n)
	}
	url, model := providerOf(t, c.header, modeltest.Script{
		Turns: []modeltest.Turn{
			{modeltest.Text("First."), modeltest.Call("exec", object{"command": held(1), "timeout": 600})},
			{modeltest.Call("exec", object{"command": "git push --force || echo 2 >>done.txt"})},
			{modeltest.Call("spawn", object{"task": "look at it"})},
			{modeltest.Text("I wait.")},
		},
		Then: []modeltest.Script{{Turns: []modeltest.Turn{{modeltest.Call("finish", object{"summary": "All is well."})}}}},
		Others: map[string]modeltest.Script{"You are a sub-agent": {Turns: []modeltest.Turn{
			{modeltest.Call("exec", object{"command": held(3), "timeout": 600})}, {modeltest.Call("exec", object{"command": "git push --force || true"})}, {modeltest.Text("It is the fourth.")}}}},
	})
	asked, answer := make(chan struct{}), make(chan struct{})
	url = before(t, url, "held 1", func() { close(asked); <-answer })
	w.env = []string{c.key + "=" + canary, c.base + "=" + url}
	w.mayLoop("p", r, "--program", "loop", "--model", "*/*")
	address := w.withDaemon()
	key := w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", "p")
	status, told := call(t, address, key, "runs/create", aLoop(t, r, object{"approval_timeout": "5m"}))
	id := began(t, status, told)
	w.killDaemon() // the sandbox starts
	box := w.sandboxes(1)[0]
	w.made("/tmp/held-1", box)
	w.killDaemon() // a command runs
	if logs := w.keyed(key).ravi("runs", "logs", id).want(0).stdout; !strings.Contains(logs, "First.") {
		t.Errorf("what it says cannot be read:\n%s", short(logs))
	}
	w.ravi("sandbox", "exec", box, "--", "touch", "/tmp/go-1").want(0)
	<-asked
	w.killDaemon() // the model answers
	close(answer)
	waits := w.pendingApproval()
	w.killDaemon() // an approval waits
	w.ravi("approvals", "grant", waits).want(0)
	boxes := w.sandboxes(2)
	where := w.made("/tmp/held-3", boxes...)
	w.killDaemon() // a sub-agent works
	w.ravi("sandbox", "exec", where, "--", "touch", "/tmp/go-3").want(0)
	waits = w.pendingApproval()
	if shown := w.ravi("approvals", "show", waits).want(0).stdout; !strings.Contains(shown, "sub-agent sub-1") {
		t.Errorf("it is not told who asks:\n%s", shown)
	}
	w.ravi("approvals", "grant", waits).want(0)
	w.keyed(key).ravi("runs", "wait", id).want(0)

	dir := filepath.Join(w.home, "runs", id)
	res := &result{t: t, dir: dir}
	if p := res.patch(); !strings.Contains(p, "+1\n+2\n") || strings.Contains(p, "+3") {
		t.Errorf("the patch:\n%s", short(p))
	}
	logs := w.keyed(key).ravi("runs", "logs", id).want(0).stdout
	for _, want := range []string{"First.", "held 1", "held 3", "All is well."} {
		if !strings.Contains(logs, want) {
			t.Errorf("its log lacks %q:\n%s", want, short(logs))
		}
	}
	if n := len(model.Requests()); n != 8 {
		t.Errorf("%d calls of the model", n)
	}
	for _, id := range boxes {
		nothingRemains(t, w.home, id)
	}
	w.given(id)
}

// A holder of a key has a loop work only where its profile lists it. What the loop asks for is granted by nobody who may
// only start runs, nor by whoever may decide about others' runs, nor by the loop itself.
func TestLoopOfAKey(t *testing.T) {
	t.Parallel()
	c := loops[0]
	w, r := newWorld(t), plain(t)
	url, _ := provider(t, c.header,
		modeltest.Turn{modeltest.Call("exec", object{"command": "git push --force || echo pushed >pushed.txt"})},
		modeltest.Turn{modeltest.Call("finish", object{"summary": "done"})})
	w.env = []string{c.key + "=" + canary, c.base + "=" + url}
	w.mayLoop("none", r, "--model", "*/*")
	w.mayLoop("other", r, "--program", "claude", "--model", "*/*")
	w.mayLoop("modelless", r, "--program", "loop")
	w.mayLoop("all", r, "--program", "loop", "--model", "*/*")
	address := w.withDaemon()
	for profile, says := range map[string]string{"none": "the agent program loop", "other": "the agent program loop", "modelless": "any model"} {
		key := w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", profile)
		if status, answer := call(t, address, key, "runs/create", aLoop(t, r, nil)); status != 403 || !strings.Contains(answer, says) {
			t.Errorf("with the profile %s: %d %s", profile, status, answer)
		}
	}
	if runs := w.ravi("runs", "ls", "-q").want(0).stdout; runs != "" {
		t.Errorf("runs began: %s", runs)
	}
	key := w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", "all")
	other := w.issue("--allow", "write:approvals", "--allow", "read:*", "--profile", "all")
	status, told := call(t, address, key, "runs/create", aLoop(t, r, object{"approval_timeout": "5m"}))
	id := began(t, status, told)
	waits := w.pendingApproval()
	for who, key := range map[string]string{"who made it": key, "another": other} {
		for _, what := range []string{"grant", "deny"} {
			if status, answer := call(t, address, key, "approvals/"+what, `{"id": "`+waits+`"}`); status != 403 && status != 404 {
				t.Errorf("%s may %s it: %d %s", who, what, status, answer)
			}
		}
	}
	w.ravi("approvals", "deny", waits, "--note", "not today").want(0)
	w.ravi("runs", "wait", id).want(0)
	if p := (&result{t: t, dir: filepath.Join(w.home, "runs", id)}).patch(); p != "" {
		t.Errorf("what was denied was done:\n%s", short(p))
	}
	w.ravi("approvals", "grant", waits).want(1).says("nothing was granted", "was denied")
}

// A loop whose run may write to everything that a run may cannot decide about itself, from within its sandbox either.
func TestLoopDoesNotJudgeItself(t *testing.T) {
	t.Parallel()
	c := loops[0]
	w, r := newWorld(t), plain(t)
	// It has learned the approval's id.
	r.write("judge.sh", `while [ ! -s /tmp/id ]; do sleep 0.05; done; id=$(cat /tmp/id)
		for what in "ls" "show $id" "grant $id" "deny $id"; do ravi approvals $what && echo WENT THROUGH; done
		curl -s -H "Authorization: Bearer $RAVI_CONTEXT_KEY" -H 'Content-Type: application/json' -d "{\"id\": \"$id\"}" "$RAVI_GATEWAY_URL/api/v1/approvals/grant"`)
	r.commit("judge")
	url, model := provider(t, c.header,
		modeltest.Turn{modeltest.Call("exec", object{"command": "git push --force '\x1b]0;owned\x07' || echo pushed >pushed.txt"}), modeltest.Call("exec", object{"command": "sh judge.sh", "timeout": 600})},
		modeltest.Turn{modeltest.Call("finish", object{"summary": "done"})})
	w.env = []string{c.key + "=" + canary, c.base + "=" + url}
	w.run(r, c.args("judge", "--connect", "write=approvals")...).want(2).says("no group that a run can write to")
	s := w.start(r, c.args("judge", "--connect", "write=tasks,memory,sessions,runs,context", "--approval-timeout", "5m")...)
	box := s.id()
	waits := w.pendingApproval()
	w.ravi("sandbox", "exec", box, "--", "sh", "-c", "echo "+waits+" >/tmp/new && mv /tmp/new /tmp/id").want(0)
	eventually(t, "the end of the script", func() bool { return strings.Contains(s.events(), "DENIED") })
	shown := w.ravi("approvals", "show", waits).want(0).stdout + w.ravi("approvals", "ls").want(0).stdout
	w.ravi("approvals", "deny", waits).want(0)
	run := s.wait().want(0)
	if shown += run.stdout + run.stderr + s.events(); strings.ContainsAny(shown, "\x1b\x07") || !strings.Contains(shown, "owned") {
		t.Errorf("what it asks for would steer a terminal, or is not shown: %q", short(shown))
	}
	if p := run.patch(); p != "" {
		t.Errorf("it has allowed itself:\n%s", short(p))
	}
	said, _ := fencedIn(t, results(t, model.Requests()[1])[1])
	if n := strings.Count(said, "no run decides about what runs may do"); n != 3 || strings.Contains(said, "WENT THROUGH") {
		t.Errorf("it was refused %d times:\n%s", n, said)
	}
	w.given(filepath.Base(run.dir))
}

// The sandboxes of sub-agents count for the profile of whoever began the loop: there is no more room for them than for others.
func TestLoopOfAKeyHasItsRoom(t *testing.T) {
	t.Parallel()
	c := loops[0]
	w, r := newWorld(t), plain(t)
	spawn := modeltest.Call("spawn", object{"task": "look"})
	url, model := providerOf(t, c.header, modeltest.Script{
		Turns:  []modeltest.Turn{{spawn, spawn, spawn}, {modeltest.Text("I wait.")}},
		Then:   []modeltest.Script{{Turns: []modeltest.Turn{{modeltest.Text("I wait on.")}}}},
		Others: map[string]modeltest.Script{"You are a sub-agent": {Turns: []modeltest.Turn{{modeltest.Call("exec", object{"command": "touch /tmp/held; while [ ! -e /tmp/go ]; do sleep 0.05; done", "timeout": 600})}}}},
	})
	w.env = []string{c.key + "=" + canary, c.base + "=" + url}
	w.mayLoop("two", r, "--program", "loop", "--model", "*/*", "--sandboxes", "2")
	address := w.withDaemon()
	key := w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", "two")
	status, told := call(t, address, key, "runs/create", aLoop(t, r, nil))
	id := began(t, status, told)
	dir := filepath.Join(w.home, "runs", id)
	eventually(t, "two sub-agents without room", func() bool {
		events, _ := os.ReadFile(filepath.Join(dir, "events.jsonl")) // it may not be there yet
		return strings.Count(string(events), `look: failed"`) == 2
	})
	if status, told := call(t, address, key, "runs/create", aLoop(t, r, nil)); status != 403 || !strings.Contains(told, "room for one more sandbox") {
		t.Errorf("another run: %d %s", status, told)
	}
	w.ravi("sandbox", "exec", w.made("/tmp/held", w.sandboxes(2)...), "--", "touch", "/tmp/go").want(0)
	w.ravi("runs", "wait", id).want(0)
	said := map[string]bool{}
	for _, r := range model.Requests() {
		for _, what := range []string{"ended: failed", "room for one more sandbox", "ended: done"} {
			said[what] = said[what] || r.Has(what)
		}
	}
	if len(said) != 3 || !said["ended: failed"] || !said["room for one more sandbox"] || !said["ended: done"] {
		t.Errorf("the loop is told %v", said)
	}
	w.given(id)
}
