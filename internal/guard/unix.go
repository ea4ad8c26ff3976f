package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Why there is no listener.
var (
	// ErrInUse says that something listens there already.
	ErrInUse = errors.New("something listens there already")
	// ErrUnsafe says that the place is not safe to listen at.
	ErrUnsafe = errors.New("not safe to listen there")
)

// ListenUnix listens on a unix socket that only this user can connect to, from its first moment. Its folder must be this
// user's, closed to all others, and no symlink. A socket of this user's that nobody listens on any more is replaced; a
// live one is ErrInUse, and goes on unharmed; everything else that lies there is left alone, and ErrUnsafe.
//
// Of several processes that try at once exactly one succeeds: it holds a lock on a file beside the socket, with ".lock"
// at the end of its name, which stays. The path may have any length. names are those that clients may call the server by,
// besides "localhost".
func ListenUnix(path string, names ...string) (*Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	s := &place{path: path, name: filepath.Base(path)}
	if err := s.open(); err != nil {
		s.close()
		return nil, err
	}
	inner, err := s.listen()
	if err != nil {
		s.close()
		return nil, err
	}
	return &Listener{
		inner: inner, addr: &net.UnixAddr{Name: path, Net: "unix"}, unix: true,
		door: NewDoor(doorConns, append([]string{"localhost"}, names...)...),
		end: func() error {
			// First the name, so that nobody finds a socket on which nobody listens.
			err := errors.Join(s.remove(), inner.Close())
			s.close()
			return err
		},
	}, nil
}

// place is where a unix socket lies.
type place struct {
	path, name string
	dir        *os.File // its folder: all is done by way of it, so the path may be long, and cannot be led elsewhere
	lock       *os.File
	made       unix.Stat_t // the socket that was made here
}

func (s *place) close() {
	if s.lock != nil {
		// Closing alone would leave the lock with a child that was being started at this moment.
		_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
		s.lock.Close()
	}
	if s.dir != nil {
		s.dir.Close()
	}
}

// open opens the folder and takes the lock.
func (s *place) open() error {
	parent := filepath.Dir(s.path)
	fd, err := unix.Open(parent, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return refuse(errors.Join(ErrUnsafe, err), "name the folder itself", "cannot listen on %s: %s is not a folder, or a symlink", s.path, parent)
	case err != nil:
		return refuse(err, "mkdir -m 0700 "+parent, "cannot listen on %s: its folder cannot be opened: %v", s.path, err)
	}
	s.dir = os.NewFile(uintptr(fd), parent)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", s.path, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return refuse(ErrUnsafe, "use a folder of your own", "cannot listen on %s: its folder belongs to user %d", s.path, st.Uid)
	}
	if st.Mode&0o777 != 0o700 {
		return refuse(ErrUnsafe, "chmod 0700 "+parent, "cannot listen on %s: its folder's mode is %04o, and must be 0700", s.path, st.Mode&0o777)
	}
	return s.takeLock()
}

func (s *place) takeLock() error {
	name := s.name + ".lock"
	fd, err := unix.Openat(int(s.dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return refuse(errors.Join(ErrUnsafe, err), "look at what lies there", "cannot listen on %s: the lock %s cannot be opened: %v", s.path, name, err)
	}
	s.lock = os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", s.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
		return refuse(ErrUnsafe, "look at what lies there", "cannot listen on %s: the lock %s is not a file of this user's", s.path, name)
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return s.inUse()
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: the lock %s: %w", s.path, name, err)
	}
	return nil
}

func (s *place) inUse() error {
	return refuse(ErrInUse, "end the process that does, or use another path", "cannot listen on %s: another process does", s.path)
}

// listen makes the socket beside its place, closed and listening, and then moves it there: nobody ever sees it otherwise.
func (s *place) listen() (net.Listener, error) {
	flags, err := s.look()
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("cannot listen on %s: %w", s.path, err)
	}
	dir := int(s.dir.Fd())
	name := "." + s.name + ".new" // the lock is ours, so what lies there was left by one that died
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fail(err)
	}
	fd, err := bindClosed(dir, name)
	if err != nil {
		return fail(err)
	}
	socket := os.NewFile(uintptr(fd), s.path)
	defer socket.Close()
	moved := false
	defer func() {
		if !moved {
			_ = unix.Unlinkat(dir, name, 0) // the error that is told is the first
		}
	}()
	if err := unix.Fchmodat(dir, name, 0o600, 0); err != nil { // the umask may have taken from the owner
		return fail(err)
	}
	if err := unix.Fstatat(dir, name, &s.made, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail(err)
	}
	if s.made.Mode != unix.S_IFSOCK|0o600 || int(s.made.Uid) != os.Geteuid() {
		return nil, refuse(ErrUnsafe, "use a folder on a file system that keeps owners and modes",
			"cannot listen on %s: a socket there has mode %04o and user %d, whatever is asked for", s.path, s.made.Mode&0o7777, s.made.Uid)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return fail(err)
	}
	inner, err := net.FileListener(socket)
	if err != nil {
		return fail(err)
	}
	if err := unix.Renameat2(dir, name, dir, s.name, flags); err != nil {
		inner.Close()
		if errors.Is(err, unix.EEXIST) {
			return nil, s.inUse()
		}
		return fail(err)
	}
	moved = true
	return inner, nil
}

// look says how the place may be taken: with nothing there, or over a socket that nobody listens on.
func (s *place) look() (flags uint, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(int(s.dir.Fd()), s.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return unix.RENAME_NOREPLACE, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot listen on %s: %w", s.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0, refuse(ErrUnsafe, "move it away, or use another path", "cannot listen on %s: what lies there is not a socket", s.path)
	}
	if int(st.Uid) != os.Geteuid() {
		return 0, refuse(ErrUnsafe, "move it away, or use another path", "cannot listen on %s: the socket there belongs to user %d", s.path, st.Uid)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot listen on %s: %w", s.path, err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: beneath(int(s.dir.Fd()), s.name)})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return 0, nil
	case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE): // also a full queue, and one of datagrams
		return 0, s.inUse()
	}
	return 0, refuse(errors.Join(ErrUnsafe, err), "look at what lies there", "cannot listen on %s: whether the socket there is in use cannot be told: %v", s.path, err)
}

// remove removes the socket, if it is still the one that was made.
func (s *place) remove() error {
	var st unix.Stat_t
	dir := int(s.dir.Fd())
	err := unix.Fstatat(dir, s.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("cannot remove %s: %w", s.path, err)
	case st.Dev != s.made.Dev || st.Ino != s.made.Ino:
		return nil
	}
	if err := unix.Unlinkat(dir, s.name, 0); err != nil {
		return fmt.Errorf("cannot remove %s: %w", s.path, err)
	}
	return nil
}

// bindClosed makes a socket with a name in a folder. It is closed to others from the first moment, whatever the
// umask, which belongs to the whole process: the kernel gives the name the mode that the unnamed socket had.
func bindClosed(dir int, name string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Fchmod(fd, 0o600); err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: beneath(dir, name)})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// beneath is a short path of a name in an open folder; an address of a socket has 108 bytes.
func beneath(dir int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) }

// DialUnix connects to a unix socket, if it is this user who listens on it. The path may have any length.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", beneath(int(dir.Fd()), filepath.Base(path)))
	if err != nil {
		// What went wrong, without the path by which it was tried.
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("cannot connect to %s: %w", path, err)
	}
	cred, err := credentials(c.(*net.UnixConn))
	if err == nil && int(cred.Uid) != os.Geteuid() {
		err = refuse(ErrUnsafe, "use a socket of your own", "cannot trust %s: user %d listens on it", path, cred.Uid)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
