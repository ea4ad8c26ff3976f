package remote

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode"

	"ravi/internal/backend"
	"ravi/internal/keeper"
	"ravi/internal/rootfs"
)

// Version is that of what is said between home and runner. A runner of another one makes no sandbox.
const Version = 1

// Bounds of what is said, in bytes of a line, and how long the first line of a stream may take.
const (
	MaxHead  = 1 << 20 // of home's: a network policy is in it
	MaxReply = 64 << 10
	headTime = 30 * time.Second
)

// Kind says what a stream is for.
type Kind string

// The kinds of streams that home opens. The runner opens streams for visits, which begin with a network.Visit.
const (
	// KindCreate is the first stream of a session. The runner answers by Replies with an Event, until the end.
	KindCreate Kind = "create"
	// KindContent carries a folder, as pack writes it. It is answered by one Reply, as the following are.
	KindContent Kind = "content"
	KindPause   Kind = "pause"
	KindResume  Kind = "resume"
	KindStats   Kind = "stats"
	KindPolicy  Kind = "policy" // replaces the network's policy
	KindServe   Kind = "serve"  // has visits come from now on
	KindEnd     Kind = "end"
	// KindDial and KindEvents carry the bytes of a connection to the guest, or to the network's gateway. There is no answer.
	KindDial   Kind = "dial"
	KindEvents Kind = "events"
)

// Head is the first line of a stream that home opens.
type Head struct {
	Kind   Kind            `json:"kind"`
	Spec   *Spec           `json:"spec,omitempty"`   // of create
	Digest string          `json:"digest,omitempty"` // of content
	Policy json.RawMessage `json:"policy,omitempty"` // of policy: a network.Config
}

// Spec is what a runner is told of a sandbox (backend.Spec). There is no path of either machine in it.
type Spec struct {
	Version   int     `json:"version"`
	ID        string  `json:"id"` // at home; the runner has its own
	Image     string  `json:"image"`
	CPUs      float64 `json:"cpus"`
	Memory    int64   `json:"memory"` // bytes
	Disk      int64   `json:"disk"`   // bytes
	Processes int64   `json:"processes"`
	// Network is a network.Config; nil: it has none.
	Network       json.RawMessage `json:"network,omitempty"`
	WorkspaceOnly bool            `json:"workspace_only,omitempty"`
	Contents      []Content       `json:"contents,omitempty"`
}

// Content is a folder that the sandbox sees, read-only.
type Content struct {
	Guest string `json:"guest"` // where
	// Digest is the SHA-256 of what pack writes of it, in hex, and Size the length of that.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Overlay lets the guest write there, for the sandbox's life.
	Overlay bool `json:"overlay,omitempty"`
	// Keep asks the runner to keep it for later sandboxes.
	Keep bool `json:"keep,omitempty"`
}

// Event says what a Reply on the stream create tells.
type Event string

// The events, in their order: created comes after the contents, and ended is the last.
const (
	EventNeed    Event = "need"
	EventCreated Event = "created"
	EventReady   Event = "ready"
	EventEnded   Event = "ended"
)

// Code says which error a Reply is.
type Code string

// The codes of errors that home tells apart.
const (
	CodeFull        Code = "full"
	CodeDraining    Code = "draining"
	CodeRefused     Code = "refused"
	CodeUnavailable Code = "unavailable"
	CodeUnsupported Code = "unsupported"
	CodeImage       Code = "image"
	CodeGone        Code = "gone"
)

var codes = []struct {
	code Code
	err  error
}{
	{CodeFull, ErrFull}, {CodeDraining, ErrDraining}, {CodeRefused, ErrRefused}, {CodeUnavailable, backend.ErrUnavailable},
	{CodeUnsupported, backend.ErrUnsupported}, {CodeImage, rootfs.ErrUnknownImage}, {CodeGone, keeper.ErrGone},
}

// Reply is a line of the runner's.
type Reply struct {
	Event Event `json:"event,omitempty"`
	// Need are digests of contents that it lacks.
	Need []string `json:"need,omitempty"`
	// Notes are what the user should be told once.
	Notes  []string      `json:"notes,omitempty"`
	Stats  *keeper.Stats `json:"stats,omitempty"`
	Code   Code          `json:"code,omitempty"`
	Error  string        `json:"error,omitempty"`
	Hint   string        `json:"hint,omitempty"`
	Reason string        `json:"reason,omitempty"` // of ended, as keeper.Reply has it
	Detail string        `json:"detail,omitempty"`
}

// Failed is the Reply for an error.
func Failed(err error) Reply {
	r := Reply{Error: cut(err.Error())}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			r.Code = c.code
			break
		}
	}
	var f *keeper.Failure
	if errors.As(err, &f) {
		r.Hint = cut(f.Hint)
	}
	return r
}

// failure is the error of a Reply. The text was written by the runner, which knows which error it is.
func (r Reply) failure() error {
	err := error(&keeper.Failure{Reply: keeper.Reply{Error: r.Error, Hint: r.Hint}})
	for _, c := range codes {
		if r.Code == c.code {
			return &failure{err, c.err}
		}
	}
	return err
}

// failure is an error of the runner's that home tells apart.
type failure struct{ err, kind error }

func (f *failure) Error() string   { return f.err.Error() }
func (f *failure) Unwrap() []error { return []error{f.err, f.kind} }

// mostText bounds each text in a Reply, and mostNotes how many notes there are.
const (
	mostText  = 4 << 10
	mostNotes = 16
)

// clean makes of what a runner says what can be shown.
func (r *Reply) clean() {
	for _, text := range []*string{&r.Error, &r.Hint, &r.Reason, &r.Detail} {
		*text = printable(*text)
	}
	r.Notes = r.Notes[:min(len(r.Notes), mostNotes)]
	for i := range r.Notes {
		r.Notes[i] = printable(r.Notes[i])
	}
}

// printable is a text without what would move a terminal's cursor or change the order of what is read.
func printable(s string) string {
	return cut(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			return r
		default:
			return '?'
		}
	}, strings.ToValidUTF8(s, "?")))
}

func cut(s string) string {
	if len(s) <= mostText {
		return s
	}
	return strings.ToValidUTF8(s[:mostText], "") + "…"
}

var (
	errProtocol = errors.New("the runner does not answer as a runner does")
	errLong     = errors.New("a line that does not end")
)

// ReadLine reads a line of at most max bytes as JSON.
func ReadLine(r *bufio.Reader, max int, into any) error {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > max {
			return errLong
		}
		if line = append(line, part...); err == nil {
			return json.Unmarshal(line, into)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if err == io.EOF && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

// WriteLine writes a line, within a bounded time.
func WriteLine(c net.Conn, what any) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(headTime))
	if _, err := c.Write(append(b, '\n')); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// readReply reads the one Reply of a stream.
func readReply(c net.Conn) (r Reply, err error) {
	if err := ReadLine(bufio.NewReaderSize(c, 1<<10), MaxReply, &r); err != nil {
		return r, fmt.Errorf("the runner's answer: %w", err)
	}
	r.clean()
	return r, nil
}
