package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// procInfo is what /proc says of one process.
type procInfo struct {
	pid, ppid, pgrp, session int
	comm                     string
	state                    byte
	rssPages                 int64
}

// readProcs lists the processes that are not yet over. One that vanishes
// meanwhile is left out.
func readProcs() ([]procInfo, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := make([]procInfo, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", name, "stat"))
		if err != nil {
			continue
		}
		if info, ok := parseStat(pid, stat); ok && info.state != 'Z' && info.state != 'X' {
			out = append(out, info)
		}
	}
	return out, nil
}

// parseStat reads /proc/PID/stat. The name in it is the process's own choice
// and may hold anything, so fields are counted from the last parenthesis.
func parseStat(pid int, stat []byte) (procInfo, bool) {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return procInfo{}, false
	}
	f := strings.Fields(string(stat[end+1:]))
	if len(f) < 22 || len(f[0]) != 1 {
		return procInfo{}, false
	}
	info := procInfo{pid: pid, comm: string(stat[open+1 : end]), state: f[0][0]}
	var err [4]error
	info.ppid, err[0] = strconv.Atoi(f[1])
	info.pgrp, err[1] = strconv.Atoi(f[2])
	info.session, err[2] = strconv.Atoi(f[3])
	info.rssPages, err[3] = strconv.ParseInt(f[21], 10, 64)
	return info, errors.Join(err[:]...) == nil
}

// maxEnviron bounds how much of a hostile environment is looked through.
const maxEnviron = 4 << 20

// markOf returns the mark in a process's environment, "" for none.
func markOf(pid int) string {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return ""
	}
	defer f.Close()
	env, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(entry, []byte(markName+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// treeOf picks p and what descends from it: children of members, however
// deep; members of its session, as long as it is surely its; and whatever
// carries its mark, so that a daemon that cut all ties is found as well. What
// is found already stays so, though its ties may have been cut since.
// Marks are remembered in seen, since reading them costs.
func treeOf(p *proc, all []procInfo, found map[int]bool, seen map[int]string) []procInfo {
	self := os.Getpid()
	alive := true
	select {
	case <-p.exited:
		alive = false
	default:
	}
	members := make(map[int]bool)
	for _, info := range all {
		switch {
		case info.pid == self || info.pid == 1:
		case found[info.pid]:
			members[info.pid] = true
		case alive && (info.pid == p.pid || info.session == p.pid || info.pgrp == p.pid):
			members[info.pid] = true
		default:
			mark, ok := seen[info.pid]
			if !ok {
				mark = markOf(info.pid)
				seen[info.pid] = mark
			}
			if mark == p.id {
				members[info.pid] = true
			}
		}
	}
	for grew := true; grew; {
		grew = false
		for _, info := range all {
			if !members[info.pid] && members[info.ppid] && info.pid != self && info.pid != 1 {
				members[info.pid], grew = true, true
			}
		}
	}
	out := make([]procInfo, 0, len(members))
	for _, info := range all {
		if members[info.pid] {
			out = append(out, info)
		}
	}
	return out
}

// killTree ends p with all that descends from it, and returns when nothing is
// left, with how many it found. All are stopped before any is killed: a tree
// that forks faster than it is killed one by one never ends.
func (s *Server) killTree(ctx context.Context, p *proc) (int, error) {
	p.killed.Store(true)
	found := make(map[int]bool)
	marks := make(map[int]string)
	for {
		all, err := readProcs()
		if err != nil {
			return len(found), err
		}
		fresh := false
		for _, info := range treeOf(p, all, found, marks) {
			if !found[info.pid] {
				found[info.pid], fresh = true, true
				s.signalMember(p, info.pid, unix.SIGSTOP)
			}
		}
		if !fresh {
			break
		}
	}
	for round := 0; ; round++ {
		all, err := readProcs()
		if err != nil {
			return len(found), err
		}
		left := treeOf(p, all, found, marks)
		for _, info := range left {
			found[info.pid] = true
			s.signalMember(p, info.pid, unix.SIGKILL)
		}
		if len(left) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return len(found), ctx.Err()
		case <-time.After(min(time.Duration(round+1)*time.Millisecond, 20*time.Millisecond)):
		}
	}
	select {
	case <-p.exited:
		return len(found), nil
	case <-ctx.Done():
		return len(found), ctx.Err()
	}
}

// signalTree sends any signal to p and all that descends from it.
func (s *Server) signalTree(p *proc, sig unix.Signal) (int, error) {
	all, err := readProcs()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, info := range treeOf(p, all, nil, make(map[int]string)) {
		if s.signalMember(p, info.pid, sig) {
			n++
		}
	}
	return n, nil
}

// signalMember signals one process. The started one is a child of ours, and
// signalled only while it is not reaped. Others may have ended and their
// numbers been given away since /proc was read, which a kernel that counts
// pids up makes next to impossible within that time.
func (s *Server) signalMember(p *proc, pid int, sig unix.Signal) bool {
	sent := false
	if pid == p.pid {
		s.reaper.alive(pid, func() { sent = unix.Kill(pid, sig) == nil })
		return sent
	}
	return unix.Kill(pid, sig) == nil
}

// EndDescendants ends every process that descends from this one. It is for an
// agent that is not PID 1: as a subreaper it is the parent of all orphans, and
// nobody would look for them once it is gone.
func EndDescendants(ctx context.Context) error {
	self := os.Getpid()
	for round := 1; ; round++ {
		all, err := readProcs()
		if err != nil {
			return err
		}
		below := map[int]bool{self: true}
		for grew := true; grew; {
			grew = false
			for _, info := range all {
				if !below[info.pid] && below[info.ppid] {
					below[info.pid], grew = true, true
				}
			}
		}
		delete(below, self)
		if len(below) == 0 {
			return nil
		}
		for pid := range below {
			// In the first round they are only stopped, so that none forks while
			// the others are killed.
			sig := unix.SIGKILL
			if round == 1 {
				sig = unix.SIGSTOP
			}
			_ = unix.Kill(pid, sig) // whether it is gone shows in the next round
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(time.Duration(round)*time.Millisecond, 20*time.Millisecond)):
		}
	}
}
