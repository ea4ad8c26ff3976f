package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine names what a report was made on. Numbers without it mean nothing.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	Root     bool   `json:"root"` // whether the run had root's rights
}

// rest is all but the processor, whose name may be long.
func (m Machine) rest() string {
	who := "an ordinary user"
	if m.Root {
		who = "root"
	}
	return fmt.Sprintf("%d cores, %.0f GB of memory, Linux %s, as %s", m.Cores, float64(m.MemoryMB)/1000, m.Kernel, who)
}

func thisMachine() (Machine, error) {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Root: os.Geteuid() == 0}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("asking for the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	// Not every architecture names its processor there.
	if model, err := procValue("/proc/cpuinfo", "model name"); err == nil {
		m.CPU = model
	}
	kb, err := procKB("/proc/meminfo", "MemTotal")
	m.MemoryMB = kb * 1024 / 1_000_000
	return m, err
}

// load is the average number of processes that wanted to run in the last minute.
func load() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	one, _, _ := strings.Cut(string(b), " ")
	return strconv.ParseFloat(one, 64)
}

// procValue is what stands behind "key:" in a file of /proc.
func procValue(file, key string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("%s does not say %s", file, key)
}

// procKB is such a value that is an amount of memory.
func procKB(file, key string) (int64, error) {
	v, err := procValue(file, key)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(v, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s, %s: %w", file, key, err)
	}
	return n, nil
}
