// Package gitbox does everything that Ravi does with a Git repository, on the assumption that the repository is hostile,
// the one that the operator named included.
//
// The rule that the package is built on: Git on this host never reads the configuration, hooks or refs of a repository
// that somebody else wrote. [Open] finds the parts of the repository with code of its own; every Git command then runs in
// a repository that this package made (a "box"), which borrows the hostile objects through an alternates file and nothing
// else. What leaves the box went through `git index-pack --strict`, so each object was parsed and checked. Filters, hooks,
// fsmonitor, textconv, external diffs, includes, credential helpers and transports are names in a configuration that is
// never read, so there is nothing to switch off one by one.
//
// Files of a work tree are opened component by component without following a symbolic link, regular files only. The
// repository is read and never written (no lock, no index refresh, no object, no changed time), until [Apply] is asked to
// place a proven change in its work tree; even then the Git directory stays as it is.
//
// The way of a run: [Open], [Repo.Export] (a directory with a checked repository and base.json), [Base.Enter] (lay it in
// the sandbox), [Base.Capture] (make the patch there), [Base.Prove] (apply it to a clean index out here), [Base.Apply].
//
// The package may run the host's git, read the repository it was given and write to directories that it was given. It
// must not run anything else, nor know of sandboxes beyond the small interface [Guest].
package gitbox

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"
)

// Errors to test for with errors.Is. Each is wrapped in a text for people that names the subject and the way out.
var (
	// ErrGit means that this host, or the sandbox, has no git or one that is too old.
	ErrGit = errors.New("git is missing or too old")
	// ErrNotRepository means that no repository is at, or above, the path.
	ErrNotRepository = errors.New("not a git repository")
	// ErrRefused means that the repository is built in a way that could reach outside itself.
	ErrRefused = errors.New("repository refused")
	// ErrUnsupported means a repository format that this package cannot read.
	ErrUnsupported = errors.New("repository format not supported")
	// ErrBadRef means that a ref does not exist or does not name a commit.
	ErrBadRef = errors.New("bad ref")
	// ErrCorrupt means that objects are missing, broken or malicious.
	ErrCorrupt = errors.New("repository is corrupt")
	// ErrTooBig means that a limit was passed.
	ErrTooBig = errors.New("too big")
	// ErrDiskFull means that a file system had no space left.
	ErrDiskFull = errors.New("disk full")
	// ErrNotProven means that a patch does not do on a clean checkout what it did in the sandbox.
	ErrNotProven = errors.New("patch could not be proven")
	// ErrConflict means that a patch and the present work tree contradict each other; nothing was written.
	ErrConflict = errors.New("patch conflicts with the work tree")
)

// Limits bounds what is read from a repository and what a patch may be. A zero field means the default.
type Limits struct {
	DirtyFiles int           // changed and untracked files taken along (100,000)
	DirtyBytes int64         // their size together (4 GiB)
	PatchBytes int64         // size of a patch (512 MiB)
	Refs       int           // branches and tags (200,000)
	Beside     string        // a folder that is never taken along, wherever it lies: who runs this keeps its own things there
	List       time.Duration // time for listing a work tree (5 min): a FIFO named .gitignore blocks git for ever
}

func (l Limits) orDefault() Limits {
	if l.DirtyFiles == 0 {
		l.DirtyFiles = 100_000
	}
	if l.DirtyBytes == 0 {
		l.DirtyBytes = 4 << 30
	}
	if l.PatchBytes == 0 {
		l.PatchBytes = 512 << 20
	}
	if l.Refs == 0 {
		l.Refs = 200_000
	}
	if l.List == 0 {
		l.List = 5 * time.Minute
	}
	return l
}

// printable makes a name or message that somebody else wrote harmless on a terminal, and valid UTF-8.
func printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString("\\x" + string("0123456789abcdef"[s[i]>>4]) + string("0123456789abcdef"[s[i]&15]))
		case r == '\n' && i+1 < len(s):
			b.WriteString("\\n")
		case r == '\n':
		case r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// names joins at most ten names for a message.
func names(list []string) string {
	const most = 10
	var out []string
	for i, n := range list {
		if i == most {
			out = append(out, "…")
			break
		}
		out = append(out, printable(n))
	}
	return strings.Join(out, ", ")
}
