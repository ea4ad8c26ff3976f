package gate

import (
	"regexp"
	"slices"
	"strings"
)

// interpreterText are the options of interpreters whose value is a program's text.
var interpreterText = map[string][]string{
	"python": {"-c"}, "python2": {"-c"}, "python3": {"-c"}, "pypy": {"-c"}, "pypy3": {"-c"}, "ipython": {"-c"},
	"perl": {"-e", "-E"}, "ruby": {"-e"}, "node": {"-e", "-p", "--eval", "--print", "-pe"}, "nodejs": {"-e", "-p", "--eval", "--print", "-pe"}, "deno": {"eval"},
	"php": {"-r", "-B", "-R", "-E"}, "lua": {"-e"}, "luajit": {"-e"}, "Rscript": {"-e"}, "R": {"-e"}, "julia": {"-e"}, "elixir": {"-e"}, "erl": {"-eval"}, "ghc": {"-e"}, "groovy": {"-e"}, "scala": {"-e"},
	"osascript": {"-e"}, "pwsh": {"-c", "-Command", "-command"}, "powershell": {"-c", "-Command", "-command"}, "tclsh": {}, "expect": {"-c"}, "guile": {"-c"}, "sqlite3": {}, "psql": {"-c"}, "emacs": {"--eval"},
	"vim": {"-c", "--cmd"}, "vi": {"-c"}, "nvim": {"-c"}, "ex": {"-c"}, "ed": {}, "sed": {"-e"}, "gsed": {"-e"}, "awk": {}, "gawk": {}, "mawk": {}, "nawk": {}, "m4": {}, "bc": {}, "make": {}, "gmake": {},
}

// firstIsText are interpreters whose first operand is a program's text.
var firstIsText = []string{"awk", "gawk", "mawk", "nawk", "sed", "gsed", "sqlite3"}

func registerInterpreters() {
	for name := range interpreterText {
		register((*call).interpreter, name)
	}
}

// version takes the version from an interpreter's name, as of python3.12.
var version = regexp.MustCompile(`^(python|perl|ruby|node|php|lua|pypy)-?[0-9.]+$`)

// interpreter looks whether a program's text names what would be asked or denied. It is not understood: an interpreter
// is an agent's daily work, and what it may do the sandbox bounds.
func (c *call) interpreter() {
	c.st.out.add(hole)
	options := interpreterText[c.name]
	given, file := false, false
	for i := 0; i < len(c.args); i++ {
		a := c.args[i]
		text, ok := "", false
		for _, o := range options {
			rest, long := strings.CutPrefix(a, o)
			switch {
			case a == o && i+1 < len(c.args), len(o) == 2 && combined(a, o) && i+1 < len(c.args):
				text, ok = c.args[i+1], true
			case long && rest != "" && len(o) == 2:
				text, ok = rest, true
			case long && strings.HasPrefix(rest, "="):
				text, ok = rest[1:], true
			}
			if ok {
				break
			}
		}
		switch {
		case ok:
			given = true
			if strings.HasPrefix(text, hole) {
				c.fed(input{text: text, loaded: c.loaded})
			}
			c.lexical(text)
			i++
		case a == "-m" && strings.HasPrefix(c.name, "py") && i+1 < len(c.args):
			c.sub(append([]string{moduleProgram(c.args[i+1])}, c.args[i+2:]...))
			return
		case a == "-":
		case strings.HasSuffix(c.name, "make") && isAssign(a):
			_, value, _ := strings.Cut(a, "=")
			c.atMost(Ask, seems, func() { c.gravest(value) })
		case strings.HasPrefix(a, "-"):
			if c.name == "make" || c.name == "gmake" {
				file = true
			}
		case slices.Contains(firstIsText, c.name) && !given && !file:
			c.lexical(a)
			file = true
		case !file && !given:
			file = true
			c.scriptOf(a)
		}
	}
	if in := c.st.in; in != nil && !given && (!file || c.has("-", "/dev/stdin") || slices.Contains([]string{"make", "sqlite3", "psql", "ed", "ex", "vim"}, c.name)) {
		c.fed(*in)
	}
}

