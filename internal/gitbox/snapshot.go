package gitbox

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// snapshot is the state of a work tree as a tree object.
type snapshot struct {
	tree     string
	filtered []string // changed files that a filter driver would have to convert
	left     []string // what cannot be carried: special files, repositories inside, names that Git refuses
}

// entry is one file of an index.
type entry struct{ mode, oid, path string }

const gitlink = "160000"

// snapshot reads the work tree into dst as it lies: the user's index (a copy) with changed, deleted and untracked files laid
// over it. Files are copied to a private directory first, beneath the root and without following links, and hashed there:
// Git itself opens none of the user's files for their content to go anywhere. tmp is a private directory.
func (r *Repo) snapshot(ctx context.Context, src, dst box, tmp string, lim Limits) (*snapshot, error) {
	src.work, src.index = r.Top, tmp+"/index.src"
	src.settings, dst.settings = r.settings, r.settings
	if err := r.copyIndex(ctx, src); err != nil {
		return nil, err
	}
	var entries []entry
	unmerged := map[string]bool{}
	staged, err := src.output(ctx, nil, "ls-files", "-s", "-z")
	if err != nil {
		return nil, fmt.Errorf("%w: its index: %w", ErrCorrupt, err)
	}
	var info strings.Builder // the same list without the flags, caches and extensions of a foreign index file
	for line := range strings.SplitSeq(strings.TrimSuffix(staged, "\x00"), "\x00") {
		meta, path, ok := strings.Cut(line, "\t")
		f := strings.Fields(meta)
		if !ok || len(f) != 3 {
			continue
		}
		if f[2] != "0" {
			unmerged[path] = true
			continue
		}
		entries = append(entries, entry{f[0], f[1], path})
		info.WriteString(line + "\x00")
	}
	if err := borrow(ctx, src, dst, entries); err != nil {
		return nil, err
	}
	changed, others, err := r.list(ctx, src, lim.List)
	if err != nil {
		return nil, err
	}
	snap := &snapshot{}
	if changed, others, err = snap.without(r.Top, lim.Beside, changed, others); err != nil {
		return nil, err
	}
	for p := range unmerged {
		changed = append(changed, p)
	}
	slices.Sort(changed)
	changed = slices.Compact(changed)
	if n := len(changed) + len(others); n > lim.DirtyFiles {
		return nil, fmt.Errorf("%w: %d changed and untracked files in %s, at most %d are taken along; commit or ignore some, or choose a commit with --ref",
			ErrTooBig, n, printable(r.Top), lim.DirtyFiles)
	}
	index := map[string]entry{}
	for _, e := range entries {
		index[e.path] = e
	}
	todo, err := snap.choose(ctx, r, src, index, changed, others)
	if err != nil {
		return nil, err
	}
	dst.work, dst.index = tmp+"/files", tmp+"/index.dst"
	if err := os.Mkdir(dst.work, 0o700); err != nil {
		return nil, err
	}
	present, removed, err := snap.copyFiles(ctx, r, dst.work, todo, lim)
	if err != nil {
		return nil, err
	}
	for _, step := range []struct {
		list string
		args []string
	}{
		{info.String(), []string{"update-index", "-z", "--index-info"}},
		{nulList(removed), []string{"update-index", "-z", "--force-remove", "--stdin"}},
		{nulList(present), []string{"update-index", "-z", "--add", "--replace", "--stdin"}},
	} {
		if step.list == "" {
			continue
		}
		if err := dst.run(ctx, strings.NewReader(step.list), nil, step.args...); err != nil {
			return nil, fmt.Errorf("reading the work tree %s: %w", printable(r.Top), err)
		}
	}
	snap.tree, err = dst.line(ctx, "write-tree")
	slices.Sort(snap.left)
	slices.Sort(snap.filtered)
	return snap, err
}

// without leaves out what lies in a folder.
func (s *snapshot) without(top, folder string, changed, others []string) (_, _ []string, err error) {
	if folder == "" {
		return changed, others, nil
	}
	if folder, err = filepath.EvalSymlinks(folder); err != nil {
		return nil, nil, err
	}
	at, err := filepath.Rel(top, folder)
	switch {
	case err != nil:
		return nil, nil, err
	case at == ".":
		return nil, nil, fmt.Errorf("%w: %s is where this program keeps its own things", ErrRefused, printable(top))
	case at == ".." || strings.HasPrefix(at, "../"):
		return changed, others, nil
	}
	inside := func(path string) bool {
		in := path == at || strings.HasPrefix(path, at+"/")
		if in && !slices.Contains(s.left, at) {
			s.left = append(s.left, at)
		}
		return in
	}
	return slices.DeleteFunc(changed, inside), slices.DeleteFunc(others, inside), nil
}

