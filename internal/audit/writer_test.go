package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ravi/internal/store"
)

func newWriter(t *testing.T) (*Writer, Log) {
	t.Helper()
	l, _ := newLog(t)
	w := NewWriter(l)
	t.Cleanup(func() { w.Close() })
	return w, l
}

func count(t *testing.T, l Log, f Filter) int64 {
	t.Helper()
	var n int64
	for {
		rows, err := l.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			return n
		}
		for _, r := range rows {
			n, f.After = n+r.Count, r.Seq
		}
	}
}

// Of many rows at once the bad ones are refused, and none else. Those that this package sees to be bad and those that
// only the table does.
func TestBadRowsAlone(t *testing.T) {
	w, l := newWriter(t)
	deep := json.RawMessage(strings.Repeat("[", 1500) + strings.Repeat("]", 1500)) // SQLite goes 1000 deep
	if !json.Valid(deep) {
		t.Fatal("it is refused before")
	}
	var wait sync.WaitGroup
	for i := range 200 {
		r := Record{Caller: Operator, Action: NetworkName, Object: fmt.Sprint(i), Decision: store.Denied}
		if i%4 == 1 {
			r.Detail = deep
		} else if i%4 == 3 {
			r.Decision = "perhaps"
		}
		records := []Record{r}
		if i%8 < 4 { // two, all or none
			records = []Record{{Action: NetworkName, Decision: store.Allowed, Object: r.Object}, r}
		}
		wait.Go(func() {
			if err := w.Append(t.Context(), records...); (err != nil) != (i%2 == 1) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wait.Wait()
	if n := count(t, l, Filter{}); n != 150 {
		t.Errorf("%d rows", n)
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}

func TestCloseDrains(t *testing.T) {
	w, l := newWriter(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	good := map[string]bool{}
	some := make(chan struct{}, 100)
	for i := range 100 {
		wait.Go(func() {
			object := fmt.Sprint(i)
			err := w.Append(t.Context(), Record{Action: NetworkName, Object: object, Decision: store.Denied})
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			mu.Lock()
			good[object] = err == nil
			mu.Unlock()
			some <- struct{}{}
		})
	}
	<-some
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	wait.Wait()
	rows, err := l.List(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for object, written := range good {
		if written {
			n++
		}
		_ = object
	}
	if n != len(rows) || n == 0 {
		t.Errorf("%d were acknowledged, %d are there", n, len(rows))
	}
	for _, r := range rows {
		if !good[r.Object] {
			t.Errorf("%s was refused, and is there", r.Object)
		}
	}
	for _, err := range []error{w.Append(t.Context(), Record{Action: "a", Decision: store.Denied}), w.Denied(t.Context(), Record{Action: "a"})} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestAppendOfTheImpatient(t *testing.T) {
	w, l := newWriter(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Append(ctx, Record{Action: "a", Decision: store.Denied}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := w.Append(t.Context()); err != nil {
		t.Errorf("nothing: %v", err)
	}
	if err := w.Close(); err != nil { // so that nothing is still on its way
		t.Error(err)
	}
	if n := count(t, l, Filter{}); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// Without its head a row is not acknowledged; when the head can be written again, it goes on.
func TestHeadCannotBeWritten(t *testing.T) {
	l, home := newLog(t)
	l.Head = filepath.Join(home, "other", "head")
	w := NewWriter(l)
	defer w.Close()
	r := Record{Action: "a", Decision: store.Denied}
	for _, err := range []error{w.Append(t.Context(), r), l.Append(t.Context(), r)} {
		if err == nil || !strings.Contains(err.Error(), "the audit's head") {
			t.Errorf("got %v", err)
		}
	}
	if err := os.Mkdir(filepath.Dir(l.Head), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), r); err != nil {
		t.Error(err)
	}
	report, err := l.Verify(t.Context(), nil)
	if err != nil || report.Rows != 4 || report.Head.Seq != 4 || report.Begun != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// Denials that are alike share a row, of a million some are stored, and none is forgotten.
func TestFloodOfDenials(t *testing.T) {
	w, l := newWriter(t)
	const alike, objects = 100_000, 1000
	r := Record{Caller: "ctx_a", Action: "command.tasks.show", Reason: "read:tasks is missing"}
	for i := range alike {
		r.Object = fmt.Sprint("tsk", i%objects)
		if err := w.Denied(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	// Reasons that callers make up.
	const apart, actions = 5000, 3
	for i := range apart {
		if err := w.Denied(t.Context(), Record{Caller: "ctx_b", Action: fmt.Sprint("command.x", i%actions), Reason: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Denied(t.Context(), Record{Caller: "ctx_c", Action: "command.tasks.show", Reason: "read:tasks is missing", Object: "o"}); err != nil {
		t.Fatal(err)
	}
	before, err := l.List(t.Context(), Filter{Caller: "ctx_a"})
	if err != nil || len(before) != mostAlike {
		t.Errorf("%d rows of their own, %v", len(before), err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for caller, want := range map[string]struct{ rows, count int }{"ctx_a": {mostAlike + 1, alike}, "ctx_b": {mostApart + actions, apart}, "ctx_c": {1, 1}} {
		rows, err := l.List(t.Context(), Filter{Caller: caller})
		if n := count(t, l, Filter{Caller: caller}); err != nil || len(rows) != want.rows || n != int64(want.count) {
			t.Errorf("%s: %d rows for %d denials, %v; want %+v", caller, len(rows), n, err, want)
		}
		for _, r := range rows {
			if r.Decision != store.Denied {
				t.Errorf("%+v", r)
			}
		}
	}
	rows, err := l.List(t.Context(), Filter{Caller: "ctx_a", Newest: true, Limit: 1})
	if err != nil || rows[0].Count != alike-mostAlike || rows[0].Reason != r.Reason || !strings.HasSuffix(rows[0].Object, "and others") || !strings.Contains(string(rows[0].Detail), `"counted":true`) {
		t.Errorf("%+v %s, %v", rows, rows[0].Detail, err)
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}

// What was counted and cannot be written is told to those who are denied next, and stays counted.
func TestFloodCannotBeWritten(t *testing.T) {
	l, home := newLog(t)
	w := NewWriter(l)
	defer w.Close()
	r := Record{Caller: "ctx_a", Action: "command.tasks.show"}
	for range mostAlike + 5 {
		if err := w.Denied(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	db := raw(t, home)
	if _, err := db.Exec(`ALTER TABLE audit RENAME TO hidden`); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(false); err == nil {
		t.Error("was written")
	}
	if err := w.Denied(t.Context(), r); err == nil || !strings.Contains(err.Error(), "cannot write to the audit") {
		t.Errorf("the next one hears %v", err)
	}
	if _, err := db.Exec(`ALTER TABLE hidden RENAME TO audit`); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(false); err != nil {
		t.Error(err)
	}
	if n := count(t, l, Filter{}); n != mostAlike+6 {
		t.Errorf("%d denials", n)
	}
	// A new minute begins.
	if err := w.Denied(t.Context(), r); err != nil || count(t, l, Filter{}) != mostAlike+7 {
		t.Errorf("%v, or it has no row of its own", err)
	}
}

// The database's log does not grow with the rows, though no commit moves it into the database.
func TestWriterMovesTheLog(t *testing.T) {
	w, l := newWriter(t)
	dir, err := l.Store.Dir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, store.File+"-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	var once int64
	for i := range 4 * checkpointEvery {
		if err := w.Append(t.Context(), Record{Action: NetworkName, Decision: store.Allowed}); err != nil {
			t.Fatal(err)
		}
		if i == checkpointEvery-10 {
			once = size()
		}
	}
	if got := size(); got > 2*once {
		t.Errorf("it has %d bytes after %d transactions, and had %d after %d", got, 4*checkpointEvery, once, checkpointEvery)
	}
}
