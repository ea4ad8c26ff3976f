package gate

import (
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// variable is what a variable may hold: each of forms is a list, which has one element unless the variable is an array.
type variable struct {
	forms    [][]string
	array    bool
	exported bool
	fixed    bool // it is read-only, so that what is assigned may not be taken
	odd      bool // what is assigned is not what it holds: declare -i, -l, -u
}

// function is what a name may call.
type function struct {
	bodies []*syntax.Stmt
	maybe  bool // and it may be the program of that name
}

// input is what a command reads, output what it prints.
type input struct {
	text   string
	loaded bool // it comes from the network
}

type output struct {
	b      strings.Builder
	loaded bool
}

func (o *output) add(text string) {
	if o.b.Len()+len(text) > maxText {
		text = hole
	}
	if o.b.Len() <= maxText {
		o.b.WriteString(text)
	}
}

// state is a shell's, as far as it is known.
type state struct {
	vars    map[string]variable
	funcs   map[string]function
	aliases map[string][]string
	names   map[string]string // what a program was linked or copied to, by its new name
	files   map[string]input  // what was just written, by path
	traps   []string          // what runs when the shell ends
	args    []string          // $1 and on
	zero    string            // $0

	cwd, failed []string // where it may be; and where it is if the last cd failed
	old         []string

	in  *input
	out *output

	errexit       bool // set -e
	quiet         bool // which does not hold for what just failed
	left          bool // the rest of the shell may not run
	gone          bool // it does not run
	skips         bool // the rest of a loop's body may not run
	returns       bool // the rest of a function's body may not run
	rewired       bool // an exec just changed its descriptors
	funcsExported bool
}

func newState(cwd string) *state {
	if cwd == "" {
		// Somewhere, deep enough that its parents are not the root.
		cwd = "/" + some + "/" + some + "/" + some + "/" + some
	}
	return &state{
		vars: map[string]variable{}, funcs: map[string]function{}, aliases: map[string][]string{}, names: map[string]string{},
		files: map[string]input{}, zero: "bash", cwd: []string{clean(cwd)}, old: []string{hole}, out: &output{},
	}
}

// clone is a subshell's state. Input and output stay the same ones.
func (st *state) clone() *state {
	c := *st
	c.vars, c.funcs, c.aliases = maps.Clone(st.vars), maps.Clone(st.funcs), maps.Clone(st.aliases)
	c.names, c.files = maps.Clone(st.names), maps.Clone(st.files)
	return &c
}

// subshell is the state of a subshell. What is written there is written for all.
func (st *state) subshell() *state {
	c := st.clone()
	c.files, c.names = st.files, st.names
	c.traps = nil
	return c
}

// child is the state of a shell that this one starts as a program: it inherits what is exported.
func (st *state) child() *state {
	c := st.subshell()
	for name, v := range c.vars {
		if !v.exported && name != "HOME" && name != "IFS" {
			// It may be in the environment already, so that the child sees the new value; or it is empty there.
			v.forms = union(v.forms, [][]string{{hole}})
			c.vars[name] = v
		}
	}
	delete(c.vars, "IFS")
	if !st.funcsExported {
		clear(c.funcs)
	}
	for name, f := range c.funcs {
		f.maybe = true
		c.funcs[name] = f
	}
	clear(c.aliases)
	c.args, c.errexit, c.failed = nil, false, nil
	c.left, c.gone, c.skips, c.returns = false, false, false, false
	return c
}

func union[T any](a, b [][]T) [][]T {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.ContainsFunc(out, func(y []T) bool { return same(x, y) }) {
			out = append(out, x)
		}
	}
	return out
}

func same[T any](a, b []T) bool {
	return slices.EqualFunc(a, b, func(x, y T) bool { return any(x) == any(y) })
}

func unionOf(a, b []string) []string {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	if len(out) > maxForms {
		return []string{hole}
	}
	return out
}

