package gitbox

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// arm fills every place from which git runs something with a program that leaves a canary, and returns the directory in
// which canaries appear.
func arm(t *testing.T, r *repo) string {
	t.Helper()
	nest := realpath(t, t.TempDir())
	program := func(name string) string {
		p := nest + "/" + name + ".sh"
		write(t, p, "#!/bin/sh\ntouch '"+nest+"/canary-"+name+"'\ncat 2>/dev/null\n")
		must(t, os.Chmod(p, 0o755))
		return p
	}
	for _, h := range []string{"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg",
		"post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update", "post-receive", "post-update", "reference-transaction",
		"push-to-checkout", "pre-auto-gc", "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change", "proc-receive"} {
		write(t, r.path(".git/hooks/"+h), read(t, program("hook-"+h)))
		r.chmod(".git/hooks/"+h, 0o755)
	}
	r.write(".gitattributes", "*.txt filter=evil diff=evil merge=evil ident\n*.proc filter=evilproc\n*.c diff=evil\n")
	r.write("f.txt", "$Id$\ntext\n")
	r.write("g.proc", "text\n")
	r.write("h.c", "int x;\n")
	r.commit("attributes")
	included := nest + "/included"
	write(t, included, "[core]\n\tfsmonitor = "+program("included")+"\n")
	var cfg strings.Builder
	fmt.Fprintf(&cfg, "[core]\n\tfsmonitor = %s\n\tsshCommand = %s\n\tgitProxy = %s\n\tpager = %s\n\teditor = %s\n\taskPass = %s\n\talternateRefsCommand = %s\n\thooksPath = %s\n\tworktree = /etc\n",
		program("fsmonitor"), program("ssh"), program("proxy"), program("pager"), program("editor"), program("askpass"), program("altrefs"), r.path(".git/hooks"))
	fmt.Fprintf(&cfg, "[filter \"evil\"]\n\tclean = %s\n\tsmudge = %s\n\trequired = true\n[filter \"evilproc\"]\n\tprocess = %s\n", program("clean"), program("smudge"), program("process"))
	fmt.Fprintf(&cfg, "[filter \"lfs\"]\n\tclean = %s\n\tsmudge = %s\n\tprocess = %s\n", program("lfsclean"), program("lfssmudge"), program("lfsprocess"))
	fmt.Fprintf(&cfg, "[diff]\n\texternal = %s\n[diff \"evil\"]\n\tcommand = %s\n\ttextconv = %s\n[merge \"evil\"]\n\tdriver = %s\n", program("external"), program("diffcmd"), program("textconv"), program("merge"))
	fmt.Fprintf(&cfg, "[credential]\n\thelper = %s\n[gpg]\n\tprogram = %s\n[commit]\n\tgpgSign = true\n[uploadpack]\n\tpackObjectsHook = %s\n", program("credential"), program("gpg"), program("packhook"))
	fmt.Fprintf(&cfg, "[alias]\n\tls-files = !%s\n\tpack-objects = !%s\n[submodule \"s\"]\n\tupdate = !%s\n\turl = ext::%s\n", program("alias"), program("alias2"), program("submodule"), program("ext"))
	fmt.Fprintf(&cfg, "[include]\n\tpath = %s\n[includeIf \"gitdir:/\"]\n\tpath = %s\n[remote \"origin\"]\n\turl = https://user:TOKEN-c4n4ry@example.org/x\n\tuploadpack = %s\n\tpromisor = true\n\tpartialclonefilter = blob:none\n", included, included, program("uploadpack"))
	fmt.Fprintf(&cfg, "[http]\n\textraHeader = Authorization: TOKEN-c4n4ry\n[trailer \"x\"]\n\tcommand = %s\n[core]\n\tattributesFile = %s\n", program("trailer"), nest+"/attributes")
	write(t, nest+"/attributes", "* filter=evil diff=evil\n")
	for _, f := range canaries(nest) { // the commit above ran hooks, as it should
		must(t, os.Remove(f))
	}
	f, err := os.OpenFile(r.path(".git/config"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(cfg.String())
	must(t, err)
	must(t, f.Close())
	return nest
}

func canaries(nest string) []string {
	found, _ := filepath.Glob(nest + "/canary-*")
	return found
}

func noCanary(t *testing.T, nest string) {
	t.Helper()
	if found := canaries(nest); len(found) > 0 {
		t.Fatalf("the repository's own programs ran: %q", found)
	}
}

func TestArmedRepository(t *testing.T) {
	r := filled(t)
	nest := arm(t, r)
	// The trap works: git itself falls into it.
	_, _ = r.try("-c", "core.worktree=", "status")
	if found := canaries(nest); len(found) == 0 {
		t.Fatal("the traps are not set")
	} else {
		for _, f := range found {
			must(t, os.Remove(f))
		}
	}
	r.write("f.txt", "$Id$\nchanged by the user\n")
	r.write("h.c", "int y;\n")
	r.write("new.txt", "untracked\n")
	gitDir := fingerprint(t, r.path(".git"))
	before := fingerprint(t, r.dir)
	b := export(t, r.dir, "")
	noCanary(t, nest)
	unchanged(t, r.dir, before)
	if b.Filtered.Count != 2 { // f.txt and new.txt need a filter that never runs
		t.Errorf("filtered: %+v", b.Filtered)
	}
	s := enter(t, b)
	noCanary(t, nest)
	s.write("h.c", "int z;\n")
	s.write("z", "new\n")
	file := s.patchFile()
	noCanary(t, nest)
	if _, err := b.Apply(t.Context(), r.dir, file, nil); err != nil {
		t.Fatal(err)
	}
	if r.read("h.c") != "int z;\n" || r.read("z") != "new\n" {
		t.Fatal("not applied")
	}
	noCanary(t, nest)
	unchanged(t, r.path(".git"), gitDir)

	// What a filter converts is not written.
	s.write("f.txt", "by the agent\n")
	if _, err := b.Apply(t.Context(), r.dir, s.patchFile(), nil); !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrConflict) {
		t.Fatalf("a filtered file was written: %v", err)
	}
	noCanary(t, nest)
	_, err := b.Apply(t.Context(), r.dir, file, nil)
	must(t, err)
	noCanary(t, nest)

	// The token of .git/config is in no byte that goes in.
	for _, dir := range []string{b.Dir(), s.l.Work, s.l.Private} {
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && strings.Contains(read(t, p), "TOKEN-c4n4ry") {
				t.Errorf("%s holds the token", p)
			}
			return err
		}))
	}
}

