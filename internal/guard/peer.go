package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNotOperator says that a process is not, or not certainly, the operator.
var ErrNotOperator = errors.New("not positively the operator")

// Peer is the process that connected to a unix socket, as the kernel names it.
type Peer struct {
	UID, GID uint32
	PID      int // 0 where it cannot be seen from here

	// proc is the process's folder in /proc. While it is open, it shows this process and no other: a later one with the
	// same number is not found through it.
	proc *os.File
	err  error // why there is no proc
}

// credentials are those that the process at the other end had when it connected, or began to listen.
func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("who is at the other end cannot be told: %w", err)
	}
	return cred, nil
}

// peerOf finds the process that connected. What cannot be found is said by SameWorld; a caller who shows a key is served
// all the same.
func peerOf(c *net.UnixConn) *Peer {
	cred, err := credentials(c)
	if err != nil {
		return &Peer{err: err}
	}
	p := &Peer{UID: cred.Uid, GID: cred.Gid, PID: int(cred.Pid)}
	p.proc, p.err = openPeer(c, p.PID)
	return p
}

// openPeer opens the folder of the process that connected. Between its connecting and now it may have ended, and its
// number may be another's: a descriptor of the process itself, which the kernel has from Linux 6.5 on, tells them apart.
// Before that nothing does, but the time in which it must happen is short, since all connections are taken at once.
func openPeer(c *net.UnixConn, pid int) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var pidfd int
	controlErr := raw.Control(func(fd uintptr) {
		pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	switch {
	case controlErr != nil:
		return nil, controlErr
	case errors.Is(err, unix.ENOPROTOOPT):
		pidfd = -1
	case err != nil:
		return nil, fmt.Errorf("it has ended: %w", err)
	default:
		defer unix.Close(pidfd)
	}
	return openProcess(pid, pidfd)
}

// openProcess opens the folder of a process in /proc. If pidfd is not -1, it is that of the process that is meant.
func openProcess(pid, pidfd int) (*os.File, error) {
	if pid <= 0 {
		return nil, errors.New("it is in another process namespace")
	}
	name := "/proc/" + strconv.Itoa(pid)
	proc, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("it has ended, or is hidden: %w", err)
	}
	if pidfd >= 0 {
		// If it lives now, it lived when its folder was opened, so the folder is its own.
		if err := living(pidfd); err != nil {
			proc.Close()
			return nil, err
		}
	}
	return proc, nil
}

// living says whether the process of a descriptor has not ended.
func living(pidfd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("whether it lives cannot be told: %w", err)
		case n > 0:
			return errors.New("it has ended")
		default:
			return nil
		}
	}
}

func (p *Peer) close() {
	if p != nil && p.proc != nil {
		p.proc.Close()
	}
}

// SameWorld returns nil only if the peer is positively the operator: the process that connected is alive, is of the user
// that this process runs as (root is nobody else's operator), in the same user, process, mount and network namespaces,
// and in no control group of a sandbox. Every other state of things, and every doubt, is an ErrNotOperator that says
// which. Ask at each request, since a process can end and leave its connection to another.
//
// What it cannot tell: whether the process acts for another, which it lets use its connection. On the host without a
// seal, an agent is a process like the operator's own.
func (p *Peer) SameWorld() error {
	if p == nil {
		return refuse(ErrNotOperator, "use Ravi's socket, or a key", "the caller is not positively the operator: it did not come by Ravi's socket")
	}
	if err := p.sameWorld(); err != nil {
		return refuse(errors.Join(ErrNotOperator, err), "run the command as the user that Ravi runs as, outside of containers and sandboxes; or use a key",
			"the caller (process %d of user %d) is not positively the operator: %v", p.PID, p.UID, err)
	}
	return nil
}

func (p *Peer) sameWorld() error {
	if p.err != nil {
		return p.err
	}
	if own := os.Geteuid(); int(p.UID) != own {
		return fmt.Errorf("it is of user %d, and Ravi runs as user %d", p.UID, own)
	}
	// All that follows is read by way of the process's own folder, so if it ends in between, that is an error, and never
	// another's answer.
	if err := checkStatus(p.proc, p.PID); err != nil {
		return err
	}
	ours, err := ownNamespaces()
	if err != nil {
		return fmt.Errorf("this process's own namespaces cannot be told: %w", err)
	}
	for i, ns := range namespaces {
		theirs, err := namespace(p.proc, ns.file)
		if err != nil {
			return fmt.Errorf("its %s namespace cannot be told: %w", ns.name, err)
		}
		if theirs != ours[i] {
			return fmt.Errorf("it is in another %s namespace", ns.name)
		}
	}
	return checkGroups(p.proc)
}

// SelfIsOperator is what SameWorld asks, for this process where there is no daemon to ask it: it runs as one user and not
// with the rights of two, in no control group of a sandbox, and not in the process namespace of one.
//
// What cannot be told from inside: a mount, network or user namespace says of none who made it, and a sandbox's process
// that makes a process namespace of its own has a first process of its own. So this is for telling an agent what it did
// wrong. What keeps it from the operator's things is that they do not exist in its world.
func SelfIsOperator() error {
	self, err := os.OpenFile("/proc/self", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		defer self.Close()
		err = errors.Join(checkStatus(self, os.Getpid()), checkGroups(self), checkFirst("/proc/1"))
	}
	if err != nil {
		return refuse(errors.Join(ErrNotOperator, err), "run the command outside of the sandbox; inside, ravi needs the key that the sandbox was given",
			"this process is not positively the operator: %v", err)
	}
	return nil
}

