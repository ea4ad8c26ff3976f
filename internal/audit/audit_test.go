package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "modernc.org/sqlite" // to tamper with the file

	"ravi/internal/leaktest"
	"ravi/internal/store"
)

// children are what this program does when it is started anew, by the value of this variable.
const childVariable = "RAVI_AUDIT_TEST_CHILD"

var children = map[string]func(ctx context.Context, home string) error{
	"append": appendSideBySide, "write": writeSideBySide, "killed": writeUntilKilled, "full": fillDisk,
}

func TestMain(m *testing.M) {
	if name, home, isChild := strings.Cut(os.Getenv(childVariable), ":"); isChild {
		if err := children[name](context.Background(), home); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if err := leaktest.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// child is this program as one of the children.
func child(t *testing.T, name, home string) (cmd *exec.Cmd, said *strings.Builder) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+name+":"+home)
	said = &strings.Builder{}
	cmd.Stderr = said
	return cmd, said
}

func newLog(t *testing.T) (Log, string) {
	t.Helper()
	home := t.TempDir()
	s, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return Log{Store: s}, home
}

func verify(t *testing.T, l Log) error {
	t.Helper()
	_, err := l.Verify(t.Context(), nil)
	return err
}

func raw(t *testing.T, home string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(home, store.File))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestRoundTrip(t *testing.T) {
	l, _ := newLog(t)
	ctx := t.Context()
	want := []Record{
		{Time: time.Date(2031, 2, 3, 4, 5, 6, 7_000_000, time.UTC), Action: NetworkRequest, Object: "example.org:443", Decision: store.Allowed, RunID: "run1", SandboxID: "sbx1",
			Rule: "example.org", Reason: "it is in the list", Detail: json.RawMessage(`{ "method": "GET" }`), Count: 12},
		{Action: SecretAlarm, Decision: store.Denied, Object: "a\x00b\xff"},
	}
	if err := l.Append(ctx, want...); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := l.List(ctx, Filter{})
	if err != nil || len(got) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	want[0].Seq, want[0].Hash, want[0].Detail = 1, got[0].Hash, json.RawMessage(`{"method":"GET"}`)
	want[1].Seq, want[1].Hash, want[1].Prev, want[1].Count, want[1].Time, want[1].Object = 2, got[1].Hash, got[0].Hash, 1, got[1].Time, "a\uFFFDb\uFFFD"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if since := time.Since(got[1].Time); since < 0 || since > time.Hour {
		t.Errorf("the time that was filled in is %v", got[1].Time)
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}

// Every field is in the hash, and no two records give the same bytes by moving their borders.
func TestHashCoversEverything(t *testing.T) {
	base := Record{Seq: 1, Time: time.UnixMilli(5), Action: "aa", Object: "bb", Decision: store.Allowed, RunID: "c", SandboxID: "d", Rule: "e", Reason: "f", Detail: json.RawMessage("1"), Count: 1, Prev: "g"}
	seen := map[string]string{hash(base): "base"}
	add := func(name string, r Record) {
		if other, known := seen[hash(r)]; known {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[hash(r)] = name
	}
	typ := reflect.TypeFor[Record]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		if name == "Hash" {
			continue
		}
		r := base
		switch f := reflect.ValueOf(&r).Elem().Field(i); f.Interface().(type) {
		case string, store.Decision:
			f.SetString("other")
		case int64:
			f.SetInt(7)
		case time.Time:
			f.Set(reflect.ValueOf(time.UnixMilli(6)))
		case json.RawMessage:
			f.SetBytes([]byte("2"))
		default:
			t.Fatalf("the field %s is of a kind that this test does not know", name)
		}
		add(name, r)
	}
	moved := base
	moved.Action, moved.Object = "aab", "b"
	add("moved", moved)
	// The form of rows with a caller is not that of rows without: nothing can be moved from one field to the other.
	moved = base
	moved.Prev, moved.Caller = base.Prev+"x", ""
	add("without a caller", moved)
	moved.Prev, moved.Caller = base.Prev, "x"
	add("with a caller", moved)
}

// Chains of before there were callers stay as they are.
func TestHashOfOldRows(t *testing.T) {
	for want, r := range map[string]Record{
		"954571660a024836304551c0535c693a475ae86e780244c70b08da8028c38cd8": {Seq: 1, Time: time.UnixMilli(1700000000123), Action: NetworkConnect, Object: "example.org:443", Decision: store.Allowed, RunID: "run1",
			SandboxID: "sbx1", Rule: "example.org", Reason: "it is in the list", Detail: json.RawMessage(`{"proto":"tls"}`), Count: 3},
	} {
		if got := hash(r); got != want {
			t.Errorf("got %s", got)
		}
	}
}

func TestVerifyFindsTampering(t *testing.T) {
	const unlock = `DROP TRIGGER audit_no_update; DROP TRIGGER audit_no_delete; DROP TRIGGER audit_at_the_end;`
	for name, c := range map[string]struct{ change, want string }{
		"decision":   {`UPDATE audit SET decision = 'allowed' WHERE seq = 3`, "row 3 was changed"},
		"count":      {`UPDATE audit SET count = 9 WHERE seq = 3`, "row 3 was changed"},
		"time":       {`UPDATE audit SET time = time + 1 WHERE seq = 1`, "row 1 was changed"},
		"hash":       {`UPDATE audit SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 5`, "row 5 was changed"},
		"middle":     {`DELETE FROM audit WHERE seq = 3`, "row 3 is missing"},
		"first":      {`DELETE FROM audit WHERE seq = 1`, "row 1 is missing"},
		"last":       {`DELETE FROM audit WHERE seq >= 4`, "rows 4 to 5 are missing at the end"},
		"all":        {`DELETE FROM audit`, "rows 1 to 5 are missing at the end"},
		"swapped":    {`UPDATE audit SET seq = 100 WHERE seq = 2; UPDATE audit SET seq = 2 WHERE seq = 3; UPDATE audit SET seq = 3 WHERE seq = 100`, "row 2 was changed"},
		"renumbered": {`DELETE FROM audit WHERE seq = 2; UPDATE audit SET seq = seq - 1 WHERE seq > 2`, "row 2 was changed"},
		"added":      {`INSERT INTO audit SELECT seq + 1, time, action, object, decision, run_id, sandbox_id, rule, reason, detail, count, prev, hash, caller FROM audit WHERE seq = 5`, "row 6 was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			l, home := newLog(t)
			for i := range 5 {
				if err := l.Append(t.Context(), Record{Action: NetworkName, Object: fmt.Sprint(i), Decision: store.Denied}); err != nil {
					t.Fatal(err)
				}
			}
			if err := verify(t, l); err != nil {
				t.Fatal(err)
			}
			db := raw(t, home)
			if name != "added" { // who may add a row may add a false one
				if _, err := db.Exec(c.change); err == nil {
					t.Error("the table let itself be changed")
				}
				if err := verify(t, l); err != nil {
					t.Fatalf("what was refused has left something: %v", err)
				}
			}
			if _, err := db.Exec(unlock + c.change); err != nil {
				t.Fatal(err)
			}
			if err := verify(t, l); !errors.Is(err, ErrTampered) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	t.Run("a row with a true hash of its own", func(t *testing.T) {
		l, home := newLog(t)
		for range 3 {
			if err := l.Append(t.Context(), Record{Action: NetworkName, Decision: store.Denied}); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := l.List(t.Context(), Filter{})
		if err != nil {
			t.Fatal(err)
		}
		forged := rows[1]
		forged.Decision = store.Allowed
		if _, err := raw(t, home).Exec(unlock+`UPDATE audit SET decision = ?, hash = ? WHERE seq = 2`, string(forged.Decision), hash(forged)); err != nil {
			t.Fatal(err)
		}
		if err := verify(t, l); !errors.Is(err, ErrTampered) || !strings.Contains(err.Error(), "row 3 does not follow") {
			t.Errorf("got %v", err)
		}
	})
}

func TestReplaceIsRefused(t *testing.T) {
	l, home := newLog(t)
	for range 2 {
		if err := l.Append(t.Context(), Record{Action: NetworkName, Decision: store.Denied}); err != nil {
			t.Fatal(err)
		}
	}
	db := raw(t, home)
	for _, seq := range []string{"1", "2", "4", "NULL"} {
		_, err := db.Exec(`INSERT OR REPLACE INTO audit SELECT ` + seq + `, time, action, object, 'allowed', run_id, sandbox_id, rule, reason, detail, count, prev, hash, caller FROM audit WHERE seq = 2`)
		if err == nil || !strings.Contains(err.Error(), "its end only") {
			t.Errorf("row %s: %v", seq, err)
		}
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}

func TestAllOrNone(t *testing.T) {
	l, _ := newLog(t)
	good := Record{Action: NetworkName, Decision: store.Denied}
	for name, bad := range map[string]Record{
		"no decision": {Action: NetworkName}, "no action": {Decision: store.Denied}, "count": {Action: NetworkName, Decision: store.Denied, Count: -1},
		"detail": {Action: NetworkName, Decision: store.Denied, Detail: json.RawMessage(`{"a":`)},
		"large":  {Action: NetworkName, Decision: store.Denied, Detail: json.RawMessage(`"` + strings.Repeat("a", mostRowDetail) + `"`)},
	} {
		if err := l.Append(t.Context(), good, bad); err == nil {
			t.Errorf("%s: was written", name)
		}
	}
	if rows, err := l.List(t.Context(), Filter{}); err != nil || len(rows) != 0 {
		t.Errorf("rows stayed: %v, %v", rows, err)
	}
	if err := errors.Join(l.Append(t.Context(), good), verify(t, l)); err != nil {
		t.Error(err)
	}
}

func TestListPages(t *testing.T) {
	l, _ := newLog(t)
	start := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	var records []Record
	for i := range store.AuditPage + 5 {
		r := Record{Time: start.Add(time.Duration(i) * time.Second), Action: NetworkName, Object: "o", Decision: store.Denied, RunID: "run1"}
		if i%2 == 1 {
			r.Action, r.Decision, r.RunID, r.SandboxID = SecretUse, store.Allowed, "run2", "sbx2"
			r.Caller, r.Reason, r.Detail = "ctx_2", "fifty% of_it", json.RawMessage(`{"k":"v"}`)
		}
		records = append(records, r)
	}
	if err := l.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		filter Filter
		want   []int64
	}{
		"first":     {Filter{Limit: 2}, []int64{1, 2}},
		"next":      {Filter{Limit: 2, After: 2}, []int64{3, 4}},
		"newest":    {Filter{Limit: 2, Newest: true}, []int64{1005, 1004}},
		"older":     {Filter{Limit: 2, Newest: true, Before: 1004}, []int64{1003, 1002}},
		"run":       {Filter{Limit: 2, RunID: "run2"}, []int64{2, 4}},
		"sandbox":   {Filter{Limit: 1, SandboxID: "sbx2"}, []int64{2}},
		"action":    {Filter{Limit: 2, Action: SecretUse, After: 3}, []int64{4, 6}},
		"actions":   {Filter{Limit: 2, Action: "secret."}, []int64{2, 4}},
		"no action": {Filter{Action: "secre."}, nil},
		"caller":    {Filter{Limit: 1, Caller: "ctx_2", After: 5}, []int64{6}},
		"reason":    {Filter{Limit: 2, Text: "FIFTY% of_"}, []int64{2, 4}},
		"no reason": {Filter{Text: "fifty__of"}, nil},
		"a pattern": {Filter{Text: "fif%it"}, nil},
		"detail":    {Filter{Limit: 1, Text: `"k":"v`}, []int64{2}},
		"decision":  {Filter{Limit: 1, Decision: store.Allowed}, []int64{2}},
		"time":      {Filter{Since: start.Add(3 * time.Second), Until: start.Add(5 * time.Second)}, []int64{4, 5}},
		"no object": {Filter{Object: "x"}, nil},
	} {
		rows, err := l.List(t.Context(), c.filter)
		var got []int64
		for _, r := range rows {
			got = append(got, r.Seq)
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	if rows, err := l.List(t.Context(), Filter{}); err != nil || len(rows) != store.AuditPage {
		t.Errorf("a page has %d rows, %v", len(rows), err)
	}
}

// Search looks through a bounded number of rows, and says where to go on.
func TestSearchGoesOn(t *testing.T) {
	l, _ := newLog(t)
	const most, total = 500, 900
	records := make([]Record, total)
	for i := range records {
		records[i] = Record{Action: NetworkName, Decision: store.Denied, Object: fmt.Sprint(i + 1)}
	}
	if err := l.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]Filter{"first": {Object: "3"}, "last": {Object: fmt.Sprint(total - 2)}, "none": {Object: "x"}} {
		for _, newest := range []bool{false, true} {
			f, pages, found := f, 0, 0
			for f.Newest = newest; ; pages++ {
				rows, next, err := l.search(t.Context(), f, most)
				if err != nil || pages > 2 {
					t.Fatalf("%s: page %d, %v", name, pages, err)
				}
				found += len(rows)
				if next == 0 {
					break
				}
				if f.After = next; newest {
					f.After, f.Before = 0, next
				}
			}
			if want := map[bool]int{true: 1}[f.Object != "x"]; found != want || pages != 1 {
				t.Errorf("%s, newest %v: found %d, after %d pages", name, newest, found, pages)
			}
		}
	}
	// All pages together are all rows, each once.
	for _, newest := range []bool{false, true} {
		seen, f := 0, Filter{Limit: 99, Newest: newest}
		for {
			rows, next, err := l.search(t.Context(), f, most)
			if err != nil {
				t.Fatal(err)
			}
			seen += len(rows)
			if next == 0 {
				break
			}
			if f.After = next; newest {
				f.After, f.Before = 0, next
			}
		}
		if seen != total {
			t.Errorf("newest %v: %d rows of %d", newest, seen, total)
		}
	}
	if _, _, err := l.Search(t.Context(), Filter{Text: strings.Repeat("a", 1001)}); err == nil {
		t.Error("a text of any length is searched for")
	}
}

// No row has a context key, wherever it was; and no text without bound.
func TestNoKeysInRows(t *testing.T) {
	l, _ := newLog(t)
	const secret = "AbCdEf0123456789-_"
	text := "with rctx_" + secret + "."
	r := Record{Caller: text, Action: text, Object: text, Decision: store.Denied, RunID: text, SandboxID: text, Rule: text, Reason: text, Detail: json.RawMessage(`{"a":"` + text + `"}`)}
	long := Record{Action: "a", Decision: store.Denied, Reason: strings.Repeat("é", 10_000)}
	if err := l.Append(t.Context(), r, long); err != nil {
		t.Fatal(err)
	}
	rows, err := l.List(t.Context(), Filter{})
	if err != nil || len(rows) != 2 {
		t.Fatal(err)
	}
	if said := fmt.Sprintf("%+v %s", rows[0], rows[0].Detail); strings.Contains(said, secret) || !strings.Contains(rows[0].Reason, "with rctx_….") {
		t.Error(said)
	}
	if len(rows[1].Reason) > mostRowText || len(rows[1].Reason) < mostRowText-10 {
		t.Errorf("the reason has %d bytes", len(rows[1].Reason))
	}
	if err := verify(t, l); err != nil {
		t.Error(err)
	}
}
