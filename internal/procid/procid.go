// Package procid names a process so that it can be recognised later: its number and the moment it started. A number
// alone is given out again by the kernel, and whoever acts on a recorded one could signal, or wait for, a stranger.
//
// It reads /proc and asks the kernel about a process. It signals one only by a descriptor that is of no other.
package procid

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrGone says that there is no such process (a zombie has ended too).
var ErrGone = errors.New("no such process")

// ID is a process that was seen. The zero ID is nobody.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks from the machine's start, field 22 of /proc/PID/stat
}

func (id ID) String() string {
	if id == (ID{}) {
		return "none"
	}
	return fmt.Sprintf("%d@%d", id.PID, id.Start)
}

// Self is this process.
func Self() (ID, error) { return Of(os.Getpid()) }

// Of is the process with this number now, or ErrGone.
func Of(pid int) (ID, error) {
	if pid <= 0 {
		return ID{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	// ESRCH: the process ended between open and read.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return ID{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return ID{}, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	state, start, err := parseStat(stat)
	if err != nil {
		return ID{}, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return ID{PID: pid, Start: start}, nil
}

// Alive says whether exactly this process still runs. Where /proc hides the processes of others, one that exists
// counts as alive: to take the living for dead is the dangerous error.
func Alive(id ID) bool {
	if id.PID <= 0 {
		return false
	}
	now, err := Of(id.PID)
	if err == nil {
		return now == id
	}
	if !errors.Is(err, ErrGone) {
		return true
	}
	return errors.Is(syscall.Kill(id.PID, 0), syscall.EPERM)
}

// parseStat reads state and start from a stat line. The second field is the program's name in brackets, chosen by
// the program, so it may hold spaces and brackets: what counts begins after the last closing one.
func parseStat(stat []byte) (state byte, start uint64, err error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, errors.New("its stat line has no name")
	}
	fields := bytes.Fields(stat[end+1:])
	const startField = 22 - 3 // the first field after the name is number 3
	if len(fields) <= startField || len(fields[0]) != 1 {
		return 0, 0, errors.New("its stat line is too short")
	}
	start, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("its start is not a number: %w", err)
	}
	return fields[0][0], start, nil
}

// Signal sends a signal to a process, and to no other that has its number by now.
func Signal(id ID, sig unix.Signal) error {
	fd, err := open(id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(fd, sig, nil, 0))
}

// Wait waits until a process has ended.
func Wait(ctx context.Context, id ID) error {
	fd, err := open(id)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
	return context.Cause(ctx)
}

// open holds on to a process; what has its number afterwards is another.
func open(id ID) (int, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	if !Alive(id) {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}
