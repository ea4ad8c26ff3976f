package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"ravi/internal/backend/gvisor"
)

// layout is where things are for gVisor's processes. The maker's mount
// namespace is its own: it puts what the sandbox is to see on a small file
// system over a directory that is there on every host, so that those
// processes, which are nobody outside, can walk to it without passing one that
// is closed to others. The host sees none of these mounts.
type layout struct {
	stage, bundle, rootfs, overlay string

	mounts []specs.Mount
	notes  []string
}

// stages are directories that may be covered.
var stages = []string{"/mnt", "/media", "/srv", "/opt", "/tmp"}

// newLayout picks a directory to cover: none that Ravi's own files lie in.
func newLayout(r gvisor.Request) (*layout, error) {
	for _, s := range stages {
		st, err := os.Lstat(s)
		if err != nil || !st.IsDir() {
			continue
		}
		covers := func(path string) bool { return path != "" && (path == s || strings.HasPrefix(path, s+"/")) }
		if covers(r.Dir) || covers(r.Checkpoint) || covers(r.Debug) {
			continue
		}
		return &layout{stage: s, bundle: filepath.Join(s, "bundle"), rootfs: filepath.Join(s, "rootfs"), overlay: filepath.Join(s, "overlay")}, nil
	}
	return nil, hinted{errors.New("there is no directory to assemble the sandbox in"), "make an empty directory /mnt"}
}

// layOut assembles the root file system and the volumes.
func layOut(r gvisor.Request) (*layout, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("closing the mount namespace: %w", err)
	}
	if err := ownProc(); err != nil {
		return nil, err
	}
	l, err := newLayout(r)
	if err != nil {
		return nil, err
	}
	if r.Rootless {
		l.notes = append(l.notes, rootlessNote)
	}
	ids := newIDMaps(r)
	defer ids.close()

	// Take hold of everything by its path on the host before any of it is covered.
	var trees []tree
	defer func() {
		for _, t := range trees {
			unix.Close(t.fd)
		}
	}()
	take := func(path, at string, m gvisor.Mount, recursive bool) error {
		t, err := takeTree(path, at, m, recursive, ids)
		if err == nil {
			trees = append(trees, t)
		}
		return err
	}
	if err := take(r.Image, "rootfs", gvisor.Mount{ReadOnly: true, Mapped: true, Guest: "/"}, false); err != nil {
		return nil, err
	}
	for _, h := range r.Host {
		if err := take(h, filepath.Join("rootfs", h), gvisor.Mount{ReadOnly: true}, true); err != nil {
			return nil, err
		}
	}
	if err := take(r.Guest, filepath.Join("rootfs", gvisor.GuestPath), gvisor.Mount{ReadOnly: true}, false); err != nil {
		return nil, err
	}
	for i, m := range r.Mounts {
		at := filepath.Join("volumes", fmt.Sprint(i))
		if m.Overlay {
			// Below the root's overlay: the guest writes, the host does not see it.
			at = filepath.Join("rootfs", m.Guest)
			m.ReadOnly = true
		} else {
			opts := []string{"rbind", "rw"}
			if m.ReadOnly {
				opts[1] = "ro"
			}
			l.mounts = append(l.mounts, specs.Mount{
				Destination: m.Guest, Type: "bind", Source: filepath.Join(l.stage, at), Options: opts,
			})
		}
		// Without rights on the host, what is mounted below cannot be left out.
		if err := take(m.Host, at, m, r.Rootless); err != nil {
			return nil, err
		}
	}
	if err := take(filepath.Join(r.Dir, "overlay"), "overlay", gvisor.Mount{}, false); err != nil {
		return nil, err
	}

	if err := unix.Mount("ravi", l.stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return nil, fmt.Errorf("making a place for the sandbox's files: %w", err)
	}
	for _, d := range []string{l.bundle, l.rootfs, l.overlay, filepath.Join(l.stage, "volumes")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	for _, t := range trees {
		if err := t.attach(l.stage); err != nil {
			return nil, err
		}
	}
	for _, m := range l.mounts {
		st, err := os.Stat(m.Source)
		if err != nil {
			return nil, err
		}
		if err := mountPoint(l.rootfs, m.Destination, st.IsDir()); err != nil {
			return nil, err
		}
	}
	for _, h := range r.Hidden {
		at := filepath.Join(l.rootfs, h)
		if _, err := os.Lstat(at); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := unix.Mount("ravi", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, "size=4k,mode=755"); err != nil {
			return nil, fmt.Errorf("hiding %s: %w", h, err)
		}
	}
	return l, nil
}

