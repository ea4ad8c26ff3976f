package run

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/gitbox"
	"ravi/internal/redact"
	"ravi/internal/store"
	"ravi/sandbox"
)

// noise is data that git takes for binary and cannot make smaller.
func noise(n int) []byte {
	random := rand.New(rand.NewPCG(5, 6))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func TestSecretsInPatch(t *testing.T) {
	other := "another-value-of-mine"
	before := noise(5000)
	for name, c := range map[string]struct {
		old, new string
		want     []string
	}{
		"nothing":        {"one\n", "two\n", nil},
		"added":          {"one\n", "one\ntoken = " + value + "\n", []string{"TOKEN"}},
		"removed":        {"token = " + value + "\n", "one\n", []string{"TOKEN"}},
		"both":           {"one\n", other + "\n" + value + "\n", []string{"TOKEN", "OTHER"}},
		"hexadecimal":    {"one\n", fmt.Sprintf("%X\n", value), []string{"TOKEN"}},
		"binary":         {"", string(before) + value, []string{"TOKEN"}},
		"binary, clean":  {"", string(before), nil},
		"binary, twice":  {"", "\x00" + other + value + string(before), []string{"TOKEN", "OTHER"}},
		"binary, small":  {"", "\x00" + value, []string{"TOKEN"}},
		"delta":          {string(before), string(before[:2500]) + value + string(before[2500:]), []string{"TOKEN"}},
		"delta, removed": {string(before[:2500]) + value + string(before[2500:]), string(before), []string{"TOKEN"}},
		"delta, clean":   {string(before), string(before[:2500]) + "x" + string(before[2500:]), nil},
		"delta, long":    {string(before), string(before[:2500]) + strings.Repeat("-", 115) + value + string(before[2500:]), []string{"TOKEN"}},
		"looks binary":   {"one\n", "GIT binary patch\nliteral 5\nzzz\nliteral 9\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newRepo(t, t.TempDir())
			must(t, os.WriteFile(filepath.Join(dir, "f"), []byte(c.old), 0o644))
			git(t, dir, "add", "-A")
			git(t, dir, "commit", "-q", "-m", "second")
			must(t, os.WriteFile(filepath.Join(dir, "f"), []byte(c.new), 0o644))
			path := filepath.Join(t.TempDir(), "patch")
			patch := git(t, dir, "diff", "--binary", "--full-index")
			if isDelta := strings.Contains(patch, "\ndelta "); isDelta != strings.HasPrefix(name, "delta") {
				t.Fatalf("a delta: %v\n%s", isDelta, patch)
			}
			must(t, os.WriteFile(path, []byte(patch), 0o600))
			if got, err := secretsIn(t.Context(), redactor(), path); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
			if got, err := secretsIn(t.Context(), nil, path); err != nil || got != nil {
				t.Errorf("without secrets: %q, %v", got, err)
			}
		})
	}
}

