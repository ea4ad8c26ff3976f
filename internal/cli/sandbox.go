package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/procid"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// addSandbox adds the group sandbox; boxes are those of the daemon that this process is, nil in every other.
func addSandbox(t *command.Table, boxes *daemon.Sandboxes) {
	t.AddGroup(command.Group{Name: "sandbox", Summary: "Make, look at and end sandboxes"})
	command.Add(t, command.Spec[listInput, []sandboxItem]{
		Group: "sandbox", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List sandboxes",
		Long: `Lists the sandboxes that live, newest first; with --all those that have ended,
too. A holder of a key sees those that its key is for.

A sandbox whose owner and keeper are gone, but whose end nobody recorded, is
shown as lost; ravi sandbox prune ends it.

With --socket it lists those that a program of yours has opened by itself, with
debug.enabled.`,
		Examples: []command.Example{{What: "what lives now", Line: "ravi sandbox ls"}, {What: "ids only, for scripts", Line: "ravi sandbox ls -q"},
			{What: "of a program", Line: "ravi sandbox ls --socket ~/.ravi/sandbox/debug.sock"}},
		Handler: listSandboxes, Print: printSandboxes,
	})
	command.Add(t, command.Spec[oneInput, sandboxItem]{
		Group: "sandbox", Name: "inspect", Aliases: []string{"show"}, Access: command.Read, Object: sandboxObject,
		Summary: "Show everything that is recorded about a sandbox",
		Long: `Shows the record of one sandbox. SANDBOX is its id, which may be cut short as
long as only one begins like that, or its name.`,
		Examples: []command.Example{{Line: "ravi sandbox inspect sbx01jf"}},
		Handler: func(ctx context.Context, env *command.Env, in oneInput) (sandboxItem, error) {
			b, err := findSandbox(ctx, env, in.Sandbox)
			return itemOf(env, b), err
		},
		Print: printSandbox,
	})
	command.Add(t, command.Spec[killInput, []killed]{
		Group: "sandbox", Name: "kill", Aliases: []string{"rm", "stop"}, Access: command.Write, Scoped: true,
		Summary: "End sandboxes, and everything that was made for them",
		Long: `Ends the named sandboxes at once: processes, mounts, control groups and
directories. Logs and patches of runs stay. To end one that has ended is no
error. A holder of a key ends those that its key is for.`,
		Examples: []command.Example{{Line: "ravi sandbox kill sbx01jf"}, {What: "every one that lives", Line: "ravi sandbox kill --all"}},
		Handler:  killSandboxes, Print: printKilled,
	})
	command.Add(t, command.Spec[pruneInput, command.PruneReport]{
		Group: "sandbox", Name: "prune", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "End what a crash left behind",
		Long: `Compares the record with the machine: ends the sandboxes whose owner is gone,
and removes processes, mounts, control groups and directories that belong to
none, and versions of Ravi's own programs that none runs. What lives and is
owned is not touched.`,
		Examples: []command.Example{{Line: "ravi sandbox prune"}},
		Handler: func(ctx context.Context, env *command.Env, _ pruneInput) (command.PruneReport, error) {
			sweeper, err := env.Sweeper(ctx)
			if err != nil {
				return command.PruneReport{}, err
			}
			return sweeper.Prune(ctx)
		},
		Print: printPruned,
		Exit: func(r command.PruneReport) int {
			if len(r.Problems) > 0 {
				return command.ExitFailed
			}
			return command.ExitOK
		},
	})
	addSandboxLogs(t)
	addSandboxNetwork(t)
	addSandboxCreate(t, boxes)
	addSandboxExec(t)
	addSandboxShell(t)
	addSandboxCopy(t)
	addSandboxPort(t)
	addSandboxPause(t)
	addSandboxStats(t)
}

type listInput struct {
	All   bool `json:"all" flag:"all" short:"a" host:"none" usage:"those that have ended, too"`
	Limit int  `json:"limit" flag:"limit" short:"n" value:"N" usage:"the newest N only; 0 is all" host:"none"` // rows, not a resource
	// Socket is of a program with sandboxes of its own.
	Socket string `json:"socket" flag:"socket" value:"PATH" host:"path" usage:"those of the program with this debug socket"`
}

type oneInput struct {
	Sandbox string `json:"sandbox" arg:"SANDBOX" host:"none" usage:"the id, its beginning, or the name"`
}

func sandboxObject(ctx context.Context, env *command.Env, in oneInput) (string, error) {
	return boxKind.object(ctx, env, "sandbox", in.Sandbox)
}

// boxKind are sandboxes as what commands are about.
var boxKind = kind[store.Sandbox]{"sandbox", "ravi sandbox ls --all", "sandbox", (*store.Store).Sandbox, func(b store.Sandbox) string { return b.ID }}

