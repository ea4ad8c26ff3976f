package sandbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrTooMuch says that a folder of a sandbox holds more than was to be copied.
var ErrTooMuch = errors.New("more than is to be copied")

// mostEntries bounds what CopyOutMost lays down, besides bytes: a file without
// content takes room as well.
const mostEntries = 1_000_000

// CopyOutMost is CopyOut of files that have at most so many bytes together, holes
// counted as if they were written; of more it is ErrTooMuch, and what was copied
// stays.
func (f Files) CopyOutMost(ctx context.Context, path, dir string, most int64) error {
	return f.copyOut(ctx, path, dir, most, mostEntries)
}

func (f Files) copyOut(ctx context.Context, path, dir string, bytes, entries int64) error {
	r, err := f.Tar(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return f.s.explain(ctx, err)
		}
		// What the archive says of its files' sizes is what is written of them.
		if h.Size > bytes || entries == 0 {
			return fmt.Errorf("copying %.200q out of the sandbox: %w", h.Name, ErrTooMuch)
		}
		bytes -= h.Size
		entries--
		if err := layDown(root, h, in); err != nil {
			return fmt.Errorf("copying %.200q out of the sandbox: %w", h.Name, err)
		}
	}
}
