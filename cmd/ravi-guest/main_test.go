package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/guestapi/ravi"
	"ravi/internal/link"
)

// build makes the program the way it is shipped, where every user can run it.
func build(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ravi-guest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ravi-guest")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// room is a set of namespaces with a file system that the program, as PID 1
// and root, may change: what it puts into /usr stays in there. Its image has
// a ravi of its own.
const room = `
mount --make-rprivate / &&
mount -t tmpfs tmpfs /run && mkdir -p /run/upper /run/work &&
mount -t overlay -o lowerdir=/usr,upperdir=/run/upper,workdir=/run/work overlay /usr || exit 125
echo 'echo not this one' >/usr/bin/ravi && chmod 755 /usr/bin/ravi || exit 125
exec "$1"
`

// pid1 is the program as PID 1 of a room.
type pid1 struct {
	*guestapi.Client
	link net.Conn
	done chan error
}

// lanesThere is how many lanes it is born with.
const lanesThere = 2

func startPID1(t *testing.T, env ...string) *pid1 {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: namespaces are made by root here")
	}
	path := build(t)
	end, theirs, err := link.New()
	if err != nil {
		t.Fatal(err)
	}
	var fds [2]int
	for i, f := range end.Files() {
		if fds[i], err = unix.Dup(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	ours, err := link.OpenEnd(fds[0], fds[1])
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", room, "room", path)
	cmd.ExtraFiles = theirs.Files()
	for range lanesThere {
		ours, theirs, err := link.NewLane()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs.Files()...)
	}
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), fmt.Sprint(link.EnvLanes, "=", lanesThere)}, env...)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	p := &pid1{Client: guestapi.NewLinkClient(ours), link: ours, done: make(chan error, 1)}
	go func() { p.done <- cmd.Wait() }()
	t.Cleanup(func() {
		ours.Close()
		select {
		case err := <-p.done:
			if err != nil {
				t.Errorf("it ended with %v: %s", err, stderr.String())
			}
		case <-time.After(2 * time.Minute):
			t.Error("it did not end with its link")
			_ = cmd.Process.Kill()
		}
	})
	s, err := p.Guest.Events(testContext(t), connect.NewRequest(&ravi.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() {
		var exit *exec.ExitError
		select {
		case err := <-p.done:
			p.done <- nil
			if errors.As(err, &exit) && exit.ExitCode() == 125 {
				t.Skipf("SKIP-FEATURE: overlay mounts: %s", stderr.String())
			}
		case <-time.After(time.Minute):
		}
		t.Fatalf("no event: %v: %s", s.Err(), stderr.String())
	}
	if ready := s.Msg().GetReady(); ready.GetPid() != 1 {
		t.Fatalf("the first event is %v", s.Msg())
	}
	return p
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// sh runs a script and returns what it wrote, to either output or the
// terminal, and how it ended.
func (p *pid1) sh(t *testing.T, user, script string, pty *process.PTY) (string, *process.ProcessEvent_EndEvent) {
	t.Helper()
	no := false
	req := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Pty: pty, Stdin: &no,
	})
	req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	s, err := p.Process.Start(testContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out strings.Builder
	for s.Receive() {
		ev := s.Msg().GetEvent()
		out.Write(ev.GetData().GetStdout())
		out.Write(ev.GetData().GetStderr())
		out.Write(ev.GetData().GetPty())
		if end := ev.GetEnd(); end != nil {
			return out.String(), end
		}
	}
	t.Fatalf("the stream ended early: %v; %q", s.Err(), out.String())
	return "", nil
}

func TestAsPID1(t *testing.T) {
	p := startPID1(t, "RAVI_MEMORY_LIMIT=68719476736")
	t.Run("a thousand orphans are reaped, and statuses are not mixed up", func(t *testing.T) {
		done := make(chan string, 8)
		for i := range 8 {
			go func() {
				out, end := p.sh(t, "root", fmt.Sprintf(`i=0; while [ $i -lt 125 ]; do (true & true &); i=$((i+1)); done; exit %d`, i+10), nil)
				if end.GetExitCode() != int32(i+10) {
					done <- fmt.Sprintf("end of %d is %v, %q", i, end, out)
					return
				}
				done <- ""
			}()
		}
		for range 8 {
			if msg := <-done; msg != "" {
				t.Error(msg)
			}
		}
		deadline := time.Now().Add(2 * time.Minute)
		for {
			out, _ := p.sh(t, "root", `grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l`, nil)
			if strings.TrimSpace(out) == "0" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("zombies are left: %s", out)
			}
		}
	})
	t.Run("a process has three descriptors", func(t *testing.T) {
		out, _ := p.sh(t, "root", `ls -m /proc/$$/fd; :`, nil) // a pipe would be one of the shell's own, for a moment
		if out != "0, 1, 2\n" {
			t.Errorf("they are %q", out)
		}
	})
	t.Run("users cannot look into the agent", func(t *testing.T) {
		for _, file := range []string{"/proc/1/environ", "/proc/1/mem", "/proc/1/fd/0", "/proc/1/fd/5"} {
			out, end := p.sh(t, "1000", "cat "+file, nil)
			if end.GetExitCode() == 0 || !strings.Contains(out, "ermission denied") && !strings.Contains(out, "No such file") {
				t.Errorf("%s: %q", file, out)
			}
		}
		out, end := p.sh(t, "1000", "ls /proc/1/fd", nil)
		if end.GetExitCode() == 0 {
			t.Errorf("its descriptors are listed: %q", out)
		}
		out, _ = p.sh(t, "root", `echo "limit=$RAVI_MEMORY_LIMIT"`, nil)
		if out != "limit=\n" {
			t.Errorf("the limit is passed on: %q", out)
		}
		if out, _ = p.sh(t, "root", `echo "lanes=$RAVI_LANES"`, nil); out != "lanes=\n" {
			t.Errorf("the lanes are passed on: %q", out)
		}
	})
	t.Run("sudo and su", func(t *testing.T) {
		for _, tc := range []struct{ script, want string }{
			{`sudo id -u`, "0\n"},
			{`sudo -n -E sh -c 'id -u; id -g; echo $KEPT'`, "0\n0\nkept\n"},
			{`sudo -u '#1234' id -u`, "1234\n"},
			{`sudo A=b env | grep ^A=`, "A=b\n"},
			{`echo through | sudo cat`, "through\n"},
			{`sudo sh -c 'exit 7'; echo $?`, "7\n"},
			{`sudo sh -c 'kill -9 $$'; echo $?`, "137\n"},
			{`sudo sudo -u '#1000' id -u`, "1000\n"},
			{`su -c 'id -u; exit 3'; echo $?`, "0\n3\n"},
			{`su - root -c 'id -u; pwd'`, "0\n/root\n"},
			{`sudo no-such-command 2>&1; echo $?`, "sudo: command not found: 'no-such-command'\n127\n"},
			{`sudo -k; echo $?`, "0\n"},
		} {
			out, _ := p.sh(t, "1000", "cd /; KEPT=kept; export KEPT; "+tc.script, nil)
			if out = strings.ReplaceAll(out, "Killed\n", ""); out != tc.want {
				t.Errorf("%s gives %q, want %q", tc.script, out, tc.want)
			}
		}
		out, end := p.sh(t, "1000", `tty; sudo sh -c 'tty; stty size; id -u'`, &process.PTY{Size: &process.PTY_Size{Cols: 77, Rows: 11}})
		lines := strings.Split(out, "\r\n")
		if end.GetExitCode() != 0 || len(lines) < 4 || lines[0] != lines[1] || lines[2] != "11 77" || lines[3] != "0" {
			t.Errorf("on a terminal: %v, %q", end, out)
		}
	})
	t.Run("ravi is the client", func(t *testing.T) {
		for _, tc := range []struct {
			script string
			code   int32
			want   string
		}{
			{`ravi --version`, 0, "ravi dev (the client inside a sandbox)\n"},
			{`/usr/bin/ravi --version`, 0, "ravi dev (the client inside a sandbox)\n"},
			{`cd /usr/local/bin && ./ravi tasks show`, 1, "error: this is ravi inside a sandbox"},
			{`RAVI_CONTEXT_KEY=rctx_0123456789 RAVI_GATEWAY_URL=unix:/run/none.sock RAVI_GATEWAY_WAIT=0 ravi tasks show`, 69, "does not answer: no such file or directory"},
		} {
			for _, user := range []string{"root", "1000"} {
				out, end := p.sh(t, user, tc.script, nil)
				if end.GetExitCode() != tc.code || !strings.Contains(out, tc.want) {
					t.Errorf("%s as %s gives %q and %d", tc.script, user, out, end.GetExitCode())
				}
			}
		}
	})
	t.Run("a killed tree takes what sudo started along", func(t *testing.T) {
		no := false
		tag := "t"
		req := connect.NewRequest(&process.StartRequest{
			Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", `sudo setsid sh -c 'echo up; exec sleep 54321'`}},
			Stdin:   &no, Tag: &tag,
		})
		req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("1000:")))
		s, err := p.Process.Start(testContext(t), req)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for s.Receive() && s.Msg().GetEvent().GetData() == nil {
		}
		if _, err := p.Guest.Kill(testContext(t), connect.NewRequest(&ravi.KillRequest{
			Process: &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}},
		})); err != nil {
			t.Fatal(err)
		}
		if out, _ := p.sh(t, "root", `grep -ls 5432[1] /proc/[0-9]*/cmdline`, nil); out != "" {
			t.Errorf("left: %q", out)
		}
	})
}

