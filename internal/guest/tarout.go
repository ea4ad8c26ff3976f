package guest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The trailers that follow a streamed tar. A stream without them was cut.
const (
	TrailerTarEntries = "Ravi-Tar-Entries"
	TrailerTarSkipped = "Ravi-Tar-Skipped"
	TrailerTarChanged = "Ravi-Tar-Changed"
)

// tarCounts is what a tar was made of.
type tarCounts struct {
	entries int
	skipped int // sockets, devices and FIFOs, and what went away meanwhile
	changed int // files that shrank while they were read, filled up with zeros
}

// serveTarOut streams a tree. Links are stored and not followed, the path's
// own end excepted.
func (s *Server) serveTarOut(w http.ResponseWriter, r *http.Request) {
	root, _, err := s.fileArgs(r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("path '%s' does not exist: %w", r.URL.Query().Get("path"), fs.ErrNotExist)
		}
		writeFailure(w, err)
		return
	}
	info, err := os.Stat(root)
	if err != nil {
		writeFailure(w, err)
		return
	}
	dir, name := root, "."
	if !info.IsDir() {
		dir, name = filepath.Split(root)
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		writeFailure(w, err)
		return
	}
	defer tree.Close()
	h := w.Header()
	h.Set("Content-Type", "application/x-tar")
	h.Set("Trailer", TrailerTarEntries+", "+TrailerTarSkipped+", "+TrailerTarChanged)
	w.WriteHeader(http.StatusOK)
	counts, err := writeTar(r.Context(), w, tree, name)
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
	h.Set(TrailerTarEntries, strconv.Itoa(counts.entries))
	h.Set(TrailerTarSkipped, strconv.Itoa(counts.skipped))
	h.Set(TrailerTarChanged, strconv.Itoa(counts.changed))
}

// tarWriter writes a tree, one directory's names in memory at a time.
type tarWriter struct {
	ctx    context.Context
	tree   *os.Root
	out    *tar.Writer
	buf    []byte
	counts tarCounts
}

func writeTar(ctx context.Context, w io.Writer, tree *os.Root, name string) (tarCounts, error) {
	t := &tarWriter{ctx: ctx, tree: tree, out: tar.NewWriter(w), buf: make([]byte, 256<<10)}
	if err := t.add(name); err != nil {
		return t.counts, err
	}
	return t.counts, t.out.Close()
}

func (t *tarWriter) add(name string) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	info, err := t.tree.Lstat(name)
	if gone(err) {
		t.counts.skipped++
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return t.addDir(name, info)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := t.tree.Readlink(name)
		if gone(err) {
			t.counts.skipped++
			return nil
		}
		if err != nil {
			return err
		}
		return t.header(name, info, target)
	case info.Mode().IsRegular():
		return t.addFile(name)
	}
	t.counts.skipped++
	return nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func (t *tarWriter) addDir(name string, info fs.FileInfo) error {
	if err := t.header(name, info, ""); err != nil {
		return err
	}
	dir, err := t.tree.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if gone(err) || errors.Is(err, unix.ELOOP) {
		t.counts.skipped++
		return nil
	}
	if err != nil {
		return err
	}
	// The directory is read to its end before going deeper, so that depth costs
	// names and not descriptors.
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, entry := range names {
		if err := t.add(path.Join(name, entry)); err != nil {
			return err
		}
	}
	return nil
}

func (t *tarWriter) addFile(name string) error {
	f, err := t.tree.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if gone(err) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		t.counts.skipped++
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		// Another took its place since we looked.
		t.counts.skipped++
		return nil
	}
	if err := t.header(name, info, ""); err != nil {
		return err
	}
	// The size is told already; what the file gains now is not part of it.
	n, err := io.CopyBuffer(struct{ io.Writer }{t.out}, io.LimitReader(f, info.Size()), t.buf)
	if err != nil {
		return err
	}
	if n < info.Size() {
		t.counts.changed++
		_, err = io.CopyN(t.out, zeros{}, info.Size()-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (t *tarWriter) header(name string, info fs.FileInfo, link string) error {
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Format = tar.FormatPAX
	// Names of users mean nothing elsewhere, and access times change by reading.
	h.Uname, h.Gname = "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	t.counts.entries++
	return t.out.WriteHeader(h)
}
