package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/mcphost/mcptest"
)

var program string

func TestMain(m *testing.M) {
	program = os.Getenv("RAVI_PROGRAM")
	if program == "" {
		dir, err := os.Getwd()
		for err == nil && dir != "/" {
			if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
				program = filepath.Join(dir, "bin", "ravi")
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	// What tests that are side by side do most is wait: for a runner that is dead to be found so.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("5"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	mcptest.Remove()
	if agentPrograms.home != "" {
		os.RemoveAll(agentPrograms.home)
	}
	os.Exit(code)
}

// world is where one test's program lives: a home of its own, and nothing of the environment that the tests run in.
type world struct {
	t    *testing.T
	home string // RAVI_HOME
	user string // HOME
	env  []string
	at   *host // where it runs; nil: here
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("there is no ravi to test (%v): run make build", err)
	}
	user := realpath(t, t.TempDir())
	return &world{t: t, user: user, home: filepath.Join(user, "ravi-home")}
}

// command is ravi with arguments, not yet started.
func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = w.user
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.user, "RAVI_HOME=" + w.home, "LC_ALL=C.UTF-8", "RAVI_BUS_PORT=0"}, w.env...)
	return cmd
}

// result is what a run of the program gave.
type result struct {
	t              *testing.T
	code           int
	stdout, stderr string
	dir            string // runs/<id>, when there is exactly one that is new
}

// ravi runs the program to its end.
func (w *world) ravi(args ...string) *result {
	w.t.Helper()
	return w.finish(w.command(args...))
}

func (w *world) finish(cmd *exec.Cmd) *result {
	w.t.Helper()
	before := w.runs()
	var out, errs bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &errs
	}
	var err error
	w.at.do(w.t, func() { err = cmd.Run() })
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("starting ravi: %v", err)
	}
	r := &result{t: w.t, code: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
	for dir := range w.runs() {
		if !before[dir] {
			r.dir = dir
		}
	}
	return r
}

func (w *world) runs() map[string]bool {
	found, _ := filepath.Glob(filepath.Join(w.home, "runs", "*")) // the pattern is well-formed
	all := map[string]bool{}
	for _, dir := range found {
		all[dir] = true
	}
	return all
}

// sandboxRun is `ravi sandbox run --repo R` with more arguments; the last ones are often "--" and a command.
func (w *world) run(r *repo, args ...string) *result {
	w.t.Helper()
	return w.ravi(append([]string{"sandbox", "run", "--repo", r.dir}, args...)...)
}

// want ends the test if the program's exit code is another.
func (r *result) want(code int) *result {
	r.t.Helper()
	if r.code != code {
		r.t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, short(r.stdout), short(r.stderr))
	}
	return r
}

func short(s string) string {
	if len(s) > 3000 {
		return s[:1500] + " … " + s[len(s)-1500:]
	}
	return s
}

// says ends the test if stderr lacks one of the words.
func (r *result) says(words ...string) *result {
	r.t.Helper()
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			r.t.Fatalf("stderr does not say %q:\n%s", word, short(r.stderr))
		}
	}
	return r
}

// silent fails if the secret is in anything that the program said or wrote.
func (r *result) silent(secret string) {
	r.t.Helper()
	if strings.Contains(r.stdout+r.stderr, secret) {
		r.t.Errorf("the secret is in the output:\n%s\n%s", r.stdout, r.stderr)
	}
	if r.dir == "" {
		return
	}
	for name, b := range files(r.t, r.dir) {
		if bytes.Contains(b, []byte(secret)) {
			r.t.Errorf("the secret is in %s", name)
		}
	}
}

// file is one of the run's files.
func (r *result) file(name string) string {
	r.t.Helper()
	if r.dir == "" {
		r.t.Fatalf("there is no run's folder\nstderr: %s", short(r.stderr))
	}
	return read(r.t, filepath.Join(r.dir, name))
}

