package gvisor

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// The range of user ids on the host that sandboxes are given: above those that
// distributions hand to users (subuid) and to containers, below what fits in
// 31 bits. Each sandbox has a slot of its own, so that a process that broke
// out of one could not signal or trace those of another.
const (
	idFirst = 1_900_000_000
	idSlot  = 65_536
	idCount = idSlot - 3 // the last of a slot are the relay's, the gateway's and the dialer's
	idSlots = 3_700
)

// slotDir holds a file for each slot that was ever used. Whoever has it locked
// has the slot. The ids are the machine's and not a user's, so it is too.
const slotDir = "/run/ravi/ids"

// errNoSlot says that there are as many sandboxes as there can be.
var errNoSlot = errors.New("all ranges of user ids for sandboxes are taken; end some: ravi sandbox ls")

// claim takes a free one of n slots, beginning with the one that id leads to.
// The slot is free again when the last copy of the file is closed, also by the
// death of a process.
func claim(dir, id string, n uint32) (slot uint32, held *os.File, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, fmt.Errorf("taking a range of user ids: %w", err)
	}
	h := fnv.New32a()
	h.Write([]byte(id))
	for i := range n {
		slot = (h.Sum32()%n + i) % n
		f, err := os.OpenFile(filepath.Join(dir, strconv.FormatUint(uint64(slot), 10)), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return 0, nil, fmt.Errorf("taking a range of user ids: %w", err)
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return slot, f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return 0, nil, fmt.Errorf("taking a range of user ids: %w", err)
		}
		f.Close()
	}
	return 0, nil, errNoSlot
}
