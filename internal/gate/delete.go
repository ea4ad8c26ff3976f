package gate

import (
	"slices"
	"strings"
)

// dangerous are programs that are looked for among the arguments of programs that are not known.
var dangerous = map[string]bool{}

func registerDelete() {
	for _, name := range []string{"rm", "unlink", "rmdir", "shred", "dd", "mkfs", "wipefs", "truncate", "find", "sh", "bash", "dash", "zsh", "ksh", "busybox", "sudo", "env", "xargs", "eval", "shutdown", "reboot", "halt", "poweroff", "systemctl", "init", "tee", "cp", "mv"} {
		dangerous[name] = true
	}
	register((*call).rm, "rm", "unlink", "rmdir", "grm", "rimraf", "trash", "del-cli", "srm")
	register((*call).shred, "shred", "truncate")
	register((*call).tar, "tar", "bsdtar", "gtar")
	register((*call).mode, "chmod", "chown", "chgrp", "setfacl", "chattr")
}

// rm deletes what it names.
func (c *call) rm() {
	if slices.Equal(c.args, []string{"--help"}) || slices.Equal(c.args, []string{"--version"}) {
		return
	}
	recursive := c.flag("rR", "recursive") || c.name == "rimraf" || c.name == "trash" || c.name == "del-cli"
	if c.flag("", "no-preserve-root") && c.name == "rm" {
		c.ask(Delete, "it is told not to spare the root")
	}
	if c.name == "rmdir" {
		return // it deletes empty folders only
	}
	ops := c.operands()
	if c.name != "rm" && c.name != "grm" {
		ops = c.args
	}
	if len(ops) > 1 && slices.ContainsFunc(ops, func(o string) bool { return strings.HasPrefix(o, hole) }) {
		recursive = true // one of them may be the option
	}
	// getopt takes options after operands, too; what is no option for one rm is a file for another.
	for _, op := range ops {
		c.deleted(op, recursive)
	}
	if slices.ContainsFunc(c.args, func(a string) bool { return strings.Contains(a, wild) }) {
		c.ask(Delete, "what it deletes cannot be known before it runs")
	}
}

// deleted judges that one operand is deleted.
func (c *call) deleted(op string, recursive bool) {
	if strings.Contains(op, wild) {
		c.ask(Delete, "what it deletes cannot be known before it runs")
	}
	for _, abs := range c.st.resolve(op) {
		switch c.judgeTarget(abs) {
		case disaster:
			c.deny(Delete, "it deletes "+shown(abs)+", which is the root, a home, or a part that the system cannot do without")
		case whole:
			if recursive {
				c.ask(Delete, "it deletes the whole folder that the command starts in")
			}
		case history:
			if recursive {
				c.ask(VCS, "it deletes a repository's history")
			}
		case outside:
			c.ask(Delete, "it deletes "+shown(abs)+", which is outside of the folder that the command starts in")
		case unseen:
			if recursive {
				c.ask(Delete, "what it deletes cannot be known before it runs")
			}
		}
	}
}

// shred and truncate lose what is in a file.
func (c *call) shred() {
	ops := c.operands()
	for _, op := range ops {
		c.opened(c.st, op, true)
		for _, abs := range c.st.resolve(op) {
			if t := c.judgeTarget(abs); t == outside || t == disaster || strings.Contains(op, wild) || strings.HasPrefix(op, hole) {
				c.ask(Delete, "what is in "+shown(op)+" is lost")
			}
		}
	}
	if c.name == "shred" && len(ops) > 0 {
		c.ask(Delete, "what it overwrites cannot be had back")
	}
}

// moved judges what goes away from where it was.
func (c *call) moved(ops []string) {
	if len(ops) < 2 {
		return
	}
	for _, from := range ops[:len(ops)-1] {
		for _, abs := range c.st.resolve(from) {
			if c.judgeTarget(abs) == disaster {
				c.deny(Delete, "it moves "+shown(abs)+" away, which is the root, a home, or a part that the system cannot do without")
			}
		}
	}
}

