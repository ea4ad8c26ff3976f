package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test's program plays other processes, too: GUARD_TEST_ROLE says which, GUARD_TEST_SOCKET where.

func roleOf(role, socket string) *exec.Cmd {
	// By this name another user can start it, wherever it lies.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "GUARD_TEST_ROLE="+role, "GUARD_TEST_SOCKET="+socket)
	cmd.Stderr = os.Stderr
	return cmd
}

func asUser(id uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id, NoSetGroups: true}}
}

// begin starts a process that lives no longer than the test.
func begin(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, *bufio.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return in, bufio.NewReader(out)
}

func play(role string) int {
	socket := os.Getenv("GUARD_TEST_SOCKET")
	in := bufio.NewReader(os.Stdin)
	fail := func(err error) int {
		fmt.Println("failed:", err)
		return 1
	}
	switch role {
	case "listen": // when told, and until the input ends
		fmt.Println("ready")
		if _, err := in.ReadString('\n'); err != nil {
			return fail(err)
		}
		_, err := ListenUnix(socket)
		switch {
		case errors.Is(err, ErrInUse):
			fmt.Println("in use")
		case err != nil:
			return fail(err)
		default:
			fmt.Println("won")
		}
		_, _ = io.Copy(io.Discard, in)
	case "plain": // listens without a guard
		l, err := net.Listen("unix", socket)
		if err != nil {
			return fail(err)
		}
		defer l.Close()
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, in)
	case "serve": // says who asks
		l, err := ListenUnix(socket)
		if err != nil {
			return fail(err)
		}
		os.Stdout.WriteString("ready\n")
		if err := New(http.HandlerFunc(who), Options{}).Serve(l); err != nil {
			return fail(err)
		}
	case "ask", "ask plainly": // when told; plainly is without asking who listens
		if _, err := in.ReadString('\n'); err != nil {
			return fail(err)
		}
		how := DialUnix
		if role == "ask plainly" {
			how = func(ctx context.Context, path string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			}
		}
		answer, err := askBy(how, socket)
		if err != nil {
			return fail(err)
		}
		fmt.Println(answer)
	case "ask as two": // with the rights of two users
		if err := syscall.Setresuid(65534, os.Geteuid(), os.Geteuid()); err != nil {
			return fail(err)
		}
		answer, err := ask(socket)
		if err != nil {
			return fail(err)
		}
		fmt.Println(answer)
	case "self when told":
		if _, err := in.ReadString('\n'); err != nil {
			return fail(err)
		}
		if err := SelfIsOperator(); err != nil {
			fmt.Println(err)
			return 0
		}
		fmt.Println("operator")
	case "fork and ask": // leaves it to a child of a session of its own, and ends
		if _, err := in.ReadString('\n'); err != nil {
			return fail(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		fmt.Fprintln(w, "go")
		cmd := roleOf("ask", socket)
		cmd.Stdin, cmd.Stdout, cmd.SysProcAttr = r, os.Stdout, &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return fail(err)
		}
	case "leave a child": // connects, and leaves its connection to a child that asks when told
		c, err := net.Dial("unix", socket)
		if err != nil {
			return fail(err)
		}
		f, err := c.(*net.UnixConn).File()
		if err != nil {
			return fail(err)
		}
		cmd := roleOf("ask on three", socket)
		cmd.Stdin, cmd.Stdout, cmd.ExtraFiles = os.Stdin, os.Stdout, []*os.File{f}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return fail(err)
		}
	case "ask on three":
		if _, err := in.ReadString('\n'); err != nil {
			return fail(err)
		}
		c := os.NewFile(3, "connection")
		if _, err := io.WriteString(c, "GET /who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
			return fail(err)
		}
		b, err := io.ReadAll(c)
		if err != nil {
			return fail(err)
		}
		fmt.Printf("%s\n", b)
	case "connect":
		return playConnect(socket)
	case "reuse":
		return playReuse(socket)
	case "pause":
		_ = unix.Pause() // until it is killed
	default:
		return fail(fmt.Errorf("no role %q", role))
	}
	return 0
}
