// Package approval asks somebody outside before an agent does what the gate does not let it do by itself. An approval is
// for one command, to the byte, of one call of one run, and is used once. Whoever asks waits for it; what is decided after
// that has no effect, and whoever decides is told so.
//
// It writes to the table of approvals and to the audit, and touches nothing else. It judges no command, runs none, and does
// not say who may decide: that is access. Where nobody can be asked the answer is no.
package approval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ravi/internal/audit"
	"ravi/internal/store"
)

const (
	// DefaultTTL is how long an approval waits unless told otherwise, and MaxTTL the longest.
	DefaultTTL = 10 * time.Minute
	MaxTTL     = 24 * time.Hour
	// lookEvery is how often whoever waits looks whether somebody decided: another process may have.
	lookEvery = 100 * time.Millisecond
	// endWithin bounds the writing of an end that nobody waits for any more.
	endWithin = 10 * time.Second
)

// Log is where what was decided is written down: audit.Log is one, and *audit.Writer.
type Log interface {
	Append(ctx context.Context, records ...audit.Record) error
}

// Asker asks for one run. It is safe for concurrent use if Tell is. A nil *Asker refuses everything.
type Asker struct {
	Store     *store.Store
	Audit     Log
	RunID     string
	SessionID string
	AgentID   string
	CreatedBy string        // whom the run is for, as it stands in records: operator, or the id of a key
	TTL       time.Duration // 0: DefaultTTL
	// Nobody says that there is nobody to ask: everything is refused, and written down.
	Nobody bool
	// Tell hears of what begins to wait, so that people can be shown it; nil: nobody does. It returns soon.
	Tell func(store.Approval)
}

// Request is what an agent wants to do.
type Request struct {
	Tool string
	// Command is what people are shown: the command, without the values of secrets.
	Command string
	// Digest is the SHA-256 of the command as it would be run, in hex. It is what is approved.
	Digest string
	Family string // the kind of thing that it does
	Reason string // why it has to be asked for
}

// Answer is what came of it. Only with Granted may the command run, now and once.
type Answer struct {
	ID      string // of the approval; empty if none was asked for
	Granted bool
	// Status tells what was denied from what nobody decided about; empty if nobody was asked.
	Status store.ApprovalStatus
	Why    string // for the agent, where it was not granted
}

// Ask asks, waits, and uses up what was granted. When ctx ends before, nothing is granted any more, and the error is why it
// ended. An error is never a grant.
func (a *Asker) Ask(ctx context.Context, r Request) (Answer, error) {
	const nobody = "it needs an approval, and in this run there is nobody to ask"
	if a == nil {
		return Answer{Why: nobody}, nil
	}
	asked := store.Approval{
		ID: store.NewApprovalID(), RunID: a.RunID, SessionID: a.SessionID, AgentID: a.AgentID,
		Tool: r.Tool, Digest: r.Digest, Command: r.Command, Family: r.Family, Reason: r.Reason, CreatedAt: store.Now(),
	}
	if a.Nobody {
		return a.refuse(ctx, asked, nobody)
	}
	ttl := a.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if ttl < 0 || ttl > MaxTTL {
		return Answer{}, fmt.Errorf("an approval cannot wait for %v: it is more than nothing, and at most %v", ttl, MaxTTL)
	}
	asked.ExpiresAt = asked.CreatedAt.Add(ttl)
	if err := a.write(ctx, audit.ApprovalAsk, store.Unknown, asked, r.Reason); err != nil {
		return Answer{}, err
	}
	waiting, err := a.Store.InsertApproval(ctx, asked)
	if errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrFinal) {
		return a.refuse(ctx, asked, "it needs an approval, and nobody can be asked for it: "+err.Error())
	}
	if err != nil {
		return Answer{}, err
	}
	if a.Tell != nil {
		a.Tell(waiting)
	}
	decided, err := a.wait(ctx, waiting, ttl)
	mine := false
	if err == nil && decided.Status == store.ApprovalGranted {
		decided, mine, err = a.use(ctx, decided)
	}
	if err != nil {
		// Whatever it is, nothing may come of the approval any more.
		why := "whoever asked could not wait: " + err.Error()
		if ctx.Err() != nil {
			why, err = "the turn is over", context.Cause(ctx)
		}
		_, ended := a.end(ctx, waiting.ID, store.ApprovalWithdrawn, why)
		return Answer{ID: waiting.ID, Status: store.ApprovalWithdrawn, Why: why}, errors.Join(err, ended)
	}
	if mine {
		return Answer{ID: decided.ID, Granted: true, Status: decided.Status}, nil
	}
	return Answer{ID: decided.ID, Status: decided.Status, Why: whyNot(decided, ttl)}, nil
}

