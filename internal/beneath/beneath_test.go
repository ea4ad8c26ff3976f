package beneath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFilesAreUsedByName(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	must(t, p.WriteFile(ctx, "a/b/c.txt", []byte("one")))
	must(t, p.WriteFile(ctx, p.at("a//b/./d.txt"), []byte("two")))
	must(t, p.MakeDir(ctx, "a/empty/"))
	must(t, p.MakeDir(ctx, "a/empty"))
	wantFile(t, p.at("a/b/c.txt"), "one")
	wantFile(t, p.at("a/b/d.txt"), "two")
	if got, err := p.ReadFile(ctx, "./a/b/c.txt", 3); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := p.ReadFile(ctx, "a/b/c.txt", 2)
	wantError(t, "a file of 3 bytes", err, ErrTooLarge, "a/b/c.txt", p.dir, "3 bytes", "at most 2")
	put(t, p.at("huge"), "")
	must(t, os.Truncate(p.at("huge"), 1<<40))
	_, err = p.ReadFile(ctx, "huge", 2)
	wantError(t, "a file of a terabyte", err, ErrTooLarge, "1099511627776 bytes")
	must(t, p.Remove(ctx, "huge"))
	entries, more, err := p.List(ctx, ".", 9, 100)
	if want := []string{"a", "a/b", "a/b/c.txt", "a/b/d.txt", "a/empty"}; err != nil || more || !slices.Equal(paths(entries), want) {
		t.Errorf("%v, %v, %v", paths(entries), more, err)
	}
	if e, err := p.Stat(ctx, p.dir+"/a/b/c.txt"); err != nil || e.Kind != "file" || e.Size != 3 || e.Mode != 0o644 || e.Path != "a/b/c.txt" {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := p.Stat(ctx, p.dir); err != nil || e.Kind != "dir" || e.Path != "." {
		t.Errorf("%+v, %v", e, err)
	}
	wantError(t, "a folder that is not empty", p.Remove(ctx, "a/b"), unix.ENOTEMPTY, "a/b", "not empty")
	must(t, p.Remove(ctx, "a/empty"))
	must(t, p.Remove(ctx, "a/b/c.txt"))
	wantError(t, "what is gone", p.Remove(ctx, "a/b/c.txt"), fs.ErrNotExist, "a/b/c.txt is not in the workspace "+p.dir)
}

// The folder may be named through a link of the operator's, and its files by either path.
func TestRootBehindALink(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	link := filepath.Join(filepath.Dir(p.dir), "link")
	must(t, os.Symlink(p.dir, link))
	r, err := Open(link)
	must(t, err)
	defer r.Close()
	for _, name := range []string{"x", link + "/x", p.dir + "/x"} {
		must(t, r.WriteFile(ctx, name, []byte(name)))
		wantFile(t, p.at("x"), name)
	}
	wantError(t, "a folder that begins like it", r.WriteFile(ctx, link+"er/x", nil), ErrOutside, "is outside of the workspace "+link)
	// It stays the folder that it was, whatever its path leads to.
	must(t, os.Rename(p.dir, p.dir+"2"))
	must(t, os.Symlink(p.outside, p.dir))
	if got, err := r.ReadFile(ctx, p.dir+"/x", 100); err != nil || string(got) != p.dir+"/x" {
		t.Errorf("%q, %v", got, err)
	}
	p.outsideIsUntouched(t)
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	p := newPlace(t)
	_, err := Open(p.at("none"))
	wantError(t, "nothing", err, fs.ErrNotExist, p.at("none"))
	put(t, p.at("file"), "")
	_, err = Open(p.at("file"))
	wantError(t, "a file", err, ErrNotFolder, p.at("file"))
}

// hostile is a place with what nothing good put there.
func hostile(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	for name, target := range map[string]string{"out": p.outside, "up": "..", "filelink": p.outside + "/f", "in": "real", "self": "self", "gone": "none",
		"gitlink": ".git", "proc": "/proc/self/root" + p.outside, "root": "/"} {
		must(t, os.Symlink(target, p.at(name)))
	}
	put(t, p.at("real/f"), "in")
	put(t, p.at(".git/config"), "c")
	must(t, unix.Mkfifo(p.at("pipe"), 0o644))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(socket)
	dir, err := unix.Open(p.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(dir)
	short := fmt.Sprintf("/proc/self/fd/%d/socket", dir) // a socket's name has 107 bytes at most
	must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: short}))
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(p.at("device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))) // of endless zeros
	}
	return p
}

