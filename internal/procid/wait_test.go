package procid

import "golang.org/x/sys/unix"

// waitUnreaped returns when the child has ended, and leaves it a zombie.
func waitUnreaped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err
		}
	}
}