// whyNot is what the agent is told.
func whyNot(a store.Approval, ttl time.Duration) string {
	switch {
	case a.Status == store.ApprovalDenied && a.Note != "":
		return "it was denied: " + a.Note
	case a.Status == store.ApprovalDenied:
		return "it was denied"
	case a.Status == store.ApprovalExpired:
		return fmt.Sprintf("nobody approved it within %v", ttl)
	case a.Status == store.ApprovalUsed:
		return "its approval is used up"
	}
	return fmt.Sprintf("it is %s: %s", a.Status, a.Ending)
}

// wait returns when the approval is not pending any more.
func (a *Asker) wait(ctx context.Context, waiting store.Approval, ttl time.Duration) (store.Approval, error) {
	// Both clocks count: the machine may sleep, and its clock may be set back.
	over := time.NewTimer(ttl)
	defer over.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		now, err := a.Store.Approval(ctx, waiting.ID)
		if err != nil || now.Status != store.ApprovalPending {
			return now, err
		}
		late := !store.Now().Before(now.ExpiresAt)
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-over.C:
			late = true
		case <-look.C:
		}
		if late {
			return a.end(ctx, now.ID, store.ApprovalExpired, "nobody decided in time")
		}
	}
}

// use uses up what was granted, and says whether this was who did. The command may begin when that is written down.
func (a *Asker) use(ctx context.Context, granted store.Approval) (used store.Approval, mine bool, err error) {
	if err := ctx.Err(); err != nil {
		return granted, false, err
	}
	used, err = a.Store.UseApproval(ctx, granted.ID, a.RunID, granted.Digest, store.Now())
	if errors.Is(err, store.ErrFinal) {
		// It ended, or its time was over, between the grant and its use.
		used, err = a.end(ctx, granted.ID, store.ApprovalExpired, "it was granted, and too late to be used")
		return used, false, err
	}
	if err == nil {
		err = a.write(ctx, audit.ApprovalUse, store.Allowed, used, "")
	}
	return used, err == nil, err
}

// end ends an approval, if it has not ended yet, also where ctx has.
func (a *Asker) end(ctx context.Context, id string, how store.ApprovalStatus, why string) (store.Approval, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	return end(ctx, a.Store, a.Audit, a.CreatedBy, id, how, why)
}

func end(ctx context.Context, s *store.Store, log Log, caller, id string, how store.ApprovalStatus, why string) (store.Approval, error) {
	ended, changed, err := s.EndApproval(ctx, id, how, clip(why))
	if err != nil || !changed {
		return ended, err
	}
	action := map[store.ApprovalStatus]string{store.ApprovalExpired: audit.ApprovalExpire, store.ApprovalWithdrawn: audit.ApprovalWithdraw}[how]
	return ended, write(ctx, log, action, store.Denied, caller, ended, why)
}

// clip keeps of a reason what a record has room for.
func clip(why string) string {
	if len(why) <= store.MaxLine {
		return why
	}
	cut := store.MaxLine - len("…")
	for cut > 0 && why[cut]&0xC0 == 0x80 { // in the middle of a character
		cut--
	}
	return why[:cut] + "…"
}

// refuse writes down that nobody was asked.
func (a *Asker) refuse(ctx context.Context, asked store.Approval, why string) (Answer, error) {
	return Answer{Why: why}, a.write(ctx, audit.ApprovalRefuse, store.Denied, asked, why)
}

func (a *Asker) write(ctx context.Context, action string, d store.Decision, of store.Approval, reason string) error {
	return write(ctx, a.Audit, action, d, a.CreatedBy, of, reason)
}

// write writes down what happened to an approval.
func write(ctx context.Context, log Log, action string, d store.Decision, caller string, of store.Approval, reason string) error {
	input := map[string]any{"tool": of.Tool, "digest": of.Digest}
	if of.Family != "" {
		input["family"] = of.Family
	}
	if action == audit.ApprovalAsk || action == audit.ApprovalRefuse {
		input["command"] = of.Command
	}
	row, err := audit.Call{Caller: caller, Action: action, Object: of.ID, Decision: d, Reason: reason, RunID: of.RunID, Input: input}.Record(nil)
	if err == nil {
		err = log.Append(ctx, row)
	}
	if err != nil {
		return fmt.Errorf("what became of approval %s could not be written down: %w", of.ID, err)
	}
	return nil
}
