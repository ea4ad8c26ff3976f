package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestWait(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second := open(), open()
	if err := Wait(t.Context(), first, syscall.LOCK_EX, time.Millisecond, func() { t.Error("nobody has it, and it waits") }); err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{}) // closed twice, it would panic
	done := make(chan error, 1)
	go func() { done <- Wait(t.Context(), second, syscall.LOCK_EX, time.Millisecond, func() { close(waits) }) }()
	<-waits
	select {
	case err := <-done:
		t.Fatalf("two have it: %v", err)
	default:
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := Wait(ctx, open(), syscall.LOCK_SH, time.Millisecond, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("who gives up: %v", err)
	}
	closed := open()
	closed.Close()
	if err := Wait(t.Context(), closed, syscall.LOCK_EX, time.Millisecond, nil); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no file: %v", err)
	}
}

// A lock is taken at once or not at all: readers beside each other, a writer alone.
func TestTry(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b, c := open(), open(), open()
	for i, step := range []struct {
		f    *os.File
		how  int
		want bool
	}{{a, syscall.LOCK_SH, true}, {b, syscall.LOCK_SH, true}, {c, syscall.LOCK_EX, false}, {b, syscall.LOCK_UN, true}, {c, syscall.LOCK_EX, false},
		{a, syscall.LOCK_UN, true}, {c, syscall.LOCK_EX, true}, {a, syscall.LOCK_SH, false}} {
		if got, err := Try(step.f, step.how); got != step.want || err != nil {
			t.Errorf("step %d: %v, %v", i, got, err)
		}
	}
	a.Close()
	if _, err := Try(a, syscall.LOCK_SH); err == nil {
		t.Error("a file that is closed can be locked")
	}
}
