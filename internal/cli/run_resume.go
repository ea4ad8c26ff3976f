package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/command"
	runs "ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
)

// runResume finds the conversation that a run goes on with, before anything is made.
func runResume(ctx context.Context, env *command.Env, in runInput, o *runs.Options) error {
	if in.Resume == "" {
		return nil
	}
	loop := o.Agent.Program.Name == adapter.Loop
	if o.Config.Backend == sandbox.BackendHost && !loop {
		return command.Usage("--resume needs a sandbox: on the host no conversation is kept", "leave out --backend host, or --resume")
	}
	if p := o.Agent.Program; p.StateDir == "" && !loop {
		return command.Usage(fmt.Sprintf("--resume: the program %s keeps no conversations", p.Name), "name the one that had it, such as --agent claude")
	}
	r, err := readableRun(ctx, env, in.Resume)
	if err != nil {
		return err
	}
	var about runs.Options
	about.Store = o.Store
	if err := runSubject(ctx, env, in, &about); err != nil {
		return err
	}
	if about.AgentID != r.AgentID || about.SessionID != r.SessionID {
		return notResumed(r, "it was for another agent or session than this run is", "say whom it was for with --session, --task-id or --agent: ravi runs show "+r.ID)
	}
	o.Agent.Resume, err = conversationOf(r, o.Agent.Program)
	return err
}

// readableRun is a run whose conversation the caller may go on with: it could read what was said anyhow. Of another it is
// not told whether it is there.
func readableRun(ctx context.Context, env *command.Env, typed string) (store.Run, error) {
	id, err := runKind.object(ctx, env, "runs", typed)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrAmbiguous) {
		return store.Run{}, err
	}
	for _, name := range []string{"show", "logs"} {
		if may := env.Check(ctx, access.Ask{Access: access.Read, Group: "runs", Command: name, Object: id}); may != nil {
			return store.Run{}, command.Denied(may)
		}
	}
	if err != nil {
		return store.Run{}, err
	}
	return runKind.get(ctx, env, typed)
}

func notResumed(r store.Run, why, hint string) error {
	return &command.Error{Code: command.CodeConflict, Message: fmt.Sprintf("run %s cannot be resumed: %s", r.ID, why), Hint: hint,
		Status: http.StatusConflict, Exit: command.ExitUsage}
}

// conversationOf is what a program kept of its conversation in a run.
func conversationOf(r store.Run, p adapter.Program) (*runs.Resume, error) {
	const anew = "begin a new conversation: leave out --resume"
	wait := "wait for its end: ravi runs wait " + r.ID
	if !r.Status.Final() {
		return nil, notResumed(r, "it is "+string(r.Status), wait)
	}
	t, err := runs.ReadTask(r.Dir)
	if r.Dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, notResumed(r, "nothing of it is left", anew)
	}
	if err != nil {
		return nil, errFolder(r.ID, err)
	}
	loop := p.Name == adapter.Loop
	switch c := t.Conversation; {
	case !t.Status.Final():
		return nil, notResumed(r, "what came of it is not written down yet", wait)
	case t.Agent == "":
		return nil, notResumed(r, "no agent program did it", anew)
	case t.Agent != p.Name:
		return nil, notResumed(r, fmt.Sprintf("%s did it, and not %s", t.Agent, p.Name), "name that one: --agent "+t.Agent)
	case loop:
	case c == nil:
		return nil, notResumed(r, "no conversation was kept", anew)
	case c.Lost != "":
		return nil, notResumed(r, c.Lost, anew)
	}
	name, id := runs.StateFile, ""
	if loop {
		name = runs.JournalFile
	} else {
		id = t.Conversation.ID
	}
	file := filepath.Join(r.Dir, name)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, notResumed(r, "the file of its conversation is gone", anew)
	} else if err != nil {
		return nil, errFolder(r.ID, err)
	}
	return &runs.Resume{RunID: r.ID, ID: id, File: file}, nil
}
