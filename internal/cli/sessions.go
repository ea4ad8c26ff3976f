package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addSessions(t *command.Table) {
	t.AddGroup(command.Group{Name: "sessions", Summary: "Keep the conversations with agents"})
	add(t, command.Spec[sessionsCreateInput, store.Session]{
		Group: "sessions", Name: "create", Aliases: []string{"new"}, Access: command.Write,
		Summary: "Begin a conversation with an agent",
		Long: `Makes a session of an agent. Its name, which no other session has, can stand
wherever a session is asked for; without one it goes by its id.

A holder of a key makes sessions of its own agent.`,
		Examples: []command.Example{{Line: `ravi sessions create --agent anna --name web --title "The web shop"`}},
		Handler:  createSession,
		Print:    printSessionID,
	})
	add(t, command.Spec[sessionsListInput, paged[store.Session]]{
		Group: "sessions", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List sessions",
		Long: `Lists the sessions that are not closed, the newest first; with --all the closed
ones, too. A holder of a key sees those that its key is for.`,
		Examples: []command.Example{{Line: "ravi sessions ls --agent anna"}, {What: "ids only, for scripts", Line: "ravi sessions ls -q"}},
		Defaults: sessionsListInput{Limit: pageSize},
		Handler:  listSessions, Print: printSessions,
	})
	add(t, command.Spec[sessionInput, sessionShown]{
		Group: "sessions", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: sessionObject,
		Summary:  "Show what is recorded about a session",
		Long:     `Shows a session, and how many messages it has.` + sessionsOwn,
		Examples: []command.Example{{Line: "ravi sessions show web"}},
		Handler:  showSession, Print: printSession,
	})
	add(t, command.Spec[sessionInput, store.Session]{
		Group: "sessions", Name: "close", Access: command.Write, Object: sessionObject,
		Summary: "End a conversation",
		Long: `Closes a session: it takes no messages any more. What was said stays. To close
one that is closed is no error.` + sessionsOwn,
		Examples: []command.Example{{Line: "ravi sessions close web"}},
		Handler:  closeSession,
		Print: func(env *command.Env, w io.Writer, c store.Session) error {
			if !env.Quiet {
				fmt.Fprintln(w, c.ID, "is closed")
			}
			return nil
		},
	})
	addSessionsMessages(t)
}

const sessionsOwn = `

The session is named by its name, by its id, or by the id's beginning. A holder
of a key may leave it out for its own.`

