package beneath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListKeepsWhatIsNear(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	for _, f := range []string{"a/1/x", "a/1/y", "a/2", "a!", "b/1", "c"} {
		put(t, p.at(f), "x")
	}
	must(t, os.Symlink(p.outside, p.at("d")))
	for _, c := range []struct {
		depth, most int
		want        string
		more        bool
	}{
		{9, 99, "a a/1 a/1/x a/1/y a/2 a! b b/1 c d", false},
		{1, 99, "a a! b c d", false},
		{0, 99, "a a! b c d", false},
		{2, 99, "a a/1 a/2 a! b b/1 c d", false},
		{9, 10, "a a/1 a/1/x a/1/y a/2 a! b b/1 c d", false},
		{9, 9, "a a/1 a/1/x a/2 a! b b/1 c d", true},
		{9, 6, "a a/1 a! b c d", true},
		{9, 5, "a a! b c d", true},
		{1, 5, "a a! b c d", false},
		{1, 2, "a a!", true},
		{9, 0, "", true},
	} {
		got, more, err := p.List(ctx, ".", c.depth, c.most)
		if s := strings.Join(paths(got), " "); err != nil || s != c.want || more != c.more {
			t.Errorf("depth %d, %d entries: %s, %v, %v; want %s, %v", c.depth, c.most, s, more, err, c.want, c.more)
		}
	}
	got, _, err := p.List(ctx, "a", 2, 99)
	if s := strings.Join(paths(got), " "); err != nil || s != "a/1 a/1/x a/1/y a/2" {
		t.Errorf("%s, %v", s, err)
	}
}

func TestGitIsNotListedUnlessNamed(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	for _, f := range []string{".git/objects/x", "sub/.git/y", "sub/f"} {
		put(t, p.at(f), "x")
	}
	got, more, err := p.List(ctx, ".", 9, 99)
	if s := strings.Join(paths(got), " "); err != nil || more || s != ".git sub sub/.git sub/f" || got[0].Unread == "" {
		t.Errorf("%s, %+v, %v, %v", s, got[0], more, err)
	}
	if got, _, err := p.List(ctx, "sub/.git", 9, 99); err != nil || strings.Join(paths(got), " ") != "sub/.git/y" {
		t.Errorf("%v, %v", paths(got), err)
	}
	seen, walked := search(t, p, ".", wide)
	if strings.Join(seen, " ") != "sub/f" || walked.More || len(walked.Unread) != 0 {
		t.Errorf("%v, %+v", seen, walked)
	}
}

// search reads all that it can.
func search(t *testing.T, p *place, name string, b Bounds) (seen []string, w Walked) {
	t.Helper()
	w, err := p.Walk(t.Context(), name, b, func(e Entry, read func() ([]byte, error)) error {
		if _, err := read(); err == nil {
			seen = append(seen, e.Path)
		} else if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", e.Path, err)
		}
		return nil
	})
	must(t, err)
	return seen, w
}

