package term

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSafe(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü 漢 🙂":      "plain ü 漢 🙂",
		"a\x1b[31mb":       `a\x1b[31mb`,
		"a\nb\tc\r":        `a\nb\tc\r`,
		"\x7f\x00":         `\x7f\x00`,
		"\u009b31m":        `\u009b31m`,
		"\xff\xfe ok \xc3": `\xff\xfe ok \xc3`,
		"\ufffd":           "\ufffd",
		"a\u202eb\u2066":   `a\u202eb\u2066`,
		"\u2028":           `\u2028`,
		"\U000e0041":       `\U000e0041`,
		"":                 "",
	} {
		if got := Safe(in); got != want {
			t.Errorf("Safe(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := SafeText("a\n\tb\x1b]0;x\a\r"), "a\n\tb\\x1b]0;x\\a\\r"; got != want {
		t.Errorf("SafeText gave %q, want %q", got, want)
	}
}

func TestSafeJSON(t *testing.T) {
	in := map[string]any{"a\u009b": "x\u202e \U000e0041 \x1b", "b": []any{"\n"}}
	doc, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	safe := SafeJSON(doc)
	if strings.ContainsAny(string(safe), "\u009b\u202e\U000e0041") {
		t.Errorf("still raw: %q", safe)
	}
	var out map[string]any
	if err := json.Unmarshal(safe, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("the document changed: %q, %v", safe, err)
	}
}

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"漢字漢字", 5, "漢字…"}, {"漢字", 2, "…"}, {"abc", 0, ""}} {
		got := Truncate(c.in, c.width)
		if strings.TrimRight(got, " ") != c.want || Width(got) > c.width {
			t.Errorf("Truncate(%q, %d) = %q, want %q", c.in, c.width, got, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	columns := []Column{{Title: "ID"}, {Title: "N", Right: true}, {Title: "WHERE", Flex: true}}
	rows := [][]string{{"one", "5", "/a/very/long/path/that/does/not/fit"}, {"漢字", "1234", "x\ny"}, {"short"}}
	if err := Table(&b, 30, columns, rows); err != nil {
		t.Fatal(err)
	}
	want := "ID        N  WHERE\n" +
		"one       5  /a/very/long/pat…\n" +
		"漢字   1234  x\\ny\n" +
		"short\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func FuzzSafe(f *testing.F) {
	f.Add("a\x1b[0m\xff\u009b\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		for name, got := range map[string]string{"Safe": Safe(s), "SafeText": strings.NewReplacer("\n", "", "\t", "").Replace(SafeText(s))} {
			if !utf8.ValidString(got) {
				t.Errorf("%s(%q) is not UTF-8", name, s)
			}
			if strings.ContainsFunc(got, obeyed) {
				t.Errorf("%s(%q) = %q still holds a control", name, s, got)
			}
		}
		if again := Safe(Safe(s)); again != Safe(s) {
			t.Errorf("Safe is not stable: %q, %q", Safe(s), again)
		}
		for _, width := range []int{0, 1, 2, 10} {
			if cut := Truncate(Safe(s), width); Width(cut) > width {
				t.Errorf("Truncate(%q, %d) = %q is too wide", s, width, cut)
			}
		}
		if doc, err := json.Marshal(s); err == nil {
			var a, b string
			if json.Unmarshal(doc, &a) != nil || json.Unmarshal(SafeJSON(doc), &b) != nil || a != b {
				t.Errorf("SafeJSON changed %q", doc)
			}
		}
	})
}