// On the host backend the file system is the host's, and nobody may put links into that.
func TestAsPID1OnTheHostsFiles(t *testing.T) {
	p := startPID1(t, "RAVI_SANDBOX=sbx1")
	out, _ := p.sh(t, "root", `exec 2>&1; readlink -f /usr/bin/ravi; ravi; ls -d /run/ravi`, nil)
	if !strings.HasPrefix(out, "/usr/bin/ravi\nnot this one\n") || !strings.Contains(out, "No such file") {
		t.Errorf("its files: %q", out)
	}
}

func TestArguments(t *testing.T) {
	path := build(t)
	for _, tc := range []struct {
		args []string
		env  string
		code int
		want string
	}{
		{[]string{"--version"}, "", 0, "ravi-guest dev"},
		{nil, "", 1, "descriptor 3"},
		{[]string{"extra"}, "", 1, `unexpected argument "extra"`},
		{[]string{"--token", "t"}, "", 1, "--token is for --listen"},
		{[]string{"--listen", "0.0.0.0:0"}, "", 1, "not on loopback"},
		{[]string{"--listen", "127.0.0.1:0"}, "RAVI_MEMORY_LIMIT=much", 1, "RAVI_MEMORY_LIMIT"},
	} {
		cmd := exec.Command(path, tc.args...)
		cmd.Env = append(os.Environ(), tc.env)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != tc.code || !strings.Contains(string(out), tc.want) {
			t.Errorf("%q: %v: %s", tc.args, err, out)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// It is copied into every sandbox that uses sudo, and mapped by each.
	if info.Size() > 12<<20 {
		t.Errorf("the program has %d bytes", info.Size())
	}
}
