package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"ravi/internal/command"
	"ravi/internal/store"
)

func addMemory(t *command.Table) {
	t.AddGroup(command.Group{Name: "memory", Summary: "Look after what agents remember, and approve what runs wrote"})
	add(t, command.Spec[memoryListInput, paged[store.MemoryFile]]{
		Group: "memory", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Object: memoryListObject,
		Summary: "List the files of an agent's memory",
		Long: `Lists the files that an agent's runs find in memory/, by their paths; with
--kind skill those in skills/. What is pending is not among them: see ravi
memory pending.` + memoryOwn,
		Examples: []command.Example{{Line: "ravi memory ls --agent anna"}, {Line: "ravi memory ls --agent anna --kind skill"}},
		Defaults: memoryListInput{Kind: string(store.MemoryNote), Limit: pageSize},
		Handler:  listMemory, Print: printMemoryNames,
	})
	add(t, command.Spec[memoryShowInput, store.MemoryFile]{
		Group: "memory", Name: "show", Aliases: []string{"inspect", "cat"}, Access: command.Read, Object: memoryShowObject,
		Summary: "Show a file of an agent's memory",
		Long: `Prints what holds at a path of an agent's memory. With the id of a writing, as
ravi memory pending and ravi memory history list them, it prints what was
written then, whatever became of it.` + memoryOwn,
		Examples: []command.Example{{Line: "ravi memory show facts.md --agent anna"}, {What: "what waits for approval", Line: "ravi memory show mem01jf5r0q4k8n2v6t9w3x7y1z5b"}},
		Defaults: memoryShowInput{Kind: string(store.MemoryNote)},
		Handler:  showMemory, Print: printMemory,
	})
	add(t, command.Spec[memoryWriteInput, store.MemoryFile]{
		Group: "memory", Name: "write", Aliases: []string{"set"}, Access: command.Write, Object: memoryWriteObject,
		Summary: "Write a file of an agent's memory",
		Long: `Writes a whole file: what was there before stays in ravi memory history.

What you write counts at once. What a holder of a key writes is pending until
you approve it, but for paths of memory that the agent's --auto-approve names;
skills always wait.` + memoryOwn,
		Examples: []command.Example{
			{Line: `ravi memory write facts.md "The shop runs on Debian." --agent anna`},
			{What: "from a file of this machine", Line: "ravi memory write deploy/SKILL.md --kind skill --file SKILL.md --agent anna"},
			{What: "from inside a run", Line: `ravi memory write notes/login.md "The cookie's path is /."`},
		},
		Defaults: memoryWriteInput{Kind: string(store.MemoryNote)},
		Handler:  writeMemory, Print: printMemoryState,
	})
	add(t, command.Spec[memoryOneInput, store.MemoryFile]{
		Group: "memory", Name: "rm", Aliases: []string{"remove", "delete"}, Access: command.Write, Object: memoryOneObject,
		Summary: "Remove a file of an agent's memory",
		Long: `Removes a file; what was in it stays in ravi memory history. What a holder of a
key removes is there until you approve that, as with ravi memory write.` + memoryOwn,
		Examples: []command.Example{{Line: "ravi memory rm facts.md --agent anna"}},
		Defaults: memoryOneInput{Kind: string(store.MemoryNote)},
		Handler:  removeMemory, Print: printMemoryState,
	})
	add(t, command.Spec[memoryHistoryInput, paged[store.MemoryFile]]{
		Group: "memory", Name: "history", Access: command.Read, Object: memoryHistoryObject,
		Summary: "List all that was ever written to a file of memory",
		Long: `Lists every writing of one file, the newest first, with who wrote it and what
was decided; ravi memory show prints one by its id.` + memoryOwn,
		Examples: []command.Example{{Line: "ravi memory history facts.md --agent anna"}},
		Defaults: memoryHistoryInput{Kind: string(store.MemoryNote), Limit: pageSize},
		Handler:  memoryHistory, Print: printWritings,
	})
	addMemoryDecide(t)
}

const memoryOwn = `

A holder of a key may leave out --agent for its own.`

// memoryOf says whose memory a command is about.
type memoryOf struct{ agent, kind string }

type memoryListInput struct {
	Agent string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"whose: a name, an id or its beginning"`
	Kind  string `json:"kind" flag:"kind" value:"KIND" host:"none" usage:"memory or skill"`
	Limit int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	After string `json:"after" flag:"after" value:"PATH" host:"none" usage:"the page that comes after this one"`
}

func memoryListObject(ctx context.Context, env *command.Env, in memoryListInput) (string, error) {
	return memoryObject(ctx, env, in.Agent)
}

type memoryShowInput struct {
	Path  string `json:"path" arg:"PATH|ID" host:"none" usage:"the file, or the id of a writing"`
	Agent string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"whose: a name, an id or its beginning"`
	Kind  string `json:"kind" flag:"kind" value:"KIND" host:"none" usage:"memory or skill"`
}

