package gate

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shell judges text as a shell's, in the state st.
func (j *judge) shell(st *state, text string) {
	if strings.TrimSpace(text) == "" || !j.step() {
		return
	}
	if len(text) > maxCommand || nesting(text) > maxNesting {
		j.found(Ask, Unclear, "the command is too long or nested too deeply to look through", text)
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		j.found(Ask, Unclear, "it cannot be read as a shell command", text)
	}
	if file == nil {
		return
	}
	if unknown(text) && j.loaded {
		j.found(Ask, Remote, "a shell is given what was just loaded from the network", text)
	} else if unknown(text) {
		j.found(Ask, Unclear, "a shell is given text that cannot be known before it runs", text)
	}
	// What was read before an error is judged: it may be worse than unreadable.
	j.deeper(func() { j.stmts(st, file.Stmts) })
}

// nesting is how deep brackets lie within brackets, as far as that can be said without parsing.
func nesting(text string) int {
	var depth, most int
	for i := range len(text) {
		switch text[i] {
		case '(', '{', '[':
			depth++
			most = max(most, depth)
		case ')', '}', ']':
			depth = max(0, depth-1)
		}
	}
	return most
}

func (j *judge) stmts(st *state, list []*syntax.Stmt) {
	for _, s := range list {
		if st.skips || st.returns {
			st.maybe(func() { j.stmt(st, s) })
		} else {
			j.stmt(st, s)
		}
		st.settle()
	}
}

func (j *judge) stmt(st *state, s *syntax.Stmt) {
	if s == nil || !j.step() {
		return
	}
	if s.Background || s.Coprocess || s.Disown {
		j.background++
		c := st.subshell()
		j.redirected(c, s)
		j.ends(c)
		j.background--
		if c.out.b.Len() > 0 {
			st.out.add(hole) // when it prints is not known
		}
		return
	}
	// Where a file cannot be opened, nothing runs.
	if slices.ContainsFunc(s.Redirs, func(r *syntax.Redirect) bool {
		return r.Op != syntax.Hdoc && r.Op != syntax.DashHdoc && r.Op != syntax.WordHdoc && r.Op != syntax.DplOut && r.Op != syntax.DplIn && r.Word.Lit() != "/dev/null"
	}) && s.Cmd != nil {
		st.maybe(func() { j.redirected(st, s) })
	} else {
		j.redirected(st, s)
	}
	st.quiet = st.quiet || s.Negated
}

// redirected runs a statement with its redirections.
func (j *judge) redirected(st *state, s *syntax.Stmt) {
	in, out := st.in, st.out
	var after []func()
	for _, r := range s.Redirs {
		if done := j.redirect(st, r); done != nil {
			after = append(after, done)
		}
	}
	switch {
	case s.Cmd == nil && len(s.Redirs) == 1 && s.Redirs[0].Op == syntax.RdrIn && st.in != nil && st.out == out:
		st.out.add(st.in.text) // $(<file)
	case s.Cmd != nil:
		j.command(st, s.Cmd)
	}
	st.in, st.out = in, out
	if st.rewired {
		st.in, st.rewired = &input{text: hole}, false
	}
	for _, done := range after {
		done()
	}
}

// redirect opens one redirection, and gives what has to be done when the statement is over.
func (j *judge) redirect(st *state, r *syntax.Redirect) func() {
	standard := r.N == nil
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		text := ""
		if r.Hdoc != nil {
			text = j.document(st, r)
		}
		if standard || r.N.Value == "0" {
			st.in = &input{text: text}
		}
		return nil
	case syntax.WordHdoc:
		if forms := j.text(st, r.Word); standard || r.N.Value == "0" {
			st.in = &input{text: oneOf(forms) + "\n"}
		}
		return nil
	case syntax.DplIn, syntax.DplOut:
		target := oneOf(j.text(st, r.Word))
		if r.Op == syntax.DplIn && standard {
			st.in = &input{text: hole}
		}
		if r.Op == syntax.DplOut && (standard || r.N.Value == "1") {
			return j.elsewhere(st, target)
		}
		return nil
	}
	writes := r.Op != syntax.RdrIn
	var after func()
	for _, form := range j.words(st, []*syntax.Word{r.Word}) {
		for _, target := range form {
			j.opened(st, target, writes)
			switch {
			case !writes && (standard || r.N.Value == "0"):
				st.in = st.read(target)
			case writes && (standard || r.N.Value == "1") && r.Op != syntax.RdrInOut:
				after = j.intoFile(st, target, r.Op == syntax.AppOut || r.Op == syntax.AppAll)
			}
		}
	}
	return after
}

// elsewhere lets a statement print to another descriptor, or to a file (>&file). It may come out where it would have.
func (j *judge) elsewhere(st *state, target string) func() {
	if strings.ContainsFunc(target, func(r rune) bool { return (r < '0' || r > '9') && r != '-' }) {
		j.opened(st, target, true)
		return j.intoFile(st, target, false)
	}
	outer := st.out
	inner := &output{}
	st.out = inner
	return func() {
		if inner.b.Len() > 0 && target != "-" {
			outer.add(hole)
		}
	}
}

