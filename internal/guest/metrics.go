package guest

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// metrics is the answer of /metrics, with E2B's names.
type metrics struct {
	Timestamp  int64   `json:"ts"`
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float32 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"`
	MemCache   uint64  `json:"mem_cache"`
	MemTotalMB uint64  `json:"mem_total_mib"`
	MemUsedMB  uint64  `json:"mem_used_mib"`
	DiskUsed   uint64  `json:"disk_used"`
	DiskTotal  uint64  `json:"disk_total"`
}

func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	m, err := s.metrics()
	if err != nil {
		writeFailure(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, m)
}

func (s *Server) metrics() (metrics, error) {
	mem, err := readMeminfo()
	if err != nil {
		return metrics{}, err
	}
	used, err := s.cpu.usedPercent()
	if err != nil {
		return metrics{}, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs("/", &disk); err != nil {
		return metrics{}, err
	}
	block := uint64(disk.Bsize)
	m := metrics{
		Timestamp:  time.Now().Unix(),
		CPUCount:   runtime.NumCPU(),
		CPUUsedPct: used,
		MemTotal:   mem["MemTotal"],
		MemUsed:    mem.used(),
		MemCache:   mem["Cached"],
		DiskTotal:  disk.Blocks * block,
		DiskUsed:   (disk.Blocks - min(disk.Bfree, disk.Blocks)) * block,
	}
	if limit := s.opts.MemoryLimit; limit > 0 {
		m.MemTotal = limit
		if m.MemUsed, err = s.opts.memoryUsed(); err != nil {
			return metrics{}, err
		}
	}
	m.MemTotalMB, m.MemUsedMB = m.MemTotal>>20, m.MemUsed>>20
	return m, nil
}

// meminfo is /proc/meminfo in bytes.
type meminfo map[string]uint64

func readMeminfo() (meminfo, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	return parseMeminfo(data), nil
}

func parseMeminfo(data []byte) meminfo {
	out := make(meminfo)
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		n, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			continue
		}
		if len(f) > 1 && f[1] == "kB" {
			n *= 1024
		}
		out[name] = n
	}
	return out
}

// used is what is not available. In gVisor that is the whole sandbox's use.
func (m meminfo) used() uint64 {
	return m["MemTotal"] - min(m["MemAvailable"], m["MemTotal"])
}

// cpuMeter measures between two looks at it.
type cpuMeter struct {
	mu          sync.Mutex
	busy, total uint64
	at          time.Time
	last        float32
}

// minCPUWindow is the shortest time that a percentage means something for.
const minCPUWindow = 50 * time.Millisecond

// usedPercent is the share of all CPUs that was used since it was last asked
// for; the first time, over a short wait.
func (c *cpuMeter) usedPercent() (float32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		if err := c.look(); err != nil {
			return 0, err
		}
		time.Sleep(minCPUWindow)
	}
	if time.Since(c.at) < minCPUWindow {
		return c.last, nil
	}
	busy, total := c.busy, c.total
	if err := c.look(); err != nil {
		return 0, err
	}
	if c.total > total && c.busy >= busy {
		c.last = float32(c.busy-busy) / float32(c.total-total) * 100
	}
	return c.last, nil
}

func (c *cpuMeter) look() error {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	f := strings.Fields(line)
	if len(f) < 5 || f[0] != "cpu" {
		return fmt.Errorf("/proc/stat: no line of all CPUs")
	}
	var busy, total uint64
	for i, field := range f[1:min(len(f), 9)] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return fmt.Errorf("/proc/stat: %w", err)
		}
		total += n
		if i != 3 && i != 4 { // idle and waiting for devices
			busy += n
		}
	}
	c.busy, c.total, c.at = busy, total, time.Now()
	return nil
}
