package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"ravi/internal/guard"
	"ravi/internal/strictjson"
)

// The codes of errors that the debug socket answers with, besides those of guard.
const (
	debugNotFound      = "NOT_FOUND"         // no such sandbox, session or user
	debugConflict      = "CONFLICT"          // the sandbox has ended; several are meant
	debugNoCommand     = "COMMAND_NOT_FOUND" // a shell's 127
	debugNotExecutable = "NOT_EXECUTABLE"    // a shell's 126
)

// handler answers on the debug socket. See docs/sandbox-api.md.
func (d *debugService) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes", d.list)
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/exec", func(w http.ResponseWriter, r *http.Request) { d.start(w, r, "exec") })
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/shell", func(w http.ResponseWriter, r *http.Request) { d.start(w, r, "shell") })
	mux.HandleFunc("POST /v1/sessions/{session}/input", d.input)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		guard.WriteError(w, http.StatusNotFound, debugNotFound, "there is nothing there", "see docs/sandbox-api.md for what can be asked here")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.handlers.Add(1)
		defer d.handlers.Done()
		// At each request: a process can leave its connection to another.
		if err := guard.ConnOf(r.Context()).Peer.SameWorld(); err != nil {
			d.refuse(w, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// refuse turns away who is not the operator. How often that is logged is bounded.
func (d *debugService) refuse(w http.ResponseWriter, err error) {
	if ok, _ := d.strange.Allow(""); ok {
		slog.Warn("the debug socket was asked by a stranger", "socket", d.path, "why", err.Error())
	}
	hint := "run the command as the user that the program runs as"
	if told := new(guard.Error); errors.As(err, &told) {
		hint = "run the command as the user that the program runs as, outside of containers and sandboxes"
	}
	guard.WriteError(w, http.StatusForbidden, guard.CodeDenied, err.Error(), hint)
}

// debugItem is a sandbox as it is listed.
type debugItem struct {
	ID        string    `json:"id"`
	Backend   string    `json:"backend"`
	Image     string    `json:"image"`
	CPUs      float64   `json:"cpus"`
	MemoryMiB int       `json:"memory_mib"`
	CreatedAt time.Time `json:"created_at"`
	// Status is running or ended; Reason is then that of EndError.
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}

// list asks no sandbox anything, so that one which does not answer holds up nothing.
func (d *debugService) list(w http.ResponseWriter, _ *http.Request) {
	items := []debugItem{}
	d.mu.Lock()
	for _, b := range d.boxes {
		if b.since.IsZero() {
			continue
		}
		i := debugItem{ID: b.ID, Backend: b.backend, Image: b.cfg.Image, CPUs: b.cfg.CPUs, MemoryMiB: b.cfg.MemoryMiB, CreatedAt: b.since.UTC(), Status: "running"}
		if end := new(EndError); errors.As(b.Err(), &end) {
			i.Status, i.Reason = "ended", end.Reason
		}
		items = append(items, i)
	}
	d.mu.Unlock()
	writeDebug(w, map[string]any{"sandboxes": items})
}

func writeDebug(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that has gone gets no answer
}

// debugStart is the body of exec and shell.
type debugStart struct {
	Args    []string          `json:"args"`
	Dir     string            `json:"dir"`
	Env     map[string]string `json:"env"`
	User    string            `json:"user"`
	Timeout *time.Duration    `json:"timeout"`
	// Stdin is what it reads, in base64. With Input, which a shell always has,
	// more comes by the session.
	Stdin string `json:"stdin"`
	Input bool   `json:"input"`
	// Cols and Rows are the size of a shell's terminal.
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// cmd is what is asked for, without its streams.
func (in debugStart) cmd(action string) (c Cmd, err error) {
	c = Cmd{Args: in.Args, Dir: in.Dir, Env: in.Env, User: in.User, Timeout: in.Timeout}
	// A path is always the sandbox's.
	if filepath.IsAbs(in.Dir) {
		c.Dir, c.GuestDir = "", in.Dir
	}
	switch {
	case action == "shell":
		if c.TTY, err = terminalSize(in.Cols, in.Rows); err != nil {
			return c, err
		}
		if c.TTY == nil {
			c.TTY = &Size{Cols: 80, Rows: 24}
		}
		if len(c.Args) == 0 {
			c.Args = []string{"/bin/sh"}
		}
	case in.Cols != 0 || in.Rows != 0:
		return c, fmt.Errorf("%w: exec has no terminal, and so no size; ask for a shell", ErrBadCommand)
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return c, fmt.Errorf("%w: args is empty", ErrBadCommand)
	}
	if c.Timeout != nil && *c.Timeout <= 0 {
		return c, fmt.Errorf("%w: timeout is not above 0; leave it out for none", ErrBadCommand)
	}
	return c, nil
}

// terminalSize is nil where none is given.
func terminalSize(cols, rows int) (*Size, error) {
	switch {
	case cols == 0 && rows == 0:
		return nil, nil
	case cols < 1 || rows < 1 || cols >= 1<<16 || rows >= 1<<16:
		return nil, fmt.Errorf("%w: a terminal of %d columns and %d rows", ErrBadCommand, cols, rows)
	}
	return &Size{Cols: uint16(cols), Rows: uint16(rows)}, nil
}

// decode reads a request's body, which the guard bounds.
func decode(r *http.Request, into any) error {
	b, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return err // of one that is too large the guard tells itself
	case len(b) == 0:
		return nil
	case !utf8.Valid(b):
		return errors.New("the body is not UTF-8")
	}
	return strictjson.Decode(b, into)
}

// start starts a command, and streams what it writes.
func (d *debugService) start(w http.ResponseWriter, r *http.Request, action string) {
	var in debugStart
	if err := decode(r, &in); err != nil {
		guard.WriteError(w, http.StatusBadRequest, guard.CodeUsage, err.Error(), "see docs/sandbox-api.md for what can be asked here")
		return
	}
	ref := r.PathValue("sandbox")
	b, others := d.find(ref)
	switch {
	case b == nil:
		guard.WriteError(w, http.StatusNotFound, debugNotFound, fmt.Sprintf("this program has no sandbox %+.60q", ref), "ask for /v1/sandboxes")
		return
	case others > 0 && b.ID != ref:
		guard.WriteError(w, http.StatusConflict, debugConflict, fmt.Sprintf("%d sandboxes of this program begin with %+.60q", others+1, ref), "give more of the id")
		return
	}
	c, err := in.cmd(action)
	if err != nil {
		writeFailure(w, err)
		return
	}
	if err := b.begin(); err != nil {
		writeFailure(w, err)
		return
	}
	call, err := b.newCall(c, in)
	if err == nil {
		err = b.audit(r.Context(), action, c.Args, guard.ConnOf(r.Context()).Peer.PID)
		if err != nil {
			err = &unaudited{err}
		}
	}
	var ctx context.Context
	if err == nil {
		ctx, err = guard.Lift(w, r)
	}
	if err != nil {
		b.end()
		writeFailure(w, err)
		return
	}
	call.stream(ctx, w)
}

// unaudited is why a call was refused.
type unaudited struct{ error }

func (e *unaudited) Unwrap() error { return e.error }

// failureOf says how an error is told.
func failureOf(err error) (status int, code, hint string) {
	var refused *unaudited
	var illegal *debugBadInput
	switch {
	case errors.As(err, &refused):
		return http.StatusForbidden, guard.CodeDenied, "the program has to be able to write down what is done"
	case errors.Is(err, errDebugFull):
		return http.StatusServiceUnavailable, guard.CodeUnavailable, "end some of them"
	case errors.Is(err, ErrCommandNotFound):
		return http.StatusNotFound, debugNoCommand, "check its name, and PATH"
	case errors.Is(err, ErrNotExecutable):
		return http.StatusBadRequest, debugNotExecutable, "check its mode, and that dir is there"
	case errors.Is(err, ErrBadCommand), errors.Is(err, ErrOutside), errors.As(err, &illegal):
		return http.StatusBadRequest, guard.CodeUsage, "see docs/sandbox-api.md for what can be asked here"
	case errors.Is(err, ErrNotFound):
		return http.StatusNotFound, debugNotFound, "check the name of the user"
	case errors.Is(err, ErrEnded), errors.Is(err, ErrClosed):
		return http.StatusConflict, debugConflict, "ask for /v1/sandboxes"
	}
	return http.StatusInternalServerError, guard.CodeInternal, "look at the program's own log"
}

func writeFailure(w http.ResponseWriter, err error) {
	status, code, hint := failureOf(err)
	guard.WriteError(w, status, code, strings.ToValidUTF8(err.Error(), "\uFFFD"), hint)
}
