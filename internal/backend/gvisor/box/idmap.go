package box

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"ravi/internal/backend/gvisor"
)

// idMaps makes the user namespaces that describe how the owners of files on
// disk appear on a mount. They hold no process; the mount keeps them alive.
type idMaps struct {
	r    gvisor.Request
	made map[[2]uint32]*os.File
	base *os.File
}

func newIDMaps(r gvisor.Request) *idMaps {
	return &idMaps{r: r, made: map[[2]uint32]*os.File{}}
}

func (m *idMaps) close() {
	for _, f := range m.made {
		f.Close()
	}
	if m.base != nil {
		m.base.Close()
	}
}

// get returns the namespace for a mount, or nil where none is needed: a maker
// that is root only in its own user namespace cannot translate, and need not,
// since that namespace already shows its user's files as the guest's.
func (m *idMaps) get(mount gvisor.Mount) (*os.File, error) {
	if m.r.Rootless {
		return nil, nil
	}
	if mount.Guest == "/" {
		// The image is ours: on disk its owners are the guest's own numbers.
		if m.base == nil {
			all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(m.r.IDBase), Size: int(m.r.IDCount)}}
			f, err := userNamespace(all, all)
			if err != nil {
				return nil, err
			}
			m.base = f
		}
		return m.base, nil
	}
	key := [2]uint32{mount.OwnerUID, mount.OwnerGID}
	if f := m.made[key]; f != nil {
		return f, nil
	}
	f, err := userNamespace(m.owner(mount.OwnerUID), m.owner(mount.OwnerGID))
	if err != nil {
		return nil, err
	}
	m.made[key] = f
	return f, nil
}

// owner maps the owner's id on disk to the guest's user. All other ids of the
// guest stand for themselves, which are ids that nobody has on the host: so
// what guest root makes belongs to no one.
func (m *idMaps) owner(id uint32) []syscall.SysProcIDMap {
	base, n := int(m.r.IDBase), int(m.r.IDCount)
	return []syscall.SysProcIDMap{
		{ContainerID: int(id), HostID: base + gvisor.GuestUser, Size: 1},
		{ContainerID: base, HostID: base, Size: gvisor.GuestUser},
		{ContainerID: base + gvisor.GuestUser + 1, HostID: base + gvisor.GuestUser + 1, Size: n - gvisor.GuestUser - 1},
	}
}

// userNamespace makes a user namespace with these mappings and nothing in it.
// A child is started in it, stopped before its first instruction, and ended.
func userNamespace(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	runtime.LockOSThread() // ptrace belongs to a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER,
		UidMappings:                uids,
		GidMappings:                gids,
		GidMappingsEnableSetgroups: false,
		Ptrace:                     true,
		Pdeathsig:                  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot make a user namespace: %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
	if err != nil {
		return nil, fmt.Errorf("cannot open the user namespace: %w", err)
	}
	return f, nil
}
