package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The test program is also the other processes of these tests.
const childVariable = "RAVI_STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if home := os.Getenv(childVariable); home != "" {
		if err := child(context.Background(), home); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	processes = 8
	rounds    = 25
)

// child waits for the start, opens the database that nobody has made yet, and works in it.
func child(ctx context.Context, home string) error {
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("waiting for the start: %w", err)
	}
	if os.Getenv(fullVariable) != "" {
		return fillDisk(ctx, home)
	}
	s, err := Open(ctx, home)
	if err != nil {
		return err
	}
	defer s.Close()
	if author := os.Getenv(authorVariable); author != "" {
		return writeMany(ctx, s, author)
	}
	if os.Getenv(usingVariable) != "" {
		return useAll(ctx, s)
	}
	if os.Getenv("RAVI_STORE_TEST_DIE") != "" {
		b, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor"})
		if err != nil {
			return err
		}
		fmt.Println(b.ID)
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	counter := 0
	if _, err := s.InsertRun(ctx, Run{ID: "runcounter", ExitCode: &counter}); err != nil && !strings.Contains(err.Error(), "UNIQUE") {
		return err
	}
	for range rounds {
		b, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor"})
		if err != nil {
			return err
		}
		if _, err := s.UpdateRun(ctx, "runcounter", func(r *Run) error { *r.ExitCode++; return nil }); err != nil {
			return err
		}
		if _, err := s.UpdateSandboxState(ctx, b.ID, SeenEnded, "done"); err != nil {
			return err
		}
		if _, err := s.ListSandboxes(ctx, SandboxFilter{Live: true}); err != nil {
			return err
		}
	}
	return nil
}

func startChild(t *testing.T, home string, env ...string) (cmd *exec.Cmd, goOn func(), out *strings.Builder) {
	t.Helper()
	if cmd, goOn, out = startChildWith(t, nil, home, env...); cmd == nil {
		t.Fatal("the child was not started")
	}
	return cmd, goOn, out
}

// startChildWith gives no command where the machine does not allow what is asked for.
func startChildWith(t *testing.T, how *syscall.SysProcAttr, home string, env ...string) (cmd *exec.Cmd, goOn func(), out *strings.Builder) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.SysProcAttr = how
	cmd.Env = append(append(os.Environ(), childVariable+"="+home), env...)
	out = &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		return nil, nil, nil
	} else if err != nil {
		t.Fatal(err)
	}
	return cmd, func() { fmt.Fprintln(in) }, out
}

// Many processes make the database, migrate it and write in it at once; nothing fails and nothing is lost.
func TestProcessesSideBySide(t *testing.T) {
	home := t.TempDir()
	var wait []func()
	var begin []func()
	for range processes {
		cmd, goOn, out := startChild(t, home)
		begin = append(begin, goOn)
		wait = append(wait, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for _, goOn := range begin {
		goOn()
	}
	for _, w := range wait {
		w()
	}
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	run, err := s.Run(t.Context(), "runcounter")
	if err != nil || *run.ExitCode != processes*rounds {
		t.Errorf("counted %v, %v; want %d", run.ExitCode, err, processes*rounds)
	}
	all, err := s.ListSandboxes(t.Context(), SandboxFilter{})
	if err != nil || len(all) != processes*rounds {
		t.Errorf("recorded %d, %v; want %d", len(all), err, processes*rounds)
	}
	for _, b := range all {
		if b.Seen != SeenEnded || b.EndedAt == nil {
			t.Errorf("not ended: %+v", b)
		}
	}
}

func TestRecordSurvivesKill(t *testing.T) {
	home := t.TempDir()
	cmd, goOn, out := startChild(t, home, "RAVI_STORE_TEST_DIE=1")
	goOn()
	err := cmd.Wait()
	if exit, ok := err.(*exec.ExitError); !ok || !exit.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("the child was not killed: %v, %s", err, out)
	}
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Sandbox(t.Context(), strings.TrimSpace(out.String())); err != nil {
		t.Error(err)
	}
}
