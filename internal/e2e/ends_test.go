package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// How a command ends is told as it was: by itself, by a signal, or not started at all.
func TestEnds(t *testing.T) {
	w, r := newWorld(t), plain(t)
	for name, c := range map[string]struct {
		command        []string
		code           int
		status, reason string
		signal         int
	}{
		"plain 137":           {[]string{"sh", "-c", "exit 137"}, 137, "failed", "", 0},
		"plain 255":           {[]string{"sh", "-c", "exit 255"}, 255, "failed", "", 0},
		"plain 124":           {[]string{"sh", "-c", "exit 124"}, 124, "failed", "", 0},
		"killed":              {[]string{"sh", "-c", "kill -9 $$"}, 137, "failed", "signal", 9},
		"segmentation fault":  {[]string{"sh", "-c", "kill -SEGV $$"}, 139, "failed", "signal", 11},
		"terminated":          {[]string{"sh", "-c", "kill -TERM $$"}, 143, "failed", "signal", 15},
		"not found":           {[]string{"no-such-program"}, 127, "failed", "", 0},
		"no such path":        {[]string{"./no/such"}, 127, "failed", "", 0},
		"not executable":      {[]string{"./a"}, 126, "failed", "", 0},
		"a folder":            {[]string{"./dir"}, 126, "failed", "", 0},
		"not found by a name": {[]string{"--help"}, 127, "failed", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			res := w.run(r, append([]string{"--"}, c.command...)...).want(c.code)
			k := res.task()
			k.is(t, c.status, c.reason)
			if k.ExitCode == nil || *k.ExitCode != c.code || k.Signal != c.signal {
				t.Errorf("exit code %v, signal %d", k.ExitCode, k.Signal)
			}
			res.patch()
			if (c.code == 126 || c.code == 127) && !strings.Contains(res.stderr, c.command[0]) {
				t.Errorf("stderr does not name it: %s", res.stderr)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	w, r := newWorld(t), plain(t)
	script := "echo before; echo done >>a; trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000; echo never"
	var res *result
	for _, bound := range []string{"6s", "40s", "4m"} { // until it has come as far as that before its time is over
		if res = w.run(r, "--timeout", bound, "--", "sh", "-c", script).want(124); res.stdout != "" && strings.Contains(res.patch(), "+done") {
			break
		}
	}
	k := res.task()
	k.is(t, "timeout", "timeout")
	if k.ExitCode != nil {
		t.Errorf("the command gave no exit code, task.json says %d", *k.ExitCode)
	}
	if res.stdout != "before\n" || !strings.Contains(res.patch(), "+done") {
		t.Errorf("stdout %q, patch %q", res.stdout, res.patch())
	}
	nothingRemains(t, w.home, k.Sandbox)
}

func TestOutOfMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: limits on memory need root")
	}
	w, r := newWorld(t), plain(t)
	for name, script := range map[string]string{
		"one process": `echo done >>a; sync; exec tail /dev/zero`,
		"many":        `echo done >>a; for i in 1 2 3 4 5 6; do tail /dev/zero & done; wait; sleep 1; exit 7`,
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			res := w.run(r, "--memory", "256", "--timeout", "10m", "--", "sh", "-c", script)
			k := res.task()
			if name == "many" && res.code == 7 {
				res.patch()
				return // the agent ended them one by one, and the command went on
			}
			res.want(137).says("256 MiB", "--memory")
			k.is(t, "oom", "oom")
			if k.Patch == nil || !k.Patch.Applies || !strings.Contains(res.file("changes.patch"), "+done") {
				t.Errorf("patch %+v: %s", k.Patch, k.Error)
			}
		})
	}
}

// started is a run on its way.
type started struct {
	w       *world
	cmd     *exec.Cmd
	dir     string
	sandbox string
	lines   chan string // of stdout
	stderr  *strings.Builder
	ended   bool
}

// start starts a run; the returned value's dir is known, and its sandbox once task.json or the record names it.
func (w *world) start(r *repo, args ...string) *started {
	w.t.Helper()
	s := &started{w: w, cmd: w.command(append([]string{"sandbox", "run", "--repo", r.dir}, args...)...), lines: make(chan string, 100), stderr: &strings.Builder{}}
	before := w.runs()
	out, err := s.cmd.StdoutPipe()
	must(w.t, err)
	s.cmd.Stderr = s.stderr
	must(w.t, s.cmd.Start())
	w.t.Cleanup(func() {
		if !s.ended {
			_ = s.cmd.Process.Kill() // it may have ended by itself
			_ = s.cmd.Wait()
		}
	})
	go func() {
		defer close(s.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			s.lines <- sc.Text()
		}
	}()
	eventually(w.t, "the run's folder", func() bool {
		for dir := range w.runs() {
			if !before[dir] {
				s.dir = dir
			}
		}
		return s.dir != ""
	})
	return s
}

