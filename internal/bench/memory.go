package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// pssOf is how much memory a process and all that descend from it use, in MB.
// What several processes share is split between them, so sums are true.
//
// A sandbox's keeper is the ancestor of all that belongs to it, and the init
// of its process namespace: nothing of it can get away to another parent.
func pssOf(root int) (float64, error) {
	children, err := childrenOf()
	if err != nil {
		return 0, err
	}
	var total int64
	seen := false
	for todo := []int{root}; len(todo) > 0; {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		kb, err := procKB(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		switch {
		case gone(err):
			continue
		case err != nil:
			return 0, fmt.Errorf("the memory of process %d: %w", pid, err)
		}
		seen = true
		total += kb
	}
	if !seen {
		return 0, fmt.Errorf("process %d is gone", root)
	}
	return float64(total) * 1024 / 1e6, nil
}

// gone says whether a process ended while it was looked at. A zombie has no
// memory: its file is there, and reading it gives ESRCH.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// childrenOf is every process's children.
func childrenOf() (map[int][]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	out := map[int][]int{}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		parent, err := parentIn(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out[parent] = append(out[parent], pid)
	}
	return out, nil
}

// parentIn reads the parent's number from a line of /proc/PID/stat. The name
// before it is in brackets and may hold anything, brackets too.
func parentIn(stat string) (int, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, fmt.Errorf("not a process's state: %q", stat)
	}
	return strconv.Atoi(fields[1])
}