// names is a list that may have been cut.
type names struct {
	Count int      `json:"count"`
	First []string `json:"first"`
}

// task is task.json, spelled out here once more: its names are a promise.
type task struct {
	ID       string   `json:"id"`
	Status   string   `json:"status"`
	ExitCode *int     `json:"exit_code"`
	Signal   int      `json:"signal"`
	Reason   string   `json:"reason"`
	Error    string   `json:"error"`
	Hint     string   `json:"hint"`
	Command  []string `json:"command"`
	Repo     string   `json:"repo"`
	Base     *struct {
		Commit  string `json:"commit"`
		Branch  string `json:"branch"`
		Ref     string `json:"ref"`
		Tree    string `json:"tree"`
		Head    string `json:"head"`
		Format  string `json:"object_format"`
		Shallow bool   `json:"shallow"`
		Empty   bool   `json:"empty"`
		Dirty   struct {
			Modified, Added, Deleted int
			Paths                    names
		} `json:"dirty"`
		LFS        names             `json:"lfs"`
		Filtered   names             `json:"filtered"`
		Submodules names             `json:"submodules"`
		Left       names             `json:"left"`
		Refs       names             `json:"refs_left"`
		Settings   map[string]string `json:"settings"`
	} `json:"base"`
	Timings map[string]int64 `json:"timings"`
	Sandbox string           `json:"sandbox"`
	Backend string           `json:"backend"`
	Image   string           `json:"image"`
	Limits  struct {
		CPUs   float64 `json:"cpus"`
		Memory int64   `json:"memory_mib"`
		Disk   int64   `json:"disk_mib"`
		Pids   int64   `json:"pids"`
	} `json:"limits"`
	Patch *struct {
		Files      int    `json:"files"`
		Insertions int    `json:"insertions"`
		Deletions  int    `json:"deletions"`
		Bytes      int64  `json:"bytes"`
		SHA256     string `json:"sha256"`
		Applies    bool   `json:"applies"`
		Partial    bool   `json:"partial"`
		Paths      []struct {
			Status, Path, From string
			OldMode            string `json:"old_mode"`
			NewMode            string `json:"new_mode"`
			Insertions         int
			Deletions          int
			Binary             bool
		} `json:"paths"`
		Risky   []struct{ Path, Why string } `json:"risky"`
		Secrets []string                     `json:"secrets"`
		LFS     []string                     `json:"lfs"`
	} `json:"patch"`
	Output struct {
		Bytes     int64 `json:"bytes"`
		Truncated bool  `json:"truncated"`
	} `json:"output"`
	Agent  string `json:"agent"`
	Models *struct {
		Requests   int64 `json:"requests"`
		First      int64 `json:"first_ms"`
		Input      int64 `json:"input"`
		Output     int64 `json:"output"`
		CacheRead  int64 `json:"cache_read"`
		CacheWrite int64 `json:"cache_write"`
		MicroUSD   int64 `json:"micro_usd"`
		Priced     bool  `json:"priced"`
	} `json:"models"`
	Answer       string        `json:"answer"`
	Conversation *conversation `json:"conversation"`
	Suggested    []string      `json:"suggested_rules"`
	Applied      []string      `json:"applied"`
	Notes        []string      `json:"notes"`
	Dir          string        `json:"dir"`
	Started      time.Time     `json:"started_at"`
	Ended        *time.Time    `json:"ended_at"`
}

func decodeTask(t *testing.T, doc string) *task {
	t.Helper()
	var got task
	d := json.NewDecoder(strings.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatalf("task.json: %v\n%s", err, short(doc))
	}
	if rest, err := io.ReadAll(io.MultiReader(d.Buffered(), strings.NewReader(""))); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Fatalf("there is more than one document: %q", short(string(rest)))
	}
	return &got
}

func (r *result) task() *task {
	r.t.Helper()
	return decodeTask(r.t, r.file("task.json"))
}

