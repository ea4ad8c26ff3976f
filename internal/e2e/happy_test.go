package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	w, r := newWorld(t), plain(t)
	head := r.git("rev-parse", "HEAD")
	before := snapshot(t, r.dir)
	out := filepath.Join(w.user, "out", "deep")
	res := w.run(r, "--task", "Fix it.\n", "--out", out, "--cpus", "1.5", "--memory", "512", "--disk", "1", "--",
		"sh", "-c", `cat TASK.md; echo out; echo err >&2; echo four >>a; git mv dir/b dir/c; printf 'a\0b' >bin; echo x >ignored; chmod -x run.sh; exit 3`).want(3)
	if snapshot(t, r.dir) != before {
		t.Error("the repository was changed")
	}
	if res.stdout != "Fix it.\nout\n" {
		t.Errorf("stdout %q", res.stdout)
	}
	res.says("err\n", "failed, exit code 3", "4 files, +1 -0, proven", res.dir)

	k := res.task()
	k.is(t, "failed", "")
	if k.ExitCode == nil || *k.ExitCode != 3 || k.Signal != 0 {
		t.Errorf("exit code %v, signal %d", k.ExitCode, k.Signal)
	}
	if k.ID != filepath.Base(res.dir) || !strings.HasPrefix(k.ID, "run") || k.Dir != res.dir || !strings.HasPrefix(k.Sandbox, "sbx") {
		t.Errorf("id %q, sandbox %q, dir %q", k.ID, k.Sandbox, k.Dir)
	}
	if len(k.Command) != 3 || k.Command[0] != "sh" || k.Repo != r.dir {
		t.Errorf("command %q, repo %q", k.Command, k.Repo)
	}
	if b := k.Base; b == nil || b.Commit != head || b.Branch != "refs/heads/main" || b.Tree != r.git("rev-parse", "HEAD^{tree}") || b.Tree != b.Head || b.Dirty.Modified != 0 {
		t.Errorf("base %+v", k.Base)
	}
	if l := k.Limits; k.Backend != "gvisor" || k.Image != "host" || l.CPUs != 1.5 || l.Memory != 512 || l.Disk != 1024 || l.Pids <= 0 {
		t.Errorf("backend %q, image %q, limits %+v", k.Backend, k.Image, k.Limits)
	}
	for _, step := range []string{"export", "create", "clone", "command", "patch", "prove", "close"} {
		if _, ok := k.Timings[step]; !ok {
			t.Errorf("no timing for %s: %v", step, k.Timings)
		}
	}
	patch := res.patch()
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(patch)))
	if p := k.Patch; p.Files != 4 || p.Insertions != 1 || p.Deletions != 0 || p.Bytes != int64(len(patch)) || p.SHA256 != sum || p.Partial || len(p.Paths) != 4 {
		t.Errorf("patch %+v", p)
	}
	if k.Output.Bytes != int64(len("Fix it.\nout\nerr\n")) || k.Output.Truncated {
		t.Errorf("output %+v", k.Output)
	}
	if k.Started.IsZero() || k.Ended == nil || k.Ended.Before(k.Started) {
		t.Errorf("from %v to %v", k.Started, k.Ended)
	}
	for name, want := range map[string]string{"TASK.md": "Fix it.\n", "logs/stdout.log": "Fix it.\nout\n", "logs/stderr.log": "err\n"} {
		if got := res.file(name); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	events(t, res)

	// The real git comes to the same files on a clean clone.
	c, _ := r.applied(res)
	if c.read("a") != "one\ntwo\nthree\nfour\n" || c.read("dir/c") != "bee\n" || c.read("bin") != "a\x00b" {
		t.Error("the patch does something else")
	}
	if got := c.git("ls-files", "-s", "run.sh"); !strings.HasPrefix(got, "100644") {
		t.Errorf("the mode was not changed: %s", got)
	}
	if got := c.git("diff", "--cached", "--name-status", "-M", "HEAD"); strings.Contains(got, "TASK.md") || strings.Contains(got, "ignored") || !strings.Contains(got, "R100") {
		t.Errorf("changes: %s", got)
	}

	// --out is the same folder once more.
	was, copied := files(t, res.dir), files(t, out)
	if len(was) != len(copied) {
		t.Errorf("--out has %d files, the run's folder %d", len(copied), len(was))
	}
	for name, b := range was {
		if string(copied[name]) != string(b) {
			t.Errorf("--out has another %s", name)
		}
	}
	nothingRemains(t, w.home, k.Sandbox)
	if left, _ := filepath.Glob(filepath.Join(res.dir, "*work*")); len(left) > 0 {
		t.Errorf("left in the run's folder: %q", left)
	}
}

