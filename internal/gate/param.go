package gate

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

var nothing = [][]string{{hole}}

// param is what a parameter expansion may be: lists, whose elements stay apart within double quotes if apart is set.
func (j *judge) param(st *state, p *syntax.ParamExp) (lists [][]string, apart bool) {
	if p.Param == nil || p.Flags != nil || p.NestedParam != nil || len(p.Modifiers) > 0 {
		j.found(Ask, Unclear, "it has a form of expansion that is not understood", "")
		return nothing, false
	}
	name := p.Param.Value
	if index, ok := p.Index.(*syntax.Word); p.Index != nil && !(ok && (index.Lit() == "@" || index.Lit() == "*")) {
		j.arithmetic(st, p.Index)
	}
	if p.Slice != nil {
		j.arithmetic(st, p.Slice.Offset)
		j.arithmetic(st, p.Slice.Length)
	}
	lists, known := j.lookup(st, name)
	if known && p.Index != nil {
		lists = element(lists, p.Index)
	} else if known && name != "@" && name != "*" {
		for i, l := range lists {
			if len(l) > 1 {
				lists[i] = l[:1] // $array is its first element
			} else if len(l) == 0 {
				lists[i] = []string{""}
			}
		}
	}
	apart = isList(p)
	switch {
	case p.Length:
		return [][]string{{some}}, false
	case p.Names != 0:
		return nothing, apart
	case p.Excl:
		return j.indirect(st, lists), false
	case p.Exp != nil && p.Exp.Op == syntax.OtherParamOps:
		return j.operator(lists, p.Exp), apart
	case p.Exp != nil:
		return j.alternative(st, p, name, lists, known), apart
	case p.Repl != nil:
		with := oneOf(j.text(st, p.Repl.With))
		orig := oneOf(j.text(st, p.Repl.Orig))
		if strings.ContainsAny(orig, "*?[\\") || strings.HasPrefix(orig, "#") || strings.HasPrefix(orig, "%") || strings.Contains(with, "&") {
			return nothing, apart // patterns, which quotes may have taken the sense of
		}
		return computed(lists, with+orig, &syntax.ParamExp{Repl: &syntax.Replace{All: p.Repl.All, Orig: word(orig), With: word(with)}}), apart
	case p.Slice != nil:
		if len(lists) > 0 && (apart || name == "@" || name == "*") {
			return [][]string{{wild}}, apart // some of the elements
		}
		if !number(p.Slice.Offset) || p.Slice.Length != nil && !number(p.Slice.Length) {
			return nothing, false
		}
		return computed(lists, "", &syntax.ParamExp{Slice: p.Slice}), false
	case p.Width || p.IsSet:
		return nothing, false
	}
	return lists, apart
}

// lookup is what a parameter may be. What this command never set is known to nobody.
func (j *judge) lookup(st *state, name string) (lists [][]string, known bool) {
	switch name {
	case "@", "*":
		return [][]string{st.args}, true
	case "0":
		return [][]string{{st.zero}}, true
	case "#", "?", "$", "!", "PPID", "RANDOM", "LINENO", "SECONDS", "UID", "EUID", "BASHPID", "EPOCHSECONDS", "SRANDOM":
		return [][]string{{some}}, true
	case "PWD":
		return each1(st.cwd), true
	case "OLDPWD":
		return each1(st.old), true
	}
	if n, err := strconv.Atoi(name); err == nil && n <= 0 {
		return [][]string{{st.zero}}, true // ${00}
	} else if err == nil {
		for _, a := range st.args[:min(n, len(st.args))] {
			if a == wild {
				return nothing, true
			}
		}
		if n <= len(st.args) {
			return [][]string{{st.args[n-1]}}, true
		}
		return [][]string{{""}}, true
	}
	if v, ok := st.vars[name]; ok {
		out := make([][]string, 0, len(v.forms))
		return append(out, v.forms...), true
	}
	switch name {
	case "HOME":
		return [][]string{{homeDir}}, true
	case "TMPDIR":
		return [][]string{{"/tmp"}}, true
	case "SHELL", "BASH":
		return [][]string{{"/bin/bash"}}, true
	case "IFS":
		return [][]string{{" \t\n"}}, true
	}
	return nothing, false
}

