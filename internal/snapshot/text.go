package snapshot

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"ravi/internal/access"
	"ravi/internal/term"
)

// mask takes the known secrets out of a text. A secret of many lines counts also where the lines end otherwise.
func (b *builder) mask(s string) string {
	s = b.o.Redact.String(s)
	if strings.Contains(s, "\r\n") {
		lines := unixLines(s)
		if masked := b.o.Redact.String(lines); masked != lines {
			return masked
		}
	}
	return s
}

func unixLines(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// clean is a masked text as it is shown: nothing in it is obeyed by a terminal.
func clean(masked string) string { return term.SafeText(unixLines(masked)) }

// name is a short text of somebody else's inside a line of Ravi's: masked, on one line, bounded, and in quotation
// marks that it cannot close.
func (b *builder) name(s string) string {
	return `"` + strings.ReplaceAll(clip(term.Safe(b.mask(s)), 100), `"`, `'`) + `"`
}

// word is one word of the record, which should be one of a few.
func (b *builder) word(s string) string { return term.Safe(clip(b.mask(s), 40)) }

// by says who wrote something that only the operator writes without a key. The operator stands there without quotation
// marks, and nobody else.
func (b *builder) by(author, keyID string) string {
	switch {
	case author == access.Operator && keyID == "":
	case author != "":
		return b.name(author)
	case keyID != "":
		return "the holder of key " + b.name(keyID)
	}
	return "the operator"
}

// clip cuts a text to so many bytes, and shows it.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const mark = "…"
	return s[:start(s, max(most-len(mark), 0))] + mark
}

// start is the last place at or before at where a character begins.
func start(s string, at int) int {
	for at > 0 && at < len(s) && !utf8.RuneStart(s[at]) {
		at--
	}
	return at
}

// middle cuts out the middle of a text that is longer than most bytes.
func middle(s string, most int) (head, tail string, left int) {
	if len(s) <= most {
		return s, "", 0
	}
	head = s[:start(s, most/2)]
	from := len(s) - (most - most/2)
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	return head, s[from:], from - len(head)
}

// quote writes a text line by line behind "> ", so that no line of it can be taken for one of Ravi's.
func quote(w *strings.Builder, text string) {
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		w.WriteByte('>')
		if line != "" {
			w.WriteByte(' ')
			w.WriteString(line)
		}
		w.WriteByte('\n')
	}
}

// quoteCut quotes a masked text, without its middle if it is longer than most, and says how much is left out.
func quoteCut(w *strings.Builder, masked string, most int) (left int) {
	head, tail, left := middle(masked, most)
	quote(w, clean(head))
	if left > 0 {
		fmt.Fprintf(w, "\n[%d bytes are left out here]\n\n", left)
		quote(w, clean(tail))
	}
	return left
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
