package audit

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ravi/internal/store"
)

const unlock = `DROP TRIGGER IF EXISTS audit_no_update; DROP TRIGGER IF EXISTS audit_no_delete; DROP TRIGGER IF EXISTS audit_at_the_end;`

// forge writes the table anew, as somebody does who has the database and knows all of this program.
func forge(db *sql.DB, rows []Record) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Exec(unlock + `DELETE FROM audit`); err != nil {
		return err
	}
	for _, r := range rows {
		if _, err := tx.Exec(`INSERT INTO audit (seq, time, caller, action, object, decision, run_id, sandbox_id, rule, reason, detail, count, prev, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.Seq, r.Time.UnixMilli(), r.Caller, r.Action, r.Object, string(r.Decision), r.RunID, r.SandboxID, r.Rule, r.Reason, string(r.Detail), r.Count, r.Prev, r.Hash); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(`UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(seq), 0) FROM audit) WHERE name = 'audit'`); err != nil {
		return err
	}
	return tx.Commit()
}

// chained computes every number and hash anew.
func chained(rows []Record) {
	var last Record
	for i := range rows {
		link(&rows[i], last.Seq+1, last.Hash)
		last = rows[i]
	}
}

// Any change of a row, any removal, any swap and any cut at the end is found: with hashes left as they were, with the
// changed row's own made anew, and with all of them made anew, whatever the database counts. The head alone is out of
// the forger's reach. An export is no different.
func TestAnyTamperingIsFound(t *testing.T) {
	const n = 12
	home := t.TempDir()
	s, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := Log{Store: s}
	for i := range n {
		r := Record{Time: time.UnixMilli(1_700_000_000_000 + int64(i)), Action: NetworkName, Object: fmt.Sprint(i), Decision: store.Denied, Reason: "r", Rule: "u", RunID: "run", SandboxID: "sbx", Detail: json.RawMessage(`{"a":1}`)}
		if i%3 > 0 {
			r.Caller = "ctx_a"
		}
		if err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	original, err := l.List(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	truth := head(t, l)
	db := raw(t, home)
	rapid.Check(t, func(t *rapid.T) {
		rows := slices.Clone(original)
		i := rapid.IntRange(0, n-1).Draw(t, "row")
		op := rapid.SampledFrom([]string{"change", "remove", "swap", "cut", "copy", "move caller"}).Draw(t, "what")
		switch op {
		case "change":
			change(t, &rows[i])
		case "remove":
			rows = slices.Delete(rows, i, min(n, i+rapid.IntRange(1, 3).Draw(t, "rows")))
		case "swap":
			j := rapid.IntRange(0, n-2).Draw(t, "other")
			if j >= i {
				j++
			}
			rows[i], rows[j] = rows[j], rows[i]
		case "cut":
			rows = rows[:i]
		case "copy":
			rows = slices.Insert(rows, i, rows[rapid.IntRange(0, n-1).Draw(t, "of")])
			rows = rows[:n] // as many as before
			if equal(rows, original) {
				t.Skip("nothing changed")
			}
		case "move caller":
			if rows[i].Caller == "" {
				rows[i].Caller = "ctx_b"
			} else {
				rows[i].Reason, rows[i].Caller = rows[i].Caller, ""
			}
		}
		forging := rapid.SampledFrom([]string{"nothing", "numbers", "the row", "all"}).Draw(t, "made anew")
		switch {
		case forging == "all":
			chained(rows)
		case forging == "the row" && i < len(rows):
			rows[i].Hash = hash(rows[i])
		}
		if forging == "numbers" || forging == "the row" || op == "copy" { // numbers are unique in a table
			for j := range rows {
				rows[j].Seq = int64(j + 1)
			}
		}
		if equal(rows, original) {
			t.Skip("nothing changed")
		}
		stored := slices.Clone(rows)
		if err := forge(db, stored); err != nil {
			t.Fatal(err)
		}
		_, err := l.Verify(t.Context(), nil)
		var found *Tampered
		switch {
		case op == "swap" && (forging == "nothing"):
			// A table has no order but that of its numbers: nothing was changed.
			if err != nil {
				t.Fatalf("in the order of the numbers: %v", err)
			}
		case !errors.Is(err, ErrTampered) || !errors.As(err, &found) || found.Row == 0 || found.Hint() == "":
			t.Fatalf("%s, %s made anew: %v", op, forging, err)
		}
		var export bytes.Buffer
		for _, r := range rows {
			b, err := encode(lineOf(r))
			if err != nil {
				t.Fatal(err)
			}
			export.Write(append(b, '\n'))
		}
		if _, err := VerifyExport(&export, &truth); !errors.Is(err, ErrTampered) {
			t.Fatalf("the export: %s, %s made anew: %v", op, forging, err)
		}
		// Whoever appends notices it as well if the head's row is not there, and the head does not follow.
		if forging == "all" {
			if err := l.Append(t.Context(), Record{Action: "a", Decision: store.Denied}); !errors.Is(err, ErrTampered) {
				t.Fatalf("a row was added to it: %v", err)
			}
			if now, err := ReadHead(filepath.Join(home, HeadFile)); err != nil || now != truth {
				t.Fatalf("the head followed: %+v, %v", now, err)
			}
		}
	})
	// The truth holds.
	if err := forge(db, original); err != nil {
		t.Fatal(err)
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}

func equal(a, b []Record) bool {
	return slices.EqualFunc(a, b, func(x, y Record) bool { return x.Seq == y.Seq && x.Hash == y.Hash && hash(x) == hash(y) })
}

// change changes one field, for certain.
func change(t *rapid.T, r *Record) {
	switch rapid.SampledFrom([]string{"time", "caller", "action", "object", "decision", "run", "sandbox", "rule", "reason", "detail", "count", "prev", "hash"}).Draw(t, "field") {
	case "time":
		r.Time = r.Time.Add(time.Millisecond * time.Duration(rapid.SampledFrom([]int{-1, 1, 1000}).Draw(t, "by")))
	case "caller":
		r.Caller += "x"
	case "action":
		r.Action += "x"
	case "object":
		r.Object = ""
	case "decision":
		r.Decision = store.Allowed
	case "run":
		r.RunID = "other"
	case "sandbox":
		r.SandboxID = ""
	case "rule":
		r.Rule = "v"
	case "reason":
		r.Reason = "R"
	case "detail":
		r.Detail = rapid.SampledFrom([]json.RawMessage{nil, []byte(`{"a":2}`), []byte(`{"a": 1}`)}).Draw(t, "detail")
	case "count":
		r.Count++
	case "prev":
		r.Prev = strings.Repeat("0", 64)
	case "hash":
		r.Hash = strings.Repeat("0", 64)
	}
}

// Rows that were cut off cannot be replaced by as many others.
func TestCutAndGrownAgain(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 10)
	rows, err := l.List(t.Context(), Filter{Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := forge(raw(t, home), rows); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(l)
	defer w.Close()
	for i := range 10 {
		err := w.Append(t.Context(), Record{Action: "a", Decision: store.Denied})
		if found := (*Tampered)(nil); !errors.As(err, &found) || found.Row != 10 {
			t.Fatalf("row %d was added: %v", i+6, err)
		}
	}
	if err := verify(t, l); !errors.Is(err, ErrTampered) || !strings.Contains(err.Error(), "row 10 is not the one that the head in") {
		t.Errorf("got %v", err)
	}
	// The operator knows why, as with a backup that was put back.
	if err := l.Accept(t.Context(), Operator, "the backup of Monday"); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), Record{Action: "a", Decision: store.Denied}); err != nil {
		t.Error(err)
	}
	report, err := l.Verify(t.Context(), nil)
	if err != nil || report.Begun != 1 || report.Head.Seq != report.Rows || report.Rows != 17 {
		t.Errorf("%+v, %v", report, err)
	}
	said, err := l.List(t.Context(), Filter{Action: HeadAccepted})
	if err != nil || len(said) != 1 || !strings.Contains(said[0].Rule, "row 10, ") || said[0].Reason != "the backup of Monday" || said[0].Caller != Operator {
		t.Errorf("%+v, %v", said, err)
	}
}

func TestVerifyTellsWhere(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 5)
	rows, err := l.List(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	anew := slices.Clone(rows)
	anew[1].Object = "other"
	chained(anew)
	for want, c := range map[string]struct {
		rows []Record
		row  int64
	}{
		"rows 2 to 4 are missing": {[]Record{rows[0], rows[4]}, 2},
		"row 2 is missing":        {[]Record{rows[0], rows[2], rows[3], rows[4]}, 2},
		"rows 4 to 5 are missing at the end, says the head in " + home: {rows[:3], 4},
		"row 5 is not the one that the head in " + home:                {anew, 5},
	} {
		if err := forge(raw(t, home), c.rows); err != nil {
			t.Fatal(err)
		}
		found := (*Tampered)(nil)
		if err := verify(t, l); !errors.As(err, &found) || !strings.Contains(found.What, want) || found.Row != c.row || !strings.Contains(found.Hint(), "keep a copy") {
			t.Errorf("got %v, %+v; want %q", err, found, want)
		}
	}
}

// Without a head, the database's own count shows what is missing at the end, as far as it was left alone.
func TestVerifyWithoutHead(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 5)
	if err := os.Remove(filepath.Join(home, HeadFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := raw(t, home).Exec(unlock + `DELETE FROM audit WHERE seq > 3`); err != nil {
		t.Fatal(err)
	}
	if err := verify(t, l); !errors.Is(err, ErrTampered) || !strings.Contains(err.Error(), "rows 4 to 5 are missing at the end, says the database's own count") {
		t.Errorf("got %v", err)
	}
}

func TestVerifyTellsHowFar(t *testing.T) {
	l, _ := newLog(t)
	records := make([]Record, 2*store.AuditPage+1)
	for i := range records {
		records[i] = Record{Action: "a", Decision: store.Denied}
	}
	if err := l.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	var told []int64
	if _, err := l.Verify(t.Context(), func(done, total int64) { told = append(told, done, total) }); err != nil {
		t.Fatal(err)
	}
	if want := []int64{1000, 2001, 2000, 2001, 2001, 2001}; !slices.Equal(told, want) {
		t.Errorf("told %v", told)
	}
}

// A database that is read while others write is in order.
func TestVerifyWhileWriting(t *testing.T) {
	w, l := newWriter(t)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := w.Append(t.Context(), Record{Action: "a", Decision: store.Denied}); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 30 {
		if err := verify(t, l); err != nil && !errors.Is(err, ErrNoHead) {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}
