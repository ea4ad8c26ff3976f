package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// addSessionsMessages declares the commands for what is said in a session.
func addSessionsMessages(t *command.Table) {
	add(t, command.Spec[sessionsSendInput, sentMessage]{
		Group: "sessions", Name: "send", Access: command.Write, Object: sessionsSendObject,
		Summary: "Say something to the agent of a session",
		Long: `Adds a message to a session, as the words of a user. --author says whose words
they are and --channel where they came in, for whatever passes messages on.

If it was said how the agent works (ravi agents work) the message is worked on:
the daemon, which is started if need be, has a run do it, one message of a
session after the other. --wait waits for what comes of it, prints the reply,
and ends as the run did. --no-work only keeps the message.

Other roles than user are for the operator: agents obey what a system says.`,
		Examples: []command.Example{
			{Line: `ravi sessions send web "The login page is blank since Monday."`},
			{What: "and wait for the reply and the patch", Line: `ravi sessions send web "Mend it." --wait`},
			{What: "in a new session of an agent", Line: `ravi sessions send shop "Add a footer." --agent anna --wait`},
			{What: "what somebody wrote elsewhere", Line: `ravi sessions send web "It is blank." --author maria --channel slack`},
		},
		Defaults: sessionsSendInput{Role: string(store.RoleUser)},
		Handler:  sendMessage, Print: printSent, Exit: exitOfSent,
	})
	add(t, command.Spec[sessionsReplyInput, store.Message]{
		Group: "sessions", Name: "reply", Access: command.Write, Object: sessionsReplyObject,
		Summary: "Say something in a session as its agent",
		Long: `Adds a message to a session as what the agent says. A holder of a key may leave
out SESSION for its own.`,
		Examples: []command.Example{{What: "from inside a run", Line: `ravi sessions reply "It was the cookie; the patch is ready."`}, {Line: `ravi sessions reply web "Done."`}},
		Handler:  replyMessage, Print: printMessageID,
	})
	add(t, command.Spec[sessionsTranscriptInput, transcript]{
		Group: "sessions", Name: "transcript", Aliases: []string{"messages", "log"}, Access: command.Read, Object: sessionsTranscriptObject,
		Summary: "Show what was said in a session",
		Long: `Shows the messages of a session in their order, each with its number. Without
--after it begins with the first; --last shows the last ones.` + sessionsOwn,
		Examples: []command.Example{
			{What: "the last ten messages", Line: "ravi sessions transcript web --last 10"},
			{What: "what was said since", Line: "ravi sessions transcript web --after 42 --json"},
		},
		Defaults: sessionsTranscriptInput{Limit: pageSize},
		Handler:  readTranscript, Print: printTranscript,
	})
}

type sessionsReplyInput struct {
	Session string `json:"session" arg:"SESSION" optional:"true" host:"none" usage:"a name, an id or its beginning"`
	Text    string `json:"text" arg:"TEXT" optional:"true" host:"none" usage:"what is said"`
}

// named is what was meant: where there is one argument only, that is what an agent says in its own session.
func (in sessionsReplyInput) named(env *command.Env) (session, text string, err error) {
	mine := own(env).SessionID
	if session, text = in.Session, in.Text; text == "" && mine != "" && session != mine && !looksLikeID("ses", session) {
		session, text = "", session
	}
	if session, err = sessionNamed(env, session); err != nil {
		return "", "", err
	}
	if text == "" {
		return "", "", missingArgument("TEXT", "say it behind the session, in quotes")
	}
	return session, text, nil
}

func sessionsReplyObject(ctx context.Context, env *command.Env, in sessionsReplyInput) (string, error) {
	session, _, err := in.named(env)
	if err != nil {
		return "", err
	}
	return sesKind.object(ctx, env, "sessions", session)
}

type sessionsTranscriptInput struct {
	Session string `json:"session" arg:"SESSION" optional:"true" host:"none" usage:"a name, an id or its beginning"`
	After   int64  `json:"after" flag:"after" value:"NUMBER" host:"none" usage:"what was said after the message with this number"`
	Last    int    `json:"last" flag:"last" value:"N" host:"none" usage:"the last N messages, up to 500"`
	Limit   int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
}

func sessionsTranscriptObject(ctx context.Context, env *command.Env, in sessionsTranscriptInput) (string, error) {
	return objectOfSession(ctx, env, in.Session)
}

func replyMessage(ctx context.Context, env *command.Env, in sessionsReplyInput) (store.Message, error) {
	session, text, err := in.named(env)
	if err != nil {
		return store.Message{}, err
	}
	c, err := sesKind.get(ctx, env, session)
	if err != nil {
		return store.Message{}, err
	}
	by, err := author(ctx, env)
	if err != nil {
		return store.Message{}, err
	}
	return say(ctx, env, store.Message{SessionID: c.ID, Role: store.RoleAssistant, Author: by, Text: text})
}

