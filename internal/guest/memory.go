package guest

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/ravi"
)

// Running out of memory ends a whole gVisor sandbox at once, with all work in
// it. So the guest watches, and ends the largest process shortly before.

const (
	// The watch acts when less than this is left, or a twelfth of the limit if
	// that is more, but never before half of the limit is used.
	memoryHeadroom = 64 << 20
	// assumedGrowth is how fast memory is taken to fill, in bytes a second. The
	// time to the next look follows from it.
	assumedGrowth = 2 << 30

	slowestLook = time.Second
	fastestLook = 10 * time.Millisecond

	// givenBack is how long the memory of a process that was ended may take to be free again.
	givenBack = 2 * time.Second

	// After so many ended processes without relief the use is spread over
	// many, and a whole tree has to go.
	patience = 8
)

// memoryMark is the use above which the watch acts.
func memoryMark(limit uint64) uint64 {
	headroom := min(max(memoryHeadroom, limit/12), limit/2)
	return limit - headroom
}

// nextLook is how long nothing can happen.
func nextLook(used, mark uint64) time.Duration {
	if used >= mark {
		return fastestLook
	}
	d := time.Duration(float64(mark-used) / assumedGrowth * float64(time.Second))
	return min(max(d, fastestLook), slowestLook)
}

// memoryUsed is the use of the whole sandbox. gVisor's sysinfo is the sandbox's
// own, and costs it one look at a file; for its meminfo it would ask about every
// page, which an idle sandbox would be busy with. Elsewhere both are the
// machine's, and what counts is the sum of what the processes that can be seen
// hold.
func memoryUsed() (uint64, error) {
	if inGVisor() {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return 0, err
		}
		return uint64(info.Totalram-min(info.Freeram, info.Totalram)) * uint64(info.Unit), nil
	}
	procs, err := readProcs()
	if err != nil {
		return 0, err
	}
	var pages int64
	for _, p := range procs {
		pages += p.rssPages
	}
	return uint64(pages) * uint64(os.Getpagesize()), nil
}

func inGVisor() bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && strings.HasSuffix(unix.ByteSliceToString(u.Release[:]), "-gvisor")
}

// watchMemory runs until ctx is done. What it cannot read now it tries to
// read again: ending the watch would end the protection.
func (s *Server) watchMemory(ctx context.Context) {
	limit := s.opts.MemoryLimit
	mark := memoryMark(limit)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var disk diskWatch
	inVain := 0
	var diskSeen, stillSeen time.Time
	var before uint64
	var still []int // processes that were stopped when it was looked at last
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait := slowestLook
		used, err := s.opts.memoryUsed()
		if err == nil {
			wait = nextLook(used, mark)
			if used >= mark {
				inVain = s.relieveTo(ctx, mark, used, limit, inVain, still)
			} else {
				inVain = 0
			}
			// Known before it is needed: while the use grows there is no time.
			if now := time.Now(); used >= mark/2 && used <= before+before/16 && now.Sub(stillSeen) >= slowestLook {
				still, stillSeen = standing(), now
			}
			before = used
		}
		if now := time.Now(); now.Sub(diskSeen) >= slowestLook {
			diskSeen = now
			if ev := disk.look("/"); ev != nil {
				s.events.add(&ravi.Event{Event: &ravi.Event_LowDisk_{LowDisk: ev}})
			}
		}
		timer.Reset(wait)
	}
}

// relieveTo ends processes until the use is below the mark, and returns how
// many in a row had to go. Meanwhile everything else stands still: many
// processes that grow at once would else be faster than their ends.
func (s *Server) relieveTo(ctx context.Context, mark, used, limit uint64, inVain int, still []int) int {
	if os.Getpid() == 1 {
		freeze()
		defer thaw(still)
	}
	for used >= mark && ctx.Err() == nil {
		held := s.relieve(ctx, used, limit, inVain >= patience)
		inVain++
		now, err := s.opts.memoryUsed()
		// What has ended is gone before its memory is. Where that is enough, and no other grows, nobody else has to go.
		for deadline := time.Now().Add(givenBack); err == nil && now >= mark && now <= used && used-min(used, held) < mark && time.Now().Before(deadline); {
			time.Sleep(fastestLook)
			now, err = s.opts.memoryUsed()
		}
		if err != nil || inVain > patience {
			break // look again later
		}
		used = now
	}
	return inVain
}

// freeze stops every process but this one, all at once: to find them one by one takes as long as memory needs to run out.
func freeze() { _ = unix.Kill(-1, unix.SIGSTOP) } // it fails where there is nobody to stop

