package guest

import (
	"errors"
	"fmt"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/process"
)

// openTerminal makes a terminal. Reading and writing its master waits in Go's
// poller alone: a read that waited in the kernel, for what follows on a piece
// of output, would hold that piece back for as long as nothing does; and a
// write there could not be given up.
func openTerminal() (master, slave *os.File, err error) {
	if master, slave, err = pty.Open(); err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	// Open asked for the slave's name by Fd, which made the master block.
	if err := unix.SetNonblock(int(master.Fd()), true); err != nil {
		master.Close()
		slave.Close()
		return nil, nil, fmt.Errorf("open a terminal that does not block: %w", err)
	}
	return master, slave, nil
}

// setSize sets a terminal's size; the kernel tells the programs on it. It is
// not asked for by Fd, which would make the master block.
func setSize(master *os.File, size *process.PTY_Size) error {
	clamp := func(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }
	raw, err := master.SyscallConn()
	if err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: clamp(size.GetCols()), Row: clamp(size.GetRows())})
	})
	if err := errors.Join(err, set); err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	return nil
}
