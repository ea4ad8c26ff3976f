package guest

import (
	"encoding/json"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// httpError is the body of a failed plain HTTP call.
type httpError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that is gone cannot be told that it is.
	_ = json.NewEncoder(w).Encode(v)
}

func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, httpError{Code: status, Message: err.Error()})
}

// writeFailure chooses the status by what went wrong.
func writeFailure(w http.ResponseWriter, err error) { writeError(w, statusOf(err), err) }

func statusOf(err error) int {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return http.StatusInsufficientStorage
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	}
	switch codeOf(err) {
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodeInvalidArgument:
		return http.StatusBadRequest
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists:
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}
