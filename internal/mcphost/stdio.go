package mcphost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/sandbox"
)

// Bounds of the conversation with a program.
const (
	maxLine   = 16 << 20 // bytes of a message
	maxNoise  = 4 << 20  // bytes of lines that are no messages, in all
	maxStderr = 4 << 10  // bytes of a line of standard error
	waiting   = 16       // messages that wait, each way
	tellNoise = 10       // lines that are no messages, told one by one
	tellErrs  = 100      // lines of standard error, told one by one
	lastErrs  = 5        // lines of standard error that the reason of an end quotes
)

// grace is how long a program may take to end by itself once its input has ended, and again once it was asked to.
const grace = 2 * time.Second

// errLeft: this side ended the conversation.
var errLeft = errors.New("the conversation was ended")

// pipe is a program in the sandbox, and the conversation with it. Nothing of it is kept beyond the bounds: a program
// that says more than is read waits, as one does that reads less than is said.
type pipe struct {
	process *sandbox.Process
	in      chan jsonrpc.Message
	out     chan []byte
	stdin   *io.PipeWriter

	stdout, stderr splitter
	noise, errs    quota
	noisy          int // bytes that were no messages

	over chan struct{} // closed when the conversation has ended
	told chan struct{} // closed when the process is over, and all that it wrote was told
	once sync.Once
	err  error // why; to be read when over is closed

	mu   sync.Mutex
	last []string // of standard error
}

var (
	_ sdk.Transport  = (*pipe)(nil)
	_ sdk.Connection = (*pipe)(nil)
)

// startPipe starts a server's program. It is killed when ctx ends.
func startPipe(ctx context.Context, sb *sandbox.Sandbox, s Server, say func(Kind, string)) (*pipe, error) {
	env, err := filled(s.Env, sb.Placeholders())
	if err != nil {
		return nil, err
	}
	c := &pipe{in: make(chan jsonrpc.Message, waiting), out: make(chan []byte, waiting), over: make(chan struct{}), told: make(chan struct{})}
	c.noise = quota{most: tellNoise, what: "lines that are no messages", say: func(text string) { say(KindLog, text) }}
	c.errs = quota{most: tellErrs, what: "lines on standard error", say: func(text string) { say(KindWarning, text) }}
	c.stdout = splitter{most: maxLine, line: c.hear, long: func([]byte) {
		c.finish(fmt.Errorf("it wrote a line of more than %d bytes", maxLine))
	}}
	c.stderr = splitter{most: maxStderr, line: c.hearError, long: c.hearError}
	stdin, w := io.Pipe()
	c.stdin = w
	c.process, err = sb.Start(ctx, sandbox.Cmd{
		Args: append([]string{s.Command}, s.Args...), Env: env, Tag: "mcp:" + s.Name, Lane: true, Stdin: stdin, Stdout: &c.stdout, Stderr: &c.stderr,
	})
	if err != nil {
		w.Close()
		return nil, err
	}
	if why := c.process.NoLane(); why != "" {
		say(KindLog, "calls take longer than they could: "+why)
	}
	go c.send()
	go func() {
		defer close(c.told)
		status, err := c.process.Wait()
		c.stdout.finish()
		c.stderr.finish()
		c.noise.finish()
		c.errs.finish()
		c.finish(c.ended(status, err))
	}()
	return c, nil
}

// ended says why the process is over.
func (c *pipe) ended(status sandbox.Status, err error) error {
	text := fmt.Sprintf("its program ended with the exit code %d", status.ExitCode)
	switch {
	case err != nil:
		return err
	case status.Reason == sandbox.ReasonOOM:
		text = "its program was ended for want of memory"
	case status.Reason == sandbox.ReasonSignal:
		text = fmt.Sprintf("its program was ended by the signal %d", status.Signal)
	}
	return c.quoting(errors.New(text))
}

// quoting is an error with what the program wrote last on standard error, which mostly says what is wrong.
func (c *pipe) quoting(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) == 0 {
		return err
	}
	return fmt.Errorf("%w; its last words: %s", err, strings.Join(c.last, " | "))
}

