package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/adapter"
	"ravi/sandbox"
)

// Conversation is what is known of the one that a run's agent program had.
type Conversation struct {
	// ID is the program's own.
	ID string `json:"id,omitempty"`
	// Resumed is the run whose conversation it went on with.
	Resumed string `json:"resumed,omitempty"`
	// Bytes are those of StateFile.
	Bytes int64 `json:"bytes,omitempty"`
	// Lost says why no run can go on with it; empty: one can.
	Lost string `json:"lost,omitempty"`
}

// Resume is the conversation of an earlier run, to go on with.
type Resume struct {
	RunID string
	ID    string // the program's own
	File  string // what it kept of it: that run's StateFile
}

// mostState and keepTime bound what is kept of a conversation: a guest must not fill the host's disk, nor put off the end
// of its run.
const (
	mostState = 64 << 20
	keepTime  = time.Minute
)

// lostEarly stands in task.json until the conversation is kept, so that it is true of a run that was killed.
const lostEarly = "the run ended before its conversation was kept"

// conversation is what task.json says of it in the beginning; nil: the program keeps none.
func (a *Agent) conversation() *Conversation {
	if a == nil || a.Program.StateDir == "" {
		return nil
	}
	c := &Conversation{Lost: lostEarly}
	if a.Resume != nil {
		c.Resumed = a.Resume.RunID
	}
	return c
}

// stateDir is where the program keeps its conversations inside.
func (s *state) stateDir() string { return path.Join(s.agentHome(), s.Agent.Program.StateDir) }

// giveConversation lays out what the program kept in the run that it goes on from. Nobody reads it here: it is a guest's
// archive, and goes to a guest.
func (s *state) giveConversation(ctx context.Context) error {
	r := s.Agent.Resume
	if r == nil {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("laying out the conversation of run %s: %w", r.RunID, err) }
	f, err := os.Open(r.File)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	// What was no secret of the run that it comes from may be one of this run.
	names, err := found(ctx, s.Redact, f)
	if err != nil {
		return fail(err)
	}
	if len(names) > 0 {
		return WithHint(fail(fmt.Errorf("it holds the value of %s", strings.Join(names, ", "))), "begin a new one: leave out --resume")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fail(err)
	}
	if err := s.sb.Files().As(s.sb.User()).Untar(ctx, s.stateDir(), f); err != nil {
		return fail(err)
	}
	s.dir.event("resumed", map[string]any{"run": r.RunID, "conversation": r.ID})
	return nil
}

// converse notes which conversation the program had.
func (s *state) converse(end adapter.Event) {
	if c := s.task.Conversation; c != nil {
		c.ID = end.Session
	}
}

// keepConversation takes what the program keeps of it out of the sandbox. That this cannot be done fails no run: its
// patch is there. work is a folder for the time being.
func (s *state) keepConversation(ctx context.Context, work string) {
	c := s.task.Conversation
	switch {
	case c == nil:
		return
	case s.sb.Backend() == sandbox.BackendHost:
		// Without isolation a link in its home could bring out any file of the user's, for another run to read.
		c.Lost = "it was on the host, where no conversation is kept"
		return
	case c.ID == "":
		c.Lost = s.Agent.Program.Title + " began none"
		return
	}
	_ = s.step("conversation", "Keep the conversation", func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, keepTime, fmt.Errorf("it took more than %v to take it out", keepTime))
		defer cancel()
		tmp := filepath.Join(work, StateFile)
		n, secrets, err := s.takeConversation(ctx, tmp)
		if err == nil && len(secrets) == 0 {
			err = os.Rename(tmp, s.dir.path(StateFile))
		}
		switch {
		case errors.Is(err, sandbox.ErrTooMuch):
			c.Lost = fmt.Sprintf("what %s kept of it has more than %d MiB", s.Agent.Program.Title, mostState>>20)
		case errors.Is(err, sandbox.ErrNotFound):
			c.Lost = s.Agent.Program.Title + " kept nothing of it"
		case err != nil:
			c.Lost = s.Redact.String(err.Error())
		case len(secrets) > 0:
			c.Lost = "it holds the value of " + strings.Join(secrets, ", ")
		default:
			c.Bytes, c.Lost = n, ""
		}
		if c.Lost != "" {
			s.note("no run can go on with this conversation: %s", c.Lost)
		}
		s.dir.event("conversation", map[string]any{"id": c.ID, "bytes": c.Bytes, "lost": c.Lost})
		return nil
	})
}

// takeConversation writes the archive into a file, and names the secrets that it holds. They cannot be taken out of it:
// what stands in their place has another length.
func (s *state) takeConversation(ctx context.Context, to string) (n int64, secrets []string, err error) {
	r, err := s.sb.Files().As(s.sb.User()).Tar(ctx, s.stateDir())
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, err
	}
	secrets, err = found(ctx, s.Redact, io.TeeReader(io.LimitReader(r, mostState+1), f))
	if err == nil {
		n, err = f.Seek(0, io.SeekCurrent)
	}
	if err = errors.Join(err, f.Close()); err == nil && n > mostState {
		err = sandbox.ErrTooMuch
	}
	return n, secrets, err
}
