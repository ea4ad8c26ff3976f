package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ApprovalStatus is how far an approval got.
type ApprovalStatus string

// The states of an approval. All but pending and granted are final.
const (
	ApprovalPending   ApprovalStatus = "pending"
	ApprovalGranted   ApprovalStatus = "granted" // and not used yet
	ApprovalDenied    ApprovalStatus = "denied"
	ApprovalUsed      ApprovalStatus = "used"
	ApprovalExpired   ApprovalStatus = "expired"
	ApprovalWithdrawn ApprovalStatus = "withdrawn" // whoever asked waits no longer
)

const (
	// MaxCommand is how many bytes of a command can be shown whole; what is longer cannot be approved.
	MaxCommand = 16 << 10
	// MaxWaiting is how many approvals of one run wait at once.
	MaxWaiting = 32
)

// Approval is the record of one command that an agent asked for, and of what became of that.
type Approval struct {
	ID        string         `json:"id"`
	RunID     string         `json:"run_id"`
	SessionID string         `json:"session_id,omitempty"`
	AgentID   string         `json:"agent_id,omitempty"`
	Tool      string         `json:"tool"`
	Digest    string         `json:"digest"`  // SHA-256 of the exact command, in hex
	Command   string         `json:"command"` // as it is shown: without the values of secrets
	Family    string         `json:"family,omitempty"`
	Reason    string         `json:"reason,omitempty"` // why it has to be asked for
	Status    ApprovalStatus `json:"status"`
	CreatedAt time.Time      `json:"created_at"`
	ExpiresAt time.Time      `json:"expires_at"`
	DecidedAt *time.Time     `json:"decided_at,omitempty"`
	DecidedBy string         `json:"decided_by,omitempty"` // operator, or the id of a key
	Note      string         `json:"note,omitempty"`       // of who decided
	EndedAt   *time.Time     `json:"ended_at,omitempty"`
	Ending    string         `json:"ending,omitempty"` // why it ended, where nobody decided that
}

// ApprovalFilter chooses approvals; the zero filter chooses all.
type ApprovalFilter struct {
	Pending bool      // only those about which somebody can decide at the moment At
	Live    bool      // only those that have not ended
	RunID   string    // empty: any
	RunIDs  []string  // only of these; empty, but not nil: none
	At      time.Time // for Pending
	Before  string    // the id after which the page begins
	Limit   int       // the newest so many; 0 is no limit
}

// ApprovalDecision is what somebody decided, and when.
type ApprovalDecision struct {
	Grant    bool
	By, Note string
	At       time.Time
}

var approvals = table[Approval]{
	name: "approvals", what: "approval",
	columns: `id, run_id, session_id, agent_id, tool, digest, command, family, reason, status, created_at, expires_at, decided_at,
	decided_by, note, ended_at, ending`,
	order: byPlace,
	args: func(a *Approval) ([]any, error) {
		return []any{a.ID, a.RunID, a.SessionID, a.AgentID, a.Tool, a.Digest, a.Command, a.Family, a.Reason, string(a.Status),
			a.CreatedAt.UnixMilli(), a.ExpiresAt.UnixMilli(), millis(a.DecidedAt), a.DecidedBy, a.Note, millis(a.EndedAt), a.Ending}, nil
	},
	scan: func(rows *sql.Rows) (a Approval, err error) {
		var created, expires int64
		var decided, ended sql.NullInt64
		err = rows.Scan(&a.ID, &a.RunID, &a.SessionID, &a.AgentID, &a.Tool, &a.Digest, &a.Command, &a.Family, &a.Reason, &a.Status,
			&created, &expires, &decided, &a.DecidedBy, &a.Note, &ended, &a.Ending)
		a.CreatedAt, a.ExpiresAt, a.DecidedAt, a.EndedAt = fromMilli(created), fromMilli(expires), fromMillis(decided), fromMillis(ended)
		return a, err
	},
	id: func(a Approval) string { return a.ID },
}