type sessionsCreateInput struct {
	Agent string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"the agent: a name, an id or its beginning"`
	Name  string `json:"name" flag:"name" value:"NAME" host:"none" usage:"letters, digits and ._-:@+ only"`
	Title string `json:"title" flag:"title" value:"TEXT" host:"none" usage:"what it is about"`
}

type sessionsListInput struct {
	Agent  string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"of this agent"`
	All    bool   `json:"all" flag:"all" host:"none" usage:"those that are closed, too"`
	Limit  int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type sessionInput struct {
	Session string `json:"session" arg:"SESSION" optional:"true" host:"none" usage:"a name, an id or its beginning"`
}

func sessionObject(ctx context.Context, env *command.Env, in sessionInput) (string, error) {
	return objectOfSession(ctx, env, in.Session)
}

func objectOfSession(ctx context.Context, env *command.Env, typed string) (string, error) {
	typed, err := sessionNamed(env, typed)
	if err != nil {
		return "", err
	}
	return sesKind.object(ctx, env, "sessions", typed)
}

// sessionNamed is the session that was named, or the caller's own.
func sessionNamed(env *command.Env, typed string) (string, error) {
	if typed == "" {
		typed = own(env).SessionID
	}
	if typed == "" {
		return "", missingArgument("SESSION", "see ravi sessions ls")
	}
	return typed, nil
}

func findSession(ctx context.Context, env *command.Env, typed string) (store.Session, error) {
	typed, err := sessionNamed(env, typed)
	if err != nil {
		return store.Session{}, err
	}
	return sesKind.get(ctx, env, typed)
}

func createSession(ctx context.Context, env *command.Env, in sessionsCreateInput) (store.Session, error) {
	mine := own(env)
	c := store.Session{AgentID: mine.AgentID, Name: in.Name, Title: in.Title}
	switch {
	case in.Agent != "":
		a, err := agentKind.name(ctx, env, in.Agent, mine.AgentID)
		if err != nil {
			return c, err
		}
		c.AgentID = a.ID
	case c.AgentID == "":
		return c, missingArgument("--agent", "see ravi agents ls")
	}
	s, err := env.Store(ctx)
	if err != nil {
		return c, err
	}
	return s.InsertSession(ctx, c)
}

func printSessionID(_ *command.Env, w io.Writer, c store.Session) error {
	fmt.Fprintln(w, c.ID)
	return nil
}

func listSessions(ctx context.Context, env *command.Env, in sessionsListInput) (paged[store.Session], error) {
	see := scopeOf(ctx, env, "sessions", "ls")
	f := store.SessionFilter{Open: !in.All, IDs: see.ids()}
	var err error
	if f.AgentID, err = agentKind.filter(ctx, env, in.Agent); err != nil {
		return paged[store.Session]{}, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return paged[store.Session]{}, err
	}
	return listPage(in.Limit, in.Before, sesKind.id, func(c store.Session) bool { return see.shows(c.ID) },
		func(before string, limit int) ([]store.Session, error) {
			f.Before, f.Limit = before, limit
			return s.ListSessions(ctx, f)
		})
}

func printSessions(env *command.Env, w io.Writer, p paged[store.Session]) error {
	if env.Quiet {
		return printIDs(w, p.Items, sesKind.id)
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "no sessions; begin one: ravi sessions create --agent AGENT")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, c := range p.Items {
		rows[i] = []string{c.ID, sessionName(c), sessionState(c), age(time.Since(c.UpdatedAt)), c.Title}
	}
	return printRows(env, w, "sessions", []safe.Column{{Title: "ID"}, {Title: "NAME", Flex: true}, {Title: "STATE"}, {Title: "CHANGED", Right: true},
		{Title: "TITLE", Flex: true}}, rows, nextPage("--before", p.Next))
}

// sessionName is the name of a session that has one of its own.
func sessionName(c store.Session) string {
	if c.Name == c.ID {
		return ""
	}
	return c.Name
}

func sessionState(c store.Session) string {
	if c.ClosedAt != nil {
		return "closed"
	}
	return "open"
}

// sessionShown is a session with what is in it.
type sessionShown struct {
	store.Session
	Messages int64 `json:"messages"` // how many
}

func showSession(ctx context.Context, env *command.Env, in sessionInput) (out sessionShown, err error) {
	if out.Session, err = findSession(ctx, env, in.Session); err != nil {
		return out, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	out.Messages, err = s.CountMessages(ctx, out.ID)
	return out, err
}

func printSession(env *command.Env, w io.Writer, c sessionShown) error {
	printLine(w, "id", c.ID)
	printLine(w, "name", sessionName(c.Session))
	if !env.ForAgent {
		printLine(w, "title", c.Title)
	}
	printLine(w, "state", sessionState(c.Session))
	printLine(w, "agent", c.AgentID)
	printLine(w, "messages", fmt.Sprint(c.Messages))
	printLine(w, "created", moment(c.CreatedAt))
	printLine(w, "changed", moment(c.UpdatedAt))
	printLine(w, "closed", momentOf(c.ClosedAt))
	if env.ForAgent && c.Title != "" {
		return safe.Fence(w, "title", c.Title)
	}
	return nil
}

func closeSession(ctx context.Context, env *command.Env, in sessionInput) (store.Session, error) {
	c, err := findSession(ctx, env, in.Session)
	if err != nil || c.ClosedAt != nil {
		return c, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return c, err
	}
	return s.UpdateSession(ctx, c.ID, func(c *store.Session) error {
		now := store.Now()
		c.ClosedAt = &now
		return nil
	})
}

// forOperator refuses what no key allows.
func forOperator(env *command.Env, what string) error {
	if env.Caller.IsOperator() {
		return nil
	}
	return command.Denied(&access.Denied{Caller: env.Caller.Name(), Missing: "the operator: " + what})
}
