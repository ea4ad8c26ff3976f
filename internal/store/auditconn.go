package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// AuditConn is a connection that appends to the audit. What it has committed survives a loss of power, too: it syncs the
// write-ahead log with each commit, and with that all that anybody wrote into it before. It never moves that log into the
// database while somebody waits for a commit, which takes ten times as long as one: who appends much calls Checkpoint. It is
// safe for concurrent use, one caller after the other.
type AuditConn struct {
	store *Store

	mu     sync.Mutex
	conn   *sql.Conn // nil until it is needed, and after a failure
	last   *sql.Stmt
	insert *sql.Stmt
}

// autoCheckpoint is SQLite's own, in pages, which all other connections have.
const autoCheckpoint = 1000

// AuditConn gives a new connection; it is made with the first Append.
func (s *Store) AuditConn() *AuditConn { return &AuditConn{store: s} }

// Append adds groups of rows in one transaction, each group all or none. link gives a row its number and what it hangs
// on; no other process adds any meanwhile. The errors are those of single groups, nil for those that were written; if the
// last one is not nil, nothing was written, or it is not known whether.
func (c *AuditConn) Append(ctx context.Context, groups [][]AuditRecord, link func(r *AuditRecord, seq int64, prev string)) ([]error, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	errs, err := c.append(ctx, groups, link)
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("cannot write to the audit: %w", err)
	}
	return errs, nil
}

func (c *AuditConn) append(ctx context.Context, groups [][]AuditRecord, link func(r *AuditRecord, seq int64, prev string)) ([]error, error) {
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	done, err := c.store.write(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := c.conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return nil, err
	}
	var seq int64
	var hash string
	if err := c.last.QueryRowContext(ctx).Scan(&seq, &hash); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	errs := make([]error, len(groups))
	for i, group := range groups {
		before, beforeHash := seq, hash
		if len(group) > 1 {
			if _, err := c.conn.ExecContext(ctx, `SAVEPOINT audit_group`); err != nil {
				return nil, err
			}
		}
		for j := range group {
			r := &group[j]
			link(r, seq+1, hash)
			_, err := c.insert.ExecContext(ctx, r.Seq, r.Time.UnixMilli(), r.Action, r.Object, string(r.Decision), r.RunID, r.SandboxID,
				r.Rule, r.Reason, string(r.Detail), r.Count, r.Prev, r.Hash, r.Caller)
			if err != nil && !aboutOneRow(err) {
				return nil, err
			}
			if err != nil {
				errs[i] = fmt.Errorf("the audit does not take this row of %q: %w", r.Action, err)
				break
			}
			seq, hash = r.Seq, r.Hash
		}
		if errs[i] != nil {
			seq, hash = before, beforeHash
		}
		if len(group) > 1 {
			end := `RELEASE audit_group`
			if errs[i] != nil {
				end = `ROLLBACK TO audit_group; ` + end
			}
			if _, err := c.conn.ExecContext(ctx, end); err != nil {
				return nil, err
			}
		}
	}
	// Nobody's impatience makes it unknown whether this was done.
	if _, err := c.conn.ExecContext(context.WithoutCancel(ctx), `COMMIT`); err != nil {
		return nil, err
	}
	return errs, nil
}

// Checkpoint moves the write-ahead log into the database, as far as nobody reads what was before.
func (c *AuditConn) Checkpoint(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(ctx); err != nil {
		return fmt.Errorf("cannot write the database's log into it: %w", err)
	}
	if _, err := c.conn.ExecContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`); err != nil {
		c.discard()
		return fmt.Errorf("cannot write the database's log into it: %w", told(err))
	}
	return nil
}

// aboutOneRow tells a row that the table refuses from a database that cannot be written. Only the statement was undone.
func aboutOneRow(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return true
	}
	return false
}

func (c *AuditConn) open(ctx context.Context) (err error) {
	if c.conn != nil {
		return nil
	}
	if c.conn, err = c.store.db.Conn(ctx); err != nil {
		return err
	}
	if _, err = c.conn.ExecContext(ctx, `PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0`); err != nil {
		return err
	}
	if c.last, err = c.conn.PrepareContext(ctx, `SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1`); err != nil {
		return err
	}
	c.insert, err = c.conn.PrepareContext(ctx, `INSERT INTO audit (`+auditColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	return err
}

// discard closes the connection for good, and with it an open transaction.
func (c *AuditConn) discard() {
	if c.conn == nil {
		return
	}
	c.statements()
	// That is how a connection is kept from going back to the others.
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
	c.conn = nil
}

func (c *AuditConn) statements() {
	for _, s := range []**sql.Stmt{&c.last, &c.insert} {
		if *s != nil {
			(*s).Close()
			*s = nil
		}
	}
}

// Close gives the connection back to the store.
func (c *AuditConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	if _, err := c.conn.ExecContext(context.Background(), fmt.Sprintf(`PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = %d`, autoCheckpoint)); err != nil {
		c.discard()
		return nil // a new one takes its place
	}
	c.statements()
	err := c.conn.Close()
	c.conn = nil
	return err
}

// Dir is the directory of the database.
func (s *Store) Dir(ctx context.Context) (string, error) {
	if dir := s.dir.Load(); dir != nil {
		return *dir, nil
	}
	found, err := collect(ctx, s.reads, func(rows *sql.Rows) (path string, err error) {
		var n int64
		var name string
		return path, rows.Scan(&n, &name, &path)
	}, `PRAGMA database_list`)
	if err != nil {
		return "", err
	}
	if len(found) == 0 || found[0] == "" {
		return "", errors.New("cannot read the database: it has no file")
	}
	dir := filepath.Dir(found[0])
	s.dir.Store(&dir) // it never changes
	return dir, nil
}
