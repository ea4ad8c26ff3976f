package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"ravi/sandbox"
)

func (s suite) files(t *testing.T) {
	r := s.room(t)
	f := r.Files()
	read := func(t *testing.T, path string) string {
		t.Helper()
		b, err := f.ReadFile(ctx(t), path, 1<<20)
		if err != nil {
			t.Fatalf("reading %q: %v", path, err)
		}
		return string(b)
	}
	put := func(t *testing.T, path, text string) {
		t.Helper()
		if err := f.Write(ctx(t), path, strings.NewReader(text)); err != nil {
			t.Fatalf("writing %q: %v", path, err)
		}
	}
	t.Run("write and read", func(t *testing.T) {
		put(t, r.path("new/deep/a.txt"), "hello")
		equal(t, "content", read(t, r.path("new/deep/a.txt")), "hello")
		put(t, r.path("new/deep/a.txt"), "x")
		equal(t, "content", read(t, r.path("new/deep/a.txt")), "x")
		host, err := r.get(t, "new/deep/a.txt")
		if err != nil || string(host) != "x" {
			t.Errorf("on the host: %q %v", host, err)
		}
		put(t, r.path("empty"), "")
		equal(t, "empty file", read(t, r.path("empty")), "")
	})
	t.Run("names", func(t *testing.T) {
		for _, name := range []string{"a b", "line\nend", `quote"'`, `back\slash`, "--help", "-", "ü€😀", "per%20cent", "plus+&=?#;", "*", "~", strings.Repeat("n", 255)} {
			put(t, r.path("names/"+name), name)
			equal(t, "content", read(t, r.path("names/"+name)), name)
			if b, err := r.get(t, "names/"+name); err != nil || string(b) != name {
				t.Errorf("%q on the host: %q %v", name, b, err)
			}
			e, err := f.Stat(ctx(t), r.path("names/"+name))
			if err != nil {
				t.Errorf("%q: %v", name, err)
			}
			equal(t, "name", e.Name, name)
		}
		list, err := f.List(ctx(t), r.path("names"), 1)
		if err != nil || len(list) != 12 {
			t.Errorf("%d entries listed, want 12: %v", len(list), err)
		}
	})
	t.Run("names that are not UTF-8", func(t *testing.T) {
		put(t, r.path("odd/\xff\xfe"), "odd")
		equal(t, "content", read(t, r.path("odd/\xff\xfe")), "odd")
		if b, err := r.get(t, "odd/\xff\xfe"); err != nil || string(b) != "odd" {
			t.Errorf("on the host: %q %v", b, err)
		}
		list, err := f.List(ctx(t), r.path("odd"), 1)
		if err != nil || len(list) != 1 || list[0].Size != 3 {
			t.Errorf("listing: %+v %v", list, err)
		}
		dir := t.TempDir()
		if err := f.CopyOut(ctx(t), r.path("odd"), dir); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "\xff\xfe")); err != nil || string(b) != "odd" {
			t.Errorf("copied out: %q %v", b, err)
		}
	})
	t.Run("stat and list", func(t *testing.T) {
		r.sh(t, `mkdir -p tree/d/e; printf 12345 > tree/f; chmod 640 tree/f; ln -s f tree/l; printf x > tree/d/e/deep; ln -s /no/where tree/dangling`)
		e, err := f.Stat(ctx(t), r.path("tree/f"))
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != "file" || e.Size != 5 || e.Mode.Perm() != 0o640 || e.Name != "f" || e.Modified.IsZero() {
			t.Errorf("stat: %+v", e)
		}
		e, err = f.Stat(ctx(t), r.path("tree/l"))
		if err != nil || e.Target == "" {
			t.Errorf("stat of a link: %+v %v", e, err)
		}
		names := func(depth int) string {
			list, err := f.List(ctx(t), r.path("tree"), depth)
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]bool{}
			for _, e := range list {
				have[strings.TrimPrefix(e.Path, r.path("tree/"))] = true
			}
			var out []string
			for _, n := range []string{"d", "d/e", "d/e/deep", "dangling", "f", "l"} {
				if have[n] {
					out = append(out, n)
				}
			}
			return fmt.Sprint(len(list), out)
		}
		equal(t, "depth 1", names(1), "4 [d dangling f l]")
		equal(t, "depth 2", names(2), "5 [d d/e dangling f l]")
		equal(t, "depth 9", names(9), "6 [d d/e d/e/deep dangling f l]")
	})
	t.Run("make, move, remove", func(t *testing.T) {
		if err := f.MakeDir(ctx(t), r.path("m/n/o")); err != nil {
			t.Fatal(err)
		}
		put(t, r.path("m/n/o/x"), "x")
		if err := f.Move(ctx(t), r.path("m/n"), r.path("moved")); err != nil {
			t.Fatal(err)
		}
		equal(t, "content", read(t, r.path("moved/o/x")), "x")
		for range 2 { // the second time there is nothing
			if err := f.Remove(ctx(t), r.path("moved")); err != nil {
				t.Fatal(err)
			}
		}
		if r.there(t, "moved") {
			t.Error("it is still there")
		}
	})
	t.Run("missing", func(t *testing.T) {
		missing := r.path("not/there")
		_, err1 := f.ReadFile(ctx(t), missing, 1)
		_, err2 := f.Stat(ctx(t), missing)
		_, err3 := f.List(ctx(t), missing, 1)
		_, err4 := f.Tar(ctx(t), missing)
		_, err5 := f.Watch(ctx(t), missing, false)
		err6 := f.Move(ctx(t), missing, r.path("x"))
		for i, err := range []error{err1, err2, err3, err4, err5, err6} {
			if !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("call %d: %v, want ErrNotFound", i+1, err)
			}
		}
	})
	t.Run("bounded read", func(t *testing.T) {
		put(t, r.path("ten"), "0123456789")
		if b, err := f.ReadFile(ctx(t), r.path("ten"), 10); err != nil || len(b) != 10 {
			t.Errorf("a file of just that size: %d bytes, %v", len(b), err)
		}
		if _, err := f.ReadFile(ctx(t), r.path("ten"), 9); err == nil {
			t.Error("a file beyond the bound was read")
		}
	})
	t.Run("a source that fails leaves nothing", func(t *testing.T) {
		broken := errors.New("the source broke")
		put(t, r.path("kept"), "before")
		for _, name := range []string{"fresh", "kept"} {
			err := f.Write(ctx(t), r.path(name), io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), errReader{broken}))
			if !errors.Is(err, broken) {
				t.Errorf("%s: %v, want the source's own error", name, err)
			}
		}
		equal(t, "the old content", read(t, r.path("kept")), "before")
		eventually(t, "no part of the file is left", func() bool {
			return r.sh(t, `ls -A | grep -c -e fresh -e '^\.' || true`) == "0\n"
		})
	})
	t.Run("watch", func(t *testing.T) { s.watch(t, r) })
	t.Run("2 GiB in a stream", func(t *testing.T) { s.large(t) })
	if s.f.Isolated {
		t.Run("who owns it", func(t *testing.T) {
			put(t, "/tmp/mine", "")
			equal(t, "owner", r.sh(t, "stat -c %U:%G /tmp/mine"), "user:user\n")
			if err := f.As("root").Write(ctx(t), "/root/theirs", strings.NewReader("r")); err != nil {
				t.Fatal(err)
			}
			equal(t, "owner", r.shAs(t, "root", "stat -c %U:%G /root/theirs"), "root:root\n")
		})
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

func (s suite) watch(t *testing.T, r *room) {
	dir := "/tmp/watched"
	if !s.f.Isolated {
		dir = t.TempDir()
	}
	r.sh(t, "mkdir -p "+dir)
	c, cancel := context.WithCancel(ctx(t))
	events, err := r.Files().Watch(c, dir, true)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	until := func(want string) {
		t.Helper()
		limit := time.After(patience)
		for !seen[want] {
			select {
			case e, ok := <-events:
				if !ok {
					t.Fatalf("the watch ended before %s", want)
				}
				seen[e.Op+" "+e.Name] = true
			case <-limit:
				t.Fatalf("%s did not come, only %v", want, seen)
			}
		}
	}
	r.sh(t, "echo x > "+dir+"/a")
	until("create a")
	until("write a")
	if err := r.Files().Write(ctx(t), dir+"/b", strings.NewReader("b")); err != nil {
		t.Fatal(err)
	}
	until("create b")
	r.sh(t, "mkdir "+dir+"/sub")
	until("create sub")
	r.sh(t, "echo y > "+dir+"/sub/c")
	until("create sub/c")
	r.sh(t, "rm "+dir+"/a")
	until("remove a")
	cancel()
	for range events { // closed, or this hangs
	}
	if s.f.Isolated && r.ws != "" {
		// Changes by the host are not seen there, so this must not look as if they were.
		if _, err := r.Files().Watch(ctx(t), r.dir, false); err == nil {
			t.Error("a watch on a shared folder was accepted without a word")
		}
	}
}

func (s suite) large(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 4 GiB")
	}
	r := s.room(t, func(c *sandbox.Config) { n := 3; c.DiskSizeGB = &n })
	const size = 2<<30 + 12345
	path := "/tmp/large"
	if !s.f.Isolated {
		path = r.path("large")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := r.Files().Write(ctx(t), path, &counting{left: size}); err != nil {
		t.Fatal(err)
	}
	in, err := r.Files().Read(ctx(t), path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	check := &counting{left: size}
	want := make([]byte, 64<<10)
	got := make([]byte, 64<<10)
	var total int64
	for {
		n, err := io.ReadFull(in, got)
		if _, err := io.ReadFull(check, want[:n]); err != nil {
			t.Fatalf("more came than was written: %v", err)
		}
		if !bytes.Equal(got[:n], want[:n]) {
			t.Fatalf("other bytes came after %d", total)
		}
		total += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "size", total, int64(size))
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
		t.Errorf("this process's memory grew by %d MiB", grown>>20)
	}
}

// counting is a reader of so many bytes that differ from block to block.
type counting struct{ left, at int64 }

func (c *counting) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), c.left))
	for done := 0; done < n; {
		at := c.at + int64(done)
		block := p[done:min(n, done+int(4096-at%4096))]
		block[0] = byte(at >> 12)
		for k := 1; k < len(block); k *= 2 {
			copy(block[k:], block[:k])
		}
		done += len(block)
	}
	c.left, c.at = c.left-int64(n), c.at+int64(n)
	return n, nil
}

