package connected

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// maxItems bounds each list in the registry.
const maxItems = 1000

// list is a list of bounded length: a few bytes of JSON could ask for many of memory.
type list[T any] []T

func (l *list[T]) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	switch open, err := dec.Token(); {
	case err != nil:
		return err
	case open == nil:
		return nil
	case open != json.Delim('['):
		return fmt.Errorf("%v stands where a list must", open)
	}
	for dec.More() {
		if len(*l) == maxItems {
			return fmt.Errorf("a list has more than %d items", maxItems)
		}
		var v T
		if err := dec.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}

// registry is what the key may use.
type registry struct {
	Hash     string         `json:"registry_hash"`
	Commands list[*Command] `json:"commands"`
}

// Command is a command that the key may use.
type Command struct {
	Group    string        `json:"group"`
	Command  string        `json:"command"`
	Aliases  list[string]  `json:"aliases"`
	Summary  string        `json:"summary"`
	Long     string        `json:"long"`
	Examples list[example] `json:"examples"`
	Access   string        `json:"access"`
	Fields   list[*Field]  `json:"fields"`
}

type example struct {
	What string `json:"what"`
	Line string `json:"line"`
}

// Field is an input of a command. It has either a flag or an arg.
type Field struct {
	Name     string `json:"name"` // the key in JSON
	Type     string `json:"type"`
	Arg      string `json:"arg"`
	Optional bool   `json:"optional"`
	Flag     string `json:"flag"`
	Short    string `json:"short"`
	Value    string `json:"value"`
	Usage    string `json:"usage"`
	Rest     bool   `json:"rest"`
	Host     string `json:"host"` // which resource of the host it names
}

// Types of fields.
const (
	typeString   = "string"
	typeBoolean  = "boolean"
	typeInteger  = "integer"
	typeNumber   = "number"
	typeDuration = "duration"
	typeStrings  = "strings"
	typeMap      = "map"
)

var types = []string{typeString, typeBoolean, typeInteger, typeNumber, typeDuration, typeStrings, typeMap}

func (c *Command) full() string { return c.Group + "." + c.Command }

func (c *Command) path() string { return "/api/v1/" + c.Group + "/" + c.Command }

// line is how the command is called.
func (c *Command) line() string {
	if c.Group == c.Command {
		return "ravi " + c.Group
	}
	return "ravi " + c.Group + " " + c.Command
}

func (c *Command) flag(name string) *Field {
	i := slices.IndexFunc(c.Fields, func(f *Field) bool { return f.Flag != "" && f.Flag == name })
	if i < 0 {
		return nil
	}
	return c.Fields[i]
}

func (c *Command) short(letter string) *Field {
	i := slices.IndexFunc(c.Fields, func(f *Field) bool { return f.Short != "" && f.Short == letter })
	if i < 0 {
		return nil
	}
	return c.Fields[i]
}

// args are the fields that are arguments, in order.
func (c *Command) args() []*Field {
	return slices.DeleteFunc(slices.Clone(c.Fields), func(f *Field) bool { return f.Arg == "" })
}

// registry asks what the key may use.
func (c *client) registry(ctx context.Context) (*registry, *failure) {
	ctx, cancel := context.WithTimeout(ctx, c.to.wait+registryTimeout)
	defer cancel()
	a, err := c.do(ctx, request{method: "GET", path: "/api/v1/_meta/registry", accept: "application/json", repeat: true, what: "its commands", most: maxRegistry})
	if err != nil {
		return nil, err
	}
	return parseRegistry(a.body)
}

// parseRegistry reads the list of commands. Their names become paths and lines of help, so they are words or nothing;
// the fields of a command are looked at when it is used, so that one from a newer gateway spoils no other.
func parseRegistry(doc []byte) (*registry, *failure) {
	var r registry
	if err := json.Unmarshal(doc, &r); err != nil {
		return nil, nonsense("the gateway's list of commands cannot be read: %v", err)
	}
	taken := map[string]bool{}
	for _, c := range r.Commands {
		if c == nil || !word(c.Group, '-') {
			return nil, nonsense("the gateway's list of commands has one without a proper name")
		}
		for _, name := range append([]string{c.Command}, c.Aliases...) {
			full := c.Group + " " + name
			if !word(name, '-') || taken[full] {
				return nil, nonsense("the gateway's list of commands names %s improperly, or twice", full)
			}
			taken[full] = true
		}
	}
	slices.SortStableFunc(r.Commands, func(a, b *Command) int {
		return strings.Compare(a.Group+" "+a.Command, b.Group+" "+b.Command)
	})
	return &r, nil
}