// refused opens and exports, and wants one of the errors.
func refused(t *testing.T, dir string, want error) error {
	t.Helper()
	return refusedWithin(t, dir, Limits{}, want)
}

func refusedWithin(t *testing.T, dir string, limits Limits, want error) error {
	t.Helper()
	r, err := Open(t.Context(), dir)
	if err == nil {
		_, err = r.Export(t.Context(), "", t.TempDir()+"/export", limits)
	}
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
	return err
}

func TestReachingOut(t *testing.T) {
	private := filled(t) // somebody's private repository
	hostile := func(t *testing.T) *repo { return filled(t) }
	replace := func(t *testing.T, r *repo, name, target string) {
		must(t, os.RemoveAll(r.path(name)))
		must(t, os.Symlink(target, r.path(name)))
	}
	for name, f := range map[string]func(t *testing.T, r *repo){
		"alternates": func(t *testing.T, r *repo) {
			r.write(".git/objects/info/alternates", private.path(".git/objects")+"\n")
		},
		"http alternates":   func(t *testing.T, r *repo) { r.write(".git/objects/info/http-alternates", "https://example.org\n") },
		"alternates link":   func(t *testing.T, r *repo) { replace(t, r, ".git/objects/info/alternates", "/etc/passwd") },
		"symlinked .git":    func(t *testing.T, r *repo) { replace(t, r, ".git", private.path(".git")) },
		"symlinked objects": func(t *testing.T, r *repo) { replace(t, r, ".git/objects", private.path(".git/objects")) },
		"symlinked pack":    func(t *testing.T, r *repo) { replace(t, r, ".git/objects/pack", private.path(".git/objects/pack")) },
		"symlinked object":  func(t *testing.T, r *repo) { replace(t, r, ".git/objects/aa", private.path(".git/objects")) },
		"symlinked refs":    func(t *testing.T, r *repo) { replace(t, r, ".git/refs", private.path(".git/refs")) },
		"symlinked HEAD":    func(t *testing.T, r *repo) { replace(t, r, ".git/HEAD", private.path(".git/HEAD")) },
		"symlinked packed":  func(t *testing.T, r *repo) { replace(t, r, ".git/packed-refs", private.path(".git/HEAD")) },
		"symlinked index":   func(t *testing.T, r *repo) { replace(t, r, ".git/index", private.path(".git/index")) },
		"symlinked config":  func(t *testing.T, r *repo) { replace(t, r, ".git/config", "/etc/passwd") },
		"symlinked exclude": func(t *testing.T, r *repo) { replace(t, r, ".git/info", "/etc") },
		"commondir":         func(t *testing.T, r *repo) { r.write(".git/commondir", private.path(".git")) },
		"gitdir of a victim": func(t *testing.T, r *repo) {
			must(t, os.RemoveAll(r.path(".git")))
			r.write(".git", "gitdir: "+private.path(".git")+"\n")
		},
		"FIFO as object": func(t *testing.T, r *repo) {
			must(t, os.MkdirAll(r.path(".git/objects/aa"), 0o755))
			must(t, syscall.Mkfifo(r.path(".git/objects/aa/"+strings.Repeat("b", 38)), 0o644))
		},
		"FIFO as HEAD": func(t *testing.T, r *repo) {
			must(t, os.Remove(r.path(".git/HEAD")))
			must(t, syscall.Mkfifo(r.path(".git/HEAD"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := hostile(t)
			f(t, r)
			if name == "symlinked exclude" { // ignored rather than refused: no rule is read through a link
				b := export(t, r.dir, "")
				if text := read(t, b.Dir()+"/base.git/info/exclude"); strings.Contains(text, "root:") {
					t.Fatal(text)
				}
				return
			}
			refused(t, r.dir, ErrRefused)
		})
	}
}

func TestForeignWorktreeRecord(t *testing.T) {
	// A work tree that claims to be the linked one of a repository whose linked one is elsewhere.
	r := filled(t)
	other := realpath(t, t.TempDir())
	r.git("worktree", "add", "-q", other+"/linked", "side")
	fake := realpath(t, t.TempDir())
	write(t, fake+"/.git", read(t, other+"/linked/.git"))
	refused(t, fake, ErrRefused)
	if b := export(t, other+"/linked", ""); b.Branch != "refs/heads/side" {
		t.Fatalf("%+v", b)
	}
}

func TestBrokenObjects(t *testing.T) {
	t.Parallel()
	t.Run("corrupt blob", func(t *testing.T) {
		r := filled(t)
		oid := r.git("rev-parse", "HEAD:a")
		p := r.path(".git/objects/" + oid[:2] + "/" + oid[2:])
		must(t, os.Chmod(p, 0o644))
		must(t, os.WriteFile(p, []byte("junk"), 0o644))
		refused(t, r.dir, ErrCorrupt)
	})
	t.Run("missing blob", func(t *testing.T) {
		r := filled(t)
		oid := r.git("rev-parse", "HEAD~1:a")
		must(t, os.Remove(r.path(".git/objects/"+oid[:2]+"/"+oid[2:])))
		refused(t, r.dir, ErrCorrupt)
	})
	for name, line := range map[string]string{
		".git in a tree": "040000 tree %t\t.git", ".GIT": "040000 tree %t\t.GIT", "dot dot": "040000 tree %t\t..", "git~1": "040000 tree %t\tgit~1",
		"duplicate": "100644 blob %b\ta\n100644 blob %b\ta", "HFS": "040000 tree %t\t.g\u200cit", ".gitmodules link": "120000 blob %b\t.gitmodules",
	} {
		t.Run(name, func(t *testing.T) {
			r := filled(t)
			line = strings.NewReplacer("%t", r.git("rev-parse", "HEAD:dir"), "%b", r.git("rev-parse", "HEAD:a")).Replace(line)
			var raw strings.Builder
			for l := range strings.SplitSeq(line, "\n") {
				meta, file, _ := strings.Cut(l, "\t")
				f := strings.Fields(meta)
				raw.WriteString(strings.TrimPrefix(f[0], "0") + " " + file + "\x00")
				for i := 0; i < len(f[2]); i += 2 {
					var c byte
					_, err := fmt.Sscanf(f[2][i:i+2], "%02x", &c)
					must(t, err)
					raw.WriteByte(c)
				}
			}
			write(t, r.path("../tree"), raw.String())
			tree := r.git("hash-object", "-t", "tree", "-w", "--literally", "../tree")
			r.git("update-ref", "refs/heads/evil", r.git("commit-tree", tree, "-m", "evil"))
			refused(t, r.dir, ErrCorrupt)
		})
	}
}

func TestHostileRefs(t *testing.T) {
	t.Parallel()
	r := filled(t)
	oid := r.git("rev-parse", "HEAD")
	r.write(".git/packed-refs", "# pack-refs with: peeled fully-peeled sorted \n"+oid+" refs/heads/../../../../etc/x\n"+oid+" refs/heads/-rf\n"+oid+" refs/heads/ok\n"+
		strings.Repeat("1", 40)+" refs/heads/nowhere\n"+oid+" refs/stash\n")
	r.write(".git/refs/heads/huge", strings.Repeat("a", 1<<20))
	r.write(".git/refs/heads/loop", "ref: refs/heads/loop\n")
	must(t, os.Symlink("/etc/passwd", r.path(".git/refs/heads/link")))
	must(t, syscall.Mkfifo(r.path(".git/refs/heads/fifo"), 0o644))
	b := export(t, r.dir, "")
	refs := read(t, b.Dir()+"/base.git/packed-refs")
	if !strings.Contains(refs, "refs/heads/-rf") || !strings.Contains(refs, "refs/heads/ok") || strings.Contains(refs, "..") || strings.Contains(refs, "stash") {
		t.Fatal(refs)
	}
	if b.Refs.Count != 6 {
		t.Fatalf("%+v", b.Refs)
	}
	enter(t, b)
	r.write(".git/packed-refs", "junk\n")
	refused(t, r.dir, ErrCorrupt)
}

func TestOddFiles(t *testing.T) {
	t.Parallel()
	r := filled(t)
	odd := []string{"--help", "-n", "new\nline", "tab\there", "inv\xff\xfealid", `back\slash`, `quo"te`, " blank ", "*", ":(top)x", "sp ace/in dir"}
	for i, name := range odd {
		r.write(name, fmt.Sprintln("odd", i))
	}
	r.git("add", "-A")
	r.git("commit", "-qm", "odd")
	must(t, os.Symlink("/etc/passwd", r.path("passwd")))
	must(t, syscall.Mkfifo(r.path("pipe"), 0o644))
	must(t, os.Remove(r.path("a")))
	must(t, syscall.Mkfifo(r.path("a"), 0o644)) // a tracked file became a pipe
	for _, name := range odd {
		r.write(name, "changed\n")
	}
	r.write("nested/.git/HEAD", "ref: refs/heads/main\n")
	must(t, os.MkdirAll(r.path("nested/.git/objects"), 0o755))
	must(t, os.MkdirAll(r.path("nested/.git/refs"), 0o755))
	r.write("nested/file", "x")
	b := export(t, r.dir, "")
	if b.Left.Count != 2 || b.Dirty.Modified != len(odd) || b.Dirty.Added != 1 || b.Dirty.Deleted != 1 {
		t.Fatalf("%+v %+v", b.Left, b.Dirty)
	}
	s := enter(t, b)
	if to, err := os.Readlink(s.path("passwd")); err != nil || to != "/etc/passwd" {
		t.Fatal(to, err)
	}
	for i, name := range odd {
		if s.read(name) != "changed\n" {
			t.Errorf("%q", name)
		}
		s.write(name, fmt.Sprintln("agent", i))
	}
	s.write("more\nlines\xff", "x\n")
	must(t, syscall.Mkfifo(s.path("pipe2"), 0o644))
	must(t, os.Remove(s.path("dir/b")))
	must(t, syscall.Mkfifo(s.path("dir/b"), 0o644))
	file := s.patchFile()
	_, c, p := s.capture()
	if p.Files != len(odd)+2 || c.Special.Count != 1 {
		t.Fatalf("%+v %+v", p, c)
	}
	must(t, os.Remove(r.path("a")))
	_, err := b.Apply(t.Context(), r.dir, file, func([]RiskyPath) error { return nil })
	must(t, err)
	for i, name := range odd {
		if r.read(name) != fmt.Sprintln("agent", i) {
			t.Errorf("%q was not applied", name)
		}
	}
}

func TestPipeAsIgnoreFile(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.write("sub/file", "x")
	must(t, syscall.Mkfifo(r.path("sub/.gitignore"), 0o644))
	err := refusedWithin(t, r.dir, Limits{List: 3 * time.Second}, errListing)
	if !strings.Contains(err.Error(), "named pipe") {
		t.Fatal(err)
	}
}

func TestIndexNamesGitDirectory(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	r.write("Xgit/config", "x")
	r.git("add", "Xgit")
	// Git itself makes no such index: the entry is renamed in the file, and the checksum mended.
	data := []byte(strings.Replace(r.read(".git/index"), "Xgit/config", ".git/config", 1))
	sum := sha1.Sum(data[:len(data)-20])
	copy(data[len(data)-20:], sum[:])
	must(t, os.WriteFile(r.path(".git/index"), data, 0o644))
	if out := r.git("ls-files"); out != ".git/config" {
		t.Fatal(out)
	}
	refused(t, r.dir, ErrRefused)
}

func TestBeneathFollowsNothing(t *testing.T) {
	t.Parallel()
	dir := realpath(t, t.TempDir())
	write(t, dir+"/in/.git/hooks/x", "hook")
	must(t, os.Symlink(".git", dir+"/in/alias"))
	must(t, os.Symlink("..", dir+"/in/up"))
	write(t, dir+"/secret", "s")
	at, err := openRoot(dir + "/in")
	must(t, err)
	defer at.Close()
	for _, name := range []string{"alias/hooks/x", "up/secret", "../secret", "/etc/passwd", "", ".", "alias", "a//b", "x\x00y"} {
		if f, _, err := at.open(name); err == nil {
			f.Close()
			t.Errorf("%q was opened", name)
		}
		if f, err := at.create(name+"/new", 0o600); err == nil {
			f.Close()
			t.Errorf("%q was written to", name)
		}
	}
	if err := at.rename(".git/hooks/x", "alias/hooks/y"); !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
}
