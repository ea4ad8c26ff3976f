package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/store"
)

// ledger is an audit in memory, which can be full.
type ledger struct {
	records []audit.Record
	full    error
}

func (l *ledger) Append(_ context.Context, records ...audit.Record) error {
	if l.full != nil {
		return l.full
	}
	l.records = append(l.records, records...)
	return nil
}

func (l *ledger) Denied(ctx context.Context, r audit.Record) error { return l.Append(ctx, r) }

func (l *ledger) lines() (out []string) {
	for _, r := range l.records {
		out = append(out, fmt.Sprintf("%s %s %s %s", r.Caller, r.Action, r.Object, r.Decision))
	}
	return out
}

type callInput struct {
	Thing   string            `json:"thing" arg:"THING" optional:"true" host:"none" usage:"u"`
	Backend string            `json:"backend" flag:"backend" host:"backend" usage:"u"`
	Out     string            `json:"out" flag:"out" host:"path" usage:"u"`
	Env     map[string]string `json:"env" flag:"env" host:"secret" usage:"u"`
}

// calls is a table with commands of every kind, and what they did.
func calls(ran *[]string) *Table {
	t := &Table{}
	t.AddGroup(Group{Name: "things", Summary: "T"})
	add := func(name string, change func(*Spec[callInput, string])) {
		s := Spec[callInput, string]{
			Group: "things", Name: name, Summary: "Do it", Access: Read, Defaults: callInput{Backend: "auto"},
			Handler: func(_ context.Context, _ *Env, in callInput) (string, error) {
				*ran = append(*ran, name)
				if in.Thing == "broken" {
					return "", errors.New("it broke")
				}
				return "done", nil
			},
		}
		change(&s)
		Add(t, s)
	}
	object := func(_ context.Context, _ *Env, in callInput) (string, error) {
		switch in.Thing {
		case "thg1", "thg", "broken":
			return "thg1", nil
		case "thg2":
			return "thg2", nil
		}
		return in.Thing, fmt.Errorf("thing %q: %w", in.Thing, store.ErrNotFound)
	}
	add("show", func(s *Spec[callInput, string]) { s.Object = object })
	add("change", func(s *Spec[callInput, string]) { s.Object, s.Access, s.Bounded = object, Write, []string{"backend"} })
	add("ls", func(s *Spec[callInput, string]) { s.Scoped = true })
	add("all", func(*Spec[callInput, string]) {})
	add("me", func(s *Spec[callInput, string]) { s.Self = true })
	add("own", func(s *Spec[callInput, string]) { s.Reach = OperatorOnly })
	add("here", func(s *Spec[callInput, string]) { s.Reach = LocalOnly })
	return t
}

func TestCall(t *testing.T) {
	key := func(capabilities ...string) access.Caller {
		c, err := access.ParseCapabilities(capabilities)
		if err != nil {
			t.Fatal(err)
		}
		return access.WithKey(access.Key{ID: "ctx_1", RunID: "run1", Capabilities: c})
	}
	scoped := key("read:things@thg1", "write:things.change@thg1")
	for name, c := range map[string]struct {
		caller  access.Caller
		command string
		in      callInput
		want    string // of the error
		records []string
	}{
		"operator":          {access.AsOperator(), "own", callInput{}, "", []string{"operator things.own"}},
		"nobody":            {access.Caller{}, "all", callInput{}, "read:things.all", []string{"denied"}},
		"own object":        {scoped, "show", callInput{Thing: "thg1"}, "", []string{"ctx_1 command.things.show thg1 allowed"}},
		"by its beginning":  {scoped, "show", callInput{Thing: "thg"}, "", []string{"thg1 allowed"}},
		"other object":      {scoped, "show", callInput{Thing: "thg2"}, "read:things.show@thg2", []string{"ctx_1 command.things.show thg2 denied"}},
		"missing object":    {scoped, "show", callInput{Thing: "thg9"}, "read:things.show@thg9", []string{"denied"}},
		"missing, may know": {key("read:things"), "show", callInput{Thing: "thg9"}, "not found", nil},
		"list":              {scoped, "ls", callInput{}, "", []string{"allowed"}},
		"of all":            {scoped, "all", callInput{}, "read:things.all", []string{"denied"}},
		"all":               {key("read:*"), "all", callInput{}, "", []string{"allowed"}},
		"write by read":     {key("read:*"), "change", callInput{Thing: "thg1"}, "write:things.change", []string{"denied"}},
		"write":             {scoped, "change", callInput{Thing: "thg1"}, "", []string{"command.things.change thg1 allowed", "outcome.things.change thg1 allowed"}},
		"about itself":      {key(), "me", callInput{}, "", []string{"command.things.me allowed"}},
		"nobody's self":     {access.Caller{}, "me", callInput{}, "read:things.me", []string{"denied"}},
		"for the operator":  {key("read:*", "write:*"), "own", callInput{}, "not for keys", []string{"denied"}},
		"local":             {key("read:*", "write:*"), "here", callInput{}, "not for keys", []string{"denied"}},
		"path":              {key("write:*"), "change", callInput{Thing: "thg1", Out: "/x"}, `"out" names something of the host`, []string{"denied"}},
		"bounded":           {key("write:*"), "change", callInput{Thing: "thg1", Backend: "host"}, "", []string{"allowed", "allowed"}},
		"unbounded":         {key("read:*"), "show", callInput{Thing: "thg1", Backend: "host"}, `"backend" names something of the host`, []string{"denied"}},
		"secret":            {key("read:*"), "show", callInput{Thing: "thg1", Env: map[string]string{"A": "b"}}, `"env" names something`, []string{"denied"}},
		"fails":             {key("read:*", "write:*"), "change", callInput{Thing: "broken"}, "it broke", []string{"command.things.change", "outcome.things.change"}},
	} {
		t.Run(name, func(t *testing.T) {
			var ran []string
			var cmd *Command
			for _, have := range calls(&ran).Commands() {
				if have.Name == c.command {
					cmd = have
				}
			}
			in := cmd.NewInput().(*callInput)
			backend := in.Backend
			*in = c.in
			if in.Backend == "" {
				in.Backend = backend
			}
			book := &ledger{}
			_, err := cmd.Call(t.Context(), &Env{Caller: c.caller, Auditor: book}, in)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			refused := err != nil && c.want != "it broke"
			if refused == (len(ran) > 0) {
				t.Errorf("it ran %v, with %v", ran, err)
			}
			lines := book.lines()
			if len(lines) != len(c.records) {
				t.Fatalf("records: %q", lines)
			}
			for i := range lines {
				for _, word := range strings.Fields(c.records[i]) {
					if !strings.Contains(lines[i], word) {
						t.Errorf("record %q has no %q", lines[i], word)
					}
				}
			}
			if refused && len(c.records) > 0 && AsError(err).Code != CodeDenied {
				t.Errorf("code %s", AsError(err).Code)
			}
		})
	}
}

