package secret

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The test program is also the other processes of these tests.
const (
	childVariable = "RAVI_SECRET_TEST_CHILD" // the home that it works in
	nameVariable  = "RAVI_SECRET_TEST_NAME"
	dieVariable   = "RAVI_SECRET_TEST_DIE" // where it kills itself
)

func TestMain(m *testing.M) {
	if home := os.Getenv(childVariable); home != "" {
		if err := child(context.Background(), home); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	flag.Set("rapid.checks", "15") // each step waits for the disk
	os.Exit(m.Run())
}

const (
	processes = 4
	rounds    = 15
)

// child waits for the start, and works in the store that nobody has made yet.
func child(ctx context.Context, home string) error {
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("waiting for the start: %w", err)
	}
	s, err := Open(home)
	if err != nil {
		return err
	}
	die := func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	rename := s.rename
	switch os.Getenv(dieVariable) {
	case "before":
		s.rename = func(string, string) error { die(); return nil }
	case "after":
		s.rename = func(from, to string) error {
			err := rename(from, to)
			die()
			return err
		}
	}
	for i := range rounds {
		name := fmt.Sprintf("%s_%d", os.Getenv(nameVariable), i)
		if _, err := s.Set(ctx, name, Change{Hosts: []string{"a.example"}, Source: stored("the value of " + name)}); err != nil {
			return err
		}
		if _, err := s.Set(ctx, "SHARED", Change{Hosts: []string{"a.example"}, Source: stored("the value that all set")}); err != nil {
			return err
		}
		if i%3 == 0 {
			if err := s.Remove(ctx, name); err != nil {
				return err
			}
		}
		if _, err := s.Get(ctx, "SHARED"); err != nil {
			return err
		}
	}
	return nil
}

func startChild(t *testing.T, home string, env ...string) (cmd *exec.Cmd, goOn func(), out *strings.Builder) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childVariable+"="+home), env...)
	out = &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, func() { io.WriteString(in, "\n") }, out
}

// Many processes make the key and the store, and change it at once; nothing fails and nothing is lost.
func TestProcessesSideBySide(t *testing.T) {
	s, _ := newStore(t)
	var begin, wait []func()
	for i := range processes {
		cmd, goOn, out := startChild(t, s.home, fmt.Sprintf("%s=P%d", nameVariable, i))
		begin = append(begin, goOn)
		wait = append(wait, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for _, f := range append(begin, wait...) {
		f()
	}
	known, err := s.Known(t.Context())
	if err != nil || len(known) != processes*rounds*2/3+1 {
		t.Fatalf("%d secrets, %v", len(known), err)
	}
	for name, value := range known {
		if name != "SHARED" && value.Reveal() != "the value of "+name {
			t.Errorf("%s has another's value", name)
		}
	}
}

// Who is killed in the middle of a write leaves the store as it was before or as it is after, and nobody waits for it.
func TestKilledWhileWriting(t *testing.T) {
	for where, want := range map[string]int{"before": 1, "after": 2} {
		t.Run(where, func(t *testing.T) {
			s, _ := newStore(t)
			set(t, s, "FIRST", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
			cmd, goOn, out := startChild(t, s.home, nameVariable+"=P", dieVariable+"="+where)
			goOn()
			if exit, ok := cmd.Wait().(*exec.ExitError); !ok || !exit.Sys().(syscall.WaitStatus).Signaled() {
				t.Fatalf("the child was not killed: %s", out)
			}
			list, err := s.List(t.Context())
			if err != nil || len(list) != want {
				t.Fatalf("got %d, %v", len(list), err)
			}
			set(t, s, "NEXT", Change{Hosts: []string{"a.example"}, Source: stored("value of the next")})
			if left := files(t, s.home); len(left) != 2 {
				t.Errorf("something was left behind: %d files", len(left))
			}
			if known, err := s.Known(t.Context()); err != nil || known["FIRST"].Reveal() != canary || len(known) != want+1 {
				t.Errorf("got %d, %v", len(known), err)
			}
		})
	}
}

// The same at moments that nobody chose, from the making of the key on.
func TestKilledAnywhere(t *testing.T) {
	s, _ := newStore(t)
	for i := range 12 {
		cmd, goOn, out := startChild(t, s.home, fmt.Sprintf("%s=P%d", nameVariable, i))
		seen := 0
		if list, err := s.List(t.Context()); err != nil {
			t.Fatal(err)
		} else {
			seen = len(list)
		}
		goOn()
		for range 1 + i*3 { // as many looks as it gets time for
			list, err := s.List(t.Context())
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			if len(list) > seen+1 {
				break
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		if strings.Contains(out.String(), "rror") {
			t.Errorf("round %d: %s", i, out)
		}
		known, err := s.Known(t.Context())
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		for name, value := range known {
			if name != "SHARED" && value.Reveal() != "the value of "+name {
				t.Errorf("%s has another's value", name)
			}
		}
	}
}
