// Package command is the table of everything that Ravi can be asked to do. Each command is declared once: where it
// stands, what it takes, what it gives, and whether it only reads. The command line is made from the table, and so is
// every other way of asking, so that none of them can have an opinion of its own.
//
// An input is a flat struct. Its tags say how a field is called in each place:
//
//	json:"memory"      the key in JSON (snake_case; camelCase is accepted as well)
//	flag:"memory"      the flag, `short:"m"` its letter
//	arg:"SANDBOX"      a positional argument instead; a []string takes all that follow, `optional:"true"` may be left out
//	value:"MiB"        what stands for the value in help
//	usage:"…"          one line of help
//	host:"size"        which resource of the host the field names (see Host)
//
// Every field has the last one; Add panics without it. A caller with a key is refused by these classes what its profile
// does not allow, so a forgotten one would be a hole.
//
// A command runs by Call, whoever asks and whichever way: who may not do it is refused, and what was decided is written
// down before it happens.
//
// The package knows no cobra, and of HTTP only which status fits an error. Handlers get an Env, and open what they need through it.
package command

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"ravi/internal/access"
)

// Access says what a command does to the world.
type Access = access.Access

// The classes of access.
const (
	Read  = access.Read
	Write = access.Write
)

// Reach says who can call a command from where.
type Reach int

// The reaches, from the widest.
const (
	// Everywhere: on the command line, and through the gateway with a key that allows it.
	Everywhere Reach = iota
	// OperatorOnly: no key allows it. The operator's own socket takes it.
	OperatorOnly
	// LocalOnly: it works in the process that was started for it, and no gateway takes it.
	LocalOnly
)

// Example is a line that a user could type, and what it is for.
type Example struct{ What, Line string }

// Spec declares a command.
type Spec[In, Out any] struct {
	Group    string // such as sandbox
	Name     string // such as ls
	Aliases  []string
	Summary  string // one line
	Long     string // paragraphs for --help
	Examples []Example
	Access   Access
	Reach    Reach
	Defaults In // what an input is before it is filled
	Handler  func(context.Context, *Env, In) (Out, error)
	// Object finds the full id of what the command is about: capabilities for one object are for this id. An empty
	// one is nothing in particular, which only capabilities for every object allow.
	Object func(context.Context, *Env, In) (string, error)
	// Scoped says that the handler shows, or does, only what the caller holds capabilities for (Env.Objects). A caller
	// with a capability for any object is let in.
	Scoped bool
	// Self says that the command tells the caller about itself, and nothing else: every key allows it.
	Self bool
	// Judges says that the command decides for people about what a run may do; its object is the run. No run's key may call
	// it, nor one below. And capabilities count for runs that they name, and for those made with their key: one for
	// everything is none for what others run.
	Judges bool
	// Bounded are the JSON names of host resources that the handler holds against the caller's profile. All others
	// a caller with a key cannot name.
	Bounded []string
	// Print shows the result to people. Without it the result is shown as JSON.
	Print func(*Env, io.Writer, Out) error
	// Exit is the process's exit code for a result; without it 0.
	Exit func(Out) int
}

// Command is a declared command.
type Command struct {
	Group    string
	Name     string
	Aliases  []string
	Summary  string
	Long     string
	Examples []Example
	Access   Access
	Reach    Reach
	Scoped   bool
	Self     bool
	Judges   bool
	Fields   []Field
	In, Out  reflect.Type

	bounded  []string
	object   func(context.Context, *Env, any) (string, error)
	newInput func() any
	run      func(context.Context, *Env, any) (any, error)
	print    func(*Env, io.Writer, any) error
	exit     func(any) int
}

// FullName is the group and the name, joined by a dot.
func (c *Command) FullName() string { return c.Group + "." + c.Name }

// NewInput is a pointer to an input that holds the defaults.
func (c *Command) NewInput() any { return c.newInput() }

// HasPrint says whether the command shows its result to people itself.
func (c *Command) HasPrint() bool { return c.print != nil }

// Print shows a result of Run to people.
func (c *Command) Print(env *Env, w io.Writer, out any) error { return c.print(env, w, out) }

