package cli

import (
	"context"
	"fmt"
	"io"

	"ravi/internal/command"
	"ravi/internal/store"
)

const tasksOwn = `

A holder of a key may leave out TASK for its own task.`

// addTasksSay declares the commands that say something about a task, or change its status.
func addTasksSay(t *command.Table) {
	for _, c := range []struct {
		name, summary, long string
		kind                store.CommentKind
		example             command.Example
	}{
		{"comment", "Say something about a task", `Adds a comment to a task, also to one that is over. Its status stays.`, store.CommentPlain,
			command.Example{Line: `ravi tasks comment tsk01jf "The test fails on Windows, too."`}},
		{"report", "Report what was done for a task", `Adds a report to a task: what was done, and what was found. Its status stays;
ravi tasks done and ravi tasks fail end the task.`, store.CommentReport,
			command.Example{Line: `ravi tasks report tsk01jf "The cookie was set for the wrong path."`}},
	} {
		add(t, command.Spec[tasksSayInput, store.TaskComment]{
			Group: "tasks", Name: c.name, Access: command.Write, Object: tasksSayObject,
			Summary: c.summary, Long: c.long + tasksOwn, Examples: []command.Example{c.example},
			Handler: func(ctx context.Context, env *command.Env, in tasksSayInput) (store.TaskComment, error) {
				return sayOfTask(ctx, env, in, c.kind)
			},
			Print: func(env *command.Env, w io.Writer, c store.TaskComment) error {
				fmt.Fprintln(w, c.ID)
				return nil
			},
		})
	}
	for _, c := range []struct {
		name, summary, long string
		status              store.TaskStatus
		example             command.Example
	}{
		{"block", "Say what a task waits for", `Sets a task to blocked, and says what it waits for.`, store.TaskBlocked,
			command.Example{Line: `ravi tasks block tsk01jf "Which of the two logins is meant?"`}},
		{"fail", "End a task that could not be done", `Ends a task as failed, and says why. ravi tasks reopen opens it again.`, store.TaskFailed,
			command.Example{Line: `ravi tasks fail tsk01jf "There is no login page any more."`}},
	} {
		add(t, command.Spec[tasksSayInput, store.Task]{
			Group: "tasks", Name: c.name, Access: command.Write, Object: tasksSayObject,
			Summary: c.summary, Long: c.long + tasksOwn, Examples: []command.Example{c.example},
			Handler: func(ctx context.Context, env *command.Env, in tasksSayInput) (store.Task, error) {
				return setTaskStatus(ctx, env, in.Task, in.Text, needsText, c.status)
			},
			Print: printTaskStatus,
		})
	}
	add(t, command.Spec[tasksEndInput, store.Task]{
		Group: "tasks", Name: "done", Access: command.Write, Object: tasksEndObject,
		Summary: "End a task that was done",
		Long: `Ends a task as done, with a last word if there is one. ravi tasks reopen opens
it again.` + tasksOwn,
		Examples: []command.Example{{Line: `ravi tasks done tsk01jf "Fixed, with a test."`}},
		Handler: func(ctx context.Context, env *command.Env, in tasksEndInput) (store.Task, error) {
			return setTaskStatus(ctx, env, in.Task, in.Text, mayText, store.TaskDone)
		},
		Print: printTaskStatus,
	})
	for _, c := range []struct {
		name, summary, long string
		status              store.TaskStatus
	}{
		{"start", "Say that a task is being worked on", `Sets a task to in_progress.`, store.TaskInProgress},
		{"reopen", "Open a task again", `Sets a task to open, also one that is done or has failed. What was said about it
stays.`, store.TaskOpen},
	} {
		add(t, command.Spec[tasksOneInput, store.Task]{
			Group: "tasks", Name: c.name, Access: command.Write, Object: tasksOneObject,
			Summary: c.summary, Long: c.long + tasksOwn, Examples: []command.Example{{Line: "ravi tasks " + c.name + " tsk01jf"}},
			Handler: func(ctx context.Context, env *command.Env, in tasksOneInput) (store.Task, error) {
				return setTaskStatus(ctx, env, in.Task, "", noText, c.status)
			},
			Print: printTaskStatus,
		})
	}
}

type tasksSayInput struct {
	Task string `json:"task" arg:"TASK" optional:"true" host:"none" usage:"the id, or its beginning"`
	Text string `json:"text" arg:"TEXT" optional:"true" host:"none" usage:"what is to be said"`
}

func tasksSayObject(ctx context.Context, env *command.Env, in tasksSayInput) (string, error) {
	return taskObject(ctx, env, in.Task, in.Text, needsText)
}

type tasksEndInput struct {
	Task string `json:"task" arg:"TASK" optional:"true" host:"none" usage:"the id, or its beginning"`
	Text string `json:"text" arg:"TEXT" optional:"true" host:"none" usage:"a last word"`
}

func tasksEndObject(ctx context.Context, env *command.Env, in tasksEndInput) (string, error) {
	return taskObject(ctx, env, in.Task, in.Text, mayText)
}

type tasksOneInput struct {
	Task string `json:"task" arg:"TASK" optional:"true" host:"none" usage:"the id, or its beginning"`
}

func tasksOneObject(ctx context.Context, env *command.Env, in tasksOneInput) (string, error) {
	return taskObject(ctx, env, in.Task, "", noText)
}

func taskObject(ctx context.Context, env *command.Env, task, text string, takes wordy) (string, error) {
	task, _, err := taskAndText(env, task, text, takes)
	if err != nil {
		return "", err
	}
	return taskKind.object(ctx, env, "tasks", task)
}

// taskWord is a comment of the caller's about a task.
func taskWord(ctx context.Context, env *command.Env, task, text string, takes wordy) (store.TaskComment, error) {
	task, text, err := taskAndText(env, task, text, takes)
	if err != nil {
		return store.TaskComment{}, err
	}
	t, err := taskKind.get(ctx, env, task)
	if err != nil {
		return store.TaskComment{}, err
	}
	mine := own(env)
	c := store.TaskComment{TaskID: t.ID, Text: text, KeyID: mine.ID, RunID: mine.RunID}
	c.Author, err = author(ctx, env)
	return c, err
}

func sayOfTask(ctx context.Context, env *command.Env, in tasksSayInput, kind store.CommentKind) (store.TaskComment, error) {
	c, err := taskWord(ctx, env, in.Task, in.Text, needsText)
	if err != nil {
		return c, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return c, err
	}
	c.Kind = kind
	return s.AddComment(ctx, c)
}

func setTaskStatus(ctx context.Context, env *command.Env, task, text string, takes wordy, status store.TaskStatus) (store.Task, error) {
	by, err := taskWord(ctx, env, task, text, takes)
	if err != nil {
		return store.Task{}, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return store.Task{}, err
	}
	return s.SetTaskStatus(ctx, by.TaskID, status, by)
}

func printTaskStatus(env *command.Env, w io.Writer, t store.Task) error {
	if !env.Quiet {
		fmt.Fprintf(w, "%s is %s\n", t.ID, t.Status)
	}
	return nil
}
