package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/contextkey"
	"ravi/internal/redact"
	"ravi/internal/snapshot"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Gateway is the name of the service that connected runs reach Ravi by.
const Gateway = "gateway"

// What a run finds in its environment.
const (
	EnvKey        = "RAVI_CONTEXT_KEY"
	EnvURL        = "RAVI_GATEWAY_URL"
	EnvContextDir = "RAVI_CONTEXT_DIR"
	EnvRun        = "RAVI_RUN_ID"
	EnvTask       = "RAVI_TASK_ID"
)

// contextDir is the folder of a run with its context snapshot.
const contextDir = "context"

// contextKeyName stands for a run's key wherever it was taken out.
const contextKeyName = "the run's context key"

// Connect lets what runs in the sandbox call Ravi, over the sandbox's own wire and nothing else.
type Connect struct {
	// By is who starts the run; its key is the parent of the run's.
	By access.Caller
	// Capabilities are what the run's key holds.
	Capabilities func(runID string) (access.Capabilities, error)
	// Profile bounds what the run may ask of further sandboxes; empty: the default one.
	Profile string
	// Serve makes the gateway of one run; end ends it.
	Serve func(runID string) (serve func(context.Context, net.Conn), end func(context.Context) error)
}

// connected is what a connected run holds.
type connected struct {
	token string
	keyID string
	as    access.Caller // the holder of that key
	serve func(context.Context, net.Conn)
	end   func(context.Context) error
	slide *beat
}

// takeContext makes the context snapshot, and the key with which the run calls Ravi. Both are there before the sandbox.
func (s *state) takeContext(ctx context.Context) error {
	var holds access.Capabilities
	if s.Connect != nil {
		var err error
		if holds, err = s.Connect.Capabilities(s.task.ID); err != nil {
			return err
		}
	}
	if s.Snapshot {
		o := snapshot.Options{
			SessionID: s.SessionID, AgentID: s.AgentID, TaskID: s.TaskID, RunID: s.task.ID, Redact: s.Redact,
			Connected: s.Connect != nil, Capabilities: holds,
		}
		m, err := snapshot.Build(ctx, s.Store, o, s.dir.path(contextDir))
		if err != nil {
			return fmt.Errorf("making the context snapshot: %w", err)
		}
		s.dir.event("context", map[string]any{"files": len(m.Files)})
	}
	if s.Connect == nil {
		return nil
	}
	token, key, slide, err := s.issueKey(ctx, s.Connect.By, contextkey.Request{
		Label: "run " + s.task.ID, AgentID: s.AgentID, SessionID: s.SessionID, TaskID: s.TaskID, RunID: s.task.ID,
		Capabilities: holds, Profile: s.Connect.Profile,
	})
	s.connected.token, s.connected.keyID, s.connected.slide = token, key.ID, slide // also after an error: it is to be ended
	if err != nil {
		return err
	}
	s.connected.as = access.WithKey(access.Key{ID: key.ID, AgentID: key.AgentID, SessionID: key.SessionID, TaskID: key.TaskID, RunID: s.task.ID, Capabilities: holds, Profile: key.Profile})
	s.dir.event("connected", map[string]any{"key": key.ID, "capabilities": key.Capabilities})
	s.connected.serve, s.connected.end = s.Connect.Serve(s.task.ID)
	return nil
}

// issueKey makes a key of the run's, takes it out of all that the run writes, and extends it until slide ends. With an error
// there is a key if it has an id.
func (s *state) issueKey(ctx context.Context, by access.Caller, r contextkey.Request) (token string, key store.Key, slide *beat, err error) {
	keys := contextkey.Keys{Store: s.Store}
	if token, key, err = keys.Issue(ctx, by, r); err != nil {
		return "", store.Key{}, nil, fmt.Errorf("issuing the context key of %s: %w", r.Label, err)
	}
	s.Redact.Add(redact.Pair{Secret: token, Instead: "[the run's context key]", Name: contextKeyName})
	if err := s.audit.log.Append(ctx, audit.Record{Action: audit.KeyIssue, Object: key.ID, Decision: store.Allowed, Caller: by.Name(), RunID: s.task.ID}); err != nil {
		return token, key, nil, err
	}
	return token, key, begin(context.WithoutCancel(ctx), contextkey.SlideEvery, func(ctx context.Context) {
		// Who revoked it meant that; all else may be better the next time.
		if err := keys.Slide(ctx, key.ID); err != nil && ctx.Err() == nil {
			s.dir.event("key_not_extended", map[string]any{"error": err.Error()})
		}
	}), nil
}

