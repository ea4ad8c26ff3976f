package store

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Schema is how far a database is: what it has, and what this ravi would make of it.
type Schema struct{ Has, Knows int64 }

// Look opens the database of a home to read it as it is: it is neither made nor migrated, and nothing can be written.
// Where there is none the error is fs.ErrNotExist. What was written before a crash SQLite may move from its log to its
// file, as with any other reader.
func Look(ctx context.Context, home string) (*Store, Schema, error) {
	var schema Schema
	sources, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, schema, err
	}
	if schema.Knows, err = newestVersion(sources); err != nil {
		return nil, schema, err
	}
	path := filepath.Join(home, File)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, schema, err
	}
	if !info.Mode().IsRegular() {
		return nil, schema, fmt.Errorf("the database %s is not a file", path)
	}
	query := url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(5000)", "query_only(ON)"}}
	source := (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}).String()
	db, err := sql.Open("sqlite", source)
	if err != nil {
		return nil, schema, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	s := &Store{db: db, reads: newReader(db), writing: make(chan struct{}, 1)}
	var tables int64
	if tables, err = number(ctx, db, `SELECT count(*) FROM sqlite_schema WHERE name = 'goose_db_version'`); err == nil && tables > 0 {
		schema.Has, err = number(ctx, db, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`)
	}
	if err != nil {
		s.Close()
		return nil, schema, fmt.Errorf("cannot read the database %s: %w", path, err)
	}
	return s, schema, nil
}

// QuickCheck reads all pages of the database, and fails with ErrDamaged when they are not whole. Indexes are not compared
// with what they are of: Check does that.
func (s *Store) QuickCheck(ctx context.Context) error {
	found, err := collect(ctx, s.reads, scanText, `PRAGMA quick_check(20)`)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(found) != 1 || found[0] != "ok" {
		return fmt.Errorf("%w (quick_check): %s", ErrDamaged, strings.Join(found, "; "))
	}
	return nil
}

// Newest is when the newest event and the newest row of the audit were written; zero if there are none.
func (s *Store) Newest(ctx context.Context) (time.Time, error) {
	n, err := number(ctx, s.reads, `SELECT max(coalesce((SELECT time FROM events ORDER BY seq DESC LIMIT 1), 0),
		coalesce((SELECT time FROM audit ORDER BY seq DESC LIMIT 1), 0))`)
	if err != nil || n == 0 {
		return time.Time{}, err
	}
	return fromMilli(n), nil
}
