package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// newLines passes on the lines of in that are messages. To the others it answers itself, since the SDK would end the
// conversation at the first of them.
func newLines(in io.Reader, out io.Writer) (io.ReadCloser, io.WriteCloser) {
	r, w := io.Pipe()
	shared := &output{to: out}
	// It ends with in, or with the first line after the reader was closed.
	go func() { w.CloseWithError(pass(in, w, shared)) }()
	return r, shared
}

// output is written to by several, a message at a time.
type output struct {
	mu sync.Mutex
	to io.Writer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to.Write(p)
}

// Close leaves the stream open, which is not ours.
func (o *output) Close() error { return nil }

func pass(in io.Reader, messages, answers io.Writer) error {
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
func passLine(line []byte, messages, answers io.Writer) error {
	switch {
	case !utf8.Valid(line) || !json.Valid(line):
		return reply(answers, nil, jsonrpc.CodeParseError, "this is not JSON")
	case line[0] == '[':
		return reply(answers, nil, jsonrpc.CodeInvalidRequest, "send messages one by one: this protocol has no batches")
	}
	if _, err := jsonrpc.DecodeMessage(line); err != nil {
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
	_, err := messages.Write(append(line, '\n'))
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
