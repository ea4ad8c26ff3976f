package beneath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// canary is what lies outside, and must never be seen.
const canary = "CANARY from outside"

// place is a workspace with a folder beside it, which nothing in it may reach.
type place struct {
	*Root
	dir, outside string
	before       map[string]string
}

type failer interface {
	Helper()
	Fatal(...any)
	Errorf(string, ...any)
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newPlace(t *testing.T) *place {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	p := &place{dir: filepath.Join(top, "work"), outside: filepath.Join(top, "outside")}
	must(t, os.Mkdir(p.dir, 0o755))
	for _, f := range []string{"f", "victim", "onlyoutside/f"} {
		put(t, filepath.Join(p.outside, f), canary)
	}
	p.Root, err = Open(p.dir)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	p.before = tree(t, p.outside)
	return p
}

func put(t failer, file, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text), 0o644))
}

func (p *place) at(name string) string { return filepath.Join(p.dir, name) }

// outsideIsUntouched compares what is outside with what it was: names, content, and the time of the last change of any kind.
func (p *place) outsideIsUntouched(t failer) {
	t.Helper()
	if d := cmp.Diff(p.before, tree(t, p.outside)); d != "" {
		t.Errorf("what is outside was changed:\n%s", d)
	}
}

func tree(t failer, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		text := ""
		if d.Type().IsRegular() {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text = string(b)
		}
		out[name] = fmt.Sprintf("%o %d %d:%d %d %s", st.Mode, st.Ino, st.Uid, st.Gid, st.Ctim.Nano(), text)
		return nil
	}))
	return out
}

// every does with a name all that can be done with one.
func every(ctx context.Context, r *Root, name string) map[string]error {
	_, read := r.ReadFile(ctx, name, 1<<20)
	_, stat := r.Stat(ctx, name)
	_, _, list := r.List(ctx, name, 3, 100)
	_, walk := r.Walk(ctx, name, wide, func(Entry, func() ([]byte, error)) error { return nil })
	return map[string]error{"read": read, "stat": stat, "list": list, "walk": walk,
		"write": r.WriteFile(ctx, name, []byte("x")), "mkdir": r.MakeDir(ctx, name), "remove": r.Remove(ctx, name)}
}

var wide = Bounds{Entries: 1 << 20, Depth: 1 << 20, FileBytes: 1 << 20, Bytes: 1 << 30}

func wantError(t failer, what string, err, kind error, text ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: %v, want: %v", what, err, kind)
		return
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error %q does not say %q", what, err, s)
		}
	}
}

func wantFile(t failer, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("%s: %.60q, %v; want %.60q", file, got, err, want)
	}
}

func paths(entries []Entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.Path)
	}
	return out
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: this takes root, to mount or to make files of others")
	}
}

// withMounts runs f in a mount namespace of its own, on one thread that is thrown away.
func withMounts(t *testing.T, f func()) {
	t.Helper()
	needsRoot(t)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		defer func() { done <- err }()
		if err == nil {
			f()
		}
	}()
	must(t, <-done)
}
