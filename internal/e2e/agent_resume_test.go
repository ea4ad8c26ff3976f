package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/modeltest"
)

// conversation is that of task.json.
type conversation struct {
	ID, Resumed, Lost string
	Bytes             int64
}

func (r *result) conversation() conversation {
	r.t.Helper()
	var told struct{ Conversation conversation }
	must(r.t, json.Unmarshal([]byte(r.file("task.json")), &told))
	return told.Conversation
}

// A program goes on with its conversation in another sandbox, on a fresh clone: its model is sent what was said before,
// and only what is new comes out. So it does a second time.
func TestAgentResumes(t *testing.T) {
	for _, c := range tried() {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.withAgent(c.name)
			said := func(first, file, last string) modeltest.Script {
				return modeltest.Script{Turns: []modeltest.Turn{
					{modeltest.Text(first), modeltest.Shell("echo new > " + file)}, {modeltest.Text(last)},
				}}
			}
			script := said("A heron stands there.", "heron.txt", "The heron is drawn.")
			script.Then = []modeltest.Script{said("A crane comes.", "crane.txt", "The crane is drawn."), said("A stork comes.", "stork.txt", "The stork is drawn.")}
			url, model := providerOf(t, c.header, script)
			w.env = []string{c.key + "=" + canary, c.base + "=" + url}
			asked := 0
			// sent are the words that one call of the model has to hold.
			sent := func(words ...string) {
				t.Helper()
				all := model.Requests()
				for _, r := range all[asked:] {
					missing := 0
					for _, word := range words {
						if !bytes.Contains(r.Body, []byte(word)) {
							missing++
						}
					}
					if missing == 0 {
						asked = len(all)
						return
					}
				}
				t.Fatalf("of %d calls none was sent all of %q", len(all)-asked, words)
			}
			r := plain(t)
			first := w.run(r, c.args("draw the heron")...).want(0)
			sent("draw the heron")
			had := first.conversation()
			if had.ID == "" || had.Lost != "" || had.Bytes == 0 || had.Resumed != "" {
				t.Fatalf("task.json says %+v", had)
			}
			state := filepath.Join(first.dir, "agent-state.tar")
			if st, err := os.Stat(state); err != nil || st.Mode().Perm() != 0o600 || st.Size() != had.Bytes {
				t.Errorf("the conversation: %v, %v", st, err)
			}
			if b := read(t, state); strings.Contains(b, canary) || strings.Contains(b, "rlease_") {
				t.Error("the conversation holds the key or the lease")
			}

			// From another place, by the beginning of the id.
			second := w.run(r.clone(), c.args("draw the crane", "--resume", filepath.Base(first.dir)[:20])...).want(0)
			sent("draw the heron", "A heron stands there.", "The heron is drawn.", "draw the crane")
			if patch := second.file("changes.patch"); !strings.Contains(patch, "crane.txt") || strings.Contains(patch, "heron.txt") {
				t.Errorf("the patch:\n%s", short(patch))
			}
			if !strings.Contains(second.stdout, "The crane is drawn.") || strings.Contains(second.stdout, "The heron is drawn.") {
				t.Errorf("it shows:\n%s", short(second.stdout))
			}
			if got := second.conversation(); got.Resumed != filepath.Base(first.dir) || got.ID == "" || got.Lost != "" {
				t.Errorf("task.json says %+v", got)
			}
			// By a run that goes on by itself.
			id := strings.TrimSpace(w.ravi(append([]string{"runs", "create", "-q", "--repo", r.dir}, c.args("draw the stork", "--resume", filepath.Base(second.dir))...)...).want(0).stdout)
			w.ravi("runs", "wait", id).want(0)
			sent("draw the heron", "A heron stands there.", "draw the crane", "The crane is drawn.", "draw the stork")
			if patch := read(t, filepath.Join(w.home, "runs", id, "changes.patch")); !strings.Contains(patch, "stork.txt") || strings.Contains(patch, "crane.txt") {
				t.Errorf("the patch:\n%s", short(patch))
			}

			other := "claude"
			if c.name == other {
				other = "codex"
			}
			w.run(r, "--agent", other, "--task", "x", "--resume", filepath.Base(first.dir)).want(2).
				says("cannot be resumed: "+c.name+" did it, and not "+other, "--agent "+c.name)
		})
	}
}

// A holder of a key has its program go on with the runs that it made. Of another's it does not learn that they are there.
func TestKeyResumes(t *testing.T) {
	c := tried()[0]
	w := newWorld(t)
	w.withAgent(c.name)
	r := plain(t)
	script := modeltest.Script{Turns: []modeltest.Turn{{modeltest.Text("A heron stands there.")}}, Then: []modeltest.Script{{Turns: []modeltest.Turn{{modeltest.Text("It flies.")}}}}}
	url, model := providerOf(t, c.header, script)
	w.env = []string{c.key + "=" + canary, c.base + "=" + url}
	w.ravi("profiles", "set", "p", "--backend", "gvisor", "--image", "host", "--repo", r.dir, "--network", "none", "--cpus", "2", "--memory", "2048", "--disk", "4",
		"--timeout", "5m", "--sandboxes", "2", "--program", c.name, "--model", "*/*").want(0)
	address := w.withDaemon()
	keyFor := func() string {
		return w.issue("--allow", "write:runs.create", "--allow", "read:runs@own", "--profile", "p")
	}
	create := func(key, resume string) (status int, answer string) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"repo": r.dir, "agent": c.name, "model": c.model, "task": "draw it", "resume": resume, "cpus": 2, "memory": 2048, "disk": 4})
		must(t, err)
		return call(t, address, key, "runs/create", string(body))
	}
	run := func(key, resume string) string {
		t.Helper()
		status, answer := create(key, resume)
		var made struct{ ID string }
		if err := json.Unmarshal([]byte(answer), &made); err != nil || status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		w.ravi("runs", "wait", made.ID).want(0)
		return made.ID
	}
	mine, other := keyFor(), keyFor()
	first := run(mine, "")
	unknown := first[:len(first)-6] + "000000"
	said := map[string]bool{}
	for _, id := range []string{first, unknown} {
		status, answer := create(other, id)
		said[strings.ReplaceAll(answer, id, "RUN")] = true
		if status != 403 {
			t.Errorf("another's %s: %d %s", id, status, answer)
		}
	}
	if len(said) != 1 {
		t.Errorf("it is told of one that is there and one that is not: %v", said)
	}
	asked := len(model.Requests())
	second := run(mine, first)
	for _, req := range model.Requests()[asked:] {
		if bytes.Contains(req.Body, []byte("A heron stands there.")) {
			asked = -1
			break
		}
	}
	if out := read(t, filepath.Join(w.home, "runs", second, "logs", "stdout.log")); asked >= 0 || !strings.Contains(out, "It flies.") {
		t.Errorf("it did not go on:\n%s", short(out))
	}
}
