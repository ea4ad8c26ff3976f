package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

var workKind = kind[store.Work]{"work", "ravi work ls", "work", (*store.Store).Work, func(w store.Work) string { return w.ID }}

func addWork(t *command.Table) {
	t.AddGroup(command.Group{Name: "work", Summary: "See what is asked for, and what becomes of it"})
	add(t, command.Spec[workListInput, paged[store.Work]]{
		Group: "work", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Reach: command.OperatorOnly,
		Summary: "List messages that wait or are worked on",
		Long: `Lists the messages that wait or are worked on, the newest first; with --all what
is over, too. One of a session at a time is worked on, in their order.`,
		Examples: []command.Example{{Line: "ravi work ls"}, {What: "what came to nothing", Line: "ravi work ls --status failed"}},
		Defaults: workListInput{Limit: pageSize},
		Handler:  listWork, Print: printWorkList,
	})
	add(t, command.Spec[workInput, store.Work]{
		Group: "work", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Reach: command.OperatorOnly,
		Summary:  "Show what became of a message",
		Long:     `Shows the work on a message: how it is, by which run, and where.`,
		Examples: []command.Example{{Line: "ravi work show wrk01jf"}},
		Handler: func(ctx context.Context, env *command.Env, in workInput) (store.Work, error) {
			return workKind.get(ctx, env, in.Work)
		},
		Print: printWork,
	})
	add(t, command.Spec[workInput, store.Work]{
		Group: "work", Name: "cancel", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Have a message not be worked on",
		Long: `Takes back a message that waits, or cancels the run that works on it; what the
run has done until then is brought out as its patch.`,
		Examples: []command.Example{{Line: "ravi work cancel wrk01jf"}},
		Handler:  cancelWork, Print: printWorkID,
	})
	add(t, command.Spec[workInput, store.Work]{
		Group: "work", Name: "retry", Access: command.Write, Reach: command.OperatorOnly,
		Summary:  "Send a message again that came to nothing",
		Long:     `Sends the message of work that is over once more, as a new one of its session.`,
		Examples: []command.Example{{Line: "ravi work retry wrk01jf"}},
		Handler:  retryWork, Print: printWorkID,
	})
}

