package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/store"
)

// Call runs the command on an input from NewInput, if the caller may. The decision is written down first; a call whose
// record cannot be written does not happen, and gives no answer.
func (c *Command) Call(ctx context.Context, env *Env, in any) (any, error) {
	start := time.Now()
	env.Found = nil
	object, err := c.check(ctx, env, in)
	record := c.record(env, in, object)
	if err != nil {
		if errors.Is(err, access.ErrDenied) {
			record.Decision, record.Reason = store.Denied, AsError(err).Message
			if werr := c.write(ctx, env, record); werr != nil {
				err = werr // a refusal that nobody would know of is a fault first
			}
		}
		return nil, err
	}
	// What changes something is written down before, and how it ended after. What only reads has one record, which is
	// there before the caller gets the answer.
	if c.Access == Write {
		if err := c.write(ctx, env, record); err != nil {
			return nil, err
		}
		record.Action, record.Input = audit.OutcomePrefix+c.FullName(), nil
	}
	out, err := c.run(ctx, env, in)
	if err != nil {
		record.Reason = "failed: " + AsError(err).Code
	}
	record.Took = time.Since(start)
	// What was done was done, also if whoever asked for it has gone away.
	if werr := c.write(context.WithoutCancel(ctx), env, record); werr != nil {
		return nil, errors.Join(werr, err)
	}
	return out, err
}

// May says whether the caller could call the command, with some object at least.
func (c *Command) May(env *Env) bool {
	if c.Reach == LocalOnly || c.Reach == OperatorOnly && !env.Caller.IsOperator() {
		return false
	}
	if c.Self && env.Caller.Key != nil {
		return true
	}
	if c.Judges && env.Caller.RunID() != "" {
		return false
	}
	if c.Scoped || c.object != nil {
		return env.Caller.Somewhere(c.ask("")) == nil
	}
	return env.Caller.Check(c.ask("")) == nil
}

func (c *Command) ask(object string) access.Ask {
	return access.Ask{Access: c.Access, Group: c.Group, Command: c.Name, Object: object}
}

// check says whether the caller may do this. An object that the caller may know nothing of is refused whether it is
// there or not.
func (c *Command) check(ctx context.Context, env *Env, in any) (object string, err error) {
	if env.Caller.IsOperator() {
		if c.object != nil && env.Auditor != nil {
			object, err = c.object(ctx, env, in)
		}
		return object, err
	}
	if c.Reach != Everywhere {
		return "", denied(&access.Denied{Caller: env.Caller.Name(), Missing: "the operator: " + c.FullName() + " is not for keys"})
	}
	switch {
	case c.Self && env.Caller.Key != nil:
	case c.Judges && env.Caller.RunID() != "":
		err = noRunJudges(env.Caller)
	case c.Scoped:
		err = env.Caller.Somewhere(c.ask(""))
	case c.object == nil:
		err = env.Caller.Check(c.ask(""))
	default:
		if err = env.Caller.Somewhere(c.ask("")); err != nil {
			return "", denied(err) // nothing is looked up for those who may do it to nothing
		}
		object, err = c.object(ctx, env, in)
		if missing := errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrAmbiguous); err != nil && !missing {
			return "", err
		} else if may := c.may(ctx, env, object); missing && may == nil {
			return "", err
		} else {
			err = may
		}
	}
	if err != nil {
		return object, denied(err)
	}
	defaults := c.NewInput()
	for i := range c.Fields {
		f := &c.Fields[i]
		if !f.Host.free() && f.Given(in, defaults) && !slices.Contains(c.bounded, f.JSON) {
			return object, denied(&access.Denied{Caller: env.Caller.Name(), Missing: fmt.Sprintf("the operator: %q names something of the host", f.JSON)})
		}
	}
	return object, nil
}

// may says whether the holder of a key may do it to an object.
func (c *Command) may(ctx context.Context, env *Env, object string) error {
	err := env.Check(ctx, c.ask(object))
	if err == nil && c.Judges {
		err = env.judges(ctx, c.ask(object))
	}
	return err
}

func noRunJudges(who access.Caller) error {
	return &access.Denied{Caller: who.Name(), Missing: "somebody outside: no run decides about what runs may do"}
}

