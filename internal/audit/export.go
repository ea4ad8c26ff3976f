package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"ravi/internal/store"
)

// line is a row as it is exported. docs/audit.md tells others how to verify it: the detail is a text, since its bytes are
// hashed, and no field is ever left out.
type line struct {
	Seq       int64          `json:"seq"`
	Time      string         `json:"time"`
	Caller    string         `json:"caller"`
	Action    string         `json:"action"`
	Object    string         `json:"object"`
	Decision  store.Decision `json:"decision"`
	RunID     string         `json:"run_id"`
	SandboxID string         `json:"sandbox_id"`
	Rule      string         `json:"rule"`
	Reason    string         `json:"reason"`
	Detail    string         `json:"detail"`
	Count     int64          `json:"count"`
	Prev      string         `json:"prev"`
	Hash      string         `json:"hash"`
}

const (
	lineTime = "2006-01-02T15:04:05.000Z"
	// mostLine bounds a line of an export.
	mostLine = 1 << 20
)

func lineOf(r Record) line {
	return line{r.Seq, r.Time.UTC().Format(lineTime), r.Caller, r.Action, r.Object, r.Decision, r.RunID, r.SandboxID, r.Rule, r.Reason, string(r.Detail), r.Count, r.Prev, r.Hash}
}

func (l line) record() (Record, error) {
	at, err := time.Parse(lineTime, l.Time)
	if err != nil {
		return Record{}, err
	}
	r := Record{Seq: l.Seq, Time: at, Caller: l.Caller, Action: l.Action, Object: l.Object, Decision: l.Decision, RunID: l.RunID, SandboxID: l.SandboxID,
		Rule: l.Rule, Reason: l.Reason, Count: l.Count, Prev: l.Prev, Hash: l.Hash}
	if l.Detail != "" {
		r.Detail = json.RawMessage(l.Detail)
	}
	return r, nil
}

// Export writes the chosen rows, each a line of JSON, in their order, and says how many. A limit of 0 is none.
func (l Log) Export(ctx context.Context, w io.Writer, f Filter) (int64, error) {
	var n int64
	most := f.Limit
	f.Newest = false
	for {
		f.Limit = store.AuditPage
		if most > 0 {
			f.Limit = min(f.Limit, most-int(n))
		}
		if f.Limit == 0 {
			return n, nil
		}
		rows, err := l.Store.Audit(ctx, f)
		if err != nil {
			return n, err
		}
		for _, r := range rows {
			b, err := encode(lineOf(r))
			if err != nil {
				return n, fmt.Errorf("cannot export row %d of the audit: %w", r.Seq, err)
			}
			if _, err := w.Write(append(b, '\n')); err != nil {
				return n, fmt.Errorf("cannot export the audit: %w", err)
			}
			f.After = r.Seq
			n++
		}
		if len(rows) < f.Limit {
			return n, nil
		}
	}
}

// VerifyExport checks exported rows: each is as it was written, and follows the one before it. With a head they have to be
// all there, from the first row to that of the head at least. Without one, rows may be left out, as a filter does; Gaps
// says how often, and what stands after a gap is only known to hang together.
func VerifyExport(r io.Reader, head *Head) (Report, error) {
	c := chain{path: "the head given"}
	if head != nil {
		c.Head = *head
	}
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := readLine(in)
		if errors.Is(err, io.EOF) {
			return c.Report, c.end(0)
		}
		if err != nil {
			return c.Report, fmt.Errorf("line %d of the export: %w", n, err)
		}
		row, err := parseLine(text)
		if err != nil {
			return c.Report, fmt.Errorf("%w: line %d of the export is not as it was written: %w", ErrTampered, n, err)
		}
		if head == nil && row.Seq > c.last.Seq+1 {
			c.Gaps++
			c.last = Record{Seq: row.Seq - 1, Hash: row.Prev}
		}
		if err := c.add(row); err != nil {
			return c.Report, err
		}
	}
}

// parseLine takes only what Export writes: another program may read a field that was given twice otherwise than this one.
func parseLine(text []byte) (Record, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Record{}, err
	}
	same, err := encode(l)
	if err != nil {
		return Record{}, err
	}
	if !bytes.Equal(same, text) {
		return Record{}, errors.New("it is JSON, but written otherwise")
	}
	return l.record()
}

// readLine gives a line without its end. The last one has an end as well.
func readLine(in *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := in.ReadSlice('\n')
		if out = append(out, part...); len(out) > mostLine {
			return nil, fmt.Errorf("is longer than %d bytes", mostLine)
		}
		switch {
		case err == nil:
			return out[:len(out)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(out) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
