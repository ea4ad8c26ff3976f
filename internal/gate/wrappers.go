package gate

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// wrapper is a program that starts the command in its arguments.
type wrapper struct {
	short   string   // short options that take a value
	long    []string // long ones that take it as a word of its own
	before  int      // operands before the command
	assigns bool     // NAME=value may stand before the command
	text    string   // options whose value is a shell's text, as "-c,--command"
}

var wrapperTable = map[string]wrapper{
	"sudo":    {short: "ugpCDhRrTtU", long: []string{"--user", "--group", "--chdir", "--chroot", "--host", "--prompt", "--close-from", "--role", "--type", "--other-user", "--command-timeout"}, assigns: true},
	"doas":    {short: "uC"},
	"env":     {short: "uC", long: []string{"--unset", "--chdir"}, assigns: true, text: "-S,--split-string"},
	"command": {}, "builtin": {}, "nohup": {}, "setsid": {}, "fakeroot": {short: "lsib"}, "time": {short: "fo", long: []string{"--format", "--output"}},
	"timeout": {short: "ks", long: []string{"--kill-after", "--signal"}, before: 1}, "gtimeout": {short: "ks", before: 1},
	"nice":   {short: "n", long: []string{"--adjustment"}},
	"ionice": {short: "cnpPu", long: []string{"--class", "--classdata"}},
	"stdbuf": {short: "ioe", long: []string{"--input", "--output", "--error"}}, "unbuffer": {},
	"chrt": {short: "TPD", before: 1}, "taskset": {before: 1}, "setarch": {}, "linux32": {}, "linux64": {}, "i386": {}, "x86_64": {},
	"chroot": {long: []string{"--userspec", "--groups"}, before: 1}, "unshare": {short: "RwSG", long: []string{"--root", "--wd", "--setuid", "--setgid"}},
	"nsenter": {short: "tSG", long: []string{"--target"}}, "prlimit": {}, "setpriv": {long: []string{"--reuid", "--regid", "--groups"}},
	"strace": {short: "aeoOpPsSuEIbX"}, "ltrace": {short: "aeloSpsuxAnF"}, "catchsegv": {}, "pkexec": {long: []string{"--user"}}, "gosu": {before: 1}, "su-exec": {before: 1},
	"tini": {short: "pe"}, "dumb-init": {short: "r"}, "xvfb-run": {short: "efnpsw", long: []string{"--server-args", "--server-num"}}, "dbus-run-session": {}, "caffeinate": {short: "tw"},
	"systemd-run": {short: "pEuHMt", long: []string{"--unit", "--property", "--setenv", "--slice"}}, "systemd-inhibit": {}, "firejail": {}, "proot": {short: "rbqwkR"}, "torsocks": {}, "proxychains": {short: "f"}, "proxychains4": {short: "f"},
	"faketime": {before: 1}, "rlwrap": {}, "chronic": {}, "ts": {}, "valgrind": {}, "perf": {before: 1}, "gdb": {}, "entr": {}, "eatmydata": {}, "ltrace64": {}, "cgexec": {short: "g"}, "numactl": {short: "NmCpP"},
	"runuser": {short: "ugGs", text: "-c,--command"}, "su": {short: "gGsw", long: []string{"--group", "--shell"}, text: "-c,--command"}, "script": {short: "IOBTEmo", text: "-c,--command"}, "flock": {short: "wE", long: []string{"--timeout", "--wait"}, before: 1, text: "-c,--command"},
	"busybox": {}, "toybox": {}, "sg": {before: 1, text: "-c"}, "ld.so": {}, "ld-linux-x86-64.so.2": {}, "ld-linux-aarch64.so.1": {}, "nix-shell": {short: "pAI", text: "--run,--command"},
	"capsh": {}, "bwrap": {}, "watchexec": {}, "reredirect": {}, "detach": {}, "daemonize": {}, "start-stop-daemon": {},
}

