// Command ravi-keeper holds the wires of one sandbox and ends it with its
// owner. Ravi starts it; see package keeper.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"ravi/internal/backend/host/maker"
	"ravi/internal/keeper"
)

func init() {
	// The supervisor's children are tied to the thread that starts them.
	runtime.LockOSThread()
}

func main() {
	err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "ravi-keeper:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "supervise":
		return keeper.Supervise(os.NewFile(3, "control"))
	case len(args) == 3 && args[0] == "relay":
		uid, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return err
		}
		gid, err := strconv.ParseUint(args[2], 10, 32)
		if err != nil {
			return err
		}
		return keeper.Relay(uint32(uid), uint32(gid))
	case len(args) == 1 && args[0] == maker.Mode:
		return maker.Run()
	default:
		return fmt.Errorf("this program is started by ravi; see ravi --help")
	}
}
