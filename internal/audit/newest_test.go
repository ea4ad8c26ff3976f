package audit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// tamper changes rows past what keeps them from it.
func tamper(t *testing.T, home, change string) {
	t.Helper()
	if _, err := raw(t, home).ExecContext(t.Context(), `DROP TRIGGER audit_no_update; DROP TRIGGER audit_no_delete; `+change); err != nil {
		t.Fatal(err)
	}
}

// What was done to the newest rows is seen whether or not they are all; what was done before them is Verify's to see.
func TestVerifyNewest(t *testing.T) {
	const rows, most = 30, 10
	for name, c := range map[string]struct {
		change string // SQL
		head   bool   // the head is removed
		want   error
		row    int64
	}{
		"nothing":             {"", false, nil, 0},
		"a new row changed":   {`UPDATE audit SET reason = 'x' WHERE seq = 25`, false, ErrTampered, 25},
		"the last one gone":   {`DELETE FROM audit WHERE seq = 30`, false, ErrTampered, 30},
		"one in between gone": {`DELETE FROM audit WHERE seq = 27`, false, ErrTampered, 27},
		"an old row changed":  {`UPDATE audit SET reason = 'x' WHERE seq = 5`, false, nil, 0},
		"the head gone":       {"", true, ErrNoHead, 0},
		"the new ones anew":   {`UPDATE audit SET hash = prev, prev = hash WHERE seq > 20`, false, ErrTampered, 21},
	} {
		t.Run(name, func(t *testing.T) {
			l, home := newLog(t)
			if _, err := l.VerifyNewest(t.Context(), most); err != nil {
				t.Errorf("an empty one: %v", err)
			}
			appendRows(t, l, rows)
			if c.change != "" {
				tamper(t, home, c.change)
			}
			if c.head {
				if err := os.Remove(filepath.Join(home, HeadFile)); err != nil {
					t.Fatal(err)
				}
			}
			r, err := l.VerifyNewest(t.Context(), most)
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Fatalf("%v, want %v", err, c.want)
			}
			var tampered *Tampered
			if errors.As(err, &tampered) && tampered.Row != c.row {
				t.Errorf("row %d, want %d", tampered.Row, c.row)
			}
			if c.want == nil && r.Rows != most {
				t.Errorf("%d rows, want %d", r.Rows, most)
			}
		})
	}
}

// A head that is behind the newest rows, as after a crash, still has to be of a row that is as it was.
func TestVerifyNewestHeadBehind(t *testing.T) {
	l, home := newLog(t)
	head := filepath.Join(home, HeadFile)
	appendRows(t, l, 10)
	early, err := os.ReadFile(head)
	if err != nil {
		t.Fatal(err)
	}
	appendRows(t, l, 20)
	if err := os.WriteFile(head, early, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.VerifyNewest(t.Context(), 5); err != nil {
		t.Errorf("a head that is behind: %v", err)
	}
	tamper(t, home, `UPDATE audit SET hash = prev WHERE seq = 10`)
	if _, err := l.VerifyNewest(t.Context(), 5); !errors.Is(err, ErrTampered) {
		t.Errorf("the head's row was changed: %v", err)
	}
}
