package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const token = "TOKEN-c4n4ry-0f-th3-us3r"

// arm fills every place from which git runs something with a program that leaves a canary in the returned directory.
func arm(t *testing.T, r *repo) string {
	t.Helper()
	nest := realpath(t, t.TempDir())
	must(t, os.Chmod(nest, 0o777))
	script := func(name string) string {
		p := nest + "/" + name + ".sh"
		must(t, os.WriteFile(p, []byte("#!/bin/sh\ntouch '"+nest+"/canary-"+name+"'\ncat 2>/dev/null\n"), 0o755))
		return p
	}
	r.write(".gitattributes", "*.txt filter=evil diff=evil merge=evil ident\n*.proc filter=evilproc\n*.c diff=evil\n")
	r.write("f.txt", "$Id$\ntext\n")
	r.write("g.proc", "text\n")
	r.write("h.c", "int x;\n")
	r.commit("attributes")
	for _, h := range []string{"pre-commit", "post-commit", "post-checkout", "post-merge", "reference-transaction", "fsmonitor-watchman", "post-index-change",
		"pre-auto-gc", "post-rewrite", "applypatch-msg", "pre-applypatch", "post-applypatch", "push-to-checkout", "update", "pre-push"} {
		must(t, os.WriteFile(r.path(".git/hooks/"+h), []byte(read(t, script("hook-"+h))), 0o755))
	}
	must(t, os.WriteFile(nest+"/included", []byte("[core]\n\tfsmonitor = "+script("included")+"\n"), 0o644))
	must(t, os.WriteFile(nest+"/attributes", []byte("* filter=evil diff=evil\n"), 0o644))
	var c strings.Builder
	fmt.Fprintf(&c, "[core]\n\tfsmonitor = %s\n\tsshCommand = %s\n\tpager = %s\n\teditor = %s\n\taskPass = %s\n\talternateRefsCommand = %s\n\thooksPath = %s\n\tattributesFile = %s\n",
		script("fsmonitor"), script("ssh"), script("pager"), script("editor"), script("askpass"), script("altrefs"), r.path(".git/hooks"), nest+"/attributes")
	for _, f := range []string{"evil", "lfs"} {
		fmt.Fprintf(&c, "[filter %q]\n\tclean = %s\n\tsmudge = %s\n\trequired = true\n", f, script(f+"-clean"), script(f+"-smudge"))
	}
	fmt.Fprintf(&c, "[filter \"evilproc\"]\n\tprocess = %s\n[diff]\n\texternal = %s\n[diff \"evil\"]\n\tcommand = %s\n\ttextconv = %s\n[merge \"evil\"]\n\tdriver = %s\n",
		script("process"), script("external"), script("diffcmd"), script("textconv"), script("merge"))
	fmt.Fprintf(&c, "[credential]\n\thelper = %s\n[gpg]\n\tprogram = %s\n[commit]\n\tgpgSign = true\n[uploadpack]\n\tpackObjectsHook = %s\n[include]\n\tpath = %s\n[includeIf \"gitdir:/\"]\n\tpath = %s\n",
		script("credential"), script("gpg"), script("packhook"), nest+"/included", nest+"/included")
	fmt.Fprintf(&c, "[alias]\n\tls-files = !%s\n\tapply = !%s\n[remote \"origin\"]\n\turl = https://maria:%s@example.org/x\n\tuploadpack = %s\n[http]\n\textraHeader = Authorization: %s\n",
		script("alias"), script("alias2"), token, script("uploadpack"), token)
	f, err := os.OpenFile(r.path(".git/config"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(c.String())
	must(t, err)
	must(t, f.Close())

	// The trap works: git itself falls into it.
	_, _ = r.try("status") // it may fail, having run something
	if len(canaries(nest)) == 0 {
		t.Fatal("the traps are not set")
	}
	for _, c := range canaries(nest) {
		must(t, os.Remove(c))
	}
	return nest
}

func canaries(nest string) []string {
	found, _ := filepath.Glob(nest + "/canary-*") // the pattern is well-formed
	return found
}

// A repository that wants to run something on the host, or whose configuration holds a token.
func TestHostileRepository(t *testing.T) {
	w, r := newWorld(t), plain(t)
	nest := arm(t, r)
	r.write("h.c", "int y;\n")
	r.write("f.txt", "$Id$\nby the user\n")
	before := snapshot(t, r.path(".git"))
	res := w.run(r, "--apply", "--", "sh", "-c", `
		grep -r 'T[O]KEN-c4n4ry' /workspace /etc /home /.ravi -s 2>/dev/null
		cat .git/config; git config --list; env
		echo four >>a; echo 'int z;' >h.c; echo new >n.c`).want(0)
	if found := canaries(nest); len(found) > 0 {
		t.Errorf("the repository's own programs ran: %q", found)
	}
	if strings.Contains(res.stdout, token) || strings.Contains(res.stdout, nest) {
		t.Errorf("the configuration came in:\n%s", res.stdout)
	}
	res.silent(token)
	if snapshot(t, r.path(".git")) != before {
		t.Error(".git was changed")
	}
	if r.read("h.c") != "int z;\n" || r.read("n.c") != "new\n" || !strings.HasSuffix(r.read("a"), "four\n") {
		t.Errorf("the patch was not applied: %s", res.stderr)
	}
	// What a filter converts is told, and not run.
	res = w.run(r, "--apply", "--yes", "--", "sh", "-c", "echo agent >>f.txt; echo agent >>g.proc")
	if found := canaries(nest); len(found) > 0 {
		t.Errorf("the repository's own programs ran: %q", found)
	}
	if strings.Contains(r.read("g.proc"), "agent") && res.code != 0 {
		t.Error("it was applied by half")
	}
}

// What the agent does inside reaches nothing outside, and the patch all the same.
func TestHostileAgent(t *testing.T) {
	w, r := newWorld(t), plain(t)
	nest := realpath(t, t.TempDir())
	must(t, os.Chmod(nest, 0o777))
	res := w.run(r, "--apply", "--yes", "--", "sh", "-c", `
		echo four >>a
		printf '#!/bin/sh\ntouch `+nest+`/canary-hook\n' >.git/hooks/post-checkout; chmod +x .git/hooks/post-checkout
		git config core.fsmonitor 'touch `+nest+`/canary-fsmonitor'; git config filter.x.clean 'touch `+nest+`/canary-clean; cat'
		echo '* filter=x' >.gitattributes
		rm -rf .git/objects; mkdir -p sub/.git; echo x >sub/.git/config; touch .git/index.lock
		mkdir -p .GIT; echo x >.GIT/config; ln -s .git gitlink
		sudo -n true 2>/dev/null; chmod -R a-w . ; true`)
	if found := canaries(nest); len(found) > 0 {
		t.Errorf("the agent's programs ran on the host: %q", found)
	}
	k := res.task()
	if k.Patch == nil || !k.Patch.Applies || !strings.Contains(res.file("changes.patch"), "+four") {
		t.Fatalf("patch %+v: %s", k.Patch, k.Error)
	}
	for _, p := range k.Patch.Paths {
		if strings.Contains(strings.ToLower(p.Path), ".git/") {
			t.Errorf("the patch holds %s", p.Path)
		}
	}
}