func registerWrappers() {
	for name, w := range wrapperTable {
		register(func(c *call) { c.wrapped(w) }, name)
	}
	register((*call).xargs, "xargs")
	register((*call).find, "find")
	register((*call).watch, "watch")
	register((*call).parallel, "parallel")
	register((*call).later, "at", "batch", "crontab")
	register((*call).copies, "ln", "cp", "install", "rsync", "mv")
	register((*call).terminals, "tmux", "screen")
	register((*call).toolRun, "uv", "poetry", "pipenv", "pdm", "hatch", "rye", "conda", "mamba", "micromamba", "direnv", "mise", "asdf", "devbox", "rtx", "dotenv", "dotenvx", "cross-env", "with-env", "tox")
	register((*call).fd, "fd", "fdfind")
}

// wrapped judges the command that a wrapper starts.
func (c *call) wrapped(w wrapper) {
	args := c.args
	sure := true
	before := w.before
	vars, cwd := c.st.vars, c.st.cwd
	defer func() { c.st.vars, c.st.cwd = vars, cwd }()
	if dir := c.startsIn(); dir != "" {
		c.st.cwd = c.st.resolve(dir)
	}
	if w.assigns {
		own := c.st.clone()
		c.st.vars = own.vars
	}
	if c.name == "su" || c.name == "runuser" { // the user's name stands anywhere
		for i, a := range args {
			if isTextOption(w.text, a) && i+1 < len(args) {
				c.wrappedText(args[i+1], nil)
			}
		}
	}
	for len(args) > 0 {
		a := args[0]
		switch {
		case a == "--":
			args = args[1:]
		case isTextOption(w.text, a) && len(args) > 1:
			c.wrappedText(args[1], args[2:])
			args = args[2:]
			continue
		case w.text != "" && textWithin(w.text, a) != "":
			c.wrappedText(textWithin(w.text, a), args[1:])
			args = args[1:]
			continue
		case c.name == "command" && (a == "-v" || a == "-V"):
			c.st.out.add(hole)
			return
		case strings.HasPrefix(a, "--"):
			if slices.Contains(w.long, a) && len(args) > 1 {
				args = args[1:]
			} else if !strings.Contains(a, "=") {
				sure = false
			}
			args = args[1:]
			continue
		case strings.HasPrefix(a, "-") && a != "-":
			// The value is the rest of the word, or the next one.
			if i := strings.IndexAny(a[1:], w.short); w.short != "" && i >= 0 {
				if i+1 == len(a)-1 && len(args) > 1 {
					args = args[1:]
				}
			} else {
				sure = false
			}
			args = args[1:]
			continue
		case a == "-" && (c.name == "su" || c.name == "env"):
			args = args[1:]
			continue
		case w.assigns && isAssign(a):
			name, text, _ := strings.Cut(a, "=")
			c.st.vars[name] = variable{forms: [][]string{{text}}, exported: true}
			c.special(name, []string{text})
			args = args[1:]
			continue
		case before > 0:
			before--
			args = args[1:]
			continue
		case strings.Contains(a, wild):
			c.ask(Unclear, "what it starts cannot be known before it runs")
		}
		break
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if c.name == "su" || c.name == "sg" && len(args) == 0 {
		return
	}
	if len(args) == 0 {
		c.st.out.add(hole)
		if c.name == "sudo" && c.flag("is", "login") && c.st.in != nil {
			c.sub([]string{"sh"})
		}
		return
	}
	c.sub(args)
	if !sure {
		c.embedded(args[1:], Deny)
	}
}

// startsIn is the folder that env, sudo and their like are told to go to first.
func (c *call) startsIn() string {
	option := map[string]string{"env": "-C", "sudo": "-D", "unshare": "-w", "nsenter": "-w"}[c.name]
	if option == "" {
		return ""
	}
	for i, a := range c.args {
		for _, o := range []string{option, "--chdir", "--wd"} {
			if a == o && i+1 < len(c.args) {
				return c.args[i+1]
			}
			if rest, ok := strings.CutPrefix(a, o); ok && rest != "" {
				return strings.TrimPrefix(rest, "=")
			}
		}
		if !strings.HasPrefix(a, "-") && !isAssign(a) && i > 0 && c.args[i-1] != "-u" {
			break
		}
	}
	return ""
}

func (c *call) wrappedText(text string, rest []string) {
	if c.name == "env" { // its words, and no shell's text
		c.sub(append([]string{"env"}, append(strings.Fields(strings.NewReplacer(`'`, "", `"`, "", `\_`, " ").Replace(text)), rest...)...))
		return
	}
	c.deeper(func() { c.judge.shell(c.st.child(), text) })
}

// isTextOption says that the next word is a text: after -c, --command, or short options that end with c.
func isTextOption(options, arg string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o != "" && (arg == o || len(o) == 2 && combined(arg, o)) {
			return true
		}
	}
	return false
}

