package secret

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"pgregory.net/rapid"
)

const canary = "canary-4f1d09ab-value"

// newStore is a store in a home of its own, with a clock that stands still.
func newStore(t *testing.T) (*Store, *time.Time) {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Open(home)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	return s, &now
}

func stored(value string) *Source { return &Source{Value: NewValue(value)} }

func set(t *testing.T, s *Store, name string, c Change) Secret {
	t.Helper()
	got, err := s.Set(t.Context(), name, c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func mustCause(t *testing.T, err, cause error) *Error {
	t.Helper()
	var told *Error
	if !errors.Is(err, cause) || !errors.As(err, &told) {
		t.Fatalf("got %v, want %v", err, cause)
	}
	return told
}

func TestSetGetListRemove(t *testing.T) {
	s, now := newStore(t)
	ctx := t.Context()
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Fatalf("a new store: %v, %v", list, err)
	}
	if entries, err := os.ReadDir(s.home); err != nil || len(entries) != 0 {
		t.Errorf("reading left a trace: %v, %v", entries, err)
	}
	first := *now
	want := Secret{
		Name: "GH", Source: Stored, CreatedAt: first, UpdatedAt: first,
		Binding: Binding{Hosts: []string{"api.github.com"}, Headers: []string{DefaultHeader}, Env: []string{"GH"}},
	}
	if got := set(t, s, "GH", Change{Hosts: []string{"API.github.com:443"}, Source: stored(canary)}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	set(t, s, "b", Change{Hosts: []string{"b.example"}, Source: stored("value of b")})

	// What is not given stays.
	*now = now.Add(time.Hour)
	query := "key"
	want.UpdatedAt, want.Query, want.Headers = *now, query, []string{"X-Api-Key: {}"}
	if got := set(t, s, "GH", Change{Headers: []string{"x-api-key:{}"}, Query: &query}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	query = ""
	want.Query = ""
	set(t, s, "GH", Change{Query: &query})
	again, err := Open(s.home)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Get(ctx, "GH"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if known, err := again.Known(ctx); err != nil || known["GH"].Reveal() != canary || len(known) != 2 {
		t.Errorf("known: %d, %v", len(known), err)
	}

	// All or none are removed.
	mustCause(t, s.Remove(ctx, "b", "c"), ErrNotFound)
	if list, err := s.List(ctx); err != nil || len(list) != 2 || list[0].Name != "b" {
		t.Errorf("got %+v, %v", list, err)
	}
	if err := s.Remove(ctx, "b", "GH"); err != nil {
		t.Error(err)
	}
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("got %+v, %v", list, err)
	}
}

func TestSetRefuses(t *testing.T) {
	s, _ := newStore(t)
	set(t, s, "HAVE", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
	before, err := os.ReadFile(s.path(File))
	if err != nil {
		t.Fatal(err)
	}
	host := []string{"a.example"}
	for name, c := range map[string]struct {
		name   string
		change Change
		cause  error
	}{
		"no name":           {"", Change{Hosts: host, Source: stored(canary)}, ErrName},
		"a digit first":     {"1A", Change{Hosts: host, Source: stored(canary)}, ErrName},
		"a hyphen":          {"A-B", Change{Hosts: host, Source: stored(canary)}, ErrName},
		"not ASCII":         {"Ä", Change{Hosts: host, Source: stored(canary)}, ErrName},
		"a line break":      {"A\n", Change{Hosts: host, Source: stored(canary)}, ErrName},
		"too long":          {strings.Repeat("A", 65), Change{Hosts: host, Source: stored(canary)}, ErrName},
		"value in the name": {"T=" + canary, Change{Hosts: host, Source: stored(canary)}, ErrName},
		"case":              {"have", Change{Hosts: host, Source: stored(canary)}, ErrName},
		"no host":           {"NEW", Change{Source: stored(canary)}, ErrBinding},
		"no hosts any more": {"HAVE", Change{Hosts: []string{}}, ErrBinding},
		"no source":         {"NEW", Change{Hosts: host}, ErrSource},
		"an empty source":   {"NEW", Change{Hosts: host, Source: &Source{}}, ErrSource},
		"two sources":       {"NEW", Change{Hosts: host, Source: &Source{Value: NewValue(canary), Argv: []string{"x"}}}, ErrSource},
		"a short value":     {"NEW", Change{Hosts: host, Source: stored("1234567")}, ErrValue},
		"no program":        {"NEW", Change{Hosts: host, Source: &Source{Argv: []string{}}}, ErrSource},
		"an empty program":  {"NEW", Change{Hosts: host, Source: &Source{Argv: []string{"", "x"}}}, ErrSource},
		"a relative path":   {"NEW", Change{Hosts: host, Source: &Source{Argv: []string{"./x"}}}, ErrSource},
		"an endless word":   {"NEW", Change{Hosts: host, Source: &Source{Argv: []string{"x", strings.Repeat("y", maxArgv)}}}, ErrSource},
		"a NUL":             {"NEW", Change{Hosts: host, Source: &Source{Argv: []string{"x", "\x00"}}}, ErrSource},
		"value in a header": {"HAVE", Change{Headers: []string{"Authorization: Bearer " + canary}}, ErrBinding},
		"value in a host":   {"HAVE", Change{Hosts: []string{"https://u:" + canary + "@a.example"}}, ErrBinding},
		"value in env":      {"HAVE", Change{Env: []string{"T=" + canary}}, ErrBinding},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Set(t.Context(), c.name, c.change)
			told := mustCause(t, err, c.cause)
			if strings.Contains(told.Message+told.Hint, canary) {
				t.Errorf("it shows the value: %v", told)
			}
		})
	}
	if after, err := os.ReadFile(s.path(File)); err != nil || !bytes.Equal(after, before) {
		t.Errorf("what was refused changed the store: %v", err)
	}
}

func TestValues(t *testing.T) {
	for name, c := range map[string]struct {
		in string
		ok bool
	}{
		"the least":         {"12345678", true},
		"a line break":      {"12345678\n", true},
		"a break of DOS":    {"12345678\r\n", true},
		"the most":          {strings.Repeat("x", MaxValue), true},
		"the most, broken":  {strings.Repeat("x", MaxValue) + "\r\n", true},
		"spaces inside":     {"a b c d e", true},
		"letters":           {"pässword", true},
		"empty":             {"", false},
		"a line break only": {"\n", false},
		"too short":         {"1234567", false},
		"short and broken":  {"1234567\n", false},
		"too long":          {strings.Repeat("x", MaxValue+1), false},
		"far too long":      {strings.Repeat("x", 1<<20), false},
		"two breaks":        {"12345678\n\n", false},
		"two lines":         {"12345678\n12345678", false},
		"a tab":             {"1234\t5678", false},
		"a NUL":             {"1234\x005678", false},
		"an escape":         {"1234\x1b[5678", false},
		"DEL":               {"1234\x7f5678", false},
		"a C1 control":      {"1234\u00855678", false},
		"not UTF-8":         {"1234\xff5678", false},
		"a space in front":  {" 12345678", false},
		"a space behind":    {"12345678 \n", false},
		"spaces":            {"            ", false},
		"other spaces":      {strings.Repeat("\u2003", 8), false},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := ReadValue(strings.NewReader(c.in))
			if (err == nil) != c.ok {
				t.Fatalf("got %v", err)
			}
			if want := strings.TrimRight(c.in, "\r\n"); c.ok && v.Reveal() != want {
				t.Errorf("it changed")
			}
			if err != nil {
				mustCause(t, err, ErrValue)
			}
		})
	}
}

