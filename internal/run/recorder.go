package run

import (
	"context"
	"errors"
	"fmt"

	"ravi/internal/procid"
	"ravi/internal/redact"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Recorder writes sandboxes down in the store.
type Recorder struct {
	Store *store.Store
	RunID string // the run that they are made for; may be empty
	// Name is what the sandbox is called, and CreatedBy who asked for it, as in the audit; both may be empty.
	Name, CreatedBy string
	// Redact takes secrets out of what is written; may be nil.
	Redact *redact.Redactor
	// AuditHead is the file of the audit's head; empty: where it is unless told otherwise.
	AuditHead string
}

var _ sandbox.Recorder = Recorder{}

// Creating implements sandbox.Recorder.
func (r Recorder) Creating(ctx context.Context, i sandbox.Info) error {
	self, err := procid.Self()
	if err != nil {
		return err
	}
	if r.RunID != "" {
		run, err := r.Store.Run(ctx, r.RunID)
		if err != nil {
			return err
		}
		if run.Status.Final() {
			return fmt.Errorf("the run is %s: %w", run.Status, store.ErrFinal)
		}
	}
	_, err = r.Store.InsertSandbox(ctx, scrub(r.Redact, store.Sandbox{
		ID: i.ID, Name: r.Name, RunID: r.RunID, CreatedBy: r.CreatedBy, Backend: i.Backend, Image: i.Image, Workspace: i.Workspace,
		Desired: store.WantRunning, Seen: store.SeenCreating, Owner: self, Dir: i.Dir, Limits: limits(i.Config),
	}))
	return err
}

// Created implements sandbox.Recorder. It is called again by whoever takes the sandbox over.
func (r Recorder) Created(ctx context.Context, id string, pid int) error {
	self, err := procid.Self()
	if err != nil {
		return err
	}
	keeper, err := procid.Of(pid)
	if err != nil {
		return err
	}
	_, err = r.Store.UpdateSandbox(ctx, id, func(b *store.Sandbox) error {
		b.Seen, b.Owner, b.Keeper = store.SeenRunning, self, keeper
		return nil
	})
	return err
}

// Ended implements sandbox.Recorder.
func (r Recorder) Ended(ctx context.Context, id, reason string) error {
	_, err := r.Store.UpdateSandboxState(ctx, id, store.SeenEnded, r.Redact.String(reason))
	if errors.Is(err, store.ErrFinal) {
		return nil // somebody else saw it first
	}
	return err
}
