package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

// The work tree is taken as it lies, unless a ref is named; the user's own state is told in the base.
func TestDirtyTree(t *testing.T) {
	w, r := newWorld(t), plain(t)
	r.write("gone", "gone\n")
	r.commit("second")
	r.git("tag", "v1")
	r.write("a", "one\ntwo\nthree\nmine\n")
	r.write("untracked", "new\n")
	r.write("ignored", "ignored\n")
	must(t, os.Remove(r.path("gone")))
	before := snapshot(t, r.dir)

	res := w.run(r, "--", "sh", "-c", `git status --short | sort; ls; echo agent >>a`).want(0).says("taken along")
	if want := " D gone\n M a\n?? untracked\n"; !strings.HasPrefix(res.stdout, want) {
		t.Errorf("inside git status says %q", res.stdout)
	}
	if strings.Contains(res.stdout, "ignored") {
		t.Errorf("ignored files went in: %q", res.stdout)
	}
	k := res.task()
	if d := k.Base.Dirty; d.Modified != 1 || d.Added != 1 || d.Deleted != 1 || d.Paths.Count != 3 || k.Base.Tree == k.Base.Head {
		t.Errorf("base %+v", k.Base)
	}
	if k.Patch.Files != 1 || k.Patch.Insertions != 1 || !strings.Contains(res.patch(), " mine\n+agent\n") {
		t.Errorf("the patch is not the agent's alone:\n%s", res.patch())
	}
	if snapshot(t, r.dir) != before {
		t.Error("the repository was changed")
	}

	res = w.run(r, "--ref", "v1", "--", "sh", "-c", `git status --short; cat gone; echo agent >>a`).want(0)
	if res.stdout != "gone\n" {
		t.Errorf("inside: %q", res.stdout)
	}
	k = res.task()
	if k.Base.Ref != "v1" || k.Base.Dirty.Modified != 0 || k.Base.Tree != r.git("rev-parse", "v1^{tree}") || strings.Contains(res.patch(), "mine") {
		t.Errorf("base %+v, patch %s", k.Base, res.patch())
	}
}

