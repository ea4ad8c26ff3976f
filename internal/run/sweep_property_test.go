package run

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"ravi/internal/procid"
	"ravi/internal/store"
	"ravi/sandbox"
)

// gone is a process that has ended.
func gone(t *testing.T) procid.ID {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := procid.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	return id
}

// A sandbox reaches its end from every state, under any order of events, once its owner is gone; as long as the owner
// lives nothing but a kill ends it; and what has ended stays so.
func TestEverySandboxEnds(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	dead := gone(t)
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	sweeper := Sweeper{Home: home, Store: st}
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		must := func(err error) {
			if err != nil && !errors.Is(err, store.ErrFinal) {
				rt.Fatal(err)
			}
		}
		rec := Recorder{Store: st}
		id := sandbox.NewID()
		dir := filepath.Join(home, "sandboxes", id)
		must(rec.Creating(ctx, sandbox.Info{ID: id, Backend: "gvisor", Image: "host", Dir: dir, Config: sandbox.Default()}))
		ended := false
		owner, keeper := true, false // live
		for range rapid.IntRange(0, 10).Draw(rt, "steps") {
			switch step := rapid.SampledFrom([]string{"dir", "created", "paused", "running", "owner dies", "keeper dies", "kill", "sweep", "wanted ended", "recorded"}).Draw(rt, "step"); step {
			case "dir":
				must(os.MkdirAll(filepath.Join(dir, "overlay"), 0o700))
			case "created":
				_, err := st.UpdateSandbox(ctx, id, func(b *store.Sandbox) error {
					if !b.Seen.Final() {
						b.Seen = store.SeenRunning
					}
					b.Keeper = self
					return nil
				})
				must(err)
				keeper = true
			case "paused":
				_, err := st.UpdateSandboxState(ctx, id, store.SeenPaused, "")
				must(err)
			case "running":
				_, err := st.UpdateSandboxState(ctx, id, store.SeenRunning, "")
				must(err)
			case "owner dies":
				_, err := st.UpdateSandbox(ctx, id, func(b *store.Sandbox) error { b.Owner, b.Keeper = dead, dead; return nil })
				must(err)
				owner, keeper = false, false
			case "keeper dies":
				_, err := st.UpdateSandbox(ctx, id, func(b *store.Sandbox) error { b.Keeper = dead; return nil })
				must(err)
				keeper = false
			case "kill":
				b, err := st.Sandbox(ctx, id)
				must(err)
				must(sweeper.Kill(ctx, b))
				ended = true
			case "sweep":
				_, err := sweeper.Prune(ctx)
				must(err)
				ended = ended || !owner && !keeper
			case "wanted ended":
				_, err := st.UpdateSandbox(ctx, id, func(b *store.Sandbox) error { b.Desired = store.WantEnded; return nil })
				must(err)
			case "recorded":
				must(rec.Ended(ctx, id, "test"))
				ended = true
			}
			b, err := st.Sandbox(ctx, id)
			must(err)
			if b.Seen.Final() != ended {
				rt.Fatalf("it is %s, and ended=%v", b.Seen, ended)
			}
		}
		_, err := st.UpdateSandbox(ctx, id, func(b *store.Sandbox) error { b.Owner, b.Keeper = dead, dead; return nil })
		must(err)
		report, err := sweeper.Prune(ctx)
		must(err)
		b, err := st.Sandbox(ctx, id)
		must(err)
		if !b.Seen.Final() || b.EndedAt == nil {
			rt.Fatalf("in the end it is %+v; the sweep says %+v", b, report)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) && !sweeper.recent(dir) {
			rt.Fatalf("its folder is there: %v", err)
		}
		again, err := sweeper.Prune(ctx)
		must(err)
		if len(again.Ended) > 0 {
			rt.Fatalf("it ended twice: %+v", again)
		}
	})
}

// The sweep ends the keys and leases of runs that are over, and closes those whose process is gone; it leaves alone what
// a process that lives holds.
func TestSweepEndsWhatRunsLeft(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	ctx := t.Context()
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	task, err := st.InsertTask(ctx, store.Task{Title: "x"})
	if err != nil {
		t.Fatal(err)
	}
	type left struct {
		run   store.Run
		key   store.Key
		lease store.Lease
		model store.ModelLease
	}
	make := func(owner procid.ID, status store.RunStatus, hash string) left {
		run, err := st.InsertRun(ctx, store.Run{Owner: owner, Status: status, TaskID: task.ID})
		if err != nil {
			t.Fatal(err)
		}
		key, err := st.InsertKey(ctx, store.Key{Hash: hash, Kind: store.KeyRun, RunID: run.ID, ExpiresAt: store.Now().Add(1e12)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := st.InsertLease(ctx, store.Lease{Secret: "S", RunID: run.ID, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		model, err := st.InsertModelLease(ctx, store.ModelLease{Hash: hash, RunID: run.ID, Owner: owner, ExpiresAt: store.Now().Add(1e12)})
		if err != nil {
			t.Fatal(err)
		}
		return left{run, key, lease, model}
	}
	hash := func(c string) string {
		out := ""
		for range 64 {
			out += c
		}
		return out
	}
	dead := gone(t)
	killed, queued := make(dead, store.RunRunning, hash("a")), make(dead, store.RunQueued, hash("b"))
	over, living := make(dead, store.RunSucceeded, hash("c")), make(self, store.RunRunning, hash("d"))
	if _, err := (Sweeper{Home: home, Store: st}).Prune(ctx); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		left
		status store.RunStatus
		live   bool
	}{
		"killed": {killed, store.RunError, false}, "queued": {queued, store.RunError, false},
		"over": {over, store.RunSucceeded, false}, "living": {living, store.RunRunning, true},
	} {
		run, err := st.Run(ctx, c.run.ID)
		if err != nil || run.Status != c.status {
			t.Errorf("%s: the run is %s, %v", name, run.Status, err)
		}
		key, err := st.KeyByID(ctx, c.key.ID)
		if err != nil || (key.RevokedAt == nil) != c.live {
			t.Errorf("%s: the key %+v, %v", name, key, err)
		}
		leases, err := st.LiveLeases(ctx)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, l := range leases {
			found = found || l.ID == c.lease.ID
		}
		if found != c.live {
			t.Errorf("%s: the lease lives: %v", name, found)
		}
		model, err := st.ModelLease(ctx, c.model.ID)
		if err != nil || model.Live(store.Now()) != c.live || (model.Reason == "") != c.live {
			t.Errorf("%s: the model lease %+v, %v", name, model, err)
		}
	}
	said, err := st.Comments(ctx, task.ID, store.CommentFilter{})
	if err != nil || len(said) != 2 {
		t.Errorf("the task says %+v, %v", said, err)
	}
}
