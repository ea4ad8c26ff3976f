package beneath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"ravi/internal/term"
)

// Errors that callers tell apart with errors.Is. What is not there is fs.ErrNotExist, what may not be opened fs.ErrPermission.
var (
	// ErrOutside: the name is not below the root, or could lead out of it.
	ErrOutside = errors.New("outside of the workspace")
	// ErrReadOnly: .git is not written to, nor is a file that nobody may write.
	ErrReadOnly = errors.New("read-only")
	// ErrNotFile: a folder, a pipe, a device or a socket is where a file should be.
	ErrNotFile = errors.New("not a file")
	// ErrNotFolder: something else is where a folder should be.
	ErrNotFolder = errors.New("not a folder")
	// ErrTooLarge: a file has more bytes than may be read.
	ErrTooLarge = errors.New("too large")
	// ErrName: no file can have this name.
	ErrName = errors.New("unusable name")
	// ErrUnsupported: the kernel cannot open files in a way that stays beneath a folder.
	ErrUnsupported = errors.New("not supported by this kernel")
)

// fault is an error for people, which says all by itself, and what kind it is.
type fault struct {
	kind error
	text string
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.kind }

// faultf makes a fault. What others may have written is among args as a string, and cannot steer a terminal.
func faultf(kind error, format string, args ...any) error {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = term.Safe(s)
		}
	}
	return &fault{kind, fmt.Sprintf(format, args...)}
}

// Root is a folder whose files are used by name. Its methods may be called by several goroutines.
type Root struct {
	dir  *os.File
	conn syscall.RawConn // keeps the descriptor from being closed, and its number from being another file's, while it is used
	path string          // as the caller knows it
	real string          // without links
	uid  uint32          // whose folder it is
}

// Open takes hold of a folder. Its own path may lead over links, which are the operator's; from here on it is this
// folder, whatever is moved to its path.
func Open(dir string) (*Root, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, faultf(err, "the workspace %s cannot be opened: %s", path, reason(err))
	}
	// A link that was put into the path since is not followed: names are compared with the path.
	fd, err := openat2(unix.AT_FDCWD, real, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	switch {
	// Old container runtimes answer EPERM to system calls that they do not know. A path answers EACCES.
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return nil, faultf(ErrUnsupported, "files in the workspace %s cannot be used safely: the system call openat2 is missing or forbidden here (%s). Use Linux 5.6 or later, and in a container a runtime that allows openat2", path, reason(err))
	case errors.Is(err, unix.ENOTDIR):
		return nil, faultf(ErrNotFolder, "the workspace %s is not a folder", path)
	case err != nil:
		return nil, faultf(err, "the workspace %s cannot be opened: %s", path, reason(err))
	}
	f := os.NewFile(uintptr(fd), real)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, faultf(err, "the workspace %s cannot be opened: %s", path, reason(err))
	}
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Root{dir: f, conn: conn, path: path, real: real, uid: st.Uid}, nil
}

// Close lets go of the folder. What is under way in it fails.
func (r *Root) Close() error { return r.dir.Close() }

// Path is the folder's path, as it was given to Open and made absolute.
func (r *Root) Path() string { return r.path }

// inside is how everything below the root is resolved.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openat2 opens a name below dir. With O_PATH it can be a link, which is then what is opened.
func openat2(dir int, name string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// open opens what is at rel, a name that was parsed; "." is the root. The caller closes it.
func (r *Root) open(rel string, flags uint64) (fd int, err error) {
	gone := r.conn.Control(func(dir uintptr) { fd, err = openat2(int(dir), rel, flags, inside) })
	if gone != nil {
		return -1, faultf(os.ErrClosed, "the workspace %s is closed", r.path)
	}
	return fd, err
}

// explain makes an error for people of why rel could not be opened. It looks again for what is in the way, so it may
// find that things have changed; nothing but the text depends on it.
func (r *Root) explain(rel string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case unix.ENOENT:
		return faultf(err, "%s is not in the workspace %s", rel, r.path)
	case unix.ENAMETOOLONG:
		return faultf(ErrName, "%s cannot be a name: it is too long, or a part of it is", short(rel))
	case unix.ELOOP, unix.ENOTDIR, unix.EXDEV, unix.EBUSY:
		for i := 0; i <= len(rel); i++ {
			if i < len(rel) && rel[i] != '/' {
				continue
			}
			if f := r.inTheWay(rel, rel[:i], errno); f != nil {
				return f
			}
		}
		if errno == unix.EBUSY {
			break
		}
		return faultf(ErrOutside, "%s could lead out of the workspace %s: something on its way changed while it was opened", rel, r.path)
	}
	return faultf(err, "%s in the workspace %s cannot be used: %s", rel, r.path, reason(err))
}

// inTheWay says why part, a beginning of rel, stops its use with errno; nil if it does not.
func (r *Root) inTheWay(rel, part string, errno unix.Errno) error {
	fd, err := r.open(part, unix.O_PATH)
	if errors.Is(err, unix.EXDEV) {
		return faultf(ErrOutside, "%s leads out of the workspace %s: another file system is mounted at %s", rel, r.path, part)
	}
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFLNK:
		return r.isLink(rel, part)
	case kind == unix.S_IFDIR, errno != unix.ENOTDIR:
		return nil
	case rel == part:
		return faultf(ErrNotFolder, "%s in the workspace %s is a %s, not a folder", rel, r.path, noun(st.Mode))
	}
	return faultf(ErrNotFolder, "%s cannot be in the workspace %s: %s is a %s, not a folder", rel, r.path, part, noun(st.Mode))
}

func (r *Root) isLink(rel, part string) error {
	if rel == part {
		part = "it"
	}
	return faultf(ErrOutside, "%s may lead out of the workspace %s: %s is a symbolic link, and none is followed. Use the path of what it leads to", rel, r.path, part)
}

// notFile says what rel is, which should be a file.
func (r *Root) notFile(rel string, mode uint32) error {
	if mode&unix.S_IFMT == unix.S_IFLNK {
		return r.isLink(rel, rel)
	}
	return faultf(ErrNotFile, "%s in the workspace %s is a %s, not a file", rel, r.path, noun(mode))
}

// noun is what people call a file of this mode.
func noun(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "folder"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFREG:
		return "file"
	case unix.S_IFIFO:
		return "pipe"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// reason is an error without the path that Go puts in front.
func reason(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// short is a name that people can bear to read.
func short(name string) string {
	if len(name) > 80 {
		return strings.ToValidUTF8(name[:80], "") + "…"
	}
	return name
}
