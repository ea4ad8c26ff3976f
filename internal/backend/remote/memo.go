package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// memo is what is remembered of a folder that is shown again and again, so that it need not be read for each sandbox: an
// agent program has hundreds of megabytes.
type memo struct {
	// Stamp is of all that the kernel says of the folder's files.
	Stamp  string `json:"stamp"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

const (
	memoDir = "digests"
	// settled is how old the last change must be, so that one that came after would have another time stamp.
	settled = 2 * time.Second
)

// remember is measure, for a folder that was perhaps measured before.
func remember(ctx context.Context, home, dir string) (digest string, size int64, err error) {
	stamp, newest, err := stampOf(ctx, dir)
	if err != nil {
		return "", 0, err
	}
	name := sha256.Sum256([]byte(dir))
	path := filepath.Join(home, memoDir, hex.EncodeToString(name[:16]))
	// A memo that cannot be read is none.
	var m memo
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &m) == nil && m.Stamp == stamp && len(m.Digest) == 64 && m.Size > 0 {
		return m.Digest, m.Size, nil
	}
	if digest, size, err = measure(ctx, dir); err != nil {
		return "", 0, err
	}
	again, _, err := stampOf(ctx, dir)
	switch {
	case err != nil:
		return "", 0, err
	case again != stamp:
		return "", 0, errChanged
	case time.Since(newest) < settled:
		return digest, size, nil
	}
	b, err := json.Marshal(memo{Stamp: stamp, Digest: digest, Size: size})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	var f *os.File
	if err == nil {
		f, err = os.CreateTemp(filepath.Dir(path), "new-")
	}
	if err == nil {
		_, err = f.Write(b)
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			_ = os.Remove(f.Name()) // what is left is no memo
		}
	}
	if err != nil {
		return "", 0, fmt.Errorf("remembering its digest: %w", err)
	}
	return digest, size, nil
}

// stampOf is a digest of what the kernel says of a folder's files, and when the last of them was changed. Whoever changes
// a file changes its ctime, which nobody can set.
func stampOf(ctx context.Context, dir string) (stamp string, newest time.Time, err error) {
	sum := sha256.New()
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		changed := time.Unix(st.Ctim.Unix())
		if changed.After(newest) {
			newest = changed
		}
		fmt.Fprintf(sum, "%q %d %d %o %d %d %d\n", path, st.Dev, st.Ino, st.Mode, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)), newest, err
}
