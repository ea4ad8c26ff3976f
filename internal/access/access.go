// Package access decides who may do what: capabilities, which a context key holds, and profiles, which bound what a
// keyed caller may ask of a sandbox.
//
// It decides on what it is given, and touches nothing but the paths of the host that a profile is asked about, which it
// resolves. It knows no record, no HTTP and no command line. What is not allowed in so many words is denied.
package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrDenied says that a caller may not do what it asked for.
var ErrDenied = errors.New("not allowed")

// Own is the object of capabilities for whatever was made with the key itself, such as read:runs@own.
const Own = "own"

// Access is what a command does to the world.
type Access string

// The classes of access.
const (
	Read  Access = "read"
	Write Access = "write"
)

// Operator is how the operator is called in records.
const Operator = "operator"

// Caller is who asks. The zero Caller may do nothing.
type Caller struct {
	operator bool
	// Key is what the caller holds; nil for the operator.
	Key *Key
}

// Key is what a context key says of its holder.
type Key struct {
	ID        string
	AgentID   string
	SessionID string
	TaskID    string
	RunID     string
	// Capabilities are what it may do.
	Capabilities Capabilities
	// Profile is the name of the profile that bounds it.
	Profile string
}

// AsOperator is the operator. Who calls it has proven that the caller is that.
func AsOperator() Caller { return Caller{operator: true} }

// WithKey is the holder of a key.
func WithKey(k Key) Caller { return Caller{Key: &k} }

// IsOperator says whether the caller is the operator.
func (c Caller) IsOperator() bool { return c.operator && c.Key == nil }

// Name is how the caller stands in records: operator, or the id of its key.
func (c Caller) Name() string {
	switch {
	case c.IsOperator():
		return Operator
	case c.Key != nil:
		return c.Key.ID
	}
	return "nobody"
}

// RunID is the run that the caller belongs to, if any.
func (c Caller) RunID() string {
	if c.Key == nil {
		return ""
	}
	return c.Key.RunID
}

// Check says whether the caller may do what is asked; its error is a *Denied. An ask without an object is for all of
// them, so capabilities for some do not do.
func (c Caller) Check(a Ask) error {
	if c.IsOperator() || c.Key != nil && c.Key.Capabilities.Allow(a) {
		return nil
	}
	return &Denied{Caller: c.Name(), Missing: a.Capability().String()}
}

// Somewhere says whether the caller may do this to some object at least.
func (c Caller) Somewhere(a Ask) error {
	if c.IsOperator() {
		return nil
	}
	if c.Key != nil {
		if all, some := c.Key.Capabilities.Objects(a); all || len(some) > 0 {
			return nil
		}
	}
	return &Denied{Caller: c.Name(), Missing: a.Capability().String()}
}

// Objects are the objects that the caller may do this to: all of them, or those that match one of the patterns.
func (c Caller) Objects(a Ask) (all bool, patterns []string) {
	if c.IsOperator() {
		return true, nil
	}
	if c.Key == nil {
		return false, nil
	}
	return c.Key.Capabilities.Objects(a)
}

// Denied is a refusal, with what was missing.
type Denied struct {
	Caller  string
	Missing string // the capability, or what of the host
}

func (d *Denied) Error() string {
	return fmt.Sprintf("this needs %s, which %s does not hold", d.Missing, d.Caller)
}

// Is makes every refusal an ErrDenied.
func (d *Denied) Is(target error) bool { return target == ErrDenied }

// Ask is one thing to do: a command, and the object that it is about.
type Ask struct {
	Access  Access
	Group   string
	Command string
	Object  string // a full id; empty: no one in particular
}

// Capability is the smallest that allows it.
func (a Ask) Capability() Capability {
	return Capability(a)
}

// Capability allows commands of a group on objects. Empty fields are everything; an Object may end with *.
type Capability struct {
	Access  Access
	Group   string
	Command string
	Object  string
}

