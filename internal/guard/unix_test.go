package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// ask asks over a unix socket, and returns the answer's body.
func ask(path string) (string, error) { return askBy(DialUnix, path) }

func askBy(dial func(ctx context.Context, path string) (net.Conn, error), path string) (string, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) },
	}}
	r, err := client.Get("http://localhost/who")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// who answers whether the caller is the operator.
func who(w http.ResponseWriter, r *http.Request) {
	if err := ConnOf(r.Context()).Peer.SameWorld(); err != nil {
		fmt.Fprint(w, err)
		return
	}
	fmt.Fprint(w, "operator")
}

func TestUnix(t *testing.T) {
	path := filepath.Join(privateDir(t), "s.sock")
	l, err := ListenUnix(path, "ravi.test")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, who, Options{})
	if got, err := ask(path); err != nil || got != "operator" {
		t.Fatalf("got %q, %v", got, err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if l.Addr().String() != path {
		t.Errorf("it is at %s", l.Addr())
	}
	if _, err := ListenUnix(path); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second one: %v", err)
	}
	if got, err := ask(path); err != nil || got != "operator" {
		t.Fatalf("after the second one: %q, %v", got, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left := names(t, filepath.Dir(path)); left != "s.sock.lock" {
		t.Errorf("what is left: %s", left)
	}
	again, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// The name is closed to others before anything else is done to it.
func TestClosedFromTheFirstMoment(t *testing.T) {
	dir := privateDir(t)
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	old := unix.Umask(0)
	defer unix.Umask(old)
	fd, err := bindClosed(int(folder.Fd()), "s")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if st, err := os.Lstat(filepath.Join(dir, "s")); err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// A watcher that looks as often as it can sees nothing that is open to others.
func TestWatched(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := privateDir(t)
	path := filepath.Join(dir, "s")
	stop := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range entries {
				if st, err := e.Info(); err == nil && st.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %v", e.Name(), st.Mode())
				}
			}
		}
	})
	for range 300 {
		l, err := ListenUnix(path)
		if err != nil {
			t.Error(err)
			break
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	watchers.Wait()
}

func TestUmaskThatTakesAll(t *testing.T) {
	dir := privateDir(t)
	// The lock is made by open, whose mode a umask bounds too; who has such a umask may not open it again.
	if err := os.WriteFile(filepath.Join(dir, "s.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o777)
	l, err := ListenUnix(filepath.Join(dir, "s"))
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Lstat(filepath.Join(dir, "s")); err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestUnixRefuses(t *testing.T) {
	other := 65534
	root := func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("SKIP-FEATURE: only root gives files away")
		}
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, dir string) string // returns the path
		is   error
		says string
	}{
		"a file": {func(t *testing.T, dir string) string {
			return write(t, dir, "s")
		}, ErrUnsafe, "not a socket"},
		"a folder": {func(t *testing.T, dir string) string {
			must(t, os.Mkdir(filepath.Join(dir, "s"), 0o700))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "not a socket"},
		"a symlink to a file": {func(t *testing.T, dir string) string {
			must(t, os.Symlink(write(t, dir, "f"), filepath.Join(dir, "s")))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "not a socket"},
		"a symlink to nothing": {func(t *testing.T, dir string) string {
			must(t, os.Symlink("nothing", filepath.Join(dir, "s")))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "not a socket"},
		"a symlink to a dead socket": {func(t *testing.T, dir string) string {
			dead(t, filepath.Join(dir, "d"))
			must(t, os.Symlink("d", filepath.Join(dir, "s")))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "not a socket"},
		"a pipe": {func(t *testing.T, dir string) string {
			must(t, unix.Mkfifo(filepath.Join(dir, "s"), 0o600))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "not a socket"},
		"another's dead socket": {func(t *testing.T, dir string) string {
			root(t)
			dead(t, filepath.Join(dir, "s"))
			must(t, os.Lchown(filepath.Join(dir, "s"), other, other))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "belongs to user 65534"},
		"a socket of datagrams": {func(t *testing.T, dir string) string {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
			must(t, err)
			t.Cleanup(func() { c.Close() })
			return filepath.Join(dir, "s")
		}, ErrInUse, "another process does"},
		"a live socket of another program": {func(t *testing.T, dir string) string {
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			must(t, err)
			t.Cleanup(func() { l.Close() })
			return filepath.Join(dir, "s")
		}, ErrInUse, "another process does"},
		"a live one whose queue is full": {func(t *testing.T, dir string) string {
			fillQueue(t, filepath.Join(dir, "s"))
			return filepath.Join(dir, "s")
		}, ErrInUse, "another process does"},
		"an open folder": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o711))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "0711"},
		"a folder that its group reads": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o740))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "0740"},
		"another's folder": {func(t *testing.T, dir string) string {
			root(t)
			must(t, os.Chown(dir, other, other))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "belongs to user 65534"},
		"a symlink as its folder": {func(t *testing.T, dir string) string {
			must(t, os.Symlink(dir, dir+"-link"))
			return filepath.Join(dir+"-link", "s")
		}, ErrUnsafe, "symlink"},
		"a file as its folder": {func(t *testing.T, dir string) string {
			return filepath.Join(write(t, dir, "f"), "s")
		}, ErrUnsafe, "not a folder"},
		"no folder": {func(t *testing.T, dir string) string {
			return filepath.Join(dir, "none", "s")
		}, fs.ErrNotExist, "cannot be opened"},
		"a symlink as its lock": {func(t *testing.T, dir string) string {
			must(t, os.Symlink(write(t, dir, "f"), filepath.Join(dir, "s.lock")))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "lock"},
		"a pipe as its lock": {func(t *testing.T, dir string) string {
			must(t, unix.Mkfifo(filepath.Join(dir, "s.lock"), 0o600))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "lock"},
		"another's lock": {func(t *testing.T, dir string) string {
			root(t)
			must(t, os.Chown(write(t, dir, "s.lock"), other, other))
			return filepath.Join(dir, "s")
		}, ErrUnsafe, "lock"},
		"a lock that another holds": {func(t *testing.T, dir string) string {
			f, err := os.Open(write(t, dir, "s.lock"))
			must(t, err)
			t.Cleanup(func() { f.Close() })
			must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
			return filepath.Join(dir, "s")
		}, ErrInUse, "another process does"},
		"a name that is too long": {func(t *testing.T, dir string) string {
			return filepath.Join(dir, strings.Repeat("s", 252))
		}, nil, "cannot listen"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := privateDir(t)
			path := c.make(t, dir)
			before := names(t, dir)
			l, err := ListenUnix(path)
			if err == nil {
				l.Close()
				t.Fatal("it listens")
			}
			if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			var told *Error
			if !errors.As(err, &told) || told.Hint == "" {
				t.Errorf("no hint: %v", err)
			}
			if after := strings.ReplaceAll(names(t, dir), " s.lock", ""); after != strings.ReplaceAll(before, " s.lock", "") && strings.TrimPrefix(after, "s.lock") != before {
				t.Errorf("it left %q, where there was %q", after, before)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, name string) string {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte("precious"), 0o600))
	return filepath.Join(dir, name)
}

// dead makes a socket on which nobody listens.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

// fillQueue makes a socket whose queue is full.
func fillQueue(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	must(t, unix.Listen(fd, 0))
	for {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(c) })
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: path}); errors.Is(err, unix.EAGAIN) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	dir := privateDir(t)
	path := filepath.Join(dir, "s")
	dead(t, path)
	dead(t, filepath.Join(dir, ".s.new")) // of one that died in the middle
	l, err := ListenUnix(path)
	must(t, err)
	serve(t, l, ok, Options{})
	if got, err := ask(path); err != nil || got != "reached" {
		t.Fatalf("got %q, %v", got, err)
	}
}

// What lies at the path when a listener closes is removed only if it is the listener's own.
func TestCloseLeavesWhatIsNotItsOwn(t *testing.T) {
	path := filepath.Join(privateDir(t), "s")
	l, err := ListenUnix(path)
	must(t, err)
	must(t, os.Remove(path))
	other, err := net.Listen("unix", path)
	must(t, err)
	defer other.Close()
	must(t, l.Close())
	must(t, l.Close())
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another's socket is gone: %v", err)
	}
}

func TestLongPath(t *testing.T) {
	dir := privateDir(t)
	for range 5 {
		dir = filepath.Join(dir, strings.Repeat("long", 20))
		must(t, os.Mkdir(dir, 0o700))
	}
	path := filepath.Join(dir, "s")
	l, err := ListenUnix(path)
	must(t, err)
	serve(t, l, ok, Options{})
	if got, err := ask(path); err != nil || got != "reached" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestDialUnixTrustsOnlyItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: only root is another user at will")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	path := filepath.Join(dir, "s")
	cmd := roleOf("plain", path)
	cmd.SysProcAttr = asUser(65534)
	_, out := begin(t, cmd)
	if line, err := out.ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	c, err := DialUnix(t.Context(), path)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("got %v", err)
	}
	if _, err := DialUnix(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Of several processes that find a dead socket and take its place at once, one succeeds each time.
func TestOneOfManyProcesses(t *testing.T) {
	path := filepath.Join(privateDir(t), "s")
	const many = 4
	for range 8 {
		var procs []*exec.Cmd
		var ins []io.WriteCloser
		var outs []*bufio.Reader
		for range many {
			cmd := roleOf("listen", path)
			in, out := begin(t, cmd)
			if line, err := out.ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q, %v", line, err)
			}
			procs, ins, outs = append(procs, cmd), append(ins, in), append(outs, out)
		}
		for _, in := range ins {
			fmt.Fprintln(in, "go")
		}
		won, lost := 0, 0
		for _, out := range outs {
			switch line, err := out.ReadString('\n'); line {
			case "won\n":
				won++
			case "in use\n":
				lost++
			default:
				t.Errorf("%q, %v", line, err)
			}
		}
		if won != 1 || lost != many-1 {
			t.Fatalf("%d won, %d found it in use", won, lost)
		}
		if _, err := ListenUnix(path); !errors.Is(err, ErrInUse) {
			t.Errorf("while one has it: %v", err)
		}
		for _, p := range procs {
			must(t, p.Process.Kill()) // so the next round finds a dead socket
			_ = p.Wait()              // it was killed
		}
	}
	l, err := ListenUnix(path)
	must(t, err)
	l.Close()
}
