package relay

import (
	"fmt"
	"os"
	"syscall"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// relayMemory bounds the relay's data segments; a guest that makes it use more
// ends its own sandbox.
const relayMemory = 384 << 20

// confine takes from this process all that the relay does not need: its
// identity, its view of files, its memory beyond a bound, and every system
// call but those of a program that moves bytes between descriptors it already
// has.
func confine(uid, gid uint32) error {
	limits := []struct {
		what  int
		value uint64
	}{
		{unix.RLIMIT_DATA, relayMemory},
		{unix.RLIMIT_NOFILE, 1024},
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_FSIZE, 1 << 20}, // its own messages
	}
	for _, l := range limits {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("setting a resource limit: %w", err)
		}
	}
	if os.Geteuid() == 0 {
		// An empty root: /proc/self/fdinfo of nothing, no path to anything.
		if err := emptyRoot(); err != nil {
			return err
		}
	}
	if uid != 0 {
		// The syscall package changes all threads, x/sys only this one.
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("dropping groups: %w", err)
		}
		if err := syscall.Setresgid(int(gid), int(gid), int(gid)); err != nil {
			return fmt.Errorf("changing group: %w", err)
		}
		if err := syscall.Setresuid(int(uid), int(uid), int(uid)); err != nil {
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
				Names: []string{
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
					// It is the init of its process namespace.
					"wait4", "waitid",
				},
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
