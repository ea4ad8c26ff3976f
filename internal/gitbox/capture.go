package gitbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CaptureOptions says how a patch is made.
type CaptureOptions struct {
	Exclude []string // paths that are never in a patch, such as TASK.md
	Last    string   // the tree of the capture before: when nothing changed since, no patch is made again
	Fresh   bool     // read every file anew and trust no time stamp, as for the final patch
	Limits  Limits
}

// Capture is what a patch was made of.
type Capture struct {
	Tree     string // the captured state; Prove must come to the same
	Same     bool   // as CaptureOptions.Last; nothing was written
	Bytes    int64
	LFS      Names // changed files under LFS whose content is not in the patch
	Filtered Names // files in the patch that a filter driver on the host would convert
	Nested   Names // repositories inside the work tree, and names that Git refuses; not in the patch
	Special  Names // tracked paths in whose place something lies that is no file; deleted in the patch
	Notes    []string
}

// Capture writes the patch from the base to the sandbox's work tree: changed, deleted and untracked files, not the ignored
// ones. It runs as the sandbox's root on the private repository, so neither the agent's Git settings nor the state of its
// .git matter, and stale locks there neither. Only one Capture may run at a time.
func (b *Base) Capture(ctx context.Context, g Guest, l Layout, opt CaptureOptions, patch io.Writer) (*Capture, error) {
	opt.Limits = opt.Limits.orDefault()
	c := &capture{b: b, gg: b.guestGit(g, l), l: l, opt: opt, out: &Capture{}}
	changes, err := c.tree(ctx)
	if err != nil && exitCode(err) > 0 && strings.Contains(err.Error(), "encod") {
		// A file that is not in the encoding that its attributes claim. Its bytes as they are beat having no patch.
		c.out = &Capture{Notes: []string{"a file is not in its working-tree-encoding; encodings were ignored"}}
		c.raw = true
		changes, err = c.tree(ctx)
	}
	if err != nil {
		return nil, err
	}
	if c.out.Tree == opt.Last {
		c.out.Same = true
		return c.out, nil
	}
	w := &limited{w: patch, left: opt.Limits.PatchBytes}
	err = c.gg.run(ctx, nil, w, append(slices.Clone(diffArgs), b.Tree, c.out.Tree)...)
	if w.over {
		return nil, c.tooBig(ctx, changes)
	}
	if w.err != nil {
		// What the writer could not do is the cause; the end of git is what it led to.
		err = fmt.Errorf("writing the patch: %w", w.err)
	}
	c.out.Bytes = w.n
	return c.out, err
}

// diffArgs make the patch. diff-tree is plumbing and heeds no setting of diff.*; what could still vary is spelled out.
// Renames are found: the patch is smaller and reads better, and Prove compares trees, so a doubtful one cannot slip through.
var diffArgs = []string{"-c", "core.quotePath=true", "diff-tree", "-r", "-p", "--binary", "--full-index", "-M", "-l1000",
	"--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "-U3", "--inter-hunk-context=0",
	"--diff-algorithm=myers", "--indent-heuristic", "--submodule=short", "--ignore-submodules=none"}

type capture struct {
	b   *Base
	gg  guestGit
	l   Layout
	opt CaptureOptions
	raw bool
	out *Capture
}

// tree records the work tree and returns how it differs from the base.
func (c *capture) tree(ctx context.Context) ([]PathChange, error) {
	// The index "seen" is the base's, with time stamps: it spares hashing what did not change. "next" is a copy that the
	// changes are laid over. New objects live for one capture only.
	attributes := `cp -f info.attributes base.git/info/attributes 2>/dev/null || : >base.git/info/attributes`
	if c.raw {
		attributes = `printf '* -working-tree-encoding\n' >>base.git/info/attributes`
	}
	err := c.gg.shell(ctx, c.l.Root, `cd "$1"; rm -rf objects next next.lock seen.lock; mkdir -p objects
		[ -e info.attributes ] || cp base.git/info/attributes info.attributes; `+attributes+`
		[ -z "$2" ] || rm -f seen`, c.l.Private, map[bool]string{true: "fresh"}[c.opt.Fresh])
	if err != nil {
		return nil, err
	}
	seen, next := c.gg, c.gg
	seen.index, next.index = "seen", "next"
	if err := c.gg.shell(ctx, c.l.Root, `[ -e "$1/seen" ]`, c.l.Private); err != nil {
		if exitCode(err) < 0 {
			return nil, err
		}
		if err := seen.run(ctx, nil, nil, "read-tree", c.b.Tree); err != nil {
			return nil, err
		}
	}
	changed, others, err := c.list(ctx, seen)
	if err != nil {
		return nil, err
	}
	// With its time: to git before 2.36, a younger index makes files look unchanged that were edited within a second.
	if err := c.gg.shell(ctx, c.l.Root, `cd "$1"; [ ! -e seen ] || cp -p seen next`, c.l.Private); err != nil {
		return nil, err
	}
	todo, err := c.choose(ctx, changed, others)
	if err != nil {
		return nil, err
	}
	if len(todo) > c.opt.Limits.DirtyFiles {
		return nil, fmt.Errorf("%w: %d files were changed or made, at most %d fit a patch; have build products ignored", ErrTooBig, len(todo), c.opt.Limits.DirtyFiles)
	}
	if err := c.add(ctx, next, todo); err != nil {
		return nil, err
	}
	changes, err := c.changes(ctx, next)
	if err != nil {
		return nil, err
	}
	if changes, err = c.withholdLFS(ctx, next, changes); err != nil {
		return nil, err
	}
	tree, err := next.output(ctx, nil, "write-tree")
	c.out.Tree = strings.TrimSuffix(tree, "\n")
	if err == nil && !validOID(c.b.Format, c.out.Tree) {
		err = errDiff
	}
	c.gg.index = "next"
	return changes, err
}