// intoFile notes what is written, so that a shell that is told to run it is judged by it.
func (j *judge) intoFile(st *state, target string, appends bool) func() {
	outer := st.out
	inner := &output{}
	st.out = inner
	return func() {
		text := inner.b.String()
		if strings.HasPrefix(target, "/dev/std") || strings.HasPrefix(target, "/dev/fd/") || strings.HasPrefix(target, "/proc/") || symbolic(target) {
			if text != "" {
				outer.add(hole)
			}
			return
		}
		name := st.resolve(target)[0]
		if appends {
			text = st.files[name].text + text
		}
		st.files[name] = input{text: text, loaded: inner.loaded}
	}
}

// read is what is in a file: what was just written there, or anything.
func (st *state) read(name string) *input {
	switch name {
	case "/dev/null":
		return &input{}
	case "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0":
		if st.in != nil {
			return st.in
		}
	}
	for _, p := range st.resolve(name) {
		if f, ok := st.files[p]; ok {
			return &f
		}
	}
	return &input{text: hole}
}

func oneOf(forms []string) string {
	if len(forms) == 1 {
		return forms[0]
	}
	return hole
}

// inSubshell runs do in a state of its own, and gives what is printed.
func (j *judge) inSubshell(st *state, do func(*state)) *output {
	c := st.subshell()
	c.out = &output{}
	c.left, c.gone, c.skips, c.returns = false, false, false, false
	do(c)
	j.ends(c)
	return c.out
}

// ends runs what a shell was told to do at its end.
func (j *judge) ends(st *state) {
	for _, text := range st.traps {
		c := st.clone()
		c.traps = nil
		j.shell(c, text)
	}
}

// branches runs each of ways from where st is, of which one is taken, and makes st what it then may be.
func (j *judge) branches(st *state, ways ...func(*state)) {
	j.charge(st.size())
	start, out := st.clone(), st.out
	var texts []string
	for i, way := range ways {
		c := st
		if i > 0 {
			c = start.clone()
		}
		c.out = &output{}
		way(c)
		texts = append(texts, c.out.b.String())
		out.loaded = out.loaded || c.out.loaded
		if i > 0 {
			st.merge(c)
		}
	}
	st.out = out
	if len(texts) > 0 {
		if slices.ContainsFunc(texts, func(s string) bool { return s != texts[0] }) {
			texts[0] = hole
		}
		st.print(texts[0])
	}
}

// loop runs body until nothing changes that another round could see.
func (j *judge) loop(st *state, body func(*state)) {
	const (
		exact = 3 // rounds in which what changes is followed
		most  = 8 // and rounds until all is taken for changed
	)
	for i := 1; i <= most+1 && j.step(); i++ {
		before := st.clone()
		j.branches(st, body, func(*state) {})
		if st.within(before) {
			break
		}
		if i == most {
			st.forget(nil)
		} else if i >= exact {
			st.forget(before)
		}
	}
	st.settle()
	st.skips = false
}

func (j *judge) command(st *state, cmd syntax.Command) {
	switch c := cmd.(type) {
	case *syntax.CallExpr:
		j.simple(st, c)
	case *syntax.BinaryCmd:
		j.binary(st, c)
	case *syntax.Subshell:
		j.through(st, j.inSubshell(st, func(s *state) { j.stmts(s, c.Stmts) }))
	case *syntax.Block:
		j.stmts(st, c.Stmts)
	case *syntax.IfClause:
		j.conditional(st, c)
	case *syntax.WhileClause:
		j.while(st, c)
	case *syntax.ForClause:
		j.forEach(st, c)
	case *syntax.CaseClause:
		j.text(st, c.Word)
		ways := []func(*state){func(*state) {}}
		for _, item := range c.Items {
			for _, p := range item.Patterns {
				j.text(st, p)
			}
			ways = append(ways, func(s *state) { j.stmts(s, item.Stmts) })
		}
		j.branches(st, ways...)
	case *syntax.FuncDecl:
		if c.Name != nil {
			st.funcs[c.Name.Value] = function{bodies: []*syntax.Stmt{c.Body}}
			if c.Name.Value == "command_not_found_handle" { // bash calls it by itself
				j.stmt(st.subshell(), c.Body)
			}
		}
	case *syntax.TimeClause:
		j.stmt(st, c.Stmt)
	case *syntax.CoprocClause:
		j.background++
		j.stmt(st.clone(), c.Stmt)
		j.background--
	case *syntax.DeclClause:
		j.declare(st, c)
	case *syntax.LetClause:
		for _, x := range c.Exprs {
			j.arithmetic(st, x)
		}
	case *syntax.ArithmCmd:
		j.arithmetic(st, c.X)
	case *syntax.TestClause:
		j.test(st, c.X)
	default:
		j.found(Ask, Unclear, "it has a form of command that is not understood", "")
	}
}

