// Package filelock waits for locks on files, which end with the process that holds them. It opens nothing: the file is the
// caller's.
package filelock

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// Wait takes the lock on a file, how being syscall.LOCK_EX or LOCK_SH, and looks again each pause while another has it.
// waiting, which may be nil, is called once if it has to wait. The error is the context's, or why there can be no lock.
func Wait(ctx context.Context, f *os.File, how int, pause time.Duration, waiting func()) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