// A call that cannot be written down does not happen, and one that only reads gives no answer.
func TestCallWithoutAudit(t *testing.T) {
	var ran []string
	full := errors.New("disk full")
	for _, cmd := range calls(&ran).Commands() {
		for _, auditor := range []Auditor{nil, &ledger{full: full}} {
			c, err := access.ParseCapabilities([]string{"read:*", "write:*"})
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.Call(t.Context(), &Env{Caller: access.WithKey(access.Key{Capabilities: c}), Auditor: auditor}, &callInput{Thing: "thg1", Backend: "auto"})
			if err == nil || out != nil || cmd.Reach == Everywhere && AsError(err).Code != CodeUnavailable {
				t.Errorf("%s: got %v, %v", cmd.Name, out, err)
			}
		}
	}
	if slices.Contains(ran, "change") {
		t.Error("something was changed without a record of it")
	}
}

// Values that may be secrets, and keys, stand in no record.
func TestRecordHoldsNoSecret(t *testing.T) {
	var ran []string
	book := &ledger{}
	for _, cmd := range calls(&ran).Commands() {
		in := &callInput{Thing: "thg1", Backend: "auto", Env: map[string]string{"TOKEN": "hush"}}
		if _, err := cmd.Call(t.Context(), &Env{Caller: access.AsOperator(), Auditor: book}, in); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range book.records {
		if strings.Contains(string(r.Detail), "hush") {
			t.Errorf("%s: %s", r.Action, r.Detail)
		}
	}
}

func TestMay(t *testing.T) {
	c, err := access.ParseCapabilities([]string{"read:things@thg1"})
	if err != nil {
		t.Fatal(err)
	}
	var may []string
	for _, cmd := range calls(new([]string)).Commands() {
		if cmd.May(&Env{Caller: access.WithKey(access.Key{Capabilities: c})}) {
			may = append(may, cmd.Name)
		}
	}
	if want := []string{"show", "ls", "me"}; !slices.Equal(may, want) {
		t.Errorf("got %v, want %v", may, want)
	}
}

// A key for its own reaches what it made, and what its children made; nothing that others did, and no child what its
// parent made.
func TestOwn(t *testing.T) {
	home := t.TempDir()
	st, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	n, until := 0, store.Now().Add(time.Hour)
	key := func(parent string) access.Caller {
		n++
		k, err := st.InsertKey(t.Context(), store.Key{Hash: fmt.Sprintf("%064x", n), ParentID: parent, ExpiresAt: until}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := access.ParseCapabilities([]string{"read:runs@own"})
		if err != nil {
			t.Fatal(err)
		}
		return access.WithKey(access.Key{ID: k.ID, Capabilities: c})
	}
	parent := key("")
	child, stranger := key(parent.Name()), key("")
	made := func(by access.Caller) string {
		r, err := st.InsertRun(t.Context(), store.Run{CreatedBy: by.Name()})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	runs := map[string]string{"parent's": made(parent), "child's": made(child), "stranger's": made(stranger), "operator's": made(access.AsOperator()), "none": "run01none"}
	for name, c := range map[string]struct {
		caller access.Caller
		may    []string
	}{"parent": {parent, []string{"parent's", "child's"}}, "child": {child, []string{"child's"}}, "stranger": {stranger, []string{"stranger's"}}} {
		env := In(home, st)
		env.Caller = c.caller
		for whose, id := range runs {
			err := env.Check(t.Context(), access.Ask{Access: Read, Group: "runs", Command: "show", Object: id})
			if (err == nil) != slices.Contains(c.may, whose) {
				t.Errorf("%s, %s run: %v", name, whose, err)
			}
			if env.Check(t.Context(), access.Ask{Access: Write, Group: "runs", Command: "cancel", Object: id}) == nil {
				t.Errorf("%s may write to %s run", name, whose)
			}
		}
	}
}