func (s suite) tar(t *testing.T) {
	r := s.room(t)
	f := r.Files()
	t.Run("there and back", func(t *testing.T) {
		in := archive(t,
			tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750},
			tar.Header{Name: "d/x.sh", Typeflag: tar.TypeReg, Mode: 0o755, Size: 3},
			tar.Header{Name: "odd \n\"name", Typeflag: tar.TypeReg, Mode: 0o644, Size: 0},
			tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "d/x.sh"},
			tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "d/x.sh"},
		)
		if err := f.Untar(ctx(t), r.path("in"), in); err != nil {
			t.Fatal(err)
		}
		equal(t, "inside", r.sh(t, `cat in/d/x.sh in/link in/hard; stat -c %a in/d/x.sh in/d; readlink in/link`), "aaaaaaaaa755\n750\nd/x.sh\n")
		out := t.TempDir()
		if err := f.CopyOut(ctx(t), r.path("in"), out); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(out, "d/x.sh"))
		if err != nil || st.Mode().Perm() != 0o755 || st.Size() != 3 {
			t.Errorf("copied out: %v %v", st, err)
		}
		if target, err := os.Readlink(filepath.Join(out, "link")); err != nil || target != "d/x.sh" {
			t.Errorf("link copied out: %q %v", target, err)
		}
		if _, err := os.Stat(filepath.Join(out, "odd \n\"name")); err != nil {
			t.Error(err)
		}
	})
	t.Run("hostile in", func(t *testing.T) {
		r.sh(t, "mkdir -p box/in; echo safe > box/victim")
		file := func(name string) tar.Header {
			return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 3}
		}
		for name, entries := range map[string][]tar.Header{
			"parent":               {file("../victim")},
			"hidden parent":        {file("a/../../victim")},
			"absolute":             {file(r.path("box/victim"))},
			"hard link outside":    {{Name: "l", Typeflag: tar.TypeLink, Linkname: "../victim"}, file("l")},
			"hard link absolute":   {{Name: "l", Typeflag: tar.TypeLink, Linkname: r.path("box/victim")}, file("l")},
			"through a link":       {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, file("l/victim")},
			"through a link's end": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "m", Typeflag: tar.TypeSymlink, Linkname: "l"}, file("m/victim")},
			"device":               {{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
			"block device":         {{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 8}},
			"fifo":                 {{Name: "fifo", Typeflag: tar.TypeFifo}},
		} {
			r.sh(t, "rm -rf box/in; mkdir box/in")
			if err := f.Untar(ctx(t), r.path("box/in"), archive(t, entries...)); err == nil {
				t.Errorf("%s: accepted", name)
			}
			equal(t, name+": the file outside", r.sh(t, "cat box/victim; ls box"), "safe\nin\nvictim\n")
			equal(t, name+": special files", r.sh(t, `find box/in ! -type f ! -type d ! -type l`), "")
		}
		// A link may point anywhere, but what comes later under its name replaces it.
		r.sh(t, "rm -rf box/in; mkdir box/in")
		in := archive(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../victim"}, file("l"))
		if err := f.Untar(ctx(t), r.path("box/in"), in); err != nil {
			t.Fatal(err)
		}
		equal(t, "the file outside", r.sh(t, "cat box/victim; cat box/in/l"), "safe\naaa")
		// No bit that makes a program run as its owner.
		in = archive(t, tar.Header{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 3})
		if err := f.Untar(ctx(t), r.path("box/in"), in); err == nil {
			equal(t, "mode", r.sh(t, "stat -c %a box/in/suid"), "755\n")
		}
	})
	t.Run("broken", func(t *testing.T) {
		b, err := io.ReadAll(archive(t, tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 2000}))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Untar(ctx(t), r.path("cut"), bytes.NewReader(b[:1500])); err == nil {
			t.Error("half an archive was accepted")
		}
		if err := f.Untar(ctx(t), r.path("cut"), strings.NewReader(strings.Repeat("no tar at all ", 200))); err == nil {
			t.Error("no archive was accepted")
		}
		equal(t, "what is left", r.sh(t, "find cut -type f"), "")
	})
	t.Run("links are not followed out", func(t *testing.T) {
		r.sh(t, `mkdir -p out; ln -sf /etc/passwd out/passwd; ln -sfn / out/root; ln -sf ../../../../../../etc/shadow out/shadow; mkfifo out/fifo; printf x > out/x`)
		dir := t.TempDir()
		// What a link of an earlier copy points to is not written to either.
		victim := filepath.Join(t.TempDir(), "victim")
		write(t, victim, "safe", 0o644)
		if err := os.Symlink(victim, filepath.Join(dir, "x")); err != nil {
			t.Fatal(err)
		}
		if err := f.CopyOut(ctx(t), r.path("out"), dir); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"passwd": "/etc/passwd", "root": "/", "shadow": "../../../../../../etc/shadow"} {
			if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != want {
				t.Errorf("%s: %q %v", name, got, err)
			}
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "safe" {
			t.Errorf("a file outside was written: %q %v", b, err)
		}
		st, err := os.Lstat(filepath.Join(dir, "x"))
		if err != nil || !st.Mode().IsRegular() {
			t.Errorf("x: %v %v", st, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "fifo")); err == nil {
			t.Error("a FIFO came out")
		}
	})
	t.Run("3,000 files", func(t *testing.T) {
		var heads []tar.Header
		for i := range 3_000 {
			heads = append(heads, tar.Header{Name: fmt.Sprintf("%02d/%d", i%100, i), Typeflag: tar.TypeReg, Mode: 0o644, Size: 1})
		}
		at := "/tmp/many"
		if !s.f.Isolated {
			at = r.path("many")
		}
		if err := f.Untar(ctx(t), at, archive(t, heads...)); err != nil {
			t.Fatal(err)
		}
		in, err := f.Tar(ctx(t), at)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		n := 0
		for x := tar.NewReader(in); ; {
			h, err := x.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				n++
			}
		}
		equal(t, "files", n, 3_000)
	})
}

// archive is a tar whose files hold the letter a.
func archive(t testing.TB, heads ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range heads {
		h.ModTime = time.Unix(1e9, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("a"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}
