// Package term makes text fit for a terminal. Names, paths, messages and logs come from repositories and sandboxes,
// which are hostile: a control sequence in them could repaint what Ravi says, rename the window or type for the user.
//
// It works on strings and writers only, and touches no terminal.
package term

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// Safe is s on one line, without anything that a terminal would obey: controls (line feed and tab included), the
// eight-bit controls, marks that change the direction of text, and bytes that are not UTF-8 all become visible.
func Safe(s string) string { return escape(s, "") }

// SafeText is Safe for text of many lines: line feeds and tabs stay.
func SafeText(s string) string { return escape(s, "\n\t") }

func escape(s, keep string) string {
	clean := true
	for i, r := range s {
		if obeyed(r) && !strings.ContainsRune(keep, r) || r == utf8.RuneError && badByte(s[i:]) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && badByte(s[i:]):
			b.WriteString(`\x`)
			b.WriteString(hex(s[i]))
		case obeyed(r) && !strings.ContainsRune(keep, r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func badByte(s string) bool {
	_, size := utf8.DecodeRuneInString(s)
	return size == 1
}

func hex(b byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[b>>4], digits[b&15]})
}

// obeyed says whether a terminal does something at this character rather than show it.
func obeyed(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) ||
		r == '\u2028' || r == '\u2029' || // line and paragraph separators
		r >= 0xE0000 && r <= 0xE007F // invisible tags
}

// SafeJSON does for JSON text what Safe does for other: what a terminal would obey is written as an escape of JSON,
// so the document means the same.
func SafeJSON(doc []byte) []byte {
	if !strings.ContainsFunc(string(doc), obeyedInJSON) {
		return doc
	}
	out := make([]byte, 0, len(doc)+16)
	for _, r := range string(doc) {
		if !obeyedInJSON(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		if r > 0xFFFF {
			high, low := 0xD800+(r-0x10000)>>10, 0xDC00+(r-0x10000)&0x3FF
			out = append(out, `\u`+strconv.FormatInt(int64(high), 16)+`\u`+strconv.FormatInt(int64(low), 16)...)
			continue
		}
		code := strconv.FormatInt(int64(r), 16)
		out = append(out, `\u`+"0000"[len(code):]+code...)
	}
	return out
}

// obeyedInJSON leaves the white space between values alone; inside strings JSON has none of it.
func obeyedInJSON(r rune) bool { return obeyed(r) && r != '\n' && r != '\r' && r != '\t' }

// East Asian ambiguous characters are narrow, whatever the locale says: a table must not depend on it.
var cells = &runewidth.Condition{EastAsianWidth: false, StrictEmojiNeutral: true}

// Width is the number of cells that a safe string takes.
func Width(s string) int { return cells.StringWidth(s) }

// Truncate cuts a safe string to a number of cells, and shows the cut.
func Truncate(s string, width int) string {
	if Width(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return cells.Truncate(s, width, "…")
}