func say(ctx context.Context, env *command.Env, m store.Message) (store.Message, error) {
	m, err := toSay(env, m)
	if err != nil {
		return m, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return m, err
	}
	return s.AppendMessage(ctx, m)
}

// toSay notes on a message who says it.
func toSay(env *command.Env, m store.Message) (store.Message, error) {
	if strings.TrimSpace(m.Text) == "" {
		return m, command.Usage("the message is empty", "")
	}
	mine := own(env)
	m.KeyID, m.RunID = mine.ID, mine.RunID
	return m, nil
}

func printMessageID(_ *command.Env, w io.Writer, m store.Message) error {
	fmt.Fprintln(w, m.ID)
	return nil
}

// transcript is a part of what was said in a session.
type transcript struct {
	paged[store.Message]
	SessionID string `json:"session_id"`
}

// maxTranscript bounds the text of a page: five hundred messages may have half a gigabyte.
const maxTranscript = 4 << 20

func readTranscript(ctx context.Context, env *command.Env, in sessionsTranscriptInput) (out transcript, err error) {
	out.Items = []store.Message{}
	switch {
	case in.After < 0:
		return out, command.Usage("--after is below 0", "leave it out to begin with the first message")
	case in.Last != 0 && in.After != 0:
		return out, command.Usage("--last and --after are both given", "give one of them")
	case in.Last < 0 || in.Last > pageMost:
		return out, command.Usage(fmt.Sprintf("--last is %d", in.Last), fmt.Sprintf("it is 1 to %d", pageMost))
	}
	if err := checkLimit(in.Limit); err != nil {
		return out, err
	}
	c, err := findSession(ctx, env, in.Session)
	if err != nil {
		return out, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	out.SessionID = c.ID
	f := store.MessageFilter{After: in.After, Newest: in.Last > 0, Limit: 1}
	most := in.Limit
	if in.Last > 0 {
		most = in.Last
	}
	// Message by message would be slow, all at once too much: a few at a time, up to the bound.
	for size := 0; len(out.Items) < most; {
		f.Limit = min(most-len(out.Items), 20)
		found, err := s.Messages(ctx, c.ID, f)
		if err != nil {
			return out, err
		}
		for _, m := range found {
			if size += len(m.Text); size > maxTranscript && len(out.Items) > 0 {
				if f.Newest {
					return out, tooMuchSaid(len(out.Items))
				}
				out.Next = fmt.Sprint(out.Items[len(out.Items)-1].Seq)
				return out, nil
			}
			out.Items = append(out.Items, m)
		}
		if len(found) < f.Limit {
			break
		}
		if last := found[len(found)-1].Seq; f.Newest {
			f.Before = last
		} else {
			f.After = last
		}
	}
	if f.Newest {
		slices.Reverse(out.Items)
		return out, nil
	}
	if len(out.Items) == most {
		last := out.Items[most-1].Seq
		more, err := s.CountMessages(ctx, c.ID)
		if err != nil {
			return out, err
		}
		if more > last {
			out.Next = fmt.Sprint(last)
		}
	}
	return out, nil
}

func tooMuchSaid(fit int) error {
	return &command.Error{Code: command.CodeUsage, Message: fmt.Sprintf("the last messages have more than %d MiB", maxTranscript>>20),
		Hint: fmt.Sprintf("ask for the last %d", fit), Status: http.StatusBadRequest, Exit: command.ExitUsage}
}

func printTranscript(env *command.Env, w io.Writer, t transcript) error {
	if len(t.Items) == 0 && !env.Quiet {
		fmt.Fprintln(w, "nothing was said")
	}
	for i, m := range t.Items {
		if i > 0 {
			fmt.Fprintln(w)
		}
		head := fmt.Sprintf("#%d %s", m.Seq, m.Role)
		label := fmt.Sprintf("message %d", m.Seq)
		if !env.ForAgent {
			head += ", " + orNobody(m.Author)
			if m.Channel != "" {
				head += " in " + m.Channel
			}
		} else {
			// Whose words they are is said by whoever passed them on.
			label += " of " + safe.Truncate(safe.Safe(orNobody(m.Author)), 40)
		}
		fmt.Fprintf(w, "%s, %s\n", safe.Safe(head), moment(m.CreatedAt))
		if err := printSaid(env, w, label, m.Text); err != nil {
			return err
		}
	}
	if t.Next != "" {
		fmt.Fprintf(w, "\nthere is more: add --after %s\n", t.Next)
	}
	return nil
}

// reservedAuthor says whether a name would pass for the operator's or Ravi's own.
func reservedAuthor(name string) bool {
	name = strings.ToLower(strings.TrimSpace(name))
	return name == access.Operator || name == "ravi"
}
