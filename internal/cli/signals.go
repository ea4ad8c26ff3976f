package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// interruption is the signal that asked the program to end.
type interruption struct{ signal syscall.Signal }

func (i interruption) Error() string { return "interrupted by " + i.signal.String() }

// exit is the code that a shell gives to a program ended by the signal.
func (i interruption) exit() int { return 128 + int(i.signal) }

// interruptible gives a context that the first signal cancels, so that what runs can end cleanly. The second ends the
// program at once; what it leaves is ended by the keepers, and by the next sweep.
func interruptible(parent context.Context, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A reader that goes away is an error of the write; it must not end the program in the middle of a run. Ignoring the
	// signal would be inherited by what is started, so it is caught.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case s := <-signals:
				why := interruption{s.(syscall.Signal)}
				if n > 0 {
					os.Exit(why.exit())
				}
				cancel(why)
				if why.signal == syscall.SIGINT {
					fmt.Fprintln(stderr, "\nending; press Ctrl-C once more to stop at once")
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		signal.Stop(pipe)
		close(done)
		cancel(nil)
	}
}