func moduleProgram(module string) string {
	switch module {
	case "pip", "twine", "uv", "poetry", "pipx", "build":
		return module
	case "ensurepip":
		return "true"
	}
	return "python-module"
}

// combined says that a is short options that end with the one that takes a text, as in -ne.
func combined(a, o string) bool {
	return strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.HasSuffix(a, o[1:]) && len(a) < 6
}

// scriptOf looks at a script that was just written.
func (c *call) scriptOf(name string) {
	f := c.st.read(name)
	if f.loaded || strings.HasPrefix(name, "/dev/fd/") {
		c.fed(*f)
	} else {
		c.lexical(f.text)
	}
}

func (c *call) fed(in input) {
	switch {
	case in.loaded:
		c.ask(Remote, "an interpreter runs what was just loaded from the network")
	case strings.HasPrefix(strings.TrimSpace(in.text), hole) && !slices.Contains([]string{"sqlite3", "psql", "sed", "awk", "gawk", "mawk", "bc", "make", "vim", "m4"}, c.name):
		c.ask(Unclear, "an interpreter is given text that cannot be known before it runs")
	}
	c.lexical(in.text)
}

var (
	literals  = regexp.MustCompile("(?s)\"((?:[^\"\\\\]|\\\\.)*)\"|'((?:[^'\\\\]|\\\\.)*)'|`((?:[^`\\\\]|\\\\.)*)`")
	startsOut = regexp.MustCompile(`system|popen|exec|spawn|subprocess|child_process|shell|qx|fork|call|run|check_output|Open3|backtick|^e |(\b|[0-9$/])e\b|%x|[|]\s*getline|!`)
	erases    = regexp.MustCompile(`rmtree|rm_rf|rm_r\b|remove_dir_all|rmSync|rmdirSync|rimraf|RemoveAll|remove_tree|removedirs|fs\.rm\b|unlink|File::Path|rmdir|delete_recursive|rmR`)
	wholePath = regexp.MustCompile("[\"'`(\\[{ =](/|/\\*|~|~/|~/\\*|/(bin|boot|dev|etc|home|lib|lib64|root|sbin|usr|var)/?\\**|/home/[a-z0-9_-]+/?)[\"'`)\\]} ]|expanduser|homedir\\(|Path\\.home|Dir\\.home|HOME")
	textDisk  = regexp.MustCompile(`/dev/(sd[a-z]|hd[a-z]|vd[a-z]|xvd[a-z]|nvme[0-9]|mmcblk[0-9]|dm-[0-9]|mapper/|disk/|mem\b|kmem\b)|/proc/sysrq-trigger`)
	textBomb  = regexp.MustCompile(`(?s)fork\s*(\(\s*\))?\s*(while|until)\b|(while|for|loop|until)\b.{0,40}\bfork\b|(while|for\s*\(\s*;\s*;).{0,60}(spawn|Popen)\b`)
	textKeys  = regexp.MustCompile(`\.ssh/|\bid_(rsa|dsa|ecdsa|ed25519)\b|\.aws/credentials|\.git-credentials|\.netrc\b|/etc/g?shadow|\.gnupg/|\.docker/config\.json|\.kube/config`)
	textPower = regexp.MustCompile(`\breboot\s*\(|RB_(POWER_OFF|AUTOBOOT|HALT)|LINUX_REBOOT`)
)

