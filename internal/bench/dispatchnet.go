package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// netnsPrefix begins the names of network namespaces, before the id of the process that made them.
	netnsPrefix = "ravibench-"
	netnsDir    = "/run/netns"
	lanPort     = 4222
	runnerEnds  = 30 * time.Second
)

// netHost is a network namespace that stands for a machine.
type netHost struct{ name, addr string }

// do does something with the host's network; of none, with this machine's.
func (h *netHost) do(f func() error) error {
	if h == nil {
		return f()
	}
	over := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		over <- h.within(f)
	}()
	return <-over
}

// within does f with this thread in the namespace. The thread must live on: what is started dies with its parent thread.
func (h *netHost) within(f func() error) error {
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	there, err := unix.Open(filepath.Join(netnsDir, h.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(there)
	if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the network namespace %s: %w", h.name, err)
	}
	done := f()
	if err := unix.Setns(own, unix.CLONE_NEWNET); err != nil {
		return errors.Join(done, fmt.Errorf("leaving the network namespace %s: %w", h.name, err))
	}
	runtime.UnlockOSThread()
	return done
}

// lan is hosts at a switch; or loopback, where nobody but root makes hosts.
type lan struct {
	home    *netHost // nil: loopback
	runners [fleetRunners]*netHost
	ca, url string
	made    []string
}

// newLAN makes the hosts. Those of benchmarks that were killed are removed.
func (b *bench) newLAN() (l *lan, err error) {
	l = &lan{}
	if os.Geteuid() != 0 {
		return l, nil
	}
	if _, err := exec.LookPath("ip"); err != nil {
		b.skip("runners in network namespaces", errMissing)
		return l, nil
	}
	if err := removeNetns(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	host := func(n int) (*netHost, error) {
		h := &netHost{name: fmt.Sprintf("%s%d-%d", netnsPrefix, os.Getpid(), n), addr: fmt.Sprint("10.78.0.", n+1)}
		if err := ip("netns", "add", h.name); err != nil {
			return nil, err
		}
		l.made = append(l.made, h.name)
		return h, ip("-n", h.name, "link", "set", "lo", "up")
	}
	if l.home, err = host(0); err != nil {
		return nil, err
	}
	commands := [][]string{
		{"-n", l.home.name, "link", "add", "sw", "type", "bridge"},
		{"-n", l.home.name, "addr", "add", l.home.addr + "/24", "dev", "sw"},
		{"-n", l.home.name, "link", "set", "sw", "up"},
	}
	for i := range l.runners {
		h, err := host(i + 1)
		if err != nil {
			return nil, err
		}
		l.runners[i] = h
		plug := fmt.Sprint("port", i)
		commands = append(commands,
			[]string{"-n", l.home.name, "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", h.name},
			[]string{"-n", l.home.name, "link", "set", plug, "master", "sw"},
			[]string{"-n", l.home.name, "link", "set", plug, "up"},
			[]string{"-n", h.name, "addr", "add", h.addr + "/24", "dev", "eth0"},
			[]string{"-n", h.name, "link", "set", "eth0", "up"})
	}
	for _, args := range commands {
		if err := ip(args...); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *lan) close() error {
	var errs []error
	for _, name := range l.made {
		errs = append(errs, ip("netns", "del", name))
	}
	return errors.Join(errs...)
}

// ip calls ip, also when the benchmark is to end: it takes no time.
func ip(args ...string) error { return finish(program(context.Background(), "ip", args...)) }

// removeNetns removes the namespaces of benchmarks that are gone.
func removeNetns() error {
	found, err := filepath.Glob(filepath.Join(netnsDir, netnsPrefix+"*"))
	if err != nil {
		return err
	}
	for _, file := range found {
		name := filepath.Base(file)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, netnsPrefix), "-")
		n, err := strconv.Atoi(pid)
		if err != nil || n <= 0 || !errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			continue
		}
		if err := ip("netns", "del", name); err != nil {
			return err
		}
	}
	return nil
}

// runnerProcess is a runner, with a home of its own.
type runnerProcess struct {
	cmd   *exec.Cmd
	said  *tail
	ended chan struct{}
}

// startRunner starts the n-th runner of an office, with room for so many sandboxes.
func (o *office) startRunner(ctx context.Context, l *lan, n, room int) (*runnerProcess, error) {
	args := []string{"runner", "--bus", l.url, "--creds", o.creds(n), "--capacity", fmt.Sprint(room)}
	if l.ca != "" {
		args = append(args, "--ca", l.ca)
	}
	g := &gateway{bench: o.bench, home: filepath.Join(o.dir, runnerName(n)), at: l.runners[n]}
	return g.startRunner(ctx, args...)
}

func (g *gateway) startRunner(ctx context.Context, args ...string) (*runnerProcess, error) {
	r := &runnerProcess{cmd: g.ravi(ctx, args...), said: &tail{}, ended: make(chan struct{})}
	r.cmd.Stderr = r.said
	if err := g.start(r.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = r.cmd.Wait() // how it ended is in what it said
		close(r.ended)
	}()
	return r, nil
}

// stop ends the runner as its user would, or else at once.
func (r *runnerProcess) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-r.ended:
	case <-time.After(runnerEnds):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
}
