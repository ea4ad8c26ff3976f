package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A sandbox without a process namespace of its own shares the host's process
// table with everybody. What belongs to it is what descends from its
// supervisor, which as a subreaper inherits every orphan, and what carries its
// mark; the mark is what is left to go by once the supervisor was killed.

// MarkName is the variable that every process of such a sandbox is born with.
// Its value is the sandbox's id.
const MarkName = "RAVI_SANDBOX"

// GuestName is the name of such a sandbox's guest agent, in place of its
// program's. The agent closes its environment to others; its name is open.
func GuestName(id string) string { return "ravi-guest:" + id }

// seenProc is a process as /proc showed it.
type seenProc struct {
	pid, ppid int
	start     uint64 // with pid, what makes it itself and no later one
	cpuTicks  int64  // its own and that of its children who ended
	rssPages  int64
}

// key is what makes the process itself.
func (p seenProc) key() seenProc { return seenProc{pid: p.pid, start: p.start} }

// seenProcs lists all processes that are not over.
func seenProcs() (map[int]seenProc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := make(map[int]seenProc, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := look(pid); ok {
			out[pid] = p
		}
	}
	return out, nil
}

// look reads /proc/PID/stat (proc_pid_stat(5)); ok is false for a process that
// is over. Fields are counted from the last parenthesis, since the name in
// front of it is the process's own choice.
func look(pid int) (p seenProc, ok bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, false
	}
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return p, false
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 22 || f[0] == "Z" || f[0] == "X" {
		return p, false
	}
	p.pid = pid
	p.ppid, err = strconv.Atoi(f[1])
	if err != nil {
		return p, false
	}
	for _, field := range f[11:15] {
		n, _ := strconv.ParseInt(field, 10, 64)
		p.cpuTicks += n
	}
	p.start, err = strconv.ParseUint(f[19], 10, 64)
	p.rssPages, _ = strconv.ParseInt(f[21], 10, 64)
	return p, err == nil
}

// tree finds the processes of one sandbox.
type tree struct {
	id string
	// root is the supervisor whose descendants belong to it; 0 if it is gone.
	root int
	// known are members that were found before: whose parent has been ended
	// descends from nobody any more.
	known map[seenProc]bool
}

