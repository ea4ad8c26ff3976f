package command

import (
	"context"
	"errors"
	"net/http"

	"ravi/internal/access"
	"ravi/internal/config"
	"ravi/internal/store"
)

// Exit codes of ravi itself. A command may end with others: `sandbox run` with the code of what it ran.
const (
	ExitOK       = 0
	ExitFailed   = 1
	ExitUsage    = 2
	ExitTimeout  = 124 // the time of a run was over
	ExitRavi     = 125 // Ravi itself could not do its part of a run
	ExitOOM      = 137 // a run used up its memory
	ExitCanceled = 130 // Ctrl-C
)

// Codes of errors, for programs to tell them apart. A code never changes its meaning.
const (
	CodeUsage        = "USAGE"
	CodeConfig       = "CONFIG"
	CodeNotFound     = "NOT_FOUND"
	CodeAmbiguous    = "AMBIGUOUS"
	CodeConflict     = "CONFLICT"
	CodeUnavailable  = "UNAVAILABLE"
	CodeDenied       = "DENIED"
	CodeUnauthorized = "UNAUTHORIZED"
	CodeGateway      = "GATEWAY_REQUIRED"
	CodeCanceled     = "CANCELED"
	CodeInternal     = "INTERNAL"
)

// Error is a failure as it is told to people and programs. What the user reads (Message, Hint) stands apart from the
// cause, which is for errors.Is and for logs.
type Error struct {
	Code    string // one of the codes, or a command's own
	Message string // what happened, and to what
	Hint    string // what mends it, best a command
	Status  int    // HTTP
	Exit    int    // of the process
	Err     error  // the cause
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

// Usage is a command that was asked for in a way that makes no sense.
func Usage(message, hint string) *Error {
	return &Error{Code: CodeUsage, Message: message, Hint: hint, Status: http.StatusBadRequest, Exit: ExitUsage}
}

// AsError is any error in the form that is told. The message of an unknown one is its own.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		full := *e
		full.Code = orElse(full.Code, CodeInternal)
		full.Status = orElse(full.Status, http.StatusInternalServerError)
		full.Exit = orElse(full.Exit, ExitFailed)
		return &full
	}
	told := &Error{Code: CodeInternal, Message: err.Error(), Status: http.StatusInternalServerError, Exit: ExitFailed, Err: err}
	var hinted *config.HintError
	switch {
	case errors.As(err, &hinted):
		told.Code, told.Hint = CodeConfig, hinted.Hint
	case errors.Is(err, access.ErrDenied):
		told.Code, told.Status, told.Hint = CodeDenied, http.StatusForbidden, deniedHint
	case errors.Is(err, store.ErrNotFound):
		told.Code, told.Status = CodeNotFound, http.StatusNotFound
	case errors.Is(err, store.ErrAmbiguous):
		told.Code, told.Status, told.Hint = CodeAmbiguous, http.StatusConflict, "write more of the id"
	case errors.Is(err, store.ErrFinal), errors.Is(err, store.ErrExists), errors.Is(err, store.ErrInUse):
		told.Code, told.Status = CodeConflict, http.StatusConflict
	case errors.Is(err, store.ErrInvalid):
		told.Code, told.Status, told.Exit = CodeUsage, http.StatusBadRequest, ExitUsage
	case errors.Is(err, store.ErrTooLarge):
		told.Code, told.Status, told.Exit = CodeUsage, http.StatusRequestEntityTooLarge, ExitUsage
	case errors.Is(err, store.ErrQueueFull):
		told.Code, told.Status, told.Hint = CodeUnavailable, http.StatusServiceUnavailable, "wait, or take some back: ravi work ls, ravi work cancel"
	case errors.Is(err, store.ErrDiskFull):
		told.Code, told.Status = CodeUnavailable, http.StatusServiceUnavailable
	case errors.Is(err, store.ErrNewerSchema):
		told.Code, told.Status, told.Hint = CodeUnavailable, http.StatusServiceUnavailable,
			"use that newer ravi, or set RAVI_HOME to another directory"
	case errors.Is(err, context.Canceled):
		told.Code, told.Exit, told.Message = CodeCanceled, ExitCanceled, "interrupted"
	}
	return told
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
