package box

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// forbidSpecialFiles makes the kernel refuse, to this process and to all that
// it starts, to create device files and to set the set-user-id and
// set-group-id bits. What a guest does on a shared directory is done on the
// host by gVisor's processes, which inherit this; a file with such a bit would
// be a trap for the next user of that directory.
func forbidSpecialFiles() error {
	any := seccomp.AnyValue{}
	withBits := func(arg int) seccomp.SyscallRule {
		var or seccomp.Or
		for _, bit := range []uintptr{unix.S_ISUID, unix.S_ISGID} {
			r := seccomp.PerArg{any, any, any, any, any, any, any}
			r[arg] = seccomp.MaskedEqual(bit, bit)
			or = append(or, r)
		}
		return or
	}
	devices := func(arg int) seccomp.SyscallRule {
		or := withBits(arg).(seccomp.Or)
		for _, kind := range []uintptr{unix.S_IFCHR, unix.S_IFBLK} {
			r := seccomp.PerArg{any, any, any, any, any, any, any}
			r[arg] = seccomp.MaskedEqual(unix.S_IFMT, kind)
			or = append(or, r)
		}
		return or
	}
	rules := map[uintptr]seccomp.SyscallRule{
		unix.SYS_FCHMOD:    withBits(1),
		unix.SYS_FCHMODAT:  withBits(2),
		unix.SYS_FCHMODAT2: withBits(2),
		unix.SYS_MKNODAT:   devices(2),
		unix.SYS_MKDIRAT:   withBits(2),
		unix.SYS_OPENAT:    withBits(3),
	}
	oldCalls(rules, withBits, devices)
	program := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{
			Rules:  seccomp.MakeSyscallRules(rules),
			Action: seccomp.ReturnError.Code(uint16(unix.EPERM)),
		}},
		Options: seccomp.ProgramOptions{
			DefaultAction: seccomp.Allow,
			BadArchAction: seccomp.KillProcess,
		},
	}
	instructions, _, err := program.Build()
	if err != nil {
		return err
	}
	return seccomp.SetFilter(instructions)
}
