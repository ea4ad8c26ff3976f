package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Attach takes hold of the keeper of the sandbox in dir, which another process
// started. With own, this process is its owner from now on, as Start's caller
// would be, and the sandbox outlives it for the grace; ErrOwned if it has an
// owner that lives. Without, the keeper is only asked things, and nothing
// happens when this process goes away.
func Attach(ctx context.Context, dir string, own bool, grace time.Duration) (*Handle, error) {
	var plan Plan
	if own {
		// A new owner must clean up, should the supervisor be killed.
		var err error
		if plan, err = ReadPlan(dir); err != nil {
			return nil, err
		}
	}
	conn, err := dialIn(ctx, dir, ControlSocket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	h := newHandle(dir, nil, conn)
	h.pid = peerPID(conn)
	req := Request{Op: "watch"}
	if own {
		req = Request{Op: "attach", Grace: &grace}
	}
	m, err := h.ask(ctx, req)
	if err != nil {
		h.Detach()
		var f *Failure
		if errors.As(err, &f) && f.Reason == reasonOwned {
			return nil, ErrOwned
		}
		return nil, err
	}
	if own {
		h.mu.Lock()
		h.plan, h.relay = &plan, seenProc{pid: m.RelayPID, start: m.RelayStart}
		h.mu.Unlock()
	}
	return h, nil
}

// SetGrace replaces how long the sandbox outlives this process, its owner.
func (h *Handle) SetGrace(ctx context.Context, grace time.Duration) error {
	_, err := h.ask(ctx, Request{Op: "attach", Grace: &grace})
	return err
}

// peerPID is the process that listens at the other end, which for a keeper's
// control socket is the supervisor; 0 if that is not to be known.
func peerPID(conn net.Conn) (pid int) {
	control(conn, func(fd int) {
		if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// hungUp says whether the other end of a connection is closed, whatever is
// still to be read of it. The kernel closes what a process that was killed held.
func hungUp(conn net.Conn) (gone bool) {
	control(conn, func(fd int) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(fds, 0)
		}
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone
}

// control has f look at a connection's descriptor. One that is closed has none.
func control(conn net.Conn, f func(fd int)) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// dialIn connects to a socket in dir by a path that is short however long the
// directory's own is: a unix address holds 108 bytes. A link in place of the
// directory is not followed.
func dialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name))
}

// maxNoted bounds what ReadPlan and ReadOwner read, in bytes.
const maxNoted = 4 << 20

// ReadPlan reads the plan in a sandbox's directory. It must be that one's.
func ReadPlan(dir string) (p Plan, err error) {
	b, err := readNoted(dir, PlanFile)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("the plan of the sandbox in %s: %w", dir, err)
	}
	if p.Dir != dir || p.ID != filepath.Base(dir) {
		return p, fmt.Errorf("the plan in %s is for another sandbox", dir)
	}
	return p, nil
}

// ReadOwner reads what the plan's Owner was.
func ReadOwner(dir string) ([]byte, error) { return readNoted(dir, OwnerFile) }

// readNoted reads a file that Start wrote. Links are not followed, and what
// others could have written is not read.
func readNoted(dir, name string) ([]byte, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	path := filepath.Join(dir, name)
	// Without blocking, should it be a pipe.
	fd, err := unix.Openat(d, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for _, one := range []struct {
		fd   int
		path string
		kind uint32
	}{{d, dir, unix.S_IFDIR}, {fd, path, unix.S_IFREG}} {
		var st unix.Stat_t
		if err := unix.Fstat(one.fd, &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: one.path, Err: err}
		}
		switch {
		case st.Mode&unix.S_IFMT != one.kind:
			return nil, fmt.Errorf("%s is no regular file", one.path)
		case int(st.Uid) != os.Geteuid():
			return nil, fmt.Errorf("%s belongs to the user %d, not to this one (%d)", one.path, st.Uid, os.Geteuid())
		case st.Mode&0o077 != 0:
			return nil, fmt.Errorf("others may use %s (mode %04o)", one.path, st.Mode&0o7777)
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxNoted+1))
	if err == nil && len(b) > maxNoted {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxNoted)
	}
	return b, err
}
