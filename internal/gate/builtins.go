package gate

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func registerShell() {
	register(quiet, ":", "true", "false", "sleep", "touch", "umask", "ulimit", "jobs", "disown", "suspend")
	register(func(c *call) { c.st.left, c.st.gone = true, true }, "exit", "logout")
	register(func(c *call) { c.st.returns = true }, "return")
	register(func(c *call) { c.st.skips = true }, "break", "continue")
	register((*call).changeFolder, "cd", "chdir", "pushd")
	register(func(c *call) { c.st.cwd, c.st.failed = unionOf(c.st.old, []string{hole}), c.st.cwd }, "popd")
	register((*call).eval, "eval")
	register((*call).source, "source", ".")
	register((*call).trap, "trap")
	register((*call).alias, "alias")
	register(func(c *call) {
		for _, a := range c.args {
			delete(c.st.aliases, a)
		}
	}, "unalias")
	register((*call).unset, "unset")
	register((*call).setOptions, "set")
	register((*call).shift, "shift")
	register((*call).readInto, "read")
	register((*call).readArray, "mapfile", "readarray")
	register((*call).evaluates, "test", "[", "let", "getopts", "enable", "wait")
	register((*call).startShell, "sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash", "mksh", "csh", "tcsh", "posh", "yash")
	register((*call).exec, "exec")
	register((*call).hash, "hash")
	register((*call).completes, "complete", "compgen", "bind")
	register((*call).declareWords, "export", "declare", "local", "readonly", "typeset")
}

// quiet prints nothing, and does nothing that is asked about.
func quiet(*call) {}

func (c *call) changeFolder() {
	ops := c.operands()
	to := c.st.home()
	if len(ops) > 0 {
		to = nil
		switch ops[0] {
		case "-":
			to = c.st.old
		default:
			to = c.st.resolve(ops[0])
			if _, ok := c.st.vars["CDPATH"]; ok {
				to = append(to, hole)
			}
		}
	}
	before := c.st.cwd
	c.st.cwd, c.st.old = to, before
	c.st.failed = unionOf(c.st.failed, before)
	if len(ops) > 0 && (ops[0] == "-" || c.name == "pushd") {
		c.st.out.add(hole)
	}
}

func (c *call) eval() {
	args := c.args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	text := strings.Join(args, " ")
	c.judge.shell(c.st, strings.ReplaceAll(text, globMark, ""))
}

func (c *call) source() {
	if len(c.args) == 0 {
		return
	}
	f := c.st.read(c.args[0])
	c.st.out.add(hole)
	if f.loaded {
		c.ask(Remote, "a shell runs what was just loaded from the network")
	}
	switch {
	case f.text != hole:
		c.judge.shell(c.st, f.text)
	case strings.HasPrefix(c.args[0], "/dev/") || unknown(c.args[0]):
		c.ask(Unclear, "a shell runs text that cannot be known before it runs")
	}
	for name := range c.st.vars { // the file may set anything
		if unknown(f.text) {
			v := c.st.vars[name]
			v.forms = union(v.forms, nothing)
			c.st.vars[name] = v
		}
	}
}

func (c *call) trap() {
	ops := c.operands()
	if len(ops) > 1 || len(ops) == 1 && strings.Contains(ops[0], " ") {
		c.judge.shell(c.st.clone(), ops[0])
		// It runs later, too, when variables and folders are others.
		c.st.traps = unionOf(c.st.traps, []string{ops[0]})
	}
}

func (c *call) alias() {
	for _, a := range c.args {
		name, text, ok := strings.Cut(a, "=")
		if unknown(name) {
			c.ask(Unclear, "an alias is made whose name cannot be known before it runs")
		} else if ok {
			c.st.aliases[name] = unionOf(c.st.aliases[name], []string{text})
		}
	}
}