// through passes on what a part printed.
func (j *judge) through(st *state, o *output) {
	st.out.loaded = st.out.loaded || o.loaded
	st.print(o.b.String())
}

func (j *judge) binary(st *state, c *syntax.BinaryCmd) {
	switch c.Op {
	case syntax.Pipe, syntax.PipeAll:
		j.piped++
		left := j.inSubshell(st, func(s *state) { j.stmt(s, c.X) })
		right := j.inSubshell(st, func(s *state) {
			s.in = &input{text: left.b.String(), loaded: left.loaded}
			if c.Op == syntax.PipeAll {
				s.in.text += hole // its errors, too
			}
			j.stmt(s, c.Y)
		})
		j.piped--
		right.loaded = right.loaded || left.loaded
		j.through(st, right)
	case syntax.AndStmt:
		j.stmt(st, c.X)
		failed := st.failed
		st.failed = nil
		j.branches(st, func(s *state) { j.stmt(s, c.Y) }, func(*state) {})
		st.failed, st.quiet = unionOf(st.failed, failed), true
	default: // ||
		j.stmt(st, c.X)
		failed := st.failed
		st.failed = nil
		other := st.clone()
		if failed != nil {
			other.cwd = failed
		}
		other.out = &output{}
		j.stmt(other, c.Y)
		if other.b() != "" {
			st.out.add(hole)
		}
		if other.gone {
			st.left = true // here, the first part went well
			return
		}
		other.settle()
		st.merge(other)
	}
}

func (st *state) b() string { return st.out.b.String() }

func (j *judge) conditional(st *state, c *syntax.IfClause) {
	if len(c.Cond) == 0 { // else
		j.stmts(st, c.Then)
		return
	}
	for _, s := range c.Cond[:len(c.Cond)-1] {
		j.stmt(st, s)
		st.settle()
	}
	j.stmt(st, c.Cond[len(c.Cond)-1])
	failed := st.failed
	st.failed = nil
	j.branches(st, func(s *state) { j.stmts(s, c.Then) }, func(s *state) {
		s.cwd = unionOf(s.cwd, failed)
		if c.Else != nil {
			j.conditional(s, c.Else)
		}
	})
}

func (j *judge) while(st *state, c *syntax.WhileClause) {
	if endless(c) && spawns(c.Do) {
		j.found(Ask, Bomb, "a loop without end starts processes in the background", "")
	}
	j.loop(st, func(s *state) {
		j.stmts(s, c.Cond)
		j.stmts(s, c.Do)
	})
}

func endless(c *syntax.WhileClause) bool {
	if len(c.Cond) != 1 {
		return false
	}
	call, ok := c.Cond[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	switch word := call.Args[0].Lit(); {
	case c.Until:
		return word == "false"
	default:
		return word == "true" || word == ":"
	}
}

// spawns says that a loop's body puts something in the background, and waits for nothing.
func spawns(body []*syntax.Stmt) bool {
	var starts, waits bool
	for _, s := range body {
		starts = starts || s.Background
		if call, ok := s.Cmd.(*syntax.CallExpr); ok && !s.Background && len(call.Args) > 0 {
			switch path.Base(call.Args[0].Lit()) {
			case "sleep", "wait", "read", "inotifywait", "break":
				waits = true
			}
		}
	}
	return starts && !waits
}

func (j *judge) forEach(st *state, c *syntax.ForClause) {
	iter, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if loop, ok := c.Loop.(*syntax.CStyleLoop); ok {
			for _, x := range []syntax.ArithmExpr{loop.Init, loop.Cond, loop.Post} {
				j.arithmetic(st, x)
			}
			if loop.Cond == nil && spawns(c.Do) {
				j.found(Ask, Bomb, "a loop without end starts processes in the background", "")
			}
		}
		j.loop(st, func(s *state) { j.stmts(s, c.Do) })
		return
	}
	items := [][]string{st.args}
	if iter.InPos.IsValid() {
		items = j.words(st, iter.Items)
	}
	// Few known items are gone through one by one, so that what the loop makes is known, too.
	const few = 8
	if len(items) == 1 && len(items[0]) <= few && !c.Select && !slices.ContainsFunc(items[0], symbolic) {
		for _, item := range items[0] {
			st.set(iter.Name.Value, item)
			j.stmts(st, c.Do)
		}
		st.skips = false
		return
	}
	var all []string
	for _, form := range items {
		all = unionOf(all, form)
	}
	if c.Select {
		all = append(all, hole)
	}
	j.loop(st, func(s *state) {
		for i, item := range all {
			if item == wild {
				all[i] = hole
			}
		}
		s.setForms(iter.Name.Value, all)
		j.stmts(s, c.Do)
	})
}
