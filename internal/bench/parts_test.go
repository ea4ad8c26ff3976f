package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want string // part of the error; empty: none
	}{
		"all":             {Options{Runs: 1}, ""},
		"some":            {Options{Runs: 20, Only: []string{"exec", "storm"}, Beside: []string{"runsc"}}, ""},
		"nobody beside":   {Options{Runs: 20, Beside: []string{}}, ""},
		"no runs":         {Options{Runs: 0}, "0 runs"},
		"too many runs":   {Options{Runs: 10_001}, "10001 runs"},
		"no measure":      {Options{Runs: 1, Only: []string{}}, "no measure"},
		"unknown measure": {Options{Runs: 1, Only: []string{"exec", "speed"}}, `"speed"`},
		"part of another": {Options{Runs: 1, Only: []string{"storm_all"}}, `"storm_all"`},
		"the network":     {Options{Runs: 1, Only: []string{"network", "crowd"}}, ""},
		"no connection":   {Options{Runs: 1, Connects: -1}, "-1 connections"},
		"no download":     {Options{Runs: 1, Download: 20_000}, "20000 MB"},
		"the gateway":     {Options{Runs: 1, Only: []string{"gateway"}}, ""},
		"part of a read":  {Options{Runs: 1, Only: []string{"gw_cpu"}}, `"gw_cpu"`},
		"few records":     {Options{Runs: 1, Records: 9}, "9 runs in the store"},
		"no second":       {Options{Runs: 1, Seconds: -1}, "-1 seconds"},
		"too many kills":  {Options{Runs: 1, Kills: 101}, "101 kills"},
		"a day":           {Options{Runs: 1, Idle: 86_400}, "86400 idle"},
		"unknown program": {Options{Runs: 1, Beside: []string{"lxc"}}, `"lxc"`},
	} {
		t.Run(name, func(t *testing.T) {
			if c.o.Connects == 0 {
				c.o.Connects = 1
			}
			if c.o.Download == 0 {
				c.o.Download = 1
			}
			for _, n := range []*int{&c.o.Records, &c.o.Seconds, &c.o.Kills, &c.o.Idle} {
				if *n == 0 {
					*n = 10
				}
			}
			err := c.o.Validate()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestInTurns(t *testing.T) {
	var calls []string
	failures := map[string]int{}
	err := inTurns(t.Context(), 3, []string{"a", "b", "c"}, func(who string) error {
		calls = append(calls, who)
		if who == "b" && len(calls) > 3 {
			return errors.New("no more")
		}
		return nil
	}, func(who string, _ error) { failures[who]++ })
	if err != nil {
		t.Fatal(err)
	}
	// Each round begins with another one, and b is out once it has failed.
	if want := []string{"a", "b", "c", "b", "c", "a", "c", "a"}; !slices.Equal(calls, want) {
		t.Errorf("got %v, want %v", calls, want)
	}
	if failures["b"] != 1 || len(failures) != 1 {
		t.Errorf("failures: %v", failures)
	}

	ctx, cancel := context.WithCancel(t.Context())
	err = inTurns(ctx, 3, []string{"a"}, func(string) error { cancel(); return errors.New("cut off") }, func(string, error) {
		t.Error("what the end of the context broke is told as a failure")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestParentIn(t *testing.T) {
	for stat, want := range map[string]int{
		"12 (sh) S 7 12 12 0":             7,
		"12 (a) R 99 (b)) S 8 12 12 0":    8,
		"12 (with\nnewline 3 4) S 9 1 1 ": 9,
	} {
		if got, err := parentIn(stat); err != nil || got != want {
			t.Errorf("%q: %d, %v", stat, got, err)
		}
	}
	for _, stat := range []string{"", "12 (sh)", "12 (sh) S", "12 (sh) S x"} {
		if _, err := parentIn(stat); err == nil {
			t.Errorf("%q is no error", stat)
		}
	}
}

// The memory of a process counts what descends from it.
func TestPSSOfATree(t *testing.T) {
	// The inner shell holds 32 MB and is a grandchild of this test.
	cmd := exec.Command("/bin/sh", "-c", `sh -c 'v=$(head -c 32000000 /dev/zero | tr "\0" x); echo ready; read end'; true`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if _, err := io.ReadFull(out, make([]byte, len(word))); err != nil {
		t.Fatal(err)
	}
	mb, err := pssOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if mb < 32 || mb > 500 {
		t.Errorf("%.1f MB", mb)
	}
	if _, err := pssOf(1 << 30); err == nil {
		t.Error("a process that is not there has memory")
	}
}

func TestParseSpawns(t *testing.T) {
	got, err := parseSpawns("0.0015\n2e-3\n", 2)
	if want := []time.Duration{1500 * time.Microsecond, 2 * time.Millisecond}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "0.1", "0.1\n0.2\n0.3", "0.1\nsoon"} {
		if _, err := parseSpawns(text, 2); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
}

func TestFirstByte(t *testing.T) {
	ok := func(script string) error {
		took, err := firstByte(program(t.Context(), "/bin/sh", "-c", script))
		if err == nil && took <= 0 {
			t.Errorf("%s: took %v", script, took)
		}
		return err
	}
	if err := ok("echo ready"); err != nil {
		t.Error(err)
	}
	for script, want := range map[string]string{
		"echo steady":                         errNoWord.Error(),
		"true":                                errNoWord.Error(),
		"echo ready; echo more":               errNoWord.Error(),
		"echo ready; echo broken >&2; exit 3": "broken",
	} {
		if err := ok(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
	}
	if _, err := firstByte(program(t.Context(), "/no/such/program")); err == nil {
		t.Error("a program that is not there has an output")
	}
}

func TestBackground(t *testing.T) {
	shell := func(script string) func(context.Context) *exec.Cmd {
		return func(ctx context.Context) *exec.Cmd { return program(ctx, "/bin/sh", "-c", script) }
	}
	b, err := startBackground(t.Context(), shell("echo ready; exec sleep 86400"))
	if err != nil {
		t.Fatal(err)
	}
	b.close()
	if b.cmd.ProcessState == nil {
		t.Error("it was not ended")
	}
	if _, err := startBackground(t.Context(), shell("echo no room >&2; exit 4")); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := startBackground(ctx, shell("exec sleep 86400")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestImage(t *testing.T) {
	i := image{dir: t.TempDir(), host: []string{"/usr"}}
	if err := os.Mkdir(filepath.Join(i.dir, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/bin", filepath.Join(i.dir, "bin")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := i.tar(&b); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimSuffix(h.Name, "/")] = h.Linkname
	}
	if to, ok := got["bin"]; !ok || to != "usr/bin" || len(got) != 2 {
		t.Errorf("the archive holds %v", got)
	}

	dir := filepath.Join(t.TempDir(), "bundle")
	if err := i.with("/srv/host", "/srv/there").bundle(dir, []string{"/bin/echo", "ready"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.Root.Path != i.dir || !slices.Equal(s.Process.Args, []string{"/bin/echo", "ready"}) ||
		!slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool {
			return m.Destination == "/usr" && m.Source == "/usr" && slices.Contains(m.Options, "ro")
		}) ||
		!slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool {
			return m.Destination == "/srv/there" && m.Source == "/srv/host" && slices.Contains(m.Options, "ro")
		}) {
		t.Errorf("the bundle says %s", text)
	}
}

func TestMakeRepo(t *testing.T) {
	dir := t.TempDir()
	bundle, err := makeRepo(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(dir, "clone")
	if err := git(t.Context(), nil, "clone", "-q", bundle, clone); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(clone, "*", "*", "*.txt"))
	if err != nil || len(files) != repoFiles {
		t.Errorf("%d files, %v", len(files), err)
	}
}

// A run that was killed leaves its directory without a lock; one that goes on holds it.
func TestWorkDirs(t *testing.T) {
	home := t.TempDir()
	mine, err := newWorkDir(home)
	if err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(home, "bench", "run-orphan")
	if err := os.MkdirAll(filepath.Join(orphan, "image"), 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := newWorkDir(home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(orphan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed run left is still there: %v", err)
	}
	if _, err := os.Stat(mine.path); err != nil {
		t.Errorf("a run that goes on lost its directory: %v", err)
	}
	for _, d := range []*workDir{mine, other} {
		if err := d.remove(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(home, "bench")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestMountPoint(t *testing.T) {
	for line, want := range map[string]string{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: "/mnt2",
		`36 35 98:0 / /a\040b\134c\011d rw - tmpfs tmpfs rw`:             "/a b\\c\td",
		`36 35`: "",
	} {
		if got := mountPoint(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
