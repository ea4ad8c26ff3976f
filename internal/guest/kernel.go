package guest

import (
	"errors"
	"fmt"
	"os"
)

// TuneKernel sets what the sandbox's own kernel does otherwise by default. Where the kernel is the host's it does nothing.
//
// gVisor's recovery by time (RACK) was seen to go on with two small segments every 200 ms, for 20 seconds and for minutes,
// after many of them in a row; recovery by SACK alone was not. The gateway's end of the cable is set alike.
func TuneKernel() error {
	if !inGVisor() {
		return nil
	}
	f, err := os.OpenFile("/proc/sys/net/ipv4/tcp_recovery", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has no TCP
	}
	if err == nil {
		_, err = f.WriteString("0")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set how the sandbox's TCP recovers: %w", err)
	}
	return nil
}
