package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/keeper"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// prune is the command that removes what a crash left.
const prune = "ravi sandbox prune"

// settling is how long what is being made may have no record yet, and what was ended may need to go.
const settling = time.Minute

// living are the sandboxes of this home that are not to be touched: recorded ones that somebody owns, and those whose
// keeper answers.
type living struct {
	recorded map[string]store.Sandbox // live by the record, owned or not
	owned    map[string]bool
	keepers  map[int]bool // processes
}

func (p *patient) living(ctx context.Context) (l living, err error) {
	l = living{recorded: map[string]store.Sandbox{}, owned: map[string]bool{}, keepers: map[int]bool{}}
	if p.noStore() == nil {
		all, err := p.store.ListSandboxes(ctx, store.SandboxFilter{Live: true})
		if err != nil {
			return l, err
		}
		for _, b := range all {
			l.recorded[b.ID] = b
			if procid.Alive(b.Owner) || procid.Alive(b.Keeper) {
				l.owned[b.ID] = true
			}
			if procid.Alive(b.Keeper) {
				l.keepers[b.Keeper.PID] = true
			}
		}
	}
	dirs, err := os.ReadDir(filepath.Join(p.Home, "sandboxes"))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	for _, d := range dirs {
		if pid := keeperOf(filepath.Join(p.Home, "sandboxes", d.Name())); pid != 0 {
			l.keepers[pid], l.owned[d.Name()] = true, true
		}
	}
	return l, err
}

// keeperOf is the process that listens at a sandbox's control socket, 0 for none.
func keeperOf(dir string) int {
	c, err := net.DialTimeout("unix", filepath.Join(dir, keeper.ControlSocket), time.Second)
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	if err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	}); err != nil {
		return 0
	}
	return pid
}

// leakedSandboxes finds what the sweep would: sandboxes that nobody owns, and folders of none.
func leakedSandboxes(ctx context.Context, p *patient) (r result) {
	if why := p.noStore(); why != nil && p.store != nil {
		return *why
	}
	l, err := p.living(ctx)
	if err != nil {
		return skipped("%v", err)
	}
	var left []string
	for id, b := range l.recorded {
		if !l.owned[id] {
			left = append(left, fmt.Sprintf("%s is %s by the record, and its processes are gone", id, b.Seen))
		}
	}
	dirs, err := os.ReadDir(filepath.Join(p.Home, "sandboxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return skipped("%v", err)
	}
	for _, d := range dirs {
		_, recorded := l.recorded[d.Name()]
		path := filepath.Join(p.Home, "sandboxes", d.Name())
		if !l.owned[d.Name()] && !recorded && !p.fresh(path) {
			left = append(left, path+" is of no sandbox that lives")
		}
	}
	r.several(Warn, "leaks.sandbox", prune, left, "sandbox is left of one that ended otherwise than it should", "sandboxes are left of such that ended otherwise than they should")
	var scraps []string
	tries, err := filepath.Glob(filepath.Join(p.Home, tryPrefix+"*"))
	if err != nil {
		return skipped("%v", err)
	}
	for _, dir := range tries {
		if !p.fresh(dir) {
			scraps = append(scraps, dir)
		}
	}
	r.several(Warn, "leaks.trial", "rm -rf "+strings.Join(quoteAll(scraps), " "), scraps, "folder is left of a doctor that was killed", "folders are left of doctors that were killed")
	return r.saying("%s, and each has an owner", count(len(l.owned), "sandbox lives", "sandboxes live"))
}

// fresh says whether somebody may still be at a folder. One with a plan was made whole.
func (p *patient) fresh(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return true
	}
	_, err = os.Stat(filepath.Join(path, keeper.PlanFile))
	return err != nil && p.now().Sub(info.ModTime()) < settling
}

// several adds one finding about a number of things, if there are any.
func (r *result) several(s Severity, kind, fix string, things []string, one, many string) {
	if len(things) == 0 {
		return
	}
	slices.Sort(things)
	r.find(s, kind, "", fix, "%s", count(len(things), one, many))
	r.findings[len(r.findings)-1].Evidence = things
}

