package box

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// oldCalls adds the calls without a directory argument, which only older
// architectures have.
func oldCalls(rules map[uintptr]seccomp.SyscallRule, withBits, devices func(int) seccomp.SyscallRule) {
	rules[unix.SYS_CHMOD] = withBits(1)
	rules[unix.SYS_MKNOD] = devices(1)
	rules[unix.SYS_MKDIR] = withBits(1)
	rules[unix.SYS_OPEN] = withBits(2)
	rules[unix.SYS_CREAT] = withBits(1)
}
