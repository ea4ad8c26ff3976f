package gitbox

import (
	"strings"
	"unicode"
)

// unsafePath says why a path must not be in a patch or a work tree; an empty string means that it is fine.
func unsafePath(name string) string {
	if strings.HasPrefix(name, "/") {
		return "is absolute"
	}
	parts, err := splitName(name)
	if err != nil {
		return "is not a plain relative path"
	}
	for _, p := range parts {
		if dotGitLike(p) {
			return "leads into a Git directory"
		}
	}
	return ""
}

// dotGitLike tells whether some file system takes the name for .git: by case, by a short name, by trailing dots and spaces
// or an alternate stream (NTFS), or by code points that are ignored (HFS+).
func dotGitLike(name string) bool {
	name = strings.ToLower(strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return unicode.ToLower(r)
	}, name))
	name, _, _ = strings.Cut(name, ":")
	name, _, _ = strings.Cut(name, "\\")
	name = strings.TrimRight(name, ". ")
	return name == ".git" || name == "git~1"
}

// parents calls f with each proper directory prefix of name, outermost first, until f returns true.
func parents(name string, f func(dir string) bool) bool {
	for i := range len(name) {
		if name[i] == '/' && f(name[:i]) {
			return true
		}
	}
	return false
}
