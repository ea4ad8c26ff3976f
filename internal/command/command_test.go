package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/config"
	"ravi/internal/store"
)

type level int

func (l *level) UnmarshalText(text []byte) error {
	if string(text) != "high" {
		return errors.New("write high")
	}
	*l = 9
	return nil
}

type everything struct {
	Text   string            `json:"text" flag:"text" short:"t" value:"TEXT" host:"none" usage:"a text"`
	Yes    bool              `json:"yes" flag:"yes" host:"none" usage:"a switch"`
	Count  int               `json:"count" flag:"count" host:"none" usage:"a number"`
	Wide   uint64            `json:"wide" flag:"wide" host:"none" usage:"a number"`
	Ratio  *float64          `json:"ratio" flag:"ratio" host:"none" usage:"a number that may be missing"`
	Wait   *time.Duration    `json:"wait" flag:"wait" host:"none" usage:"a time"`
	Many   []string          `json:"many" flag:"many" host:"none" usage:"texts"`
	Pairs  map[string]string `json:"pairs" flag:"pairs" host:"none" usage:"pairs"`
	Level  level             `json:"level" flag:"level" host:"none" usage:"a type of its own"`
	Memory int               `json:"memory" flag:"memory" host:"size" usage:"a size"`
	First  string            `json:"first" arg:"FIRST" host:"none" usage:"an argument"`
	Follow []string          `json:"follow" arg:"MORE" optional:"true" host:"none" usage:"the others"`
}

func spec[In any](in In) Spec[In, string] {
	return Spec[In, string]{
		Group: "g", Name: "c", Summary: "Do it", Access: Read, Defaults: in,
		Handler: func(context.Context, *Env, In) (string, error) { return "", nil },
	}
}

func newTable() *Table {
	t := &Table{}
	t.AddGroup(Group{Name: "g", Summary: "G"})
	return t
}

func TestSetAndGet(t *testing.T) {
	table := newTable()
	Add(table, spec(everything{Many: []string{"default"}}))
	c := table.Commands()[0]
	in := c.NewInput().(*everything)
	set := func(name, text string) error {
		for i := range c.Fields {
			if c.Fields[i].JSON == name {
				return c.Fields[i].Set(in, text)
			}
		}
		t.Fatalf("no field %s", name)
		return nil
	}
	for _, pair := range [][2]string{{"text", "x"}, {"yes", "true"}, {"count", "-3"}, {"wide", "18446744073709551615"}, {"ratio", "0"},
		{"wait", "0s"}, {"many", "a"}, {"many", "b=c"}, {"pairs", "K=V=W"}, {"pairs", "E="}, {"level", "high"}, {"memory", "5"}} {
		if err := set(pair[0], pair[1]); err != nil {
			t.Errorf("%s %s: %v", pair[0], pair[1], err)
		}
	}
	zero, none := 0.0, time.Duration(0)
	want := &everything{Text: "x", Yes: true, Count: -3, Wide: 1<<64 - 1, Ratio: &zero, Wait: &none, Many: []string{"default", "a", "b=c"},
		Pairs: map[string]string{"K": "V=W", "E": ""}, Level: 9, Memory: 5}
	if !reflect.DeepEqual(in, want) {
		t.Errorf("got  %+v\nwant %+v", in, want)
	}
	for _, pair := range [][2]string{{"yes", "maybe"}, {"count", "1.5"}, {"wide", "-1"}, {"ratio", "NaN"}, {"ratio", "x"}, {"wait", "5"},
		{"pairs", "K"}, {"pairs", "=V"}, {"pairs", "K=twice"}, {"level", "low"}, {"memory", "99999999999999999999"}} {
		if err := set(pair[0], pair[1]); err == nil {
			t.Errorf("%s %q passed", pair[0], pair[1])
		}
	}
	if again := c.NewInput().(*everything); !reflect.DeepEqual(again, &everything{Many: []string{"default"}}) {
		t.Errorf("an input changed the defaults: %+v", again)
	}
}

