package e2e

import (
	"strings"
	"testing"
)

const edit = `sed -i 's/^two$/TWO/' a; echo new >new; git mv dir/b dir/c`

// heldBack has a command wait, once it has said so, for its release.
const heldBack = `echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; `

func (s *started) release() {
	s.w.t.Helper()
	s.w.ravi("sandbox", "exec", s.id(), "--", "touch", "/tmp/go").want(0)
}

func TestApply(t *testing.T) {
	t.Run("clean", func(t *testing.T) {
		w, r := newWorld(t), plain(t)
		index := read(t, r.path(".git/index"))
		res := w.run(r, "--apply", "--", "sh", "-c", edit).want(0).says("applied: ")
		if r.read("a") != "one\nTWO\nthree\n" || r.read("new") != "new\n" || r.read("dir/c") != "bee\n" {
			t.Error("it was not applied")
		}
		if read(t, r.path(".git/index")) != index {
			t.Error("the index was changed")
		}
		if k := res.task(); len(k.Applied) == 0 || k.Status != "succeeded" {
			t.Errorf("task.json says %q, %q", k.Status, k.Applied)
		}
	})
	t.Run("moved on", func(t *testing.T) {
		w, r := newWorld(t), plain(t)
		s := w.start(r, "--apply", "--", "sh", "-c", heldBack+edit)
		s.until("ready")
		r.write("a", "zero\none\ntwo\nthree\n")
		r.write("mine", "mine\n")
		s.release()
		s.wait().want(0).says("merged")
		if r.read("a") != "zero\none\nTWO\nthree\n" || r.read("mine") != "mine\n" || r.read("new") != "new\n" {
			t.Errorf("merged to %q", r.read("a"))
		}
	})
	t.Run("conflict", func(t *testing.T) {
		w, r := newWorld(t), plain(t)
		s := w.start(r, "--apply", "--", "sh", "-c", heldBack+edit)
		s.until("ready")
		r.write("a", "one\nzwei\nthree\n")
		before := snapshot(t, r.dir)
		s.release()
		res := s.wait().want(125).says("conflict", "a")
		if snapshot(t, r.dir) != before {
			t.Error("something was written")
		}
		k := res.task()
		if k.Status != "error" || k.Reason != "apply" || k.Patch == nil || !k.Patch.Applies || len(k.Applied) > 0 {
			t.Errorf("task.json says %+v", k)
		}
	})
	t.Run("a failed command", func(t *testing.T) {
		w, r := newWorld(t), plain(t)
		w.run(r, "--apply", "--", "sh", "-c", edit+"; exit 4").want(4)
	})
}

// Paths that something of the user's executes are not applied unasked.
func TestApplyRisky(t *testing.T) {
	w, r := newWorld(t), plain(t)
	before := snapshot(t, r.dir)
	script := `mkdir -p .github/workflows .vscode .husky; echo x | tee .github/workflows/ci.yml .envrc .vscode/tasks.json .husky/pre-commit >/dev/null; echo x >>a`
	res := w.run(r, "--apply", "--", "sh", "-c", script).want(125).says(".envrc", ".github/workflows/ci.yml", ".vscode/tasks.json", ".husky/pre-commit", "--yes")
	if snapshot(t, r.dir) != before {
		t.Error("something was written")
	}
	if k := res.task(); len(k.Patch.Risky) < 4 || k.Patch.Files != 5 || len(k.Applied) > 0 {
		t.Errorf("patch %+v", k.Patch)
	}
	w.run(r, "--apply", "--yes", "--", "sh", "-c", script).want(0)
	if r.read(".envrc") != "x\n" || !strings.HasSuffix(r.read("a"), "x\n") {
		t.Error("it was not applied")
	}
}
