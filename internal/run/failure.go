package run

import "errors"

// ReasonNoRoom is the reason of a run whose runner had no room for its sandbox.
const ReasonNoRoom = "no_room"

// ReasonNotReached is the reason of a run whose runner does not answer.
const ReasonNotReached = "runner_not_reached"

// ErrNotReached is the error of Options.Elsewhere when a runner does not answer.
var ErrNotReached = errors.New("the runner does not answer")

// failure is what Ravi could not do, at a step.
type failure struct {
	step string
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// hinted is an error with what mends it.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// WithHint is err with a hint, for Options.Decide; it becomes the task's.
func WithHint(err error, hint string) error { return &hinted{err, hint} }
