package guard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// playReuse is the first process of a process namespace, in which it decides which number the next process gets. It
// listens; one process connects and ends, another gets its number, and is not taken for it: neither when the connection
// was waiting all the time, nor when it had been accepted.
func playReuse(socket string) int {
	fail := func(err error) int {
		fmt.Println("failed:", err)
		return 1
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fail(err)
	}
	l, err := ListenUnix(socket)
	if err != nil {
		return fail(err)
	}
	defer l.Close()
	accept := func() (*Peer, error) {
		c, err := l.inner.Accept()
		if err != nil {
			return nil, err
		}
		return peerOf(c.(*net.UnixConn)), nil
	}
	for _, kind := range []string{"waiting", "accepted"} {
		// A process that connects, and ends when told. This one holds its connection, as a child of it would.
		cmd := roleOf("connect", socket)
		in, err := cmd.StdinPipe()
		if err != nil {
			return fail(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return fail(err)
		}
		if err := cmd.Start(); err != nil {
			return fail(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "connected\n" {
			return fail(fmt.Errorf("%q, %w", line, err))
		}
		var peer *Peer
		if kind == "accepted" {
			if peer, err = accept(); err != nil {
				return fail(err)
			}
			if err := peer.SameWorld(); err != nil {
				return fail(err)
			}
			fmt.Println("first: operator")
		}
		in.Close()
		number := cmd.Process.Pid
		_ = cmd.Wait()
		next, err := withNumber(number)
		if err != nil {
			return fail(err)
		}
		fmt.Println("number is given again")
		if kind == "waiting" {
			if peer, err = accept(); err != nil {
				return fail(err)
			}
		}
		if peer.PID != number {
			return fail(fmt.Errorf("the peer is process %d, not %d", peer.PID, number))
		}
		fmt.Printf("%s: %v\n", kind, peer.SameWorld())
		_ = next.Process.Kill()
		_ = next.Wait()
	}
	fmt.Println("over")
	return 0
}

// withNumber starts a process that has a number of an earlier one.
func withNumber(number int) (*exec.Cmd, error) {
	for range 200 {
		err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(number-1)), 0o644)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EROFS) {
			return nil, fmt.Errorf("SKIP-FEATURE: this kernel does not say which number is next: %w", err)
		}
		if err != nil {
			return nil, err
		}
		cmd := roleOf("pause", "")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		if cmd.Process.Pid == number {
			return cmd, nil
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return nil, errors.New("SKIP-FEATURE: the number was not given again")
}

// playConnect connects, and keeps the connection until the input ends.
func playConnect(socket string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	defer c.Close()
	fmt.Println("connected")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
