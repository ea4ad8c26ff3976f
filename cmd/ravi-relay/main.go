// Command ravi-relay passes on what the guest agent of one sandbox says. Ravi's
// keeper starts it; see package relay.
package main

import (
	"fmt"
	"os"
	"strconv"

	"ravi/internal/relay"
)

func main() {
	// It returns only with an error.
	fmt.Fprintln(os.Stderr, "ravi-relay:", run(os.Args[1:]))
	os.Exit(1)
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("this program is started by ravi; see ravi --help")
	}
	uid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	return relay.Run(uint32(uid), uint32(gid))
}
