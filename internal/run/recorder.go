package run

import (
	"context"
	"errors"

	"ravi/internal/procid"
	"ravi/internal/store"
	"ravi/sandbox"
)

// recorder writes sandboxes down in the store.
type recorder struct {
	store *store.Store
	runID string
}

var _ sandbox.Recorder = (*recorder)(nil)

func (r *recorder) Creating(ctx context.Context, i sandbox.Info) error {
	self, err := procid.Self()
	if err != nil {
		return err
	}
	_, err = r.store.InsertSandbox(ctx, store.Sandbox{
		ID: i.ID, RunID: r.runID, Backend: i.Backend, Image: i.Image, Workspace: i.Workspace,
		Desired: store.WantRunning, Seen: store.SeenCreating, Owner: self, Dir: i.Dir, Limits: limits(i.Config),
	})
	return err
}

func (r *recorder) Created(ctx context.Context, id string, pid int) error {
	keeper, err := procid.Of(pid)
	if err != nil {
		return err
	}
	_, err = r.store.UpdateSandbox(ctx, id, func(b *store.Sandbox) error {
		b.Seen, b.Keeper = store.SeenRunning, keeper
		return nil
	})
	return err
}

func (r *recorder) Ended(ctx context.Context, id, reason string) error {
	_, err := r.store.UpdateSandboxState(ctx, id, store.SeenEnded, reason)
	if errors.Is(err, store.ErrFinal) {
		return nil // somebody else saw it first
	}
	return err
}
