package runner

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/backend/remote"
)

// contents are the folders that sandboxes see, by the digest of what came. Each lies in a folder of that name: the content
// itself, and if it is kept for later sandboxes, how large it is.
type contents struct {
	dir  string
	most int64 // bytes that are kept for later

	mu   sync.Mutex
	have map[string]*content
}

type content struct {
	size int64
	keep bool
	used time.Time // last
	held int       // by sandboxes
}

const (
	treeDir  = "tree"
	sizeFile = "size"
	newDir   = "new-"
	// mostKept bounds what is kept for later, in bytes, and leastDisk is what a content leaves of the disk.
	mostKept  = 8 << 30
	leastDisk = 1 << 30
)

// openContents finds what is there. What is not whole, or was for one sandbox, is removed.
func openContents(dir string) (*contents, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the runner's home: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the runner's home: %w", err)
	}
	c := &contents{dir: dir, most: mostKept, have: map[string]*content{}}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		b, err := os.ReadFile(filepath.Join(at, sizeFile))
		var size int64
		if err == nil {
			size, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		}
		var st fs.FileInfo
		if err == nil {
			st, err = os.Stat(at)
		}
		if err != nil || strings.HasPrefix(e.Name(), newDir) {
			if err := os.RemoveAll(at); err != nil {
				return nil, fmt.Errorf("the runner's home: %w", err)
			}
			continue
		}
		c.have[e.Name()] = &content{size: size, keep: true, used: st.ModTime()}
	}
	return c, nil
}

func (c *contents) path(digest string) string { return filepath.Join(c.dir, digest, treeDir) }

// hold keeps a content there until it is freed, if it is there.
func (c *contents) hold(digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.have[digest]
	if have == nil {
		return false
	}
	have.held++
	have.used = time.Now()
	return true
}

// free undoes hold. What nobody holds and is not to be kept is removed.
func (c *contents) free(digest string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.have[digest]
	have.held--
	if have.held > 0 || have.keep {
		return nil
	}
	return c.remove(digest)
}

func (c *contents) remove(digest string) error {
	delete(c.have, digest)
	// At once it has no name that stands for a content.
	old, err := os.MkdirTemp(c.dir, newDir)
	if err == nil {
		err = os.Rename(filepath.Join(c.dir, digest), filepath.Join(old, digest))
	}
	return errors.Join(err, os.RemoveAll(old))
}

// add makes a content of what comes, which holds it then.
func (c *contents) add(ctx context.Context, want remote.Content, from io.Reader) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.dir, &disk); err != nil {
		return fmt.Errorf("the runner's disk: %w", err)
	}
	if left := int64(disk.Bavail) * disk.Bsize; left < want.Size+leastDisk {
		return fmt.Errorf("%w on its disk: %d MiB are free", remote.ErrFull, left>>20)
	}
	fresh, err := os.MkdirTemp(c.dir, newDir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	if err := os.Chmod(fresh, 0o755); err != nil { // the folder above is closed
		return err
	}
	if err := unpack(ctx, filepath.Join(fresh, treeDir), want, from); err != nil {
		return err
	}
	if want.Keep {
		if err := os.WriteFile(filepath.Join(fresh, sizeFile), fmt.Appendln(nil, want.Size), 0o600); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.have[want.Digest]; have != nil {
		have.held++ // it came twice at once
		return nil
	}
	if err := os.Rename(fresh, filepath.Join(c.dir, want.Digest)); err != nil {
		return err
	}
	c.have[want.Digest] = &content{size: want.Size, keep: want.Keep, used: time.Now(), held: 1}
	if err := c.evict(); err != nil {
		c.have[want.Digest].held--
		return err
	}
	return nil
}

// evict removes what was kept and was not used for the longest time, until the rest is not too much.
func (c *contents) evict() error {
	for {
		var sum int64
		oldest := ""
		for digest, have := range c.have {
			if !have.keep {
				continue
			}
			sum += have.size
			if have.held == 0 && (oldest == "" || have.used.Before(c.have[oldest].used)) {
				oldest = digest
			}
		}
		if sum <= c.most || oldest == "" {
			return nil
		}
		if err := c.remove(oldest); err != nil {
			return err
		}
	}
}

// unpack makes a folder of what came, which is hostile. It has to be what its digest says.
func unpack(ctx context.Context, dir string, want remote.Content, from io.Reader) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer tree.Close()
	sum := sha256.New()
	all := &bounded{ctx: ctx, from: from, left: want.Size, sum: sum}
	u := &unpacker{tree: tree, left: want.Size, dirs: map[string]bool{".": true}, buf: make([]byte, 256<<10)}
	in := tar.NewReader(all)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = u.entry(h, in)
		}
		if err != nil {
			return fmt.Errorf("unpacking a folder: %w", err)
		}
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return fmt.Errorf("unpacking a folder: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); all.left != 0 || got != want.Digest {
		return refuse("what came is not the folder that was announced")
	}
	return u.open()
}

// bounded reads as many bytes as were announced, and sums them up.
type bounded struct {
	ctx  context.Context
	from io.Reader
	left int64
	sum  hash.Hash
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.sum.Write(p[:n])
	if err == io.EOF && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

type unpacker struct {
	tree    *os.Root
	left    int64 // bytes that files may still have
	entries int
	dirs    map[string]bool // that were made here
	buf     []byte
}

// entry makes what one entry says. Each has a new name, in a folder that an entry before has made: so nothing is written
// over, or through a link.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	u.entries++
	switch {
	case u.entries > remote.MaxEntries:
		return refuse("it has more than %d files", remote.MaxEntries)
	case len(name) > remote.MaxNameSize || strings.Count(name, "/") >= remote.MaxDepth || len(h.Linkname) > remote.MaxNameSize:
		return refuse("a name in it is too long")
	case !filepath.IsLocal(name) || path.Clean(name) != name || name == "." || strings.ContainsRune(name, 0):
		return refuse("%.80q in it is no name of a file", h.Name)
	case !u.dirs[path.Dir(name)]:
		return refuse("%.80q in it is in no folder of its own", h.Name)
	case u.dirs[name]:
		return refuse("%.80q is in it twice", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		u.dirs[name] = true
		return u.tree.Mkdir(name, 0o700)
	case tar.TypeSymlink:
		// It leads somewhere in the sandbox. Nothing here goes through it.
		return u.tree.Symlink(h.Linkname, name)
	case tar.TypeReg:
		return u.file(name, h, content)
	}
	return refuse("%.80q in it is neither a file, a folder nor a symbolic link", h.Name)
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.left { // one with holes could be larger than all that came
		return refuse("%.80q in it is larger than what was announced", h.Name)
	}
	u.left -= h.Size
	f, err := u.tree.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{content}, u.buf)
	mode := fs.FileMode(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// open lets everyone read the folders, who gets as far.
func (u *unpacker) open() error {
	for dir := range u.dirs {
		if err := u.tree.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
