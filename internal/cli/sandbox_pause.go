package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxPause(t *command.Table) {
	print := func(env *command.Env, w io.Writer, i sandboxItem) error {
		if !env.Quiet {
			fmt.Fprintf(w, "%s is %s\n", safe.Safe(i.ID), i.state())
		}
		return nil
	}
	add(t, command.Spec[oneInput, sandboxItem]{
		Group: "sandbox", Name: "pause", Access: command.Write, Object: sandboxObject,
		Summary: "Freeze everything in a sandbox",
		Long: `Freezes all processes of the sandbox until ravi sandbox resume. It keeps its
memory, and time goes on outside: bounds on the time of its commands still hold.
To pause one that is paused is no error.`,
		Examples: []command.Example{{Line: "ravi sandbox pause try"}},
		Handler: func(ctx context.Context, env *command.Env, in oneInput) (sandboxItem, error) {
			return setPaused(ctx, env, "pause", in.Sandbox, store.WantPaused, store.SeenPaused, (*sandbox.Sandbox).Pause)
		},
		Print: print,
	})
	add(t, command.Spec[oneInput, sandboxItem]{
		Group: "sandbox", Name: "resume", Access: command.Write, Object: sandboxObject,
		Summary:  "Let a paused sandbox go on",
		Long:     `Lets everything in the sandbox go on. To resume one that runs is no error.`,
		Examples: []command.Example{{Line: "ravi sandbox resume try"}},
		Handler: func(ctx context.Context, env *command.Env, in oneInput) (sandboxItem, error) {
			return setPaused(ctx, env, "resume", in.Sandbox, store.WantRunning, store.SeenRunning, (*sandbox.Sandbox).Resume)
		},
		Print: print,
	})
}

// setPaused records what is wanted, does it, and records that it was done.
func setPaused(ctx context.Context, env *command.Env, name, typed string, want store.Desired, seen store.Seen, do func(*sandbox.Sandbox, context.Context) error) (out sandboxItem, err error) {
	sb, b, err := attach(ctx, env, name, typed)
	if err != nil {
		return out, err
	}
	defer sb.Close()
	st, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	if _, err := st.UpdateSandbox(ctx, b.ID, func(b *store.Sandbox) error { b.Desired = want; return nil }); err != nil {
		return out, err
	}
	err = do(sb, ctx)
	switch {
	case err == nil:
	case b.Desired == want && ctx.Err() == nil && !errors.Is(err, sandbox.ErrEnded):
		// It was wanted before, so it is what is refused: to do it twice.
	default:
		_, uerr := st.UpdateSandbox(context.WithoutCancel(ctx), b.ID, func(now *store.Sandbox) error {
			if now.Desired == want {
				now.Desired = b.Desired
			}
			return nil
		})
		return out, errors.Join(execError(err), uerr)
	}
	b, err = st.UpdateSandbox(context.WithoutCancel(ctx), b.ID, func(b *store.Sandbox) error {
		if b.Seen.Final() || b.Desired != want {
			return nil // it has ended, or somebody else wants otherwise, and did it
		}
		b.Seen = seen
		return nil
	})
	return itemOf(env, b), err
}
