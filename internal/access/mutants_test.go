package access

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Nobody has no objects, and what is no capability by its colon alone is none.
func TestNobodyAndNothing(t *testing.T) {
	if all, some := (Caller{}).Objects(Ask{Access: Read, Group: "tasks", Command: "ls"}); all || len(some) > 0 {
		t.Errorf("nobody has %v %v", all, some)
	}
	for _, text := range []string{"read", "write", "read:1tasks", "read:_", "read:-x", "read:tasks.1", "read:.ls"} {
		if c, err := ParseCapability(text); err == nil {
			t.Errorf("%q passed as %s", text, c)
		}
	}
	many := slices.Repeat([]string{"read:tasks"}, 200)
	if _, err := ParseCapabilities(many); err != nil {
		t.Errorf("200: %v", err)
	}
	if _, err := ParseCapabilities(append(many, "read:tasks")); err == nil {
		t.Error("201 capabilities passed")
	}
}

// Of many, each one has to be covered, and the first that is not is named.
func TestCoverAll(t *testing.T) {
	holds := Capabilities{{Read, "tasks", "", "tsk1"}, {Write, "tasks", "comment", "tsk1"}}
	inside, outside := Capability{Read, "tasks", "show", "tsk1"}, Capability{Read, "tasks", "show", "tsk2"}
	if ok, more := holds.CoverAll(Capabilities{inside, outside}); ok || more != outside {
		t.Errorf("got %v, %s", ok, more)
	}
	if ok, _ := holds.CoverAll(Capabilities{inside}); !ok {
		t.Error("a part is not covered")
	}
	if ok, _ := (Capabilities{}).CoverAll(Capabilities{inside}); ok {
		t.Error("nothing covers something")
	}
}

// Each size of a profile and each folder is looked at.
func TestProfilesThatAreNotValid(t *testing.T) {
	for _, bad := range []Profile{
		{CPUs: -1}, {MemoryMiB: -1}, {DiskGB: -1}, {Timeout: -1}, {Sandboxes: -1},
		{Repos: []string{"./a"}}, {Repos: []string{"/a/"}}, {Repos: []string{""}}, {Volumes: []string{"/a/../b:ro"}}, {Volumes: []string{"/a/:rw"}},
		{Volumes: []string{"a:rw"}}, {Volumes: []string{":ro"}}, {Volumes: []string{"/a:"}}, {Volumes: []string{"/a:xx"}},
		{Programs: []string{""}}, {Programs: []string{"/bin/sh"}}, {Programs: []string{"Claude"}}, {Models: []string{"claude-*"}}, {Models: []string{"/x"}},
		{Models: []string{"a*/x"}}, {Models: []string{"anthropic/"}}, {Models: []string{"anthropic/a b"}}, {Models: []string{"anthropic/a\nb"}},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}

// What a program could read in an address as something other than its host and path is refused, each sign by itself.
func TestAddressesHideNothing(t *testing.T) {
	const root = "https://git.example.com/acme/"
	p := Profile{Repos: []string{root, "/srv"}}
	allows := func(asked string) bool {
		_, ok := p.repo(asked)
		return ok
	}
	if !allows(root + "app.git") {
		t.Fatal("what it lists is refused")
	}
	for _, sign := range []string{"@", "\\", "%", "?", "#", "\x00", " ", "\t", "\r", "\n", ".."} {
		if allows(root + "a" + sign + "b") {
			t.Errorf("%q passed", sign)
		}
	}
	for _, asked := range []string{root, "/srv://x", "/srv/x://y", strings.ToUpper(root) + "app"} {
		if allows(asked) {
			t.Errorf("%q passed", asked)
		}
	}
}

// A path is that to which it leads, and so is each root; what cannot be resolved is in none.
func TestWithin(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return filepath.Join(dir, path) }
	for _, d := range []string{"real/app", "else"} {
		if err := os.MkdirAll(at(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link": "real", "real/out": "../else", "real/loop": "loop"} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		root, path, want string // an empty want: refused
	}{
		{at("link"), at("real/app"), at("real/app")},
		{at("link"), at("link/app"), at("real/app")},
		{at("real"), at("link/app"), at("real/app")},
		{"/", at("link"), at("real")},
		{at("real"), at("real/out"), ""},
		{at("link"), at("link/out"), ""},
		{at("real"), at("real/loop"), ""},
		{at("gone"), at("gone"), ""},
		{at("gone"), at("real"), ""},
		{at("real"), at("real/app\x00"), ""},
		{"", at("real"), ""},
	} {
		got, ok := within([]string{c.root}, c.path)
		if ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%q in %s: %q, %v", c.path, c.root, got, ok)
		}
	}
	// A path that begins where this process stands is nobody's.
	t.Chdir(at("real"))
	if _, ok := within([]string{at("real"), "."}, "app"); ok {
		t.Error("a relative path passed")
	}
	if _, ok := within([]string{"."}, "."); ok {
		t.Error("the working directory passed")
	}
}

// What comes back is what was checked: the folder behind a link, with the mode that was asked for.
func TestVolumesAreThoseThatWereChecked(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("data", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	p := Profile{Backends: []string{"gvisor"}, Images: []string{"host"}, Volumes: []string{dir + ":rw"}, Timeout: 60, Sandboxes: 1}
	for _, readOnly := range []bool{true, false} {
		got, err := p.Check("x", Wish{Backend: "gvisor", Image: "host", Timeout: time.Minute, Volumes: []Volume{{filepath.Join(dir, "link"), readOnly}}})
		if err != nil || !slices.Equal(got.Volumes, []Volume{{filepath.Join(dir, "data"), readOnly}}) {
			t.Errorf("got %+v, %v", got.Volumes, err)
		}
	}
	if _, err := p.Check("x", Wish{Backend: "gvisor", Image: "host", Timeout: time.Minute, Sandboxes: 1}); !errors.Is(err, ErrDenied) {
		t.Errorf("a second sandbox: %v", err)
	}
}
