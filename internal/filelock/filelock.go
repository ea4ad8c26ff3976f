// Package filelock takes locks on files, and waits for them; they end with the process that holds them. It opens nothing:
// the file is the caller's.
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
		if taken, err := Try(f, how); taken || err != nil {
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

// Try takes the lock on a file if nobody has one that is in the way, and says whether it did.
func Try(f *os.File, how int) (bool, error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}