func quoteAll(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = quote(p)
	}
	return out
}

// leakedProcesses finds processes of sandboxes whose keeper is gone, and with each the network that lives as long as it.
func leakedProcesses(ctx context.Context, p *patient) (r result) {
	l, err := p.living(ctx)
	if err != nil {
		return skipped("%v", err)
	}
	programs, err := filepath.Glob(filepath.Join(p.Home, "lib", "*", "ravi-*"))
	if err != nil || len(programs) == 0 {
		return skipped("no sandbox was made in this home yet")
	}
	var files []fs.FileInfo
	for _, path := range programs {
		if info, err := os.Stat(path); err == nil {
			files = append(files, info)
		}
	}
	ours, parents, err := p.processesOf(files)
	if err != nil {
		return skipped("%v", err)
	}
	var left, pids []string
	for pid, name := range ours {
		if !descends(pid, parents, l.keepers) && !p.young(pid) && !adopted(pid, ours, parents) {
			left = append(left, fmt.Sprintf("process %d, %s%s", pid, name, p.networkOf(pid)))
			pids = append(pids, strconv.Itoa(pid))
		}
	}
	slices.Sort(pids)
	r.several(Warn, "leaks.process", "kill -9 "+strings.Join(pids, " "), left, "process of a sandbox has no keeper that anybody knows", "processes of sandboxes have no keeper that anybody knows")
	return r.saying("%s, all of sandboxes that live", count(len(ours), "process", "processes"))
}

// adopted says whether a process's parents lead to a program that is none of these: its own maker, which lives.
func adopted(pid int, ours map[int]string, parents map[int]int) bool {
	for range 64 {
		pid = parents[pid]
		if _, is := ours[pid]; !is {
			break
		}
	}
	return pid > 1 && !reaper(pid)
}

// reaper says whether a process is one that takes over those whose parent has ended.
func reaper(pid int) bool {
	b, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "comm"))
	name := strings.TrimSpace(string(b))
	return err == nil && slices.Contains([]string{"systemd", "init", "tini", "dumb-init", "catatonit", "docker-init"}, name)
}

// networkOf says that a process keeps a network namespace of its own.
func (p *patient) networkOf(pid int) string {
	if same, err := sameNetwork(p.proc, pid); err == nil && !same {
		return ", with a network of its own"
	}
	return ""
}

// processesOf are the processes that run one of these files, and the parents of all.
func (p *patient) processesOf(files []fs.FileInfo) (ours map[int]string, parents map[int]int, err error) {
	entries, err := os.ReadDir(p.proc)
	if err != nil {
		return nil, nil, err
	}
	ours, parents = map[int]string{}, map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(p.proc, e.Name(), "stat")); err == nil {
			if f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); len(f) > 1 {
				parents[pid], _ = strconv.Atoi(f[1])
			}
		}
		exe, err := os.Stat(filepath.Join(p.proc, e.Name(), "exe"))
		if err != nil {
			continue // it has ended, or is another user's
		}
		if i := slices.IndexFunc(files, func(f fs.FileInfo) bool { return os.SameFile(f, exe) }); i >= 0 {
			ours[pid] = files[i].Name()
		}
	}
	return ours, parents, nil
}

func descends(pid int, parents map[int]int, from map[int]bool) bool {
	for range 64 {
		if from[pid] {
			return true
		}
		if pid <= 1 {
			return false
		}
		pid = parents[pid]
	}
	return false
}

// young says whether a process began a moment ago, or has ended.
func (p *patient) young(pid int) bool {
	id, err := procid.Of(pid)
	if err != nil {
		return true
	}
	b, err := os.ReadFile(filepath.Join(procRoot, "uptime"))
	if err != nil {
		return false
	}
	var up float64
	if _, err := fmt.Sscan(string(b), &up); err != nil {
		return false
	}
	const ticks = 100 // USER_HZ, the same on all of Go's machines
	return time.Duration((up-float64(id.Start)/ticks)*float64(time.Second)) < p.settling
}

