// Command ravi-gateway is both processes of a sandbox's network; its first
// argument says which. Ravi's keeper starts it; see package network.
package main

import (
	"fmt"
	"os"
	"strconv"

	"ravi/internal/network/parts"
)

func main() {
	// It returns only with an error.
	fmt.Fprintln(os.Stderr, "ravi-gateway:", run(os.Args[1:]))
	os.Exit(1)
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("this program is started by ravi; see ravi --help")
	}
	uid, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	switch args[0] {
	case "gateway":
		return parts.Gateway(uint32(uid))
	case "dial":
		return parts.Dialer(uint32(uid))
	default:
		return fmt.Errorf("unknown part %q", args[0])
	}
}