// NewApprovalID makes the id of an approval.
func NewApprovalID() string { return newID("apr") }

// InsertApproval records what a run that is not over asks for. An empty id or time is filled in, and the record is given
// back as it was stored.
func (s *Store) InsertApproval(ctx context.Context, a Approval) (Approval, error) {
	if a.ID == "" {
		a.ID = NewApprovalID()
	}
	if a.CreatedAt.IsZero() {
		a.CreatedAt = Now()
	}
	a.Status, a.CreatedAt, a.ExpiresAt = ApprovalPending, inMillis(a.CreatedAt), inMillis(a.ExpiresAt)
	if err := checkApproval(a); err != nil {
		return Approval{}, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := runGoesOn(ctx, tx, a.RunID); err != nil {
			return err
		}
		n, err := number(ctx, tx, `SELECT count(*) FROM approvals WHERE ended_at IS NULL AND +run_id = ?`, a.RunID)
		if err != nil {
			return err
		}
		if n >= MaxWaiting {
			return fmt.Errorf("one more approval of run %s is %w: %d of it wait", a.RunID, ErrInvalid, n)
		}
		if err := approvals.insert(ctx, tx, &a); err != nil {
			return err
		}
		return happened(ctx, tx, EventApprovalAsked, a.RunID, a.RunID, approvalData(a))
	})
	if err != nil {
		return Approval{}, err
	}
	return a, nil
}

func checkApproval(a Approval) error {
	if digest, err := hex.DecodeString(a.Digest); err != nil || len(digest) != 32 || hex.EncodeToString(digest) != a.Digest {
		return fmt.Errorf("the digest of approval %s is %w: it is no SHA-256 in hex", a.ID, ErrInvalid)
	}
	switch {
	case a.Command == "" || a.Tool == "":
		return fmt.Errorf("approval %s is %w: it says not for what", a.ID, ErrInvalid)
	case !a.ExpiresAt.After(a.CreatedAt):
		return fmt.Errorf("approval %s is %w: it expires before it is asked for", a.ID, ErrInvalid)
	case a.DecidedAt != nil || a.DecidedBy != "" || a.Note != "" || a.EndedAt != nil || a.Ending != "":
		return fmt.Errorf("approval %s is %w: it was decided before it is asked for", a.ID, ErrInvalid)
	}
	if err := checkText("the command", a.Command, MaxCommand); err != nil {
		return err
	}
	return checkLines(line{"the name of the tool", a.Tool}, line{"the family", a.Family}, line{"the reason", a.Reason})
}

// runGoesOn refuses what only a run that is not over can ask for or be given.
func runGoesOn(ctx context.Context, tx *sql.Tx, id string) error {
	r, err := runs.get(ctx, tx, id)
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("run %s is not there any more: %w", id, ErrFinal)
	}
	if err == nil && r.Status.Final() {
		err = fmt.Errorf("run %s is %s: %w", id, r.Status, ErrFinal)
	}
	return err
}

// approvalData is what an event tells of an approval: never the command.
func approvalData(a Approval) data {
	return data{"id": a.ID, "status": a.Status, "tool": a.Tool, "family": a.Family}
}

// DecideApproval grants or denies an approval, named by its full id, that is pending, has not expired, and whose run is not
// over. All else is refused with ErrFinal, and changes nothing.
func (s *Store) DecideApproval(ctx context.Context, id string, d ApprovalDecision) (Approval, error) {
	if err := d.Check(); err != nil {
		return Approval{}, err
	}
	return s.changeApproval(ctx, id, func(tx *sql.Tx, a *Approval) error {
		if a.Status != ApprovalPending {
			return fmt.Errorf("approval %s is %s already: %w", id, a.Status, ErrFinal)
		}
		if err := mayStill(ctx, tx, *a, d.At); err != nil {
			return err
		}
		at := inMillis(d.At)
		a.Status, a.DecidedAt, a.DecidedBy, a.Note = ApprovalGranted, &at, d.By, d.Note
		if !d.Grant {
			a.Status, a.EndedAt = ApprovalDenied, &at
		}
		return nil
	})
}