// events reads events.jsonl, in which every line is an object with a time and a kind.
func events(t *testing.T, res *result) []string {
	t.Helper()
	var kinds []string
	lines := bufio.NewScanner(strings.NewReader(res.file("events.jsonl")))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Time  time.Time
			Event string
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Time.IsZero() || e.Event == "" {
			t.Errorf("the event %q: %v", lines.Text(), err)
		}
		kinds = append(kinds, e.Event)
	}
	for _, kind := range []string{"started", "step", "ended"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("no event %q in %q", kind, kinds)
		}
	}
	return kinds
}

func TestRunJSON(t *testing.T) {
	w, r := newWorld(t), plain(t)
	res := w.run(r, "--json", "--", "sh", "-c", `echo '{"not": "this"}'; echo also not >&2; printf '\377\033[31m'; echo x >>a`).want(0)
	k := decodeTask(t, res.stdout)
	if k.Status != "succeeded" || k.Patch == nil || !k.Patch.Applies {
		t.Errorf("the document says %+v", k)
	}
	if strings.Contains(res.stderr, "also not") {
		t.Errorf("the command's output is on stderr: %q", res.stderr)
	}
	if got := res.file("logs/stdout.log"); got != "{\"not\": \"this\"}\n\xff\x1b[31m" {
		t.Errorf("the log holds %q", got)
	}
	// A failure of Ravi's is one document as well.
	res = w.ravi("sandbox", "run", "--json", "--repo", w.user+"/none", "--", "true").want(125)
	if k := decodeTask(t, res.stdout); k.Status != "error" || k.ExitCode != nil || !strings.Contains(k.Error, "none") {
		t.Errorf("the document says %+v", k)
	}
}

func TestRunQuiet(t *testing.T) {
	w, r := newWorld(t), plain(t)
	res := w.run(r, "-q", "--", "sh", "-c", "echo out; echo err >&2").want(0)
	if res.stdout != "out\n" || res.stderr != "err\n" {
		t.Errorf("stdout %q, stderr %q", res.stdout, res.stderr)
	}
	if k := res.task(); k.Patch == nil || k.Patch.Files != 0 || k.Patch.Bytes != 0 || !k.Patch.Applies {
		t.Errorf("the patch of nothing: %+v", k.Patch)
	}
}

// The record that is kept can be asked about afterwards.
func TestRunIsRecorded(t *testing.T) {
	w, r := newWorld(t), plain(t)
	res := w.run(r, "--", "sh", "-c", "echo hello").want(0)
	k := res.task()
	if got := w.ravi("sandbox", "logs", k.ID, "--name", "stdout.log", "-q").want(0); got.stdout != "hello\n" {
		t.Errorf("logs: %q", got.stdout)
	}
	w.ravi("sandbox", "inspect", k.Sandbox, "--json").want(0)
	if got := w.ravi("sandbox", "ls", "-q").want(0); got.stdout != "" {
		t.Errorf("it still lives: %q", got.stdout)
	}
	if got := w.ravi("sandbox", "prune").want(0); !strings.Contains(got.stdout, "nothing was left behind") {
		t.Errorf("prune: %q", got.stdout)
	}
}