// Names and kinds of files that are hard on tools.
func TestOddFiles(t *testing.T) {
	w, r := newWorld(t), plain(t)
	odd := map[string]string{"--help": "help\n", "new\nline": "nl\n", "bad\xff\xfeutf": "bytes\n", "ü ä": "umlaut\n", "-rf": "x\n", "tab\t": "t\n", `quo"te\`: "q\n"}
	for name, text := range odd {
		r.write(name, text)
	}
	r.write("crlf", "a\r\nb\r\n")
	must(t, os.Symlink("/etc/passwd", r.path("link")))
	must(t, os.Symlink("nowhere", r.path("dangling")))
	must(t, os.Symlink("/root", r.path("dirlink")))
	r.commit("odd")
	res := w.run(r, "--", "sh", "-c", `
		git status --short
		for f in ./*; do [ -L "$f" ] || [ -d "$f" ] || printf 'x\n' >>"$f"; done
		printf 'c\r\n' >>crlf
		mkfifo pipe; mkdir -p deep/er; ln -s /etc/shadow deep/er/evil; rm dangling; mv dirlink moved
		chmod +x a; git mv run.sh walk.sh; rm -r dir; printf 'a\nb' >'new
file'; : >empty; ln -sf other link`).want(0)
	if strings.Contains(res.stdout, "M") || strings.Contains(res.stdout, "??") {
		t.Errorf("the tree inside is not clean: %q", res.stdout)
	}
	c, _ := r.applied(res)
	for name, text := range odd {
		if got := c.read(name); got != text+"x\n" {
			t.Errorf("%q holds %q", name, got)
		}
	}
	if c.read("crlf") != "a\r\nb\r\nx\nc\r\n" || c.read("new\nfile") != "a\nbx\n" && c.read("new\nfile") != "a\nb" || c.read("walk.sh") != "#!/bin/sh\nx\n" {
		t.Errorf("contents: %q, %q", c.read("crlf"), c.read("new\nfile"))
	}
	for name, target := range map[string]string{"link": "other", "deep/er/evil": "/etc/shadow", "moved": "/root"} {
		if got, err := os.Readlink(c.path(name)); err != nil || got != target {
			t.Errorf("%s leads to %q: %v", name, got, err)
		}
	}
	for _, name := range []string{"pipe", "dangling", "dir/b", "run.sh"} {
		if _, err := os.Lstat(c.path(name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	if passwd := read(t, "/etc/passwd"); strings.Contains(res.patch(), strings.SplitN(passwd, "\n", 2)[0]) {
		t.Error("the host's passwd is in the patch")
	}
	// Both documents stay valid and harmless with such names.
	if p := res.task().Patch; len(p.Paths) != p.Files || p.Files < 12 {
		t.Errorf("paths %+v", p)
	}
}

// Special files in the user's tree are left where they are.
func TestSpecialFiles(t *testing.T) {
	w, r := newWorld(t), plain(t)
	must(t, syscall.Mkfifo(r.path("pipe"), 0o644))
	must(t, os.Symlink("/etc/passwd", r.path("untracked-link")))
	res := w.run(r, "--", "sh", "-c", "ls; readlink untracked-link; echo x >>a").want(0)
	if strings.Contains(res.stdout, "pipe") || !strings.Contains(res.stdout, "/etc/passwd\n") {
		t.Errorf("inside: %q", res.stdout)
	}
	if k := res.task(); k.Patch.Files != 1 {
		t.Errorf("patch %+v", k.Patch)
	}
}

func TestEmptyRepository(t *testing.T) {
	w, r := newWorld(t), newRepo(t)
	res := w.run(r, "--", "sh", "-c", "git status --short; echo hello >a").want(0)
	if k := res.task(); !k.Base.Empty || k.Base.Commit != "" || k.Patch.Files != 1 || !k.Patch.Applies {
		t.Errorf("base %+v, patch %+v", k.Base, k.Patch)
	}
	r.git("apply", filepath.Join(res.dir, "changes.patch"))
	if r.read("a") != "hello\n" {
		t.Error("the patch does not apply")
	}
}

const look = `git log --format=%s; wc -l <a; git describe --always --tags; git diff --stat HEAD~1...HEAD 2>/dev/null | tail -1; git for-each-ref --format='%(refname)' refs/heads; git status --short; git rev-parse --is-shallow-repository`

// Clones that are not whole, not alone or not one's own answer inside as they do outside.
func TestSources(t *testing.T) {
	origin := plain(t)
	for i := range 5 {
		origin.write("a", strings.Repeat(fmt.Sprintln(i), i+1))
		origin.commit(fmt.Sprint("change ", i))
	}
	origin.git("tag", "v9", "HEAD~1")
	for name, make := range map[string]func(t *testing.T) *repo{
		"plain": func(t *testing.T) *repo { return origin.clone() },
		"shallow": func(t *testing.T) *repo {
			c := &repo{t: t, dir: realpath(t, t.TempDir())}
			c.git("clone", "-q", "--depth", "2", "file://"+origin.dir, ".")
			return c
		},
		"linked work tree": func(t *testing.T) *repo {
			main := origin.clone()
			c := &repo{t: t, dir: realpath(t, t.TempDir()) + "/linked"}
			main.git("worktree", "add", "-q", "-b", "side", c.dir, "HEAD~1")
			return c
		},
		"detached": func(t *testing.T) *repo {
			c := origin.clone()
			c.git("checkout", "-q", "--detach", "HEAD~2")
			return c
		},
		"of another user": func(t *testing.T) *repo {
			if os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: giving files away needs root")
			}
			c := origin.clone()
			must(t, filepath.Walk(c.dir, func(p string, _ os.FileInfo, err error) error {
				if err == nil {
					err = os.Lchown(p, 4711, 4711)
				}
				return err
			}))
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := newWorld(t), make(t)
			before := snapshot(t, r.dir)
			w.run(r, "--out", w.user+"/o", "--", "sh", "-c", look+"; echo x >>a").want(0)
			res := &result{t: t, dir: w.user + "/o"}
			if snapshot(t, r.dir) != before {
				t.Error("the repository was changed")
			}
			want := r.outside(look)
			if got := res.file("logs/stdout.log"); got != want {
				t.Errorf("inside:\n%s\noutside:\n%s", got, want)
			}
			if p := res.task().Patch; p.Files != 1 || !p.Applies {
				t.Errorf("patch %+v", p)
			}
			if name == "shallow" && !res.task().Base.Shallow || name == "detached" && res.task().Base.Branch != "" {
				t.Errorf("base %+v", res.task().Base)
			}
		})
	}
}

// outside is what a script says in the repository on the host.
func (r *repo) outside(script string) string {
	r.t.Helper()
	out, err := r.try("-c", "safe.directory=*", "-c", "alias.do=!cd \"$GIT_PREFIX\" 2>/dev/null; "+script, "do")
	if err != nil {
		r.t.Fatalf("outside: %v\n%s", err, out)
	}
	return out + "\n"
}

// Content under LFS is never passed off as a patch, filter there or not.
func TestLFS(t *testing.T) {
	w, r := newWorld(t), plain(t)
	r.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	r.write("d.bin", pointer)
	r.commit("lfs")
	r.git("config", "filter.lfs.required", "true")
	r.git("config", "filter.lfs.clean", "no-such-program")
	r.git("config", "filter.lfs.smudge", "no-such-program")
	must(t, os.WriteFile(w.user+"/.gitconfig", []byte("[filter \"lfs\"]\n\trequired = true\n\tprocess = no-such-program\n"), 0o600))
	res := w.run(r, "--", "sh", "-c", "head -c 300000 /dev/urandom >d.bin; head -c 300000 /dev/urandom >new.bin; echo x >>a").want(0).says("LFS", "d.bin", "new.bin")
	k := res.task()
	if k.Base.LFS.Count != 1 || k.Patch.Files != 1 || k.Patch.Paths[0].Path != "a" || !slices.Contains(k.Patch.LFS, "d.bin") || !slices.Contains(k.Patch.LFS, "new.bin") {
		t.Errorf("base %+v, patch %+v", k.Base.LFS, k.Patch)
	}
	if len(res.patch()) > 2000 {
		t.Errorf("the patch has %d bytes", len(res.patch()))
	}
}

func TestSubmodule(t *testing.T) {
	w, r, sub := newWorld(t), plain(t), plain(t)
	r.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", sub.dir, "sub")
	r.commit("submodule")
	r.write("sub/a", "changed in the submodule\n")
	res := w.run(r, "--", "sh", "-c", "ls sub | wc -l; echo x >sub/y; echo x >>a; git init -q nested; echo x >nested/z").want(0)
	k := res.task()
	if strings.TrimSpace(res.stdout) != "0" || k.Base.Submodules.Count != 1 {
		t.Errorf("inside %q, base %+v", res.stdout, k.Base)
	}
	if k.Patch.Files != 1 || k.Patch.Paths[0].Path != "a" {
		t.Errorf("patch %+v", k.Patch)
	}
	res.says("submodule", "nested")
}

// The settings that people and agents have, which make patches of another form.
func TestPatchSettings(t *testing.T) {
	r := plain(t)
	settings := [][2]string{{"diff.noprefix", "true"}, {"color.ui", "always"}, {"diff.external", "no-such-program"}, {"diff.mnemonicPrefix", "true"}, {"core.quotePath", "false"},
		{"diff.context", "0"}, {"diff.algorithm", "patience"}, {"diff.renames", "false"}, {"core.abbrev", "5"}}
	r.write(".gitattributes", "a diff=mine\n")
	r.commit("attributes")
	settings = append(settings, [2]string{"diff.mine.textconv", "no-such-program"})
	edit := "echo four >>a; git mv dir/b dir/ö"
	var want string
	set := func(do func(key, value string)) {
		for _, s := range settings {
			do(s[0], s[1])
		}
	}
	for _, where := range []string{"nowhere", "the user's", "the repository's", "the agent's"} {
		w, script := newWorld(t), edit
		switch where {
		case "the user's":
			set(func(key, value string) { r.git("config", "--file", w.user+"/.gitconfig", key, value) })
		case "the repository's":
			set(func(key, value string) { r.git("config", key, value) })
		case "the agent's":
			set(func(key, value string) {
				script = "git config --global " + key + " '" + value + "'; git config " + key + " '" + value + "'; " + script
			})
		}
		got := w.run(r, "--", "sh", "-c", script).want(0).patch()
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("with %s settings:\n%s\nwithout:\n%s", where, got, want)
		}
	}
}

// Two runs at once on one repository do not mind each other.
func TestTwoAtOnce(t *testing.T) {
	w, r := newWorld(t), plain(t)
	before := snapshot(t, r.dir)
	one := w.start(r, "--", "sh", "-c", "echo ready; sleep 1; echo one >>a")
	one.until("ready")
	two := w.run(r, "--", "sh", "-c", "echo two >>a").want(0)
	res := one.wait().want(0)
	if !strings.Contains(res.patch(), "+one") || strings.Contains(res.patch(), "+two") || !strings.Contains(two.patch(), "+two") || strings.Contains(two.patch(), "+one") {
		t.Errorf("patches:\n%s\n%s", res.patch(), two.patch())
	}
	if snapshot(t, r.dir) != before {
		t.Error("the repository was changed")
	}
}

func TestManyFiles(t *testing.T) {
	w, r := newWorld(t), newRepo(t)
	for i := range 5000 {
		r.write(fmt.Sprintf("d%d/f%d", i%50, i), fmt.Sprintln("file", i))
	}
	r.commit("many")
	res := w.run(r, "--", "sh", "-c", "git ls-files | wc -l; git status --short; for f in d7/*; do echo x >>$f; done; rm -r d8").want(0)
	if strings.TrimSpace(res.stdout) != "5000" {
		t.Errorf("inside: %q", short(res.stdout))
	}
	if p := res.task().Patch; p.Files != 200 || p.Insertions != 100 || p.Deletions != 100 {
		t.Errorf("patch: %d files, +%d -%d", p.Files, p.Insertions, p.Deletions)
	}
	r.applied(res)
}
