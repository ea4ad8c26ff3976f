package gitbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	sha1Format   = "sha1"
	sha256Format = "sha256"
)

// ref is a name and the object that it points to.
type ref struct{ name, oid string }

func validOID(format, s string) bool {
	want := 40
	if format == sha256Format {
		want = 64
	}
	if len(s) != want {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// validRef follows the rules of `git check-ref-format`, for full names.
func validRef(name string) bool {
	if !strings.HasPrefix(name, "refs/") || len(name) > 1024 || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c == 0x7f || strings.IndexByte("~^:?*[\\", c) >= 0 {
			return false
		}
	}
	for p := range strings.SplitSeq(name, "/") {
		if p == "" || p[0] == '.' || strings.HasSuffix(p, ".lock") {
			return false
		}
	}
	return true
}

// carried tells whether a ref goes into a sandbox: branches, tags and remote-tracking branches, since log, describe and
// three-dot diffs ask for them. Stashes, notes, replacements and the refs of other tools stay outside.
func carried(name string) bool {
	return strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") || strings.HasPrefix(name, "refs/remotes/")
}

// parseRef reads what a loose ref holds: an object id, or the name of another ref.
func parseRef(format string, data []byte) (oid, target string, err error) {
	s := string(data)
	if t, ok := strings.CutPrefix(s, "ref:"); ok {
		t = strings.Trim(t, " \t\r\n")
		if !validRef(t) {
			return "", "", fmt.Errorf("symbolic ref to %q", t)
		}
		return "", t, nil
	}
	s = strings.TrimRight(s, " \t\r\n")
	if !validOID(format, s) {
		return "", "", errors.New("neither an object id nor a symbolic ref")
	}
	return s, "", nil
}

// parsePacked reads packed-refs. Names that Git would not accept are passed to skip.
func parsePacked(format string, r io.Reader, max int, keep func(ref), skip func(name string)) error {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), 8<<10)
	for n := 0; in.Scan(); n++ {
		line := in.Text()
		if line == "" || line[0] == '#' || line[0] == '^' {
			continue
		}
		if n > 2*max {
			return fmt.Errorf("%w: more than %d refs", ErrTooBig, max)
		}
		oid, name, ok := strings.Cut(line, " ")
		if !ok || !validOID(format, oid) {
			return fmt.Errorf("%w: packed-refs holds a line that is not a ref", ErrCorrupt)
		}
		if !validRef(name) {
			skip(name)
			continue
		}
		keep(ref{name, oid})
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("%w: packed-refs: %v", ErrCorrupt, err)
	}
	return nil
}

// parseGitFile reads a .git that is a file.
func parseGitFile(data []byte) (string, error) {
	s, ok := strings.CutPrefix(string(data), "gitdir:")
	s = strings.TrimRight(strings.TrimLeft(s, " "), "\r\n")
	if !ok || s == "" || strings.ContainsAny(s, "\x00\n") {
		return "", errors.New("not of the form 'gitdir: PATH'")
	}
	return s, nil
}

// parseShallow reads the list of commits at which a shallow history ends.
func parseShallow(format string, data []byte) ([]string, error) {
	var out []string
	for line := range strings.SplitSeq(string(data), "\n") {
		if line = strings.TrimRight(line, " \t\r"); line == "" {
			continue
		}
		if !validOID(format, line) {
			return nil, fmt.Errorf("%w: the file shallow holds a line that is not an object id", ErrCorrupt)
		}
		out = append(out, line)
	}
	return out, nil
}

// readRefs reads the branches, tags and remote-tracking branches of the common directory. Symbolic ones are resolved.
func (r *Repo) readRefs(max int) (list []ref, skipped []string, err error) {
	common, err := openRoot(r.common)
	if err != nil {
		return nil, nil, err
	}
	defer common.Close()
	found := map[string]string{}
	links := map[string]string{}
	const most = 1000
	skip := func(name string) {
		if len(skipped) < most {
			skipped = append(skipped, printable(name))
		}
	}
	add := func(n ref) { found[n.name] = n.oid }

	f, _, err := common.open("packed-refs")
	if err == nil {
		err = parsePacked(r.Format, f, max, add, skip)
		f.Close()
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else {
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return nil, nil, err
	}

	refs, err := common.sub("refs")
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s/refs is not a plain directory: %v", ErrRefused, printable(r.common), err)
	}
	defer refs.Close()
	err = refs.walk("refs/", func(name string, mode fs.FileMode) error {
		if mode.IsDir() {
			return nil
		}
		if !carried(name) || strings.HasSuffix(name, ".lock") {
			return nil
		}
		if mode&fs.ModeType != 0 || !validRef(name) {
			skip(name)
			return nil
		}
		data, err := common.readFile(name, 4096)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) { // packed or deleted a moment ago
				return nil
			}
			if errors.Is(err, ErrTooBig) {
				skip(name)
				return nil
			}
			return err
		}
		oid, target, err := parseRef(r.Format, data)
		switch {
		case err != nil:
			skip(name)
			delete(found, name)
		case target != "":
			links[name] = target
		default:
			found[name] = oid
		}
		if len(found)+len(links) > max {
			return fmt.Errorf("%w: more than %d refs", ErrTooBig, max)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for name, target := range links {
		for range 5 {
			next, ok := links[target]
			if !ok {
				break
			}
			target = next
		}
		if oid, ok := found[target]; ok {
			found[name] = oid
		} else {
			delete(found, name)
			skip(name)
		}
	}
	for name, oid := range found {
		if carried(name) {
			list = append(list, ref{name, oid})
		}
	}
	if len(list) > max {
		return nil, nil, fmt.Errorf("%w: more than %d refs", ErrTooBig, max)
	}
	slices.SortFunc(list, func(a, b ref) int { return strings.Compare(a.name, b.name) })
	slices.Sort(skipped)
	return list, skipped, nil
}

// readHead reads the work tree's own HEAD. Empty strings mean a branch that is not born.
func (r *Repo) readHead() (oid, branch string, err error) {
	dir, err := openRoot(r.gitDir)
	if err != nil {
		return "", "", err
	}
	defer dir.Close()
	st, err := dir.lstat("HEAD")
	if err != nil {
		return "", "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", "", fmt.Errorf("%w: %s/HEAD is not a regular file", ErrRefused, printable(r.gitDir))
	}
	data, err := dir.readFile("HEAD", 4096)
	if err != nil {
		return "", "", err
	}
	oid, target, err := parseRef(r.Format, data)
	if err != nil {
		return "", "", fmt.Errorf("%w: %s/HEAD: %v", ErrCorrupt, printable(r.gitDir), err)
	}
	return oid, target, nil
}

// packedRefs is the text of a packed-refs file.
func packedRefs(list []ref) []byte {
	var b bytes.Buffer
	for _, n := range list {
		fmt.Fprintf(&b, "%s %s\n", n.oid, n.name)
	}
	return b.Bytes()
}