// synced judges an rsync: what it deletes, and where it goes.
func (c *call) synced(ops []string) {
	deletes := slices.ContainsFunc(c.args, func(a string) bool { return strings.HasPrefix(a, "--del") })
	for i, op := range ops {
		if strings.Contains(op, ":") && !strings.HasPrefix(op, "/") && !strings.HasPrefix(op, "./") {
			c.ask(Remote, "it copies from or to another machine")
		} else if deletes && i > 0 && i == len(ops)-1 {
			c.deleted(op, true)
		}
	}
	for i, a := range c.args {
		if (a == "-e" || a == "--rsh") && i+1 < len(c.args) {
			c.judge.shell(c.st.child(), c.args[i+1])
		} else if rest, ok := strings.CutPrefix(a, "--rsh="); ok {
			c.judge.shell(c.st.child(), rest)
		}
	}
	if slices.Contains(c.args, "--remove-source-files") && len(ops) > 1 {
		c.moved(ops)
	}
}

// tar may delete what it packs, and may start programs.
func (c *call) tar() {
	if c.flag("", "remove-files") {
		for _, op := range c.operands() {
			c.deleted(op, true)
		}
	}
	c.other()
}

// mode judges who may do what with the root or a home.
func (c *call) mode() {
	if !c.flag("R", "recursive") {
		return
	}
	for _, op := range c.operands() {
		for _, abs := range c.st.resolve(op) {
			if c.judgeTarget(abs) == disaster {
				c.ask(System, "it changes who may do what with all of "+shown(abs))
			}
		}
	}
}

// find deletes what it finds, or starts a command with it.
func (c *call) find() {
	i := 0
	for i < len(c.args) && (c.args[i] == "-H" || c.args[i] == "-L" || c.args[i] == "-P" || c.args[i] == "-D" || strings.HasPrefix(c.args[i], "-O")) {
		if c.args[i] == "-D" {
			i++
		}
		i++
	}
	i = min(i, len(c.args))
	var starts []string
	for i < len(c.args) && !strings.HasPrefix(c.args[i], "-") && c.args[i] != "(" && c.args[i] != "!" {
		starts = append(starts, c.args[i])
		i++
	}
	if len(starts) == 0 {
		starts = []string{"."}
	}
	expr := c.args[i:]
	filtered := filters(expr)
	c.whatIsFound(starts, expr, filtered)
	for _, s := range starts {
		if filtered {
			c.st.print(s + "/" + some + "\n")
		} else {
			c.st.print(s + "\n" + s + "/" + some + "\n")
		}
	}
	if slices.Contains(expr, "-printf") || slices.Contains(expr, "-exec") {
		c.st.out.add(hole)
	}
}

// filters says that an expression of find's leaves something out.
func filters(expr []string) bool {
	found := false
	for i, a := range expr {
		switch a {
		case "!", "-not", "-o", "-or", ",":
			return false
		case "-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex", "-lname":
			if i+1 < len(expr) && strings.Trim(expr[i+1], "*.?/[]^$") != "" {
				found = true
			}
		case "-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-newer", "-size", "-empty", "-user", "-group", "-perm", "-inum", "-links", "-uid", "-gid", "-samefile", "-nouser", "-nogroup":
			found = true
		}
		if strings.Contains(a, wild) {
			return false
		}
	}
	return found
}

// whatIsFound judges what becomes of what is found.
func (c *call) whatIsFound(starts, expr []string, filtered bool) {
	for i, a := range expr {
		switch a {
		case "-delete":
			for _, s := range starts {
				if filtered {
					s += "/" + some
				}
				c.deleted(s, true)
			}
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(expr) && expr[end] != ";" && (expr[end] != "+" || expr[end-1] != "{}") {
				end++
			}
			for _, s := range starts {
				if filtered {
					s += "/" + some
				}
				var argv []string
				for _, word := range expr[i+1 : end] {
					argv = append(argv, strings.ReplaceAll(word, "{}", s))
				}
				c.sub(argv)
			}
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i+1 < len(expr) {
				c.opened(c.st, expr[i+1], true)
			}
		}
		if strings.Contains(a, wild) {
			c.ask(Unclear, "what becomes of what it finds cannot be known before it runs")
		}
	}
}

// fd is a find whose commands stand after -x.
func (c *call) fd() {
	c.st.out.add(hole)
	for i, a := range c.args {
		if a == "-x" || a == "--exec" || a == "-X" || a == "--exec-batch" {
			var argv []string
			for _, word := range c.args[i+1:] {
				argv = append(argv, strings.ReplaceAll(word, "{}", "./"+some))
			}
			dirs := c.args[:i]
			for _, d := range dirs {
				if !strings.HasPrefix(d, "-") && c.judgeTarget(c.st.resolve(d)[0]) == disaster {
					argv = append(argv, d)
				}
			}
			c.sub(argv)
			return
		}
	}
}
