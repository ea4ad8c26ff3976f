package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"syscall"
	"time"

	"ravi/internal/command"
	"ravi/internal/guard"
	"ravi/internal/store"
	"ravi/sandbox"
)

const (
	// socketAnswer bounds a line or an answer of a debug socket.
	socketAnswer = 4 << 20
	// socketInput is how much is sent of standard input at once; in base64 it has room in what a message may be.
	socketInput = 32 << 10
	// socketTime is for commands whose output is collected and that name no time.
	socketTime = 2 * time.Minute
)

// debugSocket is the debug socket of a program that embeds the package sandbox. What it answers is another program's word.
type debugSocket struct {
	path string
	http *http.Client
}

func openSocket(path string) *debugSocket {
	return &debugSocket{path, &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return guard.DialUnix(ctx, path)
	}}}}
}

func (d *debugSocket) close() { d.http.CloseIdleConnections() }

// ask sends a request. The answer, if it is no error, is for the caller to read and close.
func (d *debugSocket) ask(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/v1/"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := d.http.Do(req)
	if err != nil {
		return nil, d.unreachable(ctx, err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, socketAnswer))
	if err != nil {
		return nil, d.unreachable(ctx, err)
	}
	var doc struct{ Error *socketError }
	if json.Unmarshal(b, &doc) != nil || doc.Error == nil || doc.Error.Message == "" {
		return nil, fmt.Errorf("the program at %s answered %s", d.path, res.Status)
	}
	doc.Error.status = res.StatusCode
	return nil, doc.Error.told()
}

func (d *debugSocket) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	told := &command.Error{Code: command.CodeUnavailable, Message: fmt.Sprintf("no program serves the debug socket %s", d.path),
		Hint: "start the program with debug.enabled, and see its debug.socket", Status: http.StatusServiceUnavailable, Exit: command.ExitFailed, Err: err}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		told.Message, told.Hint = fmt.Sprintf("the program at the debug socket %s: %v", d.path, errors.Unwrap(err)), "look whether it still runs"
	}
	if refused := new(guard.Error); errors.As(err, &refused) {
		told.Message, told.Hint = refused.Message, refused.Hint
	}
	return told
}

// socketError is an error that the program answered.
type socketError struct {
	Code, Message, Hint string
	status              int
}

func (e *socketError) told() error {
	told := &command.Error{Code: e.Code, Message: e.Message, Hint: e.Hint, Status: e.status, Exit: command.ExitFailed}
	switch e.Code {
	case "COMMAND_NOT_FOUND":
		told.Code, told.Exit = command.CodeNotFound, exitNotFound
	case "NOT_EXECUTABLE":
		told.Code, told.Exit = command.CodeUsage, exitNotExecutable
	case command.CodeUsage:
		told.Exit = command.ExitUsage
	case command.CodeConflict:
		told.Exit = command.ExitRavi
	}
	return told
}

// plainID is an id that can be shown, and stand in a path.
var plainID = regexp.MustCompile(`^[0-9A-Za-z]{1,64}$`)