func (c *call) unset() {
	functions := c.flag("f", "")
	for _, name := range c.operands() {
		c.injected(name)
		if unknown(name) {
			c.st.forget(nil)
			continue
		}
		if !functions && syntax.ValidName(name) && !c.flag("n", "") {
			c.st.set(name, "")
		} else if !syntax.ValidName(name) { // an element
			array, _, _ := strings.Cut(name, "[")
			c.st.set(array, wild, wild)
		}
		if name == "IFS" {
			delete(c.st.vars, name)
		}
		if functions || !syntax.ValidName(name) {
			delete(c.st.funcs, name)
		} else if f, ok := c.st.funcs[name]; ok {
			f.maybe = true // a function goes where there is no variable of that name
			c.st.funcs[name] = f
		}
	}
}

func (c *call) setOptions() {
	for i := 0; i < len(c.args); i++ {
		a := c.args[i]
		switch {
		case strings.ContainsAny(a[:min(1, len(a))], "-+") && a != "--" && a != "-":
			if strings.HasPrefix(a, "-") && strings.Contains(a, "e") && a != "-o" {
				c.st.errexit = true
			}
			if strings.HasPrefix(a, "+") && strings.Contains(a, "e") {
				c.st.errexit = false
			}
			if strings.HasSuffix(a, "o") && i+1 < len(c.args) {
				i++
				if c.args[i] == "errexit" {
					c.st.errexit = a[0] == '-'
				}
			}
		default:
			if a == "--" || a == "-" {
				i++
			}
			c.st.args = slices.Clone(c.args[i:])
			return
		}
	}
}

func (c *call) shift() {
	switch {
	case slices.Contains(c.st.args, wild) || len(c.args) > 0:
		c.st.args = []string{wild}
	case len(c.st.args) > 0:
		c.st.args = c.st.args[1:]
	}
}

