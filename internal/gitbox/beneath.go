package gitbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// root reads and changes files beneath one directory. Unlike os.Root it follows no symbolic link at all, not even one that
// stays inside: a link in a work tree that leads to .git must not become a way to write a hook.
type root struct {
	dir  *os.File
	path string
}

func openRoot(path string) (*root, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &root{dir: f, path: path}, nil
}

func (r *root) Close() error { return r.dir.Close() }

var errName = errors.New("unusable path")

// splitName returns the components of a slash-separated relative name.
func splitName(name string) ([]string, error) {
	if name == "" || len(name) > 1<<16 || strings.IndexByte(name, 0) >= 0 {
		return nil, errName
	}
	parts := strings.Split(name, "/")
	for _, p := range parts {
		if p == "" || p == "." || p == ".." {
			return nil, errName
		}
	}
	return parts, nil
}

func retry[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err != unix.EINTR {
			return v, err
		}
	}
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	return retry(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode) })
}

// at calls f with a descriptor of the directory that holds name, and name's last component.
func (r *root) at(op, name string, f func(dir int, base string) error) error {
	fail := func(err error) error { return &fs.PathError{Op: op, Path: r.path + "/" + name, Err: err} }
	parts, err := splitName(name)
	if err != nil {
		return fail(err)
	}
	dir := int(r.dir.Fd())
	for i, p := range parts[:len(parts)-1] {
		next, err := openat(dir, p, unix.O_PATH|unix.O_DIRECTORY, 0)
		if i > 0 {
			unix.Close(dir)
		}
		if err != nil {
			return fail(err)
		}
		dir = next
	}
	if len(parts) > 1 {
		defer unix.Close(dir)
	}
	if err := f(dir, parts[len(parts)-1]); err != nil {
		return fail(err)
	}
	return nil
}

// lstat returns what name itself is.
func (r *root) lstat(name string) (st unix.Stat_t, err error) {
	err = r.at("lstat", name, func(dir int, base string) error {
		return unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, err
}

// gone tells whether an error of lstat means that no such file exists, a link or a file in the place of a parent included.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// open opens a regular file for reading. It does not block on a FIFO.
func (r *root) open(name string) (*os.File, unix.Stat_t, error) {
	var file *os.File
	var st unix.Stat_t
	err := r.at("open", name, func(dir int, base string) error {
		fd, err := openat(dir, base, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			unix.Close(fd)
			return errors.New("not a regular file")
		}
		file = os.NewFile(uintptr(fd), r.path+"/"+name)
		return nil
	})
	return file, st, err
}

// readFile reads a regular file of at most max bytes.
func (r *root) readFile(name string, max int64) ([]byte, error) {
	f, _, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > max {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrTooBig, printable(f.Name()), max)
	}
	return data, nil
}

func (r *root) readlink(name string) (target string, err error) {
	err = r.at("readlink", name, func(dir int, base string) error {
		buf := make([]byte, unix.PathMax+1)
		n, err := unix.Readlinkat(dir, base, buf)
		if err != nil {
			return err
		}
		target = string(buf[:n])
		return nil
	})
	return target, err
}

// sub opens the directory name as a root of its own.
func (r *root) sub(name string) (*root, error) {
	var out *root
	err := r.at("open", name, func(dir int, base string) error {
		fd, err := openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		out = &root{dir: os.NewFile(uintptr(fd), r.path+"/"+name), path: r.path + "/" + name}
		return nil
	})
	return out, err
}

// walk calls f for everything beneath r, directories before what they hold, without following links.
func (r *root) walk(prefix string, f func(name string, mode fs.FileMode) error) error {
	for {
		entries, err := r.dir.ReadDir(512)
		for _, e := range entries {
			name := prefix + e.Name()
			if err := f(name, e.Type()); err != nil {
				return err
			}
			if !e.IsDir() {
				continue
			}
			s, err := r.sub(e.Name())
			if err != nil {
				return err
			}
			err = s.walk(name+"/", f)
			s.Close()
			if err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