// hierarchy is a mounted tree of control groups.
type hierarchy struct {
	root string
	v2   bool
}

// hierarchies are those that are mounted (proc_pid_mountinfo(5)).
func hierarchies(mountinfo string) ([]hierarchy, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []hierarchy
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(kind) > 0 && (kind[0] == "cgroup" || kind[0] == "cgroup2") {
			out = append(out, hierarchy{keeper.Unescape(fields[4]), kind[0] == "cgroup2"})
		}
	}
	return out, nil
}

// leakedCgroups finds control groups of sandboxes that are over. Those of other homes, which nobody here knows of, count
// once they are empty.
func leakedCgroups(ctx context.Context, p *patient) (r result) {
	roots, err := p.cgroups()
	if err != nil {
		return skipped("%v", err)
	}
	l, err := p.living(ctx)
	if err != nil {
		return skipped("%v", err)
	}
	var empty, busy []string
	groups := 0
	for _, h := range roots {
		entries, err := os.ReadDir(filepath.Join(h.root, "ravi"))
		if err != nil {
			continue // there is none
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			groups++
			path := filepath.Join(h.root, "ravi", e.Name())
			_, recorded := l.recorded[e.Name()]
			if recorded || l.owned[e.Name()] || p.newer(path) {
				continue
			}
			members, err := membersOf(path)
			switch {
			case err != nil:
			case members == 0:
				empty = append(empty, path)
			case p.ended(ctx, e.Name()):
				busy = append(busy, path)
			}
		}
	}
	r.several(Warn, "leaks.cgroup", "find "+strings.Join(quoteAll(empty), " ")+" -depth -type d -exec rmdir {} \\;", empty, "empty control group is of no sandbox that lives", "empty control groups are of no sandbox that lives")
	r.several(Error, "leaks.cgroup_busy", "cat "+strings.Join(quoteAll(suffixed(busy, "/cgroup.procs")), " ")+" | xargs kill -9", busy, "control group of a sandbox that ended has processes", "control groups of sandboxes that ended have processes")
	if groups == 0 {
		return r.saying("there are none")
	}
	return r.saying("%s, none left over", count(groups, "group", "groups"))
}

func suffixed(paths []string, suffix string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = p + suffix
	}
	return out
}

// newer says whether a folder was made a moment ago.
func (p *patient) newer(path string) bool {
	info, err := os.Stat(path)
	return err != nil || p.now().Sub(info.ModTime()) < p.settling
}

// ended says whether the record knows a sandbox, and that it is over.
func (p *patient) ended(ctx context.Context, id string) bool {
	if p.noStore() != nil {
		return false
	}
	b, err := p.store.Sandbox(ctx, id)
	return err == nil && b.ID == id && b.Seen.Final()
}

// membersOf is how many processes are in a control group and below it.
func membersOf(dir string) (n int, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		n += len(strings.Fields(string(b)))
		return err
	})
	return n, err
}

// leakedMounts finds mounts in folders of sandboxes that are over.
func leakedMounts(ctx context.Context, p *patient) (r result) {
	l, err := p.living(ctx)
	if err != nil {
		return skipped("%v", err)
	}
	f, err := os.Open(p.mountinfo)
	if err != nil {
		return skipped("%v", err)
	}
	defer f.Close()
	home := p.Home
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real // the kernel knows mounts by their real paths
	}
	var left []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		at := keeper.Unescape(fields[4])
		rest, in := strings.CutPrefix(at, filepath.Join(home, "sandboxes")+"/")
		id, _, _ := strings.Cut(rest, "/")
		if in && !l.owned[id] {
			left = append(left, at)
		}
	}
	slices.Reverse(left) // the innermost first
	r.several(Warn, "leaks.mount", "umount -l "+strings.Join(quoteAll(left), " "), left, "mount is left of a sandbox that ended", "mounts are left of sandboxes that ended")
	return r.saying("none is left over")
}
