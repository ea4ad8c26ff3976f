package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const attackEnv = "RAVI_TEST_SEALED_ATTACK"

// target is what a hostile program in a sealed sandbox knows. It is more than one
// would have to guess.
type target struct {
	Home string
	// Files are those beneath Home, with Secret in them.
	Files  []string
	Secret string
	// Elsewhere are other paths of the same.
	Elsewhere []string
	Sockets   []string
	// PID is a process outside, with Mark in its arguments.
	PID  int
	Mark string
	// Disk is the device that Home lies on.
	Disk uint64
	// Disks are device files that stand for it.
	Disks []string
	// ReadOnly are folders that it sees and cannot change.
	ReadOnly []string
	// Key is in the keyring of whoever made the sandbox; 0: there is none.
	Key int
	// Level counts the user namespaces that it has made for itself.
	Level int
}

// TestSealedAttack is a hostile program, when it is started as one in a sandbox. It
// prints a line for everything that it got, and how many ways it tried.
func TestSealedAttack(t *testing.T) {
	given := os.Getenv(attackEnv)
	if given == "" {
		return // the tests of sealed sandboxes start it
	}
	runtime.LockOSThread()
	var a attack
	if err := json.Unmarshal([]byte(given), &a.target); err != nil {
		t.Fatal(err)
	}
	var err error
	if a.work, err = os.MkdirTemp(".", "attack"); err != nil {
		t.Fatal(err)
	}
	if a.work, err = filepath.Abs(a.work); err != nil {
		t.Fatal(err)
	}
	a.asItIs()
	a.processes()
	a.descriptors()
	a.devices()
	a.namespaces()
	a.handles()
	a.keys()
	a.mounts()
	if a.Level == 0 {
		a.below()
	}
	a.roots()
	fmt.Printf("\ntried %d\n", a.tried)
}

type attack struct {
	target
	work  string
	tried int
}

// got says that something was reached that must not be.
func (a *attack) got(format string, args ...any) {
	fmt.Printf("\nGOT level %d: "+format+"\n", append([]any{a.Level}, args...)...)
}

// did is an attempt that is not to succeed.
func (a *attack) did(what string, err error) {
	a.tried++
	if err == nil {
		a.got("%s", what)
	}
}

// reach looks for Ravi's files in a tree that shows the root, or a part of it.
func (a *attack) reach(how, tree, part string) {
	for _, f := range append(a.Files, a.Home+"/"+"sandboxes") {
		a.tried++
		path := filepath.Join(tree, strings.TrimPrefix(f, strings.TrimSuffix(part, "/")))
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(a.Secret)) {
			a.got("%s: read %s", how, path)
		}
		if st, err := os.Stat(path); err == nil && strings.HasSuffix(f, "/sandboxes") {
			entries, _ := os.ReadDir(path)
			if !st.IsDir() || len(entries) != 1 {
				a.got("%s: %d other sandboxes at %s", how, len(entries)-1, path)
			}
		}
	}
}

func (a *attack) asItIs() {
	a.reach("as it is", "/", "/")
	for _, path := range a.Elsewhere {
		b, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(b, []byte(a.Secret)) {
			err = errors.New("something else")
		}
		a.did("read "+path, err)
	}
	for _, path := range a.Sockets {
		c, err := dialLong(path)
		if err == nil {
			c.Close()
		}
		a.did("connect to "+path, err)
	}
	_, err := os.Stat("/run/ravi")
	a.did("see /run/ravi", err)
	for _, dir := range a.ReadOnly {
		a.did("write in "+dir, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			a.did("remove in "+dir, os.Remove(filepath.Join(dir, e.Name())))
			f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_WRONLY, 0)
			if err == nil {
				f.Close()
			}
			a.did("open for writing in "+dir, err)
		}
	}
	a.did("move Ravi's home away", os.Rename(a.Home, a.Home+"-moved"))
	// Whoever can move what it lies in moves what hides it along.
	parent := filepath.Dir(a.Home)
	if err := os.Rename(parent, parent+"-moved"); err == nil {
		a.reach("its parent moved", parent+"-moved", parent)
		if err := os.Rename(parent+"-moved", parent); err != nil {
			a.got("moving %s back: %v", parent, err)
		}
	}
}

