package gate

import (
	"maps"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// call is one command with its words, as it would be started.
type call struct {
	*judge
	st   *state
	argv []string
	name string   // of the program, without its folder
	args []string // argv without the first
}

func (c *call) text() string { return strings.Join(c.argv, " ") }

func (c *call) ask(family, reason string)  { c.found(Ask, family, reason, c.text()) }
func (c *call) deny(family, reason string) { c.found(Deny, family, reason, c.text()) }

// has says that one of the arguments is one of those.
func (c *call) has(options ...string) bool {
	return slices.ContainsFunc(c.args, func(a string) bool { return slices.Contains(options, a) })
}

// flag says that a short option is given, alone or within others, or a long one (or a beginning of it), before a --.
func (c *call) flag(short, long string) bool {
	for _, a := range c.args {
		switch {
		case a == "--":
			return false
		case strings.HasPrefix(a, "--"):
			name, _, _ := strings.Cut(a[2:], "=")
			if long != "" && len(name) > 1 && strings.HasPrefix(long, name) {
				return true
			}
		case strings.HasPrefix(a, "-") && strings.ContainsAny(a[1:], short):
			return true
		}
	}
	return false
}

// operands are the arguments that are no options.
func (c *call) operands() (out []string) {
	ended := false
	for _, a := range c.args {
		switch {
		case !ended && a == "--":
			ended = true
		case ended || !strings.HasPrefix(a, "-") || a == "-":
			out = append(out, a)
		}
	}
	return out
}

// simple judges a simple command: its assignments, and each form that its words may have.
func (j *judge) simple(st *state, c *syntax.CallExpr) {
	forms := j.words(st, c.Args)
	alone := len(c.Args) == 0
	target := st
	if !alone && len(c.Assigns) > 0 {
		target = st.clone() // they hold for this command only
	}
	for _, a := range c.Assigns {
		j.assign(target, a, !alone)
	}
	if alone {
		return
	}
	ways := make([]func(*state), 0, len(forms))
	for _, argv := range forms {
		ways = append(ways, func(s *state) {
			if len(argv) == 0 {
				return
			}
			// What assignments before a command change is seen by what it starts, and by nothing after it.
			own := maps.Clone(s.vars)
			maps.Copy(s.vars, target.vars)
			j.run(s, c, argv)
			for _, a := range c.Assigns {
				if v, ok := own[a.Name.Value]; ok {
					s.vars[a.Name.Value] = v
				} else {
					delete(s.vars, a.Name.Value)
				}
			}
			if last := argv[len(argv)-1]; last != wild {
				s.set("_", last)
			}
		})
	}
	if len(ways) == 1 {
		ways[0](st)
		return
	}
	j.branches(st, ways...)
}

// assign is one assignment.
func (j *judge) assign(st *state, a *syntax.Assign, exported bool) {
	if a.Name == nil {
		j.found(Ask, Unclear, "it has a form of assignment that is not understood", "")
		return
	}
	name := a.Name.Value
	old, had := st.vars[name]
	switch {
	case a.Array != nil:
		var words []*syntax.Word
		odd := false
		for _, e := range a.Array.Elems {
			odd = odd || e.Index != nil
			words = append(words, e.Value)
		}
		forms := j.words(st, words)
		if odd {
			forms = [][]string{{wild}}
		}
		if a.Append && had && len(old.forms) == 1 && len(forms) == 1 {
			forms = [][]string{slices.Concat(old.forms[0], forms[0])}
		} else if a.Append {
			forms = [][]string{{wild}}
		}
		st.vars[name] = variable{forms: forms, array: true, exported: exported || old.exported}
	case a.Index != nil:
		j.arithmetic(st, a.Index)
		j.text(st, a.Value)
		st.vars[name] = variable{forms: [][]string{{wild}}, array: true, exported: exported || old.exported}
	default:
		forms := j.text(st, a.Value)
		if a.Append {
			var longer []string
			if !had || old.array {
				longer = []string{hole}
			}
			for _, before := range old.forms {
				for _, f := range forms {
					longer = append(longer, strings.Join(before, " ")+f)
				}
			}
			forms = longer
		}
		st.setForms(name, forms)
		v := st.vars[name]
		v.exported = exported || old.exported
		st.vars[name] = v
		j.special(name, forms)
	}
}

// special are the variables that a shell takes for commands.
func (j *judge) special(name string, forms []string) {
	switch name {
	case "PROMPT_COMMAND", "PS0", "PS1", "PS4":
		for _, f := range forms {
			j.injected(f)
			if name == "PROMPT_COMMAND" {
				j.found(Ask, Unclear, "a shell is told to run something later", name+"="+f)
			}
		}
	case "BASH_ENV", "ENV":
		j.found(Ask, Unclear, "each shell is told to run a file first", name+"="+oneOf(forms))
	case "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "PAGER", "EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "MANPAGER", "LESSOPEN":
		for _, f := range forms {
			j.deeper(func() { j.shell(newState(j.root), f) })
		}
	}
}

// declare is export, local, declare, readonly, typeset and nameref.
func (j *judge) declare(st *state, c *syntax.DeclClause) {
	variant := c.Variant.Value
	exports := variant == "export"
	reference, odd, fixed, global := variant == "nameref", false, variant == "readonly", false
	for _, a := range c.Args {
		if a.Naked && a.Name == nil && a.Value != nil {
			for _, form := range j.words(st, []*syntax.Word{a.Value}) {
				for _, arg := range form {
					j.injected(arg)
					switch name, text, ok := strings.Cut(arg, "="); {
					case strings.HasPrefix(arg, "-"):
						exports = exports || strings.Contains(arg, "x")
						reference = reference || strings.Contains(arg, "n")
						odd = odd || strings.ContainsAny(arg, "iluc")
						fixed, global = fixed || strings.Contains(arg, "r"), global || strings.Contains(arg, "g")
						st.funcsExported = st.funcsExported || exports && strings.Contains(arg, "f")
					case ok && syntax.ValidName(name):
						st.set(name, text)
					case symbolic(name):
						j.found(Ask, Unclear, "a variable is set whose name cannot be known", arg)
					}
				}
			}
			continue
		}
		if a.Name == nil {
			continue
		}
		if reference {
			j.found(Ask, Unclear, "a variable is set by another name", a.Name.Value)
		}
		if n := len(j.calls); n > 0 && !exports && variant != "export" && variant != "readonly" && !global {
			j.calls[n-1].locals[a.Name.Value] = true
		}
		if odd {
			st.vars[a.Name.Value] = variable{forms: nothing, odd: true, exported: exports}
		}
		if a.Naked {
			v, ok := st.vars[a.Name.Value]
			switch {
			case ok:
				v.exported, v.fixed = v.exported || exports, v.fixed || fixed
			case variant != "export" && variant != "readonly":
				v = variable{forms: [][]string{{""}, {hole}}, exported: exports}
			default:
				continue
			}
			st.vars[a.Name.Value] = v
			continue
		}
		j.assign(st, a, exports)
		if v := st.vars[a.Name.Value]; fixed {
			v.fixed = true
			st.vars[a.Name.Value] = v
		}
	}
}

// run judges one command whose words are given. The node is where it stands; nil for what another program starts.
func (j *judge) run(st *state, at *syntax.CallExpr, argv []string) {
	if len(argv) == 0 || !j.step() {
		return
	}
	for _, a := range argv {
		j.charge(len(a))
	}
	j.patterns(plain.Replace(strings.Join(argv, " ")))
	c := &call{judge: j, st: st, argv: argv, args: argv[1:]}
	switch {
	case argv[0] == globMark+"[":
		argv[0] = "["
	case argv[0] == "":
		return // there is no such program
	case symbolic(base(argv[0])) || strings.Contains(argv[0], wild) || strings.Contains(argv[0], globMark):
		st.out.add(hole)
		c.ask(Unclear, "the name of the program that it starts cannot be known before it runs")
		return
	}
	c.name = path.Base(argv[0])
	if !strings.Contains(argv[0], "/") && at != nil {
		if f, ok := st.funcs[argv[0]]; ok {
			j.call(st, at, argv[0], f, c.args)
			if !f.maybe && c.name != "eval" && c.name != "exec" {
				return
			}
		}
		// An alias holds where aliases are on, which is not known.
		if texts, ok := st.aliases[argv[0]]; ok {
			delete(st.aliases, argv[0])
			for _, text := range texts {
				j.shell(st.clone(), text+" "+quoteAll(c.args))
			}
			st.aliases[argv[0]] = texts
			st.out.add(hole)
		}
	}
	if other, ok := st.names[c.name]; ok {
		c.name = other
	}
	if f, ok := st.files[st.resolve(argv[0])[0]]; ok && strings.Contains(argv[0], "/") {
		j.script(st, f, argv)
	}
	c.credentials()
	if handle, ok := handlers[c.name]; ok {
		handle(c)
		return
	}
	c.other()
}

// sub judges what a program starts: functions, aliases and builtins of this shell are not seen by it.
func (c *call) sub(argv []string) {
	c.deeper(func() { c.run(c.st, nil, argv) })
}

// script judges a file that was just written, and is run now.
func (j *judge) script(st *state, f input, argv []string) {
	if f.loaded {
		j.found(Ask, Remote, "what was just loaded from the network is run", "")
	}
	child := st.child()
	child.zero, child.args = argv[0], argv[1:]
	if f.text != hole {
		j.shell(child, f.text)
		j.ends(child)
	}
}

// quoteAll writes words so that a shell reads them as they are.
func quoteAll(words []string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("'" + strings.ReplaceAll(w, "'", `'\''`) + "'")
	}
	return b.String()
}

// handlers know what programs do with their arguments. Each is for names, without a folder.
var handlers map[string]func(*call)

// register gives names a handler.
func register(h func(*call), names ...string) {
	for _, name := range names {
		if handlers[name] != nil {
			panic("gate: " + name + " has two handlers")
		}
		handlers[name] = h
	}
}

func init() {
	handlers = map[string]func(*call){}
	registerShell()
	registerPrinters()
	registerWrappers()
	registerDelete()
	registerDevices()
	registerVCS()
	registerOutward()
	registerInterpreters()
}
