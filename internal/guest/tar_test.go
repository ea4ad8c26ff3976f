package guest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (g *guestTest) tar(path string) string {
	return g.URL + "/tar?" + url.Values{"path": {path}}.Encode()
}

func makeTar(t *testing.T, headers ...*tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func readTar(t *testing.T, data []byte) map[string]*tar.Header {
	t.Helper()
	out := make(map[string]*tar.Header)
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = h
	}
}

func TestTarOut(t *testing.T) {
	g := startGuest(t, Options{})
	root := filepath.Join(g.home, "tree")
	when := time.Unix(1_600_000_000, 123_456_789)
	long := strings.Repeat("long-", 40)
	odd := "new\nline \xff"
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "a/b"), 0o750),
		os.WriteFile(filepath.Join(root, "a/b/file"), []byte("text"), 0o644),
		os.WriteFile(filepath.Join(root, "a/run"), []byte("#!"), 0o755),
		os.WriteFile(filepath.Join(root, long), []byte("l"), 0o600),
		os.WriteFile(filepath.Join(root, odd), []byte("o"), 0o600),
		os.Symlink("/etc/passwd", filepath.Join(root, "out")),
		os.Symlink("a", filepath.Join(root, "in")),
		os.Symlink("tree", filepath.Join(g.home, "root-link")),
		unix.Mkfifo(filepath.Join(root, "fifo"), 0o600),
		os.Chtimes(filepath.Join(root, "a/b/file"), when, when),
		os.Chown(filepath.Join(root, "a/run"), 1000, 1001),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(root, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	status, h, data := call(t, g.HTTP, "GET", g.tar(filepath.Join(g.home, "root-link")), nil)
	if status != 200 || h.Get(TrailerTarEntries) != "9" || h.Get(TrailerTarSkipped) != "2" || h.Get(TrailerTarChanged) != "0" {
		t.Errorf("status %d, trailers %v", status, h)
	}
	got := readTar(t, data)
	want := []string{"./", "a/", "a/b/", "a/b/file", "a/run", "in", "out", long, odd}
	slices.Sort(want)
	names := make([]string, 0, len(got))
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Fatalf("names are %q, want %q", names, want)
	}
	if out := got["out"]; out.Typeflag != tar.TypeSymlink || out.Linkname != "/etc/passwd" {
		t.Errorf("link is %v", out)
	}
	if f := got["a/b/file"]; !f.ModTime.Equal(when) || f.Size != 4 || f.Mode != 0o644 {
		t.Errorf("file is %v", f)
	}
	if f := got["a/run"]; f.Mode != 0o755 || f.Uid != 1000 || f.Gid != 1001 || f.Uname != "" {
		t.Errorf("program is %v", f)
	}

	_, _, data = call(t, g.HTTP, "GET", g.tar(filepath.Join(root, "a/run")), nil)
	if got := readTar(t, data); len(got) != 1 || got["run"] == nil {
		t.Errorf("one file gives %v", got)
	}
	if status, _, body := call(t, g.HTTP, "GET", g.tar(filepath.Join(g.home, "none")), nil); status != 404 {
		t.Errorf("status %d: %s", status, body)
	}
}

// shrinking is a file of which less can be read than its size says.
func TestTarOfFileThatShrinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var buf bytes.Buffer
	cut := &cutter{Writer: &buf, path: path}
	counts, err := writeTar(testContext(t), cut, tree, ".")
	if err != nil || counts.changed != 1 {
		t.Errorf("%v, %v", counts, err)
	}
	if h := readTar(t, buf.Bytes())["f"]; h == nil || h.Size != 1<<20 {
		t.Errorf("the tar does not hold together: %v", h)
	}
}

// cutter cuts a file when the first of its content is written.
type cutter struct {
	io.Writer
	path string
	done bool
}

func (c *cutter) Write(p []byte) (int, error) {
	if !c.done && bytes.Contains(p, []byte("xxxx")) {
		c.done = true
		if err := os.Truncate(c.path, 300<<10); err != nil {
			return 0, err
		}
	}
	return c.Writer.Write(p)
}

func TestTarIn(t *testing.T) {
	g := startGuest(t, Options{})
	root := filepath.Join(g.home, "new/tree")
	when := time.Unix(1_600_000_000, 0)
	body := makeTar(t,
		&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		&tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o555, ModTime: when},
		&tar.Header{Name: "dir/file", Typeflag: tar.TypeReg, Mode: 0o6755, ModTime: when},
		&tar.Header{Name: "made/for/it", Typeflag: tar.TypeReg, Mode: 0o600},
		&tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		&tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "dir/file"},
		&tar.Header{Name: "made/for/it", Typeflag: tar.TypeReg, Mode: 0o640},
	)
	status, _, answer := call(t, g.HTTP, "PUT", g.tar(root)+"&username=user", body)
	var done tarResult
	if err := json.Unmarshal(answer, &done); err != nil || status != 200 || done.Entries != 7 {
		t.Fatalf("status %d: %s, %v", status, answer, err)
	}
	for name, mode := range map[string]os.FileMode{
		"dir": 0o555 | os.ModeDir, "dir/file": 0o755, "made/for/it": 0o640, "made/for": 0o755 | os.ModeDir,
		"link": 0o777 | os.ModeSymlink, "hard": 0o755,
	} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != mode || st.Uid != 1000 || st.Gid != 1000 {
			t.Errorf("%s: mode %v, owner %d:%d; want %v, 1000:1000", name, info.Mode(), st.Uid, st.Gid, mode)
		}
	}
	for _, name := range []string{"dir", "dir/file"} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || !info.ModTime().Equal(when) {
			t.Errorf("%s: %v, %v", name, info.ModTime(), err)
		}
	}
	if got := readFile(t, filepath.Join(root, "hard")); got != "content of dir/file" {
		t.Errorf("content is %q", got)
	}
}

