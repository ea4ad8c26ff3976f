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
	"strings"
	"time"
)

// tarResult is the answer to an unpacked tar.
type tarResult struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// serveTarIn unpacks a tar beneath a directory, which it makes if need be.
// Nothing lands outside of it, whatever names and links the tar has. What was
// unpacked before an error stays, and the error says how much.
func (s *Server) serveTarIn(w http.ResponseWriter, r *http.Request) {
	dir, user, err := s.fileArgs(r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	body, err := decoded(r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	if err := makeDirs(dir, user); err != nil {
		writeFailure(w, err)
		return
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		writeFailure(w, err)
		return
	}
	defer tree.Close()
	x := &extractor{ctx: r.Context(), tree: tree, user: user, buf: make([]byte, 256<<10)}
	if err := x.extract(body); err != nil {
		writeFailure(w, fmt.Errorf("unpack beneath '%s' (%d entries are done): %w", dir, x.done.Entries, err))
		return
	}
	writeJSON(w, http.StatusOK, x.done)
}

type extractor struct {
	ctx  context.Context
	tree *os.Root
	user account
	buf  []byte
	done tarResult
	dirs []dirTime
}

// dirTime is set at the end: what is put into a directory changes its time.
type dirTime struct {
	name string
	mode fs.FileMode
	time time.Time
}

func (x *extractor) extract(body io.Reader) error {
	in := tar.NewReader(body)
	for {
		if err := x.ctx.Err(); err != nil {
			return err
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: read the tar: %w", errBadArgument, err)
		}
		if err := x.entry(h, bodyReader{in}); err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
		x.done.Entries++
	}
	for i := len(x.dirs) - 1; i >= 0; i-- {
		d := x.dirs[i]
		if err := x.tree.Chmod(d.name, d.mode); err != nil {
			return err
		}
		if err := x.tree.Chtimes(d.name, d.time, d.time); err != nil {
			return err
		}
	}
	return nil
}

// localName checks a name of the tar. os.Root would keep it inside as well;
// a name that tries to get out is refused rather than bent.
func localName(name string) (string, error) {
	if path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: the name is not relative", errBadArgument)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: the name leads outside", errBadArgument)
		}
	}
	return path.Clean(name), nil
}

func (x *extractor) entry(h *tar.Header, content io.Reader) error {
	name, err := localName(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return x.dir(name, h)
	case tar.TypeReg:
		return x.file(name, h, content)
	case tar.TypeSymlink:
		// It may point anywhere, as links in a tree do; nothing is ever
		// written through it.
		if err := x.clear(name); err != nil {
			return err
		}
		if err := x.tree.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return x.own(name)
	case tar.TypeLink:
		target, err := localName(h.Linkname)
		if err != nil {
			return fmt.Errorf("link to %q: %w", h.Linkname, err)
		}
		if target == name {
			return nil
		}
		if err := x.clear(name); err != nil {
			return err
		}
		return x.tree.Link(target, name)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%w: entries of kind %q (devices, FIFOs and the like) are not unpacked", errBadArgument, h.Typeflag)
}

func (x *extractor) own(name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return x.tree.Lchown(name, int(x.user.uid), int(x.user.gid))
}

// parents makes the directories above name that are missing.
func (x *extractor) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if info, err := x.tree.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%w: %q is not a directory", errBadArgument, dir)
		}
		return nil
	}
	if err := x.parents(dir); err != nil {
		return err
	}
	if err := x.tree.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return x.own(dir)
}

// clear makes place for an entry: whatever is there goes, but not a directory
// that has something in it.
func (x *extractor) clear(name string) error {
	if err := x.parents(name); err != nil {
		return err
	}
	err := x.tree.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (x *extractor) dir(name string, h *tar.Header) error {
	if info, err := x.tree.Lstat(name); err != nil || !info.IsDir() {
		if err := x.clear(name); err != nil {
			return err
		}
		if err := x.tree.Mkdir(name, 0o755); err != nil {
			return err
		}
		if err := x.own(name); err != nil {
			return err
		}
	}
	if name != "." {
		x.dirs = append(x.dirs, dirTime{name: name, mode: modeOf(h), time: h.ModTime})
	}
	return nil
}

// modeOf keeps the permission bits: what runs as another user is made so by
// its owner, not by a tar.
func modeOf(h *tar.Header) fs.FileMode { return fs.FileMode(h.Mode) & fs.ModePerm }

func (x *extractor) file(name string, h *tar.Header, content io.Reader) (err error) {
	if err := x.clear(name); err != nil {
		return err
	}
	f, err := x.tree.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			// No half file.
			err = errors.Join(err, x.tree.Remove(name))
			return
		}
		err = x.tree.Chtimes(name, h.ModTime, h.ModTime)
	}()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, content, x.buf)
	x.done.Bytes += n
	if err != nil {
		return err
	}
	if err := x.own(name); err != nil {
		return err
	}
	return f.Chmod(modeOf(h))
}