// members lists what belongs to the sandbox now, this process and the host's
// init excepted.
func (t *tree) members() ([]seenProc, error) {
	all, err := seenProcs()
	if err != nil {
		return nil, err
	}
	if t.known == nil {
		t.known = map[seenProc]bool{}
	}
	belongs := map[int]bool{}
	if t.root > 0 {
		belongs[t.root] = true
	}
	for pid, p := range all {
		if pid == 1 || pid == os.Getpid() {
			continue
		}
		if t.known[p.key()] || hasMark(pid, t.id) {
			belongs[pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for pid, p := range all {
			if !belongs[pid] && belongs[p.ppid] && pid != os.Getpid() {
				belongs[pid], grew = true, true
			}
		}
	}
	var out []seenProc
	for pid, p := range all {
		if belongs[pid] && pid != t.root {
			t.known[p.key()] = true
			out = append(out, p)
		}
	}
	return out, nil
}

// maxEnviron bounds how much of an environment is looked through.
const maxEnviron = 4 << 20

// hasMark says whether a process says of itself that it is of the sandbox.
// Those of other users do not show it, and are not ours to end either.
func hasMark(pid int, id string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	name := firstField(filepath.Join(dir, "cmdline"))
	return name == GuestName(id) || hasField(filepath.Join(dir, "environ"), MarkName+"="+id)
}

func firstField(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 256)
	n, _ := f.Read(b) // nothing read is no name
	name, _, _ := bytes.Cut(b[:n], []byte{0})
	return string(name)
}

func hasField(path, field string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	if err != nil {
		return false
	}
	for part := range bytes.SplitSeq(b, []byte{0}) {
		if string(part) == field {
			return true
		}
	}
	return false
}

// signal sends a signal to exactly the process that was seen, or to nobody.
func (p seenProc) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil
	case err != nil && !errors.Is(err, unix.ENOSYS):
		return err
	case err == nil:
		defer unix.Close(fd)
	}
	// The descriptor holds on to one process; this tells whether it is the one.
	if now, ok := look(p.pid); !ok || now.start != p.start {
		return nil
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if errors.Is(err, unix.ENOSYS) {
		// A kernel without such descriptors counts pids up; the number was
		// right an instant ago.
		err = unix.Kill(p.pid, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// endNow kills exactly the process that was seen and waits until it is over: if
// it is the init of a process namespace, until nothing in that is left.
func (p seenProc) endNow(deadline time.Time) error {
	if p.pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
	}
	if now, ok := look(p.pid); ok && now.start != p.start {
		return nil // a later one
	}
	if killErr := p.signal(unix.SIGKILL); killErr != nil || err != nil {
		// Without the descriptor it ends as well, unseen.
		return killErr
	}
	// One that shows as over may have threads left; the descriptor tells.
	for time.Now().Before(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("process %d of the sandbox did not end", p.pid)
}

// emptyLooks is how many looks in a row have to find no member before there is
// none. A look reads the list first and each process after it: of one that is
// over by then, the child it made meanwhile stands in no list.
const emptyLooks = 3

// end ends all members. They are stopped before any is killed: a tree that
// forks faster than it is killed one by one never ends.
func (t *tree) end(deadline time.Time) error {
	for stopped := map[seenProc]bool{}; time.Now().Before(deadline); {
		members, err := t.members()
		if err != nil {
			return err
		}
		fresh := false
		for _, p := range members {
			if !stopped[p.key()] {
				stopped[p.key()], fresh = true, true
				_ = p.signal(unix.SIGSTOP) // the kill tells what cannot be done
			}
		}
		if !fresh {
			break
		}
	}
	empty := 0
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		members, err := t.members()
		if err != nil {
			return err
		}
		if len(members) == 0 {
			if empty++; empty == emptyLooks {
				return nil
			}
			continue
		}
		empty = 0
		var errs []error
		for _, p := range members {
			if err := p.signal(unix.SIGKILL); err != nil {
				errs = append(errs, fmt.Errorf("cannot end process %d of the sandbox: %w", p.pid, err))
			}
		}
		switch {
		case len(errs) == len(members):
			return errors.Join(errs...) // nothing is left that can be ended
		case time.Now().After(deadline):
			return fmt.Errorf("%d processes of the sandbox did not end", len(members))
		}
		time.Sleep(wait)
	}
}

// stats sums up what the members use, the one with the number except left out.
func (t *tree) stats(except int) Stats {
	members, err := t.members()
	if err != nil {
		return Stats{}
	}
	var s Stats
	var pages, ticks int64
	for _, p := range members {
		if p.pid == except {
			continue
		}
		pages += p.rssPages
		ticks += p.cpuTicks
		s.Processes++
	}
	s.MemoryBytes = pages * int64(os.Getpagesize())
	s.CPUTime = time.Duration(ticks) * (time.Second / ticksPerSecond)
	return s
}

// ticksPerSecond is USER_HZ, which is the same on all architectures of Go's.
const ticksPerSecond = 100

// removeDir removes a sandbox's directory. In one that commands worked in may
// lie folders that are closed to their owner, and, when they were root's,
// mounts: removing through a mount would remove what is behind it.
func removeDir(dir string) error {
	if err := unmountBelow(dir); err != nil {
		return err
	}
	err := os.RemoveAll(dir)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// unmountBelow undoes every mount in dir, the innermost first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // the kernel knows mounts by their real paths
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			if at := Unescape(f[4]); at == dir || strings.HasPrefix(at, dir+"/") {
				points = append(points, at)
			}
		}
	}
	for _, at := range slices.Backward(points) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("cannot undo the mount on %s, so %s is left as it is: %w", at, dir, err)
		}
	}
	return nil
}

// Unescape undoes the kernel's writing of blanks and backslashes as \ooo.
func Unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
