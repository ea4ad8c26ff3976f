package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

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

// netPSS is the memory, in MB, of the network's processes beneath a keeper.
func netPSS(keeper int) (float64, error) {
	children, err := childrenOf()
	if err != nil {
		return 0, err
	}
	var total float64
	for todo := []int{keeper}; len(todo) > 0; {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		line, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
		if gone(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if name, _, _ := strings.Cut(string(line), "\x00"); name != "ravi-gateway" {
			continue
		}
		kb, err := procKB(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		if err != nil {
			return 0, fmt.Errorf("the memory of process %d: %w", pid, err)
		}
		total += float64(kb) * 1024 / 1e6
	}
	if total == 0 {
		return 0, errors.New("the sandbox has no network's processes")
	}
	return total, nil
}

// nobody refuses everything.
type nobody struct{}

func (nobody) Resolve(string) (netip.Addr, bool)                              { return netip.Addr{}, false }
func (nobody) Connect(netip.AddrPort) (serve func(context.Context, net.Conn)) { return nil }
func (nobody) Datagram(netip.AddrPort)                                        {}

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
