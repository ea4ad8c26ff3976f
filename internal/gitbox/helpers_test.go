package gitbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// repo is a repository made with the real git, under a configuration of the tests' own.
type repo struct {
	t   testing.TB
	dir string
}

func newRepo(t testing.TB, args ...string) *repo {
	t.Helper()
	r := &repo{t: t, dir: realpath(t, t.TempDir())}
	r.git(append([]string{"init", "-q", "-b", "main"}, args...)...)
	r.git("config", "user.name", "Ute Müller")
	r.git("config", "user.email", "ute@example.org")
	return r
}

// filled is a repository with two commits, a branch and a tag.
func filled(t testing.TB) *repo {
	t.Helper()
	r := newRepo(t)
	r.write("a", "one\ntwo\nthree\n")
	r.write("dir/b", "bee\n")
	r.write("run.sh", "#!/bin/sh\n")
	r.chmod("run.sh", 0o755)
	r.write(".gitignore", "ignored\nbuild/\n")
	r.commit("first")
	r.git("tag", "-a", "v1", "-m", "one")
	r.git("branch", "side")
	r.write("a", "one\ntwo\nthree\nfour\n")
	r.commit("second")
	return r
}

func realpath(t testing.TB, p string) string {
	t.Helper()
	p, err := filepath.EvalSymlinks(p)
	must(t, err)
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *repo) try(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C", "GIT_ALLOW_PROTOCOL=file")
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

func (r *repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return out
}

func (r *repo) commit(msg string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", msg)
	return r.git("rev-parse", "HEAD")
}

func (r *repo) path(name string) string { return r.dir + "/" + name }

func (r *repo) write(name, content string) { r.t.Helper(); write(r.t, r.path(name), content) }

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func (r *repo) read(name string) string { r.t.Helper(); return read(r.t, r.path(name)) }

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func (r *repo) chmod(name string, mode fs.FileMode) {
	r.t.Helper()
	must(r.t, os.Chmod(r.path(name), mode))
}

// fingerprint is every path beneath dir with its kind, mode, times and content: what must not change.
func fingerprint(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%q %o %d %d %d.%d", p, st.Mode, st.Size, st.Ino, st.Mtim.Sec, st.Mtim.Nsec)
		if d.Type().IsRegular() && st.Size < 1<<20 {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

func unchanged(t testing.TB, dir, before string) {
	t.Helper()
	after := fingerprint(t, dir)
	if before == after {
		return
	}
	x, y := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range max(len(x), len(y)) {
		if i >= len(x) || i >= len(y) || x[i] != y[i] {
			t.Fatalf("the repository was changed, first at:\n%.300s\n%.300s", append(x, "", "")[min(i, len(x))], append(y, "", "")[min(i, len(y))])
		}
	}
}

// localGuest stands for a sandbox: the same commands, in directories of the test's own.
type localGuest struct {
	t   testing.TB
	env []string // what an agent, or an image, may have set
}

func (g *localGuest) Run(ctx context.Context, c Command) (int, string, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(append([]string{"PATH=" + os.Getenv("PATH")}, g.env...), c.Env...)
	if c.User != "root" && os.Geteuid() == 0 {
		u, err := user.Lookup(c.User)
		if err != nil {
			return -1, "", err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	var stderr tail
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return -1, "", ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), stderr.String(), nil
	}
	if errors.Is(err, ErrTooBig) { // the reader of the output gave up, git died of it
		return -1, stderr.String(), err
	}
	return 0, stderr.String(), err
}

func (g *localGuest) PutTar(ctx context.Context, user, dir string, r io.Reader) error {
	cmd := exec.CommandContext(ctx, "tar", "-x", "-p", "-C", dir)
	cmd.Stdin = r
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return nil
}

// sandbox is an entered base.
type sandbox struct {
	*repo
	base *Base
	g    *localGuest
	l    Layout
}

func export(t testing.TB, path, ref string) *Base {
	t.Helper()
	r, err := Open(t.Context(), path)
	must(t, err)
	b, err := r.Export(t.Context(), ref, t.TempDir()+"/export", Limits{})
	must(t, err)
	return b
}

func enter(t testing.TB, b *Base) *sandbox {
	t.Helper()
	me, err := user.Current()
	must(t, err)
	tmp := realpath(t, t.TempDir())
	s := &sandbox{base: b, g: &localGuest{t: t}, l: Layout{Work: tmp + "/workspace", Private: tmp + "/private", User: me.Username, Root: "root"}}
	s.repo = &repo{t: t, dir: s.l.Work}
	must(t, b.Enter(t.Context(), s.g, s.l))
	return s
}

// capture makes the patch and proves it.
func (s *sandbox) capture() (string, *Capture, *Proof) {
	s.t.Helper()
	var patch bytes.Buffer
	c, err := s.base.Capture(s.t.Context(), s.g, s.l, CaptureOptions{Exclude: []string{"TASK.md"}, Fresh: true}, &patch)
	must(s.t, err)
	file := s.t.TempDir() + "/changes.patch"
	must(s.t, os.WriteFile(file, patch.Bytes(), 0o600))
	p, err := s.base.Prove(s.t.Context(), file, c.Tree)
	if err != nil {
		s.t.Fatalf("%v\n%.2000s", err, patch.String())
	}
	return patch.String(), c, p
}

func (s *sandbox) patchFile() string {
	s.t.Helper()
	patch, _, _ := s.capture()
	file := s.t.TempDir() + "/p.patch"
	must(s.t, os.WriteFile(file, []byte(patch), 0o600))
	return file
}

var yesterday = time.Now().Add(-24 * time.Hour)

func chownAll(dir string, uid int) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, uid, uid)
	})
}

func sha256Hex(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }
