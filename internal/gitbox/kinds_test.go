package gitbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestKinds checks that sources which are not a plain, own, full clone give the same answers inside as outside.
func TestKinds(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(t *testing.T, r *repo) *repo{
		"plain":    func(t *testing.T, r *repo) *repo { return r },
		"detached": func(t *testing.T, r *repo) *repo { r.git("checkout", "-q", "--detach", "HEAD~1"); return r },
		"packed":   func(t *testing.T, r *repo) *repo { r.git("gc", "-q"); r.git("pack-refs", "--all"); return r },
		"midx": func(t *testing.T, r *repo) *repo {
			r.git("repack", "-adq", "--write-midx", "--write-bitmap-index")
			r.git("commit-graph", "write", "--reachable")
			return r
		},
		"linked": func(t *testing.T, r *repo) *repo {
			dir := realpath(t, t.TempDir()) + "/linked"
			r.git("worktree", "add", "-q", "-b", "topic", dir)
			return &repo{t: t, dir: dir}
		},
		"shallow": func(t *testing.T, r *repo) *repo {
			dir := realpath(t, t.TempDir()) + "/shallow"
			r.git("clone", "-q", "--no-local", "--depth", "1", "--no-single-branch", "file://"+r.dir, dir)
			return &repo{t: t, dir: dir}
		},
		"another's": func(t *testing.T, r *repo) *repo {
			if os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: needs root")
			}
			must(t, chownAll(r.dir, 12345))
			return r
		},
		"submodule's own": func(t *testing.T, r *repo) *repo {
			super := filled(t)
			super.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", r.dir, "sub")
			sub := &repo{t: t, dir: super.path("sub")}
			sub.git("fetch", "-q", r.dir, "side:side")
			return sub
		},
		"split index": func(t *testing.T, r *repo) *repo { r.git("update-index", "--split-index"); return r },
		"caches": func(t *testing.T, r *repo) *repo {
			r.git("update-index", "--untracked-cache", "--index-version", "4")
			return r
		},
		"dash": func(t *testing.T, r *repo) *repo {
			dir := realpath(t, t.TempDir()) + "/-rf"
			must(t, os.Rename(r.dir, dir))
			return &repo{t: t, dir: dir}
		},
		"newline": func(t *testing.T, r *repo) *repo {
			dir := realpath(t, t.TempDir()) + "/new\nline \"x\" \xff:é#"
			must(t, os.Rename(r.dir, dir))
			return &repo{t: t, dir: dir}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f(t, filled(t))
			before := fingerprint(t, r.dir)
			rr, err := Open(t.Context(), r.dir)
			must(t, err)
			beforeGit := fingerprint(t, rr.common)
			b := export(t, r.dir, "")
			unchanged(t, r.dir, before)
			unchanged(t, rr.common, beforeGit)
			s := enter(t, b)
			safe := []string{"-c", "safe.directory=*"}
			for _, q := range [][]string{{"log", "--oneline"}, {"describe", "--always"}, {"diff", "side...HEAD"}, {"status", "--porcelain"}, {"branch", "--show-current"}, {"for-each-ref", "refs/heads", "refs/tags", "refs/remotes"}, {"rev-parse", "--is-shallow-repository"}} {
				out, err1 := r.try(append(safe, q...)...)
				in, err2 := s.try(q...)
				if q[0] == "for-each-ref" {
					out = dropLines(out, "origin/HEAD")
					in = dropLines(in, "origin/HEAD")
				}
				if in != out || (err1 == nil) != (err2 == nil) {
					t.Errorf("git %q: inside %q, outside %q", q, in, out)
				}
			}
			beforeGit = fingerprint(t, rr.common) // the queries above refreshed the index
			s.write("a", "changed\n")
			if _, _, p := s.capture(); p.Files != 1 {
				t.Fatalf("%+v", p)
			}
			unchanged(t, rr.common, beforeGit)
		})
	}
}

