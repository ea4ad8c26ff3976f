package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"ravi/internal/command"
	"ravi/internal/redact"
	runs "ravi/internal/run"
	"ravi/internal/snapshot"
	safe "ravi/internal/term"
)

func addContextSnapshot(t *command.Table) {
	add(t, command.Spec[contextSnapshotInput, snapshot.Manifest]{
		Group: "context", Name: "snapshot", Access: command.Read, Reach: command.OperatorOnly,
		Summary: "Write what a run would find in /ravi/context",
		Long: `Writes the context snapshot of a session, a task or an agent into a folder:
the files that a run for it would find in /ravi/context at this moment. These
are the agent's instructions, its memory and skills as far as they are
approved, the conversation and the tasks, with a README and a manifest. Known
secrets are masked.

The folder is made, for you only, or is there and empty. With --json the
manifest is printed.`,
		Examples: []command.Example{
			{Line: "ravi context snapshot --session web --out context"},
			{What: "as the run of a task would see it", Line: "ravi context snapshot --session web --task tsk01jf --out context"},
		},
		Handler: contextSnapshot, Print: printSnapshot,
	})
}

type contextSnapshotInput struct {
	Session string `json:"session" flag:"session" short:"s" value:"SESSION" host:"none" usage:"the conversation: a name, an id or its beginning"`
	Task    string `json:"task" flag:"task" short:"t" value:"TASK" host:"none" usage:"the run's own task: an id or its beginning"`
	Agent   string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"the agent, if it is neither the session's nor the task's"`
	Out     string `json:"out" flag:"out" short:"o" value:"DIR" host:"path" usage:"the folder to make"`
}

func contextSnapshot(ctx context.Context, env *command.Env, in contextSnapshotInput) (m snapshot.Manifest, err error) {
	switch {
	case in.Out == "":
		return m, command.Usage("--out is missing", "such as: --out context")
	case in.Session == "" && in.Task == "" && in.Agent == "":
		return m, command.Usage("there is nothing to make a snapshot of", "name a --session, a --task or an --agent")
	}
	var o snapshot.Options
	if in.Session != "" {
		s, err := sesKind.get(ctx, env, in.Session)
		if err != nil {
			return m, err
		}
		o.SessionID = s.ID
	}
	if in.Task != "" {
		t, err := taskKind.get(ctx, env, in.Task)
		if err != nil {
			return m, err
		}
		if o.TaskID = t.ID; o.SessionID == "" {
			o.SessionID = t.SessionID
		}
	}
	if in.Agent != "" {
		a, err := agentKind.get(ctx, env, in.Agent)
		if err != nil {
			return m, err
		}
		o.AgentID = a.ID
	}
	if o.Redact, err = knownSecrets(ctx, env); err != nil {
		return m, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return m, err
	}
	made := os.Mkdir(in.Out, 0o700) == nil // what is wrong with it otherwise is told below
	m, err = snapshot.Build(ctx, st, o, in.Out)
	if err != nil && made {
		err = errors.Join(err, os.Remove(in.Out))
	}
	switch {
	case errors.Is(err, snapshot.ErrNotEmpty):
		return m, command.Usage(fmt.Sprintf("cannot write to %s: something is in it", in.Out), "name a folder that is not there")
	case errors.Is(err, snapshot.ErrOtherAgent):
		return m, command.Usage(err.Error(), "leave --agent out: the session knows its own")
	}
	return m, err
}

// knownSecrets takes the values in the store of secrets out of texts.
func knownSecrets(ctx context.Context, env *command.Env) (*redact.Redactor, error) {
	vault, err := secretStore(env)
	if err != nil {
		return nil, secretError(err)
	}
	known, err := vault.Known(ctx)
	if err != nil {
		return nil, secretError(err)
	}
	var pairs []redact.Pair
	for _, name := range slices.Sorted(maps.Keys(known)) {
		pairs = append(pairs, runs.KnownSecret(name, known[name].Reveal()))
	}
	return redact.New(pairs...), nil
}

func printSnapshot(env *command.Env, w io.Writer, m snapshot.Manifest) error {
	if env.Quiet {
		for _, f := range m.Files {
			fmt.Fprintln(w, safe.Safe(f.Path))
		}
		return nil
	}
	rows := make([][]string, len(m.Files))
	for i, f := range m.Files {
		size := fmt.Sprint(f.Bytes)
		if f.Cut {
			size += " cut"
		}
		rows[i] = []string{f.Path, size, f.Whose}
	}
	if err := safe.Table(w, widthOf(w), []safe.Column{{Title: "FILE", Flex: true}, {Title: "BYTES", Right: true}, {Title: "WHOSE", Flex: true}}, rows); err != nil {
		return err
	}
	for _, c := range m.Cuts {
		fmt.Fprintln(w, safe.Safe("not all of "+c.String()))
	}
	return nil
}
