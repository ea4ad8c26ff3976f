package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"

	"ravi/internal/bus"
	"ravi/internal/command"
	runs "ravi/internal/run"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

type sessionsSendInput struct {
	Session  string `json:"session" arg:"SESSION" host:"none" usage:"a name, an id or its beginning"`
	Text     string `json:"text" arg:"TEXT" host:"none" usage:"what is said"`
	Agent    string `json:"agent" flag:"agent" value:"AGENT" host:"none" usage:"whose the session is; it is begun if it is not there"`
	Role     string `json:"role" flag:"role" value:"ROLE" host:"none" usage:"user, assistant, system or tool"`
	Author   string `json:"author" flag:"author" value:"NAME" host:"none" usage:"whose words they are"`
	Channel  string `json:"channel" flag:"channel" value:"NAME" host:"none" usage:"where they came in"`
	Priority string `json:"priority" flag:"priority" value:"PRIORITY" host:"none" usage:"what of the client's is worked on first: low, normal, high or urgent"`
	NoWork   bool   `json:"no_work" flag:"no-work" host:"none" usage:"nobody works on it"`
	Wait     bool   `json:"wait" flag:"wait" short:"w" host:"none" usage:"wait for what comes of it"`
}

func sessionsSendObject(ctx context.Context, env *command.Env, in sessionsSendInput) (string, error) {
	id, err := objectOfSession(ctx, env, in.Session)
	if err != nil && in.Agent != "" && env.Caller.IsOperator() && errors.Is(err, store.ErrNotFound) {
		return "", nil // it is begun
	}
	return id, err
}

// sentMessage is what was said, and what came of it as far as that is known.
type sentMessage struct {
	store.Message
	Work *store.Work `json:"work,omitempty"`
	// Replies are what the agent said to it, and Run is what worked on it, with its folder.
	Replies []store.Message `json:"replies,omitempty"`
	Run     *runItem        `json:"run,omitempty"`
}

func sendMessage(ctx context.Context, env *command.Env, in sessionsSendInput) (out sentMessage, err error) {
	if in.Role != string(store.RoleUser) {
		if err := forOperator(env, fmt.Sprintf("a message of the role %.20q", in.Role)); err != nil {
			return out, err
		}
	}
	priority, err := checkPriority(env, in.Priority)
	if err != nil {
		return out, err
	}
	c, err := sessionToSend(ctx, env, in)
	if err != nil {
		return out, err
	}
	m := store.Message{SessionID: c.ID, Role: store.Role(in.Role), Author: in.Author, Channel: in.Channel, Text: in.Text}
	if reservedAuthor(m.Author) {
		if err := forOperator(env, fmt.Sprintf("a message of %.20q", m.Author)); err != nil {
			return out, err
		}
	}
	if m.Author == "" {
		if m.Author, err = author(ctx, env); err != nil {
			return out, err
		}
	}
	works, err := isWorkedOn(ctx, env, in, c)
	if err != nil {
		return out, err
	}
	if works && in.Wait { // said before there is a message
		leave, err := waitsOfKeys.enter(env)
		if err != nil {
			return out, err
		}
		defer leave()
	}
	if !works {
		out.Message, err = say(ctx, env, m)
		return out, err
	}
	if m, err = toSay(env, m); err != nil {
		return out, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	var k store.Work
	if out.Message, k, err = s.AppendWork(ctx, m, store.Work{Priority: priority, CreatedBy: env.Caller.Name()}); err != nil {
		return out, err
	}
	out.Work = &k
	if err := startDaemon(ctx, env); err != nil {
		return out, errNobodyWorks(k.ID, err)
	}
	if err := tellFullBus(env, k.ID); err != nil {
		return out, err
	}
	if !in.Wait {
		return out, nil
	}
	return out, awaitReply(ctx, env, &out)
}

// tellFullBus says that a message waits because the bus has no space.
func tellFullBus(env *command.Env, id string) error {
	home, err := env.Home()
	if err != nil {
		return err
	}
	file, err := env.Config()
	if err != nil || file.Bus.URL != "" {
		return err
	}
	var told *bus.Error
	err = bus.CheckSpace(filepath.Join(home, busFolder))
	if errors.Is(err, bus.ErrFull) && errors.As(err, &told) {
		env.Progress.Log(fmt.Sprintf("the message is kept as work %s and waits: %s\n%s", id, told.Message, told.Hint))
		return nil
	}
	return err
}

// sessionToSend is the session that was named; with --agent it is begun if it is not there.
func sessionToSend(ctx context.Context, env *command.Env, in sessionsSendInput) (store.Session, error) {
	if in.Agent == "" {
		return findSession(ctx, env, in.Session)
	}
	if !env.Caller.IsOperator() {
		return sessionOfAgent(ctx, env, in)
	}
	a, err := agentKind.get(ctx, env, in.Agent)
	if err != nil {
		return store.Session{}, err
	}
	c, err := findSession(ctx, env, in.Session)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return createSession(ctx, env, sessionsCreateInput{Agent: a.ID, Name: in.Session})
	case err == nil && c.AgentID != a.ID:
		return c, command.Usage(fmt.Sprintf("the session %s is another agent's than %s", in.Session, a.Name), "leave --agent out, or name another session")
	}
	return c, err
}

