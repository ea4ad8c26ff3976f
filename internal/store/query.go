package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

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

// few is collect for queries that find a few rows by an index. It does not begin when ctx has ended, but is not broken off
// either: for that the driver and database/sql start a goroutine each, which take longer than such a query.
func few[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the database: %w", err)
	}
	return collect(context.WithoutCancel(ctx), q, scan, query, args...)
}

// scanNumber and scanText read rows of one column.
func scanNumber(rows *sql.Rows) (int64, error) {
	var n int64
	err := rows.Scan(&n)
	return n, err
}

func scanText(rows *sql.Rows) (string, error) {
	var text string
	err := rows.Scan(&text)
	return text, err
}

// number reads the one number that a query asks for, 0 when there is no row.
func number(ctx context.Context, q querier, query string, args ...any) (int64, error) {
	found, err := collect(ctx, q, scanNumber, query, args...)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0], nil
}

// table is how records of one kind are stored.
type table[T any] struct {
	name, what string // in SQL, and for people
	columns    string // the id first
	order      string // of lists, the newest first
	args       func(*T) ([]any, error)
	scan       func(*sql.Rows) (T, error)
	id         func(T) string
}

// insert adds a record.
func (t table[T]) insert(ctx context.Context, tx *sql.Tx, record *T) error {
	args, err := t.args(record)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO `+t.name+` (`+t.columns+`) VALUES (`+marks(len(args))+`)`, args...)
	return t.failed(*record, err)
}

// set stores a record that is there, whole. The id is left out: to set it, to what it is, would have SQLite look at
// every row that refers to it.
func (t table[T]) set(ctx context.Context, tx *sql.Tx, record *T) error {
	args, err := t.args(record)
	if err != nil {
		return err
	}
	rest := strings.TrimPrefix(t.columns, "id, ")
	_, err = tx.ExecContext(ctx, `UPDATE `+t.name+` SET (`+rest+`) = (`+marks(len(args)-1)+`) WHERE id = ?`, append(args[1:], args[0])...)
	return t.failed(*record, err)
}

// update stores a record unless it is as it was: its args before somebody changed it, who may have changed it in place.
func (t table[T]) update(ctx context.Context, tx *sql.Tx, was []any, record *T) (changed bool, err error) {
	is, err := t.args(record)
	if err != nil || slices.Equal(was, is) {
		return false, err
	}
	err = t.set(ctx, tx, record)
	return err == nil, err
}

func (t table[T]) failed(record T, err error) error {
	var refused *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && (refused.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || refused.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
		return fmt.Errorf("cannot record %s %s: %w: %w", t.what, t.id(record), ErrExists, err)
	}
	return fmt.Errorf("cannot record %s %s: %w", t.what, t.id(record), err)
}

// get finds the record with this full id.
func (t table[T]) get(ctx context.Context, q querier, id string) (T, error) {
	found, err := few(ctx, q, t.scan, `SELECT `+t.columns+` FROM `+t.name+` WHERE id = ?`, id)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s %q: %w", t.what, id, ErrNotFound)
	}
	if err != nil {
		var none T
		return none, err
	}
	return found[0], nil
}

// find finds the record with this id, or with this name where records have names, or the only one whose id begins so.
func (t table[T]) find(ctx context.Context, q querier, wanted, byName string) (T, error) {
	var none T
	if wanted == "" {
		return none, fmt.Errorf("%s %q: %w", t.what, wanted, ErrNotFound)
	}
	from, to := beginsWith(wanted)
	found, err := few(ctx, q, t.scan, `SELECT `+t.columns+` FROM `+t.name+` WHERE id >= ? AND id < ? ORDER BY id LIMIT 2`, from, to)
	if err != nil {
		return none, err
	}
	if byName != "" && (len(found) == 0 || t.id(found[0]) != wanted) {
		named, err := few(ctx, q, t.scan, `SELECT `+t.columns+` FROM `+t.name+` WHERE `+byName, wanted)
		if err != nil {
			return none, err
		}
		if len(named) > 0 {
			return named[0], nil
		}
	}
	return one(found, t.id, t.what, wanted)
}

// list gives the chosen records, the newest first. A page begins after the record with the id before.
func (t table[T]) list(ctx context.Context, q querier, c choice, before string, limit int) ([]T, error) {
	if before != "" {
		if _, err := t.get(ctx, q, before); err != nil {
			return nil, err
		}
		key := strings.ReplaceAll(t.order, " DESC", "")
		c.add(true, `(`+key+`) < (SELECT `+key+` FROM `+t.name+` WHERE id = ?)`, before)
	}
	query := `SELECT ` + t.columns + ` FROM ` + t.name + c.where() + ` ORDER BY ` + t.order
	if limit > 0 {
		query += ` LIMIT ?`
		c.args = append(c.args, limit)
	}
	return collect(ctx, q, t.scan, query, c.args...)
}

// count says how many records are chosen.
func (t table[T]) count(ctx context.Context, q querier, c choice) (int, error) {
	n, err := number(ctx, q, `SELECT count(*) FROM `+t.name+c.where(), c.args...)
	return int(n), err
}

// byPlace is the order of most lists: the last that came is the first, whatever the clock said.
const byPlace = `place DESC`

// choice is the condition of a list.
type choice struct {
	conditions []string
	args       []any
}

func (c *choice) add(chosen bool, condition string, args ...any) {
	if chosen {
		c.conditions, c.args = append(c.conditions, condition), append(c.args, args...)
	}
}

// is asks for a value, if there is one.
func (c *choice) is(column, value string) { c.add(value != "", column+` = ?`, value) }

// among asks for one of these values. None at all chooses nothing, nil chooses everything.
func (c *choice) among(column string, values []string) {
	if values == nil {
		return
	}
	list, err := json.Marshal(values)
	if err != nil { // strings always become JSON
		panic(err)
	}
	c.add(true, column+` IN (SELECT value FROM json_each(?))`, string(list))
}

// anyOf asks for one of these values, or for one that begins like a value with * behind it, in any of the columns.
func (c *choice) anyOf(values []string, columns ...string) {
	whole, open := []string{}, []string{}
	for _, v := range values {
		switch start, begins := strings.CutSuffix(v, "*"); {
		case start == "": // what a column holds that holds nothing
		case begins:
			open = append(open, start)
		default:
			whole = append(whole, v)
		}
	}
	list, err := json.Marshal(whole)
	if err != nil { // strings always become JSON
		panic(err)
	}
	var terms []string
	var args []any
	for _, column := range columns {
		terms, args = append(terms, column+` IN (SELECT value FROM json_each(?))`), append(args, string(list))
		for _, start := range open {
			from, to := beginsWith(start)
			terms, args = append(terms, column+` >= ? AND `+column+` < ?`), append(args, from, to)
		}
	}
	c.add(true, `(`+strings.Join(terms, ` OR `)+`)`, args...)
}

func (c *choice) where() string {
	if len(c.conditions) == 0 {
		return ""
	}
	return ` WHERE ` + strings.Join(c.conditions, ` AND `)
}

// marks are the places of n values.
func marks(n int) string { return strings.Repeat("?, ", n-1) + "?" }

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

// needs refuses what would belong to something that is not there.
func needs(ctx context.Context, tx *sql.Tx, table, what, id string) error {
	n, err := number(ctx, tx, `SELECT count(*) FROM `+table+` WHERE id = ?`, id)
	if err == nil && n == 0 {
		err = fmt.Errorf("%s %q: %w", what, id, ErrNotFound)
	}
	return err
}

// toJSON is a list as it is stored; nil becomes the empty one, here and in the record.
func toJSON(list *[]string) (string, error) {
	if *list == nil {
		*list = []string{}
	}
	text, err := json.Marshal(*list)
	return string(text), err
}

func fromJSON[T any](text string, into *T) error { return json.Unmarshal([]byte(text), into) }

// orNull is a text that refers to a row, or to none.
func orNull(id string) sql.NullString { return sql.NullString{String: id, Valid: id != ""} }