type killInput struct {
	Sandboxes []string `json:"sandboxes" arg:"SANDBOX" optional:"true" host:"none" usage:"ids, their beginnings, or names"`
	All       bool     `json:"all" flag:"all" short:"a" host:"none" usage:"every sandbox that lives"`
}

type pruneInput struct{}

// sandboxItem is a record with what can be seen right now, as the caller may see it: who has a key learns nothing of where
// things are on this machine, or of its processes.
type sandboxItem struct {
	store.Sandbox
	Workspace string     `json:"workspace,omitempty"`
	Owner     *procid.ID `json:"owner,omitempty"`
	Keeper    *procid.ID `json:"keeper,omitempty"`
	Dir       string     `json:"dir,omitempty"`
	Cgroups   []string   `json:"cgroups,omitempty"`
	UIDBase   *uint32    `json:"uid_base,omitempty"`
	// Lost says that the sandbox is recorded as living, and that neither its owner nor its keeper is there.
	Lost bool `json:"lost"`
}

func itemOf(env *command.Env, b store.Sandbox) sandboxItem {
	item := sandboxItem{Sandbox: b, Lost: !b.Seen.Final() && !procid.Alive(b.Owner) && !procid.Alive(b.Keeper)}
	if env.Caller.IsOperator() {
		item.Workspace, item.Owner, item.Keeper, item.Dir, item.Cgroups, item.UIDBase = b.Workspace, &b.Owner, &b.Keeper, b.Dir, b.Cgroups, &b.UIDBase
		return item
	}
	r := &item.Sandbox
	r.Workspace, r.Owner, r.Keeper, r.Dir, r.Cgroups, r.UIDBase = "", procid.ID{}, procid.ID{}, "", nil, 0
	return item
}

func (i sandboxItem) state() string {
	if i.Lost {
		return "lost"
	}
	return string(i.Seen)
}

func findSandbox(ctx context.Context, env *command.Env, typed string) (store.Sandbox, error) {
	return boxKind.get(ctx, env, typed)
}

func listSandboxes(ctx context.Context, env *command.Env, in listInput) ([]sandboxItem, error) {
	if in.Limit < 0 {
		return nil, command.Usage("--limit is below 0", "leave it out for all")
	}
	if in.Socket != "" {
		d := openSocket(in.Socket)
		defer d.close()
		return d.list(ctx, in)
	}
	s, err := env.Store(ctx)
	if err != nil {
		return nil, err
	}
	see := scopeOf(ctx, env, "sandbox", "ls")
	f := store.SandboxFilter{Live: !in.All, IDs: see.ids()}
	if see.all || f.IDs != nil {
		f.Limit = in.Limit // else it counts those that are shown
	}
	found, err := s.ListSandboxes(ctx, f)
	if err != nil {
		return nil, err
	}
	items := []sandboxItem{}
	for _, b := range found {
		if see.showsMade(b.ID, b.CreatedBy) && (in.Limit == 0 || len(items) < in.Limit) {
			items = append(items, itemOf(env, b))
		}
	}
	return items, nil
}

func printSandboxes(env *command.Env, w io.Writer, items []sandboxItem) error {
	if env.Quiet {
		for _, i := range items {
			fmt.Fprintln(w, i.ID)
		}
		return nil
	}
	if len(items) == 0 {
		fmt.Fprintln(w, "no sandboxes; make one: ravi sandbox run -- COMMAND")
		return nil
	}
	named := slices.ContainsFunc(items, func(i sandboxItem) bool { return i.Name != "" })
	columns := []safe.Column{{Title: "ID"}, {Title: "STATE"}, {Title: "BACKEND"}, {Title: "AGE", Right: true}, {Title: "IMAGE", Flex: true}, {Title: "WORKSPACE", Flex: true}}
	if named {
		columns = slices.Insert(columns, 1, safe.Column{Title: "NAME", Flex: true})
	}
	rows := make([][]string, len(items))
	for n, i := range items {
		rows[n] = []string{i.ID, i.state(), i.Backend, age(time.Since(i.CreatedAt)), i.Image, i.Workspace}
		if named {
			rows[n] = slices.Insert(rows[n], 1, i.Name)
		}
	}
	return printRows(env, w, "sandboxes", columns, rows, "")
}