var sandboxID = regexp.MustCompile(`"id":"(sbx[^"]+)"`)

// id waits for the sandbox's folder, which may have gone again, or for word of it.
func (s *started) id() string {
	s.w.t.Helper()
	eventually(s.w.t, "a sandbox", func() bool {
		found, _ := filepath.Glob(filepath.Join(s.w.home, "sandboxes", "sbx*")) // the pattern is well-formed
		if len(found) == 1 {
			s.sandbox = filepath.Base(found[0])
		} else if told := sandboxID.FindStringSubmatch(s.events()); told != nil {
			s.sandbox = told[1]
		}
		return s.sandbox != ""
	})
	return s.sandbox
}

// until waits for a line of the command's output.
func (s *started) until(line string) {
	s.w.t.Helper()
	timeout := time.After(4 * time.Minute)
	for {
		select {
		case got, ok := <-s.lines:
			if !ok {
				_ = s.cmd.Wait()
				s.ended = true
				s.w.t.Fatalf("the run ended before it said %q: %s", line, s.stderr)
			}
			if got == line {
				return
			}
		case <-timeout:
			s.w.t.Fatalf("the run did not say %q in time", line)
		}
	}
}

func (s *started) wait() *result {
	s.w.t.Helper()
	var rest []string
	for l := range s.lines {
		rest = append(rest, l)
	}
	_ = s.cmd.Wait() // the code is looked at
	s.ended = true
	return &result{t: s.w.t, code: s.cmd.ProcessState.ExitCode(), stdout: strings.Join(rest, "\n"), stderr: s.stderr.String(), dir: s.dir}
}

func TestInterrupt(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			w, r := newWorld(t), plain(t)
			s := w.start(r, "--", "sh", "-c", "trap '' INT TERM; echo done >>a; echo ready; sleep 100; echo never")
			id := s.id()
			s.until("ready")
			must(t, s.cmd.Process.Signal(sig))
			res := s.wait().want(130)
			k := res.task()
			k.is(t, "canceled", "canceled")
			if k.ExitCode != nil || !strings.Contains(res.patch(), "+done") {
				t.Errorf("exit code %v, patch %q", k.ExitCode, res.patch())
			}
			nothingRemains(t, w.home, id)
			if got := w.ravi("sandbox", "prune").want(0); !strings.Contains(got.stdout, "nothing was left behind") {
				t.Errorf("prune: %q", got.stdout)
			}
		})
	}
	t.Run("while the sandbox starts", func(t *testing.T) {
		w, r := newWorld(t), plain(t)
		s := w.start(r, "--", "sleep", "100")
		id := s.id()
		must(t, s.cmd.Process.Signal(syscall.SIGINT))
		res := s.wait().want(130)
		res.task().is(t, "canceled", "canceled")
		nothingRemains(t, w.home, id)
	})
	t.Run("twice", func(t *testing.T) {
		for try, late := 0, true; late; try++ {
			if try == 5 {
				t.Fatal("the patch was there each time before the second one could be sent")
			}
			w, r := newWorld(t), plain(t)
			s := w.start(r, "--", "sh", "-c", "head -c 300000000 /dev/urandom >big; echo ready; sleep 1000")
			id := s.id()
			s.until("ready")
			must(t, s.cmd.Process.Signal(syscall.SIGINT))
			s.untilStep("command") // the answer to the first
			late = strings.Contains(s.events(), `"step":"patch"`)
			must(t, s.cmd.Process.Signal(syscall.SIGINT)) // while the patch of 300 MB is made
			s.wait().want(130)
			nothingRemains(t, w.home, id)
		}
	})
}

func (s *started) events() string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "events.jsonl")) // it may not be there yet
	return string(b)
}

