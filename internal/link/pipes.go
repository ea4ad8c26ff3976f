package link

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The local link is two pipes, one each way, and not a socket: no descriptor
// can be sent over a pipe, and a kernel that is restored from a checkpoint
// takes a pipe of its new keeper in place of the old one.

// pipeSize is how much a pipe of the link may hold; more than the default,
// since output is the link's main load. It is the most that Linux gives to
// those without privileges.
const pipeSize = 1 << 20

// End is one end of a link: what is read and what is written there.
type End struct{ R, W *os.File }

// Close closes both.
func (e End) Close() error { return errors.Join(e.R.Close(), e.W.Close()) }

// Files are the descriptors to hand on, in their order.
func (e End) Files() []*os.File { return []*os.File{e.R, e.W} }

// New makes the two ends of a link.
func New() (ours, theirs End, err error) {
	if ours, theirs, err = pipes("link"); err != nil {
		return ours, theirs, fmt.Errorf("cannot make the link: %w", err)
	}
	for _, f := range []*os.File{ours.W, theirs.W} {
		// A user who has many pipes gets smaller ones: slower, not wrong.
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, pipeSize)
	}
	return ours, theirs, nil
}

// pipes makes two pipes, one each way.
func pipes(name string) (ours, theirs End, err error) {
	var a, b [2]int
	if err := unix.Pipe2(a[:], unix.O_CLOEXEC); err != nil {
		return ours, theirs, err
	}
	if err := unix.Pipe2(b[:], unix.O_CLOEXEC); err != nil {
		unix.Close(a[0])
		unix.Close(a[1])
		return ours, theirs, err
	}
	file := func(fd int) *os.File { return os.NewFile(uintptr(fd), name) }
	return End{file(a[0]), file(b[1])}, End{file(b[0]), file(a[1])}, nil
}

// OpenEnd takes an end of a link from its two descriptors. They are closed, and
// what is left of them does not pass to any program that is started.
func OpenEnd(r, w int) (net.Conn, error) {
	var files [2]*os.File
	for i, fd := range []int{r, w} {
		if !isPipe(fd) {
			return nil, fmt.Errorf("descriptor %d is not a link's pipe", fd)
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		unix.Close(fd)
		if err := unix.SetNonblock(dup, true); err != nil {
			return nil, err
		}
		files[i] = os.NewFile(uintptr(dup), "link")
	}
	return &pipeConn{files[0], files[1]}, nil
}

func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// pipeConn is an end of a link as a connection.
type pipeConn struct{ r, w *os.File }

type linkAddr struct{}

func (linkAddr) Network() string { return "link" }
func (linkAddr) String() string  { return "link" }

func (c *pipeConn) Read(b []byte) (int, error)  { return c.r.Read(b) }
func (c *pipeConn) Write(b []byte) (int, error) { return c.w.Write(b) }
func (c *pipeConn) Close() error                { return errors.Join(c.r.Close(), c.w.Close()) }
func (c *pipeConn) LocalAddr() net.Addr         { return linkAddr{} }
func (c *pipeConn) RemoteAddr() net.Addr        { return linkAddr{} }

func (c *pipeConn) SetDeadline(t time.Time) error {
	return errors.Join(c.r.SetDeadline(t), c.w.SetDeadline(t))
}
func (c *pipeConn) SetReadDeadline(t time.Time) error  { return c.r.SetReadDeadline(t) }
func (c *pipeConn) SetWriteDeadline(t time.Time) error { return c.w.SetWriteDeadline(t) }