func pids() (out []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		if n, err := strconv.Atoi(filepath.Base(name)); err == nil {
			out = append(out, n)
		}
	}
	return out
}

func (a *attack) seesOutside(how, proc string) {
	a.tried++
	names, _ := filepath.Glob(proc + "/[0-9]*/cmdline")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(a.Mark)) && !bytes.Contains(b, []byte(attackEnv)) {
			a.got("%s: sees the process outside as %s", how, name)
		}
	}
}

func (a *attack) processes() {
	a.seesOutside("in /proc", "/proc")
	for _, pid := range append(pids(), a.PID) {
		if !a.foreign(pid) {
			continue
		}
		proc := fmt.Sprintf("/proc/%d", pid)
		a.reach(proc+"/root", proc+"/root", "/")
		for _, link := range []string{"root", "cwd", "exe", "ns/mnt", "ns/user", "fd/3", "fd/5"} {
			_, err := os.Readlink(filepath.Join(proc, link))
			a.did(fmt.Sprintf("follow %s/%s", proc, link), err)
		}
		for _, name := range []string{"environ", "maps"} {
			b, err := os.ReadFile(filepath.Join(proc, name))
			if err == nil && len(b) == 0 {
				err = errors.New("nothing in it")
			}
			a.did("read "+proc+"/"+name, err)
		}
		f, err := os.OpenFile(proc+"/exe", os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		a.did("write the program of "+proc, err)
		a.did(fmt.Sprintf("trace %d", pid), unix.PtraceSeize(pid))
		buf := make([]byte, 8)
		_, err = unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &buf[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
		if errors.Is(err, unix.EFAULT) {
			err = nil // it was let look, at the wrong place
		}
		a.did(fmt.Sprintf("read the memory of %d", pid), err)
	}
}

// foreign says whether a pid is of what keeps the sandbox, or of nobody in it.
func (a *attack) foreign(pid int) bool {
	if pid == os.Getpid() || a.Level > 0 {
		return false // down there are only its own
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err != nil || bytes.HasPrefix(b, []byte("ravi-keeper")) || bytes.HasPrefix(b, []byte("ravi-relay"))
}

// descriptors looks at what processes of the sandbox hold open.
func (a *attack) descriptors() {
	for _, pid := range pids() {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			to, err := os.Readlink(link)
			if err != nil {
				continue
			}
			a.tried++
			if st, err := os.Stat(link); err == nil && st.IsDir() {
				a.reach(link, link, "/")
				a.reach(link, link, a.Home)
			}
			if strings.HasPrefix(to, a.Home) && !strings.HasSuffix(to, "/maker.log") && !strings.Contains(to, "/tmp/") && !strings.Contains(to, "/workspace") {
				a.got("process %d holds %s", pid, to)
			}
		}
	}
}

func (a *attack) devices() {
	node := filepath.Join(a.work, "disk")
	err := unix.Mknod(node, unix.S_IFBLK|0o600, int(a.Disk))
	if err == nil {
		var f *os.File
		if f, err = os.Open(node); err == nil {
			f.Close()
		}
	}
	a.did("make a device of the disk, and open it", err)
	for _, name := range append(a.Disks, "/dev/vda", "/dev/sda", "/dev/mem") {
		f, err := os.Open(name)
		if err == nil {
			f.Close()
		}
		a.did("open the disk "+name, err)
	}
	for _, path := range []string{"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state"} {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		a.did("open for writing "+path, err)
	}
	kills, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for _, path := range append(kills, "/sys/fs/cgroup/cgroup.procs") {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		a.did("open for writing "+path, err)
	}
}

func (a *attack) namespaces() {
	for _, ns := range []string{"mnt", "user", "pid", "ipc"} {
		for _, pid := range []int{1, 2, a.PID} {
			if !a.foreign(pid) {
				continue
			}
			f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
			if err == nil {
				err = unix.Setns(int(f.Fd()), 0)
				f.Close()
			}
			a.did(fmt.Sprintf("enter the namespace %s of %d", ns, pid), err)
		}
	}
	const getUserNS, getParent = 0xb701, 0xb702
	for _, c := range []struct {
		ns string
		op uintptr
	}{{"user", getParent}, {"pid", getParent}, {"pid", getUserNS}, {"net", getUserNS}, {"uts", getUserNS}} {
		if a.Level > 0 {
			break // these are its own, up to here
		}
		f, err := os.Open("/proc/self/ns/" + c.ns)
		if err != nil {
			continue
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), c.op, 0)
		f.Close()
		if errno == 0 {
			a.did("the namespace above "+c.ns, nil)
		}
		a.tried++
	}
}

// handles opens files by their number on the file system.
func (a *attack) handles() {
	parent := filepath.Dir(a.Home)
	for _, path := range []string{parent, "/"} {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
		if err != nil {
			continue
		}
		for _, by := range []string{a.work, "/", parent} {
			mount, err := unix.Open(by, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			if err != nil {
				continue
			}
			fd, err := unix.OpenByHandleAt(mount, h, unix.O_RDONLY|unix.O_DIRECTORY)
			unix.Close(mount)
			a.tried++
			if err == nil {
				a.reach("a handle of "+path+" by "+by, fmt.Sprintf("/proc/self/fd/%d", fd), path)
				unix.Close(fd)
			}
		}
	}
}

func (a *attack) keys() {
	if a.Key == 0 {
		return
	}
	buf := make([]byte, 64)
	n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, a.Key, buf, 0)
	if err == nil {
		err = fmt.Errorf("%d bytes", n)
		a.got("a key of the owner's: %v", err)
	}
	a.tried++
	_, err = unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", "ravi-test", 0)
	a.did("find a key of the owner's", err)
}

// at makes a folder to mount on.
func (a *attack) at() string {
	a.tried++
	dir := filepath.Join(a.work, fmt.Sprintf("at%d", a.tried))
	_ = os.Mkdir(dir, 0o700)
	return dir
}

func (a *attack) mounts() {
	parent := filepath.Dir(a.Home)
	for _, path := range []string{a.Home, "/run", "/dev", "/proc", "/sys"} {
		for _, flags := range []int{0, unix.MNT_DETACH, unix.MNT_FORCE} {
			a.did("unmount "+path, unix.Unmount(path, flags))
		}
		a.did("move the mount at "+path, unix.Mount(path, a.at(), "", unix.MS_MOVE, ""))
	}
	for _, path := range append(a.ReadOnly, a.Home, "/sys", "/proc/sys") {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		a.did("make writable "+path, unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		a.did("clear the attributes of "+path, unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
		to := a.at()
		if unix.Mount(path, to, "", unix.MS_BIND, "") == nil || unix.Mount(path, to, "", unix.MS_BIND|unix.MS_REC, "") == nil {
			a.did("make a writable copy of "+path, unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		}
	}
	for _, path := range []string{"/", parent, filepath.Dir(parent)} {
		to := a.at()
		if unix.Mount(path, to, "", unix.MS_BIND, "") == nil {
			a.reach("a bind mount of "+path, to, path)
		}
		to = a.at()
		if unix.Mount(path, to, "", unix.MS_BIND|unix.MS_REC, "") == nil {
			a.reach("a recursive bind mount of "+path, to, path)
			within := filepath.Join(to, strings.TrimPrefix(a.Home, strings.TrimSuffix(path, "/")))
			if unix.Unmount(within, unix.MNT_DETACH) == nil {
				a.reach("a recursive bind mount of "+path+", less what hides", to, path)
			}
		}
		if fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE); err == nil {
			a.reach("a tree of "+path, fmt.Sprintf("/proc/self/fd/%d", fd), path)
			unix.Close(fd)
		}
		to = a.at()
		upper, workdir := a.at(), a.at()
		for _, o := range []string{"lowerdir=" + path, "lowerdir=" + path + ",upperdir=" + upper + ",workdir=" + workdir, "lowerdir=" + path + ":" + upper} {
			if unix.Mount("o", to, "overlay", 0, o+",userxattr") == nil {
				a.reach("an overlay with "+o, to, path)
			}
		}
	}
	a.kernelMounts()
}

// kernelMounts mounts anew what shows processes, devices and control groups.
func (a *attack) kernelMounts() {
	to := a.at()
	if unix.Mount("proc", to, "proc", 0, "") == nil {
		a.seesOutside("in a new proc", to)
		if f, err := os.OpenFile(to+"/sys/kernel/core_pattern", os.O_WRONLY, 0); err == nil {
			f.Close()
			a.got("a new proc can be written to")
		}
	}
	a.did("mount devices", unix.Mount("devtmpfs", a.at(), "devtmpfs", 0, ""))
	to = a.at()
	if unix.Mount("sysfs", to, "sysfs", 0, "") == nil {
		a.did("write to a new sysfs", unix.Access(to+"/kernel/uevent_helper", unix.W_OK))
	}
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		a.did("mount the disk", unix.Mount("/dev/vda", a.at(), kind, 0, ""))
	}
	_ = unix.Unshare(unix.CLONE_NEWCGROUP)
	for _, c := range [][2]string{{"cgroup2", ""}, {"cgroup", "freezer"}, {"cgroup", "memory"}} {
		to = a.at()
		if unix.Mount("cgroup", to, c[0], 0, c[1]) != nil {
			continue
		}
		a.tried++
		entries, _ := os.ReadDir(to)
		for _, e := range entries {
			if e.IsDir() && unix.Access(filepath.Join(to, e.Name(), "cgroup.procs"), unix.W_OK) == nil {
				a.got("the control group %s can be written to", filepath.Join(to, e.Name()))
			}
		}
	}
}

// roots leaves a root directory that it has chosen itself.
func (a *attack) roots() {
	// In a copy, since a new root is one for all that have the old one.
	_ = unix.Unshare(unix.CLONE_NEWNS)
	out, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	jail := a.at()
	if unix.Chroot(jail) == nil {
		_ = unix.Fchdir(out)
		for range 64 {
			_ = unix.Chdir("..")
		}
		_ = unix.Chroot(".")
		a.reach("out of a root of its own", "/", "/")
	}
	new := a.at()
	if unix.Mount("t", new, "tmpfs", 0, "") == nil && os.Mkdir(new+"/old", 0o700) == nil && unix.PivotRoot(new, new+"/old") == nil {
		a.reach("below another root", "/old", "/")
		_ = unix.Unmount("/old"+a.Home, unix.MNT_DETACH)
		a.reach("below another root, less what hides", "/old", "/")
		_ = unix.Unmount("/old", unix.MNT_DETACH)
		a.reach("below no root", "/", "/")
	}
}

// below starts this program once more, as root of user namespaces of its own.
func (a *attack) below() {
	a.Level++
	b, err := json.Marshal(a.target)
	if err != nil {
		a.got("%v", err)
		return
	}
	for _, flags := range []uintptr{unix.CLONE_NEWNS, unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP | unix.CLONE_NEWNET} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestSealedAttack$")
		cmd.Env = append(os.Environ(), attackEnv+"="+string(b))
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  flags | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		fmt.Printf("\n%s\n", out)
		if err != nil {
			fmt.Printf("\nlevel 1 failed: %v\n", err)
		}
	}
}
