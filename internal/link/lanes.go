package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A lane is two pipes beside the link, which become the standard input and
// output of one process: what goes through them is seen by nothing on the way
// between that process and the owner. A guest is born with some, as it can be
// given none later, and each is used once.

// FirstLane is the descriptor with which a guest's lanes begin, behind its link.
const FirstLane = 5

// EnvLanes tells the guest agent how many lanes it was born with.
const EnvLanes = "RAVI_LANES"

// laneSize is how much a pipe of a lane may hold that is used: as others do.
const laneSize = 64 << 10

// NewLane makes the two ends of a lane. They block, and hold little until Widen:
// most are never used, and an ordinary user may have so much in all pipes.
func NewLane() (ours, theirs End, err error) {
	if ours, theirs, err = pipes("lane"); err != nil {
		return ours, theirs, fmt.Errorf("cannot make a lane: %w", err)
	}
	ours.resize(os.Getpagesize())
	return ours, theirs, nil
}

// Widen has a lane hold what is usual. A user who has many pipes may have to do
// with less: slower, not wrong.
func (e End) Widen() { e.resize(laneSize) }

func (e End) resize(size int) {
	for _, f := range e.Files() {
		raw, err := f.SyscallConn()
		if err != nil {
			continue // it is closed
		}
		_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size) })
	}
}

// OpenLanes takes the ends of n lanes from descriptors that follow each other,
// each lane's to read and to write. They do not pass to programs that are
// started.
func OpenLanes(first, n int) ([]End, error) {
	var all []End
	for i := range n {
		var files [2]*os.File
		for j := range files {
			fd := first + 2*i + j
			if !isPipe(fd) {
				return nil, fmt.Errorf("descriptor %d is not a lane's pipe", fd)
			}
			unix.CloseOnExec(fd)
			files[j] = os.NewFile(uintptr(fd), "lane")
		}
		all = append(all, End{files[0], files[1]})
	}
	return all, nil
}