// The sandbox's kernel is killed from outside.
func TestKernelKilled(t *testing.T) {
	w, r := newWorld(t), plain(t)
	w.env = append(w.env, "RAVI_SAVE_EVERY=200ms")
	s := w.start(r, "--", "sh", "-c", "echo done >>a; echo ready; sleep 100")
	id := s.id()
	s.until("ready")
	eventually(t, "a saved patch", func() bool { return strings.Contains(s.events(), `"event":"saved"`) })
	kernels := processesOf(id, "runsc-sandbox")
	if len(kernels) != 1 {
		t.Fatalf("the sandbox's kernels: %v of %q", kernels, remains(w.home, id))
	}
	must(t, syscall.Kill(kernels[0], syscall.SIGKILL))
	res := s.wait().want(125)
	k := res.task()
	k.is(t, "error", "sandbox_died")
	if k.ExitCode != nil || k.Patch == nil || !k.Patch.Partial || !k.Patch.Applies || !strings.Contains(res.file("changes.patch"), "+done") {
		t.Errorf("exit code %v, patch %+v", k.ExitCode, k.Patch)
	}
	res.says("patch: it is what was saved before")
	nothingRemains(t, w.home, id)
}

// The keeper is killed from outside.
func TestKeeperKilled(t *testing.T) {
	w, r := newWorld(t), plain(t)
	s := w.start(r, "--", "sh", "-c", "echo done >>a; echo ready; sleep 100")
	id := s.id()
	s.until("ready")
	var box struct{ Keeper struct{ PID int } }
	must(t, json.Unmarshal([]byte(w.ravi("sandbox", "inspect", id, "--json").want(0).stdout), &box))
	must(t, syscall.Kill(box.Keeper.PID, syscall.SIGKILL))
	res := s.wait().want(125)
	if k := res.task(); k.Status != "error" || k.Patch != nil || k.Error == "" {
		t.Errorf("task.json says %+v", k)
	}
	nothingRemains(t, w.home, id)
}

// ravi is killed at each step. Nothing stays, and the record is put right by the sweep.
func TestKilled(t *testing.T) {
	slow := "head -c 200000000 /dev/urandom >big; echo done >>a; echo ready"
	for name, c := range map[string]struct {
		command string
		moment  func(s *started)
	}{
		"create":  {"sleep 100", func(s *started) {}},
		"clone":   {"sleep 100", func(s *started) { s.untilStep("create") }},
		"command": {"echo ready; sleep 100", func(s *started) { s.until("ready") }},
		"patch":   {slow, func(s *started) { s.until("ready"); s.untilStep("command") }},
		"close":   {"true", func(s *started) { s.untilStep("prove") }},
	} {
		t.Run(name, func(t *testing.T) {
			var w *world
			var s *started
			var id string
			for try := 0; ; try++ {
				w = newWorld(t)
				s = w.start(plain(t), "--", "sh", "-c", c.command)
				id = s.id()
				c.moment(s)
				must(t, s.cmd.Process.Kill())
				code := s.wait().code
				// What is near its end may get there first.
				if over := strings.Contains(s.events(), `"event":"ended"`); code == -1 && !over {
					break
				} else if try == 20 {
					t.Fatalf("it ended before it was killed: %d", code)
				}
			}
			// The folder of one that was killed before it had a keeper is the sweep's.
			eventually(t, "the end of all processes, mounts and groups", func() bool {
				left := remains(w.home, id)
				return len(left) == 0 || len(left) == 1 && left[0] == filepath.Join(w.home, "sandboxes", id)
			})
			got := w.ravi("sandbox", "prune").want(0)
			if !strings.Contains(got.stdout, id) && !strings.Contains(got.stdout, "nothing") {
				t.Errorf("prune: %q", got.stdout)
			}
			nothingRemains(t, w.home, id)
			if got := w.ravi("sandbox", "ls", "-q").want(0); got.stdout != "" {
				t.Errorf("still listed: %q", got.stdout)
			}
			res := &result{t: t, dir: s.dir}
			k := res.task()
			k.is(t, "error", "owner_gone")
			if k.Ended == nil || k.Error == "" {
				t.Errorf("task.json says %+v", k)
			}
			for name := range files(t, s.dir) {
				if strings.HasPrefix(name, "work-") || strings.HasSuffix(name, ".tmp") {
					t.Errorf("left in the run's folder: %s", name)
				}
			}
			if again := w.ravi("sandbox", "prune").want(0); !strings.Contains(again.stdout, "nothing was left behind") {
				t.Errorf("prune once more: %q", again.stdout)
			}
		})
	}
}

// untilStep waits for the end of a step.
func (s *started) untilStep(step string) {
	s.w.t.Helper()
	eventually(s.w.t, "the end of the step "+step, func() bool { return strings.Contains(s.events(), `"step":"`+step+`"`) })
}