// sessionOfAgent is the session that the holder of a key named. Which agents there are beside the session's is not told.
func sessionOfAgent(ctx context.Context, env *command.Env, in sessionsSendInput) (store.Session, error) {
	c, err := findSession(ctx, env, in.Session)
	if err != nil {
		return c, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return c, err
	}
	a, err := s.Agent(ctx, c.AgentID)
	if err == nil && in.Agent != a.ID && in.Agent != a.Name {
		err = command.Usage(fmt.Sprintf("the session %s is not one of an agent %.60q", in.Session, in.Agent), "leave --agent out")
	}
	return c, err
}

// isWorkedOn says whether somebody is to work on a message.
func isWorkedOn(ctx context.Context, env *command.Env, in sessionsSendInput, c store.Session) (bool, error) {
	wanted := in.Wait || in.Priority != ""
	switch {
	case in.NoWork && wanted:
		return false, command.Usage("--no-work is given with --wait or --priority", "leave it out to have the message worked on")
	case in.Role != string(store.RoleUser) && wanted:
		return false, command.Usage("only what a user says is worked on", "leave out --role, or --wait and --priority")
	case in.NoWork, in.Role != string(store.RoleUser), own(env).RunID != "":
		return false, nil // what a run says starts no other
	}
	s, err := env.Store(ctx)
	if err != nil {
		return false, err
	}
	a, err := s.Agent(ctx, c.AgentID)
	if err != nil {
		return false, err
	}
	if len(a.Work) == 0 && wanted {
		return false, notWorkedOn(a)
	}
	if len(a.Work) == 0 {
		return false, nil
	}
	file, err := env.Config()
	if err == nil && file.Bus.Off() {
		err = &command.Error{Code: command.CodeConfig, Message: "the message is not sent: nobody could work on it, since bus.enabled in config.json is false",
			Hint: "ravi config set bus.enabled true && ravi daemon restart, or only keep it: --no-work", Status: http.StatusServiceUnavailable, Exit: command.ExitFailed}
	}
	return true, err
}

// awaitReply waits until the work on a message is over, and adds what came of it.
func awaitReply(ctx context.Context, env *command.Env, out *sentMessage) error {
	done := env.Progress.Step("Wait for the reply")
	k, err := waitWork(ctx, env, out.Work.ID)
	done(err)
	if err != nil {
		return err
	}
	out.Work = &k
	s, err := env.Store(ctx)
	if err != nil {
		return err
	}
	if k.RunID != "" {
		r, err := s.Run(ctx, k.RunID)
		if err == nil {
			item := runItemOf(env, r)
			out.Run = &item
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	said, err := s.Messages(ctx, out.SessionID, store.MessageFilter{After: out.Seq})
	for _, m := range said {
		if m.ID == k.ReplyID || m.RunID != "" && m.RunID == k.RunID {
			out.Replies = append(out.Replies, m)
		}
	}
	return err
}

func printSent(env *command.Env, w io.Writer, m sentMessage) error {
	if m.Work == nil || !m.Work.Status.Final() {
		_, err := fmt.Fprintln(w, m.ID)
		return err
	}
	for _, r := range m.Replies {
		if env.ForAgent {
			if err := safe.Fence(w, "reply", r.Text); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintln(safe.NewWriter(w), r.Text); err != nil {
			return err
		}
	}
	if m.Run == nil || env.Quiet {
		return nil
	}
	if p := m.Run.Patch; p != nil && p.Files > 0 {
		fmt.Fprintf(w, "\npatch: %s (%s, +%d -%d)\n", safe.Safe(filepath.Join(m.Run.Dir, runs.PatchFile)), count(p.Files, "file", "files"), p.Insertions, p.Deletions)
	}
	return nil
}

// exitOfSent is how the run ended, where it was waited for.
func exitOfSent(m sentMessage) int {
	switch {
	case m.Work == nil || !m.Work.Status.Final():
		return command.ExitOK
	case m.Work.Status == store.WorkFailed:
		return command.ExitRavi
	case m.Work.Status == store.WorkCanceled:
		return command.ExitCanceled
	case m.Run != nil:
		return exitOfRun(*m.Run)
	}
	return command.ExitOK
}