func each1(list []string) (out [][]string) {
	for _, s := range list {
		out = append(out, []string{s})
	}
	return out
}

func number(x syntax.ArithmExpr) bool {
	w, ok := x.(*syntax.Word)
	if !ok {
		return false
	}
	_, err := strconv.Atoi(w.Lit())
	return err == nil
}

func element(lists [][]string, index syntax.ArithmExpr) [][]string {
	w, ok := index.(*syntax.Word)
	if !ok {
		return nothing
	}
	if w.Lit() == "@" || w.Lit() == "*" {
		return lists
	}
	n, err := strconv.Atoi(w.Lit())
	if err != nil {
		return nothing
	}
	var out [][]string
	for _, l := range lists {
		n := n
		if n < 0 {
			n += len(l)
		}
		switch {
		case strings.Contains(strings.Join(l, ""), wild) || len(l) == 1 && l[0] == hole:
			out = append(out, []string{hole})
		case n >= 0 && n < len(l):
			out = append(out, []string{l[n]})
		default:
			out = append(out, []string{""})
		}
	}
	return out
}

// indirect is ${!name}.
func (j *judge) indirect(st *state, lists [][]string) (out [][]string) {
	for _, l := range lists {
		name := strings.Join(l, " ")
		if symbolic(name) || !syntax.ValidName(name) {
			j.injected(name)
			return nothing
		}
		found, _ := j.lookup(st, name)
		out = append(out, found...)
	}
	return out
}

// operator is ${name@…}, of which P runs what is in the value.
func (j *judge) operator(lists [][]string, e *syntax.Expansion) [][]string {
	if e.Word == nil || e.Word.Lit() != "P" {
		return nothing
	}
	for _, l := range lists {
		j.injected(strings.Join(l, " "))
	}
	return nothing
}

// injected asks where a value is evaluated that has commands in it.
func (j *judge) injected(text string) {
	if strings.Contains(text, "$(") || strings.Contains(text, "`") {
		j.found(Ask, Unclear, "a value that has commands in it is evaluated", text)
	}
}

// alternative is ${name:-word} and its like, and what takes away a pattern or changes the case.
func (j *judge) alternative(st *state, p *syntax.ParamExp, name string, lists [][]string, known bool) [][]string {
	words := []string{""}
	if p.Exp.Word != nil {
		words = j.text(st, p.Exp.Word)
	}
	var out [][]string
	add := func(values ...[]string) { out = union(out, values) }
	for _, l := range lists {
		text := strings.Join(l, " ")
		empty := known && text == ""
		full := text != "" && !unknown(text)
		// Whether it is set to nothing or not set is not told apart: both are judged.
		switch p.Exp.Op {
		case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
			if !full {
				add(each1(words)...)
			}
			if !empty || p.Exp.Op == syntax.DefaultUnset || p.Exp.Op == syntax.AssignUnset {
				add(l)
			}
		case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
			add(each1(words)...)
			if !full {
				add([]string{""})
			}
		case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
			add(l)
		default:
			arg := oneOf(words)
			if strings.ContainsAny(arg, "*?[\\") && (p.Exp.Word.Lit() != arg || strings.Contains(arg, "\\")) {
				arg = hole // quotes may have taken a pattern's sense
			}
			add(computed([][]string{l}, arg, &syntax.ParamExp{Exp: &syntax.Expansion{Op: p.Exp.Op, Word: word(arg)}})...)
		}
	}
	if op := p.Exp.Op; op == syntax.AssignUnset || op == syntax.AssignUnsetOrNull {
		var forms []string
		for _, l := range out {
			forms = append(forms, strings.Join(l, " "))
		}
		st.setForms(name, forms)
	}
	return out
}

