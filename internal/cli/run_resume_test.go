package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/command"
	runs "ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
)

// talked makes a run one that has ended, and that claude did, with its conversation; change says what is otherwise.
func (w *world) talked(r store.Run, change func(*store.Run, *runs.Task)) store.Run {
	w.t.Helper()
	task := runs.Task{ID: r.ID, Status: store.RunSucceeded, Agent: "claude", Conversation: &runs.Conversation{ID: "talk-1", Bytes: 5}}
	r = must[store.Run](w.t)(w.store.UpdateRun(w.t.Context(), r.ID, func(r *store.Run) error {
		r.Status = store.RunSucceeded
		if change != nil {
			change(r, &task)
		}
		return nil
	}))
	b, err := json.Marshal(task)
	if err != nil {
		w.t.Fatal(err)
	}
	for name, content := range map[string]string{runs.TaskFile: string(b), runs.StateFile: "state"} {
		if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return r
}

// resume is what a caller's run with claude goes on with.
func (w *world) resume(who access.Caller, in runInput) (*runs.Resume, error) {
	w.t.Helper()
	p, ok := adapter.Lookup("claude")
	if !ok {
		w.t.Fatal("there is no claude")
	}
	o := runs.Options{Store: w.store, Config: sandbox.Default(), Agent: &runs.Agent{Program: p}}
	err := runResume(w.t.Context(), w.env(who), in, &o)
	return o.Agent.Resume, err
}

// What is missing is told before anything is made, and what mends it.
func TestResumeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*store.Run, *runs.Task)
		says, hint string
	}{
		"is there":           {nil, "", ""},
		"failed":             {func(r *store.Run, task *runs.Task) { r.Status, task.Status = store.RunFailed, store.RunFailed }, "", ""},
		"under way":          {func(r *store.Run, _ *runs.Task) { r.Status = store.RunRunning }, "it is running", "ravi runs wait run"},
		"not written down":   {func(_ *store.Run, task *runs.Task) { task.Status = store.RunRunning }, "not written down yet", "ravi runs wait run"},
		"no program":         {func(_ *store.Run, task *runs.Task) { task.Agent, task.Conversation = "", nil }, "no agent program did it", "leave out --resume"},
		"another program":    {func(_ *store.Run, task *runs.Task) { task.Agent = "codex" }, "codex did it, and not claude", "--agent codex"},
		"of an older Ravi":   {func(_ *store.Run, task *runs.Task) { task.Conversation = nil }, "no conversation was kept", "leave out --resume"},
		"lost":               {func(_ *store.Run, task *runs.Task) { task.Conversation.Lost = "it was too long" }, "it was too long", "leave out --resume"},
		"its folder is gone": {func(r *store.Run, _ *runs.Task) { r.Dir = t.TempDir() }, "nothing of it is left", "leave out --resume"},
		"it had no folder":   {func(r *store.Run, _ *runs.Task) { r.Dir = t.TempDir() }, "nothing of it is left", "leave out --resume"},
		"its file is gone":   {nil, "the file of its conversation is gone", "leave out --resume"},
		"another agent's":    {func(r *store.Run, _ *runs.Task) { r.AgentID = "agt1" }, "it was for another agent or session", "--session"},
		"another session":    {func(r *store.Run, _ *runs.Task) { r.SessionID = "" }, "it was for another agent or session", "--session"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.talked(w.mine.run, c.change)
			if gone := map[string]string{"its folder is gone": runs.TaskFile, "its file is gone": runs.StateFile}[name]; gone != "" {
				if err := os.Remove(filepath.Join(r.Dir, gone)); err != nil {
					t.Fatal(err)
				}
			}
			if name == "it had no folder" {
				t.Chdir(r.Dir) // what lies here is none of the run's
				must[store.Run](t)(w.store.UpdateRun(t.Context(), r.ID, func(r *store.Run) error { r.Dir = ""; return nil }))
			}
			before := w.changes()
			got, err := w.resume(access.AsOperator(), runInput{Resume: r.ID, TaskID: w.mine.task.ID})
			if c.says == "" {
				if err != nil || *got != (runs.Resume{RunID: r.ID, ID: "talk-1", File: filepath.Join(r.Dir, runs.StateFile)}) {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			told := command.AsError(err)
			if got != nil || told == nil || told.Code != command.CodeConflict || !strings.Contains(told.Message, "run "+r.ID+" cannot be resumed: ") || !strings.Contains(told.Message, c.says) || !strings.Contains(told.Hint, c.hint) {
				t.Errorf("%+v, %+v", got, told)
			}
			if w.changes() != before {
				t.Error("it changed something")
			}
		})
	}
	w := newWorld(t)
	r := w.talked(w.mine.run, nil)
	if got, err := w.resume(access.AsOperator(), runInput{Resume: r.ID[:29], Session: "anna-web"}); err != nil || got.RunID != r.ID {
		t.Errorf("by its beginning: %+v, %v", got, err)
	}
	for name, c := range map[string]struct{ program, backend, says string }{
		"on the host":     {"claude", sandbox.BackendHost, "on the host no conversation is kept"},
		"without a state": {"command", "", "keeps no conversations"},
	} {
		p, _ := adapter.Lookup(c.program)
		o := runs.Options{Store: w.store, Agent: &runs.Agent{Program: p}}
		o.Config.Backend = c.backend
		if err := runResume(t.Context(), w.env(access.AsOperator()), runInput{Resume: r.ID, Session: "anna-web"}, &o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A holder of a key goes on with what it could read. Of another run it does not learn whether it is there.
func TestKeysThatResume(t *testing.T) {
	w := newWorld(t)
	mine, theirs := w.talked(w.mine.run, nil), w.talked(w.theirs.run, nil)
	made := w.talked(must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{AgentID: w.mine.agent.ID, SessionID: w.mine.session.ID, Dir: t.TempDir(), CreatedBy: "ctx_anna"})), nil)
	must[store.Key](t)(w.store.InsertKey(t.Context(), store.Key{ID: "ctx_anna", Hash: strings.Repeat("ab", 32), ExpiresAt: store.Now().Add(1 << 40)}, nil))
	in := func(run string) runInput { return runInput{Resume: run, Session: w.mine.session.ID} }
	for name, c := range map[string]struct {
		who access.Caller
		run string
	}{
		"its own run":        {w.holder("read:runs@MINE.RUN"), mine.ID},
		"by its beginning":   {w.holder("read:runs@MINE.RUN"), mine.ID[:29]},
		"both that are read": {w.holder("read:runs.show@MINE.RUN", "read:runs.logs@MINE.RUN"), mine.ID},
		"all runs":           {w.holder("read:runs"), mine.ID},
		"what it made":       {w.holder("read:runs@own"), made.ID},
	} {
		if got, err := w.resume(c.who, in(c.run)); err != nil || got == nil || (got.RunID != mine.ID && got.RunID != made.ID) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	unknown := "run" + strings.Repeat("0", len(theirs.ID)-3)
	for name, who := range map[string]access.Caller{
		"nothing": w.holder(), "another run": w.holder("read:runs@MINE.RUN"), "own": w.holder("read:runs@own"),
		"only the record": w.holder("read:runs.show"), "only the list": w.holder("read:runs.ls"), "to write": w.holder("write:runs", "write:runs.create"),
	} {
		var said []string
		for _, run := range []string{theirs.ID, unknown} {
			got, err := w.resume(who, in(run))
			told := command.AsError(err)
			if got != nil || told == nil || told.Code != command.CodeDenied {
				t.Fatalf("%s, %s: %+v, %v", name, run, got, err)
			}
			said = append(said, strings.ReplaceAll(told.Message+told.Hint, run, "RUN"))
		}
		if said[0] != said[1] {
			t.Errorf("%s: of one that is there it is told %q, of another %q", name, said[0], said[1])
		}
	}
	// Who may read all may know which are there.
	if _, err := w.resume(w.holder("read:runs"), in(unknown)); command.AsError(err).Code != command.CodeNotFound {
		t.Errorf("%v", err)
	}
	if _, err := w.resume(w.holder("read:runs"), in(theirs.ID)); err == nil || !strings.Contains(err.Error(), "another agent or session") || strings.Contains(err.Error(), theirs.SessionID) {
		t.Errorf("of another session: %v", err)
	}
}