func nulList(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\x00") + "\x00"
}

// splitNul is the reverse of nulList.
func splitNul(s string) []string {
	if s = strings.TrimSuffix(s, "\x00"); s == "" {
		return nil
	}
	return strings.Split(s, "\x00")
}

// copyIndex puts a copy of the index, in one part or split, where src looks for it.
func (r *Repo) copyIndex(ctx context.Context, src box) error {
	git, err := openRoot(r.gitDir)
	if err != nil {
		return err
	}
	defer git.Close()
	copyOne := func(name, to string) error {
		f, st, err := git.open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		const max = 2 << 30
		n, err := io.Copy(out, io.LimitReader(f, max+1))
		if err == nil && n > max {
			err = fmt.Errorf("%w: the index of %s", ErrTooBig, printable(r.Top))
		}
		// Git trusts the time stamps of a file that is older than its index. With a copy that is younger than the
		// original it would trust too many, and not see an edit made within the second of a commit.
		times := []unix.Timespec{st.Atim, st.Mtim}
		return errors.Join(err, out.Close(), unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW))
	}
	if err := copyOne("index", src.index); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: the index: %w", ErrRefused, err)
		}
		// No index yet, as after a clone without check-out: HEAD's files are what the work tree is compared with.
		if _, err := src.output(ctx, nil, "rev-parse", "-q", "--verify", "HEAD"); err != nil {
			return nil
		}
		return src.run(ctx, nil, nil, "read-tree", "HEAD")
	}
	entries, err := os.ReadDir(r.gitDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if hex, ok := strings.CutPrefix(e.Name(), "sharedindex."); ok && e.Type().IsRegular() && validOID(r.Format, hex) {
			if err := copyOne(e.Name(), src.dir+"/"+e.Name()); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// list returns what differs from the index, and what is neither in it nor ignored.
func (r *Repo) list(ctx context.Context, src box, limit time.Duration) (changed, others []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: listing %s took longer than %v; "+
		"a named pipe in the place of .gitignore or .gitattributes does that, look with: find %s -name '.git*' -type p",
		errListing, printable(r.Top), limit, strconv.Quote(r.Top)))
	defer cancel()
	out, err := src.output(ctx, nil, "ls-files", "-z", "--modified", "--deleted")
	if err != nil {
		return nil, nil, err
	}
	changed = splitNul(out)
	out, err = src.output(ctx, nil, "ls-files", "-z", "--others", "--exclude-standard")
	return changed, splitNul(out), err
}

var errListing = fmt.Errorf("%w: the work tree cannot be listed", ErrRefused)

