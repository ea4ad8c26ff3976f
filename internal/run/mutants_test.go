package run

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/contextkey"
	"ravi/internal/procid"
	"ravi/internal/redact"
	"ravi/internal/store"
)

// connectable is a run on its way that can be connected, and whether its gateway was ended.
func connectable(t *testing.T) (s *state, ended *bool) {
	t.Helper()
	home := t.TempDir()
	st := newStore(t, home)
	run, err := st.InsertRun(t.Context(), store.Run{Status: store.RunRunning})
	must(t, err)
	r := &redact.Redactor{}
	dir, err := newFolder(home, run.ID, r)
	must(t, err)
	t.Cleanup(dir.close)
	ended = new(bool)
	o := Options{Home: home, Store: st, Redact: r, Connect: &Connect{
		By: access.AsOperator(),
		Capabilities: func(id string) (access.Capabilities, error) {
			return access.ParseCapabilities([]string{"read:runs@" + id})
		},
		Serve: func(string) (func(context.Context, net.Conn), func(context.Context) error) {
			return func(context.Context, net.Conn) {}, func(context.Context) error { *ended = true; return nil }
		},
	}}
	return &state{Options: o, dir: dir, task: &Task{ID: run.ID, Dir: dir.dir}, audit: newNetAudit(audit.Log{Store: st}, run.ID)}, ended
}

// A connected run has one key, which is good on its own wires until the run ends, is known to what takes secrets out, and
// stands in the audit when it comes and when it goes.
func TestKeyOfARun(t *testing.T) {
	s, ended := connectable(t)
	s.Connect.Profile = "small"
	ctx := t.Context()
	must(t, s.takeContext(ctx))
	token := s.connected.token
	keys := contextkey.Keys{Store: s.Store}
	who, err := keys.Resolve(ctx, token, contextkey.Wire{RunID: s.task.ID})
	must(t, err)
	if who.IsOperator() || who.Key.Profile != "small" || who.Key.ID != s.connected.keyID || who.RunID() != s.task.ID || strings.Join(who.Key.Capabilities.Strings(), " ") != "read:runs@"+s.task.ID {
		t.Errorf("got %+v", who.Key)
	}
	for _, run := range []string{"", "run1"} {
		if _, err := keys.Resolve(ctx, token, contextkey.Wire{RunID: run}); !errors.Is(err, contextkey.ErrWire) {
			t.Errorf("over the wires of %q: %v", run, err)
		}
	}
	if _, found := s.Redact.Found("x " + token + " y"); !found {
		t.Error("the key is not taken out of what is shown")
	}
	if len(holders(t, s.Home, token)) > 0 {
		t.Errorf("the key is in %q", holders(t, s.Home, token))
	}
	if exists(s.dir.path(contextDir)) || len(s.contextOptions()) != 1 {
		t.Error("there is a snapshot that nobody asked for")
	}
	must(t, s.leaveContext(ctx))
	if _, err := keys.Resolve(ctx, token, contextkey.Wire{RunID: s.task.ID}); !errors.Is(err, contextkey.ErrRevoked) {
		t.Errorf("after its run: %v", err)
	}
	select {
	case <-s.connected.slide.over:
	default:
		t.Error("its end is still put off")
	}
	if !*ended {
		t.Error("its gateway is still there")
	}
	rows, err := s.Store.Audit(ctx, audit.Filter{})
	must(t, err)
	seen := map[string]int{}
	for _, r := range rows {
		if r.Object == s.connected.keyID && r.RunID == s.task.ID {
			seen[r.Action]++
		}
	}
	if seen[audit.KeyIssue] != 1 || seen[audit.KeyRevoke] != 1 {
		t.Errorf("the audit has %v", seen)
	}
}

// What starts a run with a key gives it a child of that key, never more, and within the same profile.
func TestKeyOfARunIsAChild(t *testing.T) {
	s, _ := connectable(t)
	ctx := t.Context()
	keys := contextkey.Keys{Store: s.Store}
	for capability, want := range map[string]bool{"read:runs": true, "read:tasks": false} {
		held, err := access.ParseCapabilities([]string{capability})
		must(t, err)
		token, parent, err := keys.Issue(ctx, access.AsOperator(), contextkey.Request{Capabilities: held, Profile: "small"})
		must(t, err)
		s.Connect.By, err = keys.Resolve(ctx, token, contextkey.Wire{})
		must(t, err)
		s.connected = connected{}
		err = s.takeContext(ctx)
		if (err == nil) != want {
			t.Errorf("by one who holds %s: %v", capability, err)
		}
		if err != nil {
			continue
		}
		key, err := s.Store.KeyByID(ctx, s.connected.keyID)
		if err != nil || key.ParentID != parent.ID || key.Profile != "small" {
			t.Errorf("got %+v, %v", key, err)
		}
		must(t, s.leaveContext(ctx))
	}
}

