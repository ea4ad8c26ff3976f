package store

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How large the texts of records may be, in bytes.
const (
	MaxText    = 1 << 20   // a message, a comment, instructions, what a task is about
	MaxContent = 256 << 10 // a memory file
	MaxLine    = 1 << 10   // a title, an author, a label, a reason
	MaxName    = 100
)

// checkText refuses what is not text: it could not be shown, or would end early elsewhere.
func checkText(what, text string, most int) error {
	if len(text) > most {
		return fmt.Errorf("%s is %w: %d bytes, more than %d", what, ErrTooLarge, len(text), most)
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fmt.Errorf("%s is %w: it is not UTF-8, or has zero bytes in it", what, ErrInvalid)
	}
	return nil
}

// line is a short text and what it is.
type line struct{ what, text string }

func checkLines(lines ...line) error {
	for _, l := range lines {
		if err := checkText(l.what, l.text, MaxLine); err != nil {
			return err
		}
	}
	return nil
}

// checkName refuses names that could be taken for an option, a path or another's id.
func checkName(kind, id, name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("the name %.120q is %w: it has 1 to %d characters", name, ErrInvalid, MaxName)
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-:@+", r)) {
			return fmt.Errorf("the name %q is %w: it has letters, digits and ._-:@+ only, and begins with a letter or digit", name, ErrInvalid)
		}
	}
	if rest, looks := strings.CutPrefix(name, kind); looks && name != id && len(rest) == 26 && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz") == "" {
		return fmt.Errorf("the name %q is %w: it looks like an id", name, ErrInvalid)
	}
	return nil
}

// checkOneOf refuses a word that is none of those.
func checkOneOf[T ~string](what string, word T, words ...T) error {
	if slices.Contains(words, word) {
		return nil
	}
	return fmt.Errorf("%s %q is %w: it is one of %v", what, string(word), ErrInvalid, words)
}

// CheckMemoryPath refuses paths of memory files that are no clean relative ones, that name what is hidden, or that
// cannot be shown.
func CheckMemoryPath(path string) error {
	const longest, deepest = 200, 8
	refused := func(why string) error { return fmt.Errorf("the path %.220q is %w: %s", path, ErrInvalid, why) }
	switch {
	case path == "":
		return refused("it is empty")
	case len(path) > longest:
		return refused(fmt.Sprintf("it has more than %d bytes", longest))
	case !utf8.ValidString(path):
		return refused("it is not UTF-8")
	case strings.ContainsRune(path, '\\'):
		return refused("its parts are separated by slashes")
	}
	for _, r := range path {
		if !unicode.IsPrint(r) {
			return refused("it has characters that cannot be seen")
		}
	}
	parts := strings.Split(path, "/")
	if len(parts) > deepest {
		return refused(fmt.Sprintf("it has more than %d parts", deepest))
	}
	for _, part := range parts {
		switch {
		case part == "":
			return refused("it begins or ends with a slash, or has two in a row")
		case part[0] == '.':
			return refused("a part begins with a dot")
		}
	}
	return nil
}
