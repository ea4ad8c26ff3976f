package remote

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/backend"
)

func fill(t testing.TB, dir string) {
	t.Helper()
	for name, mode := range map[string]os.FileMode{"b": 0o600, "a/x": 0o777, "a/" + strings.Repeat("ü", 100): 0o640, "a/b/c/d/e": 0o444} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
}

// The same content has the same digest, wherever it lies, whosever it is and whenever it was made; another one has not.
func TestDigestIsTheContents(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	fill(t, one)
	time.Sleep(10 * time.Millisecond) // another time stamp
	fill(t, two)
	if err := os.Chmod(filepath.Join(two, "b"), 0o644); err != nil {
		t.Fatal(err)
	}
	digest := func(dir string) string {
		sum, size, err := measure(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := pack(t.Context(), &b, dir); err != nil || int64(b.Len()) != size {
			t.Errorf("%d bytes, and %d were announced: %v", b.Len(), size, err)
		}
		return sum
	}
	if digest(one) != digest(two) {
		t.Error("two digests for one content")
	}
	for what, change := range map[string]func(dir string) error{
		"another text":  func(d string) error { return os.WriteFile(filepath.Join(d, "b"), []byte("content of c"), 0o600) },
		"executable":    func(d string) error { return os.Chmod(filepath.Join(d, "b"), 0o700) },
		"another name":  func(d string) error { return os.Rename(filepath.Join(d, "b"), filepath.Join(d, "c")) },
		"an empty file": func(d string) error { return os.WriteFile(filepath.Join(d, "z"), nil, 0o600) },
		"a link's place": func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, "link")), os.Symlink("x", filepath.Join(d, "link")))
		},
	} {
		dir := t.TempDir()
		fill(t, dir)
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if digest(dir) == digest(one) {
			t.Errorf("%s does not show", what)
		}
	}
}

// Only what can be copied is: what a link leads to is not, and a device, a pipe or a socket is an error.
func TestPackOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	var b bytes.Buffer
	if err := pack(t.Context(), &b, dir); err != nil {
		t.Fatal(err)
	}
	in := tar.NewReader(bytes.NewReader(b.Bytes()))
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "link" && (h.Typeflag != tar.TypeSymlink || h.Linkname != "/etc/passwd") || h.Uid != 0 || h.Uname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("%+v", h)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pack(t.Context(), io.Discard, dir); err == nil || !strings.Contains(err.Error(), "pipe") {
		t.Errorf("a pipe: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pack(ctx, io.Discard, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// What needs this machine is refused before a session is opened.
func TestRefusedAtHome(t *testing.T) {
	called := 0
	b := Dial(func(context.Context) (Session, error) {
		called++
		return nil, errors.New("called")
	})
	for what, change := range map[string]func(*backend.Spec){
		"a checkpoint":       func(s *backend.Spec) { s.Checkpoint = "/x" },
		"credentials":        func(s *backend.Spec) { s.ProxyAuthFile = "/x" },
		"a proxy":            func(s *backend.Spec) { s.Network = []byte(`{"proxy": {"url": "http://proxy:1"}}`) },
		"a sealed one":       func(s *backend.Spec) { s.Sealed = true },
		"a folder":           func(s *backend.Spec) { s.Mounts = []backend.Mount{{Host: "/etc", Guest: "/opt/x", ReadOnly: true}} },
		"a folder to write":  func(s *backend.Spec) { s.Mounts = []backend.Mount{{Host: "/etc", Guest: "/opt/x"}} },
		"one that is a file": func(s *backend.Spec) { s.Mounts = []backend.Mount{{Host: "/etc/passwd", Guest: "/opt/x", Copy: true}} },
	} {
		s := spec()
		change(&s)
		if _, err := b.Create(t.Context(), s); err == nil || called > 0 || what != "one that is a file" && !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v, called %d times", what, err, called)
		}
	}
	if _, err := b.Create(t.Context(), spec()); err == nil || called != 1 {
		t.Errorf("a good one: %v, called %d times", err, called)
	}
}

// What is remembered of a folder holds as long as nothing in it changes.
func TestRemembered(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	fill(t, dir)
	digest := func() string {
		t.Helper()
		sum, _, err := remember(t.Context(), home, dir)
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := measure(t.Context(), dir)
		if err != nil || sum != want {
			t.Errorf("the digest is %s, and %s is remembered: %v", want, sum, err)
		}
		return sum
	}
	memos := func() []string {
		found, _ := filepath.Glob(filepath.Join(home, memoDir, "*")) // it is well-formed
		return found
	}
	_, newest, err := stampOf(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	first := digest()
	if len(memos()) != 0 && time.Since(newest) < settled {
		t.Error("what was changed a moment ago is remembered")
	}
	time.Sleep(time.Until(newest.Add(settled + 10*time.Millisecond)))
	if digest() != first || len(memos()) != 1 {
		t.Errorf("there is remembered %v", memos())
	}
	// It is used: one that says something else is believed, as nobody else can write there.
	b, err := os.ReadFile(memos()[0])
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("0", 64)
	if err := os.WriteFile(memos()[0], []byte(strings.Replace(string(b), first, other, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := remember(t.Context(), home, dir); got != other || err != nil {
		t.Errorf("it is not used: %s %v", got, err)
	}
	// One that is no memo is not.
	if err := os.WriteFile(memos()[0], []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest()
	// The same size and the same time of change, which anybody can set.
	name := filepath.Join(dir, "b")
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(name, []byte("CONTENT OF b"), 0o600), os.Chtimes(name, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	if digest() == first {
		t.Error("a change is not noticed")
	}
}
