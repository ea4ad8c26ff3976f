package store

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"sync"
)

// reader reads with a few connections that stay open, and with statements that stay prepared: to open a connection, and
// to have SQLite read a statement, takes many times as long as most reads. Who comes when all connections are in use waits;
// so a query's rows are read to their end, and nothing else is asked for meanwhile (collect does that).
type reader struct {
	db   *sql.DB
	most int // statements

	mu       sync.Mutex
	prepared map[string]*sql.Stmt
}

const (
	// leastReaders and mostReaders bound the connections. More than there are processors gain nothing, but for a few that
	// wait for the disk.
	leastReaders, mostReaders = 4, 16
	// mostPrepared bounds the statements. There are as many as there are queries in this package, with each choice of
	// filters; beyond that they are prepared each time.
	mostPrepared = 256
)

func newReader(db *sql.DB) *reader {
	n := min(max(leastReaders, 2*runtime.GOMAXPROCS(0)), mostReaders)
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return &reader{db: db, most: mostPrepared, prepared: map[string]*sql.Stmt{}}
}

// QueryContext implements querier.
func (r *reader) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := r.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	if stmt == nil {
		return r.db.QueryContext(ctx, query, args...)
	}
	return stmt.QueryContext(ctx, args...)
}

// statement is the prepared statement of a query, nil if there are too many.
func (r *reader) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	r.mu.Lock()
	stmt, full := r.prepared[query], len(r.prepared) >= r.most
	r.mu.Unlock()
	if stmt != nil || full {
		return stmt, nil
	}
	stmt, err := r.db.PrepareContext(ctx, query) // may wait for a connection, so without the lock
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.prepared[query]; other != nil {
		return other, stmt.Close()
	}
	r.prepared[query] = stmt
	return stmt, nil
}

func (r *reader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for query, stmt := range r.prepared {
		errs = append(errs, stmt.Close())
		delete(r.prepared, query)
	}
	return errors.Join(append(errs, r.db.Close())...)
}