// borrow copies the objects of an index that dst lacks: what was staged, or committed since.
func borrow(ctx context.Context, src, dst box, entries []entry) error {
	var ask strings.Builder
	for _, e := range entries {
		if e.mode != gitlink {
			ask.WriteString(e.oid + "\n")
		}
	}
	missing, err := dst.missing(ctx, ask.String())
	if err != nil || len(missing) == 0 {
		return err
	}
	if err := copyObjects(ctx, src, dst, strings.NewReader(strings.Join(missing, "\n")+"\n")); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// missing returns those of the listed objects that b does not have.
func (b box) missing(ctx context.Context, oids string) ([]string, error) {
	if oids == "" {
		return nil, nil
	}
	out, err := b.output(ctx, strings.NewReader(oids), "cat-file", "--batch-check=%(objecttype)")
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.SplitSeq(out, "\n") {
		if oid, ok := strings.CutSuffix(line, " missing"); ok {
			list = append(list, oid)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// choose drops from the listed paths what is not carried, and names it.
func (s *snapshot) choose(ctx context.Context, r *Repo, src box, index map[string]entry, changed, others []string) ([]string, error) {
	var todo []string
	for _, p := range changed {
		if index[p].mode == gitlink {
			continue // a submodule stays at the commit that the index names
		}
		if why := unsafePath(p); why != "" {
			return nil, fmt.Errorf("%w: the tracked path %s %s", ErrRefused, printable(p), why)
		}
		todo = append(todo, p)
	}
	for _, p := range others {
		if unsafePath(p) != "" { // a repository inside ends in a slash
			s.left = append(s.left, p)
			continue
		}
		todo = append(todo, p)
	}
	drivers, err := src.filters(ctx, todo)
	if err != nil || len(drivers) == 0 {
		return todo, err
	}
	work, err := openRoot(r.Top)
	if err != nil {
		return nil, err
	}
	defer work.Close()
	return slices.DeleteFunc(todo, func(p string) bool {
		driver, ok := drivers[p]
		if !ok {
			return false
		}
		if st, err := work.lstat(p); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return false // deletions and links need no filter
		}
		if driver != "lfs" || !sameAsPointer(work, p, index[p].oid, r.Format) {
			s.filtered = append(s.filtered, p)
		}
		return true
	}), nil
}

// filters returns the filter driver of each of the paths that has one.
func (b box) filters(ctx context.Context, paths []string, args ...string) (map[string]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	args = append(append([]string{"check-attr", "-z", "--stdin"}, args...), "filter")
	out, err := b.output(ctx, strings.NewReader(nulList(paths)), args...)
	if err != nil {
		return nil, err
	}
	return parseAttr(out), nil
}

// parseAttr reads `git check-attr -z` for one attribute.
func parseAttr(out string) map[string]string {
	found := map[string]string{}
	f := splitNul(out)
	for i := 0; i+2 < len(f); i += 3 {
		if v := f[i+2]; v != "unspecified" && v != "unset" {
			found[f[i]] = v
		}
	}
	return found
}

// sameAsPointer tells whether a file under LFS is the very content that its pointer in the index names.
func sameAsPointer(work *root, path, oid, format string) bool {
	f, _, err := work.open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return false
	}
	pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%x\nsize %d\n", sum.Sum(nil), n)
	return blobID(format, pointer) == oid
}

func blobID(format, content string) string {
	var h hash.Hash = sha1.New()
	if format == sha256Format {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00%s", len(content), content)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// copyFiles copies the paths to a private directory and tells which of them no longer exist.
func (s *snapshot) copyFiles(ctx context.Context, r *Repo, to string, todo []string, lim Limits) (present, removed []string, err error) {
	if len(todo) == 0 {
		return nil, nil, nil
	}
	work, err := openRoot(r.Top)
	if err != nil {
		return nil, nil, err
	}
	defer work.Close()
	files, err := openRoot(to)
	if err != nil {
		return nil, nil, err
	}
	defer files.Close()
	room := lim.DirtyBytes
	for _, p := range todo {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		st, err := work.lstat(p)
		if err != nil && gone(err) {
			removed = append(removed, p)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		kind := st.Mode & unix.S_IFMT
		if kind == unix.S_IFREG || kind == unix.S_IFLNK {
			if _, err := files.mkdirs(p); err != nil {
				return nil, nil, err
			}
		}
		switch kind {
		case unix.S_IFREG:
			n, err := copyFile(work, files, p, room)
			if err != nil {
				return nil, nil, err
			}
			if room -= n; room < 0 {
				return nil, nil, fmt.Errorf("%w: the changed and untracked files of %s pass %d MiB at %s; commit or ignore some, or choose a commit with --ref",
					ErrTooBig, printable(r.Top), lim.DirtyBytes>>20, printable(p))
			}
			present = append(present, p)
		case unix.S_IFLNK:
			target, err := work.readlink(p)
			if err == nil {
				err = files.symlink(target, p)
			}
			if err != nil {
				return nil, nil, err
			}
			present = append(present, p)
		case unix.S_IFDIR:
			removed = append(removed, p) // what lies in it is listed by itself
		default:
			s.left = append(s.left, p)
			removed = append(removed, p)
		}
	}
	return present, removed, nil
}

// copyFile copies one regular file, at most one byte more than room.
func copyFile(from, to *root, name string, room int64) (int64, error) {
	in, st, err := from.open(name)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := to.create(name, 0o600|st.Mode&0o100)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, room+1))
	if err = errors.Join(err, out.Close()); errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: copying %s: %w", ErrDiskFull, printable(name), err)
	}
	return n, err
}

// clean removes a scratch directory, read-only parts included.
func clean(dir string) { _ = os.RemoveAll(filepath.Clean(dir)) }
