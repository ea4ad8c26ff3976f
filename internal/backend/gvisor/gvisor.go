// Package gvisor makes sandboxes with gVisor, the kernel that is inside the
// program ravi.
//
// This package only describes the sandbox and starts its keeper, which starts
// ravi-kernel as the maker; package box is what runs there. So a program
// that uses this package does not contain gVisor. It may write beneath the
// sandbox's directory, Ravi's home and /run/ravi; it must not read what a guest
// wrote.
package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"ravi/internal/backend"
	"ravi/internal/keeper"
	"ravi/internal/link"
	"ravi/internal/network/tap"
	"ravi/internal/programs"
	"ravi/internal/rootfs"
)

// MakerName is the name under which ravi-kernel is started as the maker.
const MakerName = "ravi-box"

// lanes is how many processes of a sandbox, in its life, have their input and
// output to themselves. Each costs two pipes from the sandbox's start.
const lanes = 8

// Backend is the gVisor backend.
type Backend struct{}

var _ backend.Backend = Backend{}

// Name is "gvisor".
func (Backend) Name() string { return "gvisor" }

// Create begins to make a sandbox.
func (Backend) Create(ctx context.Context, s backend.Spec) (backend.Instance, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("%w: gVisor runs on Linux only", backend.ErrUnavailable)
	}
	progs, err := programs.Find(ctx, s.Home)
	if err != nil {
		return nil, err
	}
	root, err := rootfs.Prepare(s.Home, s.Image)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"", "overlay", "kernel"} {
		if err := os.Mkdir(filepath.Join(s.Dir, d), 0o700); err != nil && !os.IsExist(err) {
			return nil, fmt.Errorf("preparing the sandbox: %w", err)
		}
	}
	rootless := os.Geteuid() != 0
	req := Request{
		ID: s.ID, Dir: s.Dir,
		Image: root.Dir, Host: root.Host, Hidden: root.Hidden,
		Guest: progs.Guest,
		Env: []string{
			"PATH=" + guestPath(os.Getenv("PATH")),
			"RAVI_MEMORY_LIMIT=" + strconv.FormatInt(s.Memory, 10),
		},
		CPUs: s.CPUs, Memory: s.Memory, Overhead: memoryOverhead(s.Memory), Disk: s.Disk, Processes: s.Processes,
		Rootless:   rootless,
		Network:    s.Network != nil,
		Checkpoint: s.Checkpoint,
		Debug:      os.Getenv("RAVI_GVISOR_DEBUG"),
	}
	if s.Checkpoint == "" {
		req.LinkToken, req.Lanes = rand.Text(), lanes
	} else if old, err := readSaved(s.Checkpoint); err != nil {
		return nil, err
	} else {
		req.LinkToken, req.Lanes = old.LinkToken, old.Lanes
	}
	req.Env = append(req.Env, link.EnvToken+"="+req.LinkToken, link.EnvLanes+"="+strconv.Itoa(req.Lanes))
	if s.WorkspaceOnly {
		req.MayMount = true
		req.Env = append(req.Env, "RAVI_WRITABLE="+strings.Join(writable, ":"))
	}
	for _, m := range s.Mounts {
		gm := Mount{Host: m.Host, Guest: m.Guest, ReadOnly: m.ReadOnly, Overlay: m.Overlay, Mapped: m.Own, Real: m.Real}
		if m.Own {
			var st syscall.Stat_t
			if err := syscall.Stat(m.Host, &st); err != nil {
				return nil, fmt.Errorf("cannot share %s: %w", m.Host, err)
			}
			gm.OwnerUID, gm.OwnerGID = st.Uid, st.Gid
		}
		req.Mounts = append(req.Mounts, gm)
	}
	var attr *syscall.SysProcAttr
	var held []*os.File
	if rootless {
		// The keeper, and so all that it starts, is root of a user namespace
		// in which this user is the only one there is.
		attr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
		req.IDBase, req.IDCount = 0, 1
	} else {
		req.Cgroup = "/ravi/" + s.ID
		n, slot, err := claim(slotDir, s.ID, idSlots)
		if err != nil {
			return nil, err
		}
		defer slot.Close() // the keeper has it from here on
		req.IDBase, req.IDCount = idFirst+n*idSlot, idCount
		held = append(held, slot)
	}
	b, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	plan := keeper.Plan{
		ID: s.ID, Dir: s.Dir,
		Relay: progs.Relay, Maker: progs.Kernel, MakerArgs: []string{MakerName}, Request: b,
		Cgroup: req.Cgroup, Owner: s.Owner,
		LinkToken: req.LinkToken, Resume: s.Checkpoint != "", Lanes: req.Lanes,
	}
	if !rootless {
		plan.RelayUID = req.IDBase + idCount
		plan.RelayGID = plan.RelayUID
	}
	if s.Network != nil {
		plan.Network = &keeper.Network{Program: progs.Gateway, Policy: s.Network, RootsFile: s.RootsFile, ProxyAuthFile: s.ProxyAuthFile, Device: tap.Sandbox}
		if !rootless {
			plan.Network.GatewayUID = req.IDBase + idCount + 1
			plan.Network.DialerUID = req.IDBase + idCount + 2
		}
	}
	return keeper.Start(progs.Keeper, plan, attr, held...)
}

// writable is what may be written in a sandbox in which that is the workspace only: that, /tmp, the homes, and what belongs
// to root in there: the guest agent's own folder, that of a run's private repository, and that of the network's certificates.
var writable = []string{"/workspace", "/tmp", "/home/user", "/root", "/run/ravi", "/var/lib/ravi", "/etc/ravi"}

// memoryOverhead is what the kernel's limit lies above the sandbox's: room for
// gVisor's own processes, one of which stands for each of the guest's. Without
// it the host would end the whole sandbox before the guest agent could end the
// process that asks for too much.
func memoryOverhead(limit int64) int64 { return 64<<20 + limit/32 }

// guestPath is the PATH inside: the usual folders, and those of this process's
// own PATH that are seen in there as well, such as /usr/local/go/bin.
func guestPath(host string) string {
	path := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	for _, d := range filepath.SplitList(host) {
		if strings.HasPrefix(filepath.Clean(d), "/usr/") && filepath.Clean(d) == d && !slices.Contains(path, d) {
			path = append(path, d)
		}
	}
	return strings.Join(path, ":")
}
