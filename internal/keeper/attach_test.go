package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is a connection's two ends.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// Who is gone is seen at once, though nobody has read what it said last; who lives is not taken for gone.
func TestHungUp(t *testing.T) {
	ours, theirs := pair(t)
	if hungUp(ours) {
		t.Error("one that is silent is gone")
	}
	if _, err := theirs.Write([]byte("its last words\n")); err != nil {
		t.Fatal(err)
	}
	if hungUp(ours) {
		t.Error("one that has spoken is gone")
	}
	theirs.Close()
	if !hungUp(ours) {
		t.Error("one that is gone is there")
	}
	ours.Close()
	if hungUp(ours) {
		t.Error("a connection that is closed here is looked at")
	}
}

// There is one owner, until it is gone.
func TestOwned(t *testing.T) {
	first, firstEnd := pair(t)
	second, _ := pair(t)
	s := &supervisor{conns: map[net.Conn]*peer{first: {owner: true}, second: {}}}
	if !s.owned() {
		t.Error("an owner that lives is none")
	}
	firstEnd.Close()
	if s.owned() || s.conns[first].owner {
		t.Error("an owner that is gone is one")
	}
	s.conns[second].owner = true
	if !s.owned() {
		t.Error("the next owner is none")
	}
}

// What is read of a sandbox's directory is what Ravi wrote there, about that very sandbox.
func TestNotedIsReadWithCare(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "sbx1")
	plan := func(p Plan) []byte {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := plan(Plan{ID: "sbx1", Dir: dir, Cgroup: "/ravi/sbx1"})
	path := filepath.Join(dir, PlanFile)
	for name, spoil := range map[string]func() error{
		"":             func() error { return nil },
		"another's id": func() error { return os.WriteFile(path, plan(Plan{ID: "sbx2", Dir: dir}), 0o600) },
		"another's directory": func() error {
			return os.WriteFile(path, plan(Plan{ID: "sbx1", Dir: filepath.Join(top, "sbx2")}), 0o600)
		},
		"no JSON":                 func() error { return os.WriteFile(path, []byte("{"), 0o600) },
		"too long":                func() error { return os.WriteFile(path, append(good, make([]byte, maxNoted)...), 0o600) },
		"a link":                  func() error { return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path)) },
		"a pipe":                  func() error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"a directory":             func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"others write it":         func() error { return os.Chmod(path, 0o602) },
		"others read it":          func() error { return os.Chmod(path, 0o640) },
		"others enter":            func() error { return os.Chmod(dir, 0o711) },
		"another user's":          func() error { return os.Chown(path, 12345, -1) },
		"in another user's":       func() error { return os.Chown(dir, 12345, -1) },
		"a link to its directory": func() error { return errors.Join(os.Rename(dir, dir+".real"), os.Symlink(dir+".real", dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "user's") && os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: only root can give files away")
			}
			if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".real"), os.Mkdir(dir, 0o700), os.WriteFile(path, good, 0o600), spoil()); err != nil {
				t.Fatal(err)
			}
			p, err := ReadPlan(dir)
			if name == "" {
				if err != nil || p.ID != "sbx1" || p.Cgroup != "/ravi/sbx1" {
					t.Errorf("%+v %v", p, err)
				}
				return
			}
			if err == nil {
				t.Errorf("it is taken: %+v", p)
			}
			if _, err := Attach(t.Context(), dir, true, 0); err == nil || errors.Is(err, ErrGone) {
				t.Errorf("an owner goes by it: %v", err)
			}
		})
	}
	if _, err := ReadOwner(filepath.Join(top, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of one that is not there: %v", err)
	}
}

// A link in place of a sandbox's directory is not followed to another's keeper.
func TestDialInFollowsNoLink(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sbx1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := listen(filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := dialIn(context.Background(), dir, ControlSocket); err != nil {
		t.Error(err)
	} else if pid := peerPID(c); pid != os.Getpid() {
		t.Errorf("the listener is process %d, not %d", pid, os.Getpid())
	} else {
		c.Close()
	}
	if err := os.Symlink(dir, dir+"link"); err != nil {
		t.Fatal(err)
	}
	if _, err := dialIn(context.Background(), dir+"link", ControlSocket); err == nil {
		t.Error("it is followed")
	}
}
