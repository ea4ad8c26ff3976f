package audit

import (
	"context"
	"errors"
	"fmt"

	"ravi/internal/store"
)

// ErrTampered says that the audit is not what was written.
var ErrTampered = errors.New("the audit was tampered with")

// Tampered is an ErrTampered that says where.
type Tampered struct {
	Row  int64 // 0 if it is about none
	What string
	Do   string // what people can do about it
}

func (e *Tampered) Error() string { return ErrTampered.Error() + ": " + e.What }

// Unwrap makes it an ErrTampered.
func (e *Tampered) Unwrap() error { return ErrTampered }

// Hint says what to do.
func (e *Tampered) Hint() string { return e.Do }

const (
	keepHint    = "keep a copy of the database and of the head as they are; "
	acceptHint  = "if you did that yourself, such as with a backup put back, have the head begin anew"
	missingHint = keepHint + "compare them with a backup or an export to see what is gone; " + acceptHint
	changedHint = keepHint + "compare the row with a backup or an export: rows before it are as they were written, what follows is as its hashes say, but no longer proven by them"
)

// Report is what Verify found to be in order.
type Report struct {
	Rows int64 // how many, all proven
	// Last is the last row. If Head is before it, the rows between were not in the second place yet; that is so while
	// rows are written, and after a crash.
	Last, Head Head
	// Begun is how often a head was made where there was none, or had to follow: see the rows of these actions.
	Begun int64
	// Gaps is how many times rows are left out; only exports have any.
	Gaps int64
}

// chain checks rows one after the other.
type chain struct {
	Report
	last Record
	path string // of the head, for people
}

func (c *chain) add(r Record) error {
	switch {
	case r.Seq <= c.last.Seq:
		return &Tampered{r.Seq, fmt.Sprintf("row %d comes after row %d", r.Seq, c.last.Seq), changedHint}
	case r.Seq == c.last.Seq+2:
		return &Tampered{r.Seq - 1, fmt.Sprintf("row %d is missing", r.Seq-1), missingHint}
	case r.Seq > c.last.Seq+1:
		return &Tampered{c.last.Seq + 1, fmt.Sprintf("rows %d to %d are missing", c.last.Seq+1, r.Seq-1), missingHint}
	case r.Hash != hash(r):
		return &Tampered{r.Seq, fmt.Sprintf("row %d was changed", r.Seq), changedHint}
	case r.Prev != c.last.Hash:
		return &Tampered{r.Seq, fmt.Sprintf("row %d does not follow the one before it, which was changed, or stood elsewhere", r.Seq), changedHint}
	case r.Seq == c.Head.Seq && r.Hash != c.Head.Hash:
		return fits(c.path, c.Head, r.Hash, r.Seq)
	}
	if r.Action == HeadBegun || r.Action == HeadAccepted {
		c.Begun++
	}
	c.last = r
	c.Rows++
	c.Last = Head{Seq: r.Seq, Hash: r.Hash, Time: r.Time}
	return nil
}

// end checks that nothing is missing after the last row.
func (c *chain) end(known int64) error {
	missing := func(to int64, says string) error {
		return &Tampered{c.last.Seq + 1, fmt.Sprintf("rows %d to %d are missing at the end, says %s", c.last.Seq+1, to, says), missingHint}
	}
	switch {
	case c.last.Seq < c.Head.Seq:
		return missing(c.Head.Seq, "the head in "+c.path)
	case c.last.Seq < known:
		return missing(known, "the database's own count")
	}
	return nil
}

// chain begins a verification: with the head, if there is one (noHead is ErrNoHead then), and the number of the last row.
// Both are looked at before any row is: rows may be added meanwhile.
func (l Log) chain(ctx context.Context) (c chain, end int64, noHead, err error) {
	if c.path, err = l.head(ctx); err != nil {
		return c, 0, nil, err
	}
	if c.Head, err = ReadHead(c.path); errors.Is(err, ErrNoHead) {
		noHead = err
	} else if err != nil {
		return c, 0, nil, err
	}
	end, err = l.Store.AuditEnd(ctx)
	return c, end, noHead, err
}

// Verify reads the whole audit, and fails with a *Tampered at the first row that was changed, is missing, or stands where
// it did not, and if the table is not the one that the head is of. Without a head it fails with ErrNoHead, in the end.
// It needs the memory of one page; progress, if there is one, hears of each.
func (l Log) Verify(ctx context.Context, progress func(done, total int64)) (Report, error) {
	c, end, noHead, err := l.chain(ctx)
	if err != nil {
		return Report{}, err
	}
	for {
		rows, err := l.Store.Audit(ctx, Filter{After: c.last.Seq, Limit: store.AuditPage})
		if err != nil {
			return c.Report, err
		}
		for _, r := range rows {
			if err := c.add(r); err != nil {
				return c.Report, err
			}
		}
		if len(rows) == 0 {
			break
		}
		if progress != nil {
			progress(c.Rows, max(end, c.Rows))
		}
	}
	if err := c.end(end); err != nil {
		return c.Report, err
	}
	if c.Rows == 0 {
		return c.Report, nil
	}
	return c.Report, noHead
}

// Accept has the head follow the table as it is, though they do not fit, and writes down that it was so. The operator
// does that knowing why, such as after a backup was put back. It makes no chain whole that is broken.
func (l Log) Accept(ctx context.Context, caller, reason string) error {
	path, err := l.head(ctx)
	if err != nil {
		return err
	}
	was := "the head was of no row"
	if h, err := ReadHead(path); err == nil {
		was = fmt.Sprintf("the head was of row %d, %s", h.Seq, h.Hash)
	}
	group, err := prepare([]Record{{Caller: caller, Action: HeadAccepted, Object: path, Decision: store.Allowed, Rule: was, Reason: reason}})
	if err != nil {
		return err
	}
	conn := l.Store.AuditConn()
	defer conn.Close()
	errs, err := conn.Append(ctx, [][]Record{group}, link)
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		return err
	}
	return forceHead(ctx, path, &group[0])
}
