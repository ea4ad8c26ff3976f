package run

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/broker/check"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Agent is an agent program that does a run's task.
type Agent struct {
	Program adapter.Program
	// Dir is the folder of this machine where it is installed, which the sandbox sees read-only; empty: the image has it.
	Dir string
	// Path is the program's: beneath Dir, or a name that the image's PATH has.
	Path string
	// CheckNode has the image's Node.js looked at before the program is started: it could not be done outside.
	CheckNode bool
	Model     string
	// Loop, for the program adapter.Loop, is Ravi's own.
	Loop *Loop
	// Resume is the conversation that it goes on with; nil: a new one.
	Resume *Resume
	// Tell hears what it says and does, without secrets; may be nil.
	Tell func(adapter.Event)
}

const (
	// agentsDir is where the sandbox sees the agent program.
	agentsDir = "/opt/ravi/agents"
	// mostEvents and mostEventText bound what events.jsonl takes of a program that says too much.
	mostEvents, mostEventText = 20_000, 8 << 10
	// mostAnswer bounds what of an agent's last words is kept.
	mostAnswer = 64 << 10
)

// agentOptions have the sandbox see the program.
func (s *state) agentOptions() []sandbox.Option {
	a := s.Agent
	if a == nil || a.Dir == "" {
		return nil
	}
	return []sandbox.Option{sandbox.WithReadOnly(a.Dir, path.Join(agentsDir, a.Program.Name))}
}

// agentPath is the program's inside.
func (s *state) agentPath() string {
	a := s.Agent
	switch {
	case a.Dir == "":
		return a.Path
	case s.sb.Backend() == sandbox.BackendHost:
		return path.Join(a.Dir, a.Path)
	}
	return path.Join(agentsDir, a.Program.Name, a.Path)
}

// launch lays out what the program needs, and says how it is started.
func (s *state) launch(ctx context.Context) (adapter.Launch, error) {
	a := s.Agent
	calls := s.Models.Providers[0]
	setup := adapter.Setup{
		Prompt: s.Task, ContextDir: s.sb.ContextDir(), BaseURL: s.models.url + "/" + calls.Name, Token: s.models.token, Model: a.Model,
		Path: s.agentPath(), Command: s.Command, Dialect: string(calls.Dialect), WebSearch: s.Models.Grants[check.WebSearch],
	}
	if a.Resume != nil {
		setup.Resume = a.Resume.ID
	}
	l, err := s.settle(setup)
	if err != nil {
		return l, err
	}
	home := s.agentHome()
	if err := s.giveConversation(ctx); err != nil {
		return l, err
	}
	l.Env = maps.Clone(l.Env)
	if l.Env == nil {
		l.Env = map[string]string{}
	}
	l.Env["HOME"] = home
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	made := map[string]bool{}
	folder := func(name string) error {
		if name == "." || made[name] {
			return nil
		}
		made[name] = true
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: time.Now()})
	}
	for _, f := range l.Files {
		var parents []string
		for d := path.Dir(f.Path); d != "." && d != "/"; d = path.Dir(d) {
			parents = append(parents, d)
		}
		for _, d := range slices.Backward(parents) {
			if err := folder(d); err != nil {
				return l, err
			}
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: 0o600, Size: int64(len(f.Content)), ModTime: time.Now()}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.Link, 0
		}
		if err := t.WriteHeader(h); err != nil {
			return l, err
		}
		if f.Link == "" {
			if _, err := io.WriteString(t, f.Content); err != nil {
				return l, err
			}
		}
	}
	if err := t.Close(); err != nil {
		return l, err
	}
	if err := s.sb.Files().As(s.sb.User()).Untar(ctx, home, &b); err != nil {
		return l, fmt.Errorf("laying out what %s needs: %w", a.Program.Title, err)
	}
	return l, nil
}

// talking says whether what the run's program writes is read: a command of the user's may write what it likes.
func (s *state) talking() bool { return s.Agent != nil && s.Agent.Program.Name != adapter.Command }

// agentEvents notes what the program says, and passes it on. last is its last word once the writer is closed.
func (s *state) agentEvents() (w io.WriteCloser, last func() adapter.Event) {
	told := 0
	var end adapter.Event
	w = s.Agent.Program.NewReader(func(e adapter.Event) {
		end = e
		s.agentEvent(&told, e)
	})
	return w, func() adapter.Event { return end }
}

// agentEvent notes what an agent says, the told-th, and passes it on.
func (s *state) agentEvent(told *int, e adapter.Event) {
	switch *told++; {
	case *told <= mostEvents || e.Kind == adapter.End:
		kept := e
		kept.Text = cut(kept.Text, mostEventText)
		if len(kept.Input) > mostEventText {
			kept.Input = nil
		}
		s.dir.event("agent", map[string]any{"agent": kept})
	case *told == mostEvents+1:
		s.dir.event("agent_said_more", nil)
	}
	if e.Text != "" && e.Parent == "" && (e.Kind == adapter.Text || e.Kind == adapter.End && !e.Failed) {
		s.answer = e.Text
	}
	if s.Agent.Tell != nil {
		s.Agent.Tell(e)
	}
}

// judge takes a program at its word when it says that it failed, though it ended with 0.
func (s *state) judge(end adapter.Event) {
	if s.task.ExitCode == nil || s.task.Status != store.RunSucceeded && s.task.Status != store.RunFailed {
		return
	}
	failed, why := s.Agent.Program.Failed(end, *s.task.ExitCode)
	if !failed {
		return
	}
	s.task.Error = why
	if s.task.Status == store.RunSucceeded {
		s.task.Status, s.task.Reason, s.task.Exit = store.RunFailed, reasonAgent, exitAgent
	}
}

const (
	// reasonAgent says that the agent program said so, and exitAgent is the status of ravi then: the program's own was 0.
	reasonAgent = "agent"
	exitAgent   = 1
)
