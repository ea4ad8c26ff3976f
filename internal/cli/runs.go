package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ravi/internal/command"
	"ravi/internal/procid"
	runs "ravi/internal/run"
	"ravi/internal/store"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addRuns(t *command.Table) {
	t.AddGroup(command.Group{Name: "runs", Summary: "Look at runs, and at what came of them"})
	add(t, command.Spec[runsListInput, paged[runItem]]{
		Group: "runs", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List runs",
		Long: `Lists runs, the newest first; with --live those that are not over. A holder of a
key sees those that its key is for.`,
		Examples: []command.Example{{Line: "ravi runs ls --live"}, {What: "what went wrong with a task", Line: "ravi runs ls --task tsk01jf --status failed"}},
		Defaults: runsListInput{Limit: pageSize},
		Handler:  listRuns, Print: printRuns,
	})
	add(t, command.Spec[runsOneInput, runShown]{
		Group: "runs", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: runsOneObject,
		Summary: "Show what is recorded about a run",
		Long: `Shows a run, how it ended, a summary of what it changed, and its files. The id
may be cut short, as long as only one begins like that.` + runsOwn,
		Examples: []command.Example{{Line: "ravi runs show run01jf"}},
		Handler:  showRun, Print: printRunShown,
	})
	add(t, command.Spec[runsLogsInput, logsOutput]{
		Group: "runs", Name: "logs", Access: command.Read, Object: runsLogsObject,
		Summary: "Show what a run wrote",
		Long: `Shows what the command of a run wrote to standard output and standard error, so
far. On a terminal, control sequences are shown and not obeyed; into a pipe the
bytes go as they are.` + runsOwn,
		Examples: []command.Example{{Line: "ravi runs logs run01jf"}, {What: "the last lines of one stream", Line: "ravi runs logs run01jf --stream stderr --tail 20"}},
		Handler:  runLogs, Print: printLogs,
	})
	add(t, command.Spec[runsOneInput, runPatch]{
		Group: "runs", Name: "patch", Access: command.Read, Object: runsOneObject,
		Summary: "Print what a run changed, as a patch",
		Long: `Prints changes.patch of a run; of one that is under way, what was saved last.
On a terminal, control sequences are shown and not obeyed; into a pipe the bytes
go as they are. A patch that holds the value of a secret is held back.

In JSON, a patch that is not UTF-8 is in base64.` + runsOwn,
		Examples: []command.Example{{Line: "ravi runs patch run01jf"}, {What: "lay it onto the work tree", Line: "ravi runs patch run01jf | git apply"}},
		Handler:  readPatch, Print: printPatch,
	})
	add(t, command.Spec[runsOneInput, store.Run]{
		Group: "runs", Name: "cancel", Aliases: []string{"kill", "stop"}, Access: command.Write, Object: runsOneObject,
		Summary: "End a run at once",
		Long: `Ends the sandbox of a run, and records the run as canceled. Logs, and the patch
that was saved last, stay.` + runsOwn,
		Examples: []command.Example{{Line: "ravi runs cancel run01jf"}},
		Handler:  cancelRun,
		Print: func(env *command.Env, w io.Writer, r store.Run) error {
			if !env.Quiet {
				fmt.Fprintf(w, "%s is %s\n", r.ID, r.Status)
			}
			return nil
		},
	})
}

const runsOwn = `

A holder of a key may leave out RUN for its own.`

