package command

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/contextkey"
	"ravi/internal/store"
)

// About what a run may do decides the operator, or a key outside of any run: for the runs that its capabilities name, and
// for its own. Neither the run itself, nor what it hands on, nor who may write everything, nor a child that got more than
// its parent had to give.
func TestJudging(t *testing.T) {
	home, ctx := t.TempDir(), t.Context()
	st, err := store.Open(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	keys := contextkey.Keys{Store: st}
	issue := func(by access.Caller, run string, capabilities ...string) access.Caller {
		t.Helper()
		held, err := access.ParseCapabilities(capabilities)
		if err != nil {
			t.Fatal(err)
		}
		token, _, err := keys.Issue(ctx, by, contextkey.Request{Capabilities: held, RunID: run})
		if err != nil {
			t.Fatal(err)
		}
		wire := run
		if by.Key != nil && run == "" {
			wire = by.Key.RunID
		}
		c, err := keys.Resolve(ctx, token, contextkey.Wire{RunID: wire})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	run := func(by access.Caller) string {
		r, err := st.InsertRun(ctx, store.Run{CreatedBy: by.Name(), Status: store.RunRunning})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	op := access.AsOperator()
	operators := run(op)
	everything, all, bot := issue(op, "", "write:*", "read:*"), issue(op, "", "write:things"), issue(op, "", "write:things@own")
	bots := run(bot)
	child := issue(bot, "", "write:things@own")
	childs := run(child)
	all1 := run(all)

	ran, looked := "", false
	c := one(new(int), func(s *Spec[callInput, string]) {
		s.Access, s.Judges = Write, true
		s.Object = func(_ context.Context, _ *Env, in callInput) (string, error) {
			looked = true
			if in.Thing == "run0" {
				return in.Thing, fmt.Errorf("run0: %w", store.ErrNotFound)
			}
			return in.Thing, nil
		}
		s.Handler = func(_ context.Context, _ *Env, in callInput) (string, error) { ran = in.Thing; return "done", nil }
	})
	for name, w := range map[string]struct {
		caller access.Caller
		object string
		ok     bool
		may    bool // it is shown as something that the caller may call
	}{
		"the operator":                       {op, operators, true, true},
		"nobody":                             {access.Caller{}, operators, false, false},
		"who may only read":                  {issue(op, "", "read:*"), operators, false, false},
		"everything, the operator's":         {everything, operators, false, true},
		"everything, another one's":          {everything, bots, false, true},
		"all things, the operator's":         {all, operators, false, true},
		"all things, its own":                {all, all1, true, true},
		"named":                              {issue(op, "", "write:things@"+operators), operators, true, true},
		"named, the command":                 {issue(op, "", "write:things.do@"+operators), operators, true, true},
		"another command":                    {issue(op, "", "write:things.undo@"+operators), operators, false, false},
		"named, another":                     {issue(op, "", "write:things@"+operators), bots, false, true},
		"all runs, named":                    {issue(op, "", "write:things@run*"), operators, true, true},
		"all runs, a missing one":            {issue(op, "", "write:things@run*"), "run0", false, true},
		"its own":                            {bot, bots, true, true},
		"its child's":                        {bot, childs, true, true},
		"its own, the operator's":            {bot, operators, false, true},
		"a child, its own":                   {child, childs, true, true},
		"a child, its parent's":              {child, bots, false, true},
		"a child that is named":              {issue(all, "", "write:things@"+operators), operators, false, true},
		"a child that is named, of anything": {issue(everything, "", "write:things@run*"), bots, false, true},
		"a child that is named, of its own":  {issue(all, "", "write:things@"+all1), all1, true, true},
		"a child of a named one":             {issue(issue(op, "", "write:things@run*"), "", "write:things@"+bots), bots, true, true},
		"the run itself":                     {issue(op, operators, "write:*"), operators, false, false},
		"the run itself, named":              {issue(op, operators, "write:things@"+operators), operators, false, false},
		"another run":                        {issue(op, bots, "write:things@run*"), operators, false, false},
		"a run, of its own":                  {issue(bot, bots, "write:things@own"), bots, false, false},
		"a child of a run":                   {issue(issue(op, operators, "write:*"), "", "write:things@run*"), operators, false, false},
		"a run's key that says it is none": {access.WithKey(access.Key{ID: issue(op, operators, "write:things@run*").Key.ID,
			Capabilities: access.Capabilities{{Access: access.Write, Group: "things", Object: "run*"}}}), operators, false, true},
		"a key that is not there": {access.WithKey(access.Key{ID: "ctx_x", Capabilities: access.Capabilities{{Access: access.Write, Group: "things", Object: "run*"}}}), operators, false, true},
	} {
		env := In(home, st)
		env.Caller, env.Auditor = w.caller, &ledger{}
		if got := c.May(env); got != w.may {
			t.Errorf("%s: it is shown: %v", name, got)
		}
		in := c.NewInput().(*callInput)
		in.Thing, ran, looked = w.object, "", false
		_, err := c.Call(ctx, env, in)
		if (err == nil) != w.ok || (ran == w.object) != w.ok {
			t.Errorf("%s: %v, ran %q", name, err, ran)
		}
		if w.caller.RunID() != "" && looked {
			t.Errorf("%s: something is looked up for a run", name)
		}
		if missing := name == "a key that is not there" || name == "all runs, a missing one"; err != nil && !missing && AsError(err).Code != CodeDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "says which run") {
			t.Errorf("got %v", got)
		}
	}()
	one(new(int), func(s *Spec[callInput, string]) { s.Judges = true })
}
