package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// newLines passes on the lines of in that are messages. To the others it answers itself, since the SDK would end the
// conversation at the first of them.
func newLines(in io.Reader, out io.Writer) (io.ReadCloser, io.WriteCloser) {
	r, w := io.Pipe()
	shared := newOutput(out)
	// It ends with in, or with the first line after the reader was closed.
	go func() {
		err := pass(in, w, shared)
		shared.wait(lastAnswers)
		w.CloseWithError(err)
	}()
	return r, shared
}

// lastAnswers is how long what was asked may take after the end of the input, which to the SDK is the end of everything.
const lastAnswers = 10 * time.Second

// output is written to by several, a message at a time. It knows what is still to be answered.
type output struct {
	to       io.Writer
	answered chan struct{}

	mu   sync.Mutex
	open map[jsonrpc.ID]struct{}
}

func newOutput(to io.Writer) *output {
	return &output{to: to, answered: make(chan struct{}, 1), open: map[jsonrpc.ID]struct{}{}}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.to.Write(p)
	if message, derr := jsonrpc.DecodeMessage(p); derr == nil {
		if r, ok := message.(*jsonrpc.Response); ok {
			delete(o.open, r.ID)
			select {
			case o.answered <- struct{}{}:
			default:
			}
		}
	}
	return n, err
}

// expect notes that a message is to be answered, if it is a request.
func (o *output) expect(message jsonrpc.Message) {
	if r, ok := message.(*jsonrpc.Request); ok && r.ID.IsValid() {
		o.mu.Lock()
		o.open[r.ID] = struct{}{}
		o.mu.Unlock()
	}
}

// wait waits until all is answered, but not longer than most.
func (o *output) wait(most time.Duration) {
	over := time.NewTimer(most)
	defer over.Stop()
	for {
		o.mu.Lock()
		left := len(o.open)
		o.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-o.answered:
		case <-over.C:
			return
		}
	}
}

// Close leaves the stream open, which is not ours.
func (o *output) Close() error { return nil }

func pass(in io.Reader, messages io.Writer, answers *output) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(lines)
		if errors.Is(err, errTooLong) {
			if err := reply(answers, nil, jsonrpc.CodeInvalidRequest, err.Error()); err != nil {
				return err
			}
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if werr := passLine(line, messages, answers); werr != nil {
				return werr
			}
		}
		if err != nil {
			return err
		}
	}
}

// passLine passes on one line, if it is a message.
func passLine(line []byte, messages io.Writer, answers *output) error {
	switch {
	case !utf8.Valid(line) || !json.Valid(line):
		return reply(answers, nil, jsonrpc.CodeParseError, "this is not JSON")
	case line[0] == '[':
		return reply(answers, nil, jsonrpc.CodeInvalidRequest, "send messages one by one: this protocol has no batches")
	}
	message, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		var sent struct {
			ID any `json:"id"`
		}
		_ = json.Unmarshal(line, &sent) // whoever sent no id gets none back
		switch sent.ID.(type) {
		case string, float64:
		default:
			sent.ID = nil
		}
		return reply(answers, sent.ID, jsonrpc.CodeInvalidRequest, "this is no JSON-RPC 2.0 message")
	}
	answers.expect(message)
	_, err = messages.Write(append(line, '\n'))
	return err
}

// reply answers to a line that is no message.
func reply(w io.Writer, id any, code int, message string) error {
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": message}})
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

var errTooLong = fmt.Errorf("the message is longer than %d bytes", maxLine)

// readLine reads a line. Of one that is too long nothing is kept.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := in.ReadSlice('\n')
		if long = long || len(line)+len(part) > maxLine; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case long && (err == nil || errors.Is(err, io.EOF)):
			return nil, errTooLong
		default:
			return line, err
		}
	}
}
