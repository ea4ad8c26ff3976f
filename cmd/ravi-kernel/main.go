// Command ravi-kernel is gVisor, and the maker of gVisor sandboxes: which of them,
// its name says. Ravi starts it; see package box.
//
// It is a program of its own so that each of the several processes of a sandbox
// carries gVisor and nothing else, and ravi's command line carries none of it.
package main

import (
	"fmt"
	"os"

	"ravi/internal/backend/gvisor/box"
)

func main() {
	box.Dispatch()
	fmt.Fprintln(os.Stderr, "ravi-kernel: this program is started by ravi; see ravi --help")
	os.Exit(1)
}
