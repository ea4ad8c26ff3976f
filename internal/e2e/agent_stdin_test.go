package e2e

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"ravi/internal/modeltest"
)

// typed is what somebody has put into Ravi's standard input, and nobody asked for.
const typed = "typed-for-the-next-program"

// inputs are the standard inputs that Ravi is started with. Each gives a command such an input, and says whether there is
// something in it.
var inputs = map[string]func(*testing.T, *exec.Cmd) (full bool){
	"terminal": func(t *testing.T, cmd *exec.Cmd) bool {
		ours, theirs, err := pty.Open()
		must(t, err)
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		_, err = ours.WriteString(typed + "\n")
		must(t, err)
		cmd.Stdin = theirs
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setctty = true, false, true
		return true
	},
	"closed pipe": func(t *testing.T, cmd *exec.Cmd) bool {
		r, w, err := os.Pipe()
		must(t, err)
		t.Cleanup(func() { r.Close() })
		_, err = w.WriteString(typed + "\n")
		must(t, err)
		must(t, w.Close())
		cmd.Stdin = r
		return true
	},
	"silent pipe": func(t *testing.T, cmd *exec.Cmd) bool {
		r, w, err := os.Pipe()
		must(t, err)
		t.Cleanup(func() { r.Close(); w.Close() })
		cmd.Stdin = r
		return false
	},
	// As a service of systemd has it.
	"/dev/null": func(t *testing.T, cmd *exec.Cmd) bool { return false },
	"closed":    func(t *testing.T, cmd *exec.Cmd) bool { return false },
}

// fed is ravi with a standard input of that name. What is in it afterwards is shown, as the program after Ravi would get it.
func (w *world) fed(t *testing.T, input string, args ...string) *result {
	t.Helper()
	// It ends by itself. One that waits for its input is ended here, and then fails.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	plain := w.command(args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "", program)
	cmd.Dir, cmd.Env = plain.Dir, plain.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	full := inputs[input](t, cmd)
	script := `"$0" "$@"`
	switch {
	case full:
		script += `; code=$?; read -r left && echo "left: $left"; exit $code`
	case input == "closed":
		script += ` <&-`
	}
	cmd.Args = append([]string{"/bin/sh", "-c", script, program}, args...)
	res := w.finish(cmd)
	if want := "left: " + typed + "\n"; full && !strings.HasSuffix(res.stdout, want) {
		t.Errorf("what was typed is gone: %s\n%s", short(res.stdout), short(res.stderr))
	} else if full {
		res.stdout = strings.TrimSuffix(res.stdout, want)
	}
	if ctx.Err() != nil {
		t.Errorf("it did not end: %s\n%s", short(res.stdout), short(res.stderr))
	}
	return res
}

// A run reads nothing of Ravi's own standard input, whatever that is, and never waits for it: a command finds the end of its
// input at once.
func TestInputOfACommand(t *testing.T) {
	w, r := newWorld(t), plain(t)
	for name := range inputs {
		for _, backend := range []string{"gvisor", "host"} {
			t.Run(name+" "+backend, func(t *testing.T) {
				w := *w
				w.t = t
				res := w.fed(t, name, "sandbox", "run", "--backend", backend, "--repo", r.dir, "--", "sh", "-c", `cat; if [ -t 0 ]; then echo terminal; fi; echo over`).want(0)
				if res.stdout != "over\n" {
					t.Errorf("it read %q", res.stdout)
				}
			})
		}
	}
}

// So it is for an agent program, which reads its task there and would read what follows as a part of it.
func TestInputOfAnAgent(t *testing.T) {
	w, r := newWorld(t), plain(t)
	w.withAgent("claude")
	url, model := provider(t, "X-Api-Key", modeltest.Turn{modeltest.Shell("echo hello > hello.txt")}, modeltest.Turn{modeltest.Text("All is done.")})
	w.env = []string{"ANTHROPIC_API_KEY=" + canary, "ANTHROPIC_BASE_URL=" + url}
	agent := []string{"sandbox", "run", "--repo", r.dir, "--agent", "claude"}
	for name := range inputs {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			before := len(model.Requests())
			res := w.fed(t, name, append(agent, "--task", "make hello.txt")...).want(0)
			if !strings.Contains(res.patch(), "+hello") || !strings.Contains(res.stdout, "All is done.") {
				t.Errorf("it did not do its task: %s\n%s", short(res.stdout), res.patch())
			}
			for _, q := range model.Requests()[before:] {
				if q.Has(typed) {
					t.Errorf("the model was told what was typed: %s", short(string(q.Body)))
				}
			}
		})
	}
	t.Run("asked for", func(t *testing.T) {
		w := *w
		w.t = t
		before := len(model.Requests())
		cmd := w.command(append(agent, "--task-file", "-")...)
		cmd.Stdin = strings.NewReader("-p is how this task begins; " + typed)
		w.finish(cmd).want(0)
		told := 0
		for _, q := range model.Requests()[before:] {
			if q.Has("-p is how this task begins; " + typed) {
				told++
			}
		}
		if told == 0 {
			t.Error("the model was not told the task")
		}
	})
}