// list asks for what differs from the base. A named pipe called .gitignore would hold git up for ever, so a listing that
// takes too long is tried once more with such things out of the way.
func (c *capture) list(ctx context.Context, seen guestGit) (changed, others []string, err error) {
	try := func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, c.opt.Limits.List, errSlow)
		defer cancel()
		// Refreshing exits with 1 where files differ, which is no failure.
		if err := seen.run(ctx, nil, io.Discard, "update-index", "-q", "--refresh"); err != nil && ctx.Err() != nil {
			return err
		}
		out, err := seen.output(ctx, nil, "ls-files", "-z", "--modified", "--deleted")
		if err != nil {
			return err
		}
		changed = splitNul(out)
		out, err = seen.output(ctx, nil, "ls-files", "-z", "--others", "--exclude-standard")
		others = splitNul(out)
		return err
	}
	err = try()
	if errors.Is(err, errSlow) {
		err = c.gg.shell(ctx, c.l.Root, `find "$1" -xdev \( -name .gitignore -o -name .gitattributes \) ! -type f ! -type d ! -type l -exec rm -f {} +; rm -f "$2/seen.lock"`, c.l.Work, c.l.Private)
		if err == nil {
			c.out.Notes = append(c.out.Notes, "listing the work tree had to be repeated")
			err = try()
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed), others, err
}

var errSlow = fmt.Errorf("listing the work tree took too long: %w", context.DeadlineExceeded)