// textWithin is the text of -ctext, -lc and --command=text.
func textWithin(options, arg string) string {
	for o := range strings.SplitSeq(options, ",") {
		if rest, ok := strings.CutPrefix(arg, o+"="); ok && strings.HasPrefix(o, "--") {
			return rest
		}
		if rest, ok := strings.CutPrefix(arg, o); ok && len(o) == 2 {
			return rest
		}
		if len(o) == 2 && strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") {
			if i := strings.IndexByte(arg, o[1]); i > 0 && i+1 < len(arg) {
				return arg[i+1:]
			}
		}
	}
	return ""
}

func isAssign(a string) bool {
	name, _, ok := strings.Cut(a, "=")
	return ok && syntax.ValidName(name)
}

// xargs starts a command with words that come in.
func (c *call) xargs() {
	c.st.out.add(hole)
	args := c.args
	replace, split := "", ""
	fromFile := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		a := args[0]
		args = args[1:]
		name, rest, eq := strings.Cut(a, "=")
		if !strings.HasPrefix(a, "--") && len(a) > 1 {
			name, rest = a[:2], a[2:]
			eq = rest != ""
		}
		takes := strings.Contains("IadEsnPL", name[1:2]) && len(name) == 2 || slices.Contains([]string{"--arg-file", "--delimiter", "--max-args", "--max-procs", "--max-lines", "--max-chars", "--replace"}, name)
		if takes && !eq && name != "--replace" && len(args) > 0 {
			rest, args = args[0], args[1:]
		}
		switch name {
		case "-I":
			replace = rest
		case "-i", "--replace":
			replace = rest
			if replace == "" {
				replace = "{}"
			}
		case "-d", "--delimiter":
			split = rest
		case "-a", "--arg-file":
			fromFile = true
		}
		if a == "--" {
			break
		}
	}
	if len(args) == 0 {
		return
	}
	text := wild
	if c.st.in != nil && !fromFile && !unknown(c.st.in.text) && split == "" {
		text = c.st.in.text
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > maxFields || strings.ContainsAny(text, `\`) {
		lines = []string{wild}
	}
	saved := c.st.in
	c.st.in = &input{}
	defer func() { c.st.in = saved }()
	if replace != "" {
		for _, line := range lines[:min(len(lines), 16)] {
			line = strings.Trim(line, " \t\"'")
			var argv []string
			for _, a := range args {
				argv = append(argv, strings.ReplaceAll(a, replace, strings.ReplaceAll(line, wild, hole)))
			}
			c.sub(argv)
		}
		if len(lines) > 16 {
			c.ask(Unclear, "it is started too often to look at each time")
		}
		return
	}
	argv := slices.Clone(args)
	for _, line := range lines {
		argv = append(argv, strings.Fields(strings.NewReplacer(`"`, "", `'`, "", "\x00", " ").Replace(line))...)
	}
	c.sub(argv)
	c.sub(append(slices.Clone(args), argv[len(args):min(len(argv), len(args)+1)]...)) // xargs may start it with some of them only
}

