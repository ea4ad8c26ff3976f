package gitbox

import (
	"os"
	"strings"
	"testing"
)

func TestCleanRun(t *testing.T) {
	r := filled(t)
	before := fingerprint(t, r.dir)
	b := export(t, r.dir+"/dir", "")
	if b.Branch != "refs/heads/main" || b.Commit != r.git("rev-parse", "HEAD") || b.Dirty.Any() || b.Tree != b.Head {
		t.Fatalf("base: %+v", b)
	}
	unchanged(t, r.dir, before)
	s := enter(t, b)
	for _, q := range [][]string{{"log", "--oneline", "--all"}, {"status"}, {"describe", "--always"}, {"diff", "side...HEAD"}, {"branch", "-a"}, {"tag"}} {
		if in, out := s.git(q...), r.git(q...); in != out {
			t.Errorf("git %q: inside %q, outside %q", q, in, out)
		}
	}
	if patch, _, p := s.capture(); patch != "" || p.Files != 0 || !p.Applies {
		t.Fatalf("nothing was done, yet %q, %+v", patch, p)
	}
	s.write("a", "one\nTWO\nthree\nfour\n")
	s.write("new/file", "new\n")
	s.write("TASK.md", "do it")
	s.write("ignored", "x")
	s.chmod("run.sh", 0o644)
	must(t, os.Remove(s.path("dir/b")))
	patch, _, p := s.capture()
	if p.Files != 4 || p.Insertions != 2 || p.Deletions != 2 || int(p.Bytes) != len(patch) {
		t.Fatalf("%+v\n%s", p, patch)
	}
	if strings.Contains(patch, "TASK.md") || strings.Contains(patch, "ignored") {
		t.Fatal(patch)
	}
}

func TestDirtyRun(t *testing.T) {
	r := filled(t)
	r.write("a", "one\ntwo\nthree\nfour\nfive\n")
	r.write("staged", "s\n")
	r.git("add", "staged")
	r.write("untracked/u", "u\n")
	r.write("ignored", "secret")
	must(t, os.Remove(r.path("dir/b")))
	r.chmod("run.sh", 0o644)
	before := fingerprint(t, r.dir)
	b := export(t, r.dir, "")
	unchanged(t, r.dir, before)
	if b.Dirty.Modified != 2 || b.Dirty.Added != 2 || b.Dirty.Deleted != 1 {
		t.Fatalf("%+v", b.Dirty)
	}
	s := enter(t, b)
	if s.read("a") != r.read("a") || s.read("staged") != "s\n" || s.read("untracked/u") != "u\n" {
		t.Fatal("the dirty files are not inside")
	}
	for _, gone := range []string{"dir/b", "ignored"} {
		if _, err := os.Lstat(s.path(gone)); err == nil {
			t.Fatal(gone, "is inside")
		}
	}
	if s.git("rev-parse", "HEAD") != r.git("rev-parse", "HEAD") {
		t.Fatal("HEAD differs")
	}
	s.write("untracked/u", "u2\n")
	patch, _, p := s.capture()
	if p.Files != 1 || !strings.Contains(patch, "untracked/u") {
		t.Fatal(patch)
	}
}