// judges says whether a key may decide about a run. Each key from it upwards is no run's, and names the run or made it: so
// nobody gives a child what is not its own to give.
func (e *Env) judges(ctx context.Context, a access.Ask) error {
	s, err := e.Store(ctx)
	if err != nil {
		return err
	}
	line, err := s.KeyLineage(ctx, e.Caller.Key.ID)
	if err != nil {
		return err
	}
	by, err := e.maker(ctx, a.Object)
	if err != nil {
		return err
	}
	makers := []store.Key{}
	if by != "" && by != access.Operator {
		if makers, err = s.KeyLineage(ctx, by); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	for _, k := range line {
		if k.Kind == store.KeyRun || k.RunID != "" {
			return noRunJudges(e.Caller)
		}
		holds, err := access.ParseCapabilities(k.Capabilities)
		if err != nil {
			return err
		}
		all, patterns := holds.Objects(a)
		own := (all || slices.Contains(patterns, access.Own)) && slices.ContainsFunc(makers, func(m store.Key) bool { return m.ID == k.ID })
		if !own && !access.Matches(patterns, a.Object) {
			return &access.Denied{Caller: e.Caller.Name(), Missing: a.Capability().String() + ", by name, or a run of its own"}
		}
	}
	return nil
}

// denied is a refusal as it is told.
func denied(err error) error {
	return &Error{Code: CodeDenied, Message: err.Error(), Status: http.StatusForbidden, Exit: ExitFailed, Err: err, Hint: deniedHint}
}

const deniedHint = "ask whoever issued the key for one that may: ravi context whoami shows what this one holds"

// Denied is the refusal of a handler that looked closer than the access check can.
func Denied(err error) error { return denied(err) }

// Check says whether the caller may do what is asked, to an object that is named or that was made with its key.
func (e *Env) Check(ctx context.Context, a access.Ask) error {
	denied := e.Caller.Check(a)
	if denied == nil || a.Object == "" {
		return denied
	}
	own := a
	own.Object = access.Own
	if e.Caller.Check(own) != nil {
		return denied
	}
	made, err := e.made(ctx, a.Object)
	if err != nil {
		return err
	}
	if !made {
		return denied
	}
	return nil
}

// made says whether a run or a sandbox, by its full id, was made with the caller's key.
func (e *Env) made(ctx context.Context, id string) (bool, error) {
	by, err := e.maker(ctx, id)
	if err != nil || by == "" {
		return false, err
	}
	return e.Made(ctx, by)
}

// maker is who made a run or a sandbox, by its full id; empty for what is not there.
func (e *Env) maker(ctx context.Context, id string) (string, error) {
	s, err := e.Store(ctx)
	if err != nil {
		return "", err
	}
	have, by := "", ""
	switch {
	case strings.HasPrefix(id, "run"):
		var r store.Run
		r, err = s.Run(ctx, id)
		have, by = r.ID, r.CreatedBy
	case strings.HasPrefix(id, "sbx"):
		var b store.Sandbox
		b, err = s.Sandbox(ctx, id)
		have, by = b.ID, b.CreatedBy
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrAmbiguous) {
		return "", nil
	}
	if err != nil || have != id {
		return "", err
	}
	return by, nil
}

// Made says whether what somebody made counts as the caller's own: its key did, or one that descends from that. So no key
// reaches what its parent does not.
func (e *Env) Made(ctx context.Context, by string) (bool, error) {
	if e.Caller.Key == nil || by == "" || by == access.Operator {
		return false, nil
	}
	s, err := e.Store(ctx)
	if err != nil {
		return false, err
	}
	line, err := s.KeyLineage(ctx, by)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return slices.ContainsFunc(line, func(k store.Key) bool { return k.ID == e.Caller.Key.ID }), err
}

// Objects are the objects that the caller may do this to: all, or those that match a pattern (access.Matches).
func (e *Env) Objects(a access.Access, group, name string) (all bool, patterns []string) {
	return e.Caller.Objects(access.Ask{Access: a, Group: group, Command: name})
}

func (c *Command) record(env *Env, in any, object string) audit.Call {
	inputs := map[string]any{}
	defaults := c.NewInput()
	for i := range c.Fields {
		f := &c.Fields[i]
		switch {
		case !f.Given(in, defaults):
		case f.Host == HostSecret && f.JSON != "secrets":
			inputs[f.JSON] = "(not recorded)"
		default:
			inputs[f.JSON] = f.Value(in)
		}
	}
	return audit.Call{
		Action: audit.CommandPrefix + c.FullName(), Object: object, Decision: store.Allowed, RunID: env.Caller.RunID(),
		Caller: env.Caller.Name(), Input: inputs,
	}
}

// write writes a call down. What the operator only reads needs no record where nobody writes any: whoever runs this
// program could read the store itself.
func (c *Command) write(ctx context.Context, env *Env, call audit.Call) error {
	if env.Auditor == nil {
		if env.Caller.IsOperator() && (c.Access == Read || c.Reach == LocalOnly) {
			return nil
		}
		return NoAudit(errors.New("there is no audit"))
	}
	var scrub func(string) string
	if env.Scrub != nil {
		scrub = env.Scrub()
	}
	r, err := call.Record(scrub)
	if err != nil {
		return NoAudit(err)
	}
	write := func(ctx context.Context, r audit.Record) error { return env.Auditor.Append(ctx, r) }
	if r.Decision == store.Denied {
		write = env.Auditor.Denied
	}
	if err := write(ctx, r); err != nil {
		return NoAudit(err)
	}
	return nil
}

// NoAudit is the failure of what was not done since it could not be written down.
func NoAudit(err error) error {
	return &Error{Code: CodeUnavailable, Message: "this was not done, since the audit could not be written: " + err.Error(),
		Hint: "see that Ravi's home has room and is writable", Status: http.StatusServiceUnavailable, Exit: ExitFailed, Err: err}
}
