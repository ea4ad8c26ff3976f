package gitbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSettingsDoNotMatter is case H04: whatever git is told by the user, the repository or the agent, the patch is the same.
func TestSettingsDoNotMatter(t *testing.T) {
	var want string
	settings := [][2]string{{"diff.noprefix", "true"}, {"diff.mnemonicPrefix", "true"}, {"color.ui", "always"}, {"diff.external", "/bin/false"}, {"diff.evil.textconv", "/bin/false"}, {"core.quotePath", "false"},
		{"diff.renames", "false"}, {"diff.algorithm", "patience"}, {"diff.context", "0"}, {"core.abbrev", "4"}, {"apply.whitespace", "error"}, {"core.autocrlf", "true"}, {"diff.submodule", "log"}, {"diff.interHunkContext", "9"}, {"core.bare", "true"}, {"core.worktree", "/"}}
	for _, where := range []string{"nowhere", "user", "repository", "agent"} {
		home := realpath(t, t.TempDir())
		r := filled(t)
		r.write(".gitattributes", "*.c diff=evil\n")
		r.write("x.c", "int x;\n")
		r.write("old name", strings.Repeat("line\n", 50))
		r.git("add", "-A")
		r.git("-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "third", "--date=@1000000000 +0000")
		global := home + "/.gitconfig"
		apply := func(args ...string) {
			for _, kv := range settings {
				if kv[0] == "core.autocrlf" && where == "repository" {
					continue // there it says what the user's files are; TestLineEnds
				}
				r.git(append(append([]string{"config"}, args...), kv[0], kv[1])...)
			}
		}
		switch where {
		case "user":
			apply("--file", global)
			t.Setenv("HOME", home)
		case "repository":
			apply()
		}
		s := enter(t, export(t, r.dir, ""))
		if where == "agent" {
			apply("--file", global)
			s.g.env = []string{"HOME=" + home, "GIT_EXTERNAL_DIFF=/bin/false", "GIT_DIFF_OPTS=-U0", "GIT_CONFIG_PARAMETERS='diff.noprefix=true'"}
			for _, kv := range settings {
				s.git("config", "--file", s.path(".git/config"), kv[0], kv[1])
			}
		}
		s.write("x.c", "int y;\n")
		s.write("a", "one\n2\nthree\nfour\n")
		must(t, os.Rename(s.path("old name"), s.path("näw name")))
		s.write("bin", "\x00\x01\x02")
		patch, _, _ := s.capture()
		if want == "" {
			want = patch
			if !strings.Contains(patch, "rename from old name") || !strings.Contains(patch, "GIT binary patch") {
				t.Fatal(patch)
			}
		}
		if patch != want {
			t.Errorf("%s: the patch differs:\n%s\n%s", where, patch, want)
		}
	}
}

func TestAgentsLeftovers(t *testing.T) {
	t.Parallel()
	base := export(t, filled(t).dir, "")
	for name, f := range map[string]func(t *testing.T, s *sandbox){
		"locks":     func(t *testing.T, s *sandbox) { s.write(".git/index.lock", ""); s.write(".git/HEAD.lock", "") },
		"committed": func(t *testing.T, s *sandbox) { s.commit("by the agent") },
		"other branch": func(t *testing.T, s *sandbox) {
			s.git("checkout", "-q", "-b", "other")
			s.commit("by the agent")
			s.git("checkout", "-q", "--detach")
		},
		"history gone": func(t *testing.T, s *sandbox) {
			s.git("update-ref", "-d", "HEAD")
			s.git("rm", "-rfq", "--cached", ".")
		},
		"no .git": func(t *testing.T, s *sandbox) { must(t, os.RemoveAll(s.path(".git"))) },
		".git a file": func(t *testing.T, s *sandbox) {
			must(t, os.RemoveAll(s.path(".git")))
			s.write(".git", "gitdir: /nowhere\n")
		},
		".git a link": func(t *testing.T, s *sandbox) {
			must(t, os.RemoveAll(s.path(".git")))
			must(t, os.Symlink("/etc", s.path(".git")))
		},
		"broken .git": func(t *testing.T, s *sandbox) {
			s.write(".git/HEAD", "junk")
			s.write(".git/config", "[[[")
			s.write(".git/index", "junk")
		},
		"packs removed":    func(t *testing.T, s *sandbox) { must(t, os.RemoveAll(s.path(".git/objects"))) },
		"gc":               func(t *testing.T, s *sandbox) { s.commit("x"); s.git("gc", "-q", "--prune=now", "--aggressive") },
		"assume unchanged": func(t *testing.T, s *sandbox) { s.git("update-index", "--assume-unchanged", "a") },
		"pipe as ignore file": func(t *testing.T, s *sandbox) {
			must(t, os.MkdirAll(s.path("p"), 0o755))
			must(t, syscall.Mkfifo(s.path("p/.gitignore"), 0o644))
		},
		"wrong encoding": func(t *testing.T, s *sandbox) {
			s.write(".git/info/attributes", "* working-tree-encoding=UTF-16\n")
			s.write("enc/.gitattributes", "x working-tree-encoding=UTF-16\n")
			s.write("enc/x", "odd")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := enter(t, base)
			s.write("a", "one\nagent\n")
			f(t, s)
			var out bytes.Buffer
			var limits Limits
			if strings.HasPrefix(name, "pipe") {
				limits.List = 6 * time.Second // the first listing takes all of it
			}
			c, err := base.Capture(t.Context(), s.g, s.l, CaptureOptions{Limits: limits}, &out)
			for errors.Is(err, errSlow) && limits.List != 0 && limits.List < 2*time.Minute {
				// The second listing, which nothing holds up, took that long as well: it is a loaded machine.
				limits.List *= 5
				out.Reset()
				f(t, s)
				c, err = base.Capture(t.Context(), s.g, s.l, CaptureOptions{Limits: limits}, &out)
			}
			must(t, err)
			file := t.TempDir() + "/p"
			write(t, file, out.String())
			p, err := base.Prove(t.Context(), file, c.Tree)
			must(t, err)
			if p.Insertions == 0 || !strings.Contains(out.String(), "+agent") {
				t.Fatalf("%+v\n%s", p, out.String())
			}
		})
	}
}

