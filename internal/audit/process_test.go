package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"ravi/internal/store"
)

const (
	rounds  = 20
	writers = 8
)

// ready says so, and waits for the start.
func ready() error {
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

func appendSideBySide(ctx context.Context, home string) error {
	s, err := store.Open(ctx, home)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := ready(); err != nil {
		return err
	}
	for range rounds {
		if err := (Log{Store: s}).Append(ctx, Record{Action: NetworkName, Decision: store.Denied}, Record{Action: NetworkRequest, Decision: store.Allowed}); err != nil {
			return err
		}
	}
	return nil
}

func writeSideBySide(ctx context.Context, home string) error {
	s, err := store.Open(ctx, home)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := ready(); err != nil {
		return err
	}
	w := NewWriter(Log{Store: s})
	errs := make(chan error, writers)
	for range writers {
		go func() {
			for range rounds {
				if err := w.Append(ctx, Record{Caller: Operator, Action: NetworkName, Decision: store.Denied}, Record{Action: NetworkRequest, Decision: store.Allowed}); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers {
		err = errors.Join(err, <-errs)
	}
	return errors.Join(err, w.Close())
}

// Processes that write at once make one chain, and one head.
func TestProcessesSideBySide(t *testing.T) {
	l, home := newLog(t)
	// The first of all rows makes the head. Whoever comes between the two says that there was none, which is true.
	if err := l.Append(t.Context(), Record{Caller: Operator, Action: NetworkName, Decision: store.Allowed}); err != nil {
		t.Fatal(err)
	}
	var begin, wait []func()
	for _, name := range []string{"append", "write", "append", "write"} {
		cmd, said := child(t, name, home)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		begin = append(begin, func() {
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Errorf("%q, %v", line, err)
			}
			fmt.Fprintln(in)
		})
		wait = append(wait, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, said)
			}
		})
	}
	for _, f := range append(begin, wait...) {
		f()
	}
	const want = 1 + 2*2*rounds*(1+writers)
	report, err := l.Verify(t.Context(), nil)
	if err != nil || report.Rows != want || report.Head.Seq != want {
		t.Errorf("%+v, %v; want %d rows, the last one as the head", report, err, want)
	}
}

// writeUntilKilled says which rows it was told are durable.
func writeUntilKilled(ctx context.Context, home string) error {
	s, err := store.Open(ctx, home)
	if err != nil {
		return err
	}
	w := NewWriter(Log{Store: s})
	errs := make(chan error)
	for i := range writers {
		go func() {
			for n := 0; ; n++ {
				object := fmt.Sprintf("%d-%d-%d", os.Getpid(), i, n)
				if err := w.Append(ctx, Record{Caller: Operator, Action: NetworkName, Object: object, Decision: store.Denied}); err != nil {
					errs <- err
					return
				}
				fmt.Println(object)
			}
		}()
	}
	return <-errs
}

// What was acknowledged is there after kill -9 at any moment, and the chain holds.
func TestKilledWriter(t *testing.T) {
	l, home := newLog(t)
	acknowledged := map[string]bool{}
	for round := range 15 {
		cmd, said := child(t, "killed", home)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		read := func() error {
			line, err := lines.ReadString('\n')
			if err == nil { // else it was cut in the middle
				acknowledged[strings.TrimSpace(line)] = true
			}
			return err
		}
		for range 1 + rand.IntN(60) {
			if err := read(); err != nil {
				t.Fatalf("round %d: %v: %s", round, err, said)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			err = read()
		}
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		report, err := l.Verify(t.Context(), nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if behind := report.Last.Seq - report.Head.Seq; behind > writers {
			t.Errorf("round %d: the head is %d rows behind, more than were written at once", round, behind)
		}
	}
	var after int64
	for {
		rows, err := l.List(t.Context(), Filter{After: after})
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			break
		}
		for _, r := range rows {
			delete(acknowledged, r.Object)
			after = r.Seq
		}
	}
	if len(acknowledged) > 0 {
		t.Errorf("%d acknowledged rows are lost: %v", len(acknowledged), acknowledged)
	}
}

// fillDisk has a small disk of its own.
func fillDisk(ctx context.Context, home string) error {
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=3m"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	s, err := store.Open(ctx, home)
	if err != nil {
		return err
	}
	defer s.Close()
	l := Log{Store: s}
	w := NewWriter(l)
	large := Record{Action: NetworkName, Decision: store.Denied, Reason: strings.Repeat("a", 4000)}
	var mu sync.Mutex
	var good int64
	failures := make(chan error, writers)
	for range writers {
		go func() {
			for range 3000 {
				if err := w.Append(ctx, large); err != nil {
					failures <- err
					return
				}
				mu.Lock()
				good++
				mu.Unlock()
			}
			failures <- nil
		}()
	}
	for range writers {
		switch err := <-failures; {
		case err == nil:
			return errors.New("3 MB took 96 MB")
		case !strings.Contains(err.Error(), "cannot write to the audit") || !strings.Contains(err.Error(), "full"):
			return fmt.Errorf("the error does not say why: %w", err)
		}
	}
	report, err := l.Verify(ctx, nil)
	if err != nil {
		return fmt.Errorf("with a full disk: %w", err)
	}
	if report.Rows < good || good == 0 {
		return fmt.Errorf("%d rows were acknowledged, %d are there", good, report.Rows)
	}
	// With room it goes on as if nothing had been.
	if err := syscall.Mount("tmpfs", home, "tmpfs", syscall.MS_REMOUNT, "size=30m"); err != nil {
		return err
	}
	if err := w.Append(ctx, large); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	if err := w.Close(); err != nil {
		return err
	}
	after, err := l.Verify(ctx, nil)
	if err == nil && (after.Rows != report.Rows+1 || after.Head.Seq != after.Rows) {
		err = fmt.Errorf("after it: %+v", after)
	}
	return err
}

func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIP-FEATURE: only root makes a small disk")
	}
	home := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, said := child(t, "full", home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		if strings.Contains(said.String(), "mount: ") {
			t.Skip("SKIP-FEATURE: no mounts here: " + said.String())
		}
		t.Fatalf("%v: %s", err, said)
	}
}
