package sandbox

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Why a command ended as it did, besides by itself.
const (
	// ReasonTimeout: its time ran out; the exit code is -1.
	ReasonTimeout = "timeout"
	// ReasonOOM: it was ended for want of memory.
	ReasonOOM = "oom"
	// ReasonSignal: it died by a signal; the exit code is 128 plus its number.
	ReasonSignal = "signal"
	// ReasonCanceled: the caller's context ended; the exit code is -1.
	ReasonCanceled = "canceled"
)

// Result is the outcome of a command.
type Result struct {
	// Stdout and Stderr are what it wrote, byte for byte, or if that was more
	// than the bound, the beginning and the end with a line in between that
	// says how much is missing.
	Stdout, Stderr string
	// ExitCode is the command's own, 128 plus the signal that ended it, or -1
	// when Ravi ended it.
	ExitCode int
	// Reason says who decided, when it was not the command: see the Reason
	// constants. Empty: it ended by itself.
	Reason string
	// Signal is the signal that ended it, or 0.
	Signal int
	// StdoutBytes and StderrBytes are how much it wrote.
	StdoutBytes, StderrBytes int64
	// Truncated says that Stdout or Stderr is not all that it wrote.
	Truncated bool
	Duration  time.Duration
}

// DefaultText is the bound of Text where none is given, in characters.
const DefaultText = 10_000

// Text is the result as a text for a model or a person: standard output,
// standard error below a line STDERR: if it is not blank, and after an empty
// line the exit code. A line end at the end of either is dropped. Bytes that
// are not UTF-8 are shown as \xNN.
//
// A text of more than max characters is cut in the middle, where it says how
// many are missing: what remains of it is exactly max. 0 means DefaultText, a
// negative max means all.
func (r Result) Text(max int) string {
	var parts []string
	if r.Stdout != "" {
		parts = append(parts, strings.TrimSuffix(r.Stdout, "\n"))
	}
	if strings.TrimFunc(r.Stderr, unicode.IsSpace) != "" {
		parts = append(parts, "STDERR:\n"+strings.TrimSuffix(r.Stderr, "\n"))
	}
	parts = append(parts, fmt.Sprintf("\nExit code: %d", r.ExitCode))
	text := visible(strings.Join(parts, "\n"))
	if max == 0 {
		max = DefaultText
	}
	total := utf8.RuneCountInString(text)
	if max < 0 || total <= max {
		return text
	}
	head := max / 2
	return firstRunes(text, head) + fmt.Sprintf("\n\n... (%d chars truncated) ...\n\n", total-max) + lastRunes(text, max-head)
}

// visible replaces bytes that are not UTF-8 by their value.
func visible(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[0])
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func lastRunes(s string, n int) string {
	at := len(s)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	return s[at:]
}

// capture keeps the beginning and the end of what is written to it.
type capture struct {
	most  int
	head  []byte
	tail  []byte // a ring once it is full
	at    int
	total int64
}

func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.total += int64(n)
	half := c.most / 2
	if room := half - len(c.head); room > 0 {
		k := min(room, len(p))
		c.head = append(c.head, p[:k]...)
		p = p[k:]
	}
	room := c.most - half
	if len(p) >= room {
		c.tail, c.at = append(c.tail[:0], p[len(p)-room:]...), 0
		return n, nil
	}
	for len(p) > 0 && len(c.tail) < room {
		k := min(room-len(c.tail), len(p))
		c.tail = append(c.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(c.tail[c.at:], p)
		p = p[k:]
		c.at = (c.at + k) % room
	}
	return n, nil
}

// result returns what was kept, and whether that is all.
func (c *capture) result() (s string, all bool) {
	var b strings.Builder
	tail := string(c.tail[c.at:]) + string(c.tail[:c.at])
	if c.total <= int64(c.most) {
		return string(c.head) + tail, true
	}
	// A character that the cut went through is left out whole.
	head := string(c.head)
	for i := 1; i <= min(utf8.UTFMax-1, len(head)); i++ {
		last := head[len(head)-i]
		if utf8.RuneStart(last) {
			if !utf8.FullRuneInString(head[len(head)-i:]) {
				head = head[:len(head)-i]
			}
			break
		}
	}
	for i := 0; i < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	b.WriteString(head)
	fmt.Fprintf(&b, "\n... (%d bytes truncated) ...\n", c.total-int64(len(head)+len(tail)))
	b.WriteString(tail)
	return b.String(), false
}
