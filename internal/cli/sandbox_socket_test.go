package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"ravi/internal/access"
	"ravi/internal/guard"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

// A program's own sandboxes are listed and worked in by way of its debug socket; no record knows them.
func TestDebugSocket(t *testing.T) {
	if err := sandboxtest.UseProgram(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RAVI_HOME", filepath.Join(t.TempDir(), "commands"))
	cfg := sandbox.Default()
	cfg.Backend, cfg.MemoryMiB, cfg.Debug.Enabled = sandbox.BackendGVisor, 512, true
	home := t.TempDir()
	sb, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(home))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	socket := filepath.Join(home, "sandbox", "debug.sock")
	ravi := func(stdin string, args ...string) (stdout, stderr string, exit int) {
		var out, errs bytes.Buffer
		exit = run(append([]string{"sandbox"}, args...), strings.NewReader(stdin), &out, &errs, parts{})
		return out.String(), errs.String(), exit
	}
	if out, errs, exit := ravi("", "ls", "-q", "--socket", socket); out != sb.ID+"\n" || exit != 0 {
		t.Errorf("ls: %q %q %d", out, errs, exit)
	}
	out, _, _ := ravi("", "ls", "--json", "--socket", socket)
	var items []sandboxItem
	if err := json.Unmarshal([]byte(out), &items); err != nil || len(items) != 1 || items[0].Seen != "running" || items[0].Lost || items[0].Limits.MemoryMiB != 512 {
		t.Errorf("ls --json: %s %v", out, err)
	}
	if out, _, _ := ravi("", "ls", "-q"); out != "" {
		t.Errorf("the record knows of %s", out)
	}
	large := strings.Repeat("0123456789abcdef", 20_000)
	for name, c := range map[string]struct {
		stdin, out, errs string
		exit             int
		args             []string
	}{
		"streams and its exit code": {"", "out\n", "err\n", 9, []string{"--", "sh", "-c", "echo out; echo err >&2; exit 9"}},
		"standard input":            {large, large, "", 0, []string{"--", "cat"}},
		"no standard input":         {large, "", "", 0, []string{"--no-stdin", "--", "cat"}},
		"one that reads none of it": {large, "", "", 3, []string{"--", "sh", "-c", "exit 3"}},
		"options":                   {"", "/etc a b root\n", "", 0, []string{"--dir", "/etc", "--env", "A=a b", "--user", "root", "--", "sh", "-c", "echo $PWD $A $(id -un)"}},
		"its time is over":          {"", "", "ended: timeout\n", 124, []string{"--timeout", "50ms", "--", "sleep", "60"}},
		"no such command":           {"", "", "error: /no/such: command not found\nhint: check its name, and PATH\n", 127, []string{"--", "/no/such"}},
		"not executable":            {"", "", "error: /etc/passwd: cannot be executed\nhint: check its mode, and that dir is there\n", 126, []string{"--", "/etc/passwd"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, exit := ravi(c.stdin, append([]string{"exec", sb.ID[:10], "--socket", socket}, c.args...)...)
			if out != c.out || errs != c.errs || exit != c.exit {
				t.Errorf("%.200q %.300q %d", out, errs, exit)
			}
		})
	}
	out, _, exit := ravi("", "exec", sb.ID, "--json", "--socket", socket, "--", "sh", "-c", "head -c 1500000 /dev/zero | tr '\\0' x; exit 4")
	var collected execOutput
	if err := json.Unmarshal([]byte(out), &collected); err != nil || exit != 4 || len(collected.Stdout) != 1<<20 || collected.StdoutBytes != 1500000 || !collected.Truncated || collected.Sandbox != sb.ID {
		t.Errorf("collected: %v %d, %d of %d bytes", err, exit, len(collected.Stdout), collected.StdoutBytes)
	}
	if _, errs, exit := ravi("", "exec", "sbxnothing", "--socket", socket, "--", "true"); exit != 1 || !strings.Contains(errs, "sbxnothing") {
		t.Errorf("an unknown sandbox: %q %d", errs, exit)
	}
	if _, errs, exit := ravi("", "shell", sb.ID, "--socket", socket); exit != 2 || !strings.Contains(errs, "terminal") {
		t.Errorf("a shell without a terminal: %q %d", errs, exit)
	}

	terminal, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	defer terminal.Close() // which ends who still reads from it
	if err := pty.Setsize(tty, &pty.Winsize{Cols: 93, Rows: 19}); err != nil {
		t.Fatal(err)
	}
	over := make(chan int, 1)
	go func() { over <- run([]string{"sandbox", "shell", sb.ID, "--socket", socket}, tty, tty, tty, parts{}) }()
	if _, err := io.WriteString(terminal, "stty size; exit $((40+2))\n"); err != nil {
		t.Fatal(err)
	}
	for screen, buf := "", make([]byte, 4<<10); !strings.Contains(screen, "19 93"); {
		n, err := terminal.Read(buf)
		if err != nil {
			t.Fatalf("on the terminal: %q %v", screen, err)
		}
		screen += string(buf[:n])
	}
	if exit := <-over; exit != 42 {
		t.Errorf("the shell's exit code: %d", exit)
	}

	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"ls", "--socket", socket}, {"exec", sb.ID, "--socket", socket, "--", "true"}} {
		if _, errs, exit := ravi("", args...); exit != 1 || !strings.Contains(errs, "no program serves the debug socket "+socket) || !strings.Contains(errs, "hint: ") {
			t.Errorf("%v without a program: %q %d", args, errs, exit)
		}
	}
}

