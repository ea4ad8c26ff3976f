package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpened bounds the entries of a directory that is opened for a mount point.
const maxOpened = 4096

// mountPoint makes a place for a volume at guest below root, where the image
// has none. The image is shared and stays as it is: the directory that lacks
// the place is covered by a small file system that holds all of its entries,
// mounted one by one, and the new one.
func mountPoint(root, guest string, dir bool) error {
	at, rest := root, strings.Split(strings.Trim(filepath.Clean(guest), "/"), "/")
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		st, err := os.Lstat(next)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		switch {
		case st.Mode()&os.ModeSymlink != 0:
			return hinted{fmt.Errorf("a volume at %s: %s is a symbolic link in the image", guest, strings.TrimPrefix(next, root)), "name the path that it leads to"}
		case !st.IsDir() && (len(rest) > 1 || dir), st.IsDir() && len(rest) == 1 && !dir:
			return hinted{fmt.Errorf("a volume at %s: in the image something of another kind is at %s", guest, strings.TrimPrefix(next, root)), "choose another path in the sandbox"}
		}
		at, rest = next, rest[1:]
	}
	if len(rest) == 0 {
		return nil
	}
	if err := open(at); err != nil {
		return fmt.Errorf("making a place for the volume at %s: %w", guest, err)
	}
	// Modes are set: a umask, such as 077, would close to the sandbox's users what is made without.
	for i, name := range rest {
		at = filepath.Join(at, name)
		if mode := os.FileMode(0o644); i == len(rest)-1 && !dir {
			if err := os.WriteFile(at, nil, mode); err != nil {
				return err
			}
			return os.Chmod(at, mode)
		}
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(at, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// open covers a directory by one with the same entries, to which others can be
// added. One that can be added to is left as it is.
func open(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	if fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_RDONLY == 0 {
		return nil // it was opened for a volume before
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > maxOpened {
		return fmt.Errorf("%s has more than %d entries", dir, maxOpened)
	}
	trees := map[string]tree{}
	defer func() {
		for _, t := range trees {
			unix.Close(t.fd)
		}
	}()
	links := map[string]string{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Type()&os.ModeSymlink != 0 {
			if links[e.Name()], err = os.Readlink(path); err != nil {
				return err
			}
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		trees[e.Name()] = tree{fd: fd, path: path, at: e.Name(), dir: e.IsDir()}
	}
	if err := unix.Mount("ravi", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=%o,nr_inodes=%d", st.Mode&0o7777, 2*maxOpened)); err != nil {
		return err
	}
	if err := os.Lchown(dir, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, t := range trees {
		if err := t.attach(dir); err != nil {
			return err
		}
	}
	return nil
}