func TestTarInStaysInside(t *testing.T) {
	g := startGuest(t, Options{})
	reg := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	for _, tc := range []struct {
		name    string
		headers []*tar.Header
	}{
		{"dots", []*tar.Header{reg("../outside/x")}},
		{"dots in the middle", []*tar.Header{reg("a/../../outside/x")}},
		{"absolute", []*tar.Header{reg(filepath.Join(g.home, "outside/x"))}},
		{"through a relative link", []*tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, reg("l/x")}},
		{"through an absolute link", []*tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: filepath.Join(g.home, "outside")}, reg("l/x")}},
		{"directory through a link", []*tar.Header{
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/d", Typeflag: tar.TypeDir, Mode: 0o755},
		}},
		{"through links in a chain", []*tar.Header{
			{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "."}, {Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a/../../outside"}, reg("b/x"),
		}},
		{"hard link out", []*tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/kept"}}},
		{"hard link through a link", []*tar.Header{
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/kept"},
		}},
		{"device", []*tar.Header{{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}},
		{"block device", []*tar.Header{{Name: "disk", Typeflag: tar.TypeBlock}}},
		{"FIFO", []*tar.Header{{Name: "fifo", Typeflag: tar.TypeFifo}}},
		{"a file as a folder", []*tar.Header{reg("f"), reg("f/x")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			outside, inside := filepath.Join(g.home, "outside"), filepath.Join(g.home, "inside")
			if err := errors.Join(os.RemoveAll(outside), os.RemoveAll(inside), os.Mkdir(outside, 0o755),
				os.WriteFile(filepath.Join(outside, "kept"), []byte("kept"), 0o644)); err != nil {
				t.Fatal(err)
			}
			status, _, answer := call(t, g.HTTP, "PUT", g.tar(inside), makeTar(t, tc.headers...))
			if status < 400 {
				t.Errorf("status %d: %s", status, answer)
			}
			entries, err := os.ReadDir(outside)
			if err != nil || len(entries) != 1 {
				t.Errorf("outside are %v, %v", entries, err)
			}
			if info, err := os.Stat(filepath.Join(outside, "kept")); err != nil || info.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Errorf("the file outside: %v, %v", info, err)
			}
		})
	}
	t.Run("a link in place of a file is not followed", func(t *testing.T) {
		outside, inside := filepath.Join(g.home, "outside"), filepath.Join(g.home, "linked")
		if err := errors.Join(os.Mkdir(inside, 0o755), os.Symlink(filepath.Join(outside, "kept"), filepath.Join(inside, "f"))); err != nil {
			t.Fatal(err)
		}
		status, _, answer := call(t, g.HTTP, "PUT", g.tar(inside), makeTar(t, reg("f")))
		if status != 200 || readFile(t, filepath.Join(outside, "kept")) != "kept" || readFile(t, filepath.Join(inside, "f")) != "content of f" {
			t.Errorf("status %d: %s", status, answer)
		}
	})
	t.Run("cut short", func(t *testing.T) {
		dir := filepath.Join(g.home, "cut")
		whole := makeTar(t, reg("first"), reg("second"))
		status, _, answer := call(t, g.HTTP, "PUT", g.tar(dir), bytes.NewReader(whole.Bytes()[:1024+512+5]))
		if status != 400 || !strings.Contains(string(answer), "1 entries are done") {
			t.Errorf("status %d: %s", status, answer)
		}
		if _, err := os.Lstat(filepath.Join(dir, "second")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("half a file stayed: %v", err)
		}
	})
}

func TestTarRoundTripOfManyFiles(t *testing.T) {
	g := startGuest(t, Options{})
	from := filepath.Join(g.home, "from")
	if err := os.Mkdir(from, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		name := filepath.Join(from, strings.Repeat("d/", i%4), "f"+string(rune('a'+i%26))+strings.Repeat("x", i%100))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	res, err := g.HTTP.Get(g.tar(from))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	// Out and in at once, over the one link.
	status, _, answer := call(t, g.HTTP, "PUT", g.tar(filepath.Join(g.home, "to")), res.Body)
	if status != 200 {
		t.Fatalf("status %d: %s", status, answer)
	}
	n := 0
	err = filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		rel, _ := filepath.Rel(from, path)
		if got := readFile(t, filepath.Join(g.home, "to", rel)); got != path {
			t.Errorf("%s holds %q", rel, got)
		}
		return nil
	})
	if err != nil || n == 0 {
		t.Errorf("%d files, %v", n, err)
	}
}

func FuzzLocalName(f *testing.F) {
	for _, s := range []string{"a/b", "../x", "/x", ".", "a/./b//c/", "..a/b.."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := localName(name)
		if err == nil && !filepath.IsLocal(got) {
			t.Errorf("%q gives %q", name, got)
		}
	})
}