// What the first process of a sandbox is called, and what its environment says.
const (
	guestName = "ravi-guest"
	relayName = "ravi-relay" // of a sealed one on the host
	guestMark = "RAVI_SANDBOX="
)

// checkFirst refuses a process namespace whose first process is a guest agent. Where it is another user's, or hidden, it
// is no sandbox's: its processes see their guest agent, which closes its environment only.
func checkFirst(proc string) error {
	name, _, _ := strings.Cut(readable(path.Join(proc, "cmdline")), "\x00")
	name, _, _ = strings.Cut(path.Base(name), ":")
	marked := slices.ContainsFunc(strings.Split(readable(path.Join(proc, "environ")), "\x00"), func(v string) bool {
		return strings.HasPrefix(v, guestMark)
	})
	if name == guestName || name == relayName || marked {
		return errors.New("it is in a sandbox")
	}
	return nil
}

// readable is a file's first bytes, and nothing where it cannot be read.
func readable(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxProc))
	return string(b)
}

// maxProc is more than the kernel shows in any file that is read here.
const maxProc = 256 << 10

// readProc reads a file of a process's folder.
func readProc(proc *os.File, name string) ([]byte, error) {
	fd := -1
	var err error
	if controlErr := control(proc, func(dir int) {
		fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	}); controlErr != nil {
		return nil, controlErr
	}
	if err != nil {
		return nil, gone(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4<<10)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, gone(err)
		case n == 0:
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > maxProc {
			return nil, fmt.Errorf("its %s is too large", name)
		}
		b = slices.Grow(b, 512)
	}
}

// control does something with a descriptor that another goroutine may close.
func control(f *os.File, do func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { do(int(fd)) }); err != nil {
		return fmt.Errorf("its connection is closed: %w", err)
	}
	return nil
}

// gone says it plainly where the process is no longer there.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("it has ended: %w", err)
	}
	return err
}

// namespaces are those that the operator shares with this process.
var namespaces = [...]struct{ file, name string }{{"user", "user"}, {"pid", "process"}, {"mnt", "mount"}, {"net", "network"}}

// ownNamespaces are this process's, which it was born in and stays in.
var ownNamespaces = sync.OnceValues(func() (own [len(namespaces)]identity, err error) {
	self, err := os.OpenFile("/proc/self", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return own, err
	}
	defer self.Close()
	for i, ns := range namespaces {
		if own[i], err = namespace(self, ns.file); err != nil {
			return own, err
		}
	}
	return own, nil
})

// identity is what makes a namespace itself.
type identity struct{ dev, ino uint64 }

func namespace(proc *os.File, name string) (identity, error) {
	var st unix.Stat_t
	var err error
	if controlErr := control(proc, func(dir int) { err = unix.Fstatat(dir, "ns/"+name, &st, 0) }); controlErr != nil {
		return identity{}, controlErr
	}
	if err != nil {
		return identity{}, gone(err)
	}
	return identity{uint64(st.Dev), st.Ino}, nil
}

func checkStatus(proc *os.File, pid int) error {
	b, err := readProc(proc, "status")
	if err != nil {
		return err
	}
	return parseStatus(b, pid, os.Geteuid())
}

// parseStatus checks that a status file is that of the living process pid, that it has no rights of another user (all
// four of its user ids are uid), and that it knows itself by the same number.
func parseStatus(b []byte, pid, uid int) error {
	want := map[string]string{
		"Tgid":  strconv.Itoa(pid),
		"NSpid": strconv.Itoa(pid), // several numbers: it is in a process namespace beneath the one that /proc shows
		"Uid":   strings.TrimSuffix(strings.Repeat(strconv.Itoa(uid)+" ", 4), " "),
	}
	says := map[string]string{
		"Tgid": "/proc shows another process", "NSpid": "it is in another process namespace than /proc shows",
		"Uid": fmt.Sprintf("it has not the rights of user %d alone", uid),
	}
	state := false
	for line := range bytes.Lines(b) {
		name, value, _ := strings.Cut(string(line), ":")
		value = strings.Join(strings.Fields(value), " ")
		if name == "State" {
			if value == "" || strings.ContainsAny(value[:1], "ZXx") {
				return errors.New("it has ended")
			}
			state = true
			continue
		}
		if wanted, checked := want[name]; checked {
			if value != wanted {
				return errors.New(says[name])
			}
			delete(want, name)
		}
	}
	if !state || len(want) > 0 {
		return errors.New("what /proc says of it is not complete")
	}
	return nil
}

func checkGroups(proc *os.File) error {
	b, err := readProc(proc, "cgroup")
	if err != nil {
		return fmt.Errorf("its control groups cannot be told: %w", err)
	}
	return parseGroups(b)
}

// parseGroups refuses a process that is beneath a group of a sandbox, "ravi/sbx…", in any hierarchy. Where the group is
// seen from depends on who looks (in a container, other groups may stand before it), so it is looked for everywhere.
func parseGroups(b []byte) error {
	for line := range bytes.Lines(b) {
		line := strings.TrimSuffix(string(line), "\n")
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			return errors.New("its control groups cannot be told")
		}
		parts := strings.Split(fields[2], "/")
		for i := range len(parts) - 1 {
			if parts[i] == "ravi" && strings.HasPrefix(parts[i+1], "sbx") {
				return fmt.Errorf("it is in the control group of the sandbox %s", quoted(parts[i+1]))
			}
		}
	}
	return nil
}
