package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// remains lists what is on the host of a sandbox.
func remains(home, id string) (left []string) {
	for _, pattern := range []string{filepath.Join(home, "sandboxes", id), "/sys/fs/cgroup/*/ravi/" + id, "/sys/fs/cgroup/ravi/" + id} {
		found, _ := filepath.Glob(pattern) // the pattern is well-formed
		left = append(left, found...)
	}
	for _, pid := range processesOf(id, "") {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended since
		left = append(left, fmt.Sprintf("process %d %q", pid, cmdline))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		left = append(left, err.Error())
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

// processesOf finds the host's processes that belong to a sandbox, by their control group or arguments; of those whose
// name is name or, if that is empty, all.
func processesOf(id, name string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, p := range all {
		pid, err := strconv.Atoi(filepath.Base(p))
		if err != nil || pid == os.Getpid() {
			continue
		}
		cgroup, _ := os.ReadFile(p + "/cgroup") // it may have ended since
		cmdline, _ := os.ReadFile(p + "/cmdline")
		if !bytes.Contains(cgroup, []byte(id)) && !bytes.Contains(cmdline, []byte(id)) {
			continue
		}
		if stat, err := os.ReadFile(p + "/stat"); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			continue
		}
		argv0, _, _ := bytes.Cut(cmdline, []byte{0})
		if name == "" || filepath.Base(string(argv0)) == name {
			pids = append(pids, pid)
		}
	}
	return pids
}

// nothingRemains waits, since what ends a sandbox whose owner was killed is another process.
func nothingRemains(t *testing.T, home, id string) {
	t.Helper()
	if id == "" {
		t.Fatal("no id to look for")
	}
	deadline := time.Now().Add(4 * time.Minute)
	for {
		left := remains(home, id)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left of the sandbox:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
