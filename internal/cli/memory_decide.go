package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// addMemoryDecide declares the commands for what waits for the operator.
func addMemoryDecide(t *command.Table) {
	add(t, command.Spec[memoryPendingInput, paged[store.MemoryFile]]{
		Group: "memory", Name: "pending", Access: command.Read, Object: memoryPendingObject,
		Summary: "List what runs wrote to memory, and nobody approved yet",
		Long: `Lists the writings that wait for you, the newest first, of all agents or of one.
Read one with ravi memory show ID before you approve it: what is approved
instructs the next run.` + memoryOwn,
		Examples: []command.Example{{Line: "ravi memory pending"}, {What: "of one agent", Line: "ravi memory pending --agent anna"}},
		Defaults: memoryPendingInput{Limit: pageSize},
		Handler:  pendingMemory, Print: printWritings,
	})
	for _, c := range []struct {
		name, summary, long string
		approve             bool
	}{
		{"approve", "Let what a run wrote count as memory", `Approves writings that are pending: from now on they are memory, and the agent's
next runs read them. The last approved one of a path is what holds there.`, true},
		{"reject", "Refuse what a run wrote to memory", `Rejects writings that are pending. They stay in ravi memory history.`, false},
	} {
		add(t, command.Spec[memoryDecideInput, []store.MemoryFile]{
			Group: "memory", Name: c.name, Access: command.Write, Reach: command.OperatorOnly,
			Summary: c.summary, Long: c.long + `

All ids are looked up first: if one is not pending, nothing is decided.`,
			Examples: []command.Example{{Line: "ravi memory " + c.name + " mem01jf5r mem01jf8v"}},
			Handler: func(ctx context.Context, env *command.Env, in memoryDecideInput) ([]store.MemoryFile, error) {
				return decideMemory(ctx, env, in.IDs, c.approve)
			},
			Print: func(env *command.Env, w io.Writer, files []store.MemoryFile) error {
				for _, m := range files {
					if err := printMemoryState(env, w, m); err != nil {
						return err
					}
				}
				return nil
			},
		})
	}
}

type memoryPendingInput struct {
	Agent  string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"of this agent"`
	Limit  int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

// memoryPendingObject is the agent; of a caller without one it is nobody in particular.
func memoryPendingObject(ctx context.Context, env *command.Env, in memoryPendingInput) (string, error) {
	if in.Agent == "" && own(env).AgentID == "" {
		return "", nil
	}
	return memoryObject(ctx, env, in.Agent)
}

type memoryDecideInput struct {
	IDs []string `json:"ids" arg:"ID" host:"none" usage:"of writings that are pending, or their beginnings"`
}

func pendingMemory(ctx context.Context, env *command.Env, in memoryPendingInput) (paged[store.MemoryFile], error) {
	none := paged[store.MemoryFile]{Items: []store.MemoryFile{}}
	var f store.MemoryFilter
	if in.Agent != "" || own(env).AgentID != "" {
		a, err := findAgent(ctx, env, in.Agent)
		if err != nil {
			return none, err
		}
		f.AgentID = a.ID
	}
	s, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	return listPage(in.Limit, in.Before, func(m store.MemoryFile) string { return m.ID }, func(store.MemoryFile) bool { return true },
		func(before string, limit int) ([]store.MemoryFile, error) {
			f.Before, f.Limit = before, limit
			files, err := s.PendingMemory(ctx, f)
			withoutContents(files)
			return files, err
		})
}

func decideMemory(ctx context.Context, env *command.Env, ids []string, approve bool) ([]store.MemoryFile, error) {
	var files []store.MemoryFile
	for _, id := range ids {
		m, err := findWriting(ctx, env, id)
		if err != nil {
			return nil, err
		}
		if m.State != store.MemoryPending {
			return nil, fmt.Errorf("the writing %s is %s already: %w", m.ID, m.State, store.ErrFinal)
		}
		files = append(files, m)
	}
	s, err := env.Store(ctx)
	if err != nil {
		return nil, err
	}
	by, err := author(ctx, env)
	if err != nil {
		return nil, err
	}
	out := []store.MemoryFile{}
	var failed []error
	for _, m := range files {
		m, err := s.DecideMemory(ctx, m.ID, approve, by)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		out = append(out, m)
	}
	withoutContents(out)
	return out, errors.Join(failed...)
}

func printMemoryNames(env *command.Env, w io.Writer, p paged[store.MemoryFile]) error {
	if env.Quiet {
		return printIDs(w, p.Items, func(m store.MemoryFile) string { return m.Path })
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "no memory")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, m := range p.Items {
		rows[i] = []string{m.Path, fmt.Sprint(m.Size), age(time.Since(m.CreatedAt)), m.Author}
	}
	return printRows(env, w, "memory", []safe.Column{{Title: "PATH", Flex: true}, {Title: "BYTES", Right: true}, {Title: "AGE", Right: true},
		{Title: "AUTHOR", Flex: true}}, rows, nextPage("--after", p.Next))
}

// printWritings shows writings of memory, whatever became of them.
func printWritings(env *command.Env, w io.Writer, p paged[store.MemoryFile]) error {
	if env.Quiet {
		return printIDs(w, p.Items, func(m store.MemoryFile) string { return m.ID })
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "nothing is pending")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, m := range p.Items {
		what := m.Path
		if m.Kind == store.MemorySkill {
			what = "skill " + what
		}
		size := fmt.Sprint(m.Size)
		if m.Removed {
			size = "removed"
		}
		rows[i] = []string{m.ID, string(m.State), size, age(time.Since(m.CreatedAt)), what, m.Author}
	}
	return printRows(env, w, "writings", []safe.Column{{Title: "ID"}, {Title: "STATE"}, {Title: "BYTES", Right: true}, {Title: "AGE", Right: true},
		{Title: "PATH", Flex: true}, {Title: "AUTHOR", Flex: true}}, rows, nextPage("--before", p.Next))
}

func printMemory(env *command.Env, w io.Writer, m store.MemoryFile) error {
	switch {
	case m.State != store.MemoryApproved && !env.Quiet:
		fmt.Fprintf(env.Stderr, "%s %s, by %s: it is %s\n", m.Kind, safe.Safe(m.Path), safe.Safe(orNobody(m.Author)), m.State)
	case m.Removed && !env.Quiet:
		fmt.Fprintf(env.Stderr, "%s was removed\n", safe.Safe(m.Path))
	}
	text := m.Content
	if env.StdoutTerminal && text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	label := string(m.Kind) + " " + m.Path
	if m.State != store.MemoryApproved {
		label += ", " + string(m.State)
	}
	return printRaw(env, w, label, text)
}

// printMemoryState says what became of a writing.
func printMemoryState(env *command.Env, w io.Writer, m store.MemoryFile) error {
	switch {
	case env.Quiet:
		fmt.Fprintln(w, m.ID)
	case m.State == store.MemoryPending:
		fmt.Fprintf(w, "%s: it waits for approval (%s)\n", safe.Safe(m.Path), m.ID)
	case m.State == store.MemoryApproved && m.Removed:
		fmt.Fprintf(w, "%s: removed (%s)\n", safe.Safe(m.Path), m.ID)
	default:
		fmt.Fprintf(w, "%s: %s (%s)\n", safe.Safe(m.Path), m.State, m.ID)
	}
	return nil
}