func word(s string) *syntax.Word {
	return &syntax.Word{Parts: []syntax.WordPart{&syntax.SglQuoted{Value: s}}}
}

// computed lets the library do to known values what an expansion says.
func computed(lists [][]string, operands string, p *syntax.ParamExp) (out [][]string) {
	defer func() {
		// Not every operator is known to the library, and what it does not know breaks it.
		if recover() != nil {
			out = nothing
		}
	}()
	p.Param = &syntax.Lit{Value: "v"}
	for _, l := range lists {
		text := strings.Join(l, " ")
		if len(l) != 1 || symbolic(text) || symbolic(operands) {
			return nothing
		}
		env := expand.FuncEnviron(func(name string) string {
			if name == "v" {
				return text
			}
			return ""
		})
		got, err := expand.Literal(&expand.Config{Env: env}, &syntax.Word{Parts: []syntax.WordPart{
			&syntax.DblQuoted{Parts: []syntax.WordPart{p}},
		}})
		if err != nil || strings.ContainsFunc(got, reserved) {
			return nothing
		}
		out = append(out, []string{got})
	}
	return out
}

// arithmetic judges what an arithmetic expression runs and sets. What comes out is a number.
func (j *judge) arithmetic(st *state, x syntax.ArithmExpr) string {
	if x == nil || !j.step() {
		return some
	}
	switch e := x.(type) {
	case *syntax.Word:
		forms := j.text(st, e)
		for _, f := range forms {
			j.injected(f)
			if lists, ok := j.lookup(st, f); ok && syntax.ValidName(f) {
				for _, l := range lists {
					j.injected(strings.Join(l, " "))
				}
			}
		}
		if _, err := strconv.ParseUint(oneOf(forms), 10, 31); err == nil {
			return forms[0]
		}
	case *syntax.BinaryArithm:
		j.arithmetic(st, e.Y)
		j.arithmetic(st, e.X)
		if w, ok := e.X.(*syntax.Word); ok && syntax.ValidName(w.Lit()) {
			switch e.Op {
			case syntax.Assgn, syntax.AddAssgn, syntax.SubAssgn, syntax.MulAssgn, syntax.QuoAssgn, syntax.RemAssgn,
				syntax.AndAssgn, syntax.OrAssgn, syntax.XorAssgn, syntax.ShlAssgn, syntax.ShrAssgn:
				st.set(w.Lit(), some)
			}
		}
	case *syntax.UnaryArithm:
		j.arithmetic(st, e.X)
		if w, ok := e.X.(*syntax.Word); ok && (e.Op == syntax.Inc || e.Op == syntax.Dec) && syntax.ValidName(w.Lit()) {
			st.set(w.Lit(), some)
		}
	case *syntax.ParenArithm:
		return j.arithmetic(st, e.X)
	default:
		j.found(Ask, Unclear, "it has a form of arithmetic that is not understood", "")
	}
	return some
}

// test judges what runs within [[ … ]].
func (j *judge) test(st *state, x syntax.TestExpr) {
	switch e := x.(type) {
	case *syntax.Word:
		j.text(st, e)
	case *syntax.BinaryTest:
		j.test(st, e.X)
		j.test(st, e.Y)
		switch e.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			for _, side := range []syntax.TestExpr{e.X, e.Y} {
				if w, ok := side.(*syntax.Word); ok {
					j.arithmetic(st, w)
				}
			}
		}
	case *syntax.UnaryTest:
		j.test(st, e.X)
		if w, ok := e.X.(*syntax.Word); ok && e.Op == syntax.TsVarSet {
			for _, f := range j.text(st, w) {
				j.injected(f)
			}
		}
	case *syntax.ParenTest:
		j.test(st, e.X)
	}
}
