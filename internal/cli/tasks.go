package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addTasks(t *command.Table) {
	t.AddGroup(command.Group{Name: "tasks", Summary: "Say what is to be done, and what became of it"})
	add(t, command.Spec[tasksCreateInput, store.Task]{
		Group: "tasks", Name: "create", Aliases: []string{"new"}, Access: command.Write,
		Summary: "Record something to be done",
		Long: `Records a task, as open. It belongs to an agent or to a session, or to none yet.
A session's task belongs to the session's agent.

A holder of a key makes tasks for its own agent and session.`,
		Examples: []command.Example{
			{Line: `ravi tasks create "Fix the login page" --session web`},
			{What: "with all there is to know", Line: `ravi tasks create "Fix the login page" --agent anna \` + "\n" + `      --body "Since Monday it shows a blank page in Firefox."`},
		},
		Handler: createTask,
		Print: func(env *command.Env, w io.Writer, t store.Task) error {
			fmt.Fprintln(w, t.ID)
			return nil
		},
	})
	add(t, command.Spec[tasksListInput, paged[store.Task]]{
		Group: "tasks", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List tasks",
		Long: `Lists tasks, the newest first. A holder of a key sees those that its key is
for.`,
		Examples: []command.Example{
			{What: "what waits for somebody", Line: "ravi tasks ls --status blocked"},
			{What: "of one agent", Line: "ravi tasks ls --agent anna"},
		},
		Defaults: tasksListInput{Limit: pageSize},
		Handler:  listTasks, Print: printTasks,
	})
	add(t, command.Spec[tasksShowInput, taskShown]{
		Group: "tasks", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: tasksShowObject,
		Summary: "Show a task, with what was said about it",
		Long: `Shows a task with its comments, its reports and the changes of its status, in
the order in which they came. The id may be cut short, as long as only one
begins like that. A holder of a key may leave it out for its own task.`,
		Examples: []command.Example{{Line: "ravi tasks show tsk01jf"}, {What: "what was said after a comment", Line: "ravi tasks show tsk01jf --after com01jf5r0q4k8n2v6t9w3x7y1z5b --json"}},
		Defaults: tasksShowInput{Limit: pageMost},
		Handler:  showTask, Print: printTask,
	})
	addTasksSay(t)
}

type tasksCreateInput struct {
	Title   string `json:"title" arg:"TITLE" host:"none" usage:"what is to be done, on one line"`
	Body    string `json:"body" flag:"body" short:"b" value:"TEXT" host:"none" usage:"all there is to know about it"`
	Agent   string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"who is to do it: a name, an id or its beginning"`
	Session string `json:"session" flag:"session" short:"s" value:"SESSION" host:"none" usage:"the conversation that it belongs to"`
}

type tasksListInput struct {
	Status  string `json:"status" flag:"status" value:"STATUS" host:"none" usage:"open, dispatched, in_progress, blocked, done or failed"`
	Agent   string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"of this agent"`
	Session string `json:"session" flag:"session" short:"s" value:"SESSION" host:"none" usage:"of this session"`
	Limit   int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before  string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type tasksShowInput struct {
	Task  string `json:"task" arg:"TASK" optional:"true" host:"none" usage:"the id, or its beginning"`
	After string `json:"after" flag:"after" value:"ID" host:"none" usage:"what was said after this comment"`
	Limit int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N comments, up to 500"`
}

func tasksShowObject(ctx context.Context, env *command.Env, in tasksShowInput) (string, error) {
	return taskObject(ctx, env, in.Task, "", noText)
}

// wordy says whether a command on a task takes a text.
type wordy int

const (
	noText wordy = iota
	mayText
	needsText
)

// taskAndText is what a command on a task was given. Who has a key may leave out its own task; the one argument of a
// command that takes a text is then that, unless it looks like a task.
func taskAndText(env *command.Env, task, text string, takes wordy) (string, string, error) {
	if mine := own(env).TaskID; mine != "" {
		if takes != noText && text == "" && task != "" && !looksLikeID("tsk", task) {
			task, text = "", task
		}
		if task == "" {
			task = mine
		}
	}
	switch {
	case task == "":
		return "", "", missingArgument("TASK", "see ravi tasks ls")
	case takes == needsText && text == "":
		return "", "", missingArgument("TEXT", "say it behind the task, in quotes")
	}
	return task, text, nil
}

func createTask(ctx context.Context, env *command.Env, in tasksCreateInput) (store.Task, error) {
	mine := own(env)
	t := store.Task{Title: strings.TrimSpace(in.Title), Body: in.Body, AgentID: mine.AgentID, SessionID: mine.SessionID, KeyID: mine.ID}
	if in.Agent != "" {
		a, err := agentKind.name(ctx, env, in.Agent, mine.AgentID)
		if err != nil {
			return t, err
		}
		if t.AgentID = a.ID; a.ID != mine.AgentID {
			t.SessionID = ""
		}
	}
	if in.Session != "" {
		c, err := sesKind.name(ctx, env, in.Session, mine.SessionID)
		if err != nil {
			return t, err
		}
		if in.Agent != "" && c.AgentID != t.AgentID {
			return t, command.Usage(fmt.Sprintf("the session %s is another agent's", c.Name), "leave out --agent: the session says whose it is")
		}
		t.SessionID, t.AgentID = c.ID, c.AgentID
	}
	var err error
	if t.Author, err = author(ctx, env); err != nil {
		return t, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return t, err
	}
	return s.InsertTask(ctx, t)
}

func listTasks(ctx context.Context, env *command.Env, in tasksListInput) (paged[store.Task], error) {
	none := paged[store.Task]{Items: []store.Task{}}
	see := scopeOf(ctx, env, "tasks", "ls")
	f := store.TaskFilter{Status: store.TaskStatus(in.Status), IDs: see.ids()}
	if in.Status != "" && !slices.Contains(store.TaskStatuses, f.Status) {
		return none, command.Usage(fmt.Sprintf("there is no status %.40q", in.Status), fmt.Sprintf("it is one of %v", store.TaskStatuses))
	}
	var err error
	if f.AgentID, err = agentKind.filter(ctx, env, in.Agent); err != nil {
		return none, err
	}
	if f.SessionID, err = sesKind.filter(ctx, env, in.Session); err != nil {
		return none, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	return listPage(in.Limit, in.Before, taskKind.id, func(t store.Task) bool { return see.shows(t.ID) },
		func(before string, limit int) ([]store.Task, error) {
			f.Before, f.Limit = before, limit
			return s.ListTasks(ctx, f)
		})
}

func printTasks(env *command.Env, w io.Writer, p paged[store.Task]) error {
	if env.Quiet {
		return printIDs(w, p.Items, taskKind.id)
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "no tasks")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, t := range p.Items {
		rows[i] = []string{t.ID, string(t.Status), age(time.Since(t.UpdatedAt)), t.Title}
	}
	return printRows(env, w, "tasks", []safe.Column{{Title: "ID"}, {Title: "STATUS"}, {Title: "CHANGED", Right: true}, {Title: "TITLE", Flex: true}},
		rows, nextPage("--before", p.Next))
}

// nextPage is the flag that leads to the next page, if there is one.
func nextPage(flag, next string) string {
	if next == "" {
		return ""
	}
	return flag + " " + next
}

// taskShown is a task with what was said about it.
type taskShown struct {
	store.Task
	Comments paged[store.TaskComment] `json:"comments"`
}

func showTask(ctx context.Context, env *command.Env, in tasksShowInput) (out taskShown, err error) {
	if err := checkLimit(in.Limit); err != nil {
		return out, err
	}
	id, _, err := taskAndText(env, in.Task, "", noText)
	if err != nil {
		return out, err
	}
	if out.Task, err = taskKind.get(ctx, env, id); err != nil {
		return out, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	said, err := s.Comments(ctx, out.ID, store.CommentFilter{After: in.After, Limit: in.Limit + 1})
	if err != nil {
		return out, err
	}
	if len(said) > in.Limit {
		said = said[:in.Limit]
		out.Comments.Next = said[in.Limit-1].ID
	}
	out.Comments.Items = said
	return out, nil
}

func printTask(env *command.Env, w io.Writer, t taskShown) error {
	printLine(w, "id", t.ID)
	if !env.ForAgent {
		printLine(w, "title", t.Title)
	}
	printLine(w, "status", string(t.Status))
	printLine(w, "agent", t.AgentID)
	printLine(w, "session", t.SessionID)
	printLine(w, "author", t.Author)
	printLine(w, "created", moment(t.CreatedAt))
	printLine(w, "changed", moment(t.UpdatedAt))
	printLine(w, "ended", momentOf(t.EndedAt))
	text := t.Body
	if env.ForAgent {
		text = strings.TrimRight(t.Title+"\n\n"+t.Body, "\n")
	}
	if text != "" {
		fmt.Fprintln(w)
		if err := printSaid(env, w, "task", text); err != nil {
			return err
		}
	}
	for _, c := range t.Comments.Items {
		what := string(c.Kind)
		if c.Kind == store.CommentStatus {
			what = "became " + string(c.Status)
		}
		fmt.Fprintf(w, "\n%s, by %s, %s ago, %s\n", what, safe.Safe(orNobody(c.Author)), age(time.Since(c.CreatedAt)), c.ID)
		if c.Text != "" {
			if err := printSaid(env, w, string(c.Kind), c.Text); err != nil {
				return err
			}
		}
	}
	if next := t.Comments.Next; next != "" {
		fmt.Fprintf(w, "\nthere is more: add --after %s\n", next)
	}
	return nil
}

func orNobody(name string) string {
	if name == "" {
		return "nobody"
	}
	return name
}
