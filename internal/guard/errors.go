package guard

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Codes of the errors that this package answers with. A code never changes its meaning.
const (
	CodeUsage       = "USAGE"       // 400
	CodeDenied      = "DENIED"      // 403
	CodeMethod      = "METHOD"      // 405
	CodeTooLarge    = "TOO_LARGE"   // 413
	CodeTooMany     = "TOO_MANY"    // 429
	CodeInternal    = "INTERNAL"    // 500
	CodeUnavailable = "UNAVAILABLE" // 503
)

// Error is a listener that cannot be had, or a peer that is not let in, told for people.
type Error struct {
	Message string
	Hint    string // what mends it
	Err     error  // a cause of this package, and what is beneath it
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

func refuse(cause error, hint, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// WriteError answers with an error in the one form that all of the project's servers use.
func WriteError(w http.ResponseWriter, status int, code, message, hint string) {
	var doc struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Hint    string `json:"hint"`
		} `json:"error"`
	}
	doc.Error.Code, doc.Error.Message, doc.Error.Hint = code, message, hint
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err) // three strings can be encoded
	}
	b = append(b, '\n')
	h := w.Header()
	h.Del("Content-Encoding")
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has gone gets no answer
}

// WriteTooMany answers 429: the caller asked too often, and may ask again after a time.
func WriteTooMany(w http.ResponseWriter, after time.Duration, message string) {
	setRetry(w, after)
	WriteError(w, http.StatusTooManyRequests, CodeTooMany, message, "ask less often; the header Retry-After says when to ask again")
}

// WriteUnavailable answers 503: what is asked for does not answer now, and may after a time.
func WriteUnavailable(w http.ResponseWriter, after time.Duration, message string) {
	setRetry(w, after)
	WriteError(w, http.StatusServiceUnavailable, CodeUnavailable, message, "try again; the header Retry-After says when")
}

func setRetry(w http.ResponseWriter, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(after.Seconds())))))
}