// watch gives its words to a shell.
func (c *call) watch() {
	args := c.args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "-n" || args[0] == "--interval" || args[0] == "-q" || args[0] == "--equexit" {
			args = args[1:]
		}
		args = args[min(1, len(args)):]
	}
	c.st.out.add(hole)
	c.deeper(func() { c.judge.shell(c.st.child(), strings.Join(args, " ")) })
}

// parallel makes shell texts of its words and of what stands after :::, or comes in.
func (c *call) parallel() {
	c.st.out.add(hole)
	args := c.args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if slices.Contains([]string{"-j", "--jobs", "-P", "-a", "--arg-file", "-I", "-n", "-N", "-S", "--sshlogin", "-L", "--delay", "--timeout", "--joblog", "--results", "-C", "--colsep"}, args[0]) {
			args = args[1:]
		}
		args = args[min(1, len(args)):]
	}
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, ":::") })
	values := []string{hole}
	words := args
	if i >= 0 {
		words = args[:i]
		values = args[i+1:]
	} else if c.st.in != nil && !unknown(c.st.in.text) {
		values = strings.Split(strings.TrimRight(c.st.in.text, "\n"), "\n")
	}
	for n, v := range values {
		if n > 16 {
			c.ask(Unclear, "it is started too often to look at each time")
			break
		}
		text := strings.Join(words, " ")
		if strings.Contains(text, "{}") {
			text = strings.ReplaceAll(text, "{}", v)
		} else {
			text += " " + v
		}
		c.deeper(func() { c.judge.shell(c.st.child(), text) })
	}
}

// later is what runs what comes in, at another time.
func (c *call) later() {
	if c.name == "crontab" && c.flag("l", "") {
		c.st.out.add(hole)
		return
	}
	c.ask(System, "it has something run later, when nobody looks")
	if c.st.in != nil {
		c.runInput(c.st.child(), c.st.in)
	}
}

// terminals run commands in a terminal of their own.
func (c *call) terminals() {
	c.st.out.add(hole)
	c.embedded(c.args, Deny)
	for _, a := range c.args {
		if strings.ContainsAny(a, " ;&|") {
			c.deeper(func() { c.judge.shell(c.st.child(), a) })
		}
	}
}

// toolRun are tools that start a command in an environment of theirs: uv run, poetry run, direnv exec.
func (c *call) toolRun() {
	c.st.out.add(hole)
	c.packages()
	for i, a := range c.args {
		if a == "run" || a == "exec" || a == "--" || a == "x" {
			rest := c.args[i+1:]
			for len(rest) > 0 && (strings.HasPrefix(rest[0], "-") || rest[0] == ".") {
				rest = rest[1:]
			}
			if len(rest) > 0 {
				c.sub(rest)
				c.embedded(rest[1:], Deny)
			}
			return
		}
	}
	c.embedded(c.args, Deny)
}

// copies notes by which names a program is known from now on, and where it writes.
func (c *call) copies() {
	ops := c.operands()
	for i, a := range c.args {
		if (a == "-t" || a == "--target-directory") && i+1 < len(c.args) {
			ops = append(ops, c.args[i+1])
		} else if rest, ok := strings.CutPrefix(a, "--target-directory="); ok {
			ops = append(ops, rest)
		}
	}
	if len(ops) > 1 {
		to := ops[len(ops)-1]
		c.opened(c.st, to, true)
		for _, from := range ops[:len(ops)-1] {
			name := base(from)
			if other, ok := c.st.names[name]; ok {
				name = other
			}
			if dangerous[name] {
				c.st.names[base(to)] = name
				c.st.names[path.Base(from)] = name
			}
			for _, p := range c.st.resolve(from) {
				if f, ok := c.st.files[p]; ok {
					c.st.files[c.st.resolve(to)[0]] = f
				}
			}
		}
	}
	switch c.name {
	case "mv":
		c.moved(ops)
	case "rsync":
		c.synced(ops)
	}
}