// finish ends the conversation. What the program says from now on is dropped.
func (c *pipe) finish(why error) {
	c.once.Do(func() {
		c.err = why
		close(c.over)
	})
}

func (c *pipe) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// hear takes a line of standard output.
func (c *pipe) hear(line []byte) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || c.isOver() {
		return
	}
	var m jsonrpc.Message
	err := errors.New("no object")
	if line[0] == '{' { // so that a flood of others costs little
		m, err = jsonrpc.DecodeMessage(line)
	}
	if err != nil {
		if c.noisy += len(line); c.noisy > maxNoise {
			c.finish(fmt.Errorf("it wrote more than %d bytes that are no messages", maxNoise))
			return
		}
		c.noise.add("no message: " + bounded(string(line[:min(len(line), 400)]), 80))
		return
	}
	if r, ok := m.(*jsonrpc.Request); ok {
		// They are dealt with here, since the SDK would keep any number of them.
		if r.IsCall() {
			c.answer(r)
			return
		}
		if r.Method != "notifications/tools/list_changed" {
			return
		}
	}
	select {
	case c.in <- m:
	case <-c.over:
	}
}

// answer answers what the server asks of its client: that it is there, and nothing else.
func (c *pipe) answer(r *jsonrpc.Request) {
	a := &jsonrpc.Response{ID: r.ID, Result: json.RawMessage("{}")}
	if r.Method != "ping" {
		a.Result, a.Error = nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this client offers nothing but to call tools"}
	}
	b, err := jsonrpc.EncodeMessage(a)
	if err != nil {
		return
	}
	select {
	case c.out <- append(b, '\n'):
	case <-c.over:
	}
}

// hearError takes a line of standard error.
func (c *pipe) hearError(line []byte) {
	text := strings.TrimSpace(string(line))
	if text == "" {
		return
	}
	c.mu.Lock()
	if c.last = append(c.last, bounded(text, 200)); len(c.last) > lastErrs {
		c.last = c.last[1:]
	}
	c.mu.Unlock()
	c.errs.add("stderr: " + text)
}

// send writes what is to be said, until the conversation is over.
func (c *pipe) send() {
	defer c.stdin.Close() // which is the program's sign to end
	for {
		select {
		case b := <-c.out:
			if _, err := c.stdin.Write(b); err != nil {
				return
			}
		case <-c.over:
			return
		}
	}
}

// Connect makes it a transport of the SDK's.
func (c *pipe) Connect(context.Context) (sdk.Connection, error) { return c, nil }

// SessionID is part of a connection of the SDK's; programs have none.
func (c *pipe) SessionID() string { return "" }

// Read gives the next message.
func (c *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.over:
	}
	select {
	case m := <-c.in: // what came before the end
		return m, nil
	default:
		return nil, c.err
	}
}

// Write says a message; it waits while the program does not read.
func (c *pipe) Write(ctx context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	select {
	case <-c.over:
		return c.err
	default:
	}
	select {
	case c.out <- append(b, '\n'):
		return nil
	case <-c.over:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the conversation; the program is ended by stop.
func (c *pipe) Close() error {
	c.finish(errLeft)
	return nil
}

// stop ends the program: its input ends, then it is asked to end, then it is killed with all that it started and left
// behind. When ctx ends it is killed at once.
func (c *pipe) stop(ctx context.Context) error {
	c.finish(errLeft)
	c.stdin.Close()
	if !c.gone(ctx) {
		// One that just ended is as good.
		_ = c.process.Signal(ctx, syscall.SIGTERM)
		c.gone(ctx)
	}
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := c.process.Kill(kill)
	if errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrEnded) || errors.Is(err, sandbox.ErrClosed) {
		err = nil
	}
	select {
	case <-c.told:
	case <-kill.Done():
	}
	return err
}

// gone waits for the program's end for a while.
func (c *pipe) gone(ctx context.Context) bool {
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-c.process.Done():
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}