type runsListInput struct {
	Status  string `json:"status" flag:"status" value:"STATUS" host:"none" usage:"queued, running, succeeded, failed, timeout, oom, canceled or error"`
	Live    bool   `json:"live" flag:"live" host:"none" usage:"those that are not over"`
	Agent   string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"of this agent"`
	Session string `json:"session" flag:"session" short:"s" value:"SESSION" host:"none" usage:"of this session"`
	Task    string `json:"task" flag:"task" short:"t" value:"TASK" host:"none" usage:"of this task"`
	Limit   int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before  string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type runsOneInput struct {
	Run string `json:"run" arg:"RUN" optional:"true" host:"none" usage:"the id, or its beginning"`
}

func runsOneObject(ctx context.Context, env *command.Env, in runsOneInput) (string, error) {
	return runObject(ctx, env, in.Run)
}

type runsLogsInput struct {
	Run    string `json:"run" arg:"RUN" optional:"true" host:"none" usage:"the id, or its beginning"`
	Stream string `json:"stream" flag:"stream" value:"NAME" host:"none" usage:"only this: stdout or stderr"`
	Tail   int    `json:"tail" flag:"tail" short:"n" value:"N" host:"none" usage:"only the last N lines of each; 0 is all"`
}

func runsLogsObject(ctx context.Context, env *command.Env, in runsLogsInput) (string, error) {
	return runObject(ctx, env, in.Run)
}

func runNamed(env *command.Env, typed string) (string, error) {
	if typed == "" {
		typed = own(env).RunID
	}
	if typed == "" {
		return "", missingArgument("RUN", "see ravi runs ls")
	}
	return typed, nil
}

func runObject(ctx context.Context, env *command.Env, typed string) (string, error) {
	typed, err := runNamed(env, typed)
	if err != nil {
		return "", err
	}
	return runKind.object(ctx, env, "runs", typed)
}

func findRun(ctx context.Context, env *command.Env, typed string) (store.Run, error) {
	typed, err := runNamed(env, typed)
	if err != nil {
		return store.Run{}, err
	}
	return runKind.get(ctx, env, typed)
}

// runItem is a run as the caller may see it: who has a key learns nothing of where things are on this machine.
type runItem struct {
	store.Run
	Repo  string     `json:"repo,omitempty"`
	Dir   string     `json:"dir,omitempty"`
	Owner *procid.ID `json:"owner,omitempty"`
}

func runItemOf(env *command.Env, r store.Run) runItem {
	item := runItem{Run: withoutHost(env, r)}
	item.Repo, item.Dir = item.Run.Repo, item.Run.Dir
	if env.Caller.IsOperator() {
		item.Owner = &r.Owner
	}
	return item
}

// withoutHost leaves out what a holder of a key has no use for.
func withoutHost(env *command.Env, r store.Run) store.Run {
	if env.Caller.IsOperator() {
		return r
	}
	r.Dir, r.Owner = "", procid.ID{}
	if !strings.Contains(r.Repo, "://") {
		r.Repo = ""
	}
	return r
}

var runStatuses = []store.RunStatus{store.RunQueued, store.RunRunning, store.RunSucceeded, store.RunFailed, store.RunTimeout, store.RunOOM,
	store.RunCanceled, store.RunError}

func listRuns(ctx context.Context, env *command.Env, in runsListInput) (paged[runItem], error) {
	none := paged[runItem]{Items: []runItem{}}
	status := store.RunStatus(in.Status)
	if in.Status != "" && !slices.Contains(runStatuses, status) {
		return none, command.Usage(fmt.Sprintf("there is no status %.40q", in.Status), fmt.Sprintf("it is one of %v", runStatuses))
	}
	see := scopeOf(ctx, env, "runs", "ls")
	f := store.RunFilter{Live: in.Live || in.Status != "" && !status.Final(), IDs: see.ids()}
	var err error
	if f.AgentID, err = agentKind.filter(ctx, env, in.Agent); err != nil {
		return none, err
	}
	if f.SessionID, err = sesKind.filter(ctx, env, in.Session); err != nil {
		return none, err
	}
	if f.TaskID, err = taskKind.filter(ctx, env, in.Task); err != nil {
		return none, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	found, err := listPage(in.Limit, in.Before, runKind.id,
		func(r store.Run) bool {
			return see.showsMade(r.ID, r.CreatedBy) && (status == "" || r.Status == status)
		},
		func(before string, limit int) ([]store.Run, error) {
			f.Before, f.Limit = before, limit
			return s.ListRuns(ctx, f)
		})
	out := paged[runItem]{Items: make([]runItem, len(found.Items)), Next: found.Next}
	for i, r := range found.Items {
		out.Items[i] = runItemOf(env, r)
	}
	return out, err
}

func printRuns(env *command.Env, w io.Writer, p paged[runItem]) error {
	if env.Quiet {
		return printIDs(w, p.Items, func(i runItem) string { return i.ID })
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "no runs; make one: ravi sandbox run -- COMMAND")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, r := range p.Items {
		rows[i] = []string{r.ID, string(r.Status), age(time.Since(r.CreatedAt)), patchWords(r.Patch), strings.Join(r.Command, " ")}
	}
	return printRows(env, w, "runs", []safe.Column{{Title: "ID"}, {Title: "STATUS"}, {Title: "AGE", Right: true}, {Title: "CHANGED"}, {Title: "COMMAND", Flex: true}},
		rows, nextPage("--before", p.Next))
}

func patchWords(p *store.Patch) string {
	if p == nil || p.Files == 0 {
		return ""
	}
	return fmt.Sprintf("%s +%d -%d", count(p.Files, "file", "files"), p.Insertions, p.Deletions)
}

// runShown is a run with its files.
type runShown struct {
	runItem
	// Error is why Ravi could not do it, or ended it, and Hint what mends that. They are the operator's: they may name what
	// is of the host.
	Error string    `json:"error,omitempty"`
	Hint  string    `json:"hint,omitempty"`
	Files []runFile `json:"files"`
}

type runFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

func showRun(ctx context.Context, env *command.Env, in runsOneInput) (out runShown, err error) {
	r, err := findRun(ctx, env, in.Run)
	if err != nil {
		return out, err
	}
	out = runShown{runItem: runItemOf(env, r), Files: []runFile{}}
	if env.Caller.IsOperator() {
		switch t, err := runs.ReadTask(r.Dir); {
		case err == nil:
			out.Error, out.Hint = t.Error, t.Hint
		case !errors.Is(err, fs.ErrNotExist):
			out.Error = runs.TaskFile + " of it cannot be read"
		}
	}
	err = fs.WalkDir(os.DirFS(r.Dir), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is made, or removed, meanwhile
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out.Files = append(out.Files, runFile{name, info.Size()})
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	if err != nil {
		return out, fmt.Errorf("cannot read the folder of run %s", r.ID)
	}
	return out, nil
}

func printRunShown(env *command.Env, w io.Writer, r runShown) error {
	printLine(w, "id", r.ID)
	printLine(w, "status", string(r.Status))
	printLine(w, "reason", r.Reason)
	if !env.ForAgent {
		printLine(w, "error", r.Error)
		printLine(w, "hint", r.Hint)
	}
	if r.ExitCode != nil {
		printLine(w, "exit code", fmt.Sprint(*r.ExitCode))
	}
	if !env.ForAgent {
		printLine(w, "command", strings.Join(r.Command, " "))
	}
	printLine(w, "repository", r.Repo)
	printLine(w, "base", r.Base)
	printLine(w, "agent", r.AgentID)
	printLine(w, "session", r.SessionID)
	printLine(w, "task", r.TaskID)
	printLine(w, "sandbox", r.SandboxID)
	printLine(w, "made by", r.CreatedBy)
	printLine(w, "created", moment(r.CreatedAt))
	printLine(w, "started", momentOf(r.StartedAt))
	printLine(w, "ended", momentOf(r.EndedAt))
	if p := r.Patch; p != nil {
		proven := "proven on a clean checkout"
		if !p.Applies {
			proven = "NOT proven"
		}
		words := "nothing was changed"
		if p.Files > 0 {
			words = patchWords(p) + ", " + proven
		}
		printLine(w, "patch", words)
	}
	printLine(w, "files", r.Dir)
	for _, f := range r.Files {
		fmt.Fprintf(w, "  %s (%d bytes)\n", safe.Safe(filepath.ToSlash(f.Name)), f.Bytes)
	}
	what := r.Task
	if env.ForAgent {
		what = strings.TrimRight(strings.Join(r.Command, " ")+"\n\n"+what, "\n")
	}
	if what == "" {
		return nil
	}
	fmt.Fprintln(w, "\ntask:")
	return printSaid(env, w, "what was to be done", what)
}

// cancelRun records first and ends afterwards, so that whoever does the run finds it canceled when its sandbox ends.
func cancelRun(ctx context.Context, env *command.Env, in runsOneInput) (store.Run, error) {
	r, err := findRun(ctx, env, in.Run)
	if err != nil {
		return r, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return r, err
	}
	// One that was canceled, and whose sandbox could not be ended, is ended now.
	if r.Status != store.RunCanceled {
		r, err = s.UpdateRun(ctx, r.ID, func(r *store.Run) error {
			if r.Status.Final() {
				return fmt.Errorf("run %s is %s already: %w", r.ID, r.Status, store.ErrFinal)
			}
			r.Status, r.Reason = store.RunCanceled, sandbox.ReasonCanceled
			return nil
		})
		if err != nil {
			return r, err
		}
	}
	boxes, err := s.ListSandboxes(ctx, store.SandboxFilter{Live: true, RunID: r.ID})
	if err != nil {
		return r, err
	}
	for _, b := range boxes {
		sweeper, err := env.Sweeper(ctx)
		if err != nil {
			return r, err
		}
		// One on a runner is ended by the run, when that finds itself canceled.
		if err := sweeper.Kill(ctx, b); err != nil && !errors.Is(err, runs.ErrElsewhere) {
			return r, fmt.Errorf("the run is canceled, and its sandbox %s could not be ended: %w", b.ID, err)
		}
	}
	return withoutHost(env, r), nil
}
