package gate

import (
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// partial is a row of words that is being put together: the last one is open while has is set.
type partial struct {
	done []string
	cur  string
	has  bool
}

func (p partial) close() partial {
	if p.has {
		p.done = append(p.done, p.cur)
	}
	p.cur, p.has = "", false
	return p
}

// splice is what one part of a word expands to: its first item goes on with the open word, its last one stays open.
type splice struct {
	items       []string
	lead, trail bool // it begins or ends with what separates words
	quoted      bool // it makes a word even when it is empty
}

func (p partial) add(s splice) partial {
	if s.lead {
		p = p.close()
	}
	for i, item := range s.items {
		if i > 0 {
			p = p.close()
		}
		p.cur += item
		p.has = p.has || item != "" || s.quoted
	}
	if len(p.cur) > maxText {
		p.cur = hole
	}
	if s.trail {
		p = p.close()
	}
	return p
}

// place is where a word stands, which says what is expanded in it.
type place int

const (
	argument place = iota // of a command: split, braces, globs
	value                 // of a variable, or of a test: neither
	quoted                // within double quotes
	document              // in a here-document
)

// words are all rows of words that the words of a command may become.
func (j *judge) words(st *state, list []*syntax.Word) [][]string {
	forms := []partial{{}}
	for _, w := range list {
		if w == nil || !j.step() {
			continue
		}
		n := 0
		syntax.SplitBraces(w)
		for one, err := range expand.BracesSeq(nil, w) {
			if n++; n > maxFields || err != nil {
				forms = each(forms, []splice{{items: []string{hole}}})
				forms = closed(forms)
				break
			}
			forms = closed(j.parts(st, forms, one.Parts, argument))
		}
	}
	out := make([][]string, 0, len(forms))
	for _, f := range forms {
		out = append(out, f.done)
	}
	return out
}

func closed(forms []partial) []partial {
	for i := range forms {
		forms[i] = forms[i].close()
	}
	return forms
}

// text are all texts that a word may become where it is not split.
func (j *judge) text(st *state, w *syntax.Word) []string {
	if w == nil || !j.step() {
		return []string{""}
	}
	return joined(j.parts(st, []partial{{}}, w.Parts, value))
}

func (j *judge) document(st *state, r *syntax.Redirect) string {
	for _, part := range r.Word.Parts {
		// A quoted delimiter: the text is as it stands.
		if lit, ok := part.(*syntax.Lit); !ok || strings.Contains(lit.Value, `\`) {
			return j.asItStands(r.Hdoc)
		}
	}
	return oneOf(joined(j.parts(st, []partial{{}}, r.Hdoc.Parts, document)))
}

func (j *judge) asItStands(w *syntax.Word) string {
	if s := w.Lit(); s != "" || len(w.Parts) == 0 {
		return s
	}
	return hole
}

func joined(forms []partial) []string {
	var out []string
	for _, f := range forms {
		out = unionOf(out, []string{strings.Join(f.close().done, " ")})
	}
	return out
}

// each continues every form with every option, as long as that are few.
func each(forms []partial, options []splice) []partial {
	if len(options) == 0 {
		options = []splice{{}}
	}
	if len(forms)*len(options) > maxForms {
		options = []splice{{items: []string{wild}}}
		forms = forms[:min(len(forms), maxForms)]
	}
	out := make([]partial, 0, len(forms)*len(options))
	for _, f := range forms {
		if len(options) > 1 {
			f.done = slices.Clip(f.done) // each option goes on with a row of its own
		}
		for _, o := range options {
			out = append(out, f.add(o))
		}
	}
	return out
}

func (j *judge) parts(st *state, forms []partial, parts []syntax.WordPart, at place) []partial {
	for i, part := range parts {
		switch p := part.(type) {
		case *syntax.Lit:
			text := p.Value
			var options []splice
			if i == 0 && (at == argument || at == value) && strings.HasPrefix(text, "~") && !forms[0].has {
				name, rest, _ := cutTilde(text)
				// The user's name must not go on in a part that is quoted.
				if rest != "" || len(parts) == 1 {
					for _, dir := range st.tilde(name) {
						options = append(options, splice{items: []string{dir + literal(rest, at)}, quoted: true})
					}
				}
			}
			if options == nil {
				options = []splice{{items: []string{literal(text, at)}}}
			}
			forms = each(forms, options)
		case *syntax.SglQuoted:
			text := p.Value
			if p.Dollar {
				text = ansi(text)
			}
			forms = each(forms, []splice{{items: []string{text}, quoted: true}})
		case *syntax.DblQuoted:
			// "$@" without arguments is no word; "" is.
			if len(p.Parts) != 1 || !isList(p.Parts[0]) {
				forms = each(forms, []splice{{items: []string{""}, quoted: true}})
			}
			forms = j.parts(st, forms, p.Parts, quoted)
		case *syntax.ParamExp:
			lists, apart := j.param(st, p)
			options := st.expansions(lists, apart, at)
			if at == argument && p.Exp != nil && quotes(p.Exp.Word) {
				// What is quoted in ${x:-"a b"} is not split, and what comes from x is: both are judged.
				options = append(options, st.expansions(lists, false, quoted)...)
			}
			forms = each(forms, options)
		case *syntax.CmdSubst:
			o := j.inSubshell(st, func(c *state) { j.deeper(func() { j.stmts(c, p.Stmts) }) })
			text := strings.TrimRight(o.b.String(), "\n")
			j.loaded = j.loaded || o.loaded
			forms = each(forms, st.expansions([][]string{{text}}, false, at))
		case *syntax.ArithmExp:
			forms = each(forms, []splice{{items: []string{j.arithmetic(st, p.X)}, quoted: true}})
		case *syntax.ProcSubst:
			forms = each(forms, []splice{{items: []string{j.process(st, p)}, quoted: true}})
		case *syntax.ExtGlob:
			forms = each(forms, []splice{{items: []string{globMark + "*"}, quoted: true}})
		case *syntax.BraceExp: // in what is no argument, braces are themselves
			forms = each(forms, []splice{{items: []string{hole}}})
		default:
			forms = each(forms, []splice{{items: []string{wild}}})
		}
	}
	return forms
}

// process is the file that <(…) and >(…) are.
func (j *judge) process(st *state, p *syntax.ProcSubst) string {
	j.pseudo++
	name := "/dev/fd/" + strings.Repeat("6", 1+j.pseudo)
	o := j.inSubshell(st, func(c *state) {
		if p.Op == syntax.CmdOut {
			c.in = &input{text: hole}
		}
		j.deeper(func() { j.stmts(c, p.Stmts) })
	})
	st.files[name] = input{text: o.b.String(), loaded: o.loaded}
	return name
}

// expansions are what values become at a place.
func (st *state) expansions(lists [][]string, apart bool, at place) []splice {
	var out []splice
	for _, list := range lists {
		switch {
		case at == argument:
			out = append(out, st.split(list))
		case at == quoted && apart:
			out = append(out, splice{items: list, quoted: len(list) > 0})
		default:
			out = append(out, splice{items: []string{strings.Join(list, " ")}, quoted: at == quoted})
		}
	}
	return out
}

// split is what an expansion without quotes becomes: words at each separator, in which globs act.
func (st *state) split(list []string) splice {
	separators := " \t\n"
	if v, ok := st.vars["IFS"]; ok {
		if len(v.forms) != 1 || len(v.forms[0]) != 1 || symbolic(v.forms[0][0]) {
			return splice{items: []string{wild}}
		}
		separators = v.forms[0][0]
	}
	var s splice
	for i, text := range list {
		if text == "" {
			continue
		}
		// What is not known may be several words.
		text = strings.ReplaceAll(text, hole, wild)
		fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(separators, r) })
		first, _ := utf8.DecodeRuneInString(text)
		last, _ := utf8.DecodeLastRuneInString(text)
		if i == 0 {
			s.lead = strings.ContainsRune(separators, first)
		}
		if i == len(list)-1 {
			s.trail = strings.ContainsRune(separators, last)
		}
		for _, f := range fields {
			s.items = append(s.items, marked(f))
		}
	}
	if len(s.items) > maxFields {
		return splice{items: []string{wild}}
	}
	return s
}

// marked makes globs act.
func marked(s string) string {
	if !strings.ContainsAny(s, "*?[") {
		return s
	}
	return globs.Replace(s)
}

var globs = strings.NewReplacer("*", globMark+"*", "?", globMark+"?", "[", globMark+"[")

// literal is what unquoted text, or the text within double quotes, stands for.
func literal(s string, at place) string {
	if !strings.ContainsAny(s, "\\*?[") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && i+1 < len(s):
			next := s[i+1]
			if at == argument || at == value || strings.IndexByte("$`\\\n", next) >= 0 || at == quoted && next == '"' {
				i++
				if next != '\n' {
					b.WriteByte(next)
				}
				continue
			}
			b.WriteByte(c)
		case at == argument && (c == '*' || c == '?' || c == '['):
			b.WriteString(globMark)
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ansi is what $'…' stands for.
func ansi(s string) string {
	out, _, err := expand.Format(nil, s, nil)
	if err != nil || !utf8.ValidString(out) || strings.Contains(s, `\c`) || strings.ContainsFunc(out, reserved) {
		return hole
	}
	return out
}

func cutTilde(s string) (name, rest string, ok bool) {
	i := strings.IndexByte(s, '/')
	if i < 0 {
		return s[1:], "", true
	}
	return s[1:i], s[i:], true
}

// tilde is the folder that ~name names.
func (st *state) tilde(name string) []string {
	switch name {
	case "":
		return st.home()
	case "+":
		return st.cwd
	case "-":
		return st.old
	}
	if strings.ContainsAny(name, `\$*?[{`) {
		return []string{"~" + literal(name, argument)}
	}
	return []string{homeDir}
}

func (st *state) home() []string {
	v, ok := st.vars["HOME"]
	if !ok {
		return []string{homeDir}
	}
	var out []string
	for _, f := range v.forms {
		out = append(out, strings.Join(f, " "))
	}
	return out
}

// quotes says that some of a word is quoted.
func quotes(w *syntax.Word) bool {
	return w != nil && slices.ContainsFunc(w.Parts, func(p syntax.WordPart) bool {
		lit, ok := p.(*syntax.Lit)
		return !ok || strings.Contains(lit.Value, `\`)
	})
}

func isList(p syntax.WordPart) bool {
	e, ok := p.(*syntax.ParamExp)
	if !ok || e.Param == nil {
		return false
	}
	if e.Param.Value == "@" {
		return true
	}
	w, ok := e.Index.(*syntax.Word)
	return ok && w.Lit() == "@"
}
