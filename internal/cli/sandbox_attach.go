package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	"ravi/sandbox"
)

// attach takes hold of a sandbox for a command of the group, whoever owns it. It must be closed, which only lets go.
func attach(ctx context.Context, env *command.Env, name, typed string) (*sandbox.Sandbox, store.Sandbox, error) {
	b, err := findSandbox(ctx, env, typed)
	if err != nil {
		return nil, b, err
	}
	// A name may mean another sandbox than when the caller was checked.
	if !env.Caller.IsOperator() {
		if may := env.Check(ctx, access.Ask{Access: command.Write, Group: "sandbox", Command: name, Object: b.ID}); may != nil {
			return nil, b, command.Denied(may)
		}
	}
	home, err := env.Home()
	if err != nil {
		return nil, b, err
	}
	switch {
	case b.Seen.Final():
		return nil, b, &command.Error{Code: command.CodeConflict, Message: fmt.Sprintf("sandbox %s has ended (%s)", b.ID, b.Reason), Hint: "see ravi sandbox ls", Status: http.StatusConflict, Exit: command.ExitFailed, Err: sandbox.ErrEnded}
	case b.Seen == store.SeenPaused && name != "resume" && name != "pause" && name != "stats":
		return nil, b, &command.Error{Code: command.CodeConflict, Message: fmt.Sprintf("sandbox %s is paused", b.ID), Hint: "let it go on: ravi sandbox resume " + b.ID, Status: http.StatusConflict, Exit: command.ExitFailed}
	}
	sb, err := sandbox.Attach(ctx, b.ID, sandbox.WithHome(home))
	if errors.Is(err, sandbox.ErrNoSandbox) {
		return nil, b, &command.Error{Code: command.CodeConflict, Message: fmt.Sprintf("sandbox %s cannot be reached: it is not ready yet, or nothing keeps it any more", b.ID), Hint: "see ravi sandbox inspect " + b.ID + "; ravi sandbox prune ends what a crash left", Status: http.StatusConflict, Exit: command.ExitFailed, Err: err}
	}
	return sb, b, err
}