// For each name, how all that can be done with it ends; "all" is what is not named.
func TestHostileFiles(t *testing.T) {
	type ends map[string]error
	link := ends{"all": ErrOutside, "stat": nil, "remove": nil}
	special := ends{"all": ErrNotFile, "stat": nil, "list": ErrNotFolder, "mkdir": ErrNotFolder, "remove": nil}
	refused := func(err error) ends { return ends{"all": err} }
	cases := map[string]ends{
		"out": link, "filelink": link, "self": link, "gone": link, "proc": link, "pipe": special, "socket": special,
		"real":        {"all": nil, "read": ErrNotFile, "write": ErrNotFile, "remove": unix.ENOTEMPTY},
		"real/f":      {"all": nil, "list": ErrNotFolder, "mkdir": ErrNotFolder},
		"real/f/":     {"all": nil, "read": ErrNotFile, "write": ErrNotFile, "list": ErrNotFolder, "mkdir": ErrNotFolder},
		".git/config": {"all": ErrReadOnly, "read": nil, "stat": nil, "list": ErrNotFolder, "walk": nil},
		".git":        {"all": ErrReadOnly, "read": ErrNotFile, "stat": nil, "list": nil, "walk": nil},
		".":           {"all": nil, "read": ErrNotFile, "write": ErrNotFile, "remove": ErrReadOnly},
		"OUTSIDE/f":   refused(ErrOutside), "/proc/self/environ": refused(ErrOutside), "/": refused(ErrOutside),
		"real/f/x": refused(ErrNotFolder), "": refused(ErrName), "a\x00b": refused(ErrName), strings.Repeat("a/", 2048): refused(ErrName),
		strings.Repeat("x", 256): refused(ErrName),
	}
	for _, name := range []string{"out/f", "out/victim", "out/new", "out/new/x", "out/onlyoutside/f", "up/outside/f", "in/f", "self/x", "gone/x", "gitlink/config",
		"proc/f", "root/etc/passwd", "..", "real/..", "real/../../outside/f", "../outside/f"} {
		cases[name] = refused(ErrOutside)
	}
	if os.Geteuid() == 0 {
		cases["device"] = special
	} else {
		t.Log("NOT TESTED: a device, which takes root to make")
	}
	for name, want := range cases {
		p := hostile(t)
		name = strings.ReplaceAll(name, "OUTSIDE", p.outside)
		for what, err := range every(t.Context(), p.Root, name) {
			kind, ok := want[what]
			if !ok {
				kind = want["all"]
			}
			if kind == nil && err != nil || !errors.Is(err, kind) {
				t.Errorf("%s %.80q: %v; want: %v", what, name, err, kind)
			}
		}
		p.outsideIsUntouched(t)
		wantFile(t, p.at(".git/config"), "c")
		if !strings.HasPrefix(name, "real/f") {
			wantFile(t, p.at("real/f"), "in")
		}
	}
}

func TestErrorsAreForPeople(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	must(t, os.Symlink(p.outside, p.at("notes")))
	put(t, p.at("file"), "")
	must(t, os.Symlink("/etc", p.at("\x1b[2J")))
	for name, want := range map[string]string{
		"notes":      "notes may lead out of the workspace " + p.dir + ": it is a symbolic link, and none is followed. Use the path of what it leads to",
		"notes/x":    "notes/x may lead out of the workspace " + p.dir + ": notes is a symbolic link, and none is followed. Use the path of what it leads to",
		"../x":       "../x may lead out of the workspace " + p.dir + ": no .. is followed. Give the path from " + p.dir + " on",
		"/etc/hosts": "/etc/hosts is outside of the workspace " + p.dir,
		"none":       "none is not in the workspace " + p.dir,
		"file/x":     "file/x cannot be in the workspace " + p.dir + ": file is a file, not a folder",
	} {
		if _, err := p.ReadFile(ctx, name, 9); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant: %s", name, err, want)
		}
	}
	if _, err := p.ReadFile(ctx, "\x1b[2J/x", 9); err == nil || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("an error that steers a terminal: %q", err)
	}
	if err := p.explain("file", unix.EBUSY); errors.Is(err, ErrOutside) || !errors.Is(err, unix.EBUSY) {
		t.Errorf("a file that is busy, and no mount: %v", err)
	}
	err := p.WriteFile(ctx, "sub/.GIT/hooks/pre-commit", nil)
	wantError(t, ".GIT", err, ErrReadOnly, "sub/.GIT/hooks/pre-commit in the workspace "+p.dir+" is read-only: .GIT belongs to git")
}

