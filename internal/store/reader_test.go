package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Many at once share a few connections, and each sees what was written before it asked.
func TestReadersAtOnce(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	task, err := s.InsertTask(ctx, Task{Title: "one"})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 * mostReaders {
		all.Go(func() {
			for range 20 {
				if got, err := s.Task(ctx, task.ID); err != nil || got.Title != "one" {
					t.Errorf("%+v, %v", got, err)
				}
			}
		})
	}
	all.Wait()
	stats := s.reads.db.Stats()
	if stats.OpenConnections > mostReaders || stats.InUse != 0 || stats.MaxIdleClosed != 0 {
		t.Errorf("connections: %+v", stats)
	}
	for i := range 20 {
		title := fmt.Sprint(i)
		if _, err := s.UpdateTask(ctx, task.ID, func(t *Task) error { t.Title = title; return nil }); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Task(ctx, task.ID); err != nil || got.Title != title {
			t.Fatalf("written %q, read %q, %v", title, got.Title, err)
		}
	}
}

// A connection that reads writes nothing, whatever it is asked.
func TestReadersDoNotWrite(t *testing.T) {
	s := newStore(t)
	if _, err := s.InsertTask(t.Context(), Task{Title: "one"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reads.db.ExecContext(t.Context(), `UPDATE tasks SET title = 'another'`); err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("it wrote: %v", err)
	}
}

// Statements stay prepared, up to a bound, and follow a schema that another process changed.
func TestPreparedStatements(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for i := range mostPrepared + 50 {
		if n, err := number(ctx, s.reads, fmt.Sprintf(`SELECT %d + ?`, i), 1); err != nil || n != int64(i+1) {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if n := len(s.reads.prepared); n != mostPrepared {
		t.Errorf("%d statements stay prepared", n)
	}
	s = newStore(t)
	count := func() (int64, error) { return number(ctx, s.reads, `SELECT count(*) FROM beside`) }
	if _, err := count(); err == nil {
		t.Error("a table that is not there was read")
	}
	for _, change := range []string{`CREATE TABLE beside (a)`, `INSERT INTO beside VALUES (1)`, `ALTER TABLE beside ADD COLUMN b`, `DROP TABLE beside`, `CREATE TABLE beside (c)`} {
		if _, err := s.db.ExecContext(ctx, change); err != nil {
			t.Fatal(err)
		}
		n, err := count()
		if gone := strings.HasPrefix(change, "DROP"); gone != (err != nil) || n > 1 {
			t.Errorf("after %s: %d, %v", change, n, err)
		}
	}
}

// Who is impatient does not wait for a connection.
func TestReaderIsLeft(t *testing.T) {
	s := newStore(t)
	var held []interface{ Close() error }
	for range s.reads.db.Stats().MaxOpenConnections {
		c, err := s.reads.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ListTasks(ctx, TaskFilter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Task(ctx, "tsk"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for _, c := range held {
		c.Close()
	}
	if _, err := s.ListTasks(t.Context(), TaskFilter{}); err != nil {
		t.Error(err)
	}
}
