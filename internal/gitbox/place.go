package gitbox

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// create makes a new regular file; it fails where anything has that name.
func (r *root) create(name string, perm uint32) (*os.File, error) {
	var file *os.File
	err := r.at("create", name, func(dir int, base string) error {
		fd, err := openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, perm)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), r.path+"/"+name)
		return nil
	})
	return file, err
}

func (r *root) symlink(target, name string) error {
	return r.at("symlink", name, func(dir int, base string) error { return unix.Symlinkat(target, dir, base) })
}

func (r *root) chown(name string, uid, gid uint32) error {
	return r.at("chown", name, func(dir int, base string) error {
		return unix.Fchownat(dir, base, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (r *root) mkdir(name string, perm uint32) error {
	return r.at("mkdir", name, func(dir int, base string) error { return unix.Mkdirat(dir, base, perm) })
}

func (r *root) rmdir(name string) error {
	return r.at("rmdir", name, func(dir int, base string) error { return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) })
}

// rename moves within the root and fails where anything has the new name.
func (r *root) rename(from, to string) error {
	return r.at("rename", from, func(dir int, base string) error {
		return r.at("rename", to, func(dir2 int, base2 string) error {
			err := unix.Renameat2(dir, base, dir2, base2, unix.RENAME_NOREPLACE)
			if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
				return err
			}
			// A file system that cannot promise it: look first.
			var st unix.Stat_t
			if err := unix.Fstatat(dir2, base2, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
				return unix.EEXIST
			}
			return unix.Renameat(dir, base, dir2, base2)
		})
	})
}

// mkdirs makes the missing directories above name and returns those that it made, outermost first.
func (r *root) mkdirs(name string) (made []string, err error) {
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		switch err := r.mkdir(name[:i], 0o777); {
		case err == nil:
			made = append(made, name[:i])
		case !errors.Is(err, unix.EEXIST):
			return made, err
		}
	}
	return made, nil
}
