package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/network/cable"
)

// When the memory of a sandbox's gateway and dialer is looked at.
const (
	atRest   = "at rest"
	afterUse = "after use"
)

const (
	// stackAlone is one idle cable's stack, without a process around it.
	stackAlone = "stack alone"
	idleCables = 20
)

// memory measures what the two processes of a sandbox's network take.
func (n *networked) memory(ctx context.Context, keeper int, when string) error {
	if err := settle(ctx); err != nil {
		return err
	}
	mb, err := netPSS(keeper)
	if errors.Is(err, os.ErrPermission) {
		n.skip("memory of the network "+when, err) // without root they are closed to us
		return nil
	}
	if err != nil {
		return err
	}
	n.add("netmem", when, mb)
	return nil
}

// beneath are the processes beneath a keeper, and which of them are its
// network's.
func beneath(keeper int) (all, network []int, err error) {
	children, err := childrenOf()
	if err != nil {
		return nil, nil, err
	}
	for todo := []int{keeper}; len(todo) > 0; {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		all = append(all, pid)
		if name, _, _ := strings.Cut(string(line), "\x00"); name == "ravi-gateway" {
			network = append(network, pid)
		}
	}
	if len(network) == 0 {
		return nil, nil, errors.New("the sandbox has no network's processes")
	}
	return all, network, nil
}

// netPSS is the memory, in MB, of the network's processes beneath a keeper.
func netPSS(keeper int) (float64, error) {
	_, network, err := beneath(keeper)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, pid := range network {
		kb, err := procKB(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		if err != nil {
			return 0, fmt.Errorf("the memory of process %d: %w", pid, err)
		}
		total += kb
	}
	return float64(total) * 1024 / 1e6, nil
}

// usage is processor time that was used: by a sandbox's network, and by all of
// the sandbox.
type usage struct{ gateway, all time.Duration }

func netCPU(keeper int) (u usage, err error) {
	all, network, err := beneath(keeper)
	if err != nil {
		return u, err
	}
	for _, pid := range all {
		d, err := cpuOf(pid)
		if gone(err) {
			continue
		}
		if err != nil {
			return u, err
		}
		u.all += d
		if slices.Contains(network, pid) {
			u.gateway += d
		}
	}
	return u, nil
}

// cpuOf is how much processor time a process has used, in its own code and in
// the kernel, its children that have ended included.
func cpuOf(pid int) (time.Duration, error) {
	file := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	// The name in brackets may hold anything; the third field follows it.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const userTime, childrenSystemTime, third = 14, 17, 3
	if len(fields) <= childrenSystemTime-third {
		return 0, fmt.Errorf("%s: not a process's state: %q", file, b)
	}
	var ticks int64
	for _, text := range fields[userTime-third : childrenSystemTime-third+1] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil // USER_HZ is 100 wherever Go runs
}

// nobody refuses everything.
type nobody struct{}

func (nobody) Resolve(string) (netip.Addr, bool)                              { return netip.Addr{}, false }
func (nobody) Connect(netip.AddrPort) (serve func(context.Context, net.Conn)) { return nil }
func (nobody) Datagram(netip.AddrPort) (serve func(context.Context, net.Conn)) {
	return nil
}

// cables measures the heap and the goroutines' stacks of idle cables, in this
// process. What is behind a cable makes no difference to it: here it is a socket.
func (n *networked) cables(context.Context) (err error) {
	var cables []*cable.Cable
	var files []int
	defer func() {
		for _, c := range cables {
			c.Close()
		}
		for _, fd := range files {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	one := func() error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		files = append(files, pair[:]...)
		c, err := cable.New(pair[0], nobody{})
		if err == nil {
			cables = append(cables, c)
		}
		return err
	}
	if err := one(); err != nil { // the first one also pays for what all share
		return err
	}
	before := inUse()
	for range idleCables {
		if err := one(); err != nil {
			return err
		}
	}
	n.add("cable", stackAlone, float64(inUse()-before)/1000/idleCables)
	return nil
}

// inUse is how many bytes this process's heap and stacks hold.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held through the first one goes with the second
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
