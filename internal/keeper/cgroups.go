package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	root string
	v2   bool
}

// hierarchies lists the mounted cgroup hierarchies, version 1 and 2.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []hierarchy
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		// Field 5 is the mount point; after " - " come the type and the rest
		// (proc_pid_mountinfo(5)).
		before, after, ok := strings.Cut(sc.Text(), " - ")
		if !ok {
			continue
		}
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 1 {
			continue
		}
		switch kind[0] {
		case "cgroup":
			out = append(out, hierarchy{root: fields[4]})
		case "cgroup2":
			out = append(out, hierarchy{root: fields[4], v2: true})
		}
	}
	return out, sc.Err()
}

// checkCgroup refuses a path that could name anything but a group of a
// sandbox of ours.
func checkCgroup(path string) error {
	if path != filepath.Clean(path) || !strings.HasPrefix(path, "/ravi/") || path == "/ravi/" {
		return fmt.Errorf("cgroup path %q is not one of Ravi's", path)
	}
	return nil
}

// removeCgroups removes the sandbox's group from every hierarchy. The kernel
// frees a group some moments after its last process, so EBUSY is tried again
// until the deadline.
func removeCgroups(path string, deadline time.Time) error {
	if path == "" {
		return nil
	}
	if err := checkCgroup(path); err != nil {
		return err
	}
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hs {
		dir := filepath.Join(h.root, path)
		for wait := time.Millisecond; ; wait *= 2 {
			err := removeGroup(dir)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("cannot remove the control group %s: %w", dir, err))
				break
			}
			time.Sleep(min(wait, 50*time.Millisecond))
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a group and the groups below it.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	err = unix.Rmdir(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// killCgroup sends SIGKILL to every process in the sandbox's groups, until
// none is left or the deadline has passed. It is for a sandbox whose
// supervisor was killed before it could do this by the process namespace.
func killCgroup(path string, deadline time.Time) error {
	if path == "" {
		return nil
	}
	if err := checkCgroup(path); err != nil {
		return err
	}
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for {
		alive := 0
		for _, h := range hs {
			pids, err := groupPids(filepath.Join(h.root, path))
			if err != nil {
				return err
			}
			for _, pid := range pids {
				alive++
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("cannot end process %d of the sandbox: %w", pid, err)
				}
			}
		}
		if alive == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes in the control group %s did not end", alive, path)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func groupPids(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			return err
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

// readStats reads what the kernel has counted for the sandbox's groups.
func readStats(path string) Stats {
	var s Stats
	if path == "" {
		return s
	}
	hs, err := hierarchies()
	if err != nil {
		return s
	}
	for _, h := range hs {
		dir := filepath.Join(h.root, path)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if pids, err := groupPids(dir); err == nil {
			s.Processes = max(s.Processes, len(pids))
		}
		if h.v2 {
			s.MemoryBytes = max(s.MemoryBytes, readInt(dir, "memory.current"))
			s.MemoryPeakBytes = max(s.MemoryPeakBytes, readInt(dir, "memory.peak"))
			s.OOMKills = max(s.OOMKills, readKey(dir, "memory.events", "oom_kill"))
			s.CPUTime = max(s.CPUTime, time.Duration(readKey(dir, "cpu.stat", "usage_usec"))*time.Microsecond)
			continue
		}
		s.MemoryBytes = max(s.MemoryBytes, readInt(dir, "memory.usage_in_bytes"))
		s.MemoryPeakBytes = max(s.MemoryPeakBytes, readInt(dir, "memory.max_usage_in_bytes"))
		s.OOMKills = max(s.OOMKills, readKey(dir, "memory.oom_control", "oom_kill"))
		s.CPUTime = max(s.CPUTime, time.Duration(readInt(dir, "cpuacct.usage")))
	}
	return s
}

func readInt(dir, name string) int64 {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

func readKey(dir, name, key string) int64 {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		if k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}
