package cli

import (
	"errors"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
	runs "ravi/internal/run"
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