func memoryShowObject(ctx context.Context, env *command.Env, in memoryShowInput) (string, error) {
	if !isWriting(in.Path) {
		return memoryObject(ctx, env, in.Agent)
	}
	m, err := findWriting(ctx, env, in.Path)
	if err != nil {
		return in.Path, err
	}
	if !knows(env, "memory", m.AgentID) {
		return in.Path, missingWriting(in.Path, store.ErrNotFound)
	}
	return m.AgentID, nil
}

type memoryWriteInput struct {
	Path  string  `json:"path" arg:"PATH" host:"none" usage:"the file, such as notes/login.md"`
	Text  *string `json:"text" arg:"TEXT" optional:"true" host:"none" usage:"what is to be in it"`
	File  string  `json:"file" flag:"file" short:"f" value:"FILE" host:"path" usage:"the same, from a file; - is standard input"`
	Agent string  `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"whose: a name, an id or its beginning"`
	Kind  string  `json:"kind" flag:"kind" value:"KIND" host:"none" usage:"memory or skill"`
}

func memoryWriteObject(ctx context.Context, env *command.Env, in memoryWriteInput) (string, error) {
	return memoryObject(ctx, env, in.Agent)
}

type memoryOneInput struct {
	Path  string `json:"path" arg:"PATH" host:"none" usage:"the file"`
	Agent string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"whose: a name, an id or its beginning"`
	Kind  string `json:"kind" flag:"kind" value:"KIND" host:"none" usage:"memory or skill"`
}

func memoryOneObject(ctx context.Context, env *command.Env, in memoryOneInput) (string, error) {
	return memoryObject(ctx, env, in.Agent)
}

type memoryHistoryInput struct {
	Path  string `json:"path" arg:"PATH" host:"none" usage:"the file"`
	Agent string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"whose: a name, an id or its beginning"`
	Kind  string `json:"kind" flag:"kind" value:"KIND" host:"none" usage:"memory or skill"`
	Limit int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"the last N writings, up to 500"`
}

func memoryHistoryObject(ctx context.Context, env *command.Env, in memoryHistoryInput) (string, error) {
	return memoryObject(ctx, env, in.Agent)
}

func memoryObject(ctx context.Context, env *command.Env, agent string) (string, error) {
	if agent == "" && own(env).AgentID == "" {
		return "", missingArgument("--agent", "see ravi agents ls")
	}
	return objectOfAgent(ctx, env, "memory", agent)
}

// find finds whose memory it is.
func (o memoryOf) find(ctx context.Context, env *command.Env) (*store.Store, store.Agent, store.MemoryKind, error) {
	kind := store.MemoryKind(o.kind)
	if kind != store.MemoryNote && kind != store.MemorySkill {
		return nil, store.Agent{}, kind, command.Usage(fmt.Sprintf("there is no kind of memory %.40q", o.kind), "it is memory or skill")
	}
	if o.agent == "" && own(env).AgentID == "" {
		return nil, store.Agent{}, kind, missingArgument("--agent", "see ravi agents ls")
	}
	a, err := findAgent(ctx, env, o.agent)
	if err != nil {
		return nil, a, kind, err
	}
	s, err := env.Store(ctx)
	return s, a, kind, err
}

// isWriting says whether a word is the id of a writing, and no path.
func isWriting(word string) bool { return len(word) == len("mem")+26 && looksLikeID("mem", word) }

func missingWriting(typed string, err error) error {
	return &command.Error{Code: command.CodeNotFound, Message: fmt.Sprintf("there is no writing %.100q", typed), Hint: "see ravi memory pending",
		Status: http.StatusNotFound, Exit: command.ExitFailed, Err: err}
}

func findWriting(ctx context.Context, env *command.Env, typed string) (store.MemoryFile, error) {
	s, err := env.Store(ctx)
	if err != nil {
		return store.MemoryFile{}, err
	}
	m, err := s.MemoryByID(ctx, typed)
	if errors.Is(err, store.ErrNotFound) {
		err = missingWriting(typed, err)
	}
	return m, err
}

func listMemory(ctx context.Context, env *command.Env, in memoryListInput) (paged[store.MemoryFile], error) {
	s, a, kind, err := memoryOf{in.Agent, in.Kind}.find(ctx, env)
	if err != nil {
		return paged[store.MemoryFile]{}, err
	}
	files, err := s.MemoryNames(ctx, a.ID, kind)
	if err != nil {
		return paged[store.MemoryFile]{}, err
	}
	return pageAfter(files, in.Limit, in.After, func(m store.MemoryFile) string { return m.Path })
}

func showMemory(ctx context.Context, env *command.Env, in memoryShowInput) (store.MemoryFile, error) {
	if isWriting(in.Path) {
		return findWriting(ctx, env, in.Path)
	}
	s, a, kind, err := memoryOf{in.Agent, in.Kind}.find(ctx, env)
	if err != nil {
		return store.MemoryFile{}, err
	}
	return memoryFile(ctx, s, a, kind, in.Path)
}

func memoryFile(ctx context.Context, s *store.Store, a store.Agent, kind store.MemoryKind, path string) (store.MemoryFile, error) {
	m, err := s.MemoryFile(ctx, a.ID, kind, path)
	if errors.Is(err, store.ErrNotFound) {
		more := ""
		if kind == store.MemorySkill {
			more = " --kind skill"
		}
		err = &command.Error{Code: command.CodeNotFound, Message: fmt.Sprintf("%s has no %s file %.220q", a.Name, kind, path),
			Hint: "see ravi memory ls --agent " + a.Name + more, Status: http.StatusNotFound, Exit: command.ExitFailed, Err: err}
	}
	return m, err
}

func writeMemory(ctx context.Context, env *command.Env, in memoryWriteInput) (store.MemoryFile, error) {
	text := ""
	switch {
	case in.Text != nil && in.File != "":
		return store.MemoryFile{}, command.Usage("a text and --file are both given", "give one of them")
	case in.Text != nil:
		text = *in.Text
	case in.File == "":
		return store.MemoryFile{}, missingArgument("TEXT", "give it behind the path, or a file with --file")
	default:
		var err error
		if text, err = readText(env, in.File, store.MaxContent); err != nil {
			return store.MemoryFile{}, err
		}
	}
	return recordMemory(ctx, env, memoryOf{in.Agent, in.Kind}, store.MemoryFile{Path: in.Path, Content: text})
}

func removeMemory(ctx context.Context, env *command.Env, in memoryOneInput) (store.MemoryFile, error) {
	s, a, kind, err := memoryOf{in.Agent, in.Kind}.find(ctx, env)
	if err != nil {
		return store.MemoryFile{}, err
	}
	if _, err := memoryFile(ctx, s, a, kind, in.Path); err != nil {
		return store.MemoryFile{}, err
	}
	return recordMemory(ctx, env, memoryOf{in.Agent, in.Kind}, store.MemoryFile{Path: in.Path, Removed: true})
}

// recordMemory writes down what was written, or removed. It counts at once if the operator did it, or lets such paths be
// written. What instructs runs in so many words, a skill, never counts by itself.
func recordMemory(ctx context.Context, env *command.Env, of memoryOf, m store.MemoryFile) (store.MemoryFile, error) {
	s, a, kind, err := of.find(ctx, env)
	if err != nil {
		return m, err
	}
	mine := own(env)
	m.AgentID, m.Kind, m.KeyID, m.RunID, m.State = a.ID, kind, mine.ID, mine.RunID, store.MemoryPending
	if m.Author, err = author(ctx, env); err != nil {
		return m, err
	}
	if env.Caller.IsOperator() {
		m.State, m.DecidedBy = store.MemoryApproved, m.Author
	} else if pattern, ok := approving(a.AutoApprove, m.Path); ok && kind == store.MemoryNote {
		m.State, m.DecidedBy = store.MemoryApproved, "auto-approve "+pattern
	}
	m, err = s.WriteMemory(ctx, m)
	m.Content = "" // whoever wrote it has it
	return m, err
}

func memoryHistory(ctx context.Context, env *command.Env, in memoryHistoryInput) (paged[store.MemoryFile], error) {
	out := paged[store.MemoryFile]{Items: []store.MemoryFile{}}
	if err := checkLimit(in.Limit); err != nil {
		return out, err
	}
	s, a, kind, err := memoryOf{in.Agent, in.Kind}.find(ctx, env)
	if err != nil {
		return out, err
	}
	if out.Items, err = s.MemoryHistory(ctx, a.ID, kind, in.Path, in.Limit); err != nil {
		return out, err
	}
	if len(out.Items) == 0 {
		_, err := memoryFile(ctx, s, a, kind, in.Path)
		return out, err
	}
	withoutContents(out.Items)
	return out, nil
}

// withoutContents leaves names and sizes: the contents of a page may be a hundred megabytes.
func withoutContents(files []store.MemoryFile) {
	for i := range files {
		files[i].Content = ""
	}
}