// merge makes st what is either st or o.
func (st *state) merge(o *state) {
	for name := range o.vars {
		if _, ok := st.vars[name]; !ok {
			st.vars[name] = variable{forms: [][]string{{hole}}}
		}
	}
	for name, v := range st.vars {
		w, ok := o.vars[name]
		if !ok {
			w = variable{forms: [][]string{{hole}}}
		}
		v.forms = union(v.forms, w.forms)
		if len(v.forms) > maxForms {
			v.forms = [][]string{{hole}}
		}
		v.array, v.exported, v.odd, v.fixed = v.array || w.array, v.exported && w.exported, v.odd || w.odd, v.fixed || w.fixed
		st.vars[name] = v
	}
	for name := range o.funcs {
		if _, ok := st.funcs[name]; !ok {
			st.funcs[name] = function{maybe: true}
		}
	}
	for name, f := range st.funcs {
		g, ok := o.funcs[name]
		f.maybe = f.maybe || g.maybe || !ok
		for _, body := range g.bodies {
			if !slices.Contains(f.bodies, body) {
				f.bodies = append(slices.Clone(f.bodies), body)
			}
		}
		st.funcs[name] = f
	}
	for name, texts := range o.aliases {
		st.aliases[name] = unionOf(st.aliases[name], texts)
	}
	maps.Copy(st.names, o.names)
	st.traps = unionOf(st.traps, o.traps)
	for name, f := range o.files {
		if g, ok := st.files[name]; ok && g != f {
			f = input{text: g.text + "\n" + f.text + "\n" + hole, loaded: f.loaded || g.loaded}
		}
		st.files[name] = f
	}
	for name, f := range st.files {
		if _, ok := o.files[name]; !ok {
			st.files[name] = input{text: f.text + "\n" + hole, loaded: f.loaded}
		}
	}
	if !slices.Equal(st.args, o.args) {
		st.args = []string{wild}
	}
	st.cwd, st.failed, st.old = unionOf(st.cwd, o.cwd), unionOf(st.failed, o.failed), unionOf(st.old, o.old)
	st.errexit, st.quiet = st.errexit && o.errexit, st.quiet || o.quiet
	st.left, st.gone, st.skips, st.returns = st.left || o.left, st.gone && o.gone, st.skips || o.skips, st.returns || o.returns
	st.funcsExported = st.funcsExported || o.funcsExported
}

// size is about how much there is to copy and to compare.
func (st *state) size() int {
	n := 0
	for _, v := range st.vars {
		n += 32
		for _, f := range v.forms {
			for _, s := range f {
				n += len(s)
			}
		}
	}
	for _, f := range st.files {
		n += len(f.text)
	}
	return n
}

// settle ends a statement: whether its cd went well is no longer known, unless a failure ends the shell.
func (st *state) settle() {
	if !st.errexit || st.quiet {
		st.cwd = unionOf(st.cwd, st.failed)
	}
	st.failed, st.quiet = nil, false
}

func (st *state) set(name string, value ...string) {
	for i, v := range value {
		if len(v) > maxText {
			value[i] = hole
		}
	}
	old := st.vars[name]
	if old.odd {
		value = []string{hole}
	}
	old.forms, old.array = old.taken([][]string{value}), len(value) != 1
	st.vars[name] = old
}

// setForms sets a plain variable to what it may be.
func (st *state) setForms(name string, forms []string) {
	old := st.vars[name]
	v := old
	v.forms, v.array = nil, false
	if len(forms) > maxForms || v.odd {
		forms = []string{hole}
	}
	for _, f := range forms {
		if len(f) > maxText {
			f = hole
		}
		v.forms = append(v.forms, []string{f})
	}
	v.forms = old.taken(v.forms)
	st.vars[name] = v
}

// taken are the forms after an assignment.
func (v variable) taken(forms [][]string) [][]string {
	if v.fixed {
		return union(v.forms, forms)
	}
	return forms
}

// maybe runs do, which may not come to pass: what it changes may be as it was. What is written stays known.
func (st *state) maybe(do func()) {
	before := st.clone()
	do()
	before.files, before.names = st.files, st.names
	gone := before.gone
	st.merge(before)
	st.gone = gone
}

// print is what a command prints. Where it is not certain that the shell comes here, it is anything.
func (st *state) print(text string) {
	if text != "" && (st.left || st.errexit || st.skips || st.returns) {
		text = hole
	}
	st.out.add(text)
}

// within says that whatever st may be, o may be, too: judging from o was judging from st.
func (st *state) within(o *state) bool {
	for name, v := range st.vars {
		w, ok := o.vars[name]
		if !ok || len(union(w.forms, v.forms)) > len(w.forms) && !slices.ContainsFunc(w.forms, anything) {
			return false
		}
	}
	return covers(o.cwd, st.cwd) && (slices.Equal(st.args, o.args) || anything(o.args))
}

// anything says that nothing is known of a value.
func anything(form []string) bool { return len(form) == 1 && (form[0] == hole || form[0] == wild) }

func covers(a, b []string) bool {
	return slices.Contains(a, hole) || !slices.ContainsFunc(b, func(s string) bool { return !slices.Contains(a, s) })
}

// forget makes unknown whatever is not within o; all of it, if o is nil.
func (st *state) forget(o *state) {
	for name, v := range st.vars {
		if o != nil {
			if w, ok := o.vars[name]; ok && len(union(w.forms, v.forms)) == len(w.forms) {
				continue
			}
		}
		st.vars[name] = variable{forms: [][]string{{hole}}, exported: v.exported, odd: v.odd, fixed: v.fixed}
	}
	if o == nil || !covers(o.cwd, st.cwd) {
		st.cwd = unionOf(st.cwd, []string{hole})
	}
	if o == nil || !slices.Equal(st.args, o.args) {
		st.args = []string{wild}
	}
}