// A run whose key cannot be written down does not begin, and its key is over; who is not connected has none.
func TestKeyOfARunThatDoesNotBegin(t *testing.T) {
	s, _ := connectable(t)
	ctx := t.Context()
	s.audit = newNetAudit(audit.Log{Store: s.Store, Head: filepath.Join(s.Home, "nowhere", "head")}, s.task.ID)
	if err := s.takeContext(ctx); err == nil {
		t.Fatal("a key that the audit does not have was given")
	}
	_ = s.leaveContext(ctx) // the audit is as it was
	live, err := s.Store.ListKeys(ctx, store.KeyFilter{Live: true})
	if err != nil || len(live) > 0 || s.connected.serve != nil {
		t.Errorf("%d keys live, %v", len(live), err)
	}
	s, _ = connectable(t)
	s.Connect = nil
	must(t, s.takeContext(ctx))
	must(t, s.leaveContext(ctx))
	if all, err := s.Store.ListKeys(ctx, store.KeyFilter{}); err != nil || len(all) > 0 || len(s.contextOptions()) > 0 {
		t.Errorf("not connected: %d keys, %v", len(all), err)
	}
}

// A task that is over is not worked on.
func TestRunOnATaskThatIsOver(t *testing.T) {
	s, _ := connectable(t)
	task, err := s.Store.InsertTask(t.Context(), store.Task{Title: "x"})
	must(t, err)
	s.TaskID = task.ID
	must(t, s.beginTask(t.Context()))
	_, err = s.Store.SetTaskStatus(t.Context(), task.ID, store.TaskDone, store.TaskComment{Author: "x", Text: "done"})
	must(t, err)
	if err := s.beginTask(t.Context()); !errors.Is(err, store.ErrFinal) {
		t.Errorf("got %v", err)
	}
}

// The sweep ends the keys and leases of runs that are over or are not, and of no others; what ended stays as it is.
func TestSweepEndsKeysAndLeases(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	ctx := t.Context()
	self, err := procid.Self()
	must(t, err)
	dead := self
	dead.Start++
	run := func(status store.RunStatus, owner procid.ID) string {
		r, err := st.InsertRun(ctx, store.Run{Status: status, Owner: owner})
		must(t, err)
		return r.ID
	}
	lease := func(id string, owner procid.ID) string {
		l, err := st.InsertLease(ctx, store.Lease{Secret: "A", RunID: id, Owner: owner})
		must(t, err)
		return l.ID
	}
	lives, over, orphan := run(store.RunRunning, self), run(store.RunSucceeded, self), run(store.RunRunning, dead)
	held, err := access.ParseCapabilities([]string{"read:*"})
	must(t, err)
	keys := contextkey.Keys{Store: st}
	ends := map[string]bool{}
	for id, end := range map[string]bool{lives: false, over: true, orphan: true, "run01nothing": true} {
		_, key, err := keys.Issue(ctx, access.AsOperator(), contextkey.Request{RunID: id, Capabilities: held})
		must(t, err)
		ends[key.ID] = end
	}
	_, plain, err := keys.Issue(ctx, access.AsOperator(), contextkey.Request{Capabilities: held})
	must(t, err)
	ends[plain.ID] = false
	ends[lease(lives, dead)], ends[lease(over, self)], ends[lease("", self)], ends[lease("", dead)] = false, true, false, true
	// Its folder says how it ended, which stays.
	dir := filepath.Join(home, "runs", over)
	must(t, os.MkdirAll(dir, 0o700))
	told, err := json.Marshal(Task{ID: over, Status: store.RunSucceeded})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, TaskFile), told, 0o600))
	must(t, Sweeper{Home: home, Store: st}.closeRun(ctx, store.Run{ID: over}))
	must(t, Sweeper{Home: home, Store: st}.closeFolder(store.Run{ID: over}))
	if b, err := os.ReadFile(filepath.Join(dir, TaskFile)); err != nil || string(b) != string(told) {
		t.Errorf("its folder says %s, %v", b, err)
	}
	if report, err := (Sweeper{Home: home, Store: st}).Prune(ctx); err != nil || len(report.Problems) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	live := map[string]bool{}
	liveKeys, err := st.ListKeys(ctx, store.KeyFilter{Live: true})
	must(t, err)
	for _, k := range liveKeys {
		live[k.ID] = true
	}
	leases, err := st.LiveLeases(ctx)
	must(t, err)
	for _, l := range leases {
		live[l.ID] = true
	}
	for id, end := range ends {
		if live[id] == end {
			t.Errorf("%s lives: %v", id, live[id])
		}
	}
	if r, err := st.Run(ctx, over); err != nil || r.Status != store.RunSucceeded {
		t.Errorf("a run that had ended is %s, %v", r.Status, err)
	}
}

