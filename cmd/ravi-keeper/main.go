// Command ravi-keeper ends a sandbox with its owner. Ravi starts it; see package
// keeper.
package main

import (
	"fmt"
	"math"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"ravi/internal/backend/host/maker"
	"ravi/internal/keeper"
)

func init() {
	// The supervisor's children are tied to the thread that starts them.
	runtime.LockOSThread()
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "ravi-keeper:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "supervise":
		// What else it was given is held until its end, and for itself alone.
		if err := unix.CloseRange(4, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return err
		}
		return keeper.Supervise(os.NewFile(3, "control"))
	case len(args) == 1 && args[0] == maker.Mode:
		return maker.Run()
	default:
		return fmt.Errorf("this program is started by ravi; see ravi --help")
	}
}
