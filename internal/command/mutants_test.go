package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/store"
)

func holderOf(t *testing.T, capabilities ...string) access.Caller {
	t.Helper()
	c, err := access.ParseCapabilities(capabilities)
	if err != nil {
		t.Fatal(err)
	}
	return access.WithKey(access.Key{ID: "ctx_1", Capabilities: c})
}

// one is a table with one command, which counts how often it ran.
func one(ran *int, change func(*Spec[callInput, string])) *Command {
	t := &Table{}
	t.AddGroup(Group{Name: "things", Summary: "T"})
	s := Spec[callInput, string]{
		Group: "things", Name: "do", Summary: "Do it", Access: Read, Defaults: callInput{Backend: "auto"},
		Handler: func(context.Context, *Env, callInput) (string, error) { *ran++; return "done", nil },
	}
	change(&s)
	Add(t, s)
	return t.Commands()[0]
}

// A list is for those who may see something of it.
func TestListsAreForHolders(t *testing.T) {
	ran := 0
	c := one(&ran, func(s *Spec[callInput, string]) { s.Scoped = true })
	for _, caller := range []access.Caller{{}, holderOf(t), holderOf(t, "write:things"), holderOf(t, "read:others"), holderOf(t, "read:things.show@thg1")} {
		if _, err := c.Call(t.Context(), &Env{Caller: caller, Auditor: &ledger{}}, c.NewInput()); err == nil || AsError(err).Code != CodeDenied || ran > 0 {
			t.Errorf("%+v: %v, ran %d", caller, err, ran)
		}
	}
}

// Who may do it to nothing has nothing looked up; what cannot be looked up does not happen, whoever asks; and more than one
// is as good as none for who may know of neither.
func TestLookingUp(t *testing.T) {
	ran, looked := 0, 0
	var fails error
	c := one(&ran, func(s *Spec[callInput, string]) {
		s.Object = func(_ context.Context, _ *Env, in callInput) (string, error) { looked++; return in.Thing, fails }
	})
	call := func(caller access.Caller) error {
		in := c.NewInput().(*callInput)
		in.Thing = "thg"
		_, err := c.Call(t.Context(), &Env{Caller: caller, Auditor: &ledger{}}, in)
		return err
	}
	if err := call(holderOf(t, "read:others", "write:things")); !errors.Is(err, access.ErrDenied) || looked > 0 {
		t.Errorf("looked %d times for who may nothing: %v", looked, err)
	}
	broken := errors.New("the disk is broken")
	fails = broken
	for _, caller := range []access.Caller{holderOf(t, "read:*"), holderOf(t, "read:things@thg1"), access.AsOperator()} {
		if err := call(caller); !errors.Is(err, broken) || ran > 0 {
			t.Errorf("%s: %v, ran %d", caller.Name(), err, ran)
		}
	}
	for _, missing := range []error{store.ErrNotFound, store.ErrAmbiguous} {
		fails = fmt.Errorf("thg1, thg2: %w", missing)
		if err := call(holderOf(t, "read:things@thg1")); !errors.Is(err, access.ErrDenied) || strings.Contains(err.Error(), "thg2") {
			t.Errorf("%v: a stranger hears %v", missing, err)
		}
		if err := call(holderOf(t, "read:things")); !errors.Is(err, missing) {
			t.Errorf("%v: who may know hears %v", missing, err)
		}
	}
	if ran > 0 {
		t.Errorf("it ran %d times", ran)
	}
}

// Every class of resource of the host is refused to keys, unless the command bounds it.
func TestEveryHostResourceIsRefused(t *testing.T) {
	type input struct {
		Nothing string `json:"nothing" flag:"nothing" host:"none" usage:"u"`
		Path    string `json:"path" flag:"path" host:"path" usage:"u"`
		Backend string `json:"backend" flag:"backend" host:"backend" usage:"u"`
		Image   string `json:"image" flag:"image" host:"image" usage:"u"`
		Secret  string `json:"secret" flag:"secret" host:"secret" usage:"u"`
		Volume  string `json:"volume" flag:"volume" host:"volume" usage:"u"`
		Size    string `json:"size" flag:"size" host:"size" usage:"u"`
		Network string `json:"network" flag:"network" host:"network" usage:"u"`
		Command string `json:"command" flag:"command" host:"command" usage:"u"`
	}
	for _, bounded := range [][]string{nil, {"path", "size"}} {
		tab := &Table{}
		tab.AddGroup(Group{Name: "things", Summary: "T"})
		Add(tab, Spec[input, string]{Group: "things", Name: "do", Summary: "Do it", Access: Read, Bounded: bounded,
			Handler: func(context.Context, *Env, input) (string, error) { return "done", nil }})
		c := tab.Commands()[0]
		if len(c.Fields) != len(hosts) {
			t.Fatalf("there are %d classes, and %d are tried", len(hosts), len(c.Fields))
		}
		for i := range c.Fields {
			f := &c.Fields[i]
			in := c.NewInput()
			if err := f.Set(in, "x"); err != nil {
				t.Fatal(err)
			}
			_, err := c.Call(t.Context(), &Env{Caller: holderOf(t, "read:*"), Auditor: &ledger{}}, in)
			free := f.JSON == "nothing" || f.JSON == "command" || bounded != nil && (f.JSON == "path" || f.JSON == "size")
			if free != (err == nil) || err != nil && AsError(err).Code != CodeDenied {
				t.Errorf("%s, of %v: %v", f.JSON, bounded, err)
			}
			if _, err := c.Call(t.Context(), &Env{Caller: access.AsOperator(), Auditor: &ledger{}}, in); err != nil {
				t.Errorf("%s, the operator: %v", f.JSON, err)
			}
		}
	}
}

