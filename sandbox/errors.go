package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"ravi/internal/keeper"
)

// InitError is why a sandbox could not be started. Every failure of Open is
// one.
type InitError struct {
	// Stage is what was being done: config, workspace, backend, create or
	// verify.
	Stage string
	Err   error
	// Hint says what mends it; it may be empty.
	Hint string
}

func (e *InitError) Error() string { return "cannot start the sandbox: " + e.Err.Error() }

func (e *InitError) Unwrap() error { return e.Err }

// Errors that callers tell apart with errors.Is.
var (
	// ErrClosed: the sandbox was closed by its owner.
	ErrClosed = errors.New("the sandbox is closed")
	// ErrEnded: the sandbox ended by itself; the error says why.
	ErrEnded = errors.New("the sandbox has ended")
	// ErrNotFound: there is no such file, process or user in the sandbox.
	ErrNotFound = errors.New("not found in the sandbox")
	// ErrOutside: a path of the host that the sandbox does not see.
	ErrOutside = errors.New("not visible in the sandbox")
	// ErrDiskFull: the sandbox's disk is full.
	ErrDiskFull = errors.New("the sandbox's disk is full")
)

// EndError says why a sandbox ended.
type EndError struct {
	// Reason is closed, owner_gone, oom, sandbox_died, violation, keeper_died,
	// runner_gone (of one on another machine, WithBackend),
	// another reason that its owner gave, or detached: this process let go of
	// the sandbox, which may live on.
	Reason string
	// Detail is what Ravi's own processes had to say, for those who look for a
	// fault; it may be empty.
	Detail string
	// MemoryMiB is the limit that was hit, when the reason is oom.
	MemoryMiB int
}

func (e *EndError) Error() string {
	switch e.Reason {
	case "oom":
		return fmt.Sprintf("the sandbox ran out of memory (limit %d MiB) and was ended by the kernel", e.MemoryMiB)
	case "closed":
		return "the sandbox is closed"
	case "owner_gone":
		return "the sandbox ended since its owner was gone"
	case "violation":
		return "the sandbox was ended since its guest broke the protocol"
	case "sandbox_died":
		return "the sandbox's kernel ended unexpectedly"
	case "detached":
		return "this process has let go of the sandbox"
	case "keeper_died":
		return "the sandbox ended since its keeper was killed"
	case keeper.ReasonRunner:
		return "the sandbox ended since its runner, or the way there, was gone"
	}
	return "the sandbox ended: " + e.Reason
}

// Is makes every EndError match ErrEnded, but that of a sandbox that was let go
// of, and one that was asked for ErrClosed.
func (e *EndError) Is(target error) bool {
	return target == ErrEnded && e.Reason != "detached" || target == ErrClosed && (e.Reason == "closed" || e.Reason == "detached")
}

// fromGuest makes of a guest's error one of this package's.
func fromGuest(err error) error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err
	}
	switch ce.Code() {
	case connect.CodeNotFound, connect.CodeUnauthenticated: // the latter: no such user
		return &guestError{ce, ErrNotFound}
	case connect.CodeResourceExhausted:
		return &guestError{ce, ErrDiskFull}
	}
	return &guestError{ce, nil}
}

// guestError is an error that the guest agent answered.
type guestError struct {
	cause *connect.Error
	kind  error // one of this package's, or nil
}

func (e *guestError) Error() string { return e.cause.Message() }

func (e *guestError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.cause}
	}
	return []error{e.cause, e.kind}
}

// errorText is the message in the guest's JSON for a failed request.
func errorText(b []byte) string {
	var m struct{ Message string }
	if json.Unmarshal(b, &m) == nil && m.Message != "" {
		return m.Message
	}
	return strings.TrimSpace(string(b))
}
