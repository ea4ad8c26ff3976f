package maker

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"ravi/internal/keeper"
)

// Seal says what a sealed sandbox does not see of the host, and what of that it
// sees all the same. All paths are real ones.
type Seal struct {
	// Hide are folders that are empty in there, wherever they are seen.
	Hide []string `json:"hide"`
	// Keep are files and folders that stay where they are.
	Keep []Keep `json:"keep"`
	// Link is a name that leads to the guest agent's program.
	Link string `json:"link"`
	// UID and GID are who it is, where there is only one user.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Cgroup is the control group that it is put in; empty: it stays in its
	// keeper's.
	Cgroup string `json:"cgroup,omitempty"`
	// Only has it see nothing of the host's users, and write nothing, but for what
	// it keeps; nil: it sees and writes all that is not hidden.
	Only *Only `json:"only,omitempty"`
}

// Only bounds what a sandbox sees to the host's system and what it keeps.
type Only struct {
	// Home is the home of the host's user, which is hidden wherever it lies.
	Home string `json:"home"`
	// Tmp is seen as /tmp.
	Tmp string `json:"tmp"`
}

// Keep is a file or folder that a sealed sandbox sees.
type Keep struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// start makes the namespaces and starts the guest agent in them. This process is in
// a mount namespace of its own, and in the sandbox's process namespace. It lays
// out here what is seen, and the guest agent gets a user namespace below: to that
// one every mount that it was born with is locked. Neither it nor a namespace
// that it makes can undo one, nor see what is beneath.
func (s *Seal) start(guest Request) (*exec.Cmd, error) {
	// No descriptor but those that are named below.
	if err := unix.CloseRange(supervisorFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("keeping descriptors from other programs: %w", err)
	}
	// The keys of whoever started this are not for what runs in there. Nil makes a
	// keyring that has no name.
	if _, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 && errno != unix.ENOSYS {
		return nil, fmt.Errorf("a keyring of its own: %w", errno)
	}
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWIPC)
	if s.Cgroup != "" {
		// Root there is root to files of the host, also to those that end or
		// stop a control group. It can mount them, but only from its own down.
		if err := keeper.EnterCgroup(s.Cgroup); err != nil {
			return nil, err
		}
		flags |= unix.CLONE_NEWCGROUP
	}
	uids, err := identity("/proc/self/uid_map", s.UID)
	if err != nil {
		return nil, err
	}
	gids, err := identity("/proc/self/gid_map", s.GID)
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/setgroups")
	if err != nil {
		return nil, err
	}
	if err := s.layOut(guest); err != nil {
		return nil, err
	}
	link := []*os.File{os.NewFile(linkRead, "link"), os.NewFile(linkWrite, "link")}
	cmd := &exec.Cmd{
		Path: guest.Guest, Args: []string{guest.Name}, Env: guest.Env, Dir: "/",
		Stderr: os.Stderr, ExtraFiles: link,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: flags, Setsid: true, Pdeathsig: syscall.SIGKILL,
			UidMappings: uids, GidMappings: gids, GidMappingsEnableSetgroups: strings.TrimSpace(string(groups)) == "allow",
		},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s in a user namespace: %w", guest.Guest, err)
	}
	for _, f := range link {
		f.Close() // its end is the guest agent's end
	}
	return cmd, nil
}

// identity maps every id to itself, as far as this process's own namespace goes.
// The only user of a namespace that has one gets the id that he has outside.
func identity(path string, only int) ([]syscall.SysProcIDMap, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []syscall.SysProcIDMap
	for line := range strings.Lines(string(b)) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
		one := syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: count}
		if count == 1 {
			one.ContainerID = only
		}
		out = append(out, one)
	}
	return out, nil
}

// tree is something that is to be seen, held while its place is covered.
type tree struct {
	fd     int
	path   string
	folder bool
}

// take holds what is seen at a path, with all that is mounted beneath.
func take(path string, attrs uint64) (t tree, err error) {
	t = tree{path: path, fd: -1}
	st, err := os.Stat(path)
	if err != nil {
		return t, err
	}
	t.folder = st.IsDir()
	t.fd, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return t, fmt.Errorf("taking hold of %s: %w", path, err)
	}
	if attrs != 0 {
		err = unix.MountSetattr(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attrs})
	}
	if err != nil {
		unix.Close(t.fd)
		return t, fmt.Errorf("bounding what %s is: %w", path, err)
	}
	return t, nil
}

// put lets it be seen at its path, which is made if need be.
func (t tree) put() error {
	defer unix.Close(t.fd)
	if _, err := os.Lstat(t.path); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
			return err
		}
		if t.folder {
			err = os.Mkdir(t.path, 0o700)
		} else {
			err = os.WriteFile(t.path, nil, 0o600)
		}
		if err != nil {
			return err
		}
	}
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("laying out %s: %w", t.path, err)
	}
	return nil
}