// Of what is not a file, only what it is is looked at: to open a pipe wakes who waits for a reader, to open a device can do anything.
func TestWhatIsNoFileIsNotOpened(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	must(t, unix.Mkfifo(p.at("pipe"), 0o644))
	put(t, p.at("zfile"), "x")
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, p.dir, unix.IN_OPEN)
	must(t, err)
	every(ctx, p.Root, "pipe") // ends with its removal
	must(t, unix.Mkfifo(p.at("pipe"), 0o644))
	_, err = p.Walk(ctx, ".", wide, func(_ Entry, read func() ([]byte, error)) error { _, err := read(); return err })
	must(t, err)
	buf := make([]byte, 1<<16)
	n, err := unix.Read(watch, buf)
	must(t, err)
	if seen := string(buf[:n]); strings.Contains(seen, "pipe") || !strings.Contains(seen, "zfile") {
		t.Errorf("opened: %q", seen)
	}
}

func TestLinksOfProc(t *testing.T) {
	r, err := Open("/proc/self")
	must(t, err)
	defer r.Close()
	for _, name := range []string{"root/etc/passwd", "cwd/doc.go", "exe", "fd/0", "fd/1", "task/self/root", "ns/mnt"} {
		if _, err := r.ReadFile(t.Context(), name, 1<<20); err == nil || errors.Is(err, fs.ErrNotExist) && name != "task/self/root" {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = r.ReadFile(t.Context(), "root/etc/passwd", 1<<20)
	wantError(t, "root", err, ErrOutside, "root is a symbolic link")
	// A file that has more in it than its size says, as one that grows.
	_, err = r.ReadFile(t.Context(), "status", 10)
	wantError(t, "status", err, ErrTooLarge)
	if b, err := r.ReadFile(t.Context(), "status", 1<<20); err != nil || !strings.HasPrefix(string(b), "Name:") {
		t.Errorf("%q, %v", b, err)
	}
}

func TestMountsAreNotEntered(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	put(t, p.at("a"), "a")
	put(t, p.at("mf"), "hidden")
	must(t, os.Mkdir(p.at("m"), 0o755))
	withMounts(t, func() {
		must(t, unix.Mount(p.outside, p.at("m"), "", unix.MS_BIND, ""))
		must(t, unix.Mount(p.outside+"/f", p.at("mf"), "", unix.MS_BIND, ""))
		r, err := Open(p.dir) // the one that is open is a folder of the other namespace, without mounts
		must(t, err)
		defer r.Close()
		for _, name := range []string{"m", "mf", "m/f", "m/new/x", "m/onlyoutside", "m/victim"} {
			for what, err := range every(ctx, r, name) {
				wantError(t, what+" "+name, err, ErrOutside, "another file system is mounted at m")
			}
		}
		entries, more, err := r.List(ctx, ".", 9, 100)
		if want := []string{"a", "m", "mf"}; err != nil || more || !slices.Equal(paths(entries), want) || !strings.Contains(entries[1].Unread, "mounted") || entries[2].Size != 0 {
			t.Errorf("%+v, %v, %v", entries, more, err)
		}
		var seen []string
		_, err = r.Walk(ctx, ".", wide, func(e Entry, _ func() ([]byte, error)) error { seen = append(seen, e.Path); return nil })
		if err != nil || !slices.Equal(seen, []string{"a"}) {
			t.Errorf("%v, %v", seen, err)
		}
	})
	p.outsideIsUntouched(t)
}

// A second name is all that it takes to have a file of another user in the workspace.
func TestHardLinks(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	for _, name := range []string{"mine", "theirs"} {
		put(t, p.outside+"/"+name, canary)
		must(t, os.Link(p.outside+"/"+name, p.at(name)))
	}
	if got, err := p.ReadFile(ctx, "mine", 100); err != nil || string(got) != canary {
		t.Errorf("a file of the workspace's owner: %q, %v", got, err)
	}
	if os.Geteuid() == 0 {
		must(t, os.Chown(p.outside+"/theirs", 12345, 12345))
		put(t, p.at("one"), "one")
		must(t, os.Chown(p.at("one"), 12345, 12345))
		if got, err := p.ReadFile(ctx, "one", 100); err != nil || string(got) != "one" {
			t.Errorf("another user's file that is nowhere else: %q, %v", got, err)
		}
		_, err := p.ReadFile(ctx, "theirs", 100)
		wantError(t, "a file of another user", err, ErrOutside, "theirs", "2 names", "user 12345")
		must(t, os.Chown(p.dir, 12345, 12345))
		other, err := Open(p.dir)
		must(t, err)
		defer other.Close()
		_, err = other.ReadFile(ctx, "mine", 100)
		wantError(t, "a file of root's", err, ErrOutside, "user 0")
		_, err = other.Walk(ctx, ".", wide, func(e Entry, read func() ([]byte, error)) error {
			if got, err := read(); e.Path == "mine" && !errors.Is(err, ErrOutside) {
				t.Errorf("%s: %q, %v", e.Path, got, err)
			}
			return nil
		})
		must(t, err)
	}
	for _, name := range []string{"mine", "theirs"} {
		must(t, p.WriteFile(ctx, name, []byte("new")))
		wantFile(t, p.at(name), "new")
		wantFile(t, p.outside+"/"+name, canary)
	}
}

func TestLease(t *testing.T) {
	p := newPlace(t)
	put(t, p.at("f"), "x")
	holder, err := os.OpenFile(p.at("f"), os.O_RDWR, 0)
	must(t, err)
	defer holder.Close()
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("NOT TESTED: no leases here: ", err)
	}
	_, err = p.ReadFile(t.Context(), "f", 9)
	wantError(t, "a file with a lease", err, unix.EAGAIN, "lease")
}

// A context that is over stops everything before it does anything.
func TestContext(t *testing.T) {
	p := newPlace(t)
	put(t, p.at("f"), "old")
	put(t, p.at("d/f"), "old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := tree(t, p.dir)
	for _, name := range []string{"f", "new/f", "d"} {
		for what, err := range every(ctx, p.Root, name) {
			if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrNotFile) && !errors.Is(err, ErrNotFolder) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %s: %v", what, name, err)
			}
		}
	}
	if after := tree(t, p.dir); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%v\n%v", before, after)
	}
}

func TestClosed(t *testing.T) {
	p := newPlace(t)
	put(t, p.at("d/f"), "x")
	must(t, p.Close())
	for _, name := range []string{"d/f", "d"} {
		for what, err := range every(t.Context(), p.Root, name) {
			wantError(t, what+" "+name, err, os.ErrClosed, "the workspace "+p.dir+" is closed")
		}
	}
}

// Whatever fails, no descriptor is left open.
func TestNoDescriptorIsLeft(t *testing.T) {
	p := newPlace(t)
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(names)
	}
	all := func() {
		put(t, p.at("d/f"), "x")
		put(t, p.at("ro"), "x")
		must(t, os.Chmod(p.at("ro"), 0o444))
		_ = os.Symlink(p.outside, p.at("link"))
		_ = unix.Mkfifo(p.at("pipe"), 0o600)
		for _, name := range []string{"ro", "link", "pipe", "d", "d/f/x", "link/x", "none", "d/new/x", "d/f", strings.Repeat("x", 256), ".git", "."} {
			every(t.Context(), p.Root, name)
			_, _ = p.ReadFile(t.Context(), name, 0)
		}
		_ = os.Remove(p.at("ro"))
	}
	all()
	before := count()
	for range 5 {
		all()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
