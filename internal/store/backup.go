package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrDamaged says that the database is not whole.
var ErrDamaged = errors.New("the database is damaged")

// Backup writes the database as it is at one moment to a new file, while others go on writing. The file is the
// caller's alone from its first moment, and on the disk when Backup returns. A path at which something is, a link
// included, is refused.
func (s *Store) Backup(ctx context.Context, path string) (err error) {
	// An absolute path is never taken for a URI.
	if path, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("cannot make a backup: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make a backup: %w", err)
	}
	replaced := false
	defer func() {
		file.Close()
		if err != nil && !replaced {
			os.Remove(path)
		}
	}()
	// SQLite fills the empty file that it finds.
	if _, err := s.db.ExecContext(ctx, `VACUUM INTO ?`, path); err != nil {
		return fmt.Errorf("cannot make a backup in %s: %w", path, told(err))
	}
	written, err := file.Stat()
	if err != nil {
		return fmt.Errorf("cannot make a backup: %w", err)
	}
	now, err := os.Lstat(path)
	if err != nil || written.Size() == 0 || !os.SameFile(written, now) {
		replaced = true
		return fmt.Errorf("cannot make a backup: somebody else put another file at %s", path)
	}
	// SQLite leaves it to the system when the copy reaches the disk.
	if err := file.Sync(); err != nil {
		return fmt.Errorf("cannot make a backup in %s: %w", path, err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("cannot make a backup in %s: %w", path, err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("cannot make a backup in %s: %w", path, err)
	}
	return nil
}

// Check reads the whole database, and fails with ErrDamaged when its pages, its indexes or its references are not whole.
func (s *Store) Check(ctx context.Context) error {
	found, err := collect(ctx, s.db, scanText, `PRAGMA integrity_check(20)`)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(found) != 1 || found[0] != "ok" {
		return fmt.Errorf("%w (integrity_check): %s", ErrDamaged, strings.Join(found, "; "))
	}
	found, err = collect(ctx, s.db, func(rows *sql.Rows) (string, error) {
		var table, to string
		var row sql.NullInt64
		var key int
		err := rows.Scan(&table, &row, &to, &key)
		return fmt.Sprintf("row %d of %s refers to a row of %s that is not there", row.Int64, table, to), err
	}, `PRAGMA foreign_key_check`)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%w (foreign_key_check): %s", ErrDamaged, strings.Join(found[:min(len(found), 20)], "; "))
	}
	return nil
}
