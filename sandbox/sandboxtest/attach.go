package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"ravi/sandbox"
)

// attach takes hold of a sandbox as another process would, finds its commands
// and reaches its ports.
func (s suite) attach(t *testing.T) {
	r := s.room(t)
	other, err := sandbox.Attach(ctx(t), r.ID, sandbox.WithHome(s.f.Home))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "its backend", other.Backend(), r.Backend())
	equal(t, "its user", other.User(), r.User())
	equal(t, "its workspace", other.Workspace(), r.Workspace())
	if _, err := sandbox.Attach(ctx(t), r.ID, sandbox.WithHome(s.f.Home), sandbox.WithTakeOver(time.Second)); !errors.Is(err, sandbox.ErrOwned) {
		t.Errorf("taking over from an owner that lives: %v", err)
	}
	// As its opener sees it: the folder, the user, and the environment but for what is the caller's own.
	const look = "pwd; id -u; echo $HOME"
	if res, err := other.Exec(ctx(t), sandbox.Cmd{Shell: look}); err != nil {
		t.Error(err)
	} else {
		equal(t, "what a command sees", res.Stdout, r.sh(t, look))
	}

	t.Run("commands", func(t *testing.T) {
		first := newBuffer()
		p, err := r.Start(ctx(t), sandbox.Cmd{Tag: "the tag", Shell: "echo ready; read x; echo got $x; exit 5", Stdin: never(t), Stdout: first})
		if err != nil {
			t.Fatal(err)
		}
		first.waitFor(t, "ready\n")
		list, err := other.Processes(ctx(t))
		if err != nil || len(list) != 1 {
			t.Fatalf("the commands: %+v %v", list, err)
		}
		equal(t, "the command", fmt.Sprint(list[0].PID, list[0].Tag, list[0].User, list[0].TTY, list[0].Args[0]), fmt.Sprint(p.PID(), "the tag", r.User(), false, "/bin/sh"))
		for what, ref := range map[string]sandbox.ProcessRef{"another tag": {Tag: "other"}, "another number": {PID: p.PID() + 100000}} {
			if _, err := other.Reconnect(ctx(t), ref, sandbox.Cmd{}); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, ref := range map[string]sandbox.ProcessRef{"nothing": {}, "two things": {PID: 1, Tag: "x"}, "a negative number": {PID: -1}} {
			if _, err := other.Reconnect(ctx(t), ref, sandbox.Cmd{}); !errors.Is(err, sandbox.ErrBadCommand) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := other.Reconnect(ctx(t), sandbox.ProcessRef{Tag: "the tag"}, sandbox.Cmd{Shell: "true"}); !errors.Is(err, sandbox.ErrBadCommand) {
			t.Errorf("a command to run: %v", err)
		}
		second := newBuffer()
		q, err := other.Reconnect(ctx(t), sandbox.ProcessRef{Tag: "the tag"}, sandbox.Cmd{Stdout: second})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "its number", q.PID(), p.PID())
		if err := q.Write(ctx(t), []byte("it\n")); err != nil {
			t.Fatal(err)
		}
		for who, one := range map[string]*sandbox.Process{"the one who started it": p, "the one who connected": q} {
			if st, err := one.Wait(); err != nil || st.ExitCode != 5 {
				t.Errorf("%s is told %+v %v", who, st, err)
			}
		}
		equal(t, "its output at the first", first.String(), "ready\ngot it\n")
		equal(t, "its output at the second", second.String(), "got it\n")
		// How it ended is remembered.
		if q, err = other.Reconnect(ctx(t), sandbox.ProcessRef{PID: p.PID()}, sandbox.Cmd{}); err != nil {
			t.Fatal(err)
		}
		if st, err := q.Wait(); err != nil || st.ExitCode != 5 {
			t.Errorf("afterwards: %+v %v", st, err)
		}
	})

	// Whoever only looks on does not end what it looks at.
	t.Run("looking on", func(t *testing.T) {
		p, err := r.Start(ctx(t), sandbox.Cmd{Tag: "long", Shell: "read x; exit 6", Stdin: never(t)})
		if err != nil {
			t.Fatal(err)
		}
		why := errors.New("enough seen")
		seen, stop := context.WithCancelCause(ctx(t))
		q, err := other.Reconnect(seen, sandbox.ProcessRef{Tag: "long"}, sandbox.Cmd{})
		if err != nil {
			t.Fatal(err)
		}
		stop(why)
		if _, err := q.Wait(); !errors.Is(err, why) {
			t.Errorf("it is told %v", err)
		}
		if err := p.Write(ctx(t), []byte("\n")); err != nil {
			t.Fatal(err)
		}
		if st, err := p.Wait(); err != nil || st.ExitCode != 6 {
			t.Errorf("the command ended with %+v %v", st, err)
		}
	})

	t.Run("ports", func(t *testing.T) {
		if _, err := other.DialPort(ctx(t), 1); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("a port on which nobody listens: %v", err)
		}
		out := newBuffer()
		if _, err := r.Start(ctx(t), sandbox.Cmd{Stdout: out, Args: []string{"python3", "-c", `import socket
l = socket.create_server(("127.0.0.1", 0)); print(l.getsockname()[1], "ready", flush=True); c, _ = l.accept()
b = b""
while True:
    p = c.recv(1000)
    if not p: break
    b += p
c.sendall(b[::-1]); c.close()`}}); err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "ready\n")
		var port int
		if _, err := fmt.Sscan(out.String(), &port); err != nil {
			t.Fatal(err)
		}
		c, err := other.DialPort(ctx(t), port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, []byte("olleh")) {
			t.Errorf("what came back: %q %v", got, err)
		}
	})
	if err := other.Close(); err != nil {
		t.Errorf("letting go: %v", err)
	}
	equal(t, "what goes on", r.sh(t, "echo on"), "on\n")
}
