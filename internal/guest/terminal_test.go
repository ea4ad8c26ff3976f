package guest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/process"
)

func TestTerminal(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	size := func(cols, rows uint32) *process.PTY {
		return &process.PTY{Size: &process.PTY_Size{Cols: cols, Rows: rows}}
	}
	for _, tc := range []struct {
		name string
		pty  *process.PTY
		want string
	}{
		{"usual", size(132, 43), "43 132\r\n"},
		{"none", size(0, 0), "0 0\r\n"},
		{"missing", &process.PTY{}, "0 0\r\n"},
		{"largest", size(65535, 65535), "65535 65535\r\n"},
		{"too large", size(1<<20, 1), "1 65535\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			msg := sh("stty size")
			msg.Pty = tc.pty
			r := g.start(t, ctx, msg)
			if end := r.wait(); end.GetExitCode() != 0 || r.pty.String() != tc.want {
				t.Errorf("%v, %q", end, r.pty.String())
			}
		})
	}
	t.Run("resized", func(t *testing.T) {
		msg := sh(`trap 'stty size' WINCH; echo ready; while :; do sleep 0.01; done`)
		msg.Pty = size(80, 24)
		r := g.start(t, ctx, msg)
		r.until(&r.pty, "ready\r\n")
		for i := uint32(1); i <= 20; i++ {
			if _, err := g.Process.Update(ctx, connect.NewRequest(&process.UpdateRequest{Process: byPid(r.pid), Pty: size(100+i, 50)})); err != nil {
				t.Fatal(err)
			}
			r.until(&r.pty, fmt.Sprintf("50 %d\r\n", 100+i))
		}
		_, err := g.Process.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: byPid(r.pid)}))
		wantCode(t, err, connect.CodeFailedPrecondition)
		_, err = g.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: stdinOf("x")}))
		wantCode(t, err, connect.CodeFailedPrecondition)
		if _, err := g.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: ptyOf("\x03")})); err != nil {
			t.Fatal(err)
		}
		if end := r.wait(); end.GetSignal() != int32(unix.SIGINT) && end.GetExitCode() != 130 {
			t.Errorf("end is %v", end)
		}
	})
	t.Run("exact", func(t *testing.T) {
		msg := sh(`stty raw; seq -w 1 100000`)
		msg.Pty = size(80, 24)
		r := g.start(t, ctx, msg)
		r.wait()
		if r.pty.Len() != 700000 || !strings.HasSuffix(r.pty.String(), "099999\n100000\n") {
			t.Errorf("%d bytes", r.pty.Len())
		}
	})
	t.Run("owned by the user", func(t *testing.T) {
		msg := sh(`tty; stat -c %u $(tty)`)
		msg.Pty = size(80, 24)
		r := g.start(t, ctx, msg, "Authorization", basic("user"))
		r.wait()
		if !strings.HasSuffix(r.pty.String(), "\r\n1000\r\n") {
			t.Errorf("output is %q", r.pty.String())
		}
	})
}

// TestTerminalWaitsForNothing: what is asked of a terminal's master is never waited for in the kernel, where it could not
// be given up; also not once the terminal was given a size.
func TestTerminalWaitsForNothing(t *testing.T) {
	master, slave, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	if err := setSize(master, &process.PTY_Size{Cols: 80, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	returns := func(t *testing.T, what func()) {
		t.Helper()
		done := make(chan struct{})
		go func() { what(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			slave.Close() // hangs up, so that it ends
			t.Fatal("it waits")
		}
	}
	t.Run("for what else there is", func(t *testing.T) {
		returns(t, func() {
			if n := available(master, make([]byte, 10)); n != 0 {
				t.Errorf("%d bytes of nothing", n)
			}
		})
	})
	t.Run("for output, after a deadline", func(t *testing.T) {
		if err := master.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		returns(t, func() {
			if _, err := master.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("error is %v", err)
			}
		})
	})
	t.Run("for a program that does not read", func(t *testing.T) {
		settings, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		settings.Lflag &^= unix.ICANON | unix.ECHO // which would drop what is too much
		if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, settings); err != nil {
			t.Fatal(err)
		}
		p := &proc{master: master, exited: make(chan struct{})}
		canceled := make(chan struct{})
		close(canceled)
		returns(t, func() {
			if err := p.writeInput(make([]byte, 1<<20), true, canceled); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("error is %v", err)
			}
		})
	})
}