// rootlessNote is what a user without root is told, once a sandbox.
const rootlessNote = "Ravi runs without root: limits on processors and processes are not enforced, the memory limit only by the agent inside, " +
	"and on shared folders commands run as the sandbox's root, which is you outside; run Ravi as root for all of it"

// ownProc mounts the proc file system of the sandbox's process namespace, in
// which the process ids that gVisor records have their meaning.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("closing the mount namespace: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting proc: %w", err)
	}
	return nil
}

// tree is a detached mount, and where it is to be put.
type tree struct {
	fd   int
	path string // on the host, for messages
	at   string // below stage
	dir  bool
}

// takeTree clones the mount at path and gives it the rights of m.
func takeTree(path, at string, m gvisor.Mount, recursive bool, ids *idMaps) (t tree, err error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := openTree(path, flags, m.Real)
	if err != nil {
		return t, hinted{fmt.Errorf("cannot take %s into the sandbox: %w", path, err), "check that it exists and is not a symbolic link"}
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return t, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if m.Mapped {
		ns, err := ids.get(m)
		if err != nil {
			return t, err
		}
		if ns != nil {
			if m.Real && (st.Uid != m.OwnerUID || st.Gid != m.OwnerGID) {
				return t, hinted{fmt.Errorf("cannot take %s into the sandbox: it became another's meanwhile", path), "try again, once nobody moves it"}
			}
			attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
			attr.Userns_fd = uint64(ns.Fd())
		}
	}
	set := uint(unix.AT_EMPTY_PATH)
	if recursive {
		set |= unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(fd, "", set, &attr); err != nil {
		err = fmt.Errorf("cannot restrict %s for the sandbox: %w", path, err)
		if m.Mapped {
			return t, hinted{err, "its file system cannot translate owners (Linux 5.15 with ext4, xfs, btrfs or, from 6.3, tmpfs can); move it, or use a copy-on-write workspace on such a file system"}
		}
		return t, err
	}
	return tree{fd: fd, path: path, at: at, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// openTree clones the mount at path. A real path is walked without following a link, so that what was checked is what
// is taken: who can write in a folder above could put one there in between.
func openTree(path string, flags uint, real bool) (int, error) {
	if !real {
		return unix.OpenTree(unix.AT_FDCWD, path, flags)
	}
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	return unix.OpenTree(at, "", flags|unix.AT_EMPTY_PATH)
}

// attach puts the tree below the stage. What it is mounted on must exist or
// be creatable; a path that leads out of the stage is refused.
func (t tree) attach(stage string) error {
	at := filepath.Join(stage, t.at)
	if !strings.HasPrefix(at, stage+"/") {
		return fmt.Errorf("%s is outside the sandbox", t.at)
	}
	root, err := unix.Open(stage, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	target, err := unix.Openat2(root, t.at, &how)
	if errors.Is(err, unix.ENOENT) {
		if t.dir {
			err = os.MkdirAll(at, 0o755)
		} else {
			if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
				err = os.WriteFile(at, nil, 0o644)
			}
		}
		if err == nil {
			target, err = unix.Openat2(root, t.at, &how)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot put %s at /%s: %w", t.path, t.at, err)
	}
	defer unix.Close(target)
	if err := unix.MoveMount(t.fd, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot put %s at /%s: %w", t.path, t.at, err)
	}
	return nil
}
