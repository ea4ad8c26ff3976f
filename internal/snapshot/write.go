package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// ErrNotEmpty refuses a directory that has something in it.
var ErrNotEmpty = errors.New("it is not empty")

// Modes of what is made: whoever reads it in a sandbox may be another user than whoever wrote it here.
const (
	fileMode = 0o444
	dirMode  = 0o755
)

// writeAll writes the files beneath dir, and nowhere else. If it fails, it removes what it made.
func writeAll(ctx context.Context, dir string, files []file) (err error) {
	made := os.Mkdir(dir, dirMode)
	if made != nil && !errors.Is(made, os.ErrExist) {
		return made
	}
	if made == nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, os.Remove(dir))
			}
		}()
		if err := os.Chmod(dir, dirMode); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := isEmpty(root); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				top, _, _ := strings.Cut(f.Path, "/")
				err = errors.Join(err, root.RemoveAll(top))
			}
		}
	}()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := makeDirs(root, path.Dir(f.Path)); err != nil {
			return err
		}
		if err := write(root, f); err != nil {
			return err
		}
	}
	return nil
}

func isEmpty(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	switch names, err := d.Readdirnames(1); {
	case len(names) > 0:
		return fmt.Errorf("%w: %q is in it", ErrNotEmpty, names[0])
	case err != io.EOF:
		return err
	}
	return nil
}

// makeDirs makes a directory and those above it, readable whatever the umask says.
func makeDirs(root *os.Root, dir string) error {
	above := path.Dir(dir)
	if above == dir {
		return nil
	}
	if err := makeDirs(root, above); err != nil {
		return err
	}
	if err := root.Mkdir(dir, dirMode); errors.Is(err, os.ErrExist) {
		return nil // a file of this name refuses what would be in it
	} else if err != nil {
		return err
	}
	return root.Chmod(dir, dirMode)
}

// write makes one file, which must not be there.
func write(root *os.Root, f file) (err error) {
	w, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := w.Write(f.content); err != nil {
		return err
	}
	return w.Chmod(fileMode)
}
