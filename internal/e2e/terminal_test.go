package e2e

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

const escapes = `\033[31mred\033[0m \033]0;TITLE\007 \033]52;c;ZXZpbA==\007 \033[2J\033[H \033[6n \033[?1049h end\n`

// A terminal gets text and colours, and nothing else that it would obey.
func TestTerminalIsSafe(t *testing.T) {
	w, r := newWorld(t), plain(t)
	r.write("evil\x1b]0;NAME\anot", "x\n")
	r.commit("a name")
	cmd := w.command("sandbox", "run", "--repo", r.dir, "--", "sh", "-c", "printf '"+escapes+"'; printf '"+escapes+"' >&2; echo y >>evil*; exit 3")
	out := onTerminal(t, cmd)
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Fatalf("exit code %d: %q", code, out)
	}
	if n := strings.Count(out, "\x1b[31mred\x1b[0m"); n != 2 {
		t.Errorf("the colours came %d times: %q", n, out)
	}
	for _, evil := range []string{"\x1b]", "\x1b[2J", "\x1b[H", "\x1b[6n", "\x1b[?", "TITLE", "ZXZpbA", "\a"} {
		if strings.Contains(out, evil) {
			t.Errorf("%q reached the terminal: %q", evil, out)
		}
	}
	for dir := range w.runs() {
		if log := read(t, filepath.Join(dir, "logs/stdout.log")); !strings.Contains(log, "\x1b]52;c;ZXZpbA==\a") {
			t.Errorf("the log is not exact: %q", log)
		}
	}
}

// Ctrl-C on the terminal reaches every process of the group; the sandbox outlives it until its patch is out.
func TestTerminalInterrupt(t *testing.T) {
	w, r := newWorld(t), plain(t)
	cmd := w.command("sandbox", "run", "--repo", r.dir, "--", "sh", "-c", "echo done >>a; echo ready; sleep 100")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	must(t, err)
	defer tty.Close()
	var seen bytes.Buffer
	buf := make([]byte, 4096)
	for sent := false; ; {
		n, err := tty.Read(buf)
		seen.Write(buf[:n])
		if !sent && strings.Contains(seen.String(), "ready") {
			sent = true
			if _, err := tty.Write([]byte{3}); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break // the terminal's other end is closed
		}
	}
	_ = cmd.Wait() // the code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Fatalf("exit code %d: %q", code, seen.String())
	}
	for dir := range w.runs() {
		res := &result{t: t, dir: dir}
		k := res.task()
		k.is(t, "canceled", "canceled")
		if !strings.Contains(res.patch(), "+done") {
			t.Errorf("patch %q", res.patch())
		}
		nothingRemains(t, w.home, k.Sandbox)
	}
}

// onTerminal runs the command on a terminal and gives what came there.
func onTerminal(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	must(t, err)
	defer tty.Close()
	var seen bytes.Buffer
	_, _ = io.Copy(&seen, tty) // it ends with an error when the other end is closed
	_ = cmd.Wait()             // the code is looked at
	return seen.String()
}

// An ordinary user gets the same, and is told what is missing.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: becoming another user needs root")
	}
	w, r := newWorld(t), plain(t)
	const uid = 4712
	for _, dir := range []string{w.user, r.dir} {
		must(t, filepath.Walk(dir, func(p string, _ os.FileInfo, err error) error {
			if err == nil {
				err = os.Lchown(p, uid, uid)
			}
			return err
		}))
		must(t, os.Chmod(filepath.Dir(dir), 0o755))
	}
	// A copy where that user can reach it.
	copied := filepath.Join(w.user, "ravi")
	b, err := os.ReadFile(program)
	must(t, err)
	must(t, os.WriteFile(copied, b, 0o755))
	cmd := w.command("sandbox", "run", "--repo", r.dir, "--", "sh", "-c", "id -un; pwd; echo $HOME; echo x >>a; exit 3")
	cmd.Path = copied
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	res := w.finish(cmd).want(3).says("without root")
	if !strings.Contains(res.stdout, "/workspace\n") {
		t.Errorf("inside: %q", res.stdout)
	}
	if !strings.Contains(res.patch(), "+x") {
		t.Errorf("patch %q", res.patch())
	}
	nothingRemains(t, w.home, res.task().Sandbox)
}
