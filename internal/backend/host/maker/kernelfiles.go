package maker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// runtime is /run and the like, where the host's services have their sockets. By
// those of systemd, D-Bus or Docker a program is started outside, with one line.
type runtime struct {
	dirs  []string
	keep  []Keep
	links map[string]string // those that lead elsewhere, as to NixOS's programs
}

func runtimeDirs() (r runtime, err error) {
	r.links = map[string]string{}
	for _, dir := range []string{"/run", "/var/run"} {
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, os.ErrNotExist) || err == nil && real != dir {
			continue
		}
		if err != nil {
			return r, err
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return r, err
		}
		r.dirs = append(r.dirs, dir)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if to, err := os.Readlink(path); err == nil && filepath.IsAbs(to) {
				r.links[path] = to
			}
		}
	}
	// Names are looked up through a file that often lies there. It is replaced now
	// and then, so it is its folder that is kept.
	if real, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil {
		for _, dir := range r.dirs {
			if parent := filepath.Dir(real); parent == dir {
				r.keep = append(r.keep, Keep{real, true})
			} else if within(parent, dir) {
				r.keep = append(r.keep, Keep{parent, true})
			}
		}
	}
	return r, nil
}

// restore makes the links anew.
func (r runtime) restore() error {
	for path, to := range r.links {
		if err := os.Symlink(to, path); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// The devices that are seen. A disk is none of them, nor is memory, nor a
// terminal of somebody else's.
var (
	devices      = []string{"null", "zero", "full", "random", "urandom", "tty"}
	deviceExtras = []string{"kvm", "fuse", "net/tun"} // where there are such
)

func takeDevices() (out []tree, err error) {
	for i, name := range append(devices, deviceExtras...) {
		t, err := take(filepath.Join("/dev", name), unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if errors.Is(err, os.ErrNotExist) && i >= len(devices) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// kernelFiles makes /dev, /sys and /proc.
func kernelFiles(devices []tree) error {
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	if err := unix.Mount("ravi", "/dev", "tmpfs", flags, "size=1m,mode=755"); err != nil {
		return fmt.Errorf("a /dev of its own: %w", err)
	}
	for _, dir := range []string{"/dev/pts", "/dev/shm"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for _, t := range devices {
		if err := t.put(); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Dir(t.path), 0o755); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join("/dev", name)); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0600"); err != nil {
		return fmt.Errorf("terminals of its own: %w", err)
	}
	if err := unix.Mount("ravi", "/dev/shm", "tmpfs", flags|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("shared memory of its own: %w", err)
	}
	if err := setAttrs("/sys", unix.MOUNT_ATTR_RDONLY); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", flags|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("a /proc of its own: %w", err)
	}
	return closeSettings()
}

// closeSettings makes read-only what the host's root sets in /proc. The root of a
// user namespace in which everybody is himself is that root to these files. While
// they are covered, the kernel gives nobody below another /proc.
func closeSettings() error {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	// An ordinary user can write none of them, and is left free to make
	// namespaces with a /proc.
	if f := strings.Fields(string(b)); len(f) == 3 && f[2] == "1" {
		return nil
	}
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"} {
		t, err := take(filepath.Join("/proc", name), unix.MOUNT_ATTR_RDONLY)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = t.put()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
