package audit

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ravi/internal/store"
)

// What is accepted as a row is written again as it was, and has the hash that it says.
func FuzzVerifyExport(f *testing.F) {
	r := Record{Time: time.UnixMilli(1_700_000_000_123), Caller: Operator, Action: "a", Decision: store.Denied, Detail: json.RawMessage(`{"a":1}`), Count: 2}
	link(&r, 1, "")
	b, err := encode(lineOf(r))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(b, '\n'))
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		report, err := VerifyExport(bytes.NewReader(text), nil)
		if err != nil {
			return
		}
		var again []byte
		for line := range bytes.Lines(text) {
			row, err := parseLine(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil || row.Hash != hash(row) {
				t.Fatalf("accepted %q: %v", line, err)
			}
			b, err := encode(lineOf(row))
			if err != nil {
				t.Fatal(err)
			}
			again = append(append(again, b...), '\n')
		}
		if !bytes.Equal(text, again) || report.Rows != int64(bytes.Count(text, []byte("\n"))) {
			t.Fatalf("accepted %q", text)
		}
	})
}

// Whatever the file holds, a head that is believed is one that was written.
func FuzzReadHead(f *testing.F) {
	h := headOf(&Record{Seq: 7, Hash: hash(Record{})})
	b, err := h.line()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(bytes.Clone(b), b...))
	f.Add(b[:100])
	path := filepath.Join(f.TempDir(), HeadFile)
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if h, err := ReadHead(path); err == nil && (h.Seq < 1 || len(h.Hash) != 64 || h.Check != h.check()) {
			t.Fatalf("believed %+v", h)
		}
	})
}
