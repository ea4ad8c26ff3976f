package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Decision is what was decided about access.
type Decision string

// What can be decided. Unknown is for decisions of which only the number is known.
const (
	Allowed Decision = "allowed"
	Denied  Decision = "denied"
	Unknown Decision = "unknown"
)

// AuditRecord is one row of the audit. The package audit gives Prev and Hash their meaning.
type AuditRecord struct {
	Seq       int64           `json:"seq"` // 1, 2, 3, …
	Time      time.Time       `json:"time"`
	Caller    string          `json:"caller,omitempty"` // operator, or the id of a key; empty before there were callers
	Action    string          `json:"action"`
	Object    string          `json:"object,omitempty"`
	Decision  Decision        `json:"decision"`
	RunID     string          `json:"run_id,omitempty"`
	SandboxID string          `json:"sandbox_id,omitempty"`
	Rule      string          `json:"rule,omitempty"`   // that decided
	Reason    string          `json:"reason,omitempty"` // for people
	Detail    json.RawMessage `json:"detail,omitempty"` // JSON, or nothing
	Count     int64           `json:"count"`            // how many decisions these were
	Prev      string          `json:"prev"`
	Hash      string          `json:"hash"`
}

// AuditFilter chooses rows of the audit; the zero filter chooses the first AuditPage of them.
type AuditFilter struct {
	Caller, RunID, SandboxID, Object string   // empty: any
	Action                           string   // empty: any; with a dot at its end, all that begin so
	Decision                         Decision // empty: any
	Since, Until                     time.Time
	Text                             string // part of the reason or of the detail; capitals count for ASCII alone
	// After and Before bound the numbers of the rows, themselves excluded: where the next page begins. 0 is no bound.
	After, Before int64
	// Newest gives the newest rows first.
	Newest bool
	Limit  int // 0 is AuditPage
}

// AuditPage is how many rows of the audit are given at once unless told otherwise.
const AuditPage = 1000

// mostAuditText bounds a text to search for; SQLite has a bound of its own.
const mostAuditText = 1000

const auditColumns = `seq, time, action, object, decision, run_id, sandbox_id, rule, reason, detail, count, prev, hash, caller`

// Audit gives the chosen rows of the audit in their order.
func (s *Store) Audit(ctx context.Context, f AuditFilter) ([]AuditRecord, error) {
	if len(f.Text) > mostAuditText {
		return nil, fmt.Errorf("the audit is searched for at most %d bytes, these are %d", mostAuditText, len(f.Text))
	}
	query, args := f.query()
	return collect(ctx, s.reads, scanAudit, query, args...)
}

func (f AuditFilter) query() (query string, args []any) {
	var where []string
	add := func(chosen bool, condition string, arg any) {
		if chosen {
			where, args = append(where, condition), append(args, arg)
		}
	}
	add(f.Caller != "", `caller = ?`, f.Caller)
	add(f.RunID != "", `run_id = ?`, f.RunID)
	add(f.SandboxID != "", `sandbox_id = ?`, f.SandboxID)
	// An action is text of ours; what begins with a dot at its end ends where the byte after the dot would be.
	group := strings.HasSuffix(f.Action, ".")
	add(f.Action != "" && !group, `action = ?`, f.Action)
	add(group, `action >= ?`, f.Action)
	add(group, `action < ?`, strings.TrimSuffix(f.Action, ".")+"/")
	if f.Text != "" {
		where = append(where, `(reason LIKE ? ESCAPE '\' OR detail LIKE ? ESCAPE '\')`)
		like := "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(f.Text) + "%"
		args = append(args, like, like)
	}
	add(f.Object != "", `object = ?`, f.Object)
	add(f.Decision != "", `decision = ?`, string(f.Decision))
	add(!f.Since.IsZero(), `time >= ?`, f.Since.UnixMilli())
	add(!f.Until.IsZero(), `time < ?`, f.Until.UnixMilli())
	add(f.After > 0, `seq > ?`, f.After)
	add(f.Before > 0, `seq < ?`, f.Before)
	query = `SELECT ` + auditColumns + ` FROM audit`
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, ` AND `)
	}
	query += ` ORDER BY seq`
	if f.Newest {
		query += ` DESC`
	}
	limit := f.Limit
	if limit <= 0 {
		limit = AuditPage
	}
	return query + ` LIMIT ?`, append(args, limit)
}

// AuditEnd is the number of the last row that the audit ever had, 0 if it never had one.
func (s *Store) AuditEnd(ctx context.Context) (int64, error) {
	return number(ctx, s.reads, `SELECT seq FROM sqlite_sequence WHERE name = 'audit'`)
}

func scanAudit(rows *sql.Rows) (AuditRecord, error) {
	var r AuditRecord
	var at int64
	var decision, detail string
	if err := rows.Scan(&r.Seq, &at, &r.Action, &r.Object, &decision, &r.RunID, &r.SandboxID, &r.Rule, &r.Reason, &detail,
		&r.Count, &r.Prev, &r.Hash, &r.Caller); err != nil {
		return AuditRecord{}, err
	}
	r.Time, r.Decision = time.UnixMilli(at).UTC(), Decision(decision)
	if detail != "" {
		r.Detail = json.RawMessage(detail)
	}
	return r, nil
}
