package approval

import (
	"context"
	"errors"
	"fmt"

	"ravi/internal/audit"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// LateError is a decision that has no effect, since nobody waits for it. It is a store.ErrFinal.
type LateError struct {
	ID    string
	Grant bool // what was tried
	Why   string
}

func (e *LateError) Error() string {
	what := "nothing was denied"
	if e.Grant {
		what = "nothing was granted"
	}
	return fmt.Sprintf("%s: %s %s", what, e.ID, e.Why)
}

// Unwrap makes it an ErrFinal.
func (e *LateError) Unwrap() error { return store.ErrFinal }

// Decide grants or denies an approval, named by its full id. Whoever calls it has made sure that d.By may. A decision that
// comes too late changes nothing, and is a *LateError. It is written down before it holds.
func Decide(ctx context.Context, s *store.Store, log Log, id string, d store.ApprovalDecision) (store.Approval, error) {
	if err := d.Check(); err != nil {
		return store.Approval{}, err
	}
	asked, err := waiting(ctx, s, id, d)
	if err != nil {
		return store.Approval{}, err
	}
	action, decision := audit.ApprovalDeny, store.Denied
	if d.Grant {
		action, decision = audit.ApprovalGrant, store.Allowed
	}
	if err := write(ctx, log, action, decision, d.By, asked, d.Note); err != nil {
		return store.Approval{}, err
	}
	decided, err := s.DecideApproval(ctx, id, d)
	if errors.Is(err, store.ErrFinal) { // it ended since it was looked at
		if _, late := waiting(ctx, s, id, d); late != nil {
			err = late
		}
	}
	return decided, err
}

// waiting is the approval, if somebody waits for a decision.
func waiting(ctx context.Context, s *store.Store, id string, d store.ApprovalDecision) (store.Approval, error) {
	a, err := s.Approval(ctx, id)
	if err != nil {
		return a, err
	}
	late := func(format string, args ...any) (store.Approval, error) {
		return a, &LateError{ID: id, Grant: d.Grant, Why: fmt.Sprintf(format, args...)}
	}
	switch a.Status {
	case store.ApprovalPending:
	case store.ApprovalGranted:
		return late("was granted already, by %s", a.DecidedBy)
	case store.ApprovalUsed:
		return late("was granted by %s, and is used up", a.DecidedBy)
	case store.ApprovalDenied:
		return late("was denied by %s", a.DecidedBy)
	default:
		return late("is %s: %s", a.Status, a.Ending)
	}
	if !d.At.Before(a.ExpiresAt) {
		return late("has expired")
	}
	run, err := s.Run(ctx, a.RunID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return late("is of a run that is not there any more")
	case err != nil:
		return a, err
	case run.Status.Final():
		return late("is of the run %s, which is %s", run.ID, run.Status)
	case !procid.Alive(run.Owner):
		return late("is of the run %s, whose process is gone", run.ID)
	}
	return a, nil
}

// Settle ends the approvals for which nobody waits: their time is over, or their run is. A run whose process is gone has
// been closed before.
func Settle(ctx context.Context, s *store.Store, log Log) error {
	live, err := s.ListApprovals(ctx, store.ApprovalFilter{Live: true})
	if err != nil {
		return err
	}
	for _, a := range live {
		how, why := store.ApprovalExpired, "nobody decided in time"
		if a.Status == store.ApprovalGranted {
			why = "it was granted, and not used in time"
		}
		run, err := s.Run(ctx, a.RunID)
		switch {
		case errors.Is(err, store.ErrNotFound) || err == nil && run.Status.Final():
			how, why = store.ApprovalWithdrawn, "the run is over"
		case err != nil:
			return err
		case store.Now().Before(a.ExpiresAt):
			continue
		}
		if _, err := end(ctx, s, log, run.CreatedBy, a.ID, how, why); err != nil {
			return err
		}
	}
	return nil
}