// lexical asks where a program's text names what would be asked or denied. It never denies: it does not know better.
func (c *call) lexical(text string) {
	text = plain.Replace(text)
	switch {
	case textBomb.MatchString(text):
		c.ask(Bomb, "the text that it runs seems to start processes without end")
	case textDisk.MatchString(text):
		c.ask(Device, "the text that it runs names a disk")
	case erases.MatchString(text) && wholePath.MatchString(text):
		c.ask(Delete, "the text that it runs seems to delete the root or a home")
	case textKeys.MatchString(text):
		c.ask(Credential, "the text that it runs names where keys or tokens are")
	case textPower.MatchString(text):
		c.ask(Power, "the text that it runs seems to stop the machine")
	}
	if !startsOut.MatchString(text) && c.name != "make" && c.name != "expect" && c.name != "tclsh" && c.name != "osascript" {
		return
	}
	// What is in quotes may be given to a shell, as one text or as words.
	var words []string
	for _, m := range literals.FindAllStringSubmatch(text, 64) {
		one := unescape.Replace(m[1] + m[2] + m[3])
		words = append(words, one)
		if strings.Contains(one, " ") && suspicious.MatchString(one) {
			c.atMost(Ask, seems, func() { c.deeper(func() { c.judge.shell(c.st.child(), one) }) })
		}
	}
	c.embedded(words, Ask)
	// Some languages write a command as it is, or between other brackets.
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune("\n;\"'`(){}!|", r) }) {
		line = strings.TrimSpace(line)
		if fields := strings.Fields(line); len(fields) > 1 {
			c.embedded(fields, Ask)
		}
	}
}

const seems = " (so the text that it runs seems to say)"

var (
	unescape = strings.NewReplacer(`\n`, "\n", `\t`, " ", `\"`, `"`, `\'`, `'`, `\\`, `\`)
	// suspicious is what is worth being parsed.
	suspicious = regexp.MustCompile(`\b(rm|dd|mkfs|wipefs|shred|find|sh|bash|curl|wget|ssh|scp|git|npm|shutdown|reboot|poweroff|halt|systemctl|init|sudo|eval|tee|pip|apt)\b|/dev/|:\(\)`)
)

// embedded looks for the name of a dangerous program among words, and judges it with the words that follow.
func (c *call) embedded(words []string, limit Decision) {
	const most = 32
	n := 0
	for i, w := range words {
		everyday := limit == Ask && slices.Contains([]string{"shutdown", "reboot", "halt", "poweroff", "init"}, w)
		if dangerous[base(w)] && !everyday || strings.HasPrefix(base(w), "mkfs.") {
			if n++; n > most {
				return
			}
			why := seems
			if limit == Deny {
				why = ""
			}
			c.atMost(limit, why, func() { c.sub(words[i:]) })
		}
	}
}

// other is a program that is not known: what it does is the sandbox's matter. It may start what its arguments say.
func (c *call) other() {
	c.st.out.add(hole)
	if m := version.FindStringSubmatch(c.name); m != nil {
		c.name = m[1]
		c.interpreter()
		return
	}
	if strings.HasPrefix(c.name, "mkfs.") || strings.HasPrefix(c.name, "fsck.") {
		c.disk()
		return
	}
	if strings.HasPrefix(c.name, "ld-linux") || strings.HasPrefix(c.name, "ld-musl") {
		c.wrapped(wrapper{})
		return
	}
	for _, a := range c.args {
		if c.st.isDisk(a) && !strings.ContainsAny(a, hole+wild+some) {
			c.ask(Device, c.name+" is given the disk "+shown(a))
		}
		if _, value, ok := strings.Cut(a, "="); ok && strings.HasPrefix(a, "-") {
			a = value
		}
		if strings.ContainsAny(a, " \n") && len(a) < maxCommand && suspicious.MatchString(a) {
			c.atMost(Ask, " (if "+c.name+" runs what it is given)", func() { c.deeper(func() { c.gravest(a) }) })
		}
	}
	c.embedded(c.args, Ask)
}

// gravest judges a text that may be for a shell, and may be for people: only what would be denied counts.
func (c *call) gravest(text string) {
	before := c.best
	c.best = Verdict{}
	c.judge.shell(c.st.child(), text)
	// The words for power are words of every day, too.
	if c.best.Decision != Deny || c.best.Family == Power {
		c.best = before
	}
}
