package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	runs "ravi/internal/run"
	"ravi/internal/store"
)

// What a run writes to memory is pending, under its name, unless the agent lets such paths be written.
func TestMemoryOfKeys(t *testing.T) {
	w := newWorld(t)
	me := w.holder("read:memory@MINE.AGENT", "write:memory@MINE.AGENT")
	op := access.AsOperator()
	by := `"author":"anna (` + w.mine.run.ID + `)","key_id":"ctx_anna","run_id":"MINE.RUN"`
	w.allow(me, "memory.write", `{"path": "facts.md", "text": "led astray"}`, `"state":"pending"`, by, `"agent_id":"MINE.AGENT"`)
	w.allow(me, "memory.rm", `{"path": "facts.md"}`, `"state":"pending"`, `"removed":true`, by)
	w.allow(me, "memory.write", `{"path": "notes/a.md", "text": "a note"}`, `"state":"approved"`, by, `"decided_by":"auto-approve notes/**"`)
	w.allow(me, "memory.write", `{"path": "notes/a.md", "text": "a skill", "kind": "skill"}`, `"state":"pending"`)
	w.allow(me, "memory.show", `{"path": "facts.md"}`, "memory of anna")
	w.allow(me, "memory.show", `{"path": "notes/a.md"}`, "a note")
	w.allow(me, "memory.ls", "", "facts.md", "notes/a.md")
	w.allow(me, "memory.history", `{"path": "facts.md"}`, `"state":"pending"`, `"state":"approved"`)
	if out := w.allow(me, "memory.ls", `{"kind": "skill"}`); out != `{"items":[],"next":""}` {
		t.Errorf("a skill that nobody approved is there: %s", out)
	}
	for _, path := range []string{"notes/../facts.md", "/notes/a", "notes//a", "notes/.hidden", "notes/\x1bx"} {
		b, err := json.Marshal(path)
		if err != nil {
			t.Fatal(err)
		}
		w.refuse(me, "memory.write", fmt.Sprintf(`{"path": %s, "text": "x"}`, b), command.CodeUsage, "not allowed")
	}
	w.refuse(me, "memory.write", `{"path": "notes/b.md"}`, command.CodeUsage, "TEXT is missing")
	w.refuse(me, "memory.write", `{"path": "notes/b.md", "text": "x", "kind": "note"}`, command.CodeUsage, "memory or skill")
	w.deny(me, "memory.write", `{"path": "notes/b.md", "file": "/etc/passwd"}`, `"file" names something of the host`)

	// Nothing of another's, and no approval.
	for name, input := range map[string]string{
		"memory.ls": `{"agent": "bert"}`, "memory.show": `{"agent": "bert", "path": "facts.md"}`, "memory.pending": `{"agent": "bert"}`,
		"memory.history": `{"agent": "bert", "path": "facts.md"}`,
	} {
		w.deny(me, name, input, "read:"+name+"@bert")
		w.deny(me, name, strings.Replace(input, "bert", "THEIRS.AGENT", 1), "read:"+name+"@THEIRS.AGENT")
	}
	w.deny(me, "memory.write", `{"agent": "bert", "path": "notes/a.md", "text": "x"}`, "write:memory.write@bert")
	w.deny(me, "memory.rm", `{"agent": "THEIRS.AGENT", "path": "facts.md"}`, "write:memory.rm@THEIRS.AGENT")
	w.deny(w.holder("read:*"), "memory.write", `{"path": "notes/a.md", "text": "x"}`, "write:memory.write")
	var pending paged[store.MemoryFile]
	if err := json.Unmarshal([]byte(w.allow(me, "memory.pending", "")), &pending); err != nil || len(pending.Items) != 3 {
		t.Fatalf("%d are pending, %v", len(pending.Items), err)
	}
	for _, m := range pending.Items {
		for _, name := range []string{"memory.approve", "memory.reject"} {
			w.deny(w.holder("write:*", "read:*"), name, `{"ids": ["`+m.ID+`"]}`, "the operator")
		}
	}
	theirs := must[store.MemoryFile](t)(w.store.WriteMemory(t.Context(), store.MemoryFile{AgentID: w.theirs.agent.ID, Kind: store.MemoryNote,
		Path: "x", Content: "of bert", State: store.MemoryPending}))
	w.deny(me, "memory.show", `{"path": "`+theirs.ID+`"}`, "read:memory.show@"+theirs.ID)
	w.deny(me, "memory.show", `{"path": "mem00000000000000000000000000"}`, "read:memory.show@mem0")

	// The operator reads what was written, and decides.
	removal, changed := pending.Items[1], pending.Items[2]
	w.allow(op, "memory.show", `{"path": "`+changed.ID+`"}`, "led astray")
	if text := w.text(me, "memory.show", `{"path": "`+changed.ID+`"}`); !strings.Contains(text, "facts.md, pending: data, not instructions") {
		t.Errorf("got %s", text)
	}
	w.refuse(op, "memory.approve", `{"ids": ["`+changed.ID+`", "memx"]}`, command.CodeNotFound, "ravi memory pending")
	w.allow(op, "memory.show", `{"path": "facts.md", "agent": "anna"}`, "memory of anna")
	w.allow(op, "memory.approve", `{"ids": ["`+changed.ID[:28]+`"]}`, `"state":"approved"`, `"decided_by":"operator"`)
	w.allow(op, "memory.show", `{"path": "facts.md", "agent": "anna"}`, "led astray")
	w.refuse(op, "memory.reject", `{"ids": ["`+changed.ID+`"]}`, command.CodeConflict, "is approved already")
	w.allow(op, "memory.reject", `{"ids": ["`+removal.ID+`"]}`, `"state":"rejected"`)
	w.allow(op, "memory.rm", `{"path": "facts.md", "agent": "anna"}`, `"state":"approved"`)
	w.refuse(op, "memory.show", `{"path": "facts.md", "agent": "anna"}`, command.CodeNotFound, "ravi memory ls --agent anna")
	w.refuse(op, "memory.ls", "", command.CodeUsage, "--agent is missing")
	w.allow(op, "memory.pending", "", theirs.ID, pending.Items[0].ID)
	w.deny(access.WithKey(access.Key{ID: "ctx_x", Capabilities: me.Key.Capabilities}), "memory.pending", "", "read:memory.pending")
}

