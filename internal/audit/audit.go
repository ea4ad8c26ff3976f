// Package audit is the record of what was decided about access, allowed and denied alike, in a chain that shows
// tampering.
//
// Each row holds the hash of the one before it and a hash over all that it says. Who changes, removes or re-orders rows
// has to compute every later hash anew, and whoever knows one of these sees it. Rows that were cut off at the end are
// seen as long as the database's own count of them was left alone.
//
// The package writes to the store's table and to nothing else. It decides nothing and knows nothing of networks, secrets
// or commands. It must be given no secret values: its rows are never changed, so they are never scrubbed.
package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"ravi/internal/store"
)

// ErrTampered says that the audit is not what was written.
var ErrTampered = errors.New("the audit was tampered with")

// Record is one row: a decision, or several that are equal.
type Record = store.AuditRecord

// Filter chooses rows.
type Filter = store.AuditFilter

// Actions.
const (
	NetworkName    = "network.name"    // a name was asked for
	NetworkConnect = "network.connect" // a connection
	NetworkRequest = "network.request" // a request on one
	NetworkLost    = "network.lost"    // of these decisions only the number is known
	SecretUse      = "secret.use"      // a value was put into a request
	SecretAlarm    = "secret.alarm"    // a placeholder was where it must not be, or a value
	SecretLease    = "secret.lease"
	SecretRevoke   = "secret.revoke"
)

// Log is the audit in a store.
type Log struct{ Store *store.Store }

// Append adds records in one transaction, all or none. It gives each its number and its hashes; an empty time is the
// present, a count of 0 is 1.
func (l Log) Append(ctx context.Context, records ...Record) error {
	if len(records) == 0 {
		return nil
	}
	return l.Store.AppendAudit(ctx, func(last Record) ([]Record, error) {
		rows := make([]Record, len(records))
		for i, r := range records {
			if err := complete(&r); err != nil {
				return nil, fmt.Errorf("the audit of %q: %w", r.Action, err)
			}
			r.Seq, r.Prev = last.Seq+1, last.Hash
			r.Hash = hash(r)
			rows[i], last = r, r
		}
		return rows, nil
	})
}

// complete fills in what is missing, and makes of every field what will be read back.
func complete(r *Record) error {
	if r.Time.IsZero() {
		r.Time = store.Now()
	}
	if r.Count == 0 {
		r.Count = 1
	}
	if len(r.Detail) > 0 {
		var b bytes.Buffer
		if err := json.Compact(&b, r.Detail); err != nil {
			return fmt.Errorf("its detail is not JSON: %w", err)
		}
		r.Detail = b.Bytes()
	}
	for _, s := range []*string{&r.Action, &r.Object, &r.RunID, &r.SandboxID, &r.Rule, &r.Reason} {
		// A zero byte would end the text for SQLite's own functions, and what is no UTF-8 cannot be shown.
		*s = strings.ReplaceAll(strings.ToValidUTF8(*s, "\uFFFD"), "\x00", "\uFFFD")
	}
	return nil
}

// hash is over every field but itself, each with its length before it.
func hash(r Record) string {
	b := []byte("ravi audit 1\n")
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	number(r.Seq)
	number(r.Time.UnixMilli())
	number(r.Count)
	for _, s := range []string{r.Action, r.Object, string(r.Decision), r.RunID, r.SandboxID, r.Rule, r.Reason, string(r.Detail), r.Prev} {
		number(int64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// List gives the chosen rows, in their order or the newest first; Filter says how to page.
func (l Log) List(ctx context.Context, f Filter) ([]Record, error) { return l.Store.Audit(ctx, f) }

// Verify reads the whole audit, and fails with ErrTampered at the first row that was changed, is missing, or stands
// where it did not.
func (l Log) Verify(ctx context.Context) error {
	// First: rows may be added meanwhile.
	end, err := l.Store.AuditEnd(ctx)
	if err != nil {
		return err
	}
	var last Record
	for {
		rows, err := l.Store.Audit(ctx, Filter{After: last.Seq})
		if err != nil {
			return err
		}
		for _, r := range rows {
			switch {
			case r.Seq != last.Seq+1:
				return fmt.Errorf("%w: row %d is missing", ErrTampered, last.Seq+1)
			case r.Hash != hash(r):
				return fmt.Errorf("%w: row %d was changed", ErrTampered, r.Seq)
			case r.Prev != last.Hash:
				return fmt.Errorf("%w: row %d does not follow the one before it, which was changed, or stood elsewhere", ErrTampered, r.Seq)
			}
			last = r
		}
		if len(rows) == 0 {
			break
		}
	}
	if last.Seq < end {
		return fmt.Errorf("%w: rows %d to %d are missing at the end", ErrTampered, last.Seq+1, end)
	}
	return nil
}
