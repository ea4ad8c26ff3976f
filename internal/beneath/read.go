package beneath

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is what is at a name.
type Entry struct {
	// Path is relative to the root. It is as the folder has it, and can hold what a terminal obeys.
	Path string
	// Kind is file, dir, symlink or other.
	Kind     string
	Size     int64
	Mode     fs.FileMode // permissions
	Modified time.Time
	// Unread says why nothing of what is in a folder is listed; it is empty where all is as asked for.
	Unread string
}

func entry(rel string, st *unix.Stat_t) Entry {
	e := Entry{Path: rel, Kind: "other", Size: st.Size, Mode: fs.FileMode(st.Mode & 0o777), Modified: time.Unix(st.Mtim.Unix())}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind = "file"
	case unix.S_IFDIR:
		e.Kind = "dir"
	case unix.S_IFLNK:
		e.Kind = "symlink"
	}
	return e
}

// Stat says what is at a name. A symbolic link is one, whatever it leads to.
func (r *Root) Stat(ctx context.Context, name string) (Entry, error) {
	rel, err := r.parse(name)
	if err != nil {
		return Entry{}, err
	}
	fd, st, err := r.look(ctx, rel)
	if err != nil {
		return Entry{}, err
	}
	unix.Close(fd)
	return entry(rel, &st), nil
}

// look takes hold of what is at rel without opening it. The caller closes it.
func (r *Root) look(ctx context.Context, rel string) (fd int, st unix.Stat_t, err error) {
	if err := ctx.Err(); err != nil {
		return -1, st, err
	}
	fd, err = r.open(rel, unix.O_PATH)
	if err != nil {
		return -1, st, r.explain(rel, err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, r.explain(rel, err)
	}
	return fd, st, nil
}

// ReadFile returns a regular file of at most most bytes. A larger one is ErrTooLarge, and the error says how large.
func (r *Root) ReadFile(ctx context.Context, name string, most int64) ([]byte, error) {
	rel, err := r.parseFile(name)
	if err != nil {
		return nil, err
	}
	return r.read(ctx, rel, most)
}

func (r *Root) read(ctx context.Context, rel string, most int64) ([]byte, error) {
	fd, st, err := r.look(ctx, rel)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, r.notFile(rel, st.Mode)
	case st.Nlink > 1 && st.Uid != r.uid:
		return nil, faultf(ErrOutside, "%s may be a file from outside of the workspace %s: it has %d names, and belongs to user %d, the workspace to user %d. A copy of it can be read", rel, r.path, st.Nlink, st.Uid, r.uid)
	case st.Size > most:
		return nil, r.tooLarge(rel, st.Size, most)
	}
	// What is opened is what was looked at, and nothing else: to open a device does something to it, to open it again
	// by name could be to open another. A lease on the file must not make this wait, hence O_NONBLOCK.
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.EAGAIN) {
		return nil, faultf(err, "%s in the workspace %s cannot be read now: another process has a lease on it. Try again", rel, r.path)
	}
	if err != nil {
		return nil, faultf(err, "%s in the workspace %s cannot be read: %s", rel, r.path, reason(err))
	}
	defer f.Close()
	data := make([]byte, 0, st.Size+1) // one more, to see the end
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := f.Read(data[len(data):min(cap(data), len(data)+chunk)])
		data = data[:len(data)+n]
		if int64(len(data)) > most { // it has grown
			return nil, r.tooLarge(rel, int64(len(data)), most)
		}
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, faultf(err, "%s in the workspace %s cannot be read: %s", rel, r.path, reason(err))
		}
	}
}

// chunk is what is read or written between two looks at the context.
const chunk = 1 << 20

func (r *Root) tooLarge(rel string, size, most int64) error {
	return faultf(ErrTooLarge, "%s in the workspace %s has %d bytes, and at most %d are read", rel, r.path, size, most)
}
