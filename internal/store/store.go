// Package store is the record of what Ravi made and was told: sandboxes and runs, agents with their sessions, memory
// and tasks, context keys, the audit. All of it is in one SQLite database, ravi.db in the home directory. A thing is recorded before it is made, so that a sweep can find what a crash left behind.
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite" // the driver, pure Go
	sqlite3 "modernc.org/sqlite/lib"

	"ravi/internal/filelock"
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
	// ErrExists says that another has this name, or stands where this would be.
	ErrExists = errors.New("it exists already")
	// ErrInvalid refuses what no record may hold.
	ErrInvalid = errors.New("not allowed")
	// ErrTooLarge refuses what is larger than its record may be.
	ErrTooLarge = errors.New("too large")
	// ErrInUse refuses to remove what others name.
	ErrInUse = errors.New("in use")
	// ErrDiskFull says that the disk has no room for what was to be written. Nothing of it was.
	ErrDiskFull = errors.New("the disk is full")
)

//go:embed migrations/*.sql
var migrations embed.FS

// File is the database's name in the home directory.
const File = "ravi.db"

// Store is an open database. It is safe for concurrent use.
type Store struct {
	db    *sql.DB // what is written, and what is read for that
	reads *reader // all else that is read
	dir   atomic.Pointer[string]
	// writing holds a value while somebody in this process writes. SQLite has one writer, and whoever finds another one
	// there sleeps for milliseconds before looking again; here the next one goes on at once.
	writing chan struct{}
}

// write waits until nobody else in this process writes. done lets the next one.
func (s *Store) write(ctx context.Context) (done func(), err error) {
	select {
	case s.writing <- struct{}{}:
		return func() { <-s.writing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
	pragmas := []string{"busy_timeout(20000)", "journal_mode(WAL)", "synchronous(NORMAL)", "foreign_keys(ON)"}
	db, err := pool(path, pragmas...)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	reads, err := pool(path, append(pragmas, "query_only(ON)")...)
	if err != nil {
		db.Close()
		return nil, 0, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	s := &Store{db: db, reads: newReader(reads), writing: make(chan struct{}, 1)}
	var version sql.NullInt64
	var tables int
	err = reads.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'goose_db_version'`).Scan(&tables)
	if err == nil && tables > 0 {
		err = reads.QueryRowContext(ctx, `SELECT max(version_id) FROM goose_db_version WHERE is_applied`).Scan(&version)
	}
	if err != nil {
		s.Close()
		return nil, 0, fmt.Errorf("cannot read the database %s: %w", path, err)
	}
	return s, version.Int64, nil
}

// pool gives connections to the file; none is made yet.
func pool(path string, pragmas ...string) (*sql.DB, error) {
	query := url.Values{"_txlock": {"immediate"}, "_pragma": pragmas}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}).String())
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
	if err := filelock.Wait(ctx, file, how, 5*time.Millisecond, nil); err != nil {
		file.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("waiting for another ravi to release %s: %w", path, err)
		}
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return file, nil
}

// Close ends the use of the database.
func (s *Store) Close() error { return errors.Join(s.reads.close(), s.db.Close()) }

// tx runs f in one transaction that holds the write lock from its start, so what f read is still so when it writes.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	done, err := s.write(ctx)
	if err != nil {
		return fmt.Errorf("cannot write to the database: %w", err)
	}
	defer done()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("cannot write to the database: %w", err)
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return told(err)
	}
	if err := tx.Commit(); err != nil {
		return told(fmt.Errorf("cannot write to the database: %w", err))
	}
	return nil
}

// told says of an error what people can mend.
func told(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_FULL || e.Code() == sqlite3.SQLITE_IOERR_SHMSIZE) {
		return fmt.Errorf("%w, free some of it: %w", ErrDiskFull, err)
	}
	return err
}

// newID makes ids that sort by time and are letters and digits only.
func newID(kind string) string { return kind + strings.ToLower(ulid.Make().String()) }

// NewSandboxID makes the id of a sandbox.
func NewSandboxID() string { return newID("sbx") }

// NewRunID makes the id of a run.
func NewRunID() string { return newID("run") }

// Now is the present in the precision that the database keeps.
func Now() time.Time { return inMillis(time.Now()) }

func inMillis(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

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
	t := fromMilli(n.Int64)
	return &t
}

func fromMilli(n int64) time.Time { return time.UnixMilli(n).UTC() }
