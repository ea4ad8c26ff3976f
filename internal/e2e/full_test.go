package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// What a command leaves lying in .git does not hinder the patch.
func TestUglyEnds(t *testing.T) {
	w, r := newWorld(t), plain(t)
	res := w.run(r, "--", "sh", "-c", "echo 1 >>a; touch .git/index.lock .git/HEAD.lock; exit 3").want(3)
	if p := res.task().Patch; p.Files != 1 || !strings.Contains(res.patch(), "+1") {
		t.Errorf("patch %+v", p)
	}
	res = w.run(r, "--", "sh", "-c", "echo 1 >>a; rm -rf .git; exit 3").want(3)
	if p := res.task().Patch; p.Files != 1 || !strings.Contains(res.patch(), "+1") {
		t.Errorf("without .git: patch %+v", p)
	}
	for _, bound := range []string{"6s", "40s", "4m"} { // until it has written something before its time is over
		res = w.run(r, "--timeout", bound, "--", "sh", "-c", "for i in $(seq 3000); do echo $i >f$i; done; while :; do git add -A; git rm -rq --cached .; done").want(124)
		if p := res.task().Patch; p == nil || p.Files > 0 {
			break
		}
	}
	if p := res.task().Patch; p == nil || p.Files == 0 || !p.Applies {
		t.Errorf("in the middle of git add: patch %+v", p)
	}
}

// A large binary file and very many small ones come out whole, and Ravi itself stays small.
func TestBigPatches(t *testing.T) {
	if os.Getenv("RAVI_TEST_LARGE") == "" {
		t.Skip("SKIP-LARGE: it writes gigabytes and takes some ten minutes; set RAVI_TEST_LARGE=1")
	}
	for name, c := range map[string]struct {
		script string
		files  int
	}{
		"300 MB binary":  {"head -c 300000000 /dev/urandom >big; sha256sum big", 1},
		"many and 90 MB": {"head -c 90000000 /dev/urandom >big; mkdir d; i=0; while [ $i -lt 500 ]; do mkdir d/$i; (cd d/$i; seq 100 | split -l1 -a3 -); i=$((i+1)); done; sha256sum big", 50_001},
		"beyond a patch": {"head -c 700000000 /dev/urandom >huge; echo", 0},
		"too many files": {"mkdir d; i=0; while [ $i -lt 210 ]; do mkdir d/$i; (cd d/$i; seq 500 | split -l1 -a3 -); i=$((i+1)); done", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := newWorld(t), plain(t)
			cmd := w.command("sandbox", "run", "-q", "--repo", r.dir, "--", "sh", "-c", c.script)
			res := w.finish(cmd)
			if most := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss; most > 400<<10 {
				t.Errorf("ravi took %d MB of memory", most>>10)
			}
			if c.files == 0 {
				res.want(125).says("too big")
				if k := res.task(); k.Status != "error" || k.ExitCode == nil || *k.ExitCode != 0 || k.Patch != nil {
					t.Errorf("task.json says %+v", k)
				}
				if name == "beyond a patch" {
					res.says("huge") // the largest paths are named
				}
				return
			}
			res.want(0)
			if p := res.task().Patch; p.Files != c.files || !p.Applies {
				t.Fatalf("patch of %d files: %s", p.Files, res.task().Error)
			}
			clone := r.clone()
			clone.git("apply", filepath.Join(res.dir, "changes.patch"))
			sum, err := exec.Command("sha256sum", clone.path("big")).Output()
			must(t, err)
			if strings.Fields(string(sum))[0] != strings.Fields(res.stdout)[0] {
				t.Error("the file that came out is another")
			}
		})
	}
}

// A full disk inside is the command's trouble alone.
func TestFullOverlay(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes a gigabyte")
	}
	w, r := newWorld(t), plain(t)
	res := w.run(r, "--disk", "1", "--", "sh", "-c", "echo done >>a; head -c 2000000000 /dev/zero >/var/tmp/fill; echo status $?; rm -f /var/tmp/fill.none").want(0).says("No space left")
	if !strings.Contains(res.stdout, "status 1") {
		t.Errorf("the command saw %q", res.stdout)
	}
	if k := res.task(); k.Patch == nil || !k.Patch.Applies || k.Patch.Files != 1 {
		t.Errorf("patch %+v: %s", k.Patch, k.Error)
	}
}

// A full disk outside is told as such, and kills nothing but the run.
func TestFullHome(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: mounting needs root")
	}
	w, r := newWorld(t), plain(t)
	must(t, os.MkdirAll(w.home, 0o700))
	// The small file system is in a mount namespace of its own, and goes with it.
	out := filepath.Join(w.user, "out")
	script := `mount --make-rprivate / && mount -t tmpfs -o size=60m,mode=700 none "$1" && shift && "$@"; c=$?; cp -r "$RAVI_HOME/runs" ` + out + `; exit $c`
	inner := w.command("sandbox", "run", "--repo", r.dir, "--", "sh", "-c", "head -c 80000000 /dev/urandom >big; echo x >>a")
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, "sh", w.home, inner.Path}, inner.Args[1:]...)...)
	cmd.Env, cmd.Dir = inner.Env, inner.Dir
	res := w.finish(cmd).want(125).says("error: ")
	if !strings.Contains(res.stderr, "no space left") && !strings.Contains(res.stderr, "disk full") {
		t.Errorf("it is not told what is full: %s", res.stderr)
	}
	if left, _ := filepath.Glob(out + "/*/events.jsonl"); len(left) != 1 {
		t.Errorf("what was gathered is not there: %q", left)
	}
}

func TestUnusableHome(t *testing.T) {
	w, r := newWorld(t), plain(t)
	must(t, os.WriteFile(w.user+"/file", nil, 0o600))
	for _, home := range []string{w.user + "/file", w.user + "/file/below", "/proc/ravi", "relative"} {
		t.Run(strings.ReplaceAll(home, "/", "_"), func(t *testing.T) {
			w := *w
			w.t, w.home = t, home
			res := w.run(r, "--", "true")
			if home == "relative" && res.code == 0 {
				return // it is made where the user stands
			}
			if res.code != 125 && res.code != 1 && res.code != 2 {
				t.Errorf("exit code %d: %s", res.code, res.stderr)
			}
			if !strings.Contains(res.stderr, filepath.Base(strings.TrimSuffix(home, "/below"))) || !strings.HasPrefix(res.stderr, "error: ") {
				t.Errorf("stderr: %s", res.stderr)
			}
		})
	}
}

// A home folder that cannot be written is no hindrance when RAVI_HOME is elsewhere.
func TestReadOnlyHome(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: mounting needs root")
	}
	w, r := newWorld(t), plain(t)
	w.home = realpath(t, t.TempDir())
	script := `mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"`
	inner := w.command("sandbox", "run", "--repo", r.dir, "--", "sh", "-c", "echo x >>a; touch ~/x && echo home "+strconv.Itoa(1))
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, "sh", w.user, inner.Path}, inner.Args[1:]...)...)
	cmd.Env, cmd.Dir = inner.Env, inner.Dir
	res := w.finish(cmd).want(0)
	if res.stdout != fmt.Sprintln("home 1") || res.task().Patch.Files != 1 {
		t.Errorf("stdout %q, patch %+v", res.stdout, res.task().Patch)
	}
}