// choose drops what is never in a patch.
func (c *capture) choose(ctx context.Context, changed, others []string) ([]string, error) {
	var todo, nested []string
	links := map[string]bool{} // untracked files and links that stand where a tracked directory was
	for _, p := range others {
		links[p] = true
	}
	submodules, err := c.b.submodules(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range append(changed, others...) {
		switch {
		case slices.Contains(c.opt.Exclude, p):
		case submodules[strings.TrimSuffix(p, "/")]:
		case unsafePath(p) != "":
			nested = append(nested, p)
		case parents(p, func(dir string) bool { return links[dir] }):
			// adding the file in place of its directory removes it
		default:
			todo = append(todo, p)
		}
	}
	c.out.Nested = namesOf(nested)
	return todo, nil
}

// submodules lists the paths that are submodules in the base. The host's copy of it is asked.
func (b *Base) submodules(ctx context.Context) (map[string]bool, error) {
	found := map[string]bool{}
	if b.Submodules.Count == 0 {
		return found, nil
	}
	out, err := b.box().output(ctx, nil, "ls-tree", "-r", "-z", b.Tree)
	for _, line := range splitNul(out) {
		if meta, path, _ := strings.Cut(line, "\t"); strings.HasPrefix(meta, gitlink) {
			found[path] = true
		}
	}
	return found, err
}

// add lays the listed paths over the index. What lies in the place of a tracked file and cannot be stored (a pipe, a device,
// something behind a link) counts as its deletion.
func (c *capture) add(ctx context.Context, next guestGit, todo []string) error {
	var special []string
	for {
		if len(todo) == 0 {
			break
		}
		err := next.run(ctx, strings.NewReader(nulList(todo)), nil, "update-index", "-z", "--add", "--remove", "--replace", "--stdin")
		if err == nil {
			break
		}
		var ge *gitError
		if !errors.As(err, &ge) || len(special) == 50 {
			return err
		}
		_, path, _ := strings.Cut(ge.stderr, "Unable to process path ")
		i := slices.Index(todo, strings.TrimSuffix(path, "\n"))
		if i < 0 {
			return err
		}
		special = append(special, todo[i])
		todo = slices.Delete(todo, i, i+1)
	}
	c.out.Special = namesOf(special)
	if len(special) == 0 {
		return nil
	}
	return next.run(ctx, strings.NewReader(nulList(special)), nil, "update-index", "-z", "--force-remove", "--stdin")
}

func (c *capture) changes(ctx context.Context, next guestGit) ([]PathChange, error) {
	out, err := next.output(ctx, nil, "diff-index", "--cached", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none", c.b.Tree)
	if err != nil {
		return nil, err
	}
	return parseRaw(out)
}

// withholdLFS takes files under LFS back out of the index when they are not pointers: content in the place of a pointer is
// a patch that applies and is wrong.
func (c *capture) withholdLFS(ctx context.Context, next guestGit, changes []PathChange) ([]PathChange, error) {
	var ask []string
	for _, ch := range changes {
		if strings.HasPrefix(ch.NewMode, "100") {
			ask = append(ask, ch.Path)
		}
	}
	if len(ask) == 0 {
		return changes, nil
	}
	out, err := next.output(ctx, strings.NewReader(nulList(ask)), "check-attr", "-z", "--stdin", "filter")
	if err != nil {
		return nil, err
	}
	drivers := parseAttr(out)
	if len(drivers) == 0 {
		return changes, nil
	}
	sizes, err := c.sizes(ctx, next, changes)
	if err != nil {
		return nil, err
	}
	var lfs, filtered []string
	var restore strings.Builder
	keep := changes[:0:0]
	for _, ch := range changes {
		driver, ok := drivers[ch.Path]
		if ok && driver == "lfs" {
			if sizes[ch.newID] <= 1024 {
				text, err := next.output(ctx, nil, "cat-file", "blob", ch.newID)
				if err != nil {
					return nil, err
				}
				ok = !strings.HasPrefix(text, "version https://git-lfs.github.com/spec/")
			}
			if ok {
				lfs = append(lfs, ch.Path)
				fmt.Fprintf(&restore, "%s %s 0\t%s\x00", ch.OldMode, ch.oldID, ch.Path)
				continue
			}
		} else if ok {
			filtered = append(filtered, ch.Path)
		}
		keep = append(keep, ch)
	}
	c.out.LFS, c.out.Filtered = namesOf(lfs), namesOf(filtered)
	if restore.Len() == 0 {
		return keep, nil
	}
	return keep, next.run(ctx, strings.NewReader(restore.String()), nil, "update-index", "-z", "--index-info")
}

// sizes returns the size of each new object.
func (c *capture) sizes(ctx context.Context, next guestGit, changes []PathChange) (map[string]int64, error) {
	var ask strings.Builder
	for _, ch := range changes {
		if ch.NewMode != gitlink && strings.Trim(ch.newID, "0") != "" {
			ask.WriteString(ch.newID + "\n")
		}
	}
	if ask.Len() == 0 {
		return nil, nil
	}
	out, err := next.output(ctx, strings.NewReader(ask.String()), "cat-file", "--batch-check=%(objectname) %(objectsize)")
	sizes := map[string]int64{}
	for line := range strings.SplitSeq(out, "\n") {
		if oid, size, ok := strings.Cut(line, " "); ok {
			sizes[oid], _ = strconv.ParseInt(size, 10, 64)
		}
	}
	return sizes, err
}

// tooBig names the largest files of a patch that passed its limit.
func (c *capture) tooBig(ctx context.Context, changes []PathChange) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	sizes, err := c.sizes(ctx, c.gg, changes)
	if err != nil {
		return errors.Join(ErrTooBig, err)
	}
	slices.SortFunc(changes, func(a, b PathChange) int { return int(sizes[b.newID]/512 - sizes[a.newID]/512) })
	var list []string
	for _, ch := range changes[:min(len(changes), 5)] {
		list = append(list, fmt.Sprintf("%s (%d KiB)", ch.Path, sizes[ch.newID]>>10))
	}
	return fmt.Errorf("%w: the patch passes %d MiB; the largest of its %d files: %s; have build products ignored",
		ErrTooBig, c.opt.Limits.PatchBytes>>20, len(changes), names(list))
}

// limited passes on a number of bytes and then fails, which ends who writes.
type limited struct {
	w       io.Writer
	n, left int64
	over    bool
	err     error
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		l.over = true
		return 0, ErrTooBig
	}
	n, err := l.w.Write(p)
	l.n += int64(n)
	l.left -= int64(n)
	if err != nil {
		l.err = err
	}
	return n, err
}