func (c *call) readInto() {
	text := hole
	if c.st.in != nil {
		text = c.st.in.text
	}
	names := c.operands()
	array := c.flag("a", "")
	var lines []string
	if unknown(text) || c.flag("dnNtu", "") {
		lines = []string{hole}
	} else {
		lines = unionOf(nil, strings.Split(strings.TrimRight(text, "\n"), "\n"))
	}
	for i, name := range names {
		c.injected(name)
		if symbolic(name) {
			c.st.forget(nil)
			continue
		}
		var forms []string
		if v, ok := c.st.vars[name]; ok { // it may come to nothing
			for _, f := range v.forms {
				forms = unionOf(forms, []string{strings.Join(f, " ")})
			}
		}
		for _, line := range lines {
			fields := strings.Fields(line)
			switch {
			case unknown(line) || strings.ContainsAny(line, `\`) || c.st.vars["IFS"].forms != nil && len(names) > 1 || array:
				forms = unionOf(forms, []string{hole})
			case i >= len(fields):
				forms = unionOf(forms, []string{""})
			case i == len(names)-1:
				forms = unionOf(forms, []string{strings.Join(fields[i:], " ")})
			default:
				forms = unionOf(forms, []string{fields[i]})
			}
		}
		c.st.setForms(name, forms)
		if array {
			c.st.set(name, wild, wild)
		}
	}
	if len(names) == 0 {
		c.st.setForms("REPLY", lines)
	}
}

func (c *call) readArray() {
	for i, a := range c.args {
		if a == "-C" && i+1 < len(c.args) {
			c.judge.shell(c.st.clone(), c.args[i+1])
		}
	}
	name := "MAPFILE"
	if ops := c.operands(); len(ops) > 0 {
		name = ops[len(ops)-1]
	}
	c.st.set(name, wild, wild)
}

// evaluates are builtins that take a text for a variable or an expression.
func (c *call) evaluates() {
	for _, a := range c.args {
		c.injected(a)
		if name, _, ok := strings.Cut(a, "="); ok && c.name == "let" && syntax.ValidName(name) {
			c.st.set(name, some)
		}
	}
	if c.name == "getopts" && len(c.args) > 1 {
		c.st.set(c.args[1], hole)
		c.st.set("OPTARG", hole)
	}
}

// exec replaces the shell by a program, or sets its descriptors for all that follows.
func (c *call) exec() {
	args := c.args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "-a" && len(args) > 1 {
			args = args[1:]
		}
		args = args[1:]
	}
	c.st.left = true // what follows prints elsewhere, or does not run
	if len(args) > 0 {
		c.sub(args)
	}
	// Redirections of an exec stay: what is read from now on is what they say, or unknown.
	c.st.rewired = len(args) == 0
}

func (c *call) hash() {
	for i, a := range c.args {
		if a == "-p" && i+2 < len(c.args) {
			c.st.names[c.args[i+2]] = base(c.args[i+1])
		}
	}
}

// completes are builtins that may be given a command to run.
func (c *call) completes() {
	c.st.out.add(hole)
	for i, a := range c.args {
		if (a == "-C" || a == "-x" || a == "-W" || a == "-F") && i+1 < len(c.args) {
			c.injected(c.args[i+1])
			if a == "-C" {
				c.judge.shell(c.st.clone(), c.args[i+1])
			}
		}
	}
}

// declareWords are declarations that the parser did not see as such, since their name came out of an expansion.
func (c *call) declareWords() {
	for _, a := range c.args {
		c.injected(a)
		if name, text, ok := strings.Cut(a, "="); ok && syntax.ValidName(name) {
			c.st.set(name, text)
		}
	}
}

// startShell is a shell that is started: with text, with a script, or with what comes in.
func (c *call) startShell() {
	c.st.out.add(hole)
	child := c.st.child()
	child.out = &output{}
	defer c.ends(child)
	command, stdin := false, false
	i := 0
options:
	for ; i < len(c.args); i++ {
		a := c.args[i]
		switch {
		case a == "--" || a == "-":
			i++
			break options
		case a == "--rcfile" || a == "--init-file" || a == "-O" || a == "+O":
			if a == "--rcfile" || a == "--init-file" {
				c.runFile(child, c.args[min(i+1, len(c.args)-1)])
			}
			i++
		case a == "--command":
			command = true
		case a == "--help" || a == "--version":
			return
		case strings.HasPrefix(a, "--"):
		case strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+"):
			command = command || a[0] == '-' && strings.Contains(a, "c")
			stdin = stdin || strings.Contains(a, "s")
			if strings.HasSuffix(a, "o") {
				i++
			}
		default:
			break options
		}
	}
	rest := c.args[min(i, len(c.args)):]
	child.zero = c.name
	switch {
	case command && len(rest) > 0:
		if len(rest) > 1 {
			child.zero, child.args = rest[1], slices.Clone(rest[2:])
		}
		if strings.Contains(rest[0], globMark) {
			c.ask(Unclear, "a shell is given text that cannot be known before it runs")
		}
		c.judge.shell(child, rest[0])
	case command:
	case len(rest) > 0 && !stdin:
		child.zero, child.args = rest[0], slices.Clone(rest[1:])
		c.runFile(child, rest[0])
	default:
		child.args = slices.Clone(rest)
		c.runInput(child, c.st.in)
	}
}

// runFile is a script. What is not known of it is the sandbox's matter, as with every program.
func (c *call) runFile(child *state, name string) {
	if strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/proc/") {
		c.runInput(child, c.st.read(name))
		return
	}
	if strings.Contains(name, wild) || strings.HasPrefix(name, hole) {
		c.ask(Unclear, "a shell runs what cannot be known before it runs")
		return
	}
	f := c.st.read(name)
	if f.loaded {
		c.ask(Remote, "a shell runs what was just loaded from the network")
	}
	if f.text != hole {
		c.judge.shell(child, f.text)
	}
}

func (c *call) runInput(child *state, in *input) {
	if in == nil {
		return // nobody writes to it
	}
	if in.loaded {
		c.ask(Remote, "a shell runs what was just loaded from the network")
	}
	if unknown(in.text) {
		c.ask(Unclear, "a shell is given text that cannot be known before it runs")
	}
	child.in = &input{text: hole}
	c.judge.shell(child, in.text)
}