type workListInput struct {
	All     bool   `json:"all" flag:"all" host:"none" usage:"what is over, too"`
	Status  string `json:"status" flag:"status" value:"STATUS" host:"none" usage:"queued, running, done, failed or canceled"`
	Client  string `json:"client" flag:"client" value:"CLIENT" host:"none" usage:"of a client"`
	Session string `json:"session" flag:"session" value:"SESSION" host:"none" usage:"of a session"`
	Limit   int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N, up to 500"`
	Before  string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type workInput struct {
	Work string `json:"work" arg:"WORK" host:"none" usage:"the id, or its beginning"`
}

func listWork(ctx context.Context, env *command.Env, in workListInput) (out paged[store.Work], err error) {
	f := store.WorkFilter{Live: !in.All && in.Status == "", Client: in.Client, Status: store.WorkStatus(in.Status)}
	switch f.Status {
	case "", store.WorkQueued, store.WorkRunning, store.WorkDone, store.WorkFailed, store.WorkCanceled:
	default:
		return out, command.Usage(fmt.Sprintf("--status %.20q is none", in.Status), "queued, running, done, failed and canceled are")
	}
	if in.Client != "" {
		if _, err := clientKind.get(ctx, env, in.Client); err != nil {
			return out, err
		}
	}
	if f.SessionID, err = sesKind.filter(ctx, env, in.Session); err != nil {
		return out, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	return listPage(in.Limit, in.Before, workKind.id, func(store.Work) bool { return true }, func(before string, limit int) ([]store.Work, error) {
		f.Before, f.Limit = before, limit
		return s.ListWork(ctx, f)
	})
}

func printWorkList(env *command.Env, w io.Writer, p paged[store.Work]) error {
	if env.Quiet {
		return printIDs(w, p.Items, workKind.id)
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "nothing waits, and nothing is worked on")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, k := range p.Items {
		rows[i] = []string{k.ID, string(k.Status), k.Priority.String(), k.Client, k.Runner, age(time.Since(k.CreatedAt))}
	}
	return printRows(env, w, "work", []safe.Column{{Title: "ID"}, {Title: "STATUS"}, {Title: "PRIORITY"}, {Title: "CLIENT", Flex: true},
		{Title: "RUNNER", Flex: true}, {Title: "AGE", Right: true}}, rows, nextPage("--before", p.Next))
}

func printWork(_ *command.Env, w io.Writer, k store.Work) error {
	printLine(w, "id", k.ID)
	printLine(w, "status", string(k.Status))
	printLine(w, "reason", safe.Safe(k.Reason))
	printLine(w, "client", k.Client)
	printLine(w, "agent", k.AgentID)
	printLine(w, "session", k.SessionID)
	printLine(w, "message", k.MessageID)
	printLine(w, "priority", k.Priority.String())
	printLine(w, "run", k.RunID)
	printLine(w, "runner", safe.Safe(k.Runner))
	if k.Tries > 0 {
		printLine(w, "tries", fmt.Sprintf("%d came to nothing", k.Tries))
	}
	printLine(w, "reply", k.ReplyID)
	printLine(w, "not before", momentOf(k.NotBefore))
	printLine(w, "created", moment(k.CreatedAt))
	printLine(w, "started", momentOf(k.StartedAt))
	printLine(w, "ended", momentOf(k.EndedAt))
	return nil
}

func printWorkID(env *command.Env, w io.Writer, k store.Work) error {
	_, err := fmt.Fprintln(w, k.ID)
	return err
}

// beginTime is how long the run of a try that was begun may take to be in the record.
const beginTime = time.Minute

func cancelWork(ctx context.Context, env *command.Env, in workInput) (store.Work, error) {
	k, err := workKind.get(ctx, env, in.Work)
	if err != nil {
		return k, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return k, err
	}
	for end := time.Now().Add(beginTime); ; {
		if k.Status == store.WorkQueued {
			canceled, err := s.CancelWork(ctx, k.ID, "canceled")
			if !errors.Is(err, store.ErrBusy) && !errors.Is(err, store.ErrFinal) {
				return canceled, err
			}
			if k, err = s.Work(ctx, k.ID); err != nil { // it was begun, or it ended, meanwhile
				return k, err
			}
		}
		if k.Status.Final() {
			return k, fmt.Errorf("work %s is %s already: %w", k.ID, k.Status, store.ErrFinal)
		}
		_, err := cancelRun(ctx, env, runsOneInput{Run: k.RunID})
		if !errors.Is(err, store.ErrNotFound) || time.Now().After(end) {
			return k, err
		}
		// The run's id is in the record before its run is.
		select {
		case <-ctx.Done():
			return k, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		if k, err = s.Work(ctx, k.ID); err != nil {
			return k, err
		}
	}
}

func retryWork(ctx context.Context, env *command.Env, in workInput) (store.Work, error) {
	k, err := workKind.get(ctx, env, in.Work)
	if err != nil {
		return k, err
	}
	if !k.Status.Final() {
		return k, command.Usage(fmt.Sprintf("work %s is not over: it is %s", k.ID, k.Status), "see ravi work show "+k.ID)
	}
	s, err := env.Store(ctx)
	if err != nil {
		return k, err
	}
	m, err := s.Message(ctx, k.MessageID)
	if err != nil {
		return k, err
	}
	again := store.Message{SessionID: m.SessionID, Role: m.Role, Author: m.Author, Channel: m.Channel, Text: m.Text}
	_, next, err := s.AppendWork(ctx, again, store.Work{Priority: k.Priority, CreatedBy: env.Caller.Name()})
	return next, err
}

// waitWork waits until work is over. A daemon that is gone meanwhile is started again: nobody else would do it.
func waitWork(ctx context.Context, env *command.Env, id string) (store.Work, error) {
	st, err := env.Store(ctx)
	if err != nil {
		return store.Work{}, err
	}
	w, err := st.Watch(ctx)
	if err != nil {
		return store.Work{}, err
	}
	defer w.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	const lookForDaemon = 3 * time.Second
	for looked := time.Now(); ; {
		changed, err := w.Changed(ctx)
		if err != nil {
			return store.Work{}, err
		}
		if changed {
			if k, err := st.Work(ctx, id); err != nil || k.Status.Final() {
				return k, err
			}
		}
		if time.Since(looked) > lookForDaemon {
			if err := startDaemon(ctx, env); err != nil {
				return store.Work{}, errNobodyWorks(id, err)
			}
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return store.Work{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// checkPriority is the priority that was named; only the operator has messages go before others.
func checkPriority(env *command.Env, text string) (store.Priority, error) {
	p := store.Normal
	if text == "" {
		return p, nil
	}
	if err := p.UnmarshalText([]byte(text)); err != nil {
		return p, command.Usage(fmt.Sprintf("--priority %.20q is none", text), "low, normal, high and urgent are")
	}
	if p > store.Normal && !env.Caller.IsOperator() {
		return p, command.Denied(&access.Denied{Caller: env.Caller.Name(), Missing: "the operator's right to have messages go before others"})
	}
	return p, nil
}

// errNobodyWorks says that no daemon could be started to work on a message. The message waits.
func errNobodyWorks(id string, err error) error {
	told := *command.AsError(err)
	told.Message = fmt.Sprintf("the message is kept as work %s and waits, since no daemon runs: %s", id, told.Message)
	told.Status = http.StatusServiceUnavailable
	return &told
}
