package gitbox

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// content is every file of a work tree but .git: name, kind, permissions, owner and bytes.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	at, err := openRoot(dir)
	must(t, err)
	defer at.Close()
	must(t, at.walk("", func(name string, mode fs.FileMode) error {
		if strings.HasPrefix(name, ".git/") || name == ".git" {
			return nil
		}
		st, err := at.lstat(name)
		if err != nil {
			return err
		}
		s := fs.FileMode(st.Mode&0o777).String() + " " + mode.Type().String() + " "
		switch {
		case mode.IsRegular():
			s += read(t, dir+"/"+name)
		case mode&fs.ModeSymlink != 0:
			to, err := at.readlink(name)
			if err != nil {
				return err
			}
			s += to
		}
		out[name] = s
		return nil
	}))
	return out
}

func same(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	after := content(t, dir)
	for name := range before {
		if before[name] != after[name] {
			t.Errorf("%q was %q, is %q", name, before[name], after[name])
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%q was made", name)
		}
	}
}

func yes([]RiskyPath) error { return nil }

func TestApplyMerges(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.write("long", strings.Repeat("line\n", 40))
	r.write("gone", "x\n")
	r.write("moved", strings.Repeat("content\n", 40))
	r.write("mine/renamed", strings.Repeat("other\n", 40))
	r.commit("third")
	b := export(t, r.dir, "")
	s := enter(t, b)
	s.write("long", strings.Repeat("line\n", 40)+"agent\n")
	s.write("sub/new", "new\n")
	must(t, os.Remove(s.path("gone")))
	must(t, os.Rename(s.path("moved"), s.path("moved2")))
	s.write("mine/renamed", strings.Repeat("other\n", 40)+"agent\n")
	s.chmod("a", 0o755)
	patch := s.patchFile()

	// The user went on: edits, a commit, a stage, a rename.
	r.write("long", "user\n"+strings.Repeat("line\n", 40))
	r.write("mine too", "mine\n")
	r.git("add", "mine too")
	r.commit("the user went on")
	r.write("dir/b", "staged\n")
	r.git("add", "dir/b")
	must(t, os.Rename(r.path("mine/renamed"), r.path("mine/other")))
	must(t, os.Chmod(r.path("long"), 0o600))
	index := fingerprint(t, r.path(".git"))
	res, err := b.Apply(t.Context(), r.dir, patch, yes)
	must(t, err)
	if !res.Merged || len(res.Paths) != 7 {
		t.Fatalf("%+v", res)
	}
	unchanged(t, r.path(".git"), index)
	if got := r.read("long"); got != "user\n"+strings.Repeat("line\n", 40)+"agent\n" {
		t.Fatalf("%q", got)
	}
	if st, _ := os.Stat(r.path("long")); st.Mode().Perm() != 0o600 {
		t.Errorf("permissions became %v", st.Mode())
	}
	if st, _ := os.Stat(r.path("a")); st.Mode().Perm()&0o111 == 0 {
		t.Errorf("not executable: %v", st.Mode())
	}
	if r.read("sub/new") != "new\n" || r.read("moved2") == "" || !strings.HasSuffix(r.read("mine/other"), "agent\n") || r.read("dir/b") != "staged\n" {
		t.Error("something is missing")
	}
	for _, name := range []string{"gone", "moved", "mine/renamed"} {
		if _, err := os.Lstat(r.path(name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if res, err := b.Apply(t.Context(), r.dir, patch, yes); err != nil || len(res.Paths) != 0 {
		t.Fatalf("applying twice: %v %+v", err, res)
	}
}

func TestApplyNeverHalf(t *testing.T) {
	t.Parallel()
	agent := func(s *sandbox) {
		s.write("a", "one\nagent\n")
		s.write("z/new", "new\n")
		must(t, os.RemoveAll(s.path("dir")))
		s.write("dir", "now a file\n")
		s.write("zz", "last\n")
	}
	base := filled(t)
	b := export(t, base.dir, "")
	s := enter(t, b)
	agent(s)
	patch := s.patchFile()
	for name, f := range map[string]func(r *repo){
		"edited":            func(r *repo) { r.write("a", "one\nuser\n") },
		"deleted":           func(r *repo) { must(t, os.Remove(r.path("a"))) },
		"made the same":     func(r *repo) { r.write("zz", "user's\n") },
		"ignored in place":  func(r *repo) { r.write(".git/info/exclude", "zz\n"); r.write("zz", "precious\n") },
		"ignored beneath":   func(r *repo) { r.write("dir/ignored", "precious\n") },
		"ignored directory": func(r *repo) { r.write(".git/info/exclude", "zz\n"); r.write("zz/x", "precious\n") },
		"link to .git":      func(r *repo) { r.write(".git/info/exclude", "z\n"); must(t, os.Symlink(".git", r.path("z"))) },
		"link outside":      func(r *repo) { r.write(".git/info/exclude", "z\n"); must(t, os.Symlink("/tmp", r.path("z"))) },
		"file as directory": func(r *repo) { r.write(".git/info/exclude", "z\n"); r.write("z", "precious\n") },
		"sparse":            func(r *repo) { r.git("update-index", "--skip-worktree", "a"); must(t, os.Remove(r.path("a"))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := &repo{t: t, dir: realpath(t, t.TempDir()) + "/copy"}
			base.git("clone", "-q", "--no-local", base.dir, r.dir)
			f(r)
			before, git := content(t, r.dir), fingerprint(t, r.path(".git"))
			_, err := b.Apply(t.Context(), r.dir, patch, yes)
			if !errors.Is(err, ErrConflict) {
				t.Fatalf("%v", err)
			}
			same(t, r.dir, before)
			unchanged(t, r.path(".git"), git)
		})
	}
}

// TestTransactionTakesBack cuts a transaction off at each of its changes.
func TestTransactionTakesBack(t *testing.T) {
	t.Parallel()
	changes := []PathChange{{Status: "M", Path: "a", NewMode: "100644"}, {Status: "D", Path: "d/e/f"}, {Status: "A", Path: "n/m/o", NewMode: "100755"}, {Status: "A", Path: "d/e", NewMode: "120000"}, {Status: "A", Path: "last", NewMode: "100644"}}
	for stop := range len(changes) + 1 {
		top, out := realpath(t, t.TempDir()), realpath(t, t.TempDir())
		write(t, top+"/a", "old\n")
		write(t, top+"/d/e/f", "old\n")
		must(t, os.Chmod(top+"/d/e", 0o700))
		write(t, out+"/a", "new\n")
		write(t, out+"/n/m/o", "new\n")
		must(t, os.Mkdir(out+"/d", 0o755))
		must(t, os.Symlink("../a", out+"/d/e"))
		write(t, out+"/last", "new\n")
		work, err := openRoot(top)
		must(t, err)
		seen := map[string]unix.Stat_t{}
		for _, c := range changes {
			if st, err := work.lstat(c.Path); err == nil {
				seen[c.Path] = st
			}
		}
		if stop < len(changes) {
			switch c := changes[stop]; c.Status {
			case "A":
				must(t, os.RemoveAll(out+"/"+c.Path)) // cannot be staged
				if c.Path == "last" {
					write(t, out+"/last", "new\n")
					write(t, top+"/last/in the way", "x")
				}
			default:
				must(t, os.Chtimes(top+"/"+c.Path, yesterday, yesterday)) // changed meanwhile
			}
		}
		before := content(t, top)
		err = place(work, out, changes, seen)
		work.Close()
		if stop == len(changes) {
			must(t, err)
			if read(t, top+"/a") != "new\n" || read(t, top+"/d/e") != "new\n" || read(t, top+"/n/m/o") != "new\n" {
				t.Fatal("not in place")
			}
			continue
		}
		if err == nil {
			t.Fatalf("stop %d: no error", stop)
		}
		same(t, top, before)
	}
}

func TestApplyAsks(t *testing.T) {
	t.Parallel()
	r := filled(t)
	b := export(t, r.dir, "")
	s := enter(t, b)
	files := []string{".github/workflows/ci.yml", ".gitlab-ci.yml", "Jenkinsfile", ".envrc", ".vscode/tasks.json", "sub/.idea/x", ".claude/settings.json", ".cursor/rules/x", "AGENTS.md", "CLAUDE.md", ".husky/pre-commit",
		".pre-commit-config.yaml", "web/package.json", "Makefile", ".gitattributes", ".gitmodules", ".npmrc", ".devcontainer/devcontainer.json", ".mcp.json", "GNUmakefile", "x.code-workspace"}
	for _, f := range files {
		s.write(f, "x\n")
	}
	s.write("tool", "#!/bin/sh\n")
	s.chmod("tool", 0o755)
	s.write("plain.go", "package x\n")
	must(t, os.Symlink("../outside", s.path("link")))
	must(t, os.Symlink("a", s.path("inner")))
	must(t, os.Symlink("x/../.git/hooks", s.path("hooks")))
	patch := s.patchFile()
	before := content(t, r.dir)
	if _, err := b.Apply(t.Context(), r.dir, patch, nil); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	no := errors.New("no")
	var asked []string
	_, err := b.Apply(t.Context(), r.dir, patch, func(list []RiskyPath) error {
		for _, p := range list {
			asked = append(asked, p.Path)
			if p.Why == "" {
				t.Errorf("%s: why?", p.Path)
			}
		}
		return no
	})
	if !errors.Is(err, no) || len(asked) != len(files)+3 {
		t.Fatalf("%v %q", err, asked)
	}
	same(t, r.dir, before)
	if _, err := b.Apply(t.Context(), r.dir, patch, yes); err != nil {
		t.Fatal(err)
	}
}

func TestApplyKeepsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: needs root")
	}
	r := filled(t)
	must(t, chownAll(r.dir, 12345))
	b := export(t, r.dir, "")
	s := enter(t, b)
	s.write("a", "x\n")
	s.write("new/dir/file", "x\n")
	_, err := b.Apply(t.Context(), r.dir, s.patchFile(), nil)
	must(t, err)
	for _, name := range []string{"a", "new", "new/dir", "new/dir/file"} {
		var st unix.Stat_t
		must(t, unix.Lstat(r.path(name), &st))
		if st.Uid != 12345 || st.Gid != 12345 {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
}

func TestApplySeesACutOffOne(t *testing.T) {
	t.Parallel()
	r := filled(t)
	b := export(t, r.dir, "")
	must(t, os.Mkdir(r.path(leftover+"1"), 0o700))
	if _, err := b.Apply(t.Context(), r.dir, os.DevNull, nil); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
}

func TestApplyOntoAnArmedTree(t *testing.T) {
	t.Parallel()
	r := filled(t)
	b := export(t, r.dir, "")
	s := enter(t, b)
	s.write("a", "agent\n")
	patch := s.patchFile()
	nest := arm(t, r)
	r.write("more", "x\n")
	_, err := b.Apply(t.Context(), r.dir, patch, nil)
	must(t, err)
	noCanary(t, nest)
}
