package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnknownImage(t *testing.T) {
	for _, image := range []string{"", "ubuntu:22.04", "HOST", "../host", "/"} {
		if _, err := Prepare(t.TempDir(), image); !errors.Is(err, ErrUnknownImage) || !strings.Contains(err.Error(), image) {
			t.Errorf("%q: %v", image, err)
		}
	}
}

func TestPrepare(t *testing.T) {
	home := t.TempDir()
	root, err := Prepare(home, HostImage)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Prepare(home, HostImage)
	if err != nil || again.Dir != root.Dir {
		t.Errorf("made twice: %v and %v, %v", root.Dir, again.Dir, err)
	}
	if left, err := filepath.Glob(filepath.Join(home, "images", "new-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	for _, h := range root.Host {
		if st, err := os.Stat(filepath.Join(root.Dir, h)); err != nil || !st.IsDir() {
			t.Errorf("no place for %s: %v", h, err)
		}
	}
	// Of the host's own folders, none that holds people's things.
	for _, h := range append(root.Host, "/nothing") {
		for _, closed := range []string{"/home", "/root", "/var", "/opt", "/etc", "/run", "/tmp", "/srv", "/mnt", "/"} {
			if h == closed {
				t.Errorf("%s of the host is part of the image", h)
			}
		}
	}
	for _, name := range []string{"passwd", "group", "hosts", "nsswitch.conf", "mtab", "resolv.conf"} {
		if _, err := os.Lstat(filepath.Join(root.Dir, "etc", name)); err != nil {
			t.Error(err)
		}
	}
	passwd, err := os.ReadFile(filepath.Join(root.Dir, "etc/passwd"))
	if err != nil || !strings.Contains(string(passwd), "user:x:1000:1000:") {
		t.Errorf("passwd: %q %v", passwd, err)
	}
	for _, name := range []string{"shadow", "gshadow", "sudoers", "ssh", "machine-id.host", "hostname.host", "ssl/private", "crontab", "fstab"} {
		if _, err := os.Lstat(filepath.Join(root.Dir, "etc", name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("/etc/%s is in the image: %v", name, err)
		}
	}
	if id, err := os.ReadFile("/etc/machine-id"); err == nil {
		if ours, err := os.ReadFile(filepath.Join(root.Dir, "etc/machine-id")); err != nil || string(ours) == string(id) {
			t.Errorf("it has the host's machine id: %v", err)
		}
	}
	err = filepath.WalkDir(root.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if m := info.Mode(); m&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeSocket|fs.ModeNamedPipe) != 0 {
			t.Errorf("%v %s", m, p)
		}
		if m := info.Mode(); m&fs.ModeSymlink != 0 {
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			for _, bad := range []string{"/home/", "/root/", "/var/lib/", "/opt/"} {
				if strings.HasPrefix(target, bad) {
					t.Errorf("%s leads to %s", p, target)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCopyTree(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	outside := filepath.Join(t.TempDir(), "outside")
	put := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(from, "open"), "open", 0o644)
	put(filepath.Join(from, "program"), "program", 0o755)
	put(filepath.Join(from, "secret"), "secret", 0o640)
	put(filepath.Join(from, "sub/open"), "open", 0o644)
	put(filepath.Join(from, "closed/open"), "open", 0o644)
	put(outside, "outside", 0o644)
	put(outside+"-secret", "secret", 0o600)
	if err := os.Chmod(filepath.Join(from, "closed"), 0o750); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"out": outside, "out-secret": outside + "-secret", "usr": "/usr/bin/env", "dangling": "/no/where"} {
		if err := os.Symlink(target, filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTree(from, to); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"open": "open", "program": "program", "sub/open": "open", "out": "outside"} {
		if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	for _, name := range []string{"secret", "closed", "out-secret", "dangling"} {
		if _, err := os.Lstat(filepath.Join(to, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was copied: %v", name, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(to, "usr")); err != nil || target != "/usr/bin/env" {
		t.Errorf("a link into /usr: %q %v", target, err)
	}
	if st, err := os.Stat(filepath.Join(to, "program")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the program: %v %v", st, err)
	}
	if err := copyTree(filepath.Join(from, "missing"), filepath.Join(to, "missing")); err != nil {
		t.Errorf("what is missing is no error: %v", err)
	}
}
