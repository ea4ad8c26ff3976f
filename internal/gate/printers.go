package gate

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/expand"
)

// registerPrinters names the programs whose output is known, or harmless as a name.
func registerPrinters() {
	register((*call).echo, "echo")
	register((*call).printf, "printf")
	register((*call).cat, "cat", "tac")
	register((*call).tee, "tee", "sponge")
	register(func(c *call) { c.st.print("/tmp/" + some + "\n") }, "mktemp")
	register(func(c *call) {
		if c.has("--help") || len(c.st.cwd) != 1 {
			c.st.out.add(hole)
			return
		}
		c.st.print(c.st.cwd[0] + "\n")
	}, "pwd")
	register(func(c *call) {
		if slices.ContainsFunc(c.args, func(a string) bool { return strings.HasPrefix(a, "+") && strings.ContainsAny(a, "/.") || symbolic(a) }) {
			c.st.out.add(hole)
			return
		}
		c.st.print(some + "\n")
	}, "date")
	register(func(c *call) { c.st.print(some + "\n") }, "id", "whoami", "uname", "nproc", "hostname", "arch", "tty", "wc", "sha256sum", "md5sum")
	register((*call).baseName, "basename")
	register((*call).dirName, "dirname")
	register((*call).list, "ls", "dir", "vdir")
	// What only reads or shows its arguments.
	register(func(c *call) { c.st.out.add(hole); c.reads() },
		"grep", "egrep", "fgrep", "rg", "ag", "ack", "head", "tail", "stat", "file", "diff", "cmp", "sort", "uniq", "cut", "tr",
		"less", "more", "man", "which", "type", "whereis", "whatis", "apropos", "info", "help", "readlink", "realpath", "lsblk", "blkid", "df", "du", "findmnt", "jq", "yq",
		"seq", "expr", "comm", "column", "fold", "nl", "od", "xxd", "hexdump", "strings", "tree", "uptime", "ps", "pgrep", "free", "top", "cal", "rev", "paste", "join", "base64", "base32", "mkdir", "figlet", "notify-send", "logger", "wall", "say", "md5", "cksum", "sha1sum", "lsof", "history", "fc")
}

// reads asks where a disk is read as a whole, or an option starts a program.
func (c *call) reads() {
	if slices.Contains([]string{"head", "tail", "od", "xxd", "hexdump", "strings", "base64", "grep", "less", "more", "cmp"}, c.name) {
		for _, f := range c.operands() {
			c.opened(c.st, f, false)
		}
	}
	if slices.Contains([]string{"less", "more", "man", "sort", "rg"}, c.name) {
		for i, a := range c.args { // options that start a program
			for _, option := range []string{"-P", "--pager", "--compress-program", "--pre"} {
				if rest, ok := strings.CutPrefix(a, option+"="); ok {
					c.atMost(Ask, "", func() { c.judge.shell(c.st.child(), rest) })
				} else if a == option && i+1 < len(c.args) {
					c.atMost(Ask, "", func() { c.judge.shell(c.st.child(), c.args[i+1]) })
				}
			}
		}
	}
}

func (c *call) echo() {
	args := c.args
	newline := "\n"
	for len(args) > 0 && regexpEcho.MatchString(args[0]) {
		if strings.Contains(args[0], "n") {
			newline = ""
		}
		args = args[1:]
	}
	text := strings.Join(args, " ")
	// Whether escapes act is another thing in each shell.
	if strings.Contains(text, `\`) {
		text = hole
	}
	c.st.print(strings.ReplaceAll(text, globMark, "") + newline)
	if strings.Contains(text, globMark) {
		c.st.out.add(hole)
	}
}

var (
	regexpEcho   = regexp.MustCompile(`^-[neE]+$`)
	formatText   = regexp.MustCompile(`%[^sb%]`)
	formatNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,9})$`)
)

func (c *call) printf() {
	args := c.args
	variable := ""
	if len(args) > 1 && args[0] == "-v" {
		variable = args[1]
		c.injected(variable)
		args = args[2:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	text := hole
	if len(args) > 0 {
		text = formatted(args[0], args[1:])
	}
	if variable != "" {
		c.st.setForms(variable, []string{text})
		return
	}
	c.st.print(text)
}

// formatted is what printf prints.
func formatted(format string, args []string) string {
	if symbolic(format) || len(args) > maxFields || strings.Contains(format, `\c`) {
		return hole
	}
	// Only texts may be unknown, and only where they are printed as they are.
	asText := !formatText.MatchString(strings.ReplaceAll(format, "%%", ""))
	for _, a := range args {
		if !asText && !formatNumber.MatchString(a) || asText && strings.Contains(format, "%b") && (symbolic(a) || strings.Contains(a, `\`)) || strings.Contains(a, `\c`) {
			return hole
		}
	}
	if len(args) == 0 {
		args = []string{""}
		if !asText {
			return hole
		}
	}
	var b strings.Builder
	for len(args) > 0 {
		text, used, err := expand.Format(nil, format, args)
		if err != nil || !utf8.ValidString(text) || b.Len() > maxText {
			return hole
		}
		b.WriteString(text)
		if used == 0 {
			break
		}
		args = args[used:]
	}
	if out := b.String(); !strings.ContainsRune(out, 0) {
		return strings.ReplaceAll(out, globMark, "")
	}
	return hole
}

func (c *call) cat() {
	files := c.operands()
	if c.name == "tac" || len(c.operands()) != len(c.args) && c.args[0] != "--" {
		c.st.out.add(hole)
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, f := range files {
		in := c.st.in
		if f != "-" {
			c.opened(c.st, f, false)
			in = c.st.read(f)
		}
		switch {
		case in == nil:
		default:
			c.st.out.loaded = c.st.out.loaded || in.loaded
			c.st.print(in.text)
		}
	}
}

func (c *call) tee() {
	text := input{text: hole}
	if c.st.in != nil {
		text = *c.st.in
	}
	for _, f := range c.operands() {
		c.opened(c.st, f, true)
		for _, p := range c.st.resolve(f) {
			c.st.files[p] = input{text: text.text, loaded: text.loaded}
		}
	}
	c.st.out.loaded = c.st.out.loaded || text.loaded
	c.st.print(text.text)
}

func (c *call) baseName() {
	if len(c.args) == 1 && !symbolic(c.args[0]) {
		c.st.print(base(c.args[0]) + "\n")
		return
	}
	c.st.out.add(hole)
}

func (c *call) dirName() {
	if len(c.args) == 1 && !unknown(c.args[0]) && !strings.Contains(c.args[0], globMark) {
		s := strings.TrimRight(c.args[0], "/")
		i := strings.LastIndexByte(s, '/')
		switch {
		case s == "" || i == 0:
			s = "/"
		case i < 0:
			s = "."
		default:
			s = s[:i]
		}
		c.st.print(s + "\n")
		return
	}
	c.st.out.add(hole)
}

// list prints names of what is in the folder, or anything where it is told more.
func (c *call) list() {
	if len(c.operands()) == 0 && !c.flag("aAlRs", "all") {
		c.st.print(some + "\n")
		return
	}
	c.st.out.add(hole)
}