func TestSearchIsBounded(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	for f, size := range map[string]int{"a": 10, "b": 20, "c": 30, "d/a": 10, "d/e/a": 10} {
		put(t, p.at(f), strings.Repeat("x", size))
	}
	must(t, unix.Mkfifo(p.at("pipe"), 0o600))
	for _, c := range []struct {
		what  string
		name  string
		b     Bounds
		want  string
		files int
		more  bool
	}{
		{"all", ".", wide, "a b c d/a d/e/a", 5, false},
		{"one file", "b", wide, "b", 1, false},
		{"a folder", "d", wide, "d/a d/e/a", 2, false},
		{"large files are left out", ".", Bounds{99, 9, 20, 1000}, "a b d/a d/e/a", 5, false},
		{"bytes together", ".", Bounds{99, 9, 100, 45}, "a b", 3, true},
		{"bytes together, to the last", ".", Bounds{99, 9, 100, 80}, "a b c d/a d/e/a", 5, false},
		{"entries", ".", Bounds{3, 9, 100, 1000}, "a b c", 3, true},
		{"depth", ".", Bounds{99, 2, 100, 1000}, "a b c d/a", 4, true},
	} {
		seen, w := search(t, p, c.name, c.b)
		if strings.Join(seen, " ") != c.want || w.Files != c.files || w.More != c.more {
			t.Errorf("%s: %v, %+v; want %s, %d, %v", c.what, seen, w, c.want, c.files, c.more)
		}
	}
	n := 0
	w, err := p.Walk(ctx, ".", wide, func(Entry, func() ([]byte, error)) error { n++; return fs.SkipAll })
	if err != nil || n != 1 || w.Files != 1 {
		t.Errorf("a search that has enough: %d, %+v, %v", n, w, err)
	}
	stop := errors.New("stop")
	if _, err := p.Walk(ctx, ".", wide, func(Entry, func() ([]byte, error)) error { return stop }); err != stop {
		t.Error(err)
	}
	// A context that ends meanwhile ends it, too.
	ctx, cancel := context.WithCancel(ctx)
	if _, err := p.Walk(ctx, ".", wide, func(Entry, func() ([]byte, error)) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A folder that cannot be read is told, and the rest is listed. It is removed while its parent is: any user can do that.
func TestUnreadFoldersAreTold(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	put(t, p.at("a/f"), "x")
	put(t, p.at("b/f"), "x")
	put(t, p.at("f"), "x")
	w, err := p.Walk(ctx, ".", wide, func(e Entry, _ func() ([]byte, error)) error {
		if e.Path == "f" { // all of the first level is known, nothing of the next
			must(t, os.RemoveAll(p.at("a")))
			must(t, os.Symlink(p.outside, p.at("a")))
		}
		return nil
	})
	if err != nil || w.Files != 2 || len(w.Unread) != 1 || !strings.Contains(w.Unread["a"], "symbolic link") {
		t.Errorf("%+v, %v", w, err)
	}
	if os.Geteuid() == 0 {
		return // who may read everything
	}
	must(t, os.Chmod(p.at("b"), 0))
	defer os.Chmod(p.at("b"), 0o755)
	entries, _, err := p.List(ctx, ".", 9, 99)
	if err != nil || strings.Join(paths(entries), " ") != "a b f" || !strings.Contains(entries[1].Unread, "permission denied") {
		t.Errorf("%+v, %v", entries, err)
	}
}

func TestLargeFolder(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	all := []string{"00000"}
	put(t, p.at("00000"), "x")
	for i := 1; i < 10_000; i++ {
		name := fmt.Sprintf("%05d", (i*7919)%10_000)
		must(t, os.Link(p.at("00000"), p.at(name)))
		all = append(all, name)
	}
	slices.Sort(all)
	for _, most := range []int{100, 9_999, 10_000} {
		got, more, err := p.List(ctx, ".", 1, most)
		if err != nil || more != (most < 10_000) || !slices.Equal(paths(got), all[:most]) {
			t.Errorf("%d entries: %d, %v, %v", most, len(got), more, err)
		}
	}
	seen, w := search(t, p, ".", wide)
	if !slices.Equal(seen, all) || w.More || w.Files != 10_000 {
		t.Errorf("%d, %+v", len(seen), w)
	}
}

func TestDeepFolders(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	deep := strings.Repeat("d/", 1000) + "f"
	must(t, p.WriteFile(ctx, deep, []byte("x")))
	if got, err := p.ReadFile(ctx, deep, 9); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	got, more, err := p.List(ctx, ".", 2000, 2000)
	if err != nil || more || len(got) != 1001 || got[1000].Path != deep {
		t.Errorf("%d, %v, %v", len(got), more, err)
	}
	// Deeper than a name can say: what has a name is seen, and the rest is not silently left out.
	name := strings.Repeat("n", 250)
	at, err := unix.Open(p.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 30 {
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		unix.Close(at)
		must(t, err)
		at = next
	}
	unix.Close(at)
	got, more, err = p.List(ctx, name, 2000, 2000)
	if err != nil || more || len(got) < 15 || len(got) > 17 || !strings.Contains(got[len(got)-1].Unread, "too long") {
		t.Errorf("%d, %v, %v", len(got), more, err)
	}
	if _, w := search(t, p, name, wide); len(w.Unread) != 1 {
		t.Errorf("%d", len(w.Unread))
	}
	must(t, os.RemoveAll(filepath.Join(p.dir, path.Dir(deep))))
}

// However many long names there are, a walk holds no more of them than it may.
func TestNamesAreBounded(t *testing.T) {
	p := newPlace(t)
	for i := range 100 {
		put(t, p.at(fmt.Sprintf("%03d%s", i, strings.Repeat("x", 200))), "")
	}
	n := 0
	w := newWalk(p.Root, 1, 1000, func(Entry) error { n++; return nil })
	w.names = 203 * 10
	must(t, w.run(t.Context(), "."))
	if n != 10 || !w.more {
		t.Errorf("%d entries, more: %v", n, w.more)
	}
}

func TestNamesAreBoundedTogether(t *testing.T) {
	p := newPlace(t)
	for i := range 60 {
		put(t, p.at(fmt.Sprintf("%d/%03d%s", i%6, i, strings.Repeat("x", 197))), "")
	}
	n := 0
	w := newWalk(p.Root, 2, 1000, func(Entry) error { n++; return nil })
	w.names = 202*25 + 6 // of which a folder has 10
	must(t, w.run(t.Context(), "."))
	if n != 25+6 || !w.more {
		t.Errorf("%d entries, more: %v", n, w.more)
	}
}

// Wherever the context ends, a list that is not whole is not taken for one.
func TestListThatIsGivenUp(t *testing.T) {
	p := newPlace(t)
	for _, f := range []string{"a/f", "b/c/f"} {
		put(t, p.at(f), "")
	}
	for at := 0; ; at++ {
		calls := 0
		ctx := spy{t.Context(), func() error {
			if calls++; calls > at {
				return context.Canceled
			}
			return nil
		}}
		_, _, err := p.List(ctx, ".", 9, 99)
		if calls <= at {
			must(t, err)
			break
		}
		wantError(t, fmt.Sprintf("after %d looks", at), err, context.Canceled)
	}
}
