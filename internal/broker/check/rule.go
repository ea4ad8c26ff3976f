package check

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"ravi/internal/strictjson"
)

// rule says what is wrong with a value. A nil rule takes anything.
type rule func(Grants, strictjson.Value) *fault

// fault is a refusal in the making: its place is put together on the way out.
type fault struct {
	at    string // such as messages[3].content
	kind  string // the type of what is at fault, if that is why
	what  string
	grant string
}

func (f *fault) in(key string) *fault {
	if f.at != "" && f.at[0] != '[' {
		key += "."
	}
	f.at = key + f.at
	return f
}

// bad is what is no proper request; no grant helps.
func bad(format string, args ...any) *fault { return &fault{what: fmt.Sprintf(format, args...)} }

// denied is what a grant would allow.
func denied(grant string) *fault {
	why := reasons[grant]
	if why == "" {
		why = "it is not known what the provider would do with it"
	}
	return &fault{grant: grant, what: "not allowed here, since " + why}
}

// plainName is what may stand in a message and in the configuration.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// quote makes a stranger's text fit for a message.
func quote(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strconv.QuoteToASCII(s)
}

// fold gives the same for what a lax reader may take for the same key: capitals and dashes differ.
func fold(key string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key))
}

// folds says whether a key folds to this. It is asked of each key of each part, and so makes no string.
func folds(key, folded string) bool {
	at := 0
	for i := range len(key) {
		c := key[i]
		if c == '_' || c == '-' {
			continue
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if at == len(folded) || folded[at] != c {
			return false
		}
		at++
	}
	return at == len(folded)
}

func empty(v strictjson.Value) bool {
	if v.Kind() == strictjson.Array {
		for range v.Items() {
			return false
		}
		return true
	}
	return v.Kind() == strictjson.Null
}

// granted is what needs a grant, whatever it says; null and an empty list say nothing.
func granted(grant string) rule {
	return func(g Grants, v strictjson.Value) *fault {
		if g[grant] || empty(v) {
			return nil
		}
		return denied(grant)
	}
}

// off is a switch that needs a grant to be on.
func off(grant string) rule {
	return func(g Grants, v strictjson.Value) *fault {
		if string(v.Raw()) == "false" {
			return nil
		}
		return granted(grant)(g, v)
	}
}

// of takes only one kind of value, and null.
func of(kind strictjson.Kind) rule {
	return func(_ Grants, v strictjson.Value) *fault {
		if v.Kind() != kind && v.Kind() != strictjson.Null {
			return bad("expected %s, got %s", kind, v.Kind())
		}
		return nil
	}
}

var (
	text = of(strictjson.String)
	flag = of(strictjson.Bool)
)

// whole is a number of something: a limit that is counted with must be understood.
func whole(_ Grants, v strictjson.Value) *fault {
	if v.Kind() == strictjson.Null {
		return nil
	}
	if n, err := strconv.ParseInt(string(v.Raw()), 10, 64); err != nil || n < 0 {
		return bad("expected a whole number of 0 or more, got %s", quote(string(v.Raw())))
	}
	return nil
}

// data is an address that has its content in it. Its beginning must be written plainly, without escapes.
func data(g Grants, v strictjson.Value) *fault {
	if f := text(g, v); f != nil {
		return f
	}
	if v.Kind() == strictjson.Null || bytes.HasPrefix(v.Raw(), []byte(`"data:`)) || g[URLs] {
		return nil
	}
	return denied(URLs)
}

// content is content itself, in base64 or as a data address: nothing that could be an address of another scheme.
func content(g Grants, v strictjson.Value) *fault {
	if v.Kind() == strictjson.String && bytes.IndexByte(v.Raw(), ':') < 0 && bytes.IndexByte(v.Raw(), '\\') < 0 {
		return nil
	}
	return data(g, v)
}

// each is a list of things of one rule.
func each(r rule) rule {
	return func(g Grants, v strictjson.Value) *fault {
		if f := of(strictjson.Array)(g, v); f != nil {
			return f
		}
		for n, item := range v.Items() {
			if f := r(g, item); f != nil {
				return f.in("[" + strconv.Itoa(n) + "]")
			}
		}
		return nil
	}
}

// textOr is a string, or something else.
func textOr(r rule) rule {
	return func(g Grants, v strictjson.Value) *fault {
		if v.Kind() == strictjson.String {
			return nil
		}
		return r(g, v)
	}
}

// object is an object with these fields and no others: harmless ones, and those that have rules.
func object(harmless string, special map[string]rule) rule {
	known, folded := map[string]rule{}, map[string]string{}
	for _, name := range strings.Fields(harmless) {
		known[name], folded[fold(name)] = nil, name
	}
	for name, r := range special {
		known[name], folded[fold(name)] = r, name
	}
	return func(g Grants, v strictjson.Value) *fault {
		if f := of(strictjson.Object)(g, v); f != nil {
			return f
		}
		for name, item := range v.Members() {
			r, ok := known[name]
			if !ok {
				if f := stray(g, name, folded); f != nil {
					return f
				}
				continue
			}
			if r == nil {
				continue
			}
			if f := r(g, item); f != nil {
				return f.in(name)
			}
		}
		return nil
	}
}

// stray judges a field that is not in the table. One that a lax reader would take for a field of the table is never
// let through: it would hide from the table's rule.
func stray(g Grants, name string, folded map[string]string) *fault {
	if !plainName.MatchString(name) {
		return bad("it has a field of the name %s", quote(name))
	}
	if known, ok := folded[fold(name)]; ok {
		return bad("the field %q is spelled %q", known, name)
	}
	if g[FieldPrefix+name] {
		return nil
	}
	return denied(FieldPrefix + name).in(name)
}

// part is an object that has a type.
func part(harmless string, special map[string]rule) rule { return object("type "+harmless, special) }

// date is the version at the end of a type's name.
var date = regexp.MustCompile(`_([0-9]{8}|[0-9]{4}_[0-9]{2}_[0-9]{2})$`)

// by chooses the rule by one field of an object, such as its type. The versions of a type are alike.
func by(key string, known map[string]rule, absent rule) rule {
	folded := fold(key)
	return func(g Grants, v strictjson.Value) *fault {
		if f := of(strictjson.Object)(g, v); f != nil || v.Kind() == strictjson.Null {
			return f
		}
		kind := ""
		for name, item := range v.Members() {
			switch {
			case name == key && item.Kind() == strictjson.Null:
			case name == key && item.Kind() != strictjson.String:
				return bad("expected a string, got %s", item.Kind()).in(key)
			case name == key:
				kind = item.Text()
			case folds(name, folded):
				return bad("the field %q is spelled %s", key, quote(name))
			}
		}
		if kind == "" {
			if absent == nil {
				return bad("it has no %s", key)
			}
			return absent(g, v)
		}
		r, ok := known[kind]
		if !ok {
			r, ok = known[date.ReplaceAllString(kind, "")]
		}
		switch {
		case ok && r == nil:
			return nil
		case ok:
			f := r(g, v)
			if f != nil && f.at == "" && f.kind == "" {
				f.kind = kind
			}
			return f
		case !plainName.MatchString(kind):
			return bad("%s is no %s that could be allowed", quote(kind), key)
		case g[TypePrefix+kind]:
			return nil
		}
		f := denied(TypePrefix + kind)
		f.kind = kind
		return f
	}
}

// with is a table that has more entries.
func with(tables ...map[string]rule) map[string]rule {
	all := map[string]rule{}
	for _, table := range tables {
		for name, r := range table {
			all[name] = r
		}
	}
	return all
}