// socketOf is a debug socket of another program.
func socketOf(t *testing.T, answer http.HandlerFunc) (socket string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := guard.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	server := guard.New(answer, guard.Options{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// What another program answers is not trusted.
func TestDebugSocketLies(t *testing.T) {
	var answer string
	socket := socketOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
	const begun = `{"session": "s", "sandbox": "sbx1"}` + "\n"
	for name, c := range map[string]struct{ command, answer string }{
		"no JSON":                  {"ls", "<html>"},
		"a hostile id":             {"ls", `{"sandboxes": [{"id": "a\u001b[2J", "status": "running"}]}`},
		"no session":               {"exec", `{"exit": 0}` + "\n"},
		"a session that is a path": {"exec", `{"session": "../x", "sandbox": "sbx1"}` + "\n"},
		"nothing":                  {"exec", ""},
		"no end":                   {"exec", begun + `{"stdout": "YQ=="}` + "\n"},
		"half a line":              {"exec", begun + `{"stdout": "YQ`},
		"a line without an end":    {"exec", begun + strings.Repeat("x", socketAnswer+1)},
	} {
		answer = c.answer
		args := []string{"sandbox", c.command, "--socket", socket}
		if c.command == "exec" {
			args = []string{"sandbox", "exec", "sbx1", "--no-stdin", "--socket", socket, "--", "true"}
		}
		var out, errs bytes.Buffer
		exit := run(args, strings.NewReader(""), &out, &errs, parts{})
		if exit == 0 || !strings.Contains(errs.String(), "error: ") || strings.Contains(out.String()+errs.String(), "\x1b[2J") {
			t.Errorf("%s: %q %q %d", name, out.String(), errs.String(), exit)
		}
	}
}

// Who lets go of a shell is told so, whenever that ends then.
func TestLettingGoOfAShell(t *testing.T) {
	socket := socketOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"session": "s", "sandbox": "sbx1"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for range 50 { // the shell may end just then
		terminal, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		shown := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(terminal) // it ends with an error when the other end is closed
			shown <- string(b)
		}()
		if _, err := io.WriteString(terminal, "\x1d\x1d\x1d"); err != nil {
			t.Fatal(err)
		}
		exit := run([]string{"sandbox", "shell", "sbx1", "--socket", socket}, tty, tty, tty, parts{})
		tty.Close()
		if text := <-shown; exit != 130 {
			t.Errorf("exit code %d: %q", exit, text)
		}
		terminal.Close()
	}
}

// A key opens no socket of this machine.
func TestKeysOpenNoSocket(t *testing.T) {
	w := newWorld(t)
	mine, _ := w.boxes()
	me := w.holder("read:*", "write:*")
	w.deny(me, "sandbox.ls", `{"socket": "/x"}`, `"socket"`)
	w.deny(me, "sandbox.exec", `{"sandbox": "`+mine.ID+`", "command": ["true"], "socket": "/x"}`, `"socket"`)
	if _, err := w.call(access.AsOperator(), "sandbox.ls", `{"socket": "/no/such/socket"}`); err == nil || !strings.Contains(err.Error(), "/no/such/socket") {
		t.Errorf("the operator: %v", err)
	}
}