func printSandbox(_ *command.Env, w io.Writer, i sandboxItem) error {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-10s %s\n", name+":", safe.Safe(value))
		}
	}
	moment := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.Local().Format("2006-01-02 15:04:05") + " (" + age(time.Since(*t)) + " ago)"
	}
	person := func(id *procid.ID) string {
		switch {
		case id == nil || *id == procid.ID{}:
			return ""
		case procid.Alive(*id):
			return fmt.Sprintf("process %d", id.PID)
		}
		return fmt.Sprintf("process %d, gone", id.PID)
	}
	line("id", i.ID)
	line("name", i.Name)
	line("state", i.state())
	if i.Lost {
		line("", "its owner and its keeper are gone; end it: ravi sandbox kill "+i.ID)
	}
	line("wanted", string(i.Desired))
	line("reason", i.Reason)
	line("run", i.RunID)
	line("made by", i.CreatedBy)
	line("backend", i.Backend)
	line("image", i.Image)
	line("workspace", i.Workspace)
	line("limits", fmt.Sprintf("%g CPUs, %d MiB memory, %d MiB disk, %d processes", i.Limits.CPUs, i.Limits.MemoryMiB, i.Limits.DiskMiB, i.Limits.Pids))
	line("owner", person(i.Owner))
	line("keeper", person(i.Keeper))
	line("directory", i.Dir)
	line("cgroups", strings.Join(i.Cgroups, ", "))
	line("created", moment(&i.CreatedAt))
	line("started", moment(i.StartedAt))
	line("ended", moment(i.EndedAt))
	return nil
}

// killed is what became of one sandbox that was to end.
type killed struct {
	ID    string `json:"id"`
	Ended bool   `json:"ended"` // now; false for one that had ended before
}

func killSandboxes(ctx context.Context, env *command.Env, in killInput) ([]killed, error) {
	if in.All == (len(in.Sandboxes) > 0) {
		return nil, command.Usage("name the sandboxes to end, or say --all", "see ravi sandbox ls")
	}
	targets, err := toKill(ctx, env, in)
	if err != nil {
		return nil, err
	}
	out := []killed{}
	var failed []error
	for _, b := range targets {
		if b.Seen.Final() {
			out = append(out, killed{ID: b.ID})
			continue
		}
		sweeper, err := env.Sweeper(ctx)
		if err != nil {
			return nil, err
		}
		if err := sweeper.Kill(ctx, b); err != nil {
			failed = append(failed, fmt.Errorf("sandbox %s: %w", b.ID, err))
			continue
		}
		out = append(out, killed{ID: b.ID, Ended: true})
	}
	if len(failed) > 0 {
		return nil, fmt.Errorf("%d of %d sandboxes could not be ended:\n%w", len(failed), len(targets), errors.Join(failed...))
	}
	return out, nil
}

// toKill are the sandboxes that are meant. All names are looked up before anything ends: a mistyped one, and one that is
// not for the caller to end, stops the whole command.
func toKill(ctx context.Context, env *command.Env, in killInput) (targets []store.Sandbox, err error) {
	if in.All {
		s, err := env.Store(ctx)
		if err != nil {
			return nil, err
		}
		live, err := s.ListSandboxes(ctx, store.SandboxFilter{Live: true})
		return slices.DeleteFunc(live, func(b store.Sandbox) bool {
			return env.Check(ctx, access.Ask{Access: access.Write, Group: "sandbox", Command: "kill", Object: b.ID}) != nil
		}), err
	}
	for _, typed := range in.Sandboxes {
		b, err := findBoxFor(ctx, env, access.Write, "kill", typed)
		if err != nil {
			return nil, err
		}
		targets = append(targets, b)
	}
	return targets, nil
}

// findBoxFor finds a sandbox for a command that looks at each itself. Of one that is not for the caller it does not tell
// whether it is there.
func findBoxFor(ctx context.Context, env *command.Env, kind access.Access, name, typed string) (store.Sandbox, error) {
	id, err := boxKind.object(ctx, env, "sandbox", typed)
	if may := env.Check(ctx, access.Ask{Access: kind, Group: "sandbox", Command: name, Object: id}); may != nil {
		return store.Sandbox{}, command.Denied(may)
	}
	if err != nil {
		return store.Sandbox{}, err
	}
	// Found anew by the id that was looked at: a name may mean another by now.
	return findSandbox(ctx, env, id)
}

func printKilled(env *command.Env, w io.Writer, out []killed) error {
	if len(out) == 0 && !env.Quiet {
		fmt.Fprintln(w, "no sandbox lives")
	}
	for _, k := range out {
		switch {
		case env.Quiet || k.Ended:
			fmt.Fprintln(w, k.ID)
		default:
			fmt.Fprintln(w, k.ID, "had ended before")
		}
	}
	return nil
}

func printPruned(env *command.Env, w io.Writer, r command.PruneReport) error {
	for _, id := range r.Ended {
		if env.Quiet {
			fmt.Fprintln(w, id)
			continue
		}
		fmt.Fprintln(w, "ended", safe.Safe(id))
	}
	if !env.Quiet {
		if r.Dirs+r.Programs+len(r.Ended)+len(r.Problems) == 0 {
			fmt.Fprintln(w, "nothing was left behind")
			return nil
		}
		fmt.Fprintf(w, "removed %s of sandboxes and %s of Ravi's programs\n",
			count(r.Dirs, "folder", "folders"), count(r.Programs, "unused version", "unused versions"))
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "not removed:", safe.Safe(p))
	}
	return nil
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// age is a duration as one number.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