func dropLines(s, with string) string {
	var out []string
	for l := range strings.SplitSeq(s, "\n") {
		if !strings.Contains(l, with) {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

func TestSHA256(t *testing.T) {
	t.Parallel()
	r := newRepo(t, "--object-format=sha256")
	r.write("a", "1\n")
	r.commit("first")
	r.write("b", "2\n")
	b := export(t, r.dir, "")
	if len(b.Commit) != 64 || b.Dirty.Added != 1 {
		t.Fatalf("%+v", b)
	}
	s := enter(t, b)
	s.write("b", "3\n")
	if _, err := b.Apply(t.Context(), r.dir, s.patchFile(), nil); err != nil || r.read("b") != "3\n" {
		t.Fatal(err)
	}
}

func TestUnborn(t *testing.T) {
	t.Parallel()
	for _, files := range []int{0, 2} {
		r := newRepo(t)
		for i := range files {
			r.write(fmt.Sprint("f", i), "x\n")
		}
		b := export(t, r.dir, "")
		if !b.Empty || b.Commit != "" || b.Branch != "refs/heads/main" || b.Dirty.Added != files {
			t.Fatalf("%+v", b)
		}
		s := enter(t, b)
		if in, out := s.git("status", "--porcelain"), r.git("status", "--porcelain"); in != out {
			t.Fatalf("inside %q, outside %q", in, out)
		}
		s.write("new", "n\n")
		s.commit("the first commit is the agent's")
		if _, _, p := s.capture(); p.Files != 1 {
			t.Fatalf("%+v", p)
		}
		_, err := b.Apply(t.Context(), r.dir, s.patchFile(), nil)
		must(t, err)
		if r.read("new") != "n\n" {
			t.Fatal("not applied")
		}
	}
}

func TestBare(t *testing.T) {
	t.Parallel()
	r := filled(t)
	dir := realpath(t, t.TempDir()) + "/bare.git"
	r.git("clone", "-q", "--bare", "--no-local", r.dir, dir)
	b := export(t, dir, "")
	if b.Commit != r.git("rev-parse", "HEAD") || b.Dirty.Any() {
		t.Fatalf("%+v", b)
	}
	if s := enter(t, b); s.read("a") != r.read("a") {
		t.Fatal("not checked out")
	}
	if _, err := b.Apply(t.Context(), dir, os.DevNull, nil); !errors.Is(err, ErrUnsupported) {
		t.Fatal(err)
	}
	empty := realpath(t, t.TempDir())
	r.git("init", "-q", "--bare", "-b", "trunk", empty)
	if b := export(t, empty, ""); !b.Empty || b.Branch != "refs/heads/trunk" {
		t.Fatalf("%+v", b)
	}
}

func TestRefs(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.git("branch", "release/1.0", "HEAD~1")
	loose := r.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "on no branch")
	r.write("a", "dirty")
	for ref, want := range map[string]struct{ rev, branch string }{
		"main": {"main", "refs/heads/main"}, "release/1.0": {"release/1.0", "refs/heads/release/1.0"}, "refs/heads/side": {"side", "refs/heads/side"},
		"v1": {"v1^{commit}", ""}, "HEAD~1": {"HEAD~1", ""}, loose: {loose, ""}, loose[:10]: {loose, ""},
	} {
		b := export(t, r.dir, ref)
		if b.Commit != r.git("rev-parse", want.rev) || b.Branch != want.branch || b.Dirty.Any() || b.Tree != b.Head {
			t.Errorf("%s: %+v", ref, b)
		}
		s := enter(t, b)
		if got := s.git("rev-parse", "HEAD"); got != b.Commit {
			t.Errorf("%s: HEAD inside is %s", ref, got)
		}
	}
	rr, err := Open(t.Context(), r.dir)
	must(t, err)
	for _, ref := range []string{"nope", "-n", "--all", "HEAD:a", "main..side", "", " ", "HEAD@{1}", "main\n", "^main"} {
		if ref == "" {
			continue
		}
		if _, err := rr.Export(t.Context(), ref, t.TempDir()+"/x", Limits{}); !errors.Is(err, ErrBadRef) {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

func TestNotARepository(t *testing.T) {
	t.Parallel()
	dir := realpath(t, t.TempDir())
	refused(t, dir, ErrNotRepository)
	write(t, dir+"/file", "x")
	refused(t, dir+"/file", ErrNotRepository)
	refused(t, dir+"/nothing", os.ErrNotExist)
	must(t, os.Mkdir(dir+"/.git", 0o755))
	refused(t, dir, ErrNotRepository)
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]string{
		"reftable": "[core]\nrepositoryformatversion = 1\n[extensions]\nrefstorage = reftable\n", "version": "[core]\nrepositoryformatversion = 7\n",
		"extension": "[core]\nrepositoryformatversion = 1\n[extensions]\nwhatever = true\n", "objects": "[core]\nrepositoryformatversion = 1\n[extensions]\nobjectformat = md5\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := filled(t)
			r.write(".git/config", cfg)
			refused(t, r.dir, ErrUnsupported)
		})
	}
	r := filled(t)
	r.write(".git/config", "[core\n")
	refused(t, r.dir, ErrCorrupt)
}

func TestSubmodule(t *testing.T) {
	t.Parallel()
	sub, r := filled(t), filled(t)
	r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", sub.dir, "mod")
	r.commit("with a submodule")
	r.write("mod/a", "changed in the submodule")
	b := export(t, r.dir, "")
	if b.Submodules.Count != 1 || b.Submodules.First[0] != "mod" || b.Dirty.Any() {
		t.Fatalf("%+v", b)
	}
	s := enter(t, b)
	s.write("a", "x\n")
	s.write("mod/file", "written into the submodule's place")
	if _, _, p := s.capture(); p.Files != 1 {
		t.Fatalf("%+v", p)
	}
	_, err := b.Apply(t.Context(), r.dir, s.patchFile(), nil)
	must(t, err)
	if r.read("mod/a") != "changed in the submodule" {
		t.Fatal("the submodule was touched")
	}
}

func TestLineEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ autocrlf, attributes, content string }{
		{"true", "", "one\r\ntwo\r\n"}, {"false", "", "one\r\ntwo\r\n"}, {"input", "", "one\ntwo\n"}, {"", "* text=auto eol=crlf\n", "one\r\ntwo\r\n"}, {"", "*.txt working-tree-encoding=UTF-16LE\n", "o\x00\n\x00"},
	} {
		r := newRepo(t)
		if c.autocrlf != "" {
			r.git("config", "core.autocrlf", c.autocrlf)
		}
		if c.attributes != "" {
			r.write(".gitattributes", c.attributes)
		}
		r.write("a.txt", c.content)
		r.write("b.txt", c.content)
		r.commit("first")
		must(t, os.Chtimes(r.path("a.txt"), yesterday, yesterday)) // the time differs, the content does not
		r.write("b.txt", c.content+c.content)
		b := export(t, r.dir, "")
		if b.Dirty.Modified != 1 || b.Dirty.Paths.First[0] != "b.txt" {
			t.Fatalf("%+v: %+v", c, b.Dirty)
		}
		s := enter(t, b)
		if s.read("a.txt") != c.content || s.read("b.txt") != c.content+c.content {
			t.Fatalf("%+v: inside %q", c, s.read("a.txt"))
		}
		if patch, _, _ := s.capture(); patch != "" {
			t.Fatalf("%+v: nothing was done, yet\n%s", c, patch)
		}
		s.write("a.txt", c.content+c.content+c.content)
		res, err := b.Apply(t.Context(), r.dir, s.patchFile(), func([]RiskyPath) error { return nil })
		if err != nil || len(res.Paths) != 1 || r.read("a.txt") != c.content+c.content+c.content {
			t.Fatalf("%+v: %v %q", c, err, r.read("a.txt"))
		}
	}
}

