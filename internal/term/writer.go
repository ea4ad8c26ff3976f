package term

import (
	"io"
	"unicode/utf8"
)

// Writer passes a program's output on to a terminal, without what could do more
// than print: of control characters it keeps line feed, carriage return, tab and
// backspace, of escape sequences those that set colours and styles (CSI … m).
// Everything else that a terminal would obey is left out: titles, clipboard,
// links, answers to questions, other screens. Bytes that are not UTF-8 are
// replaced. It keeps what may be cut by the end of a write for the next one.
type Writer struct {
	w    io.Writer
	held []byte // the beginning of a character or a sequence
}

// NewWriter makes a Writer on top of w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// maxSequence bounds what is held for the end of an escape sequence.
const maxSequence = 4096

func (t *Writer) Write(p []byte) (int, error) {
	b := append(t.held, p...)
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		n, keep, whole := next(b)
		if !whole && len(b) < maxSequence {
			break
		}
		if keep {
			out = append(out, b[:n]...)
		} else if n == 1 && b[0] >= utf8.RuneSelf {
			out = append(out, "\uFFFD"...)
		}
		b = b[n:]
	}
	t.held = append([]byte(nil), b...)
	if _, err := t.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// next looks at the first character or sequence of b: how long it is, whether a
// terminal may see it, and whether it is all there.
func next(b []byte) (n int, keep, whole bool) {
	switch c := b[0]; {
	case c == 0x1b:
		return sequence(b)
	case c == '\n', c == '\r', c == '\t', c == '\b':
		return 1, true, true
	case c < 0x20, c == 0x7f:
		return 1, false, true
	case c < utf8.RuneSelf:
		return 1, true, true
	}
	if !utf8.FullRune(b) {
		return 1, false, false
	}
	r, size := utf8.DecodeRune(b)
	if r == utf8.RuneError && size == 1 {
		return 1, false, true
	}
	return size, !obeyed(r), true
}

// sequence looks at an escape sequence (ECMA-48, section 5).
func sequence(b []byte) (n int, keep, whole bool) {
	if len(b) < 2 {
		return 1, false, false
	}
	switch c := b[1]; {
	case c == '[':
		for i := 2; i < len(b); i++ {
			switch d := b[i]; {
			case d >= 0x40 && d <= 0x7e:
				return i + 1, d == 'm' && plain(b[2:i]), true
			case d < 0x20 || d > 0x3f:
				return i, false, true // broken: what follows is looked at anew
			}
		}
		return len(b), false, false
	case c == ']', c == 'P', c == 'X', c == '^', c == '_':
		// A string, up to BEL or ESC \.
		for i := 2; i < len(b); i++ {
			if b[i] == 0x07 {
				return i + 1, false, true
			}
			if b[i] == 0x1b {
				if i+1 == len(b) {
					return len(b), false, false
				}
				if b[i+1] == '\\' {
					return i + 2, false, true
				}
				return i, false, true
			}
		}
		return len(b), false, false
	case c >= 0x20 && c <= 0x2f:
		for i := 2; i < len(b); i++ {
			if b[i] >= 0x30 && b[i] <= 0x7e {
				return i + 1, false, true
			}
			if b[i] < 0x20 || b[i] > 0x2f {
				return i, false, true
			}
		}
		return len(b), false, false
	case c >= 0x30 && c <= 0x7e:
		return 2, false, true
	}
	return 1, false, true
}

// plain says whether parameters are only numbers.
func plain(b []byte) bool {
	for _, c := range b {
		if c != ';' && c != ':' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