// UseApproval uses up an approval, named by its full id, that was granted to this run for the command with this digest, and
// has not expired. Of all who try it is one who succeeds, once.
func (s *Store) UseApproval(ctx context.Context, id, runID, digest string, at time.Time) (Approval, error) {
	return s.changeApproval(ctx, id, func(tx *sql.Tx, a *Approval) error {
		switch {
		case a.RunID != runID || a.Digest != digest:
			return fmt.Errorf("approval %s is %w here: it is for another command, or for another run", id, ErrInvalid)
		case a.Status != ApprovalGranted:
			return fmt.Errorf("approval %s is %s: %w", id, a.Status, ErrFinal)
		}
		if err := mayStill(ctx, tx, *a, at); err != nil {
			return err
		}
		ended := inMillis(at)
		a.Status, a.EndedAt = ApprovalUsed, &ended
		return nil
	})
}

// Check says what of a decision cannot be recorded.
func (d ApprovalDecision) Check() error {
	if d.By == "" {
		return fmt.Errorf("a decision of nobody is %w", ErrInvalid)
	}
	return checkLines(line{"the name of who decided", d.By}, line{"the note", d.Note})
}

// mayStill says whether an approval can still come to something.
func mayStill(ctx context.Context, tx *sql.Tx, a Approval, at time.Time) error {
	if !at.Before(a.ExpiresAt) {
		return fmt.Errorf("approval %s has expired: %w", a.ID, ErrFinal)
	}
	return runGoesOn(ctx, tx, a.RunID)
}

// EndApproval ends an approval, named by its full id, that is pending, or granted and not used: it has expired, or is
// withdrawn. It says whether that changed anything; what has ended stays as it is.
func (s *Store) EndApproval(ctx context.Context, id string, how ApprovalStatus, why string) (a Approval, changed bool, err error) {
	if err := errors.Join(checkOneOf("the end of an approval", how, ApprovalExpired, ApprovalWithdrawn), checkLines(line{"the reason", why})); err != nil {
		return Approval{}, false, err
	}
	a, err = s.changeApproval(ctx, id, func(_ *sql.Tx, a *Approval) error {
		if a.EndedAt == nil {
			now := Now()
			a.Status, a.EndedAt, a.Ending, changed = how, &now, why, true
		}
		return nil
	})
	return a, changed && err == nil, err
}

func (s *Store) changeApproval(ctx context.Context, id string, change func(*sql.Tx, *Approval) error) (Approval, error) {
	var a Approval
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if a, err = approvals.get(ctx, tx, id); err != nil {
			return err
		}
		was, err := approvals.args(&a)
		if err != nil {
			return err
		}
		if err := change(tx, &a); err != nil {
			return err
		}
		if changed, err := approvals.update(ctx, tx, was, &a); !changed {
			return err
		}
		return happened(ctx, tx, EventApprovalChanged, a.RunID, a.RunID, approvalData(a))
	})
	if err != nil {
		return Approval{}, err
	}
	return a, nil
}

// Approval finds one approval by its id, or by a beginning that only one has.
func (s *Store) Approval(ctx context.Context, id string) (Approval, error) {
	return approvals.find(ctx, s.reads, id, "")
}

// ListApprovals gives the chosen approvals, the newest first.
func (s *Store) ListApprovals(ctx context.Context, f ApprovalFilter) ([]Approval, error) {
	var c choice
	c.add(f.Live || f.Pending, `ended_at IS NULL`)
	c.add(f.Pending, `status = 'pending' AND expires_at > ?`, f.At.UnixMilli())
	c.is(`run_id`, f.RunID)
	c.among(`run_id`, f.RunIDs)
	return approvals.list(ctx, s.reads, c, f.Before, f.Limit)
}
