// Package audit is the record of what was decided about access, allowed and denied alike, in a chain that shows
// tampering.
//
// Each row holds the hash of the one before it and a hash over all that it says. Who changes, removes or re-orders rows
// has to compute every later hash anew, and whoever knows one of these sees it. The newest one is therefore kept in a
// second place, the head; it shows as well that rows were cut off at the end, or that all was written anew.
//
// What was appended without an error is on the disk, and so is a head of it, also when the power goes.
//
// The package writes to the store's table and to the head's file, and to nothing else. It decides nothing and knows
// nothing of networks, secrets or commands. It must be given no secret values: its rows are never changed, so they are
// never scrubbed.
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
	"path/filepath"
	"strings"

	"ravi/internal/store"
)

// Record is one row: a decision, or several that are equal.
type Record = store.AuditRecord

// Filter chooses rows.
type Filter = store.AuditFilter

// Operator is the caller that has no key.
const Operator = "operator"

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
	KeyIssue       = "key.issue" // of a run's context key
	KeyRevoke      = "key.revoke"
	LeaseIssue     = "lease.issue" // of a run's model lease
	LeaseRevoke    = "lease.revoke"
	BusIssue       = "bus.issue" // of a run's credentials for the bus; those of others are commands
	BusRevoke      = "bus.revoke"
	WorkBegin      = "work.begin"   // a run for a message, as the operator said of the agent; its object is the work
	ModelCall      = "model.call"   // a call of a model, before it is sent
	ModelAnswer    = "model.answer" // what is kept of the answer to one, where a run keeps it
	// What became of a command that an agent has to ask for; refuse is of one for which nobody could be asked.
	ApprovalAsk      = "approval.ask"
	ApprovalRefuse   = "approval.refuse"
	ApprovalGrant    = "approval.grant"
	ApprovalDeny     = "approval.deny"
	ApprovalUse      = "approval.use" // before the command begins
	ApprovalExpire   = "approval.expire"
	ApprovalWithdraw = "approval.withdraw"
	// These go before a command's full name, such as tasks.comment: what was decided about a call, and how one ended that
	// changes something.
	CommandPrefix = "command."
	OutcomePrefix = "outcome."
	HeadBegun     = "audit.head.begun"    // there was no head, though there were rows
	HeadAccepted  = "audit.head.accepted" // the operator had the head follow a table that does not fit to it
)

// HeadFile is the head's name beside the database, where it is unless told otherwise.
const HeadFile = "audit.head"

// What a row can hold, in bytes. A longer text is cut.
const (
	mostRowText   = 4 << 10
	mostRowDetail = 64 << 10
)

// Log is the audit in a store.
type Log struct {
	Store *store.Store
	// Head is the file of the head, best on another disk; empty is HeadFile beside the database. Whoever appends to one
	// database has to name the same.
	Head string
}

// Append adds records in one transaction, all or none, and returns when they are durable. It gives each its number and
// its hashes; an empty time is the present, a count of 0 is 1. Who appends much uses a Writer.
func (l Log) Append(ctx context.Context, records ...Record) error {
	group, err := prepare(records)
	if err != nil || len(group) == 0 {
		return err
	}
	conn := l.Store.AuditConn()
	errs, err := l.commit(ctx, conn, [][]Record{group})
	return errors.Join(err, errors.Join(errs...), conn.Close())
}

// commit adds groups, each all or none, then moves the head. The errors are those of single groups.
//
// The head goes last: a crash between the two leaves it behind the table, which Verify allows. A head that is ahead of
// the table means missing rows, and nothing else.
func (l Log) commit(ctx context.Context, conn *store.AuditConn, groups [][]Record) ([]error, error) {
	errs, err := conn.Append(ctx, groups, link)
	if err != nil {
		return nil, err
	}
	var first, last *Record
	for i, group := range groups {
		if errs[i] != nil || len(group) == 0 {
			continue
		}
		if first == nil {
			first = &group[0]
		}
		last = &group[len(group)-1]
	}
	if last == nil {
		return errs, nil
	}
	path, err := l.head(ctx)
	if err != nil {
		return nil, err
	}
	begun, err := moveHead(ctx, path, first, last, l.hashOf)
	if err != nil {
		return nil, err
	}
	if begun && first.Seq > 1 {
		// An old audit, or a head that was removed. Nobody can tell them apart but who reads this.
		row, err := prepare([]Record{{Caller: Operator, Action: HeadBegun, Object: path, Decision: store.Allowed,
			Reason: fmt.Sprintf("there was no head, though there were %d rows", first.Seq-1)}})
		if err != nil {
			return nil, err
		}
		if _, err := l.commit(ctx, conn, [][]Record{row}); err != nil {
			return nil, err
		}
	}
	return errs, nil
}

