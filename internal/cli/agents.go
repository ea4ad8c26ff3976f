package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/adapter"
	"ravi/internal/command"
	"ravi/internal/store"
	"ravi/internal/strictjson"
	safe "ravi/internal/term"
)

func addAgents(t *command.Table) {
	t.AddGroup(command.Group{Name: "agents", Summary: "Say who works, and by which instructions"})
	add(t, command.Spec[agentsCreateInput, store.Agent]{
		Group: "agents", Name: "create", Aliases: []string{"new"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Make an agent",
		Long: `Makes an agent: a name, instructions that its runs find as AGENTS.md, and memory
(ravi memory). The profile bounds what its keys may ask of a sandbox (ravi
profiles).

What a run writes to memory is pending until you approve it, so that a run that
was led astray does not instruct the next one. --auto-approve names paths of
which that is not so: * stands for anything within a part of a path, and ** at
the end for all that is below. Skills are always pending.

With --program, its tasks are done by an agent program of another maker; ravi
sandbox run --agent NAME --task "…" then starts that one.`,
		Examples: []command.Example{
			{Line: `ravi agents create anna --instructions "You mend web pages."`},
			{What: "who works with Claude Code", Line: "ravi agents create anna --program claude"},
			{What: "instructions from a file; notes of its runs count at once", Line: "ravi agents create anna --instructions-file AGENTS.md \\\n      --auto-approve 'notes/**'"},
		},
		Handler: createAgent,
		Print: func(_ *command.Env, w io.Writer, a store.Agent) error {
			fmt.Fprintln(w, a.ID)
			return nil
		},
	})
	add(t, command.Spec[agentsListInput, agentList]{
		Group: "agents", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List agents, and the agent programs that there are",
		Long: `Lists the agents, the newest first; with --all those that are archived, too. A
holder of a key sees those that its key is for.

Below them stand the agent programs: where each is taken from, and the providers
that there is a key for. A holder of a key does not see these.`,
		Examples: []command.Example{{Line: "ravi agents ls"}, {What: "ids only, for scripts", Line: "ravi agents ls -q"}},
		Defaults: agentsListInput{Limit: pageSize},
		Handler:  listAgents, Print: printAgents,
	})
	add(t, command.Spec[agentInput, agentShown]{
		Group: "agents", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: shownObject,
		Summary: "Show an agent, with its instructions, or an agent program",
		Long: `Shows an agent. It is named by its name, by its id, or by the id's beginning. A
holder of a key may leave it out for its own.

Of an agent program, such as claude, it shows where it is taken from, and what
its model calls would lack.`,
		Examples: []command.Example{{Line: "ravi agents show anna"}, {What: "an agent program", Line: "ravi agents show claude"}},
		Handler:  showAgent,
		Print:    printShown,
	})
	add(t, command.Spec[agentsEditInput, store.Agent]{
		Group: "agents", Name: "edit", Aliases: []string{"set"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Change an agent",
		Long: `Changes what is given of an agent; all else stays as it was. Runs that are under
way keep the instructions that they began with, and keys their profile.`,
		Examples: []command.Example{
			{Line: "ravi agents edit anna --instructions-file AGENTS.md"},
			{What: "nothing of what it writes counts at once any more", Line: "ravi agents edit anna --auto-approve ''"},
		},
		Handler: editAgent, Print: printAgentChanged,
	})
	add(t, command.Spec[agentsArchiveInput, store.Agent]{
		Group: "agents", Name: "archive", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Put an agent away",
		Long: `Leaves an agent out of ravi agents ls. Nothing of it is lost, and its name stays
taken; --undo brings it back.`,
		Examples: []command.Example{{Line: "ravi agents archive anna"}},
		Handler: func(ctx context.Context, env *command.Env, in agentsArchiveInput) (store.Agent, error) {
			return changeAgent(ctx, env, in.Agent, func(a *store.Agent) {
				now := store.Now()
				switch {
				case in.Undo:
					a.ArchivedAt = nil
				case a.ArchivedAt == nil:
					a.ArchivedAt = &now
				}
			})
		},
		Print: printAgentChanged,
	})
}

type agentsCreateInput struct {
	Name             string   `json:"name" arg:"NAME" host:"none" usage:"letters, digits and ._-:@+ only"`
	Instructions     string   `json:"instructions" flag:"instructions" short:"i" value:"TEXT" host:"none" usage:"what its runs find as AGENTS.md"`
	InstructionsFile string   `json:"instructions_file" flag:"instructions-file" value:"FILE" host:"path" usage:"the same, from a file; - is standard input"`
	Profile          string   `json:"profile" flag:"profile" value:"NAME" host:"none" usage:"what bounds its keys (default 'default')"`
	Program          string   `json:"program" flag:"program" value:"NAME" host:"none" usage:"the program that does its tasks: claude, codex, gemini, opencode, pi, loop or command"`
	AutoApprove      []string `json:"auto_approve" flag:"auto-approve" value:"PATTERN" host:"none" usage:"paths of memory that its runs may write; may be repeated"`
}

type agentsListInput struct {
	All    bool   `json:"all" flag:"all" host:"none" usage:"those that are archived, too"`
	Limit  int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type agentInput struct {
	Agent string `json:"agent" arg:"AGENT" optional:"true" host:"none" usage:"a name, an id or its beginning"`
}

func agentObject(ctx context.Context, env *command.Env, in agentInput) (string, error) {
	return objectOfAgent(ctx, env, "agents", in.Agent)
}

func objectOfAgent(ctx context.Context, env *command.Env, group, typed string) (string, error) {
	typed, err := agentNamed(env, typed)
	if err != nil {
		return "", err
	}
	return agentKind.object(ctx, env, group, typed)
}

// agentNamed is the agent that was named, or the caller's own.
func agentNamed(env *command.Env, typed string) (string, error) {
	if typed == "" {
		typed = own(env).AgentID
	}
	if typed == "" {
		return "", missingArgument("AGENT", "see ravi agents ls")
	}
	return typed, nil
}

func findAgent(ctx context.Context, env *command.Env, typed string) (store.Agent, error) {
	typed, err := agentNamed(env, typed)
	if err != nil {
		return store.Agent{}, err
	}
	return agentKind.get(ctx, env, typed)
}

type agentsEditInput struct {
	Agent            string   `json:"agent" arg:"AGENT" host:"none" usage:"a name, an id or its beginning"`
	Name             string   `json:"name" flag:"name" value:"NAME" host:"none" usage:"another name"`
	Instructions     *string  `json:"instructions" flag:"instructions" short:"i" value:"TEXT" host:"none" usage:"what its runs find as AGENTS.md"`
	InstructionsFile string   `json:"instructions_file" flag:"instructions-file" value:"FILE" host:"path" usage:"the same, from a file; - is standard input"`
	Profile          string   `json:"profile" flag:"profile" value:"NAME" host:"none" usage:"what bounds its keys"`
	Program          *string  `json:"program" flag:"program" value:"NAME" host:"none" usage:"the agent program that does its tasks; '' is none"`
	AutoApprove      []string `json:"auto_approve" flag:"auto-approve" value:"PATTERN" host:"none" usage:"paths of memory that its runs may write; may be repeated, '' is none"`
}

type agentsArchiveInput struct {
	Agent string `json:"agent" arg:"AGENT" host:"none" usage:"a name, an id or its beginning"`
	Undo  bool   `json:"undo" flag:"undo" host:"none" usage:"bring it back"`
}

func createAgent(ctx context.Context, env *command.Env, in agentsCreateInput) (store.Agent, error) {
	a := store.Agent{Name: in.Name, Instructions: in.Instructions, Profile: in.Profile, Program: in.Program}
	err := checkAgentName(in.Name)
	if err == nil {
		err = checkProgram(in.Program)
	}
	if err != nil {
		return a, err
	}
	if in.InstructionsFile != "" {
		if in.Instructions != "" {
			return a, errTwoInstructions()
		}
		if a.Instructions, err = readText(env, in.InstructionsFile, store.MaxText); err != nil {
			return a, err
		}
	}
	if a.AutoApprove, err = checkPatterns(in.AutoApprove); err != nil {
		return a, err
	}
	if err := checkProfile(ctx, env, in.Profile); err != nil {
		return a, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return a, err
	}
	return s.InsertAgent(ctx, a)
}

func errTwoInstructions() error {
	return command.Usage("--instructions and --instructions-file are both given", "give one of them")
}

func editAgent(ctx context.Context, env *command.Env, in agentsEditInput) (store.Agent, error) {
	patterns, err := checkPatterns(in.AutoApprove)
	if err != nil {
		return store.Agent{}, err
	}
	if err := checkProfile(ctx, env, in.Profile); err != nil {
		return store.Agent{}, err
	}
	if err := checkAgentName(in.Name); err != nil {
		return store.Agent{}, err
	}
	if in.Program != nil {
		if err := checkProgram(*in.Program); err != nil {
			return store.Agent{}, err
		}
	}
	if in.InstructionsFile != "" {
		if in.Instructions != nil {
			return store.Agent{}, errTwoInstructions()
		}
		text, err := readText(env, in.InstructionsFile, store.MaxText)
		if err != nil {
			return store.Agent{}, err
		}
		in.Instructions = &text
	}
	return changeAgent(ctx, env, in.Agent, func(a *store.Agent) {
		if in.Name != "" {
			a.Name = in.Name
		}
		if in.Instructions != nil {
			a.Instructions = *in.Instructions
		}
		if in.Profile != "" {
			a.Profile = in.Profile
		}
		if in.Program != nil {
			a.Program = *in.Program
		}
		if in.AutoApprove != nil {
			a.AutoApprove = patterns
		}
	})
}

func changeAgent(ctx context.Context, env *command.Env, typed string, change func(*store.Agent)) (store.Agent, error) {
	a, err := agentKind.get(ctx, env, typed)
	if err != nil {
		return a, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return a, err
	}
	return s.UpdateAgent(ctx, a.ID, func(a *store.Agent) error {
		change(a)
		return nil
	})
}

// checkAgentName refuses the name of an agent program: --agent would not say which of the two is meant.
func checkAgentName(name string) error {
	p, ok := adapter.Lookup(name)
	if !ok {
		return nil
	}
	return command.Usage(fmt.Sprintf("an agent cannot have the name %s: it is an agent program's (%s)", p.Name, p.Title),
		fmt.Sprintf("give it another name, and the program with --program: ravi agents create my-%s --program %s", p.Name, p.Name))
}

// checkProgram refuses an agent program that this Ravi does not know.
func checkProgram(name string) error {
	if _, ok := adapter.Lookup(name); ok || name == "" {
		return nil
	}
	return command.Usage(fmt.Sprintf("there is no agent program %.40q", name), meantProgram(name, "there are "+strings.Join(programNames(), ", ")))
}

func programNames() (names []string) {
	for _, p := range adapter.Programs() {
		names = append(names, p.Name)
	}
	return append(names, adapter.Loop)
}

// meantProgram is a hint about the agent program whose name is nearly this; if there is none, the other one.
func meantProgram(name, other string) string {
	if near := strictjson.Nearest(name, programNames()); near != "" {
		return "did you mean " + near + "?"
	}
	return other
}

// checkProfile refuses a profile that is not there.
func checkProfile(ctx context.Context, env *command.Env, name string) error {
	if name == "" || name == access.DefaultName {
		return nil
	}
	s, err := env.Store(ctx)
	if err != nil {
		return err
	}
	if _, err = s.Profile(ctx, name); errors.Is(err, store.ErrNotFound) {
		return command.Usage(fmt.Sprintf("there is no profile %.100q", name), "see ravi profiles ls")
	}
	return err
}

// checkPatterns refuses patterns that match nothing, and gives those that are not empty.
func checkPatterns(patterns []string) ([]string, error) {
	out := []string{}
	for _, p := range patterns {
		if p == "" {
			continue
		}
		parts := strings.Split(p, "/")
		for i, part := range parts {
			_, err := path.Match(part, "")
			switch {
			case err != nil, part == "", part == "..", part == ".":
				return nil, command.Usage(fmt.Sprintf("--auto-approve %.100q is no pattern of a path", p), "it is such as notes/*.md or notes/**")
			case strings.Contains(part, "**") && (part != "**" || i < len(parts)-1):
				return nil, command.Usage(fmt.Sprintf("--auto-approve %.100q has ** before its end", p), "** stands for all that is below, and only at the end")
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// approving is the pattern that lets a path of memory count without approval, if there is one.
func approving(patterns []string, name string) (string, bool) {
	parts := strings.Split(name, "/")
	for _, p := range patterns {
		want := strings.Split(p, "/")
		deep := want[len(want)-1] == "**"
		if deep {
			want = want[:len(want)-1]
		}
		if len(parts) < len(want) || !deep && len(parts) != len(want) || deep && len(parts) == len(want) {
			continue
		}
		all := true
		for i := range want {
			ok, err := path.Match(want[i], parts[i])
			all = all && ok && err == nil
		}
		if all {
			return p, true
		}
	}
	return "", false
}

// agentList are agents, and the agent programs.
type agentList struct {
	paged[store.Agent]
	Programs []agentProgram `json:"programs"` // none for holders of keys
}

func listAgents(ctx context.Context, env *command.Env, in agentsListInput) (l agentList, err error) {
	see := scopeOf(ctx, env, "agents", "ls")
	f := store.AgentFilter{Archived: in.All, IDs: see.ids()}
	s, err := env.Store(ctx)
	if err != nil {
		return l, err
	}
	l.paged, err = listPage(in.Limit, in.Before, agentKind.id, func(a store.Agent) bool { return see.shows(a.ID) },
		func(before string, limit int) ([]store.Agent, error) {
			f.Before, f.Limit = before, limit
			return s.ListAgents(ctx, f)
		})
	if err == nil {
		l.Programs, err = agentPrograms(ctx, env)
	}
	return l, err
}

func printAgents(env *command.Env, w io.Writer, l agentList) error {
	if env.Quiet {
		return printIDs(w, l.Items, agentKind.id)
	}
	if err := printStored(env, w, l.paged); err != nil || len(l.Programs) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return printPrograms(w, l.Programs)
}

func printStored(env *command.Env, w io.Writer, p paged[store.Agent]) error {
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "no agents; make one: ravi agents create NAME")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, a := range p.Items {
		state := ""
		if a.ArchivedAt != nil {
			state = "archived"
		}
		rows[i] = []string{a.ID, a.Name, a.Program, a.Profile, age(time.Since(a.CreatedAt)), state}
	}
	return printRows(env, w, "agents", []safe.Column{{Title: "ID"}, {Title: "NAME", Flex: true}, {Title: "PROGRAM"}, {Title: "PROFILE", Flex: true}, {Title: "AGE", Right: true}, {}},
		rows, nextPage("--before", p.Next))
}

func printAgent(env *command.Env, w io.Writer, a store.Agent) error {
	printLine(w, "id", a.ID)
	printLine(w, "name", a.Name)
	printLine(w, "program", a.Program)
	printLine(w, "profile", a.Profile)
	printLine(w, "auto-approve", strings.Join(a.AutoApprove, " "))
	printLine(w, "created", moment(a.CreatedAt))
	printLine(w, "changed", moment(a.UpdatedAt))
	printLine(w, "archived", momentOf(a.ArchivedAt))
	if a.Instructions == "" {
		return nil
	}
	fmt.Fprintln(w, "\ninstructions:")
	return printSaid(env, w, "instructions", a.Instructions)
}

func printAgentChanged(env *command.Env, w io.Writer, a store.Agent) error {
	if !env.Quiet {
		fmt.Fprintf(w, "changed %s (%s)\n", a.Name, a.ID)
	}
	return nil
}
