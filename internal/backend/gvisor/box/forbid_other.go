//go:build !amd64

package box

import "gvisor.dev/gvisor/pkg/seccomp"

// oldCalls adds nothing: this architecture has no calls without a directory
// argument.
func oldCalls(map[uintptr]seccomp.SyscallRule, func(int) seccomp.SyscallRule, func(int) seccomp.SyscallRule) {
}