// childKey makes a key for a sub-agent of the run: a child of the run's, that holds the same and ends with what end ends,
// if not before. Without a connection it makes none.
func (s *state) childKey(ctx context.Context, label string) (token string, end func(context.Context) error, err error) {
	if s.connected.keyID == "" {
		return "", func(context.Context) error { return nil }, nil
	}
	token, key, slide, err := s.issueKey(ctx, s.connected.as, contextkey.Request{Label: label, RunID: s.task.ID, Capabilities: s.connected.as.Key.Capabilities})
	if err != nil {
		return "", nil, err
	}
	return token, func(ctx context.Context) error {
		slide.end()
		const why = "the sub-agent ended"
		_, err := s.Store.RevokeKey(ctx, key.ID, why)
		return errors.Join(err, s.audit.log.Append(ctx, audit.Record{Action: audit.KeyRevoke, Object: key.ID, Decision: store.Allowed, RunID: s.task.ID, Reason: why}))
	}, nil
}

// leaveContext ends the run's key, and all that descend from it.
func (s *state) leaveContext(ctx context.Context) error {
	c := s.connected
	if c.keyID == "" {
		return nil
	}
	c.slide.end()
	_, err := s.Store.RevokeRunKeys(ctx, s.task.ID, "the run ended")
	if err != nil {
		err = fmt.Errorf("ending the run's context key: %w", err)
	}
	if c.end != nil {
		ending, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		// What does not end in time is cut off, which is all that can be done.
		_ = c.end(ending)
	}
	return errors.Join(err, s.audit.log.Append(ctx, audit.Record{Action: audit.KeyRevoke, Object: c.keyID, Decision: store.Allowed, RunID: s.task.ID, Reason: "the run ended"}))
}

// contextOptions are what the sandbox is made with for its context.
func (s *state) contextOptions() []sandbox.Option {
	var opts []sandbox.Option
	if s.Snapshot {
		opts = append(opts, sandbox.WithContext(filepath.Join(s.dir.dir, contextDir)))
	}
	if s.connected.serve != nil {
		opts = append(opts, sandbox.WithService(Gateway, s.connected.serve))
	}
	return opts
}

// contextEnv is what the command finds of its context in its environment.
func (s *state) contextEnv() map[string]string { return s.contextEnvOf(s.sb, s.connected.token) }

// contextEnvOf is that of one of the run's sandboxes, with its key.
func (s *state) contextEnvOf(sb *sandbox.Sandbox, token string) map[string]string {
	env := map[string]string{EnvRun: s.task.ID}
	for name, value := range s.Env {
		env[name] = value
	}
	if dir := sb.ContextDir(); dir != "" {
		env[EnvContextDir] = dir
	}
	if s.TaskID != "" {
		env[EnvTask] = s.TaskID
	}
	if token != "" {
		env[EnvKey], env[EnvURL] = token, sb.ServiceURL(Gateway)
	}
	return env
}

// beginTask says on the run's task that it is being worked on; endTask, how the run ended. What became of the task is
// for the agent or the operator to say: that a run succeeded does not mean that its task is done.
func (s *state) beginTask(ctx context.Context) error {
	if s.TaskID == "" {
		return nil
	}
	_, err := s.Store.SetTaskStatus(ctx, s.TaskID, store.TaskInProgress, store.TaskComment{Author: "ravi", RunID: s.task.ID, Text: "a run began"})
	if errors.Is(err, store.ErrFinal) {
		return WithHint(fmt.Errorf("the task %s is over: %w", s.TaskID, err), "open it again with: ravi tasks reopen "+s.TaskID)
	}
	return err
}

func (s *state) endTask(ctx context.Context) error {
	if s.TaskID == "" {
		return nil
	}
	text := "the run ended: " + string(s.task.Status)
	if s.task.Reason != "" {
		text += " (" + s.task.Reason + ")"
	}
	if p := s.task.Patch; p != nil && p.Files > 0 {
		text += fmt.Sprintf(", with a patch of %d files", p.Files)
	}
	_, err := s.Store.AddComment(ctx, store.TaskComment{TaskID: s.TaskID, Kind: store.CommentPlain, Author: "ravi", RunID: s.task.ID, Text: text})
	return err
}
