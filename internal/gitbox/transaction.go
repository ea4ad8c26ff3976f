package gitbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// transaction replaces files of a work tree, and can take it all back. What is new is written aside first; what was there
// is moved aside, never removed, until everything is in place.
type transaction struct {
	work *root
	dir  string // aside, in the work tree itself, so that moving is renaming
	undo []func() error
}

// place makes the changes: new files come from the directory out. seen is how the work tree looked when the changes were
// computed; what looks otherwise now ends it.
func place(work *root, out string, changes []PathChange, seen map[string]unix.Stat_t) (err error) {
	from, err := openRoot(out)
	if err != nil {
		return err
	}
	defer from.Close()
	aside, err := os.MkdirTemp(work.path, leftover)
	if err != nil {
		return err
	}
	t := &transaction{work: work, dir: path.Base(aside)}
	defer func() {
		if err != nil {
			if back := t.back(); back != nil {
				err = fmt.Errorf("%w; and taking it back failed, the former files are in %s: %w", err, printable(aside), back)
				return
			}
		}
		if rerr := os.RemoveAll(aside); err == nil && rerr != nil {
			err = fmt.Errorf("the patch is applied, but %s could not be removed: %w", printable(aside), rerr)
		}
	}()
	for _, d := range []string{"/new", "/old"} {
		if err := work.mkdir(t.dir+d, 0o700); err != nil {
			return err
		}
	}
	list, err := json.MarshalIndent(changes, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(aside+"/list", list, 0o600); err != nil {
		return err
	}
	for i, c := range changes {
		if c.Status == "D" {
			continue
		}
		if err := t.stage(from, i, c, seen[c.Path]); err != nil {
			return diskFull(err)
		}
	}
	for _, c := range changes {
		if err := t.unchanged(c, seen[c.Path]); err != nil {
			return err
		}
	}
	for i, c := range changes {
		if c.Status != "A" {
			if err := t.moveAway(i, c); err != nil {
				return err
			}
		}
	}
	for i, c := range changes {
		if c.Status == "D" {
			continue
		}
		if err := t.moveIn(i, c); err != nil {
			return diskFull(err)
		}
	}
	return nil
}

func diskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return err
}

// back undoes, last first, and goes on after a failure: each file that returns is one less lost.
func (t *transaction) back() error {
	var all error
	for i := len(t.undo) - 1; i >= 0; i-- {
		all = errors.Join(all, t.undo[i]())
	}
	return all
}

func (t *transaction) fresh(i int) string { return t.dir + "/new/" + strconv.Itoa(i) }
func (t *transaction) old(i int) string   { return t.dir + "/old/" + strconv.Itoa(i) }

// stage writes a new file aside, with the owner and permissions that it will have.
func (t *transaction) stage(from *root, i int, c PathChange, was unix.Stat_t) error {
	if c.NewMode == "120000" {
		target, err := from.readlink(c.Path)
		if err == nil {
			err = t.work.symlink(target, t.fresh(i))
		}
		if err != nil {
			return err
		}
		return t.own(i, c, was)
	}
	in, _, err := from.open(c.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	perm := uint32(0o666)
	if c.NewMode == "100755" {
		perm = 0o777
	}
	f, err := t.work.create(t.fresh(i), perm)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, in); err != nil {
		return err
	}
	if err := t.own(i, c, was); err != nil {
		return err
	}
	if was.Mode&unix.S_IFMT == unix.S_IFREG {
		mode := was.Mode & 0o777 &^ 0o111
		if c.NewMode == "100755" {
			mode |= mode & 0o444 >> 2
		}
		if err := unix.Fchmod(int(f.Fd()), mode); err != nil {
			return err
		}
	}
	return f.Sync()
}

// own gives a file that root writes to whom its predecessor, or else the work tree, belongs to.
func (t *transaction) own(i int, c PathChange, was unix.Stat_t) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := t.owner(was)
	if err != nil {
		return err
	}
	return t.work.chown(t.fresh(i), uid, gid)
}

func (t *transaction) owner(was unix.Stat_t) (uid, gid uint32, err error) {
	if was.Mode != 0 {
		return was.Uid, was.Gid, nil
	}
	var st unix.Stat_t
	err = unix.Fstat(int(t.work.dir.Fd()), &st)
	return st.Uid, st.Gid, err
}

// unchanged tells whether a path still looks as it did when the merge was made.
func (t *transaction) unchanged(c PathChange, was unix.Stat_t) error {
	now, err := t.work.lstat(c.Path)
	if err != nil && !gone(err) {
		return err
	}
	name := printable(c.Path)
	switch {
	case c.Status == "A" && err == nil && now.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%w: %s would be overwritten; it is an ignored file, or was made just now", ErrConflict, name)
	case c.Status == "A":
		return nil // a directory in the way is found when the file is moved in
	case err != nil:
		return fmt.Errorf("%w: %s is not in the work tree (a sparse check-out?)", ErrConflict, name)
	case now.Ino != was.Ino || now.Dev != was.Dev || now.Size != was.Size || now.Mode != was.Mode || now.Mtim != was.Mtim || now.Ctim != was.Ctim:
		return fmt.Errorf("%w: %s was changed while the patch was being applied", ErrConflict, name)
	}
	return nil
}

// moveAway takes a file out of its place, and the directories that it leaves empty.
func (t *transaction) moveAway(i int, c PathChange) error {
	if err := t.work.rename(c.Path, t.old(i)); err != nil {
		return err
	}
	t.undo = append(t.undo, func() error { return t.work.rename(t.old(i), c.Path) })
	if c.Status != "D" {
		return nil
	}
	for dir := path.Dir(c.Path); dir != "."; dir = path.Dir(dir) {
		st, err := t.work.lstat(dir)
		if err != nil {
			return err
		}
		if err := t.work.rmdir(dir); err != nil {
			if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
				return nil
			}
			return err
		}
		t.undo = append(t.undo, func() error {
			if err := t.work.mkdir(dir, st.Mode&0o7777); err != nil || os.Geteuid() != 0 {
				return err
			}
			return t.work.chown(dir, st.Uid, st.Gid)
		})
	}
	return nil
}

func (t *transaction) moveIn(i int, c PathChange) error {
	made, err := t.work.mkdirs(c.Path)
	for _, dir := range made {
		t.undo = append(t.undo, func() error { return t.work.rmdir(dir) })
		if uid, gid, oerr := t.owner(unix.Stat_t{}); oerr == nil && os.Geteuid() == 0 {
			err = errors.Join(err, t.work.chown(dir, uid, gid))
		}
	}
	if err == nil {
		err = t.work.rename(t.fresh(i), c.Path)
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%w: something that Git does not know lies in the way of %s", ErrConflict, printable(c.Path))
	}
	if err != nil {
		return err
	}
	t.undo = append(t.undo, func() error { return t.work.rename(c.Path, t.fresh(i)) })
	return nil
}