// The store lies encrypted, for its owner only, as an ordinary file of age; nothing in the clear is ever on the disk.
func TestAtRest(t *testing.T) {
	s, _ := newStore(t)
	looked := 0
	look := func() {
		looked++
		entries, err := os.ReadDir(s.home)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(s.home, e.Name()))
			if err != nil || bytes.Contains(b, []byte(canary)) || bytes.Contains(b, []byte("a.example")) {
				t.Errorf("%s is in the clear, or cannot be read: %v", e.Name(), err)
			}
			if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
				t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
			}
		}
	}
	s.rename = func(from, to string) error {
		look()
		return os.Rename(from, to)
	}
	set(t, s, "A", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
	set(t, s, "B", Change{Hosts: []string{"a.example"}, Source: stored("another value")})
	look()
	if looked != 3 {
		t.Fatalf("looked %d times", looked)
	}
	key, err := os.Open(s.path(KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	ids, err := age.ParseIdentities(key)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.Open(s.path(File))
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()
	if _, err := age.Decrypt(sealed, ids...); err != nil {
		t.Errorf("age cannot read it: %v", err)
	}
}

func TestKeyIsOursAlone(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, s *Store)
		hint  string
		cause error
	}{
		"others read it":     {func(t *testing.T, s *Store) { chmod(t, s.path(KeyFile), 0o640) }, "chmod 600 ", ErrKey},
		"all read it":        {func(t *testing.T, s *Store) { chmod(t, s.path(KeyFile), 0o604) }, "chmod 600 ", ErrKey},
		"others write there": {func(t *testing.T, s *Store) { chmod(t, s.path(File), 0o620) }, "chmod 600 ", ErrKey},
		"a link": {func(t *testing.T, s *Store) {
			if err := errors.Join(os.Rename(s.path(KeyFile), s.path("elsewhere")), os.Symlink("elsewhere", s.path(KeyFile))); err != nil {
				t.Fatal(err)
			}
		}, "chmod 600 ", ErrKey},
		"a directory": {func(t *testing.T, s *Store) {
			if err := errors.Join(os.Remove(s.path(KeyFile)), os.Mkdir(s.path(KeyFile), 0o700)); err != nil {
				t.Fatal(err)
			}
		}, "move it away", ErrKey},
		"another's": {func(t *testing.T, s *Store) {
			if os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: only root gives files away")
			}
			if err := os.Chown(s.path(KeyFile), 12345, -1); err != nil {
				t.Fatal(err)
			}
		}, "chown ", ErrKey},
		"missing":      {func(t *testing.T, s *Store) { remove(t, s.path(KeyFile)) }, "put the key back", ErrKey},
		"empty":        {func(t *testing.T, s *Store) { write(t, s.path(KeyFile), "") }, "put the key back", ErrKey},
		"cut":          {func(t *testing.T, s *Store) { write(t, s.path(KeyFile), "AGE-SECRET-KEY-1QQQ") }, "put the key back", ErrKey},
		"endless":      {func(t *testing.T, s *Store) { write(t, s.path(KeyFile), strings.Repeat("# x\n", maxKey)) }, "", ErrKey},
		"another key":  {func(t *testing.T, s *Store) { write(t, s.path(KeyFile), newKey(t)) }, "put back the key", ErrKey},
		"two keys":     {func(t *testing.T, s *Store) { write(t, s.path(KeyFile), newKey(t)+newKey(t)) }, "put the key back", ErrKey},
		"cut secrets":  {func(t *testing.T, s *Store) { cut(t, s.path(File), 20) }, ".damaged", ErrDamaged},
		"half a file":  {func(t *testing.T, s *Store) { cut(t, s.path(File), 250) }, ".damaged", ErrDamaged},
		"no secrets":   {func(t *testing.T, s *Store) { cut(t, s.path(File), 0) }, ".damaged", ErrDamaged},
		"one bit":      {func(t *testing.T, s *Store) { flip(t, s.path(File)) }, ".damaged", ErrDamaged},
		"other format": {func(t *testing.T, s *Store) { seal(t, s, `{"version":2,"secrets":[]}`) }, "newer ravi", ErrNewer},
		"no format":    {func(t *testing.T, s *Store) { seal(t, s, `{"secrets":[]}`) }, ".damaged", ErrDamaged},
		"no JSON":      {func(t *testing.T, s *Store) { seal(t, s, canary) }, ".damaged", ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStore(t)
			set(t, s, "A", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
			c.spoil(t, s)
			before := files(t, s.home)
			_, list := s.List(t.Context())
			_, get := s.Get(t.Context(), "A")
			_, lease := s.Lease(t.Context(), "A", Scope{})
			_, known := s.Known(t.Context())
			_, change := s.Set(t.Context(), "B", Change{Hosts: []string{"b.example"}, Source: stored("value of b")})
			for what, err := range map[string]error{"list": list, "get": get, "lease": lease, "known": known, "set": change, "remove": s.Remove(t.Context(), "A")} {
				told := mustCause(t, err, c.cause)
				if !strings.Contains(told.Hint, c.hint) || strings.Contains(told.Message, canary) || strings.Contains(told.Message, "AGE-SECRET-KEY-1Q") {
					t.Errorf("%s: %q, hint %q", what, told.Message, told.Hint)
				}
			}
			if after := files(t, s.home); !maps.Equal(before, after) {
				t.Error("something was written over")
			}
		})
	}
}

