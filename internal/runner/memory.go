package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Available is how much memory this machine has left, or how much its control groups leave this process, in bytes.
func Available() (int64, error) {
	_, left, err := ownMemory()
	return left, err
}

// ownMemory is what there is of memory and what is left of it, in bytes: of the machine's, or of a control group's if that is
// less. In a container the machine's figures are what others have, too.
func ownMemory() (total, left int64, err error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, fmt.Errorf("this machine's memory: %w", err)
	}
	if total, err = meminfo(text, "MemTotal"); err != nil {
		return 0, 0, err
	}
	if left, err = meminfo(text, "MemAvailable"); err != nil {
		return 0, 0, err
	}
	groups, err := memoryGroups("/proc/self/cgroup", "/sys/fs/cgroup")
	if err != nil {
		return 0, 0, fmt.Errorf("the memory of this process's control groups: %w", err)
	}
	for _, g := range groups {
		total, left = min(total, g.limit), min(left, max(0, g.limit-g.used))
	}
	return total, left, nil
}

// meminfo is a line of /proc/meminfo (proc(5)), in bytes.
func meminfo(text []byte, name string) (int64, error) {
	for line := range strings.Lines(string(text)) {
		rest, found := strings.CutPrefix(line, name+":")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB\n")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("this machine's memory: %w", err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("this machine's memory: /proc/meminfo has no %s", name)
}

// memoryGroup is a control group that bounds memory, in bytes. What is used does not count what the kernel drops when it
// needs room.
type memoryGroup struct{ limit, used int64 }

// memoryGroups are those with a bound that a process is in, which a file as /proc/self/cgroup says (cgroups(7)), beneath the
// place where they are mounted. A container may show its own as the root of them, by whichever name they have outside, and
// those above not at all.
func memoryGroups(of, mounted string) ([]memoryGroup, error) {
	text, err := os.ReadFile(of)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without any
	}
	if err != nil {
		return nil, err
	}
	var groups []memoryGroup
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, files := mounted, v2
		switch {
		case parts[1] == "": // version 2
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			root, files = filepath.Join(mounted, "memory"), v1
		default:
			continue
		}
		for dir := filepath.Join("/", parts[2]); ; dir = filepath.Dir(dir) {
			g, bounded, err := files.read(filepath.Join(root, dir))
			if err != nil {
				return nil, err
			}
			if bounded {
				groups = append(groups, g)
			}
			if dir == "/" {
				break
			}
		}
	}
	return groups, nil
}

// groupFiles are the names of what a control group says of its memory, and in stat of what of it can be dropped.
type groupFiles struct{ limit, used, stat, dropped string }

// https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
var (
	v2 = groupFiles{"memory.max", "memory.current", "memory.stat", "inactive_file"}
	v1 = groupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"}
)

func (f groupFiles) read(dir string) (g memoryGroup, bounded bool, err error) {
	limit, err := os.ReadFile(filepath.Join(dir, f.limit))
	switch text := strings.TrimSpace(string(limit)); {
	case errors.Is(err, fs.ErrNotExist), err == nil && text == "max":
		return g, false, nil
	case err != nil:
		return g, false, err
	default:
		if g.limit, err = strconv.ParseInt(text, 10, 64); err != nil {
			return g, false, err
		}
	}
	used, err := os.ReadFile(filepath.Join(dir, f.used))
	if err != nil {
		return g, false, err
	}
	if g.used, err = strconv.ParseInt(strings.TrimSpace(string(used)), 10, 64); err != nil {
		return g, false, err
	}
	stat, err := os.ReadFile(filepath.Join(dir, f.stat))
	if err != nil {
		return g, false, err
	}
	for line := range strings.Lines(string(stat)) {
		if n, ok := strings.CutPrefix(line, f.dropped+" "); ok {
			dropped, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			if err != nil {
				return g, false, err
			}
			g.used = max(0, g.used-dropped)
		}
	}
	return g, true, nil
}
