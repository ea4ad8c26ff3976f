package relay

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// writeMany writes an archive of so many files, one in ten of them not empty.
func writeMany(w io.Writer, many int) error {
	b := bufio.NewWriterSize(w, 64<<10)
	out := tar.NewWriter(b)
	for i := range many {
		h := tar.Header{Name: manyName(i), Typeflag: tar.TypeReg, Mode: 0o644}
		if i%10 == 0 {
			h.Size = 1
		}
		if err := out.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := out.Write(make([]byte, h.Size)); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), b.Flush())
}

func manyName(i int) string { return fmt.Sprintf("d%03d/file-%07d", i%1000, i) }

// readMany counts the files of an archive that writeMany wrote.
func readMany(t *testing.T, r io.Reader) (n int) {
	t.Helper()
	for in := tar.NewReader(bufio.NewReaderSize(r, 64<<10)); ; n++ {
		h, err := in.Next()
		if err == io.EOF {
			return n
		}
		if err != nil {
			t.Fatalf("after %d entries: %v", n, err)
		}
		if h.Name != manyName(n) {
			t.Fatalf("entry %d is %q", n, h.Name)
		}
	}
}

// A folder of a million files passes whole, and is at no moment held.
func TestCopyTarPassesAMillionFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("a million files: not with -short")
	}
	const many = 1_000_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fromGuest, guest := io.Pipe()
	owner, toOwner := io.Pipe()
	var parts sync.WaitGroup
	parts.Go(func() { guest.CloseWithError(writeMany(guest, many)) })
	parts.Go(func() {
		b := bufio.NewWriterSize(toOwner, 64<<10)
		err := copyTar(b, bufio.NewReaderSize(fromGuest, 64<<10), maxTarEntries)
		toOwner.CloseWithError(errors.Join(err, b.Flush()))
	})
	if n := readMany(t, owner); n != many {
		t.Errorf("%d entries came", n)
	}
	swallow(owner)
	swallow(fromGuest)
	parts.Wait()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
}

// With an archive come the guest's counts, as far as they are numbers. They are
// at the stream's end, which lies behind the archive's, as padding may.
func TestArchiveComesWithItsCounts(t *testing.T) {
	const many = 3000
	get := func(t *testing.T, padding int) (*http.Response, []byte, error) {
		c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-tar")
			w.Header().Set("Trailer", strings.Join(tarTrailers, ", "))
			err := writeMany(w, many)
			for ; err == nil && padding > 0; padding -= 512 {
				_, err = w.Write(make([]byte, 512))
			}
			w.Header().Set("Ravi-Tar-Entries", strconv.Itoa(many))
			w.Header().Set("Ravi-Tar-Skipped", "-1")
			w.Header().Set("Ravi-Tar-Changed", "many")
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest/tar?path=x", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res, b, err
	}
	for _, padding := range []int{0, 10 << 10} {
		t.Run(fmt.Sprintf("%d bytes of padding", padding), func(t *testing.T) {
			res, b, err := get(t, padding)
			if err != nil {
				t.Fatal(err)
			}
			if n := readMany(t, bytes.NewReader(b)); n != many {
				t.Errorf("%d entries came", n)
			}
			if got := res.Trailer.Get("Ravi-Tar-Entries"); got != strconv.Itoa(many) {
				t.Errorf("%q entries were counted", got)
			}
			for _, k := range tarTrailers[1:] {
				if got := res.Trailer.Get(k); got != "" {
					t.Errorf("%s: %q was passed on", k, got)
				}
			}
		})
	}
	t.Run("padding without end", func(t *testing.T) {
		if _, _, err := get(t, 1<<40); err == nil {
			t.Error("the owner took it for the whole")
		}
	})
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// An archive beyond the bound is refused at the bound, and not read on.
func TestCopyTarStopsAtItsBound(t *testing.T) {
	const most = 50_000
	one := archive(t, tar.Header{Name: "x", Typeflag: tar.TypeReg})[:512]
	read := &counted{r: &repeat{one, 1_000_000, 0}}
	err := copyTar(io.Discard, read, most)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d entries", most)) {
		t.Errorf("more entries than are allowed: %v", err)
	}
	if enough := int64(most+1) * 512; read.n > enough {
		t.Errorf("%d bytes were read, %d tell that it is too much", read.n, enough)
	}
}