// TestAgentIsNotRoot has an agent of its own uid: it can work and commit, and reaches neither the private repository nor the
// packs that its own shares with it.
func TestAgentIsNotRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: needs root")
	}
	r := filled(t)
	r.write("u", "untracked\n")
	b := export(t, r.dir, "")
	tmp, err := os.MkdirTemp("", "gitbox-agent-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	must(t, os.Chmod(tmp, 0o755))
	s := &sandbox{base: b, g: &localGuest{t: t}, l: Layout{Work: tmp + "/workspace", Private: tmp + "/private", User: "nobody", Root: "root"}}
	s.repo = &repo{t: t, dir: s.l.Work}
	must(t, b.Enter(t.Context(), s.g, s.l))
	agent := func(want bool, script string) {
		t.Helper()
		code, stderr, err := s.g.Run(t.Context(), Command{User: "nobody", Dir: s.l.Work, Args: []string{"sh", "-ec", script, "sh", s.l.Private}, Env: []string{"HOME=/nonexistent"}})
		if err != nil || (code == 0) != want {
			t.Errorf("%s: %d %v %s", script, code, err, stderr)
		}
	}
	agent(true, `echo agent >>a; git add -A; git commit -qm agent; git log --oneline | grep -q second; git fsck`)
	agent(false, `ls "$1"`)
	agent(false, `for f in .git/objects/pack/*.pack; do [ ! -O "$f" ] || continue; echo x >>"$f"; done`)
	agent(false, `for f in .git/objects/pack/*.pack; do [ ! -O "$f" ] || continue; chmod u+w "$f"; done`)
	agent(true, `git gc -q --prune=now; rm -rf .git/objects; echo mode >m; chmod 000 m`)
	if _, _, p := s.capture(); p.Files != 2 || p.Insertions != 2 {
		t.Fatalf("%+v", p)
	}
}

