package run

import (
	"context"
	"errors"
	"fmt"

	"ravi/agent"
	"ravi/sandbox"
)

// subagents does what a loop spawns: each in a sandbox of its own with a copy of the workspace, a key below the run's, and
// a lease within the one of the loop that spawns it. It has none of the run's secrets. nil: none may be spawned.
func (s *state) subagents(v *loopView, from *sandbox.Sandbox, above *modeled, depth int) *agent.Subagents {
	if depth <= 0 {
		return nil
	}
	limits := s.Agent.Loop.Subagents
	return agent.NewSubagents(func(ctx context.Context, spawn agent.Spawn) (agent.Child, error) {
		return s.child(ctx, v, from, above, spawn, depth)
	}, limits)
}

// parts is into how many parts what is left of a lease is divided for each sub-agent: all that may run at once, and the
// one that spawns them.
func (s *state) parts() int64 {
	n := s.Agent.Loop.Subagents.AtOnce
	if n == 0 {
		n = agent.DefaultAtOnce
	}
	return int64(n) + 1
}

func (s *state) child(ctx context.Context, v *loopView, from *sandbox.Sandbox, above *modeled, spawn agent.Spawn, depth int) (c agent.Child, err error) {
	m := new(modeled)
	var undo []func(context.Context) error
	c.Close = func(ctx context.Context) error {
		var errs []error
		for i := len(undo) - 1; i >= 0; i-- {
			errs = append(errs, undo[i](ctx))
		}
		return errors.Join(errs...)
	}
	s.dir.event("subagent", map[string]any{"id": spawn.ID, "label": s.Redact.String(spawn.Label)})
	const why = "the sub-agent ended"
	undo = append(undo, func(ctx context.Context) error {
		above.requests.Add(m.requests.Load())
		above.uncounted.Add(m.uncounted.Load())
		return s.endLease(ctx, m, why)
	})
	if err := s.takeLease(ctx, m, above.broker.Share(s.parts()), above.broker); err != nil {
		return c, err
	}
	token, endKey, err := s.childKey(ctx, "sub-agent "+spawn.ID+" of run "+s.task.ID)
	if err != nil {
		return c, err
	}
	undo = append(undo, endKey)
	opts, err := s.sandboxOptions()
	if err != nil {
		return c, err
	}
	sb, err := sandbox.Open(ctx, s.Config, "", opts...)
	if err != nil {
		return c, err
	}
	undo = append(undo, func(context.Context) error { return sb.Close() })
	if err := copyWorkspace(ctx, from, sb); err != nil {
		return c, fmt.Errorf("copying the workspace for a sub-agent: %w", err)
	}
	hands := agent.HandsOf(sb)
	config, err := s.loopConfig(ctx, hands, m, spawn.ID)
	if err != nil {
		return c, err
	}
	config.Exec.Env = s.contextEnvOf(sb, token)
	config.System = "You are a sub-agent: another agent has given you the task, and gets what you say with finish.\n\n" + config.System
	config.Emit = func(e agent.Event) {
		switch e.Kind {
		case agent.EventTool, agent.EventResult, agent.EventAsk:
			e.Agent = spawn.ID
			v.sub(e)
		}
	}
	config.Subagents = s.subagents(v, sb, m, depth-1)
	c.Loop, err = agent.New(config)
	return c, err
}

// copyWorkspace has one sandbox get a copy of another one's workspace. Nobody reads it on the way: it is a guest's archive,
// and goes to a guest.
func copyWorkspace(ctx context.Context, from, to *sandbox.Sandbox) error {
	archive, err := from.Files().Tar(ctx, from.Workspace())
	if err != nil {
		return err
	}
	defer archive.Close()
	return to.Files().Untar(ctx, to.Workspace(), archive)
}
