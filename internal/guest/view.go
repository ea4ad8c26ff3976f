package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// moved are files elsewhere that Ravi writes when it sets up the network, with the rights of root.
var moved = []string{"/etc/resolv.conf", "/etc/gitconfig", "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}

// movedTo is the folder that they are in once the rest is closed; it is one of the writable ones.
const movedTo = "/etc/ravi"

// CloseFiles leaves nothing writable but the folders, which are made if need be, and what else is mounted, such as a
// shared workspace. It is for PID 1 of a sandbox, before it does anything for others: it gives up the right to undo it,
// so that all that it starts lacks that, root's processes too. What these make of namespaces in which they have the right
// again holds the same mounts, which are locked there.
func CloseFiles(writable []string) error {
	for _, dir := range writable {
		// Not MkdirAll: who may enter what is above is the image's to say.
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keeping %s writable: %w", dir, err)
		}
	}
	for _, path := range moved {
		if err := move(path); err != nil {
			return err
		}
	}
	// Devices in /dev are written to all the same.
	for _, dir := range []string{"/dev", "/"} {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making %s read-only: %w", dir, err)
		}
	}
	if err := dropForGood(unix.CAP_SYS_ADMIN); err != nil {
		return fmt.Errorf("giving up the right to mount: %w", err)
	}
	return nil
}

// move has a file, if there is a place for it, lie where it can be written.
func move(path string) error {
	content, err := os.ReadFile(path)
	if _, no := os.Stat(filepath.Dir(path)); no != nil {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to := filepath.Join(movedTo, strings.ReplaceAll(path[1:], "/", "-"))
	if err := os.WriteFile(to, content, 0o644); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(to, path)
}

// dropForGood gives up a right of this process, and of all that it will start. A thread has rights of its own, and any of
// them may start a process.
func dropForGood(right uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, right, 0); errno != 0 {
		return errno
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	keep := ^(uint32(1) << (right % 32))
	s := &sets[right/32]
	s.Effective, s.Permitted, s.Inheritable = s.Effective&keep, s.Permitted&keep, s.Inheritable&keep
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&sets)
	if errno != 0 {
		return errno
	}
	return nil
}
