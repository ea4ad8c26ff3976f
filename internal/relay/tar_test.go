package relay

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

func archive(t testing.TB, heads ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range heads {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCopyTarRefuses(t *testing.T) {
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 3} }
	for name, h := range map[string]tar.Header{
		"parent":              reg("../x"),
		"parent alone":        {Name: "..", Typeflag: tar.TypeDir},
		"hidden parent":       reg("a/../../x"),
		"absolute":            reg("/etc/passwd"),
		"many slashes":        reg("///x"),
		"hard link out":       {Name: "l", Typeflag: tar.TypeLink, Linkname: "../x"},
		"hard link absolute":  {Name: "l", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"},
		"hard link to parent": {Name: "l", Typeflag: tar.TypeLink, Linkname: ".."},
		"character device":    {Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		"block device":        {Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8},
		"fifo":                {Name: "f", Typeflag: tar.TypeFifo},
	} {
		if err := copyTar(io.Discard, bytes.NewReader(archive(t, h)), 300_000); err == nil {
			t.Errorf("%s is passed on", name)
		}
	}
	whole := archive(t, reg("x"))
	// A cut between two entries is told by the stream that carries the archive.
	for _, n := range []int{1, 511, 513, 514} {
		if err := copyTar(io.Discard, bytes.NewReader(whole[:n]), 300_000); err == nil {
			t.Errorf("an archive cut after %d bytes is passed on as whole", n)
		}
	}
}

func TestCopyTarKeepsWhatAFileNeeds(t *testing.T) {
	when := time.Unix(1_000_000_000, 123_456_000)
	in := archive(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./d//e/", Typeflag: tar.TypeDir, Mode: 0o2755},
		tar.Header{Name: "d/suid", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 3, Uid: 5, Uname: "root", ModTime: when, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x", "evil": "y"}},
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../../anywhere"},
		tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "./d/suid"},
		tar.Header{Name: "odd\xff\nname", Typeflag: tar.TypeReg},
	)
	var out bytes.Buffer
	if err := copyTar(&out, bytes.NewReader(in), maxTarEntries); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %q %q %o %d %d %q", h.Typeflag, h.Name, h.Linkname, h.Mode, h.Size, h.Uid, h.Uname))
		for k := range h.PAXRecords {
			if k == "evil" || strings.Contains(k, "xattr") {
				t.Errorf("%s: the record %s is passed on", h.Name, k)
			}
		}
		if h.Name == "d/suid" && !h.ModTime.Equal(when) {
			t.Errorf("the time is %v, was %v", h.ModTime, when)
		}
	}
	want := []string{
		`5 "./" "" 755 0 0 ""`, `5 "d/e/" "" 755 0 0 ""`, `0 "d/suid" "" 755 3 0 ""`, `2 "link" "../../anywhere" 0 0 0 ""`,
		`1 "hard" "d/suid" 0 0 0 ""`, `0 "odd\xff\nname" "" 0 0 0 ""`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Many entries, and records that say more than they are, cost no memory.
func TestCopyTarIsBounded(t *testing.T) {
	many := 300_000
	if testing.Short() { // as with the race detector, which makes it some minutes on a loaded machine
		many = 30_000
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	one := archive(t, tar.Header{Name: "x", Typeflag: tar.TypeReg})[:512]
	if err := copyTar(io.Discard, io.MultiReader(&repeat{one, many, 0}, bytes.NewReader(make([]byte, 1024))), many); err != nil {
		t.Errorf("as many entries as are allowed: %v", err)
	}
	if err := copyTar(io.Discard, &repeat{one, many + 10, 0}, many); err == nil || !strings.Contains(err.Error(), "entries") {
		t.Errorf("more entries than the bound: %v", err)
	}
	// An extended header of 4 GiB, and endlessly many small ones.
	big := append([]byte(nil), one...)
	big[156] = tar.TypeXHeader
	copy(big[124:], "40000000000\x00")
	copy(big[148:], checksum(big))
	if err := copyTar(io.Discard, io.MultiReader(bytes.NewReader(big), &repeat{make([]byte, 512), 1 << 20, 0}), many); err == nil {
		t.Error("an extended header of 4 GiB is read")
	}
	long := append([]byte(nil), one...)
	long[156] = tar.TypeGNULongName
	copy(long[124:], "40000000000\x00")
	copy(long[148:], checksum(long))
	if err := copyTar(io.Discard, io.MultiReader(bytes.NewReader(long), &repeat{bytes.Repeat([]byte("n"), 512), 1 << 20, 0}), many); err == nil {
		t.Error("a name of 4 GiB is read")
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
}

func checksum(h []byte) string {
	sum := 0
	for i, b := range h {
		if i >= 148 && i < 156 {
			b = ' '
		}
		sum += int(b)
	}
	return fmt.Sprintf("%06o\x00 ", sum)
}

// repeat is so many times the same block.
type repeat struct {
	block []byte
	left  int
	at    int
}

func (r *repeat) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if r.left == 0 {
			if n == 0 {
				return 0, io.EOF
			}
			return n, nil
		}
		k := copy(p[n:], r.block[r.at:])
		n, r.at = n+k, r.at+k
		if r.at == len(r.block) {
			r.at, r.left = 0, r.left-1
		}
	}
	return n, nil
}

func FuzzCopyTar(f *testing.F) {
	f.Add(archive(f, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/x", Typeflag: tar.TypeReg, Size: 5},
		tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/x"}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/x"}))
	f.Add(archive(f, tar.Header{Name: strings.Repeat("n", 300), Typeflag: tar.TypeReg, Format: tar.FormatPAX}))
	f.Add(archive(f, tar.Header{Name: strings.Repeat("n", 300), Typeflag: tar.TypeReg, Format: tar.FormatGNU}))
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		// An archive may claim a file far larger than it is (a sparse one).
		if copyTar(&limitWriter{&out, 4 << 20}, bytes.NewReader(in), maxTarEntries) != nil {
			return
		}
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatalf("what was passed on is no archive: %v", err)
			}
			if !localName(strings.TrimSuffix(h.Name, "/")) {
				t.Errorf("the name %q is passed on", h.Name)
			}
			if h.Typeflag == tar.TypeLink && !localName(h.Linkname) {
				t.Errorf("the link to %q is passed on", h.Linkname)
			}
			if h.Mode&^0o777 != 0 || h.Uid != 0 || h.Gid != 0 {
				t.Errorf("%q has mode %o, owner %d", h.Name, h.Mode, h.Uid)
			}
			switch h.Typeflag {
			case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
			default:
				t.Errorf("%q is of kind %c", h.Name, h.Typeflag)
			}
		}
	})
}

type limitWriter struct {
	w    io.Writer
	left int
}

func (l *limitWriter) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, errors.New("full")
	}
	l.left -= len(p)
	return l.w.Write(p)
}
