package remote

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"
)

// Bounds of one folder that is shown on a runner. Runners hold to them, too.
const (
	MaxContent  = 2 << 30 // bytes, as pack writes it
	MaxEntries  = 200_000
	MaxDepth    = 64
	MaxNameSize = 4 << 10 // bytes of a name, or of what a link says
)

// measure is the digest and the size of what pack writes of a folder.
func measure(ctx context.Context, dir string) (digest string, size int64, err error) {
	sum := sha256.New()
	n := &counter{w: sum}
	if err := pack(ctx, n, dir); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(sum.Sum(nil)), n.n, nil
}

// pack writes what a folder holds as a tar: files, folders and symbolic links, in one order, without owners, times and
// any permission but that to execute. So the same content gives the same bytes.
func pack(ctx context.Context, w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	p := &packer{ctx: ctx, root: root, out: tar.NewWriter(w), buf: make([]byte, 256<<10)}
	if err := p.folder("."); err != nil {
		return err
	}
	return p.out.Close()
}

type packer struct {
	ctx     context.Context
	root    *os.Root
	out     *tar.Writer
	buf     []byte
	entries int
	bytes   int64
}

func (p *packer) folder(name string) error {
	d, err := p.root.Open(name)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(MaxEntries + 1)
	d.Close()
	if err != nil && err != io.EOF {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if err := p.entry(path.Join(name, n)); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name string) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	if p.entries++; p.entries > MaxEntries {
		return fmt.Errorf("it has more than %d files", MaxEntries)
	}
	st, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	switch {
	case st.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
	case st.Mode()&fs.ModeSymlink != 0:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return err
		}
	case st.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, st.Size()
		if st.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
	default:
		return fmt.Errorf("%s is neither a file, a folder nor a symbolic link", name)
	}
	if p.bytes += h.Size; p.bytes > MaxContent {
		return fmt.Errorf("it has more than %d MiB", MaxContent>>20)
	}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return p.folder(name)
	case tar.TypeReg:
		return p.file(name, h.Size)
	}
	return nil
}

var errChanged = errors.New("it changed while it was read")

func (p *packer) file(name string, size int64) error {
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{p.out}, struct{ io.Reader }{io.LimitReader(f, size)}, p.buf)
	if err == nil && n != size {
		err = errChanged
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