// patch is changes.patch, which must be proven.
func (r *result) patch() string {
	r.t.Helper()
	if k := r.task(); k.Patch == nil || !k.Patch.Applies {
		r.t.Fatalf("the patch is not proven: %+v %s", k.Patch, k.Error)
	}
	return r.file("changes.patch")
}

// status ends the test if the task did not end like this.
func (k *task) is(t *testing.T, status, reason string) {
	t.Helper()
	if k.Status != status || k.Reason != reason {
		t.Errorf("status %q, reason %q; want %q, %q (error: %s)", k.Status, k.Reason, status, reason, k.Error)
	}
}

// repo is a repository made with the real git, under a configuration of the tests' own.
type repo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T, args ...string) *repo {
	t.Helper()
	r := &repo{t: t, dir: realpath(t, t.TempDir())}
	r.git(append([]string{"init", "-q", "-b", "main"}, args...)...)
	return r
}

// plain is a repository of a few files.
func plain(t *testing.T) *repo {
	t.Helper()
	r := newRepo(t)
	r.write("a", "one\ntwo\nthree\n")
	r.write("dir/b", "bee\n")
	r.write("run.sh", "#!/bin/sh\n")
	must(t, os.Chmod(r.path("run.sh"), 0o755))
	r.write(".gitignore", "ignored\nbuild/\n")
	r.commit("first")
	return r
}

func (r *repo) try(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C", "GIT_ALLOW_PROTOCOL=file",
		"GIT_AUTHOR_NAME=Ute", "GIT_AUTHOR_EMAIL=ute@example.org", "GIT_COMMITTER_NAME=Ute", "GIT_COMMITTER_EMAIL=ute@example.org")
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

func (r *repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, short(out))
	}
	return out
}

func (r *repo) commit(msg string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", msg)
	return r.git("rev-parse", "HEAD")
}

func (r *repo) path(name string) string { return r.dir + "/" + name }

func (r *repo) write(name, content string) {
	r.t.Helper()
	must(r.t, os.MkdirAll(filepath.Dir(r.path(name)), 0o755))
	must(r.t, os.WriteFile(r.path(name), []byte(content), 0o644))
}

// clone is a clean clone of what is committed.
func (r *repo) clone() *repo {
	r.t.Helper()
	c := &repo{t: r.t, dir: realpath(r.t, r.t.TempDir())}
	c.git("clone", "-q", "--no-local", r.dir, ".")
	return c
}

// applied is a clean clone with the run's patch applied by the real git; it returns the tree.
func (r *repo) applied(res *result) (*repo, string) {
	r.t.Helper()
	res.patch()
	c := r.clone()
	c.git("apply", "--index", "--whitespace=nowarn", filepath.Join(res.dir, "changes.patch"))
	return c, c.git("write-tree")
}

func (r *repo) read(name string) string { r.t.Helper(); return read(r.t, r.path(name)) }

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return string(b)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func realpath(t *testing.T, p string) string {
	t.Helper()
	p, err := filepath.EvalSymlinks(p)
	must(t, err)
	return p
}

// files are all regular files beneath dir with their content.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	eachFile(t, dir, func(p string, b []byte) { found[strings.TrimPrefix(p, dir+"/")] = b })
	return found
}

// eachFile looks at all regular files beneath dir. What goes while it looks, as files of a daemon and of its bus do, is not
// there.
func eachFile(t *testing.T, dir string, look func(path string, content []byte)) {
	t.Helper()
	_, err := os.Stat(dir)
	must(t, err)
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var b []byte
			if b, err = os.ReadFile(p); err == nil {
				look(p, b)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}))
}

// snapshot is everything beneath dir: kinds, modes, times of change and contents.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%q %v %v", strings.TrimPrefix(p, dir), info.Mode(), info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", content)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %q", target)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// eventually waits until f is true: for what another process does in its own time.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // of a machine that has much else to do
	defer cancel()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("it did not happen in time: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