func TestFileModeOff(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.git("config", "core.fileMode", "false")
	r.chmod("a", 0o755)
	r.chmod("run.sh", 0o644)
	if b := export(t, r.dir, ""); b.Dirty.Any() {
		t.Fatalf("%+v", b.Dirty)
	}
}

func TestIndexFlags(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.git("update-index", "--skip-worktree", "dir/b")
	must(t, os.RemoveAll(r.path("dir")))
	r.write("intended", "i\n")
	r.git("add", "-N", "intended")
	r.git("rm", "-q", "--cached", "run.sh")
	b := export(t, r.dir, "")
	if b.Dirty.Added != 1 || b.Dirty.Deleted != 0 || b.Dirty.Modified != 0 {
		t.Fatalf("%+v", b.Dirty)
	}
	if s := enter(t, b); s.read("dir/b") != "bee\n" {
		t.Fatal("sparse file is not inside")
	}
}

func TestUnmerged(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.git("checkout", "-q", "side")
	r.write("a", "one\ntwo\nthree\nside\n")
	r.commit("side")
	if _, err := r.try("merge", "main"); err == nil {
		t.Fatal("no conflict")
	}
	b := export(t, r.dir, "")
	s := enter(t, b)
	if s.read("a") != r.read("a") || !strings.Contains(s.read("a"), "<<<<<<<") {
		t.Fatal(s.read("a"))
	}
}

func TestOperatorIgnoresHold(t *testing.T) {
	home := realpath(t, t.TempDir())
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home+"/xdg")
	write(t, home+"/xdg/git/ignore", ".env\n")
	r := filled(t)
	r.write(".env", "SECRET")
	r.write(".git/info/exclude", "private\n")
	r.write("private", "x")
	if b := export(t, r.dir, ""); b.Dirty.Any() {
		t.Fatalf("%+v", b.Dirty)
	}
	write(t, home+"/.gitconfig", "[core]\n\texcludesFile = ~/mine\n")
	write(t, home+"/mine", ".env*\n")
	b := export(t, r.dir, "")
	if b.Dirty.Any() {
		t.Fatalf("%+v", b.Dirty)
	}
	s := enter(t, b)
	s.write(".env.local", "x")
	if patch, _, _ := s.capture(); patch != "" {
		t.Fatal(patch)
	}
}
