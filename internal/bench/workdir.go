package bench

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// workDir is where a run keeps what it needs: beneath bench in Ravi's home. A
// lock on it says that its run goes on; one without a lock was left behind by
// a run that was killed, and is removed by the next.
type workDir struct {
	path string
	lock *os.File
}

func newWorkDir(home string) (*workDir, error) {
	all := filepath.Join(home, "bench")
	if err := os.MkdirAll(all, 0o700); err != nil {
		return nil, err
	}
	if err := removeOrphans(all); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(all, "run-")
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &workDir{dir, lock}, nil
}

func (d *workDir) remove() error {
	defer d.lock.Close()
	return removeTree(d.path)
}

func removeOrphans(all string) error {
	found, err := filepath.Glob(filepath.Join(all, "run-*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		lock, err := lockDir(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // its run goes on, or it is gone by now
		}
		if err != nil {
			return err
		}
		err = removeTree(dir)
		lock.Close()
		if err != nil {
			return fmt.Errorf("removing what an earlier benchmark left: %w", err)
		}
	}
	return nil
}

// lockDir holds a directory until the file is closed, or the process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("holding %s: %w", dir, err)
	}
	return f, nil
}

// removeTree removes a directory, and the mounts that runsc makes beneath its
// state and leaves there.
func removeTree(dir string) error {
	mounts, err := mountsBeneath(dir)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s: %w", m, err)
		}
	}
	return os.RemoveAll(dir)
}

func mountsBeneath(dir string) ([]string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if at := mountPoint(lines.Text()); strings.HasPrefix(at, dir+"/") {
			out = append([]string{at}, out...) // the last one mounted comes off first
		}
	}
	return out, lines.Err()
}

// mountPoint is the fifth field of a line of mountinfo, in which the kernel
// writes blanks and backslashes by their octal numbers.
func mountPoint(line string) string {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return ""
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
}