// A value that ends the stream, and could be the beginning of another's, is found.
func TestSecretAtTheEnd(t *testing.T) {
	r := redact.New(redact.Pair{Secret: value, Instead: "#", Name: "SHORT"}, redact.Pair{Secret: value + "-and-more", Instead: "#", Name: "LONG"})
	if got, err := found(t.Context(), r, strings.NewReader("x"+value)); err != nil || !slices.Equal(got, []string{"SHORT"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestBrokenBinary(t *testing.T) {
	for _, patch := range []string{
		"literal 5\nzzz\n\n", "literal 5\n", "literal 5\n\n", "literal 5\nHcmV?d00001", "literal 5\nH\"mV?d00001\n\n", "delta 5\nHcmV?d00001\n\n", "literal 5\n" + strings.Repeat("x", 100<<10) + "\n\n",
	} {
		path := filepath.Join(t.TempDir(), "patch")
		must(t, os.WriteFile(path, []byte(patch), 0o600))
		if _, err := secretsIn(t.Context(), redactor(), path); err == nil {
			t.Errorf("%.40q: was read", patch)
		}
	}
	path := filepath.Join(t.TempDir(), "patch")
	must(t, os.WriteFile(path, []byte("text\n"), 0o600))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := secretsIn(ended, redactor(), path); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on: %v", err)
	}
}

func FuzzBinary(f *testing.F) {
	f.Add([]byte("GIT binary patch\nliteral 5\nMcmZQz\n\n"))
	f.Add([]byte("literal 0\nHcmV?d00001\n\ndelta 3\nHcmV?d00001\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bufio.NewReader(bytes.NewReader(b))
		for range 100 {
			data, err := nextBinary(in)
			if data == nil || err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, data, 1<<20)
			_, _ = io.Copy(io.Discard, data.lines)
		}
	})
}

func TestPatchIsHeld(t *testing.T) {
	for name, script := range map[string]string{
		"text":   `echo "x=` + value + `" >>a`,
		"name":   `touch another-value-of-mine`,
		"binary": `{ head -c 3000 /dev/urandom; printf '\0%s' '` + value + `'; } >b`,
	} {
		t.Run(name, func(t *testing.T) {
			o := onHost(t, script)
			o.Apply, o.Out = true, filepath.Join(t.TempDir(), "out")
			o.Decide = func([]gitbox.RiskyPath) error { t.Error("it was asked about"); return nil }
			task, err := Run(t.Context(), o)
			if err == nil || task.Status != store.RunError || task.Reason != "secret" || task.Exit != exitRavi || *task.ExitCode != 0 {
				t.Fatalf("%+v, %v", task, err)
			}
			want := "TOKEN"
			if name == "name" {
				want = "OTHER"
			}
			p := task.Patch
			if p == nil || !slices.Equal(p.Secrets, []string{want}) || p.Files != 1 || !p.Applies || p.Partial {
				t.Errorf("the patch: %+v", p)
			}
			held := filepath.Join(task.Dir, HeldFile)
			if !strings.Contains(task.Error, "it holds the value of "+want) || !strings.Contains(task.Hint, held) {
				t.Errorf("error %q, hint %q", task.Error, task.Hint)
			}
			if st, err := os.Stat(held); err != nil || st.Mode().Perm() != 0o600 || exists(filepath.Join(task.Dir, PatchFile)) {
				t.Errorf("held: %v, %v; there is a patch: %v", st, err, exists(filepath.Join(task.Dir, PatchFile)))
			}
			if !exists(filepath.Join(o.Out, TaskFile)) || exists(filepath.Join(o.Out, HeldFile)) || exists(filepath.Join(o.Out, PatchFile)) {
				t.Errorf("what was copied: %q", holders(t, o.Out, ""))
			}
			if got := git(t, o.Repo, "status", "--porcelain"); got != "" || len(task.Applied) > 0 {
				t.Errorf("it was applied: %s, %q", got, task.Applied)
			}
			for _, v := range []string{value, "another-value-of-mine"} {
				for _, h := range holders(t, task.Dir, v) {
					if h != held && !strings.HasPrefix(h, filepath.Join(task.Dir, "work")) {
						t.Errorf("%s is in %s", v, h)
					}
				}
			}
			if r, err := o.Store.Run(t.Context(), task.ID); err != nil || r.Status != store.RunError || r.Reason != "secret" {
				t.Errorf("the record: %+v, %v", r, err)
			}
		})
	}
}

// A patch that is saved on the way is held back as well; when the value is gone
// in the end, there is a patch, and no other.
func TestPatchIsLetGo(t *testing.T) {
	o := onHost(t, `saved() { n=0; while ! ls "$RUNS"/*/$1 >/dev/null 2>&1; do n=$((n+1)); [ $n -lt 1200 ] || exit 9; sleep 0.1; done; }
		echo two >>a; saved changes.patch
		echo '`+value+`' >b; saved changes.patch.held
		n=0; while [ -e "$RUNS"/*/changes.patch ]; do n=$((n+1)); [ $n -lt 1200 ] || break; sleep 0.1; done # which goes a moment later
		ls "$RUNS"/*; rm b`)
	o.SaveEvery = 100 * time.Millisecond
	o.Env = map[string]string{"RUNS": filepath.Join(o.Home, "runs")}
	var out bytes.Buffer
	o.Stdout = &out
	task, err := Run(t.Context(), o)
	if err != nil || task.Status != store.RunSucceeded || task.Patch == nil || task.Patch.Files != 1 || task.Patch.Secrets != nil {
		t.Fatalf("%+v, %v", task, err)
	}
	if files := strings.Fields(out.String()); slices.Contains(files, PatchFile) || !slices.Contains(files, HeldFile) {
		t.Errorf("when one was held there were %q", files)
	}
	if !exists(filepath.Join(task.Dir, PatchFile)) || exists(filepath.Join(task.Dir, HeldFile)) {
		t.Errorf("in the end: %q", holders(t, task.Dir, ""))
	}
}

// That a patch was held back outweighs how the sandbox ended.
func TestHeldOutweighs(t *testing.T) {
	s := &state{Options: Options{Store: newStore(t, t.TempDir())}, task: &Task{}, dir: &folder{dir: "/runs/run1"}, secrets: []string{"A", "B"}}
	s.outcome(t.Context(), errors.Join(s.held(), &failure{"patch", &sandbox.EndError{Reason: "killed"}}))
	if s.task.Status != store.RunError || s.task.Reason != "secret" || !slices.Equal(s.task.Patch.Secrets, s.secrets) || !strings.Contains(s.task.Hint, "/runs/run1/"+HeldFile) {
		t.Errorf("%+v", s.task)
	}
}

func TestSweepTellsOfHeldPatch(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	dir, err := newFolder(home, "run1", nil)
	must(t, err)
	must(t, dir.writeTask(&Task{ID: "run1", Status: store.RunRunning}))
	dir.close()
	must(t, os.WriteFile(dir.path(HeldFile), []byte("x"), 0o600))
	must(t, Sweeper{Home: home, Store: st}.closeFolder(store.Run{ID: "run1"}))
	if b, err := os.ReadFile(dir.path(TaskFile)); err != nil || !strings.Contains(string(b), HeldFile+" is what was saved before; it holds the value of a secret") {
		t.Errorf("%s, %v", b, err)
	}
}