// Runs that were recorded before they had owners are their sandboxes' owners', and new ones are given time.
func TestRunsWithoutOwners(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	self, err := procid.Self()
	must(t, err)
	s := Sweeper{Home: home, Store: st}
	r, err := st.InsertRun(t.Context(), store.Run{Status: store.RunRunning})
	must(t, err)
	if owned, err := s.owned(t.Context(), r); err != nil || !owned {
		t.Errorf("a new one: %v, %v", owned, err)
	}
	r.CreatedAt = r.CreatedAt.Add(-2 * time.Minute)
	if owned, err := s.owned(t.Context(), r); err != nil || owned {
		t.Errorf("an old one: %v, %v", owned, err)
	}
	_, err = st.InsertSandbox(t.Context(), store.Sandbox{RunID: r.ID, Owner: self})
	must(t, err)
	if owned, err := s.owned(t.Context(), r); err != nil || !owned {
		t.Errorf("one whose sandbox has an owner: %v, %v", owned, err)
	}
}

// A patch that holds the run's own key, which is over, is let go with a word of it; another secret beside it still holds it
// back.
func TestKeyInAPatch(t *testing.T) {
	const key = "rctx_abcdefghijklmnopqrstuvwx"
	for script, held := range map[string]bool{`echo ` + key + ` >b`: false, `echo ` + key + ` >b; echo ` + value + ` >c`: true} {
		o := onHost(t, script)
		o.Redact.Add(redact.Pair{Secret: key, Instead: "[the run's context key]", Name: contextKeyName})
		task, err := Run(t.Context(), o)
		if (err != nil) != held || exists(filepath.Join(task.Dir, HeldFile)) != held || exists(filepath.Join(task.Dir, PatchFile)) == held {
			t.Errorf("%s: %+v, %v", script, task.Patch, err)
		}
		if held && (len(task.Patch.Secrets) != 1 || task.Patch.Secrets[0] != "TOKEN") {
			t.Errorf("%s: it is held for %q", script, task.Patch.Secrets)
		}
		if notes := strings.Join(task.Notes, "\n"); !strings.Contains(notes, contextKeyName+", which is over") {
			t.Errorf("%s: nobody is told of the key: %s", script, notes)
		}
	}
}

// A folder that was made just now, and is in no record yet, is its maker's.
func TestSweepLeavesNewFolders(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "sandboxes", "sbxnew")
	must(t, os.MkdirAll(dir, 0o700))
	var r store.Swept
	must(t, Sweeper{Home: home, Store: newStore(t, home)}.orphans(t.Context(), map[string]bool{}, &r))
	if !exists(dir) || r.Dirs > 0 {
		t.Errorf("it is there: %v, %+v", exists(dir), r)
	}
}

// The context of a run holds no secret that is known.
func TestSnapshotOfARunHoldsNoSecret(t *testing.T) {
	s, _ := connectable(t)
	a, err := s.Store.InsertAgent(t.Context(), store.Agent{Name: "anna", Instructions: "use " + value})
	must(t, err)
	s.AgentID, s.Snapshot, s.Connect = a.ID, true, nil
	s.Redact.Add(redact.Pair{Secret: value, Instead: "[secret TOKEN]", Name: "TOKEN"})
	must(t, s.takeContext(t.Context()))
	dir := s.dir.path(contextDir)
	if len(holders(t, dir, "[secret TOKEN]")) == 0 || len(holders(t, dir, value)) > 0 {
		t.Errorf("the secret is in %q", holders(t, dir, value))
	}
}
