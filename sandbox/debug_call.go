package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"ravi/internal/guard"
)

// debugChunk is how much of the output is in one message at most.
const debugChunk = 32 << 10

// debugCall is a command that was asked for on the debug socket, and its session.
type debugCall struct {
	box   *debugBox
	cmd   Cmd
	id    string
	in    *io.PipeReader // nil where no more input comes
	feed  *io.PipeWriter
	turn  chan struct{} // held by who writes input
	proc  *Process
	lines chan []byte
}

// debugBadInput says that input makes no sense.
type debugBadInput struct{ error }

// newCall makes a call whose place is taken. It starts nothing.
func (b *debugBox) newCall(c Cmd, in debugStart) (*debugCall, error) {
	stdin, err := base64.StdEncoding.DecodeString(in.Stdin)
	if err != nil {
		return nil, &debugBadInput{fmt.Errorf("stdin is not base64: %w", err)}
	}
	call := &debugCall{box: b, cmd: c, id: rand.Text(), turn: make(chan struct{}, 1), lines: make(chan []byte)}
	call.in, call.feed = io.Pipe()
	switch {
	case in.Input || c.TTY != nil:
		call.cmd.Stdin = io.MultiReader(bytes.NewReader(stdin), call.in)
	case len(stdin) > 0:
		call.cmd.Stdin = bytes.NewReader(stdin)
	}
	return call, nil
}

// debugEnd is how a command ended.
type debugEnd struct {
	status Status
	err    error
}

// stream starts the command and writes what it does, a line of JSON each. When it
// returns, or ctx ends, the command is killed.
func (c *debugCall) stream(ctx context.Context, w http.ResponseWriter) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	defer context.AfterFunc(c.box.ctx, func() { cancel(context.Cause(c.box.ctx)) })()
	c.cmd.Stdout, c.cmd.Stderr = &debugWriter{ctx, c, "stdout"}, &debugWriter{ctx, c, "stderr"}
	started, ended := make(chan *Process, 1), make(chan debugEnd, 1)
	// By itself, since a sandbox that does not answer must not hold what is the
	// client's: this returns as soon as that has gone.
	go func() {
		defer c.box.end()
		defer c.in.Close() // whoever writes input waits no longer
		p, err := c.box.Start(ctx, c.cmd)
		if err != nil {
			ended <- debugEnd{err: err}
			return
		}
		started <- p
		st, err := p.Wait()
		ended <- debugEnd{st, err}
	}()
	out := &debugStream{w: w, control: http.NewResponseController(w)}
	select {
	case c.proc = <-started:
	case <-ctx.Done():
		writeFailure(w, fmt.Errorf("%w: %w", ErrClosed, context.Cause(ctx))) // if it is still there
		return
	case e := <-ended:
		// One that is over at once has also started.
		select {
		case c.proc = <-started:
			ended <- e
		default:
			writeFailure(w, e.err)
			return
		}
	}
	c.box.service.enter(c)
	defer c.box.service.leave(c)
	w.Header().Set("Content-Type", "application/x-ndjson")
	if out.value(map[string]any{"session": c.id, "sandbox": c.box.ID, "pid": c.proc.PID()}) != nil {
		return
	}
	for {
		select {
		case line := <-c.lines:
			if out.line(line) != nil {
				return
			}
		case e := <-ended:
			_ = out.end(e) // a client that has gone gets no answer
			return
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), guard.ErrShutdown) && c.box.ctx.Err() == nil {
				return // the client has gone
			}
			select {
			case e := <-ended:
				_ = out.end(e) // as above
			case <-time.After(drainTime):
			}
			return
		}
	}
}

// debugStream writes lines to a client.
type debugStream struct {
	w       io.Writer
	control *http.ResponseController
}

func (s *debugStream) line(b []byte) error {
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return s.control.Flush()
}

func (s *debugStream) value(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.line(append(b, '\n'))
}

func (s *debugStream) end(e debugEnd) error {
	if e.err != nil {
		_, code, hint := failureOf(e.err)
		return s.value(map[string]any{"error": map[string]string{"code": code, "message": e.err.Error(), "hint": hint}})
	}
	return s.value(struct {
		Exit   int    `json:"exit"`
		Reason string `json:"reason"`
		Signal int    `json:"signal,omitempty"`
	}{e.status.ExitCode, e.status.Reason, e.status.Signal})
}

// debugWriter makes messages of what a command writes. The command waits until
// the client has read them.
type debugWriter struct {
	ctx  context.Context
	call *debugCall
	name string
}

func (d *debugWriter) Write(p []byte) (n int, err error) {
	// In base64 and with its name a message must not be larger than one may be.
	most := max(1, min(debugChunk, (d.call.box.service.max-32)/4*3))
	for len(p) > 0 {
		k := min(most, len(p))
		line, err := json.Marshal(map[string][]byte{d.name: p[:k]})
		if err != nil {
			return n, err
		}
		select {
		case d.call.lines <- append(line, '\n'):
		case <-d.ctx.Done():
			return n, context.Cause(d.ctx)
		}
		n, p = n+k, p[k:]
	}
	return n, nil
}

func (d *debugService) enter(c *debugCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sessions[c.id] = c
}

func (d *debugService) leave(c *debugCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, c.id)
}

// debugInput is the body of input.
type debugInput struct {
	Data string `json:"data"` // in base64
	EOF  bool   `json:"eof"`  // nothing more comes
	Cols int    `json:"cols"` // the terminal's new size
	Rows int    `json:"rows"`
}

// input gives a command of a session something to read, or its terminal another
// size. It answers when the command's side has taken it.
func (d *debugService) input(w http.ResponseWriter, r *http.Request) {
	var in debugInput
	err := decode(r, &in)
	data, dataErr := base64.StdEncoding.DecodeString(in.Data)
	size, sizeErr := terminalSize(in.Cols, in.Rows)
	if err = errors.Join(err, dataErr, sizeErr); err != nil {
		guard.WriteError(w, http.StatusBadRequest, guard.CodeUsage, err.Error(), "see docs/sandbox-api.md for what can be asked here")
		return
	}
	d.mu.Lock()
	c := d.sessions[r.PathValue("session")]
	d.mu.Unlock()
	if c == nil {
		guard.WriteError(w, http.StatusNotFound, debugNotFound, "there is no such session, or its command has ended", "a session ends with the answer that named it")
		return
	}
	ctx, err := guard.Lift(w, r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	if err := c.take(ctx, data, in.EOF, size); err != nil {
		writeFailure(w, err)
		return
	}
	writeDebug(w, struct{}{})
}

func (c *debugCall) take(ctx context.Context, data []byte, eof bool, size *Size) error {
	switch {
	case size != nil && c.cmd.TTY == nil:
		return &debugBadInput{errors.New("the command has no terminal, and so no size")}
	case c.cmd.Stdin == nil && (len(data) > 0 || eof):
		return &debugBadInput{errors.New("the command was started without input")}
	case eof && c.cmd.TTY != nil:
		return &debugBadInput{errors.New("a terminal's input has no end: send the byte 4")}
	}
	// Not behind input that nobody reads.
	if size != nil {
		if err := c.proc.Resize(ctx, *size); err != nil {
			return err
		}
	}
	if len(data) == 0 && !eof {
		return nil
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	written := make(chan error, 1)
	go func() {
		defer func() { <-c.turn }()
		var err error
		if len(data) > 0 {
			_, err = c.feed.Write(data)
		}
		if eof {
			err = errors.Join(err, c.feed.Close())
		}
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			return fmt.Errorf("%w: the command has ended, or reads no more", ErrNotFound)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