// watched is a ledger that tells refusals from the rest, and writes nothing for who has gone away.
type watched struct {
	ledger
	denied int
}

func (w *watched) Append(ctx context.Context, records ...audit.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.ledger.Append(ctx, records...)
}

func (w *watched) Denied(ctx context.Context, r audit.Record) error {
	w.denied++
	return w.Append(ctx, r)
}

// How a change ended is written down also when whoever asked for it has gone away; refusals come as such, for a flood of
// them is counted; and no secret comes into the record by a word of the caller's.
func TestRecordsOfCalls(t *testing.T) {
	ran := 0
	ctx, cancel := context.WithCancel(t.Context())
	change := one(&ran, func(s *Spec[callInput, string]) {
		s.Access = Write
		s.Handler = func(context.Context, *Env, callInput) (string, error) { cancel(); return "done", nil }
	})
	var book watched
	if _, err := change.Call(ctx, &Env{Caller: holderOf(t, "write:*"), Auditor: &book}, change.NewInput()); err != nil || len(book.records) != 2 || book.denied > 0 {
		t.Errorf("%v, records %q", err, book.lines())
	}
	book = watched{}
	if _, err := change.Call(t.Context(), &Env{Caller: holderOf(t, "read:*"), Auditor: &book}, change.NewInput()); err == nil || book.denied != 1 || len(book.records) != 1 {
		t.Errorf("a refusal: %v, %d of %q", err, book.denied, book.lines())
	}
	book = watched{}
	in := change.NewInput().(*callInput)
	in.Thing = "hush"
	scrub := func(s string) string { return strings.ReplaceAll(s, "hush", "[secret]") }
	if _, err := change.Call(t.Context(), &Env{Caller: holderOf(t, "write:*"), Auditor: &book, Scrub: func() func(string) string { return scrub }}, in); err != nil {
		t.Fatal(err)
	}
	for _, r := range book.records {
		if strings.Contains(fmt.Sprintf("%s %s %s", r.Detail, r.Reason, r.Object), "hush") {
			t.Errorf("a record holds a secret: %+v", r)
		}
	}
	// A refusal whose record cannot be written is told as that fault.
	full := errors.New("disk full")
	_, err := change.Call(t.Context(), &Env{Caller: holderOf(t, "read:*"), Auditor: &ledger{full: full}}, change.NewInput())
	if AsError(err).Code != CodeUnavailable || !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

// Without an audit the operator reads, and changes nothing but what is local.
func TestOperatorWithoutAudit(t *testing.T) {
	for _, c := range []struct {
		access Access
		reach  Reach
		runs   bool
	}{{Read, Everywhere, true}, {Read, OperatorOnly, true}, {Write, LocalOnly, true}, {Write, Everywhere, false}, {Write, OperatorOnly, false}} {
		ran := 0
		cmd := one(&ran, func(s *Spec[callInput, string]) { s.Access, s.Reach = c.access, c.reach })
		_, err := cmd.Call(t.Context(), &Env{Caller: access.AsOperator()}, cmd.NewInput())
		if (err == nil) != c.runs || ran > 0 != c.runs || err != nil && AsError(err).Code != CodeUnavailable {
			t.Errorf("%s, reach %d: ran %d, %v", c.access, c.reach, ran, err)
		}
	}
}

// What is for the operator or for this machine is shown to no key as something that it may call.
func TestMayOfWhatIsForNoKey(t *testing.T) {
	for _, c := range []struct {
		reach         Reach
		operator, key bool
	}{{Everywhere, true, true}, {OperatorOnly, true, false}, {LocalOnly, false, false}} {
		cmd := one(new(int), func(s *Spec[callInput, string]) { s.Reach = c.reach })
		for caller, want := range map[string]bool{"operator": c.operator, "key": c.key, "nobody": false} {
			who := map[string]access.Caller{"operator": access.AsOperator(), "key": holderOf(t, "read:*", "write:*"), "nobody": {}}[caller]
			if got := cmd.May(&Env{Caller: who}); got != want {
				t.Errorf("reach %d, %s: %v", c.reach, caller, got)
			}
		}
	}
}

// An input lacks what it must have, whichever way it came.
func TestComplete(t *testing.T) {
	type input struct {
		Must string   `json:"must" arg:"MUST" host:"none" usage:"u"`
		May  []string `json:"may" arg:"MAY" optional:"true" host:"none" usage:"u"`
		Flag string   `json:"flag" flag:"flag" host:"none" usage:"u"`
	}
	tab := &Table{}
	tab.AddGroup(Group{Name: "things", Summary: "T"})
	Add(tab, Spec[input, string]{Group: "things", Name: "do", Summary: "Do it", Access: Read,
		Handler: func(context.Context, *Env, input) (string, error) { return "done", nil }})
	c := tab.Commands()[0]
	for in, want := range map[*input]bool{{}: false, {May: []string{"x"}, Flag: "x"}: false, {Must: "x"}: true} {
		if err := c.Complete(in); (err == nil) != want || err != nil && AsError(err).Code != CodeUsage {
			t.Errorf("%+v: %v", *in, err)
		}
	}
}
