package beneath

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// model is the folder as a map: a file's content, or a folder.
type model map[string]*string

// above says what stops a name from being below the root.
func (m model) above(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if m[dir] != nil {
			return ErrNotFolder
		}
	}
	return nil
}

func (m model) children(dir string) (out []string) {
	for name := range m {
		if path.Dir(name) == dir {
			out = append(out, name)
		}
	}
	return out
}

func (m model) makeDirs(dir string) {
	for ; dir != "."; dir = path.Dir(dir) {
		m[dir] = nil
	}
}

func (m model) exists(name string) bool { _, ok := m[name]; return ok }

func TestAgainstAMap(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	rapid.Check(t, func(t *rapid.T) {
		entries, _, err := p.List(ctx, ".", 9, 1000) // of the run before
		must(t, err)
		slices.Reverse(entries)
		for _, e := range entries {
			must(t, p.Remove(ctx, e.Path))
		}
		m := model{}
		part := rapid.SampledFrom([]string{"a", "b", "c", "ä \n", ".git"})
		name := rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), "/") })
		check := func(t *rapid.T, what, name string, err, want error) {
			if want == nil && err != nil || !errors.Is(err, want) {
				t.Fatalf("%s %q: %v, want: %v\n%v", what, name, err, want, m)
			}
		}
		git := func(name string) error {
			if slices.Contains(strings.Split(name, "/"), ".git") {
				return ErrReadOnly
			}
			return nil
		}
		first := func(errs ...error) error {
			for _, err := range errs {
				if err != nil {
					return err
				}
			}
			return nil
		}
		when := func(is bool, err error) error {
			if is {
				return err
			}
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				name, text := name.Draw(t, "name"), rapid.String().Draw(t, "text")
				err := p.WriteFile(ctx, name, []byte(text))
				want := first(git(name), m.above(name), when(m.exists(name) && m[name] == nil, ErrNotFile))
				check(t, "write", name, err, want)
				if want == nil {
					m.makeDirs(path.Dir(name))
					m[name] = &text
				}
			},
			"mkdir": func(t *rapid.T) {
				name := name.Draw(t, "name")
				want := first(git(name), m.above(name), when(m[name] != nil, ErrNotFolder))
				check(t, "mkdir", name, p.MakeDir(ctx, name), want)
				if want == nil {
					m.makeDirs(name)
				}
			},
			"remove": func(t *rapid.T) {
				name := name.Draw(t, "name")
				want := first(git(name), m.above(name), when(!m.exists(name), fs.ErrNotExist), when(len(m.children(name)) > 0, unix.ENOTEMPTY))
				check(t, "remove", name, p.Remove(ctx, name), want)
				if want == nil {
					delete(m, name)
				}
			},
			"read": func(t *rapid.T) {
				name := name.Draw(t, "name")
				most := rapid.Int64Range(0, 20).Draw(t, "most")
				data, err := p.ReadFile(ctx, name, most)
				want := first(m.above(name), when(!m.exists(name), fs.ErrNotExist), when(m[name] == nil, ErrNotFile))
				if want == nil {
					want = when(int64(len(*m[name])) > most, ErrTooLarge)
				}
				check(t, "read", name, err, want)
				if want == nil && string(data) != *m[name] {
					t.Fatalf("%q holds %q, want %q", name, data, *m[name])
				}
			},
			"list": func(t *rapid.T) {
				dir := rapid.OneOf(name, rapid.Just(".")).Draw(t, "dir")
				depth, most := rapid.IntRange(1, 4).Draw(t, "depth"), rapid.IntRange(0, 12).Draw(t, "most")
				entries, more, err := p.List(ctx, dir, depth, most)
				want := first(m.above(dir), when(dir != "." && !m.exists(dir), fs.ErrNotExist), when(m[dir] != nil, ErrNotFolder))
				check(t, "list", dir, err, want)
				if want != nil {
					return
				}
				var all []string
				for level, at := []string{dir}, 0; at < depth; at++ {
					var below []string
					for _, d := range level {
						c := m.children(d)
						slices.Sort(c)
						below = append(below, c...)
					}
					all, level = append(all, below...), below
				}
				if more != (len(all) > most) {
					t.Fatalf("more is %v for %d entries of %d", more, most, len(all))
				}
				all = all[:min(most, len(all))]
				got := paths(entries)
				slices.Sort(got)
				slices.Sort(all)
				if !slices.Equal(got, all) {
					t.Fatalf("list %q: %q, want %q", dir, got, all)
				}
				for _, e := range entries {
					text := m[e.Path]
					if (e.Kind == "file") != (text != nil) || text != nil && e.Size != int64(len(*text)) {
						t.Fatalf("%+v", e)
					}
				}
			},
		})
	})
}
