// Package confine takes from a process all that it does not need: its identity,
// its view of files, memory beyond a bound, and system calls.
//
// It is for the processes of a keeper that read what a guest writes. It changes
// only the process that calls it.
package confine

import (
	"fmt"
	"os"
	"syscall"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// To is what is left to a process.
type To struct {
	// UID and GID are its new identity; zero keeps the old one.
	UID, GID uint32
	// Memory bounds its data segments, in bytes.
	Memory uint64
	// Files bounds its open descriptors.
	Files uint64
	// KeepRoot leaves it the host's files, which it sees as UID does.
	KeepRoot bool
	// Calls are the system calls beyond those that move bytes between
	// descriptors that are there, and those that the Go runtime lives on.
	Calls []string
}

// common are the calls of a program that moves bytes between descriptors that
// it already has.
var common = []string{
	// Bytes between descriptors.
	"read", "write", "readv", "writev", "close", "fcntl", "shutdown",
	"accept4", "recvfrom", "sendto", "recvmsg", "sendmsg",
	"getsockname", "getpeername", "getsockopt", "setsockopt",
	"epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "pipe2",
	// The Go runtime: memory, threads, time, signals.
	"mmap", "munmap", "mremap", "mprotect", "madvise", "brk",
	"futex", "clone", "clone3", "set_robust_list", "rseq", "exit", "exit_group",
	"sched_yield", "sched_getaffinity", "nanosleep", "clock_nanosleep", "clock_gettime",
	"gettimeofday", "getrandom", "getpid", "gettid", "tgkill", "restart_syscall",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
	"timer_create", "timer_settime", "timer_delete", "setitimer",
	"membarrier", "prctl", "uname",
	// It may be the init of its process namespace.
	"wait4", "waitid",
}

// Process confines this process, all its threads.
func Process(to To) error {
	limits := []struct {
		what  int
		value uint64
	}{
		{unix.RLIMIT_DATA, to.Memory},
		{unix.RLIMIT_NOFILE, to.Files},
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_FSIZE, 1 << 20}, // its own messages
	}
	for _, l := range limits {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("setting a resource limit: %w", err)
		}
	}
	if os.Geteuid() == 0 && !to.KeepRoot {
		// An empty root: /proc/self/fdinfo of nothing, no path to anything.
		if err := emptyRoot(); err != nil {
			return err
		}
	}
	if to.UID != 0 {
		// The syscall package changes all threads, x/sys only this one.
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("dropping groups: %w", err)
		}
		if err := syscall.Setresgid(int(to.GID), int(to.GID), int(to.GID)); err != nil {
			return fmt.Errorf("changing group: %w", err)
		}
		if err := syscall.Setresuid(int(to.UID), int(to.UID), int(to.UID)); err != nil {
			return fmt.Errorf("changing user: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("closing this process to others: %w", err)
	}
	// Changing identity clears the signal for the parent's death.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("tying this process to its supervisor: %w", err)
	}
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionErrno,
			Syscalls: []seccomp.SyscallGroup{{
				Action: seccomp.ActionAllow,
				Names:  append(common[:len(common):len(common)], to.Calls...),
			}},
		},
	})
}

// emptyRoot moves this process into an empty, read-only directory. The process
// was born into a mount namespace of its own, so this changes all its threads
// and nothing else.
func emptyRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("closing the mount namespace: %w", err)
	}
	if err := unix.Mount("ravi", "/proc", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=755"); err != nil {
		return fmt.Errorf("making an empty root: %w", err)
	}
	if err := unix.Chdir("/proc"); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("entering the empty root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's root: %w", err)
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}
