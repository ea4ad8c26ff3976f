package policy

import (
	"errors"
	"strings"
)

// plainPath says that a path can mean only one thing to whoever serves it: it is absolute, has no empty or dot
// segments, and hides no separator, dot or zero byte behind escapes, however often they are to be undone. A rule with
// paths is matched on the bytes as sent, so that anything else must not match: /open/../secret begins with /open.
func plainPath(path string) bool {
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "//") {
		return false
	}
	for i := range len(path) {
		switch c := path[i]; {
		case c <= ' ' || c >= 0x7f || c == '\\' || c == '#':
			return false
		case c == '%' && !plainEscape(path[i:]):
			return false
		}
	}
	for segment := range strings.SplitSeq(path, "/") {
		// Some servers cut parameters off a segment before they look at it: /a/..;x/b is /b to them.
		segment, _, _ = strings.Cut(segment, ";")
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// plainEscape looks at the escape at the start of s: false when it is broken or hides a byte that would change the
// path's shape, directly (%2f), after undoing it twice (%252f), or as an overlong form that no UTF-8 text has (%c0).
func plainEscape(s string) bool {
	s = s[1:]
	for strings.HasPrefix(s, "25") {
		s = s[2:]
		// A percent sign that stands for itself ends here; more digits make it an escape in an escape.
		if len(s) < 2 || !hexDigit(s[0]) || !hexDigit(s[1]) {
			return true
		}
	}
	if len(s) < 2 || !hexDigit(s[0]) || !hexDigit(s[1]) {
		return false
	}
	switch strings.ToLower(s[:2]) {
	case "2e", "2f", "5c", "00", "c0", "c1":
		return false
	}
	return true
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// checkPath refuses a path in a rule that could never match.
func checkPath(path string) error {
	exact := strings.TrimSuffix(path, "*")
	switch {
	case !strings.HasPrefix(path, "/"):
		return errors.New("a path begins with /")
	case strings.Contains(exact, "*"):
		return errors.New("in a path, * stands at the end only")
	case strings.Contains(exact, "?"):
		return errors.New("a path is without the query: leave out ? and what follows")
	case !plainPath(exact):
		return errors.New("a path is in its plain form: no //, /./, /../, \\, spaces, or escaped dots and slashes")
	}
	return nil
}

// matchPath says that a path as sent, which may carry a query, is the rule's: equal, or beginning with it when the
// rule's ends in *.
func matchPath(rule, path string) bool {
	if prefix, ok := strings.CutSuffix(rule, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == rule
}