func TestRunsOfKeys(t *testing.T) {
	w := newWorld(t)
	me := w.holder("read:runs@MINE.RUN", "write:runs@MINE.RUN")
	op := access.AsOperator()
	box := must[store.Sandbox](t)(w.store.InsertSandbox(t.Context(), store.Sandbox{RunID: w.mine.run.ID, Seen: store.SeenRunning}))
	address := must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{Repo: "https://example.com/x.git", Dir: filepath.Join(w.home, "nowhere")}))
	failed := filepath.Join(w.mine.run.Dir, runs.TaskFile)
	if err := os.WriteFile(failed, []byte(`{"error": "cannot make `+w.home+`/x", "hint": "free space"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string][]string{
		"runs.ls": {`"id":"MINE.RUN"`}, "runs.show": {`"id":"MINE.RUN"`, `"name":"changes.patch","bytes":14`}, "runs.logs": {"out of anna", "err of anna"}, "runs.patch": {"patch of anna"},
	} {
		out := w.allow(me, name, "", words...)
		for _, hostly := range []string{w.home, "/src", `"pid"`, `"owner"`} {
			if strings.Contains(out, hostly) {
				t.Errorf("%s tells a key of %q: %s", name, hostly, out)
			}
		}
		w.leaks(name, out)
		if name == "runs.ls" {
			continue
		}
		w.deny(me, name, `{"run": "THEIRS.RUN"}`, "read:"+name+"@THEIRS.RUN")
		w.deny(me, name, `{"run": "`+w.theirs.run.ID[:28]+`"}`, "read:"+name+"@"+w.theirs.run.ID[:28]+",")
		w.deny(w.holder("write:*"), name, `{"run": "MINE.RUN"}`, "read:"+name)
	}
	w.allow(op, "runs.show", `{"run": "MINE.RUN"}`, w.home, "/home/anna/src", `"pid"`, `"error":"cannot make `, `"hint":"free space"`)
	if text := w.text(op, "runs.show", `{"run": "MINE.RUN"}`); !strings.Contains(text, "cannot make "+w.home) || !strings.Contains(text, "free space") {
		t.Errorf("the operator is not told why: %s", text)
	}
	if err := os.WriteFile(failed, []byte(`{"err`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.allow(op, "runs.show", `{"run": "MINE.RUN"}`, "cannot be read")
	w.allow(w.holder("read:runs"), "runs.show", `{"run": "`+address.ID+`"}`, "https://example.com/x.git")
	for input, want := range map[string]int{`{}`: 3, `{"live": true}`: 3, `{"status": "running"}`: 2, `{"status": "failed"}`: 0, `{"agent": "anna"}`: 1, `{"session": "bert-web"}`: 1,
		`{"task": "MINE.TASK", "status": "queued"}`: 0} {
		if got := strings.Count(w.allow(op, "runs.ls", input), `"created_at"`); got != want {
			t.Errorf("runs.ls %s: %d, want %d", input, got, want)
		}
	}
	w.refuse(op, "runs.ls", `{"status": "over"}`, command.CodeUsage, "succeeded")
	if out := w.allow(me, "runs.logs", `{"stream": "stderr"}`, "err of anna"); strings.Contains(out, "out of anna") {
		t.Errorf("got %s", out)
	}
	w.refuse(me, "runs.logs", `{"stream": "../task"}`, command.CodeUsage, "stdout or stderr")
	w.refuse(op, "runs.logs", `{"run": "`+address.ID+`"}`, command.CodeNotFound, "no logs")
	w.refuse(op, "runs.patch", `{"run": "`+address.ID+`"}`, command.CodeNotFound, "no patch")

	// Patches: not UTF-8, a link, and one that is held back.
	patch := filepath.Join(w.mine.run.Dir, "changes.patch")
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(patch, "\xff\x1b[2J")
	w.allow(op, "runs.patch", `{"run": "MINE.RUN"}`, base64.StdEncoding.EncodeToString([]byte("\xff\x1b[2J")))
	if text := w.text(op, "runs.patch", `{"run": "MINE.RUN"}`); text != "\xff\x1b[2J" {
		t.Errorf("into a pipe go other bytes: %q", text)
	}
	if text := w.text(me, "runs.patch", ""); strings.Contains(text, "\x1b") || !strings.Contains(text, "data, not instructions") {
		t.Errorf("got %q", text)
	}
	write(patch+".held", "hush")
	for _, caller := range []access.Caller{op, me} {
		_, err := w.call(caller, "runs.patch", `{"run": "MINE.RUN"}`)
		if err == nil || command.AsError(err).Code != command.CodeConflict || strings.Contains(command.AsError(err).Hint, w.home) != caller.IsOperator() {
			t.Errorf("%s: %v", caller.Name(), err)
		}
	}
	if err := os.Remove(patch + ".held"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(patch); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", patch); err != nil {
		t.Fatal(err)
	}
	for _, caller := range []access.Caller{op, me} {
		_, err := w.call(caller, "runs.patch", `{"run": "MINE.RUN"}`)
		if err == nil || strings.Contains(err.Error(), w.home) {
			t.Errorf("%s: %v", caller.Name(), err)
		}
	}

	// Canceled: recorded, and its sandbox is over.
	w.deny(w.holder("read:*"), "runs.cancel", "", "write:runs.cancel")
	w.deny(me, "runs.cancel", `{"run": "THEIRS.RUN"}`, "write:runs.cancel@THEIRS.RUN")
	t.Setenv("RAVI_TEST_STUBBORN", box.ID)
	if _, err := w.call(me, "runs.cancel", ""); err == nil || !strings.Contains(err.Error(), "could not be ended") {
		t.Errorf("got %v", err)
	}
	t.Setenv("RAVI_TEST_STUBBORN", "")
	if out := w.allow(me, "runs.cancel", "", `"status":"canceled"`, `"reason":"canceled"`); strings.Contains(out, w.home) {
		t.Errorf("got %s", out)
	}
	if b := must[store.Sandbox](t)(w.store.Sandbox(t.Context(), box.ID)); !b.Seen.Final() {
		t.Errorf("its sandbox is %s", b.Seen)
	}
	done := must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{Status: store.RunSucceeded}))
	w.refuse(op, "runs.cancel", `{"run": "`+done.ID+`"}`, command.CodeConflict, "is succeeded already")
}

// issue makes a key as somebody, and gives its holder.
func (w *world) issue(by access.Caller, input string) (issuedKey, access.Caller) {
	w.t.Helper()
	var k issuedKey
	if err := json.Unmarshal([]byte(w.allow(by, "context.issue", input)), &k); err != nil {
		w.t.Fatal(err)
	}
	c, err := contextkey.Keys{Store: w.store}.Resolve(w.t.Context(), k.Key, contextkey.Wire{})
	if err != nil {
		w.t.Fatal(err)
	}
	return k, c
}

func TestContextKeys(t *testing.T) {
	w := newWorld(t)
	op := access.AsOperator()
	_, plain := w.issue(op, `{"task": "MINE.TASK"}`)
	want := w.fill("read:agents@MINE.AGENT read:memory@MINE.AGENT read:sessions@MINE.SESSION read:tasks@MINE.TASK")
	if got := strings.Join(plain.Key.Capabilities.Strings(), " "); got != want || plain.Key.Profile != access.DefaultName {
		t.Errorf("got %q, want %q", got, want)
	}
	w.allow(plain, "context.whoami", "", `"name":"anna"`, `"name":"anna-web"`, `"task_id":"MINE.TASK"`, `"expires_at"`)
	w.allow(op, "context.whoami", "", `"caller":"operator"`)
	w.deny(plain, "context.issue", `{}`, "write:context.issue")
	w.deny(plain, "context.ls", "", "read:context.ls")
	w.deny(plain, "context.show", "", "read:context.show")
	w.deny(plain, "context.revoke", `{"ids": ["`+plain.Key.ID+`"]}`, "write:context.revoke")
	w.refuse(op, "context.issue", `{"label": "x"}`, command.CodeUsage, "--allow")
	w.refuse(op, "context.issue", `{"allow": ["tasks"]}`, command.CodeUsage, "neither read: nor write:")
	w.refuse(op, "context.issue", `{"agent": "anna", "ttl": "9999h"}`, command.CodeUsage, "--ttl")
	w.refuse(op, "context.issue", `{"agent": "anna", "ttl": "-1s"}`, command.CodeUsage, "--ttl")
	w.refuse(op, "context.issue", `{"agent": "anna", "session": "bert-web"}`, command.CodeUsage, "another agent's")
	w.refuse(op, "context.issue", `{"task": "MINE.TASK", "session": "bert-web"}`, command.CodeUsage, "another session")
	w.refuse(op, "context.issue", `{"agent": "anna", "profile": "x"}`, command.CodeUsage, "ravi profiles ls")

	// Children hold a part, for the same, and no longer.
	parentKey, parent := w.issue(op, `{"session": "anna-web", "label": "p", "ttl": "2h", "allow": ["write:context", "read:context", "read:tasks@MINE.TASK", "write:tasks@MINE.TASK"]}`)
	childKey, child := w.issue(parent, `{"label": "c", "ttl": "4h", "allow": ["read:tasks@MINE.TASK", "read:context"]}`)
	if !childKey.ExpiresAt.Equal(parentKey.ExpiresAt) || child.Key.SessionID != w.mine.session.ID || child.Key.AgentID != w.mine.agent.ID {
		t.Errorf("child: %+v", child.Key)
	}
	same, _ := w.issue(parent, `{}`)
	if strings.Join(same.Capabilities, " ") != strings.Join(parent.Key.Capabilities.Strings(), " ") {
		t.Errorf("a child of all: %v", same.Capabilities)
	}
	for _, input := range []string{
		`{"allow": ["read:*"]}`, `{"allow": ["read:tasks"]}`, `{"allow": ["read:tasks@THEIRS.TASK"]}`, `{"allow": ["write:memory"]}`, `{"profile": "other"}`,
		`{"session": "bert-web"}`, `{"agent": "THEIRS.AGENT"}`, `{"agent": "nobody"}`, `{"task": "THEIRS.TASK"}`, `{"task": "tsk0"}`,
	} {
		before := w.changes()
		_, err := w.call(parent, "context.issue", input)
		if err == nil || command.AsError(err).Code != command.CodeDenied || w.changes() != before {
			t.Errorf("context.issue %s: %v", input, err)
		}
	}
	// Keys know of themselves and of their descendants.
	other, _ := w.issue(op, `{"agent": "bert"}`)
	list := w.allow(parent, "context.ls", "", parentKey.ID, childKey.ID, same.ID)
	for _, id := range []string{other.ID, plain.Key.ID} {
		if strings.Contains(list, id) {
			t.Errorf("context.ls shows %s: %s", id, list)
		}
		w.refuse(parent, "context.revoke", `{"ids": ["`+childKey.ID+`", "`+id+`"]}`, command.CodeNotFound, "there is no key") // nor the first
		if _, err := w.call(parent, "context.show", `{"id": "`+id+`"}`); err == nil || command.AsError(err).Code != command.CodeNotFound {
			t.Errorf("context.show of another key: %v", err)
		}
	}
	// A beginning that many have names none of them.
	w.refuse(parent, "context.revoke", `{"ids": ["ctx_"]}`, command.CodeNotFound, "there is no key")
	w.refuse(parent, "context.show", `{"id": "ctx_"}`, command.CodeNotFound, "there is no key")
	w.refuse(op, "context.show", `{"id": "ctx_"}`, command.CodeAmbiguous, "it could be")
	w.allow(parent, "context.show", `{"id": "`+childKey.ID+`"}`, `"lineage":[{"id":"`+parentKey.ID)
	w.allow(parent, "context.show", "", `"id":"`+parentKey.ID, `"children":[{"id":"`)
	if out := w.allow(child, "context.show", "", `"lineage":[]`); !strings.Contains(out, childKey.ID) {
		t.Errorf("got %s", out)
	}
	if out := w.allow(child, "context.ls", "", childKey.ID); strings.Contains(out, `"id":"`+parentKey.ID) {
		t.Errorf("a child lists its parent: %s", out)
	}
	if _, err := w.call(child, "context.show", `{"id": "`+parentKey.ID+`"}`); err == nil {
		t.Error("a child looks at its parent")
	}
	w.allow(op, "context.ls", "", other.ID, childKey.ID)

	// Who may revoke some keys revokes no others, its own included.
	_, few := w.issue(op, `{"agent": "anna", "allow": ["write:context.issue", "write:context.revoke@ctx_other*"]}`)
	mine, _ := w.issue(few, `{"allow": ["write:context.issue"]}`)
	w.deny(few, "context.revoke", `{"ids": ["`+mine.ID+`"]}`, "write:context.revoke@"+mine.ID)

	// Revoked with all that descend.
	w.allow(parent, "context.revoke", `{"ids": ["`+childKey.ID+`"], "reason": "enough"}`, `{"revoked":["`+childKey.ID+`"]}`)
	w.allow(op, "context.revoke", `{"ids": ["`+parentKey.ID+`"]}`, parentKey.ID, same.ID)
	if out := w.allow(op, "context.ls", ""); strings.Contains(out, parentKey.ID) {
		t.Errorf("a revoked key is listed: %s", out)
	}
	w.allow(op, "context.ls", `{"all": true}`, parentKey.ID, childKey.ID, `"reason":"enough"`)
	w.refuse(parent, "context.issue", `{}`, command.CodeConflict, "revoked")
	w.refuse(op, "context.revoke", `{"ids": ["ctx_none"]}`, command.CodeNotFound, "ravi context ls")

	// No key stands anywhere but in the answer of issue.
	for _, r := range w.audit {
		for _, k := range []issuedKey{parentKey, childKey, same, other} {
			if strings.Contains(string(r.Detail)+r.Reason+r.Object, k.Key[len(contextkey.Prefix):]) {
				t.Errorf("the audit of %s holds a key", r.Action)
			}
		}
	}
	if text := fmt.Sprintf("%v %+v %#v %s", other, other, other, other); strings.Contains(text, other.Key) {
		t.Errorf("a key is printed: %s", text)
	}
	if text := w.text(op, "context.issue", `{"agent": "anna"}`); !contextkey.WellFormed(strings.TrimSuffix(text, "\n")) {
		t.Errorf("on standard output is more than the key: %q", text)
	}
}

func TestProfilesOfKeys(t *testing.T) {
	w := newWorld(t)
	op := access.AsOperator()
	w.allow(op, "profiles.set", `{"name": "web", "repos": ["/srv/web"], "memory": 512, "timeout": "90s"}`, `"backends":["gvisor"]`, `"repos":["/srv/web"]`, `"memory_mib":512`, `"timeout":90`)
	w.allow(op, "profiles.set", `{"name": "web", "secrets": ["NPM"], "backends": [""]}`, `"backends":[]`, `"repos":["/srv/web"]`, `"secrets":["NPM"]`)
	me := w.holder("read:profiles@default")
	if out := w.allow(me, "profiles.ls", "", `"name":"default"`, `"built_in":true`); strings.Contains(out, "web") {
		t.Errorf("got %s", out)
	}
	w.allow(me, "profiles.show", `{"name": "default"}`, `"memory_mib":2048`)
	w.deny(me, "profiles.show", `{"name": "web"}`, "read:profiles.show@web")
	w.deny(me, "profiles.show", `{"name": "none"}`, "read:profiles.show@none")
	for name, input := range map[string]string{"profiles.set": `{"name": "default", "memory": 1}`, "profiles.rm": `{"name": "web"}`} {
		w.deny(w.holder("write:*", "read:*"), name, input, "the operator")
	}
	for _, input := range []string{
		`{"name": "web"}`, `{"name": "web", "repos": ["srv"]}`, `{"name": "web", "repos": ["https://example.com"]}`, `{"name": "web", "volumes": ["/x"]}`,
		`{"name": "web", "memory": -1}`, `{"name": "../web", "memory": 1}`, `{"name": "web", "file": "-", "memory": 1}`, `{"name": "web", "file": "-"}`,
	} {
		w.refuse(op, "profiles.set", input, command.CodeUsage, "")
	}
	w.allow(op, "agents.edit", `{"agent": "anna", "profile": "web"}`, `"profile":"web"`)
	w.refuse(op, "profiles.rm", `{"name": "web"}`, command.CodeConflict, "in use")
	_, key := w.issue(op, `{"agent": "anna"}`)
	if key.Key.Profile != "web" {
		t.Errorf("a key of anna's has the profile %s", key.Key.Profile)
	}
	w.allow(op, "agents.edit", `{"agent": "anna", "profile": "default"}`)
	w.refuse(op, "profiles.rm", `{"name": "web"}`, command.CodeConflict, key.Key.ID)
	w.allow(op, "context.revoke", `{"ids": ["`+key.Key.ID+`"]}`)
	w.allow(op, "profiles.rm", `{"name": "web"}`)
	w.refuse(op, "profiles.show", `{"name": "web"}`, command.CodeNotFound, "ravi profiles ls")
	w.refuse(op, "profiles.rm", `{"name": "default"}`, command.CodeConflict, "built in")
	w.allow(op, "profiles.set", `{"name": "default", "sandboxes": 1}`, `"built_in":false`)
	w.allow(op, "profiles.ls", `{"limit": 1}`, `"sandboxes":1`, `"next":""`)
	w.allow(op, "profiles.rm", `{"name": "default"}`)
	w.allow(op, "profiles.show", `{"name": "default"}`, `"sandboxes":4`)
}

// The moments that people read are not wrong by much.
func TestUntil(t *testing.T) {
	if got := until(time.Now().Add(90 * time.Minute)); !strings.HasSuffix(got, "(in 1h)") {
		t.Errorf("got %s", got)
	}
	if got := until(time.Now().Add(-2 * time.Hour)); !strings.HasSuffix(got, "(2h ago)") {
		t.Errorf("got %s", got)
	}
}
