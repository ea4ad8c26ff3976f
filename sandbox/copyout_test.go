package sandbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"ravi/internal/guestapi"
)

// answers is a guest that says what it likes.
type answers struct{ body []byte }

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

// archived is a tar of headers; files hold their own name.
func archived(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = h.Name
			h.Size = int64(len(content))
		}
		h.Mode |= 0o4700
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Whatever archive a hostile guest sends, nothing is written outside of the target, no link is followed out of it, and
// nothing but files, folders and links is made.
func TestCopyOutOfAHostileGuest(t *testing.T) {
	file, link, hard, dir := byte(tar.TypeReg), byte(tar.TypeSymlink), byte(tar.TypeLink), byte(tar.TypeDir)
	for name, headers := range map[string][]tar.Header{
		"up":                   {{Typeflag: file, Name: "../evil"}},
		"deep up":              {{Typeflag: file, Name: "a/../../evil"}},
		"absolute":             {{Typeflag: file, Name: "OUT/evil"}},
		"through a link":       {{Typeflag: link, Name: "l", Linkname: "OUT"}, {Typeflag: file, Name: "l/evil"}},
		"through two":          {{Typeflag: link, Name: "l", Linkname: "m"}, {Typeflag: link, Name: "m", Linkname: "../out"}, {Typeflag: file, Name: "l/evil"}},
		"a folder in a link":   {{Typeflag: link, Name: "l", Linkname: "../out"}, {Typeflag: dir, Name: "l/evil/"}},
		"a hard link to there": {{Typeflag: hard, Name: "h", Linkname: "OUT/precious"}, {Typeflag: file, Name: "h"}},
		"a hard link up":       {{Typeflag: hard, Name: "h", Linkname: "../out/precious"}, {Typeflag: file, Name: "h"}},
		"onto a link":          {{Typeflag: link, Name: "l", Linkname: "../out/precious"}, {Typeflag: file, Name: "l"}},
		"a device":             {{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1, Devminor: 3}},
		"a pipe":               {{Typeflag: tar.TypeFifo, Name: "p"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			out, in := filepath.Join(base, "out"), filepath.Join(base, "in")
			if err := errors.Join(os.Mkdir(out, 0o700), os.WriteFile(filepath.Join(out, "precious"), []byte("mine"), 0o600)); err != nil {
				t.Fatal(err)
			}
			for i := range headers {
				for _, s := range []*string{&headers[i].Name, &headers[i].Linkname} {
					if len(*s) >= 3 && (*s)[:3] == "OUT" {
						*s = out + (*s)[3:]
					}
				}
			}
			s := &Sandbox{root: guestWorkspace, client: guestapi.NewClient(&http.Client{Transport: answers{archived(t, headers...)}}, "http://guest")}
			err := s.Files().CopyOutMost(t.Context(), "/x", in, 1<<20)
			if err == nil && name != "onto a link" {
				t.Error("it was laid down")
			}
			left, rerr := os.ReadDir(out)
			b, ferr := os.ReadFile(filepath.Join(out, "precious"))
			if rerr != nil || ferr != nil || len(left) != 1 || string(b) != "mine" {
				t.Errorf("outside there is %v, %q (%v, %v)", left, b, rerr, ferr)
			}
			if _, err := os.Lstat(filepath.Join(base, "evil")); err == nil {
				t.Error("a file was written above")
			}
			_ = filepath.WalkDir(in, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.Type()&^(os.ModeDir|os.ModeSymlink) != 0 {
					t.Errorf("%s is %v", path, d.Type())
				}
				if info, ierr := d.Info(); ierr == nil && info.Mode()&os.ModeSetuid != 0 {
					t.Errorf("%s has %v", path, info.Mode())
				}
				return nil
			})
		})
	}
}

// What may be copied is bounded, by what it would be on this machine.
func TestCopyOutIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		body    []byte
		entries int64
	}{
		"bytes":   {archived(t, tar.Header{Typeflag: tar.TypeReg, Name: "0123456789"}, tar.Header{Typeflag: tar.TypeReg, Name: "1123456789"}), 9},
		"entries": {archived(t, tar.Header{Typeflag: tar.TypeDir, Name: "a/"}, tar.Header{Typeflag: tar.TypeDir, Name: "b/"}), 1},
		"holes":   {holes(t), 9},
	} {
		s := &Sandbox{root: guestWorkspace, client: guestapi.NewClient(&http.Client{Transport: answers{c.body}}, "http://guest")}
		dir := t.TempDir()
		if err := s.Files().copyOut(t.Context(), "/x", dir, 15, c.entries); !errors.Is(err, ErrTooMuch) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 1 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
	}
}

// holes is an archive of a few bytes with a file of a terabyte, as only GNU tar writes it.
func holes(t *testing.T) []byte {
	t.Helper()
	// The map: one piece of one byte at the end.
	content := "1\n1099511627775\n1\n"
	content += string(make([]byte, 512-len(content))) + "x"
	record := func(k, v string) string {
		for n := len(k) + len(v) + 3; ; n++ {
			s := strconv.Itoa(n) + " " + k + "=" + v + "\n"
			if len(s) == n {
				return s
			}
		}
	}
	records := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "f") + record("GNU.sparse.realsize", "1099511627776")
	block := func(kind byte, name string, size int) []byte {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000600\x00")
		copy(h[108:], "0000000\x00")
		copy(h[116:], "0000000\x00")
		copy(h[124:], fmt.Sprintf("%011o", size))
		copy(h[136:], fmt.Sprintf("%011o", 0))
		h[156] = kind
		copy(h[257:], "ustar\x0000")
		for i := range 8 {
			h[148+i] = ' '
		}
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00", sum))
		return h
	}
	pad := func(s string) []byte { return append([]byte(s), make([]byte, (512-len(s)%512)%512)...) }
	var b bytes.Buffer
	b.Write(block('x', "x", len(records)))
	b.Write(pad(records))
	b.Write(block('0', "GNUSparseFile.0/f", len(content)))
	b.Write(pad(content))
	b.Write(make([]byte, 1024))
	h, err := tar.NewReader(bytes.NewReader(b.Bytes())).Next()
	if err != nil || h.Size != 1<<40 {
		t.Fatalf("that is no sparse archive: %+v, %v", h, err)
	}
	return b.Bytes()
}