func TestRefusedDeclarations(t *testing.T) {
	for name, c := range map[string]struct {
		add  func(*Table)
		want string
	}{
		"unclassified": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" flag:"a" usage:"u"`
			}{}))
		}, "no host tag"},
		"bounded and free": {func(t *Table) {
			s := spec(struct {
				A string `json:"a" flag:"a" host:"none" usage:"u"`
			}{})
			s.Bounded = []string{"a"}
			Add(t, s)
		}, "a is bounded"},
		"object and scoped": {func(t *Table) {
			s := spec(struct{}{})
			s.Scoped, s.Object = true, func(context.Context, *Env, struct{}) (string, error) { return "", nil }
			Add(t, s)
		}, "one object, or"},
		"unknown class": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" flag:"a" usage:"u" host:"disk"`
			}{}))
		}, "not a class"},
		"nested": {func(t *Table) {
			Add(t, spec(struct {
				A struct{ Path string } `json:"a" flag:"a" host:"none" usage:"u"`
			}{}))
		}, "cannot be given"},
		"any": {func(t *Table) {
			Add(t, spec(struct {
				A any `json:"a" flag:"a" host:"none" usage:"u"`
			}{}))
		}, "cannot be given"},
		"map of anything": {func(t *Table) {
			Add(t, spec(struct {
				A map[string]any `json:"a" flag:"a" host:"none" usage:"u"`
			}{}))
		}, "cannot be given"},
		"embedded": {func(t *Table) { Add(t, spec(struct{ everything }{})) }, "fields of its own"},
		"no json": {func(t *Table) {
			Add(t, spec(struct {
				A string `flag:"a" host:"none" usage:"u"`
			}{}))
		}, "not snake_case"},
		"camel json": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"aB" flag:"a" host:"none" usage:"u"`
			}{}))
		}, "not snake_case"},
		"flag and argument": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" flag:"a" arg:"A" host:"none" usage:"u"`
			}{}))
		}, "either a flag or an arg"},
		"neither": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" host:"none" usage:"u"`
			}{}))
		}, "either a flag or an arg"},
		"no usage": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" flag:"a"`
			}{}))
		}, "no usage"},
		"flag of every one": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" flag:"json" host:"none" usage:"u"`
			}{}))
		}, "--json is taken"},
		"flag twice": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" flag:"a" host:"none" usage:"u"`
				B string `json:"b" flag:"a" host:"none" usage:"u"`
			}{}))
		}, "is taken by A and B"},
		"required after rest": {func(t *Table) {
			Add(t, spec(struct {
				A []string `json:"a" arg:"A" host:"none" usage:"u"`
				B string   `json:"b" arg:"B" host:"none" usage:"u"`
			}{}))
		}, "cannot stand after"},
		"required after maybe": {func(t *Table) {
			Add(t, spec(struct {
				A string `json:"a" arg:"A" optional:"true" host:"none" usage:"u"`
				B string `json:"b" arg:"B" host:"none" usage:"u"`
			}{}))
		}, "cannot stand after"},
		"not a struct":  {func(t *Table) { Add(t, spec(1)) }, "not a struct"},
		"unknown group": {func(t *Table) { s := spec(struct{}{}); s.Group = "x"; Add(t, s) }, "no group"},
		"name twice": {func(t *Table) {
			Add(t, spec(struct{}{}))
			s := spec(struct{}{})
			s.Name, s.Aliases = "d", []string{"c"}
			Add(t, s)
		}, `"c" is taken`},
		"no access":   {func(t *Table) { s := spec(struct{}{}); s.Access = ""; Add(t, s) }, "access class"},
		"no summary":  {func(t *Table) { s := spec(struct{}{}); s.Summary = ""; Add(t, s) }, "summary"},
		"no handler":  {func(t *Table) { s := spec(struct{}{}); s.Handler = nil; Add(t, s) }, "no handler"},
		"upper case":  {func(t *Table) { s := spec(struct{}{}); s.Name = "C"; Add(t, s) }, "not a name"},
		"group twice": {func(t *Table) { t.AddGroup(Group{Name: "g"}) }, "declared twice"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, c.want) {
					t.Errorf("got %v, want %s", got, c.want)
				}
			}()
			c.add(newTable())
		})
	}
}

func TestCommand(t *testing.T) {
	table := newTable()
	s := Spec[everything, int]{
		Group: "g", Name: "c", Summary: "Do it", Access: Write,
		Handler: func(_ context.Context, _ *Env, in everything) (int, error) { return in.Count * 2, nil },
		Print:   func(_ *Env, w io.Writer, out int) error { _, err := fmt.Fprint(w, out); return err },
		Exit:    func(out int) int { return out + 1 },
	}
	Add(table, s)
	c := table.Commands()[0]
	in := c.NewInput()
	in.(*everything).Count = 21
	out, err := c.Call(t.Context(), &Env{Caller: access.AsOperator(), Auditor: &ledger{}}, in)
	var b strings.Builder
	if err != nil || out != 42 || c.Exit(out) != 43 || c.Print(nil, &b, out) != nil || b.String() != "42" || c.FullName() != "g.c" {
		t.Errorf("got %v, %v, %q", out, err, b.String())
	}
	if c.In != reflect.TypeFor[everything]() || c.Out != reflect.TypeFor[int]() || !c.HasPrint() {
		t.Errorf("got %+v", c)
	}
}

func TestAsError(t *testing.T) {
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		in   error
		want Error
	}{
		"own":       {fmt.Errorf("outside: %w", &Error{Code: "X", Message: "m", Hint: "h", Status: 418, Exit: 7, Err: cause}), Error{"X", "m", "h", 418, 7, cause}},
		"own, bare": {&Error{Message: "m"}, Error{Code: CodeInternal, Message: "m", Status: 500, Exit: 1}},
		"usage":     {Usage("m", "h"), Error{Code: CodeUsage, Message: "m", Hint: "h", Status: 400, Exit: 2}},
		"unknown":   {cause, Error{CodeInternal, "cause", "", 500, 1, cause}},
	} {
		if got := AsError(c.in); *got != c.want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	for code, err := range map[string]error{
		CodeNotFound: store.ErrNotFound, CodeAmbiguous: store.ErrAmbiguous, CodeConflict: store.ErrFinal,
		CodeUnavailable: store.ErrNewerSchema, CodeCanceled: context.Canceled, CodeConfig: &config.HintError{Message: "m", Hint: "h"},
	} {
		wrapped := fmt.Errorf("doing: %w", err)
		if got := AsError(wrapped); got.Code != code || !errors.Is(got, err) {
			t.Errorf("%v: got %+v", err, got)
		}
	}
	if got := AsError(context.Canceled); got.Exit != ExitCanceled {
		t.Errorf("canceled: %+v", got)
	}
}

func TestEnvOpensLazily(t *testing.T) {
	home := t.TempDir() + "/home"
	t.Setenv("RAVI_HOME", home)
	env := &Env{}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := env.Home(); err != nil || got != home {
		t.Fatalf("got %q, %v", got, err)
	}
	first, err := env.Store(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := env.Store(t.Context()); err != nil || first != second {
		t.Errorf("opened twice: %v", err)
	}
	if c, err := env.Config(); err != nil || c == nil {
		t.Errorf("config: %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	if _, err := env.Sweeper(t.Context()); AsError(err).Code != CodeUnavailable {
		t.Errorf("a sweeper from nowhere: %v", err)
	}
}
