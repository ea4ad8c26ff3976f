package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// box makes a sandbox of the daemon's, and gives its id.
func (w *world) box(args ...string) string {
	w.t.Helper()
	id := strings.TrimSpace(w.ravi(append([]string{"sandbox", "create", "-q"}, args...)...).want(0).stdout)
	if !strings.HasPrefix(id, "sbx") {
		w.t.Fatalf("not an id: %q", id)
	}
	return id
}

// exec runs a command in a sandbox, with nothing to read.
func (w *world) exec(box string, args ...string) *result {
	w.t.Helper()
	return w.ravi(append([]string{"sandbox", "exec", box, "--"}, args...)...)
}

// inspected is what is recorded of a sandbox.
func (w *world) inspected(box string) (b struct {
	Seen, Desired, Reason, CreatedBy string
	Owner                            struct{ PID int }
}) {
	w.t.Helper()
	must(w.t, json.Unmarshal([]byte(w.ravi("sandbox", "inspect", box, "--json").want(0).stdout), &b))
	return b
}

// A sandbox of the daemon's is worked in from other processes: commands, files, ports, a terminal; none of them waits for
// another. It ends with the daemon, and nothing of it is left.
func TestWorkingInASandbox(t *testing.T) {
	w := newWorld(t)
	must(t, os.MkdirAll(filepath.Join(w.user, "ws"), 0o755))
	must(t, os.WriteFile(filepath.Join(w.user, "ws", "f"), []byte("theirs\n"), 0o644))
	w.ravi("config", "set", "gateway.port", "0").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	id := w.box("--name", "try", "--workspace", "ws") // which starts the daemon
	if again := w.ravi("sandbox", "create", "--name", "try").want(1); !strings.Contains(again.stderr, "exists already") {
		t.Errorf("a second of the name: %s", again.stderr)
	}

	t.Run("exec", func(t *testing.T) {
		r := w.exec("try", "sh", "-c", "pwd; id -un; cat f; echo err >&2; exit 3").want(3)
		if r.stdout != "/workspace\nuser\ntheirs\n" || !strings.Contains(r.stderr, "err\n") {
			t.Errorf("%q, %q", r.stdout, r.stderr)
		}
		cmd := w.command("sandbox", "exec", id[:28], "--user", "root", "--dir", "/tmp", "-e", "A=b c", "sh", "-c", "pwd; id -un; echo $A; cat")
		cmd.Stdin = strings.NewReader("in\x00put")
		if r := w.finish(cmd).want(0); r.stdout != "/tmp\nroot\nb c\nin\x00put" {
			t.Errorf("%q", r.stdout)
		}
		w.exec("try", "no-such-command").want(127)
		w.exec("try", "/etc/passwd").want(126)
		w.exec("try", "sh", "-c", "kill -9 $$").want(137)
		w.ravi("sandbox", "exec", "--timeout", "500ms", "try", "--", "sleep", "100").want(124)
		w.ravi("sandbox", "exec", "try").want(2)
		w.ravi("sandbox", "exec", "other", "--", "true").want(1).says("there is no sandbox")
		if help := w.ravi("sandbox", "exec", "try", "--help").want(0); !strings.Contains(help.stdout, "Usage:") {
			t.Errorf("%s", help.stdout)
		}
		var got struct {
			Stdout, Stderr string
			ExitCode       int `json:"exit_code"`
			Truncated      bool
			StdoutBytes    int64 `json:"stdout_bytes"`
		}
		doc := w.ravi("sandbox", "exec", "--json", "try", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo e >&2; exit 4").want(4).stdout
		must(t, json.Unmarshal([]byte(doc), &got))
		if len(got.Stdout) > 1<<20+100 || !got.Truncated || got.StdoutBytes != 3_000_000 || got.Stderr != "e\n" || got.ExitCode != 4 {
			t.Errorf("%d bytes, %v, %d, %q", len(got.Stdout), got.Truncated, got.StdoutBytes, got.Stderr)
		}
	})
	t.Run("a stopped command holds up nobody", func(t *testing.T) {
		stuck := w.command("sandbox", "exec", "try", "--", "sh", "-c", "echo $$; kill -STOP $$")
		out, err := stuck.StdoutPipe()
		must(t, err)
		must(t, stuck.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		must(t, err)
		w.exec("try", "true").want(0)
		w.ravi("sandbox", "stats", "try").want(0)
		if ls := w.ravi("sandbox", "ls").want(0); !strings.Contains(ls.stdout, id) {
			t.Errorf("%s", ls.stdout)
		}
		over := make(chan error, 1)
		go func() { over <- stuck.Wait() }()
		eventually(t, "the end of what was stopped", func() bool {
			w.exec("try", "kill", "-CONT", strings.TrimSpace(line)) // it may have said its number, and not have stopped yet
			select {
			case err = <-over:
				return true
			default:
				return false
			}
		})
		must(t, err)
	})
	t.Run("cp", func(t *testing.T) { copying(t, w) })
	t.Run("port", func(t *testing.T) { forwarding(t, w) })
	t.Run("shell", func(t *testing.T) { shells(t, w) })
	t.Run("pause", func(t *testing.T) {
		w.ravi("sandbox", "pause", "try").want(0)
		w.ravi("sandbox", "pause", "try").want(0)
		if b := w.inspected("try"); b.Seen != "paused" || b.Desired != "paused" {
			t.Errorf("%+v", b)
		}
		w.exec("try", "true").want(1).says("is paused", "ravi sandbox resume")
		if s := w.ravi("sandbox", "stats").want(0); !strings.Contains(s.stdout, "paused") || strings.Contains(s.stdout, "answer") {
			t.Errorf("%s", s.stdout)
		}
		w.ravi("sandbox", "resume", "try").want(0)
		if b := w.inspected("try"); b.Seen != "running" || b.Desired != "running" {
			t.Errorf("%+v", b)
		}
		w.exec("try", "true").want(0)
	})
	short := w.box("--ttl", "1s", "--backend", "host")
	eventually(t, "the end of its time", func() bool { return w.inspected(short).Seen == "ended" })
	if b := w.inspected(short); b.Reason != "timeout" {
		t.Errorf("%+v", b)
	}
	w.exec(short, "true").want(1).says("has ended (timeout)")

	w.ravi("daemon", "stop").want(0)
	if b := w.inspected("try"); b.Seen != "ended" || b.CreatedBy != "" {
		t.Errorf("after the daemon: %+v", b)
	}
	nothingRemains(t, w.home, id)
	nothingRemains(t, w.home, short)
}

func copying(t *testing.T, w *world) {
	src := filepath.Join(w.user, "src")
	must(t, os.MkdirAll(filepath.Join(src, "deep"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "deep", "a b"), []byte("x"), 0o600))
	must(t, os.Symlink("/etc/hostname", filepath.Join(src, "link")))
	must(t, syscall.Mkfifo(filepath.Join(src, "pipe"), 0o600))
	w.ravi("sandbox", "cp", "src", "try:/tmp/new").want(0).says("pipe")
	w.ravi("sandbox", "cp", "-q", "src", "try:/tmp/new").want(0) // into it, by now
	if r := w.exec("try", "sh", "-c", "cd /tmp/new && ./run.sh && readlink link && find . | sort && stat -c %U run.sh").want(0); r.stdout !=
		"ran\n/etc/hostname\n.\n./deep\n./deep/a b\n./link\n./run.sh\n./src\n./src/deep\n./src/deep/a b\n./src/link\n./src/run.sh\nuser\n" {
		t.Errorf("%q", r.stdout)
	}
	w.ravi("sandbox", "cp", "-q", "src/run.sh", "try:.").want(0)
	if b := read(t, filepath.Join(w.user, "ws", "run.sh")); !strings.Contains(b, "echo ran") {
		t.Errorf("%q", b)
	}
	// Out: a link that lies at the target, or on the way, is not followed.
	precious := filepath.Join(w.user, "precious")
	must(t, os.WriteFile(precious, []byte("mine"), 0o600))
	must(t, os.Symlink(precious, filepath.Join(w.user, "out.sh")))
	w.ravi("sandbox", "cp", "try:/tmp/new/run.sh", "out.sh").want(0)
	info, err := os.Lstat(filepath.Join(w.user, "out.sh"))
	must(t, err)
	if read(t, precious) != "mine" || info.Mode() != 0o755 {
		t.Errorf("a link was followed: %q, %v", read(t, precious), info.Mode())
	}
	must(t, os.MkdirAll(filepath.Join(w.user, "elsewhere"), 0o755))
	must(t, os.MkdirAll(filepath.Join(w.user, "into", "new"), 0o755))
	must(t, os.Symlink("../../elsewhere", filepath.Join(w.user, "into", "new", "deep")))
	w.ravi("sandbox", "cp", "try:/tmp/new", "into").want(1)
	if left, err := os.ReadDir(filepath.Join(w.user, "elsewhere")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	must(t, os.RemoveAll(filepath.Join(w.user, "into", "new")))
	must(t, os.Symlink("../elsewhere", filepath.Join(w.user, "into", "new")))
	w.ravi("sandbox", "cp", "try:/tmp/new", "into/new/.").want(0) // the link is the user's own word
	w.ravi("sandbox", "cp", "try:/tmp/new/.", "fresh").want(0)
	if read(t, filepath.Join(w.user, "fresh", "deep", "a b")) != "x" {
		t.Error("what is in a folder was not copied")
	}
	// Streams.
	cmd := w.command("sandbox", "cp", "-", "try:/tmp/one")
	cmd.Stdin = strings.NewReader("\x00one\n")
	w.finish(cmd).want(0)
	if r := w.ravi("sandbox", "cp", "try:/tmp/one", "-").want(0); r.stdout != "\x00one\n" {
		t.Errorf("%q", r.stdout)
	}
	w.ravi("sandbox", "cp", "try:/tmp/none", ".").want(1).says("does not exist")
	w.ravi("sandbox", "cp", "a", "b").want(2)
	w.ravi("sandbox", "cp", "try:a", "try:b").want(2)
	w.ravi("sandbox", "cp", "try:/", ".").want(2).says("has no name")
	// A file of nothing but holes is as large as it says.
	w.exec("try", "truncate", "-s", "3G", "/tmp/new/holes").want(0)
	w.ravi("sandbox", "cp", "--max", "1", "try:/tmp/new", "large").want(1).says("more than is to be copied")
	w.exec("try", "rm", "/tmp/new/holes").want(0)
}

func forwarding(t *testing.T, w *world) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("SKIP-FEATURE: there is no python3")
	}
	const echo = `import socket
s = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
while True:
    c, _ = s.accept()
    data = b""
    while True:
        b = c.recv(65536)
        if not b: break
        data += b
    c.sendall(data[::-1]); c.close()
`
	server := w.command("sandbox", "exec", "-n", "try", "--", "/usr/bin/python3", "-c", echo)
	up, err := server.StdoutPipe()
	must(t, err)
	must(t, server.Start())
	defer func() { must(t, server.Process.Signal(syscall.SIGTERM)); _ = server.Wait() }() // its code is the signal's
	if line, err := bufio.NewReader(up).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for _, bad := range []string{"0.0.0.0:0", "example.com:80", "8000", "10.0.0.1:1", "localhost:0", "[::]:0"} {
		w.ravi("sandbox", "port", "try", "8000", "--listen", bad).want(2)
	}
	port := w.command("sandbox", "port", "try", "8000")
	out, err := port.StdoutPipe()
	must(t, err)
	must(t, port.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	address := strings.TrimSpace(line)
	if !strings.HasPrefix(address, "127.0.0.1:") {
		t.Fatalf("it listens at %q", address)
	}
	for range 3 {
		c, err := net.Dial("tcp", address)
		must(t, err)
		_, err = io.WriteString(c, "abc")
		must(t, err)
		must(t, c.(*net.TCPConn).CloseWrite())
		if b, err := io.ReadAll(c); err != nil || string(b) != "cba" {
			t.Errorf("%q, %v", b, err)
		}
		c.Close()
	}
	must(t, port.Process.Signal(syscall.SIGINT))
	if err := port.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

func shells(t *testing.T, w *world) {
	w.ravi("sandbox", "shell", "try").want(2).says("needs a terminal")
	begin := func(args ...string) (*exec.Cmd, *os.File, *term.State) {
		cmd := w.command(append([]string{"sandbox", "shell", "try"}, args...)...)
		cmd.Env = append(cmd.Env, "TERM=xterm")
		ptmx, tty, err := pty.Open()
		must(t, err)
		t.Cleanup(func() { ptmx.Close(); tty.Close() })
		must(t, pty.Setsize(ptmx, &pty.Winsize{Rows: 33, Cols: 99}))
		before, err := term.GetState(int(tty.Fd()))
		must(t, err)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		must(t, cmd.Start())
		t.Cleanup(func() {
			if after, err := term.GetState(int(tty.Fd())); err != nil || *after != *before {
				t.Errorf("the terminal is not what it was: %v", err)
			}
		})
		return cmd, ptmx, before
	}
	// until reads what is on the screen until words stand there. The terminal's file knows no deadlines.
	until := func(f *os.File, words string) {
		var seen bytes.Buffer
		end := time.After(4 * time.Minute)
		for !strings.Contains(seen.String(), words) {
			buf, n, over := make([]byte, 4096), 0, make(chan error, 1)
			go func() {
				var err error
				n, err = f.Read(buf)
				over <- err
			}()
			var err error
			select {
			case err = <-over:
				seen.Write(buf[:n])
			case <-end:
				err = os.ErrDeadlineExceeded
			}
			if err != nil {
				t.Fatalf("no %q on the screen: %v\n%q", words, err, seen.String())
			}
		}
	}
	// The new size gets there in its own time: what is typed may be faster.
	cmd, screen, _ := begin("--", "sh", "-c", `stty size; while [ "$(stty size)" = "33 99" ]; do sleep 0.05; done; stty size; read x; cat; exit 5`)
	until(screen, "33 99")
	must(t, pty.Setsize(screen, &pty.Winsize{Rows: 20, Cols: 60}))
	must(t, cmd.Process.Signal(syscall.SIGWINCH))
	until(screen, "20 60")
	_, err := io.WriteString(screen, "\rtyped\r\x04")
	must(t, err)
	until(screen, "typed\r\ntyped")
	_ = cmd.Wait() // the code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("exit code %d", code)
	}
	// A signal, and the way out of one that does not answer.
	cmd, screen, _ = begin("--", "sh", "-c", "echo rea''dy; sleep 1000")
	until(screen, "ready")
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code == 0 || code == -1 {
		t.Errorf("exit code %d after a signal", code)
	}
	cmd, screen, _ = begin("--", "sh", "-c", "stty raw; echo rea''dy; kill -STOP $$")
	until(screen, "ready")
	_, err = io.WriteString(screen, "\x1d\x1d\x1d")
	must(t, err)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d after letting go", code)
	}
}

// A daemon that is killed loses nothing: the next takes its sandboxes over, with what they have; stopped with
// --keep-sandboxes it leaves them as well. A key makes what its profile lists.
func TestSandboxesOutliveTheirDaemon(t *testing.T) {
	w := newWorld(t)
	w.ravi("config", "set", "gateway.port", "0").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	id := w.box("--name", "kept", "--allow-net", "example.com")
	w.ravi("sandbox", "exec", "-n", "kept", "--", "sh", "-c", "echo before >/tmp/f").want(0)
	first := w.inspected(id).Owner.PID
	for _, end := range []string{"killed", "stopped"} {
		if end == "killed" {
			w.endDaemon()
		} else {
			w.ravi("daemon", "stop", "--keep-sandboxes").want(0)
		}
		w.exec(id, "cat", "/tmp/f").want(0) // whoever owns it
		w.ravi("daemon", "start").want(0)
		eventually(t, "the sandbox to be the next daemon's", func() bool { return w.inspected(id).Owner.PID == w.daemonPID() })
		if b := w.inspected(id); b.Owner.PID == first || b.Seen != "running" {
			t.Errorf("%s: %+v", end, b)
		}
		if r := w.exec("kept", "cat", "/tmp/f").want(0); r.stdout != "before\n" {
			t.Errorf("%s: %q", end, r.stdout)
		}
		// Its network is watched by the new owner.
		w.exec("kept", "curl", "-sm120", "http://"+end+".example.org/")
		eventually(t, "the refusal in the audit", func() bool {
			return strings.Contains(w.ravi("audit", "tail", "--json").want(0).stdout, end+".example.org")
		})
	}

	keyed := w.keyed(w.issue("--allow", "write:sandbox", "--allow", "read:sandbox"))
	keyed.ravi("sandbox", "create", "--backend", "host").want(1).says("the backend host")
	keyed.ravi("sandbox", "create", "--workspace", w.home).want(1).says("the volume")
	made := strings.TrimSpace(keyed.ravi("sandbox", "create").want(0).stdout)
	if r := keyed.ravi("sandbox", "exec", made, "--", "sh", "-c", "echo inside; exit 7").want(7); !strings.Contains(r.stdout, "inside") {
		t.Errorf("%q", r.stdout)
	}
	if ls := keyed.ravi("sandbox", "inspect", made, "--json").want(0); strings.Contains(ls.stdout, w.home) {
		t.Errorf("%s", ls.stdout)
	}
	keyed.ravi("sandbox", "kill", made).want(0)
	nothingRemains(t, w.home, made)
	w.ravi("sandbox", "kill", "kept").want(0)
	nothingRemains(t, w.home, id)
	eventually(t, "the daemon to notice", func() bool {
		return !strings.Contains(w.ravi("daemon", "status", "--json").want(0).stdout, id)
	})
}
