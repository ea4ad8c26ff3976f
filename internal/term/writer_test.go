package term

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func through(t testing.TB, parts ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, p := range parts {
		if n, err := w.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatalf("Write gave %d, %v for %d bytes", n, err, len(p))
		}
	}
	return b.String()
}

var writerCases = map[string]string{
	"plain ü 漢 🙂\r\n\tx\b":                        "plain ü 漢 🙂\r\n\tx\b",
	"\x1b[31mred\x1b[0m\x1b[m":                    "\x1b[31mred\x1b[0m\x1b[m",
	"\x1b[1;38;5;200mx\x1b[4:3my":                 "\x1b[1;38;5;200mx\x1b[4:3my",
	"a\x1b]0;title\ab":                            "ab",
	"a\x1b]0;title\x1b\\b":                        "ab",
	"a\x1b]52;c;ZXZpbA==\ab":                      "ab", // the clipboard
	"a\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\":  "alink",
	"a\x1b[2Jb\x1b[Hc\x1b[1Ad\x1b[?1049he":        "abcde",
	"a\x1b[6nb\x1b[cc\x1b[>cd":                    "abcd", // questions that the terminal would answer
	"a\x1b[>4;2mb":                                "ab",   // m, and yet no colour
	"a\x1b[?4mb":                                  "ab",
	"a\x1bP1$r0m\x1b\\b":                          "ab",
	"a\x1b_app\x1b\\b\x1b^pm\x1b\\c\x1bXs\x1b\\d": "abcd",
	"a\x1bcb\x1b7c\x1b8d\x1b(0e\x1b#8f":           "abcdef",
	"a\a\x00\x0b\x0c\x0e\x0f\x7fb":                "ab",
	"a\u009b31mb\u009d0;x\u009cc":                 "a31mb0;xc",
	"a\x9b31mb":                                   "a\uFFFD31mb",
	"a\u202eb\u2066c":                             "abc",
	"\xff\xfe\xc3(":                               "\uFFFD\uFFFD\uFFFD(",
	"a\x1b[31\x1b[32mb":                           "a\x1b[32mb",
	"a\x1b[31\nb":                                 "a\nb",
	"\x1b\x1b[31mx":                               "\x1b[31mx",
	"":                                            "",
}

func TestWriter(t *testing.T) {
	for in, want := range writerCases {
		if got := through(t, in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
		// Wherever it is cut, the same comes out.
		for i := range len(in) {
			if got := through(t, in[:i], in[i:]); got != want {
				t.Errorf("%q cut at %d became %q, want %q", in, i, got, want)
			}
		}
		parts := make([]string, len(in))
		for i := range len(in) {
			parts[i] = in[i : i+1]
		}
		if got := through(t, parts...); got != want {
			t.Errorf("%q byte by byte became %q, want %q", in, got, want)
		}
	}
}

// A sequence without end must not swallow all that follows, nor grow for ever.
func TestWriterEndlessSequence(t *testing.T) {
	for _, begin := range []string{"\x1b]0;", "\x1b[", "\x1bP", "\x1b("} {
		var b bytes.Buffer
		w := NewWriter(&b)
		for range 1000 {
			if _, err := w.Write([]byte(begin + strings.Repeat("1", 100))); err != nil {
				t.Fatal(err)
			}
			if len(w.held) > 2*maxSequence {
				t.Fatalf("%q: %d bytes are held", begin, len(w.held))
			}
		}
		if _, err := w.Write([]byte("\x1b\\" + "the end\n")); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(b.String(), "the end\n") {
			t.Errorf("%q: what follows is lost: %q", begin, b.String()[max(0, b.Len()-50):])
		}
	}
}

var colour = regexp.MustCompile(`\x1b\[[0-9;:]*m`)

// what FuzzWriter calls plain is never changed.
func isPlain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return obeyed(r) && r != '\n' && r != '\t' && r != '\r' && r != '\b'
	})
}

func FuzzWriter(f *testing.F) {
	for in := range writerCases {
		f.Add(in, 3)
	}
	f.Fuzz(func(t *testing.T, in string, cut int) {
		if len(in) >= maxSequence {
			return // what is held for the end of a sequence is bounded
		}
		whole := through(t, in)
		if rest := colour.ReplaceAllString(whole, ""); !isPlain(rest) {
			t.Errorf("%q became %q, which a terminal would obey", in, whole)
		}
		if isPlain(in) && whole != in {
			t.Errorf("plain text %q became %q", in, whole)
		}
		if cut < 0 {
			cut = -(cut + 1)
		}
		if len(in) > 0 {
			cut %= len(in)
			if parts := through(t, in[:cut], in[cut:]); parts != whole {
				t.Errorf("%q cut at %d became %q, whole %q", in, cut, parts, whole)
			}
		}
	})
}