// Exit is the exit code for a result of Run.
func (c *Command) Exit(out any) int {
	if c.exit == nil {
		return ExitOK
	}
	return c.exit(out)
}

// Group is a set of commands. Under is the group whose command it is on the command line: the group bus-creds under bus is
// typed ravi bus creds.
type Group struct{ Name, Summary, Under string }

// Words are what is typed for the group.
func (g Group) Words() []string {
	if g.Under == "" {
		return []string{g.Name}
	}
	return []string{g.Under, strings.TrimPrefix(g.Name, g.Under+"-")}
}

// Table holds the commands in the order in which they were added.
type Table struct {
	groups   []Group
	commands []*Command
}

// AddGroup declares a group.
func (t *Table) AddGroup(g Group) {
	if slices.ContainsFunc(t.groups, func(have Group) bool { return have.Name == g.Name }) {
		panic("command: group " + g.Name + " is declared twice")
	}
	t.groups = append(t.groups, g)
}

// Groups are all groups.
func (t *Table) Groups() []Group { return slices.Clone(t.groups) }

// Commands are all commands.
func (t *Table) Commands() []*Command { return slices.Clone(t.commands) }

// Add declares a command. A declaration that makes no sense is a mistake in the program, found by the first test that
// builds the table: Add panics.
func Add[In, Out any](t *Table, s Spec[In, Out]) {
	c := &Command{
		Group: s.Group, Name: s.Name, Aliases: s.Aliases, Summary: s.Summary, Long: s.Long, Examples: s.Examples,
		Access: s.Access, Reach: s.Reach, Scoped: s.Scoped, Self: s.Self, Judges: s.Judges, bounded: s.Bounded, In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out](),
		newInput: func() any { in := s.Defaults; return &in },
		run:      func(ctx context.Context, env *Env, in any) (any, error) { return s.Handler(ctx, env, *in.(*In)) },
	}
	if s.Object != nil {
		c.object = func(ctx context.Context, env *Env, in any) (string, error) { return s.Object(ctx, env, *in.(*In)) }
	}
	if s.Print != nil {
		c.print = func(env *Env, w io.Writer, out any) error { return s.Print(env, w, out.(Out)) }
	}
	if s.Exit != nil {
		c.exit = func(out any) int { return s.Exit(out.(Out)) }
	}
	if err := t.check(c, s.Handler == nil); err != nil {
		panic("command " + c.FullName() + ": " + err.Error())
	}
	t.commands = append(t.commands, c)
}

func (t *Table) check(c *Command, noHandler bool) error {
	if !slices.ContainsFunc(t.groups, func(g Group) bool { return g.Name == c.Group }) {
		return fmt.Errorf("there is no group %q", c.Group)
	}
	names := append([]string{c.Name}, c.Aliases...)
	for _, have := range t.commands {
		for _, name := range append([]string{have.Name}, have.Aliases...) {
			if have.Group == c.Group && slices.Contains(names, name) {
				return fmt.Errorf("the name %q is taken", name)
			}
		}
	}
	switch {
	case c.Name == "" || strings.ToLower(c.Name) != c.Name:
		return fmt.Errorf("%q is not a name", c.Name)
	case c.Summary == "" || strings.HasSuffix(c.Summary, "."):
		return fmt.Errorf("the summary is one line without a full stop")
	case c.Access != Read && c.Access != Write:
		return fmt.Errorf("the access class is %q, not read or write", c.Access)
	case noHandler:
		return fmt.Errorf("there is no handler")
	case c.Self && (c.Access != Read || c.Scoped || c.object != nil):
		return fmt.Errorf("what tells the caller about itself only reads, and nothing else")
	case c.Judges && (c.Access != Write || c.object == nil):
		return fmt.Errorf("what judges a run changes something, and says which run")
	case c.Scoped && c.object != nil:
		return fmt.Errorf("it is about one object, or about those that the caller may see")
	}
	var err error
	if c.Fields, err = fieldsOf(c.In); err != nil {
		return err
	}
	for _, name := range c.bounded {
		if !slices.ContainsFunc(c.Fields, func(f Field) bool { return f.JSON == name && !f.Host.free() }) {
			return fmt.Errorf("%s is bounded, and no field that names something of the host", name)
		}
	}
	return nil
}
