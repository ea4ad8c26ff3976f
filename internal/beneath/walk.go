package beneath

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxNames bounds the names that a walk holds, in bytes: folders can have many long ones.
const maxNames = 64 << 20

// walk looks at what is in a folder, in the order of its names, then at what is in its folders, and so on: of what is
// too much, the nearest is seen. What is in .git is left out, unless the walk begins there.
type walk struct {
	r     *Root
	depth int // 1 is the folder's own entries
	left  int // how many entries may still be seen
	names int // bytes of names that may still be held
	visit func(Entry) error

	more   bool              // something was left out since it was too much
	deeper bool              // there are folders below depth
	unread map[string]string // folders that were not read, and why
}

func newWalk(r *Root, depth, most int, visit func(Entry) error) *walk {
	return &walk{r: r, depth: max(depth, 1), left: max(most, 0), names: maxNames, visit: visit, unread: map[string]string{}}
}

// run ends with the walk, with the error of visit, or with the context.
func (w *walk) run(ctx context.Context, start string) error {
	level := []string{start}
	for depth := 1; depth <= w.depth && len(level) > 0; depth++ {
		var below []string
		for _, dir := range level {
			dirs, err := w.folder(ctx, dir)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var cannot *unreadable
			if errors.As(err, &cannot) && dir != start {
				w.unread[dir] = cannot.Error()
				continue
			}
			if err != nil {
				return err
			}
			below = append(below, dirs...)
		}
		level = below
	}
	w.deeper = len(level) > 0
	return nil
}

// unreadable is why a folder cannot be read, told from an error of visit.
type unreadable struct{ error }

func (u *unreadable) Unwrap() error { return u.error }

// folder visits what is in one folder and returns the folders in it.
func (w *walk) folder(ctx context.Context, dir string) (dirs []string, err error) {
	fd, err := w.r.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, &unreadable{w.r.explain(dir, err)}
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	names, err := w.list(ctx, f)
	if err != nil {
		return nil, &unreadable{w.r.explain(dir, err)}
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rel := name
		if dir != "." {
			rel = dir + "/" + name
		}
		e, ok := w.entry(int(f.Fd()), name, rel)
		if !ok {
			continue
		}
		w.left--
		w.names -= len(rel)
		if e.Kind == "dir" && e.Unread == "" {
			dirs = append(dirs, rel)
		}
		if err := w.visit(e); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// entry says what name is in a folder; false if it is gone.
func (w *walk) entry(dir int, name, rel string) (Entry, bool) {
	fd, err := openat2(dir, name, unix.O_PATH, inside)
	switch {
	case errors.Is(err, unix.ENOENT):
		return Entry{}, false
	case errors.Is(err, unix.EXDEV):
		return Entry{Path: rel, Kind: "other", Unread: "another file system is mounted here"}, true
	case err != nil:
		return Entry{Path: rel, Kind: "other", Unread: reason(err)}, true
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Entry{Path: rel, Kind: "other", Unread: reason(err)}, true
	}
	e := entry(rel, &st)
	if e.Kind == "dir" && isGit(name) {
		e.Unread = "it belongs to git, and is read only where it is named"
	}
	return e, true
}

// list returns the names in a folder, sorted: the first of them, if there are too many. It reads names only, and does
// not ask what they are by their path.
func (w *walk) list(ctx context.Context, f *os.File) ([]string, error) {
	var names []string
	for size := 0; ; {
		some, err := f.Readdirnames(512)
		for _, name := range some {
			names = append(names, name)
			size += len(name)
		}
		end := err == io.EOF
		if err != nil && !end {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !end && len(names) <= 2*w.left && size <= w.names {
			continue
		}
		slices.Sort(names)
		fits := 0
		for size = 0; fits < min(len(names), w.left) && size+len(names[fits]) <= w.names; fits++ {
			size += len(names[fits])
		}
		if fits < len(names) {
			w.more = true
			names = slices.Clone(names[:fits])
		}
		if end || w.more && fits == 0 {
			return names, nil
		}
	}
}

// List says what is in a folder, and in those below it down to depth (1 is the folder alone), in the order of a tree. It
// returns at most the given number of entries, the nearest to the folder, and whether there are more within depth.
func (r *Root) List(ctx context.Context, name string, depth, most int) (entries []Entry, more bool, err error) {
	rel, err := r.parse(name)
	if err != nil {
		return nil, false, err
	}
	w := newWalk(r, depth, most, func(e Entry) error { entries = append(entries, e); return nil })
	if err := w.run(ctx, rel); err != nil {
		return nil, false, err
	}
	for i, e := range entries {
		if why := w.unread[e.Path]; why != "" {
			entries[i].Unread = why
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return slices.Compare(strings.Split(a.Path, "/"), strings.Split(b.Path, "/")) })
	return entries, w.more, nil
}

// Bounds are how far a search goes.
type Bounds struct {
	// Entries are the files, folders and others that are looked at.
	Entries int
	// Depth is how many folders deep; 1 is the folder alone.
	Depth int
	// FileBytes are the most that one file may have to be read, Bytes what all may have together.
	FileBytes, Bytes int64
}

// Walked is what a search has seen.
type Walked struct {
	Files int   // that were visited
	Bytes int64 // that were read
	// More tells that the search ended at its bounds, with entries or bytes left.
	More bool
	// Unread are the folders that were not searched, and why. That .git is not searched is no news, and not among them.
	Unread map[string]string
}

// Walk calls visit for the regular files below a folder, the nearest first, or for the one file that is named. It leaves
// out what is in .git, unless it is named. The content is read only if visit asks for it, and errors of read concern that
// file alone; fs.SkipAll ends the walk, and so does any other error, which Walk returns.
func (r *Root) Walk(ctx context.Context, name string, b Bounds, visit func(e Entry, read func() ([]byte, error)) error) (Walked, error) {
	var out Walked
	rel, err := r.parse(name)
	if err != nil {
		return out, err
	}
	fd, st, err := r.look(ctx, rel)
	if err != nil {
		return out, err
	}
	unix.Close(fd)
	full := false
	file := func(e Entry) error {
		if e.Kind != "file" {
			return nil
		}
		out.Files++
		err := visit(e, func() ([]byte, error) {
			left := b.Bytes - out.Bytes
			data, err := r.read(ctx, e.Path, min(b.FileBytes, left))
			full = errors.Is(err, ErrTooLarge) && left < b.FileBytes
			out.Bytes += int64(len(data))
			return data, err
		})
		if err == nil && full {
			return fs.SkipAll
		}
		return err
	}
	w := newWalk(r, b.Depth, b.Entries, file)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = w.run(ctx, rel)
	case unix.S_IFREG:
		err = file(entry(rel, &st))
	default:
		err = r.notFile(rel, st.Mode)
	}
	if err == fs.SkipAll {
		err = nil
	}
	out.More, out.Unread = w.more || w.deeper || full, w.unread
	return out, err
}
