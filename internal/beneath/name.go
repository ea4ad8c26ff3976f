package beneath

import (
	"path"
	"strings"
	"unicode"
)

// maxName is what the kernel takes, without the byte that ends it.
const maxName = 4095

// parse returns a name relative to the root, "." for the root itself. It looks at the text alone.
func (r *Root) parse(name string) (string, error) {
	switch {
	case name == "":
		return "", faultf(ErrName, "a name is missing; the workspace is %s", r.path)
	case strings.IndexByte(name, 0) >= 0:
		return "", faultf(ErrName, "%s cannot be a name: it has a zero byte", short(name))
	case len(name) > maxName:
		return "", faultf(ErrName, "%s cannot be a name: it has %d bytes, more than %d", short(name), len(name), maxName)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", faultf(ErrOutside, "%s may lead out of the workspace %s: no .. is followed. Give the path from %s on", name, r.path, r.path)
		}
	}
	clean := path.Clean(name)
	if !path.IsAbs(clean) {
		return clean, nil
	}
	for _, root := range []string{r.path, r.real} {
		if clean == root {
			return ".", nil
		}
		if rel, ok := strings.CutPrefix(clean, strings.TrimSuffix(root, "/")+"/"); ok {
			return rel, nil
		}
	}
	return "", faultf(ErrOutside, "%s is outside of the workspace %s", name, r.path)
}

// parseFile parses the name of something that is not a folder by its name already.
func (r *Root) parseFile(name string) (string, error) {
	rel, err := r.parse(name)
	if err == nil && (rel == "." || strings.HasSuffix(name, "/") || strings.HasSuffix(name, "/.")) {
		return "", faultf(ErrNotFile, "%s names a folder of the workspace %s, not a file", name, r.path)
	}
	return rel, err
}

// mayChange refuses names that belong to git.
func (r *Root) mayChange(rel string) error {
	for part := range strings.SplitSeq(rel, "/") {
		if isGit(part) {
			return faultf(ErrReadOnly, "%s in the workspace %s is read-only: %s belongs to git. Use git's own commands", rel, r.path, part)
		}
	}
	return nil
}

// isGit tells whether a part of a name is .git, or is so for some file system: those that fold case or drop characters
// that are not seen (ext4, HFS+), and those that come from Windows, which drop dots and spaces at the end, have streams
// after a colon, short names, and another separator. It rather takes a name too many for .git than one too few.
func isGit(part string) bool {
	part = strings.Map(func(c rune) rune {
		if unicode.In(c, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
			return -1
		}
		return c
	}, part)
	for p := range strings.SplitSeq(part, `\`) {
		p, _, _ = strings.Cut(p, ":")
		p = strings.TrimRight(p, ". ")
		if strings.EqualFold(p, ".git") {
			return true
		}
		if len(p) > 4 && strings.EqualFold(p[:4], "git~") && strings.Trim(p[4:], "0123456789") == "" {
			return true
		}
	}
	return false
}