// The hint for a key that others may read mends it.
func TestChmodMends(t *testing.T) {
	s, _ := newStore(t)
	set(t, s, "A", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
	chmod(t, s.path(KeyFile), 0o644)
	chmod(t, s.path(File), 0o644) // which says nothing to who has no key
	if _, err := s.List(t.Context()); err == nil {
		t.Fatal("it was used")
	}
	chmod(t, s.path(KeyFile), 0o600)
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("got %v, %v", list, err)
	}
}

// A key that was never used is no obstacle, and stays.
func TestKeyAlone(t *testing.T) {
	s, _ := newStore(t)
	key := newKey(t)
	write(t, s.path(KeyFile), key)
	if err := os.Link(s.path(KeyFile), s.path(KeyFile+".new")); err != nil { // as whoever is killed while making it leaves it
		t.Fatal(err)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("got %v, %v", list, err)
	}
	set(t, s, "A", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
	if b, err := os.ReadFile(s.path(KeyFile)); err != nil || string(b) != key {
		t.Errorf("the key was replaced: %v", err)
	}
	if left := files(t, s.home); len(left) != 2 {
		t.Errorf("%d files", len(left))
	}
}

// A write that fails leaves what was there, and nothing else.
func TestWriteFails(t *testing.T) {
	s, _ := newStore(t)
	set(t, s, "A", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
	before := files(t, s.home)
	s.rename = func(string, string) error { return fs.ErrPermission }
	if _, err := s.Set(t.Context(), "A", Change{Source: stored("another value")}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
	if after := files(t, s.home); !maps.Equal(before, after) {
		t.Errorf("something changed: %v", slices.Sorted(maps.Keys(after)))
	}
}

// Whatever is set, read and removed in whatever order, by whichever of two stores: it is as in a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		home, err := os.MkdirTemp("", "secrets")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(home)
		stores := make([]*Store, 2)
		for i := range stores {
			if stores[i], err = Open(home); err != nil {
				t.Fatal(err)
			}
		}
		type entry struct{ value, host, header string }
		model := map[string]entry{}
		ctx := context.Background()
		names := rapid.SampledFrom([]string{"A", "B", "a", "LONG_NAME_1"})
		clash := func(name string) bool {
			for have := range model {
				if have != name && strings.EqualFold(have, name) {
					return true
				}
			}
			return false
		}
		pick := func(t *rapid.T) *Store { return rapid.SampledFrom(stores).Draw(t, "store") }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				name := names.Draw(t, "name")
				value := rapid.StringMatching(`[!-~][ -~]{0,3}[a-zA-Z0-9"\\<&é]{8,40}`).Draw(t, "value")
				host := rapid.StringMatching(`[a-z]{1,5}\.example(:8[0-9]{3})?`).Draw(t, "host")
				_, err := pick(t).Set(ctx, name, Change{Hosts: []string{host}, Source: stored(value)})
				if (err != nil) != clash(name) {
					t.Fatalf("set %s: %v", name, err)
				}
				if err == nil {
					e := model[name]
					e.value, e.host = value, host
					if e.header == "" {
						e.header = DefaultHeader
					}
					model[name] = e
				}
			},
			"bind": func(t *rapid.T) {
				name := names.Draw(t, "name")
				header := rapid.StringMatching(`X-[A-Z][a-z]{1,5}: [a-z]{0,3}\{\}`).Draw(t, "header")
				_, err := pick(t).Set(ctx, name, Change{Headers: []string{header}})
				e, have := model[name]
				if (err == nil) != have {
					t.Fatalf("bind %s: %v", name, err)
				}
				if have {
					e.header = header
					model[name] = e
				}
			},
			"remove": func(t *rapid.T) {
				name := names.Draw(t, "name")
				_, have := model[name]
				if err := pick(t).Remove(ctx, name); (err == nil) != have || err != nil && !errors.Is(err, ErrNotFound) {
					t.Fatalf("remove %s: %v", name, err)
				}
				delete(model, name)
			},
			"": func(t *rapid.T) {
				s := pick(t)
				list, err := s.List(ctx)
				known, knownErr := s.Known(ctx)
				if err != nil || knownErr != nil || len(list) != len(model) || len(known) != len(model) {
					t.Fatalf("%d secrets of %d, %v, %v", len(list), len(model), err, knownErr)
				}
				for _, one := range list {
					want := model[one.Name]
					if known[one.Name].Reveal() != want.value || !slices.Equal(one.Hosts, []string{want.host}) || !slices.Equal(one.Headers, []string{want.header}) {
						t.Fatalf("%s is %+v, want %+v", one.Name, one, want)
					}
				}
			},
		})
	})
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func cut(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-5] ^= 1
	write(t, path, string(b))
}

func newKey(t *testing.T) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.String() + "\n"
}

// seal puts any text where the document is.
func seal(t *testing.T, s *Store, text string) {
	t.Helper()
	key, err := s.key()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, key.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, s.path(File), b.String())
}

// files is what lies in a directory, but for the lock.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != lockFile {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = string(b)
		}
	}
	return out
}
