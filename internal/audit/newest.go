package audit

import (
	"context"
	"slices"
)

// VerifyNewest is Verify for the newest rows, most of them at the most: that they follow one another, that none is missing
// at the end, and that the head is of one of them, or of one before that is as it was. What is before them is not looked at.
func (l Log) VerifyNewest(ctx context.Context, most int) (Report, error) {
	c, end, noHead, err := l.chain(ctx)
	if err != nil {
		return Report{}, err
	}
	rows, err := l.Store.Audit(ctx, Filter{Newest: true, Limit: most})
	if err != nil {
		return Report{}, err
	}
	slices.Reverse(rows)
	if len(rows) > 0 && rows[0].Seq > 1 {
		c.last = Record{Seq: rows[0].Seq - 1, Hash: rows[0].Prev}
	}
	for _, r := range rows {
		if err := c.add(r); err != nil {
			return c.Report, err
		}
	}
	if err := c.end(end); err != nil {
		return c.Report, err
	}
	if len(rows) == 0 {
		return c.Report, nil
	}
	if noHead == nil && c.Head.Seq < rows[0].Seq {
		found, err := l.hashOf(ctx, c.Head.Seq)
		if err != nil {
			return c.Report, err
		}
		if err := fits(c.path, c.Head, found, c.last.Seq); err != nil {
			return c.Report, err
		}
	}
	return c.Report, noHead
}
