package box

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// explain adds what mends the usual failures to start gVisor.
func explain(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "cgroup"):
		return hinted{err, "Ravi needs to make control groups below /sys/fs/cgroup to limit a sandbox; run it where these are writable"}
	case errors.Is(err, unix.EPERM), strings.Contains(text, "operation not permitted"):
		return hinted{err, "the kernel or a container around Ravi forbids namespaces; run `ravi sandbox run` on the host itself, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)"}
	case strings.Contains(text, "no space left"):
		return hinted{err, "free some disk space, or move RAVI_HOME to a larger file system"}
	}
	return err
}
