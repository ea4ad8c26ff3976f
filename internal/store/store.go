// Package store is the record of what Ravi made: sandboxes and runs, in one SQLite database, ravi.db in the home
// directory. A thing is recorded before it is made, so that a sweep can find what a crash left behind.
//
// Many processes use the database side by side. Each write is one short BEGIN IMMEDIATE transaction, which waits its
// turn; nobody holds a lock for a lifetime. The schema moves forward only: a database that a newer ravi wrote is
// refused, never guessed at.
//
// Durability: WAL with synchronous=NORMAL. A record survives any crash of any process, kill -9 included. The last
// moments may be lost when the power goes, and then the processes that they described are gone as well.
//
// Times are stored as Unix milliseconds (they compare and sort as numbers), and are UTC in Go.
//
// The package touches ravi.db, its -wal and -shm files and ravi.lock, nothing else. It knows nothing of the command
// line or of HTTP, and decides nothing: what a state means for the world is its callers' business.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver, pure Go
)

var (
	// ErrNotFound says that no record has this id or begins with it.
	ErrNotFound = errors.New("not found")
	// ErrAmbiguous says that more than one record begins with this id.
	ErrAmbiguous = errors.New("ambiguous")
	// ErrNewerSchema says that a newer ravi wrote this database.
	ErrNewerSchema = errors.New("the database was written by a newer ravi")
	// ErrFinal refuses to bring back to life what has ended.
	ErrFinal = errors.New("it has ended")
)

//go:embed migrations/*.sql
var migrations embed.FS

// File is the database's name in the home directory.
const File = "ravi.db"

// Store is an open database. It is safe for concurrent use.
type Store struct {
	db *sql.DB
}

// Open opens the database in home, and brings its schema up to date.
func Open(ctx context.Context, home string) (*Store, error) {
	sources, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return open(ctx, home, sources)
}

func open(ctx context.Context, home string, sources fs.FS) (_ *Store, err error) {
	path := filepath.Join(home, File)
	newest, err := newestVersion(sources)
	if err != nil {
		return nil, err
	}
	// Who opens an up-to-date database shares the lock; who makes or migrates one is alone. Without it two first
	// processes would race to switch the new file to WAL, which SQLite answers with "locked" at once.
	lock, err := takeLock(ctx, filepath.Join(home, "ravi.lock"), syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer func() { lock.Close() }()
	if info, statErr := os.Stat(path); statErr == nil && info.Size() > 0 {
		s, version, err := connect(ctx, path)
		if err != nil {
			return nil, err
		}
		if version == newest {
			return s, nil
		}
		s.Close()
		if version > newest {
			return nil, fmt.Errorf("%s: %w (schema %d, this ravi knows %d)", path, ErrNewerSchema, version, newest)
		}
	}
	lock.Close()
	if lock, err = takeLock(ctx, filepath.Join(home, "ravi.lock"), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	// SQLite would create the file readable to others; its -wal and -shm take over the mode of the file.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database: %w", err)
	}
	file.Close()
	s, version, err := connect(ctx, path)
	if err != nil {
		return nil, err
	}
	if version < newest {
		err = migrate(ctx, s.db, sources)
	} else if version > newest {
		err = fmt.Errorf("%s: %w (schema %d, this ravi knows %d)", path, ErrNewerSchema, version, newest)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// connect opens the file and reads its schema version, 0 for a new one.
func connect(ctx context.Context, path string) (*Store, int64, error) {
	query := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(20000)", "journal_mode(WAL)", "synchronous(NORMAL)", "foreign_keys(ON)"},
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}).String())
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	var version sql.NullInt64
	var tables int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'goose_db_version'`).Scan(&tables)
	if err == nil && tables > 0 {
		err = db.QueryRowContext(ctx, `SELECT max(version_id) FROM goose_db_version WHERE is_applied`).Scan(&version)
	}
	if err != nil {
		db.Close()
		return nil, 0, fmt.Errorf("cannot read the database %s: %w", path, err)
	}
	return &Store{db: db}, version.Int64, nil
}

func migrate(ctx context.Context, db *sql.DB, sources fs.FS) error {
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, sources)
	if err != nil {
		return fmt.Errorf("cannot read the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("cannot bring the database up to date: %w", err)
	}
	return nil
}

// newestVersion is the number that the last migration's file name begins with.
func newestVersion(sources fs.FS) (int64, error) {
	names, err := fs.Glob(sources, "*.sql")
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("no migrations: %w", err)
	}
	return goose.NumericComponent(names[len(names)-1])
}

// takeLock waits for the lock on a file, which ends with the process that holds it.
func takeLock(ctx context.Context, path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database's lock: %w", err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("waiting for another ravi to release %s: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}

// Close ends the use of the database.
func (s *Store) Close() error { return s.db.Close() }

// tx runs f in one transaction that holds the write lock from its start, so what f read is still so when it writes.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("cannot write to the database: %w", err)
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("cannot write to the database: %w", err)
	}
	return nil
}

// NewSandboxID and NewRunID make ids that sort by time and are letters and digits only.
func NewSandboxID() string { return "sbx" + strings.ToLower(ulid.Make().String()) }

// NewRunID makes the id of a run.
func NewRunID() string { return "run" + strings.ToLower(ulid.Make().String()) }

// Now is the present in the precision that the database keeps.
func Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// millis is how a time that may be missing is stored.
func millis(t *time.Time) sql.NullInt64 {
	if t == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: t.UnixMilli(), Valid: true}
}

func fromMillis(n sql.NullInt64) *time.Time {
	if !n.Valid {
		return nil
	}
	t := time.UnixMilli(n.Int64).UTC()
	return &t
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect runs a query and scans each row.
func collect[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("cannot read the database: %w", err)
	}
	defer rows.Close()
	out := []T{}
	for rows.Next() {
		item, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("cannot read the database: %w", err)
		}
		out = append(out, item)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the database: %w", err)
	}
	return out, nil
}

// one picks the record that an id or its beginning names. A full id wins over being another's beginning.
func one[T any](found []T, id func(T) string, what, wanted string) (T, error) {
	var none T
	for _, item := range found {
		if id(item) == wanted {
			return item, nil
		}
	}
	switch len(found) {
	case 0:
		return none, fmt.Errorf("%s %q: %w", what, wanted, ErrNotFound)
	case 1:
		return found[0], nil
	}
	return none, fmt.Errorf("%s %q: %w: it could be %s or %s", what, wanted, ErrAmbiguous, id(found[0]), id(found[1]))
}

// beginsWith is the half-open range of ids that begin with prefix: an index serves it, and nothing in it is a
// pattern. Ids are ASCII, so the byte after the last possible one closes the range.
func beginsWith(prefix string) (from, to string) { return prefix, prefix + "\x7f" }
