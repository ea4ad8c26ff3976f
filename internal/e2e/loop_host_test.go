package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/modeltest"
)

// On the host backend a loop's file tools act outside of what hides Ravi from its commands. They reach nothing but the
// workspace, whatever links and folders the commands leave for them, and what is in .git stays as it is.
func TestLoopOnTheHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root a sealed host sandbox needs unprivileged user namespaces")
	}
	t.Parallel()
	c := loops[0]
	w, r := newWorld(t), plain(t)
	outside := realpath(t, t.TempDir())
	must(t, os.WriteFile(filepath.Join(outside, "secret.txt"), []byte("a secret of the host\n"), 0o644))
	db := filepath.Join(w.home, "ravi.db")
	traps := `ln -s ` + outside + ` away; ln -s ` + outside + `/secret.txt link; ln -s ` + w.home + ` home; ln -s /proc/self/root magic
		ws=$(pwd); move() { (cd / && python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$1" "$1.old" 2>/dev/null && ln -s ` + w.home + ` "$1" && echo MOVED "$1"); }
		move "$ws"; move "$(dirname "$ws")"; move "$(dirname "$(dirname "$ws")")"
		env | grep -e 'rlease[_]' -e BASE_URL; cat ` + db + ` 2>/dev/null | head -c 16; echo "traps are laid"`
	tries := modeltest.Turn{}
	for _, name := range []string{"link", "away/secret.txt", outside + "/secret.txt", "../" + filepath.Base(w.home) + "/ravi.db", "home/ravi.db", db, "ravi.db", "magic" + outside + "/secret.txt", "/proc/self/environ", "/proc/self/fd/3"} {
		tries = append(tries, modeltest.Call("read", object{"path": name}), modeltest.Call("edit", object{"path": name, "old": "secret", "new": "leak"}))
	}
	for _, name := range []string{"away", "..", "/", "home", "magic/etc"} {
		tries = append(tries, modeltest.Call("list", object{"path": name}), modeltest.Call("search", object{"pattern": "secret|root", "path": name}))
	}
	for _, name := range []string{"away/new.txt", "link", "../new.txt", outside + "/new.txt", ".git/hooks/post-checkout", ".git/config", "magic/tmp/new.txt"} {
		tries = append(tries, modeltest.Call("write", object{"path": name, "content": "written"}))
	}
	url, model := provider(t, c.header,
		modeltest.Turn{modeltest.Call("exec", object{"command": "sh traps.sh"})}, tries,
		modeltest.Turn{modeltest.Call("write", object{"path": "good.txt", "content": "good\n"})},
		modeltest.Turn{modeltest.Call("exec", object{"command": "cat good.txt .git/config"})},
		modeltest.Turn{modeltest.Call("finish", object{"summary": "done"})})
	r.write("traps.sh", traps)
	r.commit("traps")
	w.env = []string{c.key + "=" + canary, c.base + "=" + url}
	run := w.run(r, c.args("look around", "--backend", "host", "--connect", "read")...).want(0)
	requests := model.Requests()
	if said, _ := fencedIn(t, results(t, requests[1])[0]); said != "traps are laid\n\nExit code: 0" {
		t.Errorf("the commands say %q", said)
	}
	got := results(t, requests[2])
	if len(got) != len(tries) {
		t.Fatalf("%d results of %d calls", len(got), len(tries))
	}
	for i, text := range got {
		if text, _ := fencedIn(t, text); !strings.HasPrefix(text, "Error: ") {
			t.Errorf("call %d went through: %s", i, short(text))
		}
	}
	if said, _ := fencedIn(t, results(t, requests[4])[0]); !strings.HasPrefix(said, "good\n") || strings.Contains(said, "written") {
		t.Errorf("in the workspace is %q", said)
	}
	found := files(t, outside)
	if len(found) != 1 || string(found["secret.txt"]) != "a secret of the host\n" {
		t.Errorf("outside there is %q", found)
	}
	if p := run.file("changes.patch"); !strings.Contains(p, "+good") || strings.Contains(p, "a secret of the host") {
		t.Errorf("the patch:\n%s", short(p))
	}
	run.silent(canary)
	w.given(filepath.Base(run.dir))
}