func link(r *Record, seq int64, prev string) {
	r.Seq, r.Prev = seq, prev
	r.Hash = hash(*r)
}

func (l Log) head(ctx context.Context) (string, error) {
	if l.Head != "" {
		return l.Head, nil
	}
	dir, err := l.Store.Dir(ctx)
	return filepath.Join(dir, HeadFile), err
}

// hashOf is the hash of a row, empty if there is none.
func (l Log) hashOf(ctx context.Context, seq int64) (string, error) {
	rows, err := l.Store.Audit(ctx, Filter{After: seq - 1, Limit: 1})
	if err != nil || len(rows) == 0 || rows[0].Seq != seq {
		return "", err
	}
	return rows[0].Hash, nil
}

// prepare makes rows of records, and refuses what the table would.
func prepare(records []Record) ([]Record, error) {
	rows := make([]Record, len(records))
	for i, r := range records {
		if err := complete(&r); err != nil {
			return nil, fmt.Errorf("the audit of %q: %w", r.Action, err)
		}
		rows[i] = r
	}
	return rows, nil
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
		if r.Detail = json.RawMessage(withoutKeys(b.String())); len(r.Detail) > mostRowDetail {
			return fmt.Errorf("its detail has %d bytes, more than %d", len(r.Detail), mostRowDetail)
		}
	}
	for _, s := range []*string{&r.Caller, &r.Action, &r.Object, &r.RunID, &r.SandboxID, &r.Rule, &r.Reason} {
		// A zero byte would end the text for SQLite's own functions, and what is no UTF-8 cannot be shown.
		*s = withoutKeys(strings.ReplaceAll(strings.ToValidUTF8(*s, "\uFFFD"), "\x00", "\uFFFD"))
		if len(*s) > mostRowText {
			*s = strings.ToValidUTF8((*s)[:mostRowText-3], "") + "…"
		}
	}
	switch {
	case r.Action == "":
		return errors.New("it says not what was done")
	case r.Decision != store.Allowed && r.Decision != store.Denied && r.Decision != store.Unknown:
		return fmt.Errorf("%q is no decision", r.Decision)
	case r.Count < 0:
		return fmt.Errorf("it counts %d", r.Count)
	}
	return nil
}

// hash is over every field but itself, each with its length before it. Rows of before there were callers have a form of
// their own, which rows with a caller cannot have: the first line differs.
func hash(r Record) string {
	form, fields := "ravi audit 1\n", []string{r.Action, r.Object, string(r.Decision), r.RunID, r.SandboxID, r.Rule, r.Reason, string(r.Detail), r.Prev}
	if r.Caller != "" {
		form, fields = "ravi audit 2\n", append(fields, r.Caller)
	}
	b := []byte(form)
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	number(r.Seq)
	number(r.Time.UnixMilli())
	number(r.Count)
	for _, s := range fields {
		number(int64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// List gives the chosen rows, in their order or the newest first; Filter says how to page.
func (l Log) List(ctx context.Context, f Filter) ([]Record, error) { return l.Store.Audit(ctx, f) }

// SearchRows is how many rows Search looks through at most: for a text, in them all, that is some 20 ms.
const SearchRows = 20_000

// Search gives the chosen rows as List does, but looks through SearchRows rows at most. next is where to go on, to be
// given as After, or as Before if the newest come first; it is 0 at the end.
func (l Log) Search(ctx context.Context, f Filter) (rows []Record, next int64, err error) {
	return l.search(ctx, f, SearchRows)
}

func (l Log) search(ctx context.Context, f Filter, most int64) (rows []Record, next int64, err error) {
	end, err := l.Store.AuditEnd(ctx)
	if err != nil {
		return nil, 0, err
	}
	if f.Limit <= 0 {
		f.Limit = store.AuditPage
	}
	lowest, highest := f.After, end+1 // themselves excluded
	if f.Before > 0 {
		highest = min(highest, f.Before)
	}
	f.After, f.Before = lowest, highest
	if f.Newest {
		f.After = max(lowest, highest-1-most)
	} else {
		f.Before = min(highest, lowest+1+most)
	}
	if f.After+1 >= f.Before {
		return []Record{}, 0, nil
	}
	rows, err = l.Store.Audit(ctx, f)
	switch {
	case err != nil:
		return nil, 0, err
	case len(rows) == f.Limit:
		return rows, rows[len(rows)-1].Seq, nil
	case f.Newest && f.After > lowest:
		return rows, f.After + 1, nil
	case !f.Newest && f.Before < highest:
		return rows, f.Before - 1, nil
	}
	return rows, 0, nil
}
