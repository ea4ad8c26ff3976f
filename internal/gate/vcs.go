package gate

import (
	"slices"
	"strings"
)

func registerVCS() {
	register((*call).git, "git")
	register((*call).hg, "hg", "svn", "jj")
}

// git judges a git command: what it publishes, and what cannot be had back.
func (c *call) git() {
	c.st.out.add(hole)
	args := c.args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		a := args[0]
		args = args[1:]
		if slices.Contains([]string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"}, a) && len(args) > 0 {
			if a == "-c" {
				c.gitSetting(args[0])
			}
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return
	}
	g := &call{judge: c.judge, st: c.st, argv: append([]string{"git"}, args...), name: args[0], args: args[1:]}
	if unknown(args[0]) {
		g.ask(Unclear, "what git is to do cannot be known before it runs")
		return
	}
	if reason := g.lost(); reason != "" {
		g.ask(VCS, reason)
	}
	switch g.name {
	case "push":
		if g.flag("fd", "force") || g.flag("", "force-with-lease") || g.has("--delete", "--mirror", "--prune") || slices.ContainsFunc(g.args, func(a string) bool {
			return strings.HasPrefix(a, "+") || strings.HasPrefix(a, ":")
		}) {
			g.ask(VCS, "it overwrites or deletes what others have")
		}
		if !g.flag("n", "dry-run") {
			g.ask(Publish, "it publishes commits")
		}
	case "send-email", "imap-send", "svn", "p4":
		g.ask(Publish, "it sends commits to others")
	case "credential", "credential-store", "credential-cache":
		g.ask(Credential, "it gives out keys or tokens")
	case "config":
		if len(g.operands()) > 1 {
			ops := g.operands()
			g.gitSetting(ops[len(ops)-2] + "=" + ops[len(ops)-1])
		}
	case "bisect", "rebase", "submodule", "filter-branch", "difftool", "mergetool", "for-each-repo":
		g.gitRuns()
	case "grep", "clone", "fetch", "pull", "ls-remote":
		for i, a := range g.args {
			for _, option := range []string{"-O", "--open-files-in-pager", "-u", "--upload-pack", "-c", "--config"} {
				if text, ok := strings.CutPrefix(a, option+"="); ok {
					g.judge.shell(g.st.child(), text)
				} else if a == option && i+1 < len(g.args) && option != "-O" {
					if option == "-c" || option == "--config" {
						g.gitSetting(g.args[i+1])
					} else if g.name != "fetch" && g.name != "pull" || option != "-u" {
						g.judge.shell(g.st.child(), g.args[i+1])
					}
				}
			}
			if strings.HasPrefix(a, "ext::") {
				g.judge.shell(g.st.child(), a[len("ext::"):])
			}
		}
	case "ls-files", "diff", "status":
		if g.name == "ls-files" && !g.has("-s", "--stage", "-t", "-v") || g.has("--name-only") {
			g.st.out.b.Reset()
			g.st.print(some + "\n")
		}
	}
	if g.name == "rm" && g.flag("r", "") && !g.flag("n", "dry-run") {
		for _, op := range g.operands() {
			for _, abs := range g.st.resolve(op) {
				if t := g.judgeTarget(abs); (t == whole || t == disaster) && g.flag("f", "force") {
					g.ask(VCS, "it deletes all that the repository has")
				}
			}
		}
	}
}

// lost says what of a repository's history, or of work not committed, is lost.
func (g *call) lost() string {
	uncommitted := "work that is not committed is lost"
	switch g.name {
	case "reset":
		if g.has("--hard", "--merge", "--keep") {
			return uncommitted
		}
	case "clean":
		if g.flag("f", "force") && !g.flag("n", "dry-run") {
			return "files that are in no commit are deleted"
		}
	case "checkout":
		if g.flag("f", "force") || g.has("--") || g.has(".") || g.has("--theirs", "--ours") {
			return uncommitted
		}
	case "restore":
		if !g.has("--staged", "-S") || g.has("--worktree", "-W") {
			return uncommitted
		}
	case "switch":
		if g.flag("f", "force") || g.has("--discard-changes", "-C") {
			return uncommitted
		}
	case "branch":
		if g.flag("DM", "") || g.flag("d", "delete") && g.flag("f", "force") {
			return "commits of a branch may be lost"
		}
	case "tag":
		if g.flag("d", "delete") {
			return "a tag is deleted"
		}
	case "stash":
		if g.has("drop", "clear") {
			return "stashed work is lost"
		}
	case "reflog":
		if g.has("expire", "delete") {
			return "the way back to lost commits is deleted"
		}
	case "gc", "prune":
		if g.name == "prune" || slices.ContainsFunc(g.args, func(a string) bool { return strings.HasPrefix(a, "--prune=") }) {
			return "the way back to lost commits is deleted"
		}
	case "filter-branch", "filter-repo", "replace":
		return "history is rewritten"
	case "update-ref":
		if g.has("-d", "--stdin") {
			return "commits of a branch may be lost"
		}
	case "worktree":
		if g.has("remove") && g.flag("f", "force") {
			return uncommitted
		}
	case "submodule":
		if g.has("deinit") && g.flag("f", "force") {
			return uncommitted
		}
	case "remote":
		if g.has("remove", "rm", "set-url") {
			return "what the repository is connected to is changed"
		}
	}
	return ""
}

// gitSetting judges a setting whose value git runs.
func (c *call) gitSetting(setting string) {
	name, text, _ := strings.Cut(setting, "=")
	name = strings.ToLower(name)
	if strings.HasPrefix(name, "alias.") {
		if run, ok := strings.CutPrefix(text, "!"); ok {
			c.judge.shell(c.st.child(), run)
		} else {
			c.sub(append([]string{"git"}, strings.Fields(text)...))
		}
		return
	}
	for _, running := range []string{"core.sshcommand", "core.pager", "core.editor", "core.fsmonitor", "core.hookspath", "credential.helper", "diff.external", "sequence.editor", "pager.", "gpg.program", "core.askpass", "filter.", "diff.", "merge.", "core.gitproxy"} {
		if strings.HasPrefix(name, running) && text != "" {
			c.judge.shell(c.st.child(), strings.TrimPrefix(text, "!"))
		}
	}
}

// gitRuns judges commands that git is told to run itself.
func (c *call) gitRuns() {
	for i, a := range c.args {
		rest := c.args[i+1:]
		switch {
		case (a == "run" || a == "foreach") && len(rest) > 0:
			c.judge.shell(c.st.child(), strings.Join(rest, " "))
		case (a == "-x" || a == "--exec" || strings.HasSuffix(a, "-filter")) && len(rest) > 0:
			c.judge.shell(c.st.child(), rest[0])
		default:
			for _, option := range []string{"--exec=", "--extcmd="} {
				if text, ok := strings.CutPrefix(a, option); ok {
					c.judge.shell(c.st.child(), text)
				}
			}
		}
	}
}

func (c *call) hg() {
	c.st.out.add(hole)
	if len(c.args) == 0 {
		return
	}
	switch sub := c.operands(); {
	case len(sub) == 0:
	case slices.Contains([]string{"strip", "purge", "revert", "rollback", "abandon"}, sub[0]):
		c.ask(VCS, "history or uncommitted work is lost")
	case sub[0] == "push" || c.name == "svn" && (sub[0] == "commit" || sub[0] == "ci" || sub[0] == "delete"):
		c.ask(Publish, "it publishes commits")
	}
}
