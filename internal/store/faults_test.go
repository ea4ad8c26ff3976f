package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func contains(err error, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return false
		}
	}
	return true
}

const (
	fullVariable   = "RAVI_STORE_TEST_FULL"
	authorVariable = "RAVI_STORE_TEST_AUTHOR"
	manyRows       = 1000
)

// writeMany is a process that writes while another does.
func writeMany(ctx context.Context, s *Store, author string) error {
	for i := range manyRows {
		if _, err := s.AppendMessage(ctx, Message{SessionID: "sescommon", Role: RoleUser, Author: author, Text: fmt.Sprint(i)}); err != nil {
			return err
		}
	}
	return nil
}

// Two processes write at once: nothing is lost, nobody is told that the database is locked.
func TestTwoWriters(t *testing.T) {
	home, ctx := t.TempDir(), t.Context()
	s, err := Open(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	agent, err := s.InsertAgent(ctx, Agent{Name: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.InsertSession(ctx, Session{ID: "sescommon", AgentID: agent.ID}); err != nil {
		t.Fatal(err)
	}
	var wait []func()
	for _, author := range []string{"a", "b"} {
		cmd, goOn, out := startChild(t, home, authorVariable+"="+author)
		wait = append(wait, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
		goOn()
	}
	for _, w := range wait {
		w()
	}
	next := map[string]int{}
	var last int64
	for {
		page, err := s.Messages(ctx, "sescommon", MessageFilter{After: last})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			if m.Seq != last+1 || m.Text != fmt.Sprint(next[m.Author]) {
				t.Fatalf("after %d comes %d, %s of %s, who is at %d", last, m.Seq, m.Text, m.Author, next[m.Author])
			}
			last, next[m.Author] = m.Seq, next[m.Author]+1
		}
	}
	if next["a"] != manyRows || next["b"] != manyRows {
		t.Errorf("written: %v", next)
	}
	eventsOf(t, s, EventSessionMessage, 2*manyRows)
}

// fillDisk is a process in a mount namespace of its own, whose home is a small disk.
func fillDisk(ctx context.Context, home string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := syscall.Mount("none", home, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	s, err := Open(ctx, home)
	if err != nil {
		return err
	}
	agent, err := s.InsertAgent(ctx, Agent{Name: "ada"})
	if err != nil {
		return err
	}
	if _, err := s.InsertSession(ctx, Session{ID: "sescommon", AgentID: agent.ID}); err != nil {
		return err
	}
	filler := filepath.Join(home, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); err != nil {
		return err
	}
	written := int64(0)
	for err == nil && written < 1000 {
		_, err = s.AppendMessage(ctx, Message{SessionID: "sescommon", Role: RoleUser, Text: strings.Repeat("x", 100<<10)})
		if err == nil {
			written++
		}
	}
	if !errors.Is(err, ErrDiskFull) || !contains(err, "the disk is full") {
		return fmt.Errorf("after %d rows: %w", written, err)
	}
	if err := s.Backup(ctx, filepath.Join(home, "backup")); !errors.Is(err, ErrDiskFull) {
		return fmt.Errorf("a backup on the full disk: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(home, "backup")); err == nil {
		return errors.New("half a backup stays")
	}
	whole := func(s *Store, when string) error {
		if err := s.Check(ctx); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		n, err := s.CountMessages(ctx, "sescommon")
		if err != nil || n != written {
			return fmt.Errorf("%s: there are %d rows, %w, and %d were acknowledged", when, n, err, written)
		}
		events, err := number(ctx, s.db, `SELECT count(*) FROM events WHERE kind = 'session.message'`)
		if err != nil || events != written {
			return fmt.Errorf("%s: there are %d events, %w", when, events, err)
		}
		return nil
	}
	if err := whole(s, "while it is full"); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, err = Open(ctx, home); err != nil {
		return fmt.Errorf("opening it again: %w", err)
	}
	defer s.Close()
	if err := whole(s, "opened again"); err != nil {
		return err
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	if _, err := s.AppendMessage(ctx, Message{SessionID: "sescommon", Role: RoleUser, Text: "room again"}); err != nil {
		return err
	}
	written++
	return whole(s, "with room again")
}

// The disk is full in the middle of a write: the error says so, and what was acknowledged is there.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIP-FEATURE: only root mounts a small disk")
	}
	cmd, goOn, out := startChildWith(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, t.TempDir(), fullVariable+"=1")
	if cmd == nil {
		t.Skip("SKIP-FEATURE: no mount namespaces here")
	}
	goOn()
	if err := cmd.Wait(); err != nil {
		if strings.HasPrefix(out.String(), "mount namespace: ") {
			t.Skipf("SKIP-FEATURE: %s", out)
		}
		t.Errorf("%v: %s", err, out)
	}
}
