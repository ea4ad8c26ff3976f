package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ravi/internal/store"
)

func appendRows(t *testing.T, l Log, n int) {
	t.Helper()
	for range n {
		if err := l.Append(t.Context(), Record{Caller: Operator, Action: NetworkName, Decision: store.Denied}); err != nil {
			t.Fatal(err)
		}
	}
}

func head(t *testing.T, l Log) Head {
	t.Helper()
	path, err := l.head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h, err := ReadHead(path)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHeadFollows(t *testing.T) {
	l, home := newLog(t)
	if _, err := ReadHead(filepath.Join(home, HeadFile)); !errors.Is(err, ErrNoHead) {
		t.Errorf("before: %v", err)
	}
	if report, err := l.Verify(t.Context(), nil); err != nil || report.Rows != 0 {
		t.Errorf("an empty audit: %+v, %v", report, err)
	}
	for n := range 5 {
		appendRows(t, l, 1)
		rows, err := l.List(t.Context(), Filter{Newest: true, Limit: 1})
		if h := head(t, l); err != nil || h.Seq != int64(n+1) || h.Hash != rows[0].Hash {
			t.Errorf("%+v, %v", h, err)
		}
	}
	info, err := os.Stat(filepath.Join(home, HeadFile))
	if err != nil || info.Mode() != 0o600 || info.Size() != 2*headLine {
		t.Errorf("%v, %v", info, err)
	}
	b, err := os.ReadFile(filepath.Join(home, HeadFile))
	if lines := strings.Split(string(b), "\n"); err != nil || len(lines) != 3 || !strings.HasPrefix(lines[0], `{"seq":5,"hash":"`) || !strings.HasPrefix(lines[1], `{"seq":4,`) {
		t.Errorf("%q, %v", b, err)
	}
	left, err := filepath.Glob(filepath.Join(home, HeadFile+".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// A line that was written half is as if it had not been; the other one holds.
func TestHalfAHead(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 5)
	path := filepath.Join(home, HeadFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range headLine / 8 {
		torn := append([]byte{}, whole...)
		copy(torn[cut*2:headLine], whole[headLine+cut*2:]) // line 1 is half what it was two rows ago
		copy(torn[cut*2:headLine], strings.Repeat("0", 40))
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		if h, err := ReadHead(path); err != nil || h.Seq != 4 {
			t.Fatalf("torn at %d: %+v, %v", cut*2, h, err)
		}
	}
	if report, err := l.Verify(t.Context(), nil); err != nil || report.Head.Seq != 4 || report.Last.Seq != 5 {
		t.Errorf("%+v, %v", report, err)
	}
	appendRows(t, l, 1)
	if h := head(t, l); h.Seq != 6 {
		t.Errorf("afterwards: %+v", h)
	}
	// Both: nothing is believed, and nothing goes on.
	for name, b := range map[string][]byte{"empty": {}, "text": []byte(strings.Repeat("x", 2*headLine)), "short": whole[:100]} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(t, l); !errors.Is(err, ErrTampered) {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.Append(t.Context(), Record{Action: "a", Decision: store.Denied}); !errors.Is(err, ErrTampered) {
			t.Errorf("%s: a row was added: %v", name, err)
		}
	}
}

func TestHeadNeverGoesBack(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 5)
	rows, err := l.List(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, HeadFile)
	for i := range rows {
		if _, err := moveHead(t.Context(), path, &rows[i], &rows[i], l.hashOf); err != nil {
			t.Error(err)
		}
		if h := head(t, l); h.Seq != 5 {
			t.Fatalf("after row %d it is %+v", i+1, h)
		}
	}
}

// A crash after the rows and before their head leaves it behind, which is in order, and the next row brings it on.
func TestHeadBehind(t *testing.T) {
	l, _ := newLog(t)
	appendRows(t, l, 2)
	conn := l.Store.AuditConn()
	defer conn.Close()
	group, err := prepare([]Record{{Action: "a", Decision: store.Denied}, {Action: "a", Decision: store.Denied}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Append(t.Context(), [][]Record{group}, link); err != nil {
		t.Fatal(err)
	}
	if report, err := l.Verify(t.Context(), nil); err != nil || report.Head.Seq != 2 || report.Last.Seq != 4 {
		t.Errorf("%+v, %v", report, err)
	}
	appendRows(t, l, 1)
	if report, err := l.Verify(t.Context(), nil); err != nil || report.Head.Seq != 5 || report.Begun != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

// An audit of before there were heads gets one, and says so; so does one whose head was removed.
func TestHeadBegins(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 2)
	if err := os.Remove(filepath.Join(home, HeadFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Verify(t.Context(), nil); !errors.Is(err, ErrNoHead) {
		t.Errorf("without a head: %v", err)
	}
	appendRows(t, l, 1)
	report, err := l.Verify(t.Context(), nil)
	if err != nil || report.Rows != 4 || report.Head.Seq != 4 || report.Begun != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	rows, err := l.List(t.Context(), Filter{Action: HeadBegun})
	if err != nil || len(rows) != 1 || !strings.Contains(rows[0].Reason, "2 rows") {
		t.Errorf("%+v, %v", rows, err)
	}
}

func TestHeadIsNoLink(t *testing.T) {
	l, home := newLog(t)
	target := filepath.Join(home, "target")
	if err := os.WriteFile(target, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(home, HeadFile)); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), Record{Action: "a", Decision: store.Denied}); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	if err := verify(t, l); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v", err)
	}
}

// The wait for another process that holds the head has an end.
func TestHeadIsHeld(t *testing.T) {
	l, home := newLog(t)
	appendRows(t, l, 1)
	f, err := os.Open(filepath.Join(home, HeadFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := moveHead(ctx, filepath.Join(home, HeadFile), &Record{}, &Record{}, l.hashOf); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := verify(t, l); err != nil {
		t.Errorf("reading needs no lock: %v", err)
	}
}
