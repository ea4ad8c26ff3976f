package sandbox

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func secondsOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func TestMountsRefuse(t *testing.T) {
	base := t.TempDir()
	home := filepath.Join(base, "home", "ravi")
	runtimeDir := filepath.Join(base, "runtime")
	good := filepath.Join(base, "good")
	for _, d := range []string{filepath.Join(home, "sandboxes"), runtimeDir, good} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
	link := filepath.Join(base, "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		home:                             home,
		filepath.Join(home, "sandboxes"): home,
		filepath.Dir(home):               home,
		base:                             "reach",
		"/":                              "reach",
		link:                             home,
		filepath.Join(link, "sandboxes"): home,
		runtimeDir:                       runtimeDir,
		"/run":                           "/run",
		"/var/run":                       "/run",
		"/dev":                           "/dev",
		"/proc/self":                     "/proc",
		"/sys":                           "/sys",
		filepath.Join(base, "missing"):   "no such file",
	} {
		for what, try := range map[string]func() error{
			"workspace": func() error {
				_, err := (&Sandbox{root: guestWorkspace, cfg: Default()}).mounts(home, path)
				return err
			},
			"volume": func() error {
				cfg := Default()
				cfg.ExtraVolumes = []Volume{{Host: path, Guest: "/mnt/x"}}
				_, err := (&Sandbox{root: guestWorkspace, cfg: cfg}).mounts(home, "")
				return err
			},
		} {
			err := try()
			var ie *InitError
			if !errors.As(err, &ie) || ie.Hint == "" || !strings.Contains(err.Error(), says) {
				t.Errorf("%s %s: %v, want a refusal with a hint that says %q", what, path, err, says)
			}
		}
	}
	if _, err := (&Sandbox{root: guestWorkspace, cfg: Default()}).mounts(home, file); err == nil {
		t.Error("a file is a workspace")
	}
	for _, path := range []string{good, file} {
		cfg := Default()
		cfg.ExtraVolumes = []Volume{{Host: path, Guest: "/mnt/x"}}
		if _, err := (&Sandbox{root: guestWorkspace, cfg: cfg}).mounts(home, good); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestGuestDir(t *testing.T) {
	s := &Sandbox{root: guestWorkspace, workspace: "/src/project", volumes: []Volume{{Host: "/data/set", Guest: "/mnt/set"}, {Host: "/src/project/inner", Guest: "/mnt/inner"}}}
	for dir, want := range map[string]string{
		"": "/workspace", ".": "/workspace", "a/../b": "/workspace/b", "/src/project": "/workspace", "/src/project/a/b": "/workspace/a/b",
		"/data/set/x": "/mnt/set/x", "/mnt/set/y": "/mnt/set/y", "/workspace/z": "/workspace/z", "/src/project/../project/q": "/workspace/q",
	} {
		if got, err := s.guestDir(dir); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", dir, got, err, want)
		}
	}
	for _, dir := range []string{"..", "a/../..", "/", "/src", "/src/projectx", "/src/project/..", "/workspacex", "/workspace/..", "/data", "/mnt", "/etc"} {
		if got, err := s.guestDir(dir); !errors.Is(err, ErrOutside) {
			t.Errorf("%q: %q %v, want ErrOutside", dir, got, err)
		}
	}
	if got, err := (&Sandbox{root: guestWorkspace}).guestDir("/x"); !errors.Is(err, ErrOutside) {
		t.Errorf("without a workspace: %q %v", got, err)
	}
}

// What a hostile guest puts into an archive never lands outside the folder.
func TestLayDown(t *testing.T) {
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o6777, Size: 4}
	}
	for name, entries := range map[string][]tar.Header{
		"parent":           {file("../victim")},
		"absolute":         {file("/tmp/../victim")},
		"link to parent":   {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, file("l/victim")},
		"link to file":     {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../victim"}, file("l")},
		"chain of links":   {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a"}, file("b/victim")},
		"hard link out":    {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../victim"}, file("h")},
		"hard link by one": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../victim"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l"}, file("h")},
		"folder over link": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l", Typeflag: tar.TypeDir, Mode: 0o777}, file("l/victim")},
		"device":           {{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"fifo":             {{Name: "f", Typeflag: tar.TypeFifo}},
		"plain":            {file("x"), file("deep/er/x")},
	} {
		base := t.TempDir()
		victim := filepath.Join(base, "victim")
		if err := os.WriteFile(victim, []byte("safe"), 0o644); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(base, "dir")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range entries {
			if err = layDown(root, &h, strings.NewReader("evil")); err != nil {
				break
			}
		}
		root.Close()
		if (name == "plain") && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "safe" {
			t.Errorf("%s: the file outside is now %q %v", name, b, err)
		}
		if st, err := os.Stat(victim); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("%s: the file outside is now %v %v", name, st, err)
		}
		out, err := os.ReadDir(base)
		if err != nil || len(out) != 2 {
			t.Errorf("%s: outside there is %v %v", name, out, err)
		}
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				t.Error(err)
				return nil
			}
			if m := d.Type(); m&(os.ModeDevice|os.ModeNamedPipe|os.ModeSocket) != 0 {
				t.Errorf("%s: left %v %s", name, m, p)
			}
			if info, err := d.Info(); err == nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
				t.Errorf("%s: left %v %s", name, info.Mode(), p)
			}
			return nil
		})
	}
}

// A path that was checked for somebody is taken as it stands: a link that came into it since is refused.
func TestRealPaths(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home, there, link := filepath.Join(base, "home"), filepath.Join(base, "there"), filepath.Join(base, "link")
	for _, dir := range []string{home, filepath.Join(there, "below")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(there, link); err != nil {
		t.Fatal(err)
	}
	for path, fine := range map[string]bool{there: true, filepath.Join(there, "below"): true, link: false, filepath.Join(link, "below"): false} {
		cfg := Default()
		cfg.ExtraVolumes = []Volume{{Host: path, Guest: "/mnt/x"}}
		got, err := (&Sandbox{root: guestWorkspace, cfg: cfg, realPaths: true}).mounts(home, "")
		if fine != (err == nil) || fine && !got[0].Real {
			t.Errorf("volume %s: %v", path, err)
		}
		if _, err := (&Sandbox{root: guestWorkspace, cfg: Default(), realPaths: true}).mounts(home, path); fine != (err == nil) {
			t.Errorf("workspace %s: %v", path, err)
		}
		if _, err := (&Sandbox{root: guestWorkspace, cfg: cfg}).mounts(home, ""); err != nil {
			t.Errorf("the operator's %s: %v", path, err)
		}
	}
}