// word says whether s is small letters and digits, and between them.
func word(s string, between rune) bool {
	if s == "" || len(s) > 64 || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != between
	})
}

// check says whether the command can be used by this client.
func (c *Command) check() *failure {
	if c.Access != "read" && c.Access != "write" {
		return nonsense("the gateway does not say whether %s reads or writes", c.full())
	}
	taken := map[string]bool{"--json": true, "--quiet": true, "--help": true, "-q": true, "-h": true}
	var before *Field
	for _, f := range c.Fields {
		switch {
		case f == nil || !word(f.Name, '_') || (f.Arg == "") == (f.Flag == ""),
			f.Flag != "" && !word(f.Flag, '-'),
			f.Short != "" && (f.Flag == "" || len(f.Short) != 1 || !letter(f.Short[0])),
			f.Rest && (f.Arg == "" || f.Type != typeStrings):
			return nonsense("the gateway describes an input of %s in a way that makes no sense", c.full())
		case !slices.Contains(types, f.Type):
			return nonsense("the gateway describes %s of %s as %q, which this ravi does not know: it is older", f.Name, c.full(), f.Type)
		}
		names := []string{"key " + f.Name}
		if f.Flag != "" {
			names = append(names, "--"+f.Flag)
		}
		if f.Short != "" {
			names = append(names, "-"+f.Short)
		}
		for _, name := range names {
			if taken[name] {
				return nonsense("the gateway describes %s of %s twice", name, c.full())
			}
			taken[name] = true
		}
		if f.Arg != "" {
			if before != nil && (before.Rest || before.Optional && !f.Optional) {
				return nonsense("the arguments of %s cannot be told apart", c.full())
			}
			before = f
		}
	}
	return nil
}

func letter(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' }

// groups are the names of all groups, in order.
func (r *registry) groups() []string {
	var out []string
	for _, c := range r.Commands {
		if len(out) == 0 || out[len(out)-1] != c.Group {
			out = append(out, c.Group)
		}
	}
	return out
}

// in are the commands of a group.
func (r *registry) in(group string) []*Command {
	return slices.DeleteFunc(slices.Clone(r.Commands), func(c *Command) bool { return c.Group != group })
}

// find finds the command that the words begin with, and gives what follows it. A group alone is no command: then only
// flags follow.
func (r *registry) find(words []string) (*Command, []string, *failure) {
	group, rest := words[0], words[1:]
	all := r.in(group)
	if len(all) == 0 {
		return nil, nil, usage(didYouMean(group, "ravi ", r.groups(), "see ravi --help"),
			"there is no command %q that this key may use", group)
	}
	if len(all) == 1 && all[0].Command == group {
		// A group of one command that has the group's name is that command.
		return all[0], rest, nil
	}
	if len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		// The flags that every command has may stand here as well.
		for i, arg := range rest {
			if arg == "--" || !strings.HasPrefix(arg, "-") {
				if c := named(all, arg); c != nil && onlyGlobals(rest[:i]) == nil {
					return c, slices.Concat(rest[:i], rest[i+1:]), nil
				}
				break
			}
		}
		return nil, rest, nil
	}
	if c := named(all, rest[0]); c != nil {
		return c, rest[1:], nil
	}
	var names []string
	for _, c := range all {
		names = append(append(names, c.Command), c.Aliases...)
	}
	return nil, nil, usage(didYouMean(rest[0], "ravi "+group+" ", names, "see ravi "+group+" --help"),
		"there is no command %q in ravi %s that this key may use", rest[0], group)
}

func named(all []*Command, name string) *Command {
	i := slices.IndexFunc(all, func(c *Command) bool { return c.Command == name || slices.Contains(c.Aliases, name) })
	if i < 0 {
		return nil
	}
	return all[i]
}