// thaw lets them go on, but those that stood still before.
func thaw(still []int) {
	_ = unix.Kill(-1, unix.SIGCONT)
	for _, pid := range still {
		_ = unix.Kill(pid, unix.SIGSTOP) // one that was ended needs none
	}
}

// standing are the processes that somebody has stopped.
func standing() (pids []int) {
	procs, err := readProcs()
	if err != nil {
		return nil // it is looked at again soon
	}
	for _, p := range procs {
		if p.state == 'T' || p.state == 't' {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// relieve ends the largest process, or with tree the started process whose
// tree is the largest, and returns how much that held.
func (s *Server) relieve(ctx context.Context, used, limit uint64, tree bool) (held uint64) {
	procs, err := readProcs()
	if err != nil {
		return 0
	}
	victim, owner := s.largest(procs)
	if tree {
		if p, info := s.largestTree(procs); p != nil {
			victim, owner = info, p
		}
	}
	if victim.pid == 0 {
		return 0
	}
	held = uint64(victim.rssPages) * uint64(os.Getpagesize())
	ev := &ravi.Event_OutOfMemory{
		Pid:        uint32(victim.pid),
		Cmd:        validName(victim.comm),
		RssBytes:   held,
		UsedBytes:  used,
		LimitBytes: limit,
	}
	if owner != nil {
		ev.ProcessPid, ev.ProcessTag = uint32(owner.pid), owner.tag
		owner.mu.Lock()
		owner.oom = true // before the kill, so that the end says so
		owner.mu.Unlock()
	}
	s.events.add(&ravi.Event{Event: &ravi.Event_OutOfMemory_{OutOfMemory: ev}})
	if tree && owner != nil {
		ctx, cancel := context.WithTimeout(ctx, goneSoon)
		defer cancel()
		_, _ = s.killTree(ctx, owner)
		return held
	}
	// A process that is gone already has given its memory back.
	_ = unix.Kill(victim.pid, unix.SIGKILL)
	waitGone(ctx, victim.pid)
	return held
}

// waitGone waits a little for a killed process to give its memory back.
func waitGone(ctx context.Context, pid int) {
	for range 50 {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return
		}
		if info, ok := parseStat(pid, stat); ok && info.state == 'Z' {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// largest is the process that holds most, this one excepted, and the started
// one that it belongs to. An agent that is not PID 1 shares the process table
// with others, and takes only what it started.
func (s *Server) largest(procs []procInfo) (procInfo, *proc) {
	self := os.Getpid()
	byUse := slices.SortedFunc(slices.Values(procs), func(a, b procInfo) int { return cmp.Compare(b.rssPages, a.rssPages) })
	for _, info := range byUse {
		if info.pid == self || info.pid == 1 || info.rssPages == 0 {
			continue
		}
		if owner := s.ownerOf(info); owner != nil || self == 1 {
			return info, owner
		}
	}
	return procInfo{}, nil
}

func (s *Server) ownerOf(info procInfo) *proc {
	if p := s.procs.byMark(markOf(info.pid)); p != nil {
		return p
	}
	for _, p := range s.procs.running() {
		if p.pid == info.pid || p.pid == info.session {
			return p
		}
	}
	return nil
}

// largestTree is the started process whose tree holds most.
func (s *Server) largestTree(procs []procInfo) (*proc, procInfo) {
	var found *proc
	var most procInfo
	marks := make(map[int]string)
	for _, p := range s.procs.running() {
		sum := procInfo{pid: p.pid, comm: p.config.GetCmd()}
		for _, info := range treeOf(p, procs, nil, marks) {
			sum.rssPages += info.rssPages
		}
		if sum.rssPages > most.rssPages {
			found, most = p, sum
		}
	}
	return found, most
}

// diskWatch tells once each time that the disk gets low.
type diskWatch struct {
	low    bool
	looked time.Time
}

const (
	lowDisk      = 64 << 20
	diskInterval = 2 * time.Second
)

func (d *diskWatch) look(path string) *ravi.Event_LowDisk {
	if time.Since(d.looked) < diskInterval {
		return nil
	}
	d.looked = time.Now()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil
	}
	free, total := st.Bavail*uint64(st.Bsize), st.Blocks*uint64(st.Bsize)
	was := d.low
	d.low = total > 0 && free < min(lowDisk, total/20)
	if !d.low || was {
		return nil
	}
	return &ravi.Event_LowDisk{Path: path, FreeBytes: free, TotalBytes: total}
}