func TestTreeShapes(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.write("d/x/y", "1\n")
	r.write("d/z", "2\n")
	r.commit("third")
	b := export(t, r.dir, "")
	s := enter(t, b)
	must(t, os.RemoveAll(s.path("d"))) // a directory becomes a link
	must(t, os.Symlink("dir", s.path("d")))
	must(t, os.Remove(s.path("a"))) // a file becomes a directory
	s.write("a/in", "x\n")
	must(t, os.RemoveAll(s.path("dir"))) // a directory becomes a file
	s.write("dir", "x\n")
	s.git("init", "-q", "nested")
	s.write("nested/f", "x")
	s.git("init", "-q", "vendor/lib")
	(&repo{t: t, dir: s.path("vendor/lib")}).git("-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "x")
	must(t, os.Symlink("/etc/passwd", s.path("out")))
	_, c, p := s.capture()
	if c.Nested.Count != 2 || p.Files != 8 {
		t.Fatalf("%+v %+v", c, p)
	}
	_, err := b.Apply(t.Context(), r.dir, s.patchFile(), func(risky []RiskyPath) error {
		if len(risky) != 1 || risky[0].Path != "out" {
			t.Errorf("%+v", risky)
		}
		return nil
	})
	must(t, err)
	if to, err := os.Readlink(r.path("d")); err != nil || to != "dir" || r.read("a/in") != "x\n" || r.read("dir") != "x\n" {
		t.Fatal(to, err)
	}
}

const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

func TestLFS(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n*.nb filter=strip\n")
	r.write("c.bin", pointer)
	r.write("d.bin", pointer)
	r.write("n.nb", "1\n")
	r.commit("lfs")
	content := "the content that a pointer stands for\n"
	r.write("e.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:d3a2c3fb4e8fe7a33b4ce8fe51e0c3d0db4cbf4f1b0d3d0b2a8b7b2ab9c4e2f1\nsize 1\n")
	sum := sha256Hex(content)
	r.write("e.bin", fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", sum, len(content)))
	r.commit("another")
	r.write("e.bin", content) // checked out by LFS
	b := export(t, r.dir, "")
	if b.Dirty.Any() || b.Filtered.Count != 0 || b.LFS.Count != 3 {
		t.Fatalf("%+v", b)
	}
	r.write("e.bin", content+"changed")
	if b := export(t, r.dir, ""); b.Dirty.Any() || b.Filtered.Count != 1 || b.Filtered.First[0] != "e.bin" {
		t.Fatalf("%+v", b)
	}
	s := enter(t, b)
	if s.read("d.bin") != pointer {
		t.Fatal(s.read("d.bin"))
	}
	raw := make([]byte, 300_000)
	_, _ = rand.Read(raw)
	s.write("d.bin", string(raw))
	s.write("new.bin", "raw")
	s.write("c.bin", strings.Replace(pointer, "12345", "12346", 1))
	s.write("n.nb", "2\n")
	patch, c, p := s.capture()
	if c.LFS.Count != 2 || c.Filtered.Count != 1 || p.Files != 2 || len(patch) > 2000 {
		t.Fatalf("%+v %+v", c, p)
	}
}

func TestRequiredFilterInTheImage(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.write(".gitattributes", "*.bin filter=lfs\n")
	r.write("c.bin", pointer)
	r.commit("lfs")
	b := export(t, r.dir, "")
	home := realpath(t, t.TempDir())
	write(t, home+"/.gitconfig", "[filter \"lfs\"]\n\trequired = true\n\tsmudge = /nonexistent\n\tprocess = /nonexistent\n")
	tmp := realpath(t, t.TempDir())
	l := Layout{Work: tmp + "/w", Private: tmp + "/p", User: "root", Root: "root"}
	must(t, b.Enter(t.Context(), &localGuest{t: t, env: []string{"HOME=" + home, "GIT_CONFIG_GLOBAL=" + home + "/.gitconfig"}}, l))
	if read(t, l.Work+"/c.bin") != pointer {
		t.Fatal("not checked out")
	}
}

func TestNoGitInside(t *testing.T) {
	t.Parallel()
	err := export(t, filled(t).dir, "").Enter(t.Context(), noGit{}, DefaultLayout)
	if !errors.Is(err, ErrGit) {
		t.Fatal(err)
	}
}

type noGit struct{}

func (noGit) Run(context.Context, Command) (int, string, error) { return 127, "git: not found", nil }
func (noGit) PutTar(context.Context, string, string, io.Reader) error {
	return errors.New("not reached")
}

func TestTooBig(t *testing.T) {
	t.Parallel()
	r := filled(t)
	b := export(t, r.dir, "")
	s := enter(t, b)
	raw := make([]byte, 3<<20)
	_, _ = rand.Read(raw)
	s.write("product.o", string(raw))
	s.write("small", "x")
	_, err := b.Capture(t.Context(), s.g, s.l, CaptureOptions{Limits: Limits{PatchBytes: 1 << 20}}, io.Discard)
	if !errors.Is(err, ErrTooBig) || !strings.Contains(err.Error(), "product.o (3072 KiB)") {
		t.Fatal(err)
	}
	for i := range 20 {
		r.write(fmt.Sprint("u", i), "x")
	}
	rr, err := Open(t.Context(), r.dir)
	must(t, err)
	if _, err := rr.Export(t.Context(), "", t.TempDir()+"/x", Limits{DirtyFiles: 10}); !errors.Is(err, ErrTooBig) {
		t.Fatal(err)
	}
	r.write("big", string(raw))
	if _, err := rr.Export(t.Context(), "", t.TempDir()+"/x", Limits{DirtyBytes: 1 << 20}); !errors.Is(err, ErrTooBig) {
		t.Fatal(err)
	}
	if _, err := rr.Export(t.Context(), "", t.TempDir()+"/x", Limits{Refs: 2}); !errors.Is(err, ErrTooBig) {
		t.Fatal(err)
	}
}

// TestSavedEverySoOften checks that captures in a row see each change, and say when there was none.
func TestSavedEverySoOften(t *testing.T) {
	t.Parallel()
	b := export(t, filled(t).dir, "")
	s := enter(t, b)
	last := b.Tree
	for i := range 6 {
		var out bytes.Buffer
		if i != 3 {
			s.write("a", fmt.Sprint("round ", i, "\n"))
			s.write(fmt.Sprint("n", i), "x\n")
		}
		if i == 5 {
			must(t, os.Remove(s.path("n1")))
			s.write(".gitignore", "n2\n")
		}
		c, err := b.Capture(t.Context(), s.g, s.l, CaptureOptions{Last: last}, &out)
		must(t, err)
		if c.Same != (i == 3) || c.Same && out.Len() > 0 {
			t.Fatalf("round %d: %+v", i, c)
		}
		last = c.Tree
		if !c.Same {
			file := t.TempDir() + "/p"
			write(t, file, out.String())
			p, err := b.Prove(t.Context(), file, c.Tree)
			must(t, err)
			if want := []int{2, 3, 4, 0, 5, 5}[i]; p.Files != want {
				t.Fatalf("round %d: %d files, want %d", i, p.Files, want)
			}
		}
	}
}

func TestManyFiles(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	for i := range 5000 {
		r.write(fmt.Sprintf("d%d/f%d", i%50, i), fmt.Sprint(i, "\n"))
	}
	r.commit("many")
	b := export(t, r.dir, "")
	s := enter(t, b)
	for i := range 3000 {
		s.write(fmt.Sprintf("made/d%d/f%d", i%70, i), "made\n")
	}
	if _, _, p := s.capture(); p.Files != 3000 {
		t.Fatal(p.Files)
	}
}

func TestBigBinary(t *testing.T) {
	if testing.Short() {
		t.Skip("300 MB")
	}
	r := filled(t)
	b := export(t, r.dir, "")
	s := enter(t, b)
	f, err := os.Create(s.path("big"))
	must(t, err)
	_, err = io.CopyN(f, rand.Reader, 300<<20)
	must(t, errors.Join(err, f.Close()))
	patch, err := os.Create(t.TempDir() + "/patch")
	must(t, err)
	c, err := b.Capture(t.Context(), s.g, s.l, CaptureOptions{}, patch)
	must(t, errors.Join(err, patch.Close()))
	p, err := b.Prove(t.Context(), patch.Name(), c.Tree)
	must(t, err)
	if p.Files != 1 || p.Bytes < 300<<20 || p.Bytes != c.Bytes {
		t.Fatalf("%+v", p)
	}
}

func TestCaptureEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := export(t, filled(t).dir, "")
	s := enter(t, b)
	s.write("a", "x\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Capture(ctx, s.g, s.l, CaptureOptions{}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, _, p := s.capture(); p.Files != 1 {
		t.Fatal("no patch after a capture that was cut off")
	}
}

func TestProveRefuses(t *testing.T) {
	t.Parallel()
	b := export(t, filled(t).dir, "")
	s := enter(t, b)
	s.write("a", "one\n2\n")
	good, c, _ := s.capture()
	add := func(name string) string {
		return "diff --git a/" + name + " b/" + name + "\nnew file mode 100644\n--- /dev/null\n+++ b/" + name + "\n@@ -0,0 +1 @@\n+x\n"
	}
	link := "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n"
	for name, patch := range map[string]string{
		"junk": "junk\n", "cut off": good[:len(good)-5], "other context": strings.Replace(good, "-two", "-zwei", 1),
		"dot dot": add("../x"), "inner dot dot": add("d/../../x"), ".git": add(".git/hooks/post-commit"), ".GIT": add(".GIT/config"), "git~1": add("git~1/config"), "nested .git": add("dir/.git/config"),
		"HFS": add(".g\u200cit/config"), "absolute": strings.ReplaceAll(add("/etc/x"), "a//", "/"), "through a link": link + add("l/x"), "stream": add(".git::$INDEX_ALLOCATION/x"), "dots": add(".git. /x"),
		".gitmodules link": strings.ReplaceAll(strings.ReplaceAll(link, "a/l", "a/.gitmodules"), "b/l", "b/.gitmodules"), "twice": good + good, "exists": add("a"), "file as directory": add("a/x"),
	} {
		file := t.TempDir() + "/p"
		write(t, file, patch)
		p, err := b.Prove(t.Context(), file, "")
		if !errors.Is(err, ErrNotProven) || p.Applies {
			t.Errorf("%s: %v, %+v", name, err, p)
		}
	}
	file := t.TempDir() + "/p"
	write(t, file, good)
	if _, err := b.Prove(t.Context(), file, b.Tree); !errors.Is(err, ErrNotProven) {
		t.Errorf("another tree than the sandbox had: %v", err)
	}
	again, err := Load(b.Dir())
	must(t, err)
	p, err := again.Prove(t.Context(), file, c.Tree)
	if err != nil || !p.Applies || len(p.Paths) != 1 || p.Paths[0].Insertions != p.Insertions {
		t.Errorf("%v, %+v", err, p)
	}
}