// ParseCapability reads read:GROUP[.COMMAND][@OBJECT] or write:…; a * stands for all of a part, and may end an object.
func ParseCapability(text string) (Capability, error) {
	bad := func(why string) (Capability, error) {
		return Capability{}, fmt.Errorf("the capability %q: %s; it is read:GROUP[.COMMAND][@OBJECT] or write:…, such as read:tasks or write:tasks.comment@tsk01", text, why)
	}
	const longest = 200
	if len(text) > longest {
		text = text[:20] + "…"
		return bad(fmt.Sprintf("it has more than %d characters", longest))
	}
	kind, rest, ok := strings.Cut(text, ":")
	c := Capability{Access: Access(kind)}
	if !ok || c.Access != Read && c.Access != Write {
		return bad("it begins with neither read: nor write:")
	}
	what, object, scoped := strings.Cut(rest, "@")
	group, name, named := strings.Cut(what, ".")
	switch {
	case group == "*" && named:
		return bad("* stands for all groups, and has no command behind it")
	case !isWord(group) && group != "*":
		return bad("there is no group in it")
	case named && !isWord(name) && name != "*":
		return bad("what is behind the dot is no command")
	case scoped && !isObject(object):
		return bad("what is behind the @ is no object")
	}
	for _, part := range []struct{ text, to *string }{{&group, &c.Group}, {&name, &c.Command}, {&object, &c.Object}} {
		if *part.text != "*" {
			*part.to = *part.text
		}
	}
	return c, nil
}

func isWord(s string) bool {
	return s != "" && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// isObject wants something behind the @: where a variable was empty, a key for one object must not be one for all.
func isObject(s string) bool {
	if s == "" {
		return false
	}
	s = strings.TrimSuffix(s, "*")
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.:/-", r)) {
			return false
		}
	}
	return true
}

// String is the shortest form that ParseCapability reads.
func (c Capability) String() string {
	s := string(c.Access) + ":"
	if c.Group == "" {
		s += "*"
	}
	s += c.Group
	if c.Command != "" {
		s += "." + c.Command
	}
	if c.Object != "" {
		s += "@" + c.Object
	}
	return s
}

// Covers says whether c allows everything that other allows.
func (c Capability) Covers(other Capability) bool {
	part := func(mine, theirs string) bool { return mine == "" || mine == theirs }
	return c.Access == other.Access && part(c.Group, other.Group) && part(c.Command, other.Command) && coversObject(c.Object, other.Object)
}

func coversObject(mine, theirs string) bool {
	if mine == "" {
		return true
	}
	if prefix, open := strings.CutSuffix(mine, "*"); open {
		return theirs != "" && strings.HasPrefix(theirs, prefix)
	}
	return mine == theirs
}

// Capabilities are what a key holds.
type Capabilities []Capability

// ParseCapabilities reads a list, and leaves out what another one covers.
func ParseCapabilities(texts []string) (Capabilities, error) {
	const most = 200
	if len(texts) > most {
		return nil, fmt.Errorf("there are %d capabilities, more than %d", len(texts), most)
	}
	var all Capabilities
	for _, text := range texts {
		c, err := ParseCapability(text)
		if err != nil {
			return nil, err
		}
		if !all.Cover(c) {
			all = append(slices.DeleteFunc(all, c.Covers), c)
		}
	}
	return all, nil
}

// Strings are the texts, in an order that depends on nothing but the set.
func (cs Capabilities) Strings() []string {
	out := []string{}
	for _, c := range cs {
		out = append(out, c.String())
	}
	slices.Sort(out)
	return out
}

// Cover says whether one of them covers c.
func (cs Capabilities) Cover(c Capability) bool {
	return slices.ContainsFunc(cs, func(have Capability) bool { return have.Covers(c) })
}

// CoverAll says whether every one of others is covered, and if not, which is not.
func (cs Capabilities) CoverAll(others Capabilities) (bool, Capability) {
	for _, c := range others {
		if !cs.Cover(c) {
			return false, c
		}
	}
	return true, Capability{}
}

// Allow says whether they allow one thing.
func (cs Capabilities) Allow(a Ask) bool { return cs.Cover(a.Capability()) }

// Objects are the objects for which they allow what is asked, whatever object it names.
func (cs Capabilities) Objects(a Ask) (all bool, patterns []string) {
	a.Object = ""
	for _, c := range cs {
		object := c.Object
		if c.Object = ""; !c.Covers(a.Capability()) {
			continue
		}
		if object == "" {
			return true, nil
		}
		patterns = append(patterns, object)
	}
	return false, patterns
}

// Matches says whether an object is one of those that patterns name.
func Matches(patterns []string, object string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return coversObject(p, object) })
}
