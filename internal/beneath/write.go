package beneath

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteFile puts data where name is, whole or not at all, and makes the folders above. A file that was there keeps its
// permissions, without setuid and setgid; a new one gets 0644, less the umask. Where this process may give files away,
// the owner stays, and what is new belongs to the owner of its folder; otherwise it belongs to this process's user.
func (r *Root) WriteFile(ctx context.Context, name string, data []byte) error {
	rel, err := r.parseFile(name)
	if err != nil {
		return err
	}
	if err := errors.Join(r.mayChange(rel), ctx.Err()); err != nil {
		return err
	}
	parent, err := r.makeFolders(ctx, path.Dir(rel))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	base := path.Base(rel)
	old, err := r.replaceable(parent, rel)
	if err != nil {
		return err
	}

	temp := ".ravi-" + hex.EncodeToString(random()) + ".tmp"
	mode := uint32(0o644)
	if old.exists {
		mode = 0o600 // until it is what the old one was
	}
	fd, err := unix.Openat(parent, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return r.explain(rel, err)
	}
	f := os.NewFile(uintptr(fd), rel)
	if err = r.fill(ctx, f, rel, data, old); err == nil {
		err = r.rename(parent, temp, base, rel)
	}
	if err != nil {
		_ = unix.Unlinkat(parent, temp, 0) // at its random name lies this file, or what somebody put there against us
	}
	return err
}

func random() []byte {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	return b
}

// former is what is replaced: its permissions, and who is to own what comes, -1 for whoever makes it.
type former struct {
	exists   bool
	mode     uint32
	uid, gid int
}

// replaceable looks at what is at rel, whose folder is open, and refuses it if it is not a file or may not be written.
func (r *Root) replaceable(parent int, rel string) (former, error) {
	var st unix.Stat_t
	fd, err := openat2(parent, path.Base(rel), unix.O_PATH, inside)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Fstat(parent, &st); err != nil {
			return former{}, r.explain(rel, err)
		}
		if int(st.Uid) == os.Geteuid() {
			return former{uid: -1, gid: -1}, nil
		}
		return former{uid: int(st.Uid), gid: int(st.Gid)}, nil
	}
	if err != nil {
		return former{}, r.explain(rel, err)
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return former{}, r.explain(rel, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return former{}, r.notFile(rel, st.Mode)
	}
	if st.Mode&0o222 == 0 {
		return former{}, faultf(ErrReadOnly, "%s in the workspace %s is read-only (mode %04o). To change it nevertheless: chmod u+w %s", rel, r.path, st.Mode&0o777, rel)
	}
	return former{exists: true, mode: st.Mode & 0o777, uid: int(st.Uid), gid: int(st.Gid)}, nil
}

// fill makes of a new file what will take the place of the old one, and closes it.
func (r *Root) fill(ctx context.Context, f *os.File, rel string, data []byte, old former) error {
	err := func() error {
		for len(data) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := f.Write(data[:min(len(data), chunk)])
			if err != nil {
				return err
			}
			data = data[n:]
		}
		// The owner first: to change it clears bits of the mode.
		if err := give(f, old.uid, old.gid); err != nil {
			return err
		}
		if old.exists {
			return f.Chmod(os.FileMode(old.mode))
		}
		return nil
	}()
	if err := errors.Join(err, f.Close()); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return faultf(err, "%s in the workspace %s was not written: %s", rel, r.path, reason(err))
	}
	return nil
}

// give makes a file another user's, if this process may: most may not, and in a user namespace not every user is known.
func give(f *os.File, uid, gid int) error {
	err := f.Chown(uid, gid)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func (r *Root) rename(parent int, temp, base, rel string) error {
	err := unix.Renameat(parent, temp, parent, base)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EISDIR):
		return r.notFile(rel, unix.S_IFDIR)
	case errors.Is(err, unix.ENOENT):
		return faultf(err, "%s in the workspace %s was not written: its folder was changed meanwhile", rel, r.path)
	}
	return r.explain(rel, err)
}

// MakeDir makes a folder, and those above it. One that is there already is left as it is.
func (r *Root) MakeDir(ctx context.Context, name string) error {
	rel, err := r.parse(name)
	if err != nil {
		return err
	}
	if err := r.mayChange(rel); err != nil {
		return err
	}
	fd, err := r.makeFolders(ctx, rel)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// makeFolders opens the folder rel part by part, and makes what is missing. The caller closes it.
func (r *Root) makeFolders(ctx context.Context, rel string) (int, error) {
	at, err := r.open(".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, r.explain(".", err)
	}
	if rel == "." {
		return at, nil
	}
	for end := 0; end < len(rel); end++ {
		part, _, _ := strings.Cut(rel[end:], "/")
		end += len(part)
		next, err := enter(ctx, at, part)
		unix.Close(at)
		if err != nil {
			return -1, r.explain(rel[:end], err)
		}
		at = next
	}
	return at, nil
}

// enter opens the folder name of a folder, and makes it if need be.
func enter(ctx context.Context, dir int, name string) (int, error) {
	if err := ctx.Err(); err != nil {
		return -1, err
	}
	fd, err := openat2(dir, name, unix.O_PATH|unix.O_DIRECTORY, inside)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	made := unix.Mkdirat(dir, name, 0o755)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return -1, made
	}
	fd, err = openat2(dir, name, unix.O_PATH|unix.O_DIRECTORY, inside)
	if err != nil {
		return -1, err
	}
	if made == nil {
		if err := inherit(dir, fd); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// inherit makes a new folder one of its parent's owner. Another one may have been put in its place, so only an empty one
// of ours is given away.
func inherit(parent, fd int) error {
	var above, st unix.Stat_t
	if err := errors.Join(unix.Fstat(parent, &above), unix.Fstat(fd, &st)); err != nil {
		return err
	}
	if above.Uid == st.Uid || st.Uid != uint32(os.Geteuid()) {
		return nil
	}
	d, err := openat2(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, inside)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(d), "")
	defer f.Close()
	if _, err := f.Readdirnames(1); err != io.EOF {
		return err
	}
	return give(f, int(above.Uid), int(above.Gid))
}

// Remove removes a file, a symbolic link (not what it leads to), or an empty folder.
func (r *Root) Remove(ctx context.Context, name string) error {
	rel, err := r.parse(name)
	if err != nil {
		return err
	}
	if rel == "." {
		return faultf(ErrReadOnly, "the workspace %s itself is not removed", r.path)
	}
	if err := errors.Join(r.mayChange(rel), ctx.Err()); err != nil {
		return err
	}
	parent, err := r.open(path.Dir(rel), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return r.explain(rel, err)
	}
	defer unix.Close(parent)
	err = unix.Unlinkat(parent, path.Base(rel), 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(parent, path.Base(rel), unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		return faultf(err, "%s in the workspace %s is a folder that is not empty", rel, r.path)
	}
	return r.explain(rel, err)
}
