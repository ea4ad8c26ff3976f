package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
	runs "ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
)

// A run's context shows the session and the memory of its task, so who may read the task only does not get it.
func TestContextOfKeys(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		in      runInput
		holds   []string
		missing string // empty: it is allowed
	}{
		"the task only":      {runInput{TaskID: w.theirs.task.ID}, []string{"read:tasks@THEIRS.TASK"}, "read:sessions.transcript@THEIRS.SESSION"},
		"not its memory":     {runInput{TaskID: w.theirs.task.ID}, []string{"read:tasks@THEIRS.TASK", "read:sessions@THEIRS.SESSION"}, "read:memory.show@THEIRS.AGENT"},
		"not what was said":  {runInput{Session: w.theirs.session.ID}, []string{"read:sessions.show", "read:memory"}, "read:sessions.transcript@THEIRS.SESSION"},
		"a session's memory": {runInput{Session: w.theirs.session.ID}, []string{"read:sessions"}, "read:memory.show@THEIRS.AGENT"},
		"not the task":       {runInput{TaskID: w.theirs.task.ID}, []string{"read:sessions", "read:memory"}, "read:tasks.show@THEIRS.TASK"},
		"all of it":          {runInput{TaskID: w.theirs.task.ID}, []string{"read:tasks", "read:sessions", "read:memory"}, ""},
		"one's own":          {runInput{TaskID: w.mine.task.ID}, []string{"read:tasks@MINE.TASK", "read:sessions@MINE.SESSION", "read:memory@MINE.AGENT"}, ""},
		"without it":         {runInput{TaskID: w.theirs.task.ID, Context: "none"}, []string{"read:tasks@THEIRS.TASK"}, ""},
	} {
		o := runs.Options{Home: w.home, Store: w.store}
		err := runContext(t.Context(), w.env(w.holder(tt.holds...)), tt.in, &o)
		switch {
		case tt.missing == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.missing != "" && (!errors.Is(err, access.ErrDenied) || !strings.Contains(command.AsError(err).Message, w.fill(tt.missing))):
			t.Errorf("%s: %v, want %s to be missing", name, err, w.fill(tt.missing))
		}
	}
	o := runs.Options{Home: w.home, Store: w.store}
	if err := runContext(t.Context(), w.env(access.AsOperator()), runInput{TaskID: w.theirs.task.ID}, &o); err != nil || !o.Snapshot {
		t.Errorf("the operator: %v", err)
	}
}

// A repository is looked for upwards. One that begins above what the profile lists is not what was allowed.
func TestRepositoryAbove(t *testing.T) {
	w := newWorld(t)
	top := t.TempDir()
	whole, part := filepath.Join(top, "all"), filepath.Join(top, "all", "part")
	own := filepath.Join(part, "own")
	for _, dir := range []string{whole, own} {
		if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for path, allowed := range map[string]bool{part: false, own: true, filepath.Join(own, "below"): true} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		p := access.DefaultProfile()
		p.Repos = []string{part}
		spec, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		must[store.Profile](t)(w.store.PutProfile(t.Context(), store.Profile{Name: "part", Spec: spec}))
		caller := w.holder("write:runs.create")
		caller.Key.Profile = "part"
		o := runs.Options{Store: w.store, Repo: path, Config: sandbox.Default()}
		err = boundRun(t.Context(), w.env(caller), &o)
		switch {
		case allowed && (err != nil || o.Repo != own):
			t.Errorf("%s: %v, of %s", path, err, o.Repo)
		case !allowed && (!errors.Is(err, access.ErrDenied) || !strings.Contains(command.AsError(err).Message, "all of the repository")):
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What a profile does not list is refused before it is looked up: neither its hosts nor that it is there are told.
func TestSecretsOfProfiles(t *testing.T) {
	w := newWorld(t)
	me := w.holder("write:runs.create")
	for _, name := range []string{"PROD", "NONE"} {
		o := runs.Options{Store: w.store, Config: sandbox.Default()}
		err := runSecrets(t.Context(), w.env(me), runInput{Secrets: []string{name}}, &o)
		if !errors.Is(err, access.ErrDenied) || !strings.Contains(command.AsError(err).Message, "the secret "+name+", which the profile default") {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := runs.Options{Store: w.store, Config: sandbox.Default()}
	if err := runSecrets(t.Context(), w.env(access.AsOperator()), runInput{Secrets: []string{"NONE"}}, &o); err == nil || command.AsError(err).Code != command.CodeNotFound {
		t.Errorf("the operator: %v", err)
	}
}

// Who has as many runs as the profile allows leaves no record by asking for more.
func TestRefusedRunsAreNotRecorded(t *testing.T) {
	w := newWorld(t)
	repo := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", repo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := access.DefaultProfile()
	p.Repos, p.Sandboxes = []string{repo}, 0
	spec, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	must[store.Profile](t)(w.store.PutProfile(t.Context(), store.Profile{Name: "full", Spec: spec}))
	me := w.holder("write:runs.create", "write:tasks.create", "read:*")
	me.Key.Profile = "full"
	before := w.changes()
	_, err = createRun(t.Context(), w.env(me), runsCreateInput{Repo: repo, Task: "a task of its own", Command: []string{"true"}})
	if !errors.Is(err, access.ErrDenied) || !strings.Contains(command.AsError(err).Message, "room for one more sandbox") || w.changes() != before {
		t.Errorf("got %v; %d events", err, w.changes()-before)
	}
}
