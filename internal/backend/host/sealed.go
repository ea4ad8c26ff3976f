package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"ravi/internal/backend"
	"ravi/internal/backend/host/maker"
	"ravi/internal/keeper"
)

// Names within a sealed sandbox's directory.
const (
	// ServicesDir is where the owner's services listen. What is inside can connect,
	// and change nothing there.
	ServicesDir = "services"
	// BinDir holds the name ravi, which leads to the guest agent. It is there only
	// for what is inside.
	BinDir = "bin"

	// HomeDir is the home in a sandbox that sees its workspace only.
	HomeDir = "home"

	privateDir = "private" // what of a run's repository is not the agent's own
)

// seal says what a sealed sandbox sees of Ravi: its own folders, the guest agent's
// program, and what it was given.
func seal(s backend.Spec, path string, guest *maker.Request) error {
	dir, err := realPath(s.Dir)
	if err != nil {
		return err
	}
	guest.Seal = &maker.Seal{Link: filepath.Join(dir, BinDir, "ravi"), UID: os.Geteuid(), GID: os.Getegid()}
	if guest.Guest, err = realPath(guest.Guest); err != nil {
		return err
	}
	guest.Env[0] = "PATH=" + SealedPath(s.Dir, path)
	own := []string{privateDir, ServicesDir}
	if s.WorkspaceOnly {
		own = append(own, HomeDir)
		guest.Seal.Only = &maker.Only{Tmp: filepath.Join(dir, tmpDir)}
		if guest.Seal.Only.Home, err = os.UserHomeDir(); err != nil {
			return fmt.Errorf("hiding your home: %w", err)
		}
	}
	for _, name := range own {
		guest.Dirs = append(guest.Dirs, filepath.Join(s.Dir, name))
	}
	for _, d := range guest.Dirs {
		guest.Seal.Keep = append(guest.Seal.Keep, maker.Keep{Path: filepath.Join(dir, filepath.Base(d)), ReadOnly: filepath.Base(d) == ServicesDir})
	}
	for _, m := range s.Mounts {
		guest.Seal.Keep = append(guest.Seal.Keep, maker.Keep{Path: m.Host, ReadOnly: m.ReadOnly})
	}
	if guest.Seal.Hide, err = homes(s.Home); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		guest.Seal.Cgroup = "/ravi/" + s.ID
	}
	return nil
}

// SealedPath is the PATH in a sealed sandbox.
func SealedPath(dir, path string) string {
	if path == "" {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	return filepath.Join(dir, BinDir) + string(filepath.ListSeparator) + path
}

// realPath resolves a path whose last part may not be there yet.
func realPath(path string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// homes are where this user's Ravi keeps what it knows: the home in use, first,
// the usual one, and what links in them lead to.
func homes(home string) ([]string, error) {
	real, err := filepath.EvalSymlinks(home)
	if err != nil {
		return nil, err
	}
	out := []string{real}
	if user, err := os.UserHomeDir(); err == nil {
		usual, err := filepath.EvalSymlinks(filepath.Join(user, ".ravi"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err == nil && usual != real {
			out = append(out, usual)
		}
	}
	for _, dir := range out {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			// What leads nowhere hides itself.
			if to, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name())); err == nil && e.Type()&os.ModeSymlink != 0 {
				out = append(out, to)
			}
		}
	}
	return out, nil
}

// startSealed starts the keeper of a sealed sandbox. Its processes are in a
// process namespace, whose end ends them.
func startSealed(program string, plan keeper.Plan, cgroup string, workspaceOnly bool, withheld []string) (backend.Instance, error) {
	plan.SameProcesses, plan.KeepMounts, plan.Cgroup = false, false, cgroup
	var attr *syscall.SysProcAttr
	if os.Geteuid() != 0 {
		// The keeper is root of a user namespace in which this user is the only one
		// there is. The guest agent gets another, below, in which it is itself.
		attr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
	}
	h, err := keeper.Start(program, plan, attr)
	if err != nil {
		return nil, fmt.Errorf("%w: the host's commands cannot be kept apart from Ravi here: %w; %s", backend.ErrUnavailable, err, maker.SealHint)
	}
	seen := "Ravi's own files and processes are hidden from them, and nothing else is: they can read and change what " + userName() + " can, and reach the network"
	if workspaceOnly {
		seen = "they see its programs and settings, write in their workspace only, and can reach the network"
	}
	notes := []string{
		"commands run on this host as " + userName() + "; " + seen,
		"limits on processors, memory and disk are not enforced on the host",
	}
	return &instance{Handle: h, notes: append(notes, withheldNote(withheld)...), sealed: true}, nil
}
