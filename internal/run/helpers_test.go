package run

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/redact"
	"ravi/internal/store"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const value = "s3cr3t/value+that=is~long"

func redactor() *redact.Redactor {
	return redact.New(redact.Pair{Secret: value, Instead: "[secret TOKEN]", Name: "TOKEN"}, redact.Pair{Secret: "another-value-of-mine", Instead: "[secret OTHER]", Name: "OTHER"})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Ute", "GIT_AUTHOR_EMAIL=ute@example.org", "GIT_COMMITTER_NAME=Ute", "GIT_COMMITTER_EMAIL=ute@example.org")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %q: %v", args, err)
	}
	return string(out)
}

// newRepo is a repository with one file.
func newRepo(t testing.TB, dir string) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	git(t, dir, "init", "-q", "-b", "main")
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one\n"), 0o644))
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "first")
	return dir
}

func newStore(t testing.TB, home string) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), home)
	must(t, err)
	t.Cleanup(func() { st.Close() })
	return st
}

// onHost are the options of a run on the host backend, which needs nothing.
func onHost(t testing.TB, script string) Options {
	t.Helper()
	home := t.TempDir()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	return Options{Home: home, Store: newStore(t, home), Repo: newRepo(t, filepath.Join(t.TempDir(), "repo")), Config: cfg,
		Command: []string{"sh", "-c", script}, Redact: redactor()}
}

// holders are the files beneath dir that hold text, or are called so.
func holders(t testing.TB, dir, text string) (list []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			if !bytes.Contains(b, []byte(text)) && !strings.Contains(d.Name(), text) {
				return nil
			}
			list = append(list, p)
		}
		return nil
	}))
	return list
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