// list shows the program's sandboxes as the record would.
func (d *debugSocket) list(ctx context.Context, in listInput) ([]sandboxItem, error) {
	res, err := d.ask(ctx, http.MethodGet, "sandboxes", nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var doc struct {
		Sandboxes []struct {
			ID        string     `json:"id"`
			Backend   string     `json:"backend"`
			Image     string     `json:"image"`
			CPUs      float64    `json:"cpus"`
			MemoryMiB int64      `json:"memory_mib"`
			CreatedAt time.Time  `json:"created_at"`
			Status    store.Seen `json:"status"`
			Reason    string     `json:"reason"`
		} `json:"sandboxes"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, socketAnswer)).Decode(&doc); err != nil {
		return nil, fmt.Errorf("what the program at %s answered: %w", d.path, err)
	}
	items := []sandboxItem{}
	for _, b := range doc.Sandboxes {
		if !plainID.MatchString(b.ID) {
			return nil, fmt.Errorf("what the program at %s answered: a sandbox called %+.60q", d.path, b.ID)
		}
	}
	for i := len(doc.Sandboxes) - 1; i >= 0; i-- { // the newest first
		b := doc.Sandboxes[i]
		if b.Status.Final() && !in.All || in.Limit > 0 && len(items) == in.Limit {
			continue
		}
		items = append(items, sandboxItem{Sandbox: store.Sandbox{
			ID: b.ID, Backend: b.Backend, Image: b.Image, Seen: b.Status, Reason: b.Reason, CreatedAt: b.CreatedAt,
			Limits: store.Limits{CPUs: b.CPUs, MemoryMiB: b.MemoryMiB},
		}})
	}
	return items, nil
}

// socketStart is what is asked for.
type socketStart struct {
	Args    []string          `json:"args"`
	Dir     string            `json:"dir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Timeout string            `json:"timeout,omitempty"`
	Input   bool              `json:"input"`
	Cols    uint16            `json:"cols,omitempty"`
	Rows    uint16            `json:"rows,omitempty"`
}

// socketLine is one message of what comes then.
type socketLine struct {
	Session string       `json:"session"`
	Sandbox string       `json:"sandbox"`
	Stdout  []byte       `json:"stdout"`
	Stderr  []byte       `json:"stderr"`
	Exit    *int         `json:"exit"`
	Reason  string       `json:"reason"`
	Signal  int          `json:"signal"`
	Error   *socketError `json:"error"`
}

// socketProcess is a command that runs in a sandbox of the program.
type socketProcess struct {
	socket  *debugSocket
	sandbox string // its full id
	session string
	done    chan struct{}
	status  sandbox.Status
	err     error

	cut func() // ends it

	mu     sync.Mutex
	failed error // why it was cut
}

// start starts a command. When ctx ends, it is killed.
func (d *debugSocket) start(ctx context.Context, ref string, c sandbox.Cmd) (*socketProcess, error) {
	action, in := "exec", socketStart{Args: c.Args, Dir: c.Dir, Env: c.Env, User: c.User, Input: c.Stdin != nil}
	if c.GuestDir != "" {
		in.Dir = c.GuestDir
	}
	if c.Timeout != nil {
		in.Timeout = c.Timeout.String()
	}
	if c.TTY != nil {
		action, in.Cols, in.Rows = "shell", c.TTY.Cols, c.TTY.Rows
	}
	res, err := d.ask(ctx, http.MethodPost, "sandboxes/"+url.PathEscape(ref)+"/"+action, in)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, socketAnswer)
	first, err := d.next(ctx, lines)
	if err == nil && (!plainID.MatchString(first.Session) || !plainID.MatchString(first.Sandbox)) {
		err = fmt.Errorf("the program at %s did not say that the command runs", d.path)
	}
	if err != nil {
		res.Body.Close()
		return nil, err
	}
	p := &socketProcess{socket: d, sandbox: first.Sandbox, session: first.Session, done: make(chan struct{}), cut: func() { res.Body.Close() }}
	go func() {
		defer close(p.done)
		defer res.Body.Close() // which ends the command, if it goes on
		p.status, p.err = p.read(ctx, lines, c)
	}()
	if c.Stdin != nil {
		go p.feed(ctx, c.Stdin, c.TTY != nil)
	}
	return p, nil
}

func (d *debugSocket) next(ctx context.Context, lines *bufio.Scanner) (l socketLine, err error) {
	if !lines.Scan() {
		if err = lines.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		if ctx.Err() != nil {
			return l, context.Cause(ctx)
		}
		return l, &command.Error{Code: command.CodeUnavailable, Message: fmt.Sprintf("the program at %s ended, or its connection: %v", d.path, err),
			Hint: "look whether it still runs", Status: http.StatusServiceUnavailable, Exit: command.ExitRavi, Err: err}
	}
	if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
		return l, fmt.Errorf("what the program at %s answered: %w", d.path, err)
	}
	return l, nil
}

// read carries the output to its writers, to the end.
func (p *socketProcess) read(ctx context.Context, lines *bufio.Scanner, c sandbox.Cmd) (sandbox.Status, error) {
	for {
		l, err := p.socket.next(ctx, lines)
		switch {
		case err != nil && ctx.Err() != nil:
			return sandbox.Status{ExitCode: -1, Reason: sandbox.ReasonCanceled}, nil
		case err != nil:
			p.mu.Lock()
			defer p.mu.Unlock()
			return sandbox.Status{}, cmp.Or(p.failed, err)
		case l.Error != nil:
			return sandbox.Status{}, l.Error.told()
		case l.Exit != nil:
			return sandbox.Status{ExitCode: *l.Exit, Reason: l.Reason, Signal: l.Signal}, nil
		}
		for _, to := range []struct {
			w io.Writer
			b []byte
		}{{c.Stdout, l.Stdout}, {c.Stderr, l.Stderr}} {
			if to.w == nil || len(to.b) == 0 {
				continue
			}
			if _, err := to.w.Write(to.b); err != nil {
				return sandbox.Status{}, fmt.Errorf("writing the command's output: %w", err)
			}
		}
	}
}

// feed sends what is read to the command, until either ends.
func (p *socketProcess) feed(ctx context.Context, r io.Reader, tty bool) {
	buf := make([]byte, socketInput)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if p.give(ctx, map[string]any{"data": buf[:n]}) != nil {
				return
			}
		}
		if err != nil {
			if !tty {
				_ = p.give(ctx, map[string]any{"eof": true}) // told by Wait
			}
			return
		}
	}
}

// give sends one message. That the command has ended, or reads no more, is no failure.
func (p *socketProcess) give(ctx context.Context, in any) error {
	res, err := p.socket.ask(ctx, http.MethodPost, "sessions/"+p.session+"/input", in)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(res.Body, socketAnswer))
		res.Body.Close()
	}
	if err != nil && command.AsError(err).Code != command.CodeNotFound {
		// Else it would wait for ever for what does not come.
		p.mu.Lock()
		p.failed = err
		p.mu.Unlock()
		p.cut()
	}
	return err
}

// Wait waits for the end.
func (p *socketProcess) Wait() (sandbox.Status, error) {
	<-p.done
	return p.status, p.err
}

// Resize changes the size of its terminal.
func (p *socketProcess) Resize(ctx context.Context, size sandbox.Size) error {
	res, err := p.socket.ask(ctx, http.MethodPost, "sessions/"+p.session+"/input", map[string]any{"cols": size.Cols, "rows": size.Rows})
	if err == nil {
		res.Body.Close()
	}
	return err
}

// firstBytes keeps the beginning of what is written to it.
type firstBytes struct {
	bytes.Buffer
	total int64
}

const mostCollected = 1 << 20

func (f *firstBytes) Write(p []byte) (int, error) {
	f.total += int64(len(p))
	f.Buffer.Write(p[:min(len(p), mostCollected-f.Len())]) // it never fails
	return len(p), nil
}

// execBySocket is exec for a sandbox of another program.
func execBySocket(ctx context.Context, env *command.Env, in execInput, cmd sandbox.Cmd) (out execOutput, err error) {
	d := openSocket(in.Socket)
	defer d.close()
	var stdout, stderr firstBytes
	if out.streamed = !env.JSON; out.streamed {
		cmd.Stdout, cmd.Stderr = outputs(env)
	} else {
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if cmd.Timeout == nil {
			cmd.Timeout = sandbox.After(socketTime)
		}
	}
	start := time.Now()
	p, err := d.start(ctx, in.Sandbox, cmd)
	if err != nil {
		return out, err
	}
	st, err := p.Wait()
	out.Sandbox, out.ExitCode, out.Reason, out.Signal, out.Millis = p.sandbox, st.ExitCode, st.Reason, st.Signal, time.Since(start).Milliseconds()
	out.Stdout, out.Stderr, out.StdoutBytes, out.StderrBytes = stdout.String(), stderr.String(), stdout.total, stderr.total
	out.Truncated = stdout.total > mostCollected || stderr.total > mostCollected
	return out, err
}