// layOut makes of this process's mount namespace what the sandbox sees.
func (s *Seal) layOut(guest Request) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("closing the mount namespace: %w", err)
	}
	all, err := mounts()
	if err != nil {
		return err
	}
	run, err := runtimeDirs()
	if err != nil {
		return err
	}
	hide, attrs := []string(nil), uint64(unix.MOUNT_ATTR_NODEV)
	if s.Only != nil {
		if hide, err = userFiles(s.Only.Home); err != nil {
			return err
		}
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	covers, err := coverings(all, run.dirs, s.Hide, hide)
	if err != nil {
		return err
	}
	var trees []tree
	keep := append(slices.Clone(run.keep), s.Keep...)
	for _, k := range append(keep, Keep{guest.Guest, true}) {
		hidden := slices.ContainsFunc(covers, func(c string) bool { return within(k.Path, c) })
		if !hidden && !k.ReadOnly && s.Only == nil {
			continue // it is seen as it is
		}
		var attrs uint64
		if k.ReadOnly {
			attrs = unix.MOUNT_ATTR_RDONLY
		}
		at := []place{{k.Path, k.Path}}
		if !hidden && k.ReadOnly {
			at = places(all, k.Path, false)
		}
		for _, p := range at {
			if hidden || p.there() {
				t, err := take(p.path, attrs|unix.MOUNT_ATTR_NODEV)
				if err != nil {
					return err
				}
				trees = append(trees, t)
			}
		}
	}
	if s.Only != nil {
		t, err := take(s.Only.Tmp, unix.MOUNT_ATTR_NODEV)
		if err != nil {
			return err
		}
		t.path = tmp
		trees = append(trees, t)
	}
	devices, err := takeDevices()
	if err != nil {
		return err
	}
	if err := ownRoot(s.Hide[0]); err != nil {
		return err
	}
	// Root in there has the rights of the host's root to a disk's device, wherever
	// one lies.
	if err := setAttrs("/", attrs); err != nil {
		return err
	}
	for _, c := range covers {
		if err := cover(c); err != nil {
			return err
		}
	}
	slices.SortStableFunc(trees, func(a, b tree) int { return strings.Compare(a.path, b.path) })
	for _, t := range trees {
		if err := t.put(); err != nil {
			return err
		}
	}
	if err := run.restore(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.Link), 0o700); err != nil {
		return err
	}
	if err := os.Symlink(guest.Guest, s.Link); err != nil {
		return err
	}
	for _, c := range covers {
		if slices.Contains(run.dirs, c) || s.Only != nil && c == tmp {
			continue // programs make their own sockets, locks and files there
		}
		if err := unix.MountSetattr(unix.AT_FDCWD, c, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("closing %s: %w", c, err)
		}
	}
	return kernelFiles(devices)
}

// tmp is where programs make files that they will not need for long.
const tmp = "/tmp"

// coverings are the places at which what is to be hidden is seen, none of them
// within another, and those of other instances of what shows devices or
// processes. deep has what is mounted beneath hidden elsewhere, too. Of here only
// these paths are hidden.
func coverings(all []mount, hide, deep, here []string) ([]string, error) {
	found := slices.Clone(here)
	for i, dir := range append(slices.Clone(hide), deep...) {
		for _, p := range places(all, dir, i >= len(hide)) {
			if !p.there() {
				continue
			}
			if p.path != dir && within(dir, p.path) {
				return nil, fmt.Errorf("%s cannot be hidden, since what is mounted at %s is mounted in it as well", dir, p.path)
			}
			found = append(found, p.path)
		}
	}
	for _, m := range all {
		if m.kind == "proc" && !within(m.point, "/proc") || m.kind == "devtmpfs" && !within(m.point, "/dev") || m.kind == "sysfs" && !within(m.point, "/sys") {
			found = append(found, m.point)
		}
	}
	slices.Sort(found)
	var out []string
	for _, p := range found {
		if !slices.ContainsFunc(out, func(c string) bool { return within(p, c) }) {
			out = append(out, p)
		}
	}
	return out, nil
}

// cover lays an empty folder, or a file that nobody can open, over a path.
func cover(path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it lies in what was covered before
	}
	if err != nil {
		return err
	}
	if !st.IsDir() {
		t, err := take("/dev/null", unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return err
		}
		t.path = path
		return t.put()
	}
	mode := fmt.Sprintf("size=16m,mode=%o", st.Mode().Perm())
	if err := unix.Mount("ravi", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, mode); err != nil {
		return fmt.Errorf("hiding %s: %w", path, err)
	}
	return nil
}

// ownRoot leaves in the mount namespace only what can be reached from this
// process's root, by way of a folder that will be covered.
func ownRoot(by string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("taking hold of the root: %w", err)
	}
	defer unix.Close(fd)
	err = unix.MoveMount(fd, "", unix.AT_FDCWD, by, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err == nil {
		err = unix.Fchdir(fd)
	}
	if err == nil {
		err = unix.PivotRoot(".", ".")
	}
	if err == nil {
		// The old root lies on top of the new one.
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	if err == nil {
		err = unix.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("a root of its own: %w", err)
	}
	return nil
}

// setAttrs adds attributes to the mount at a path and all beneath.
func setAttrs(path string, attrs uint64) error {
	if err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attrs}); err != nil {
		return fmt.Errorf("bounding what is seen at %s: %w", path, err)
	}
	return nil
}
