package guest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/process"
	"ravi/internal/guestapi/ravi"
)

func TestDeadlineKillsTheTree(t *testing.T) {
	g := startGuest(t, Options{})
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	// One child of each kind: plain, in a session of its own, and a daemon
	// whose parents are gone.
	msg := sh(`rm -f daemon; (echo $BASHPID; exec sleep 1000) & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & echo $! > daemon.new; mv daemon.new daemon' &) ; sh -c 'echo $PPID' > parent; sleep 1000`)
	msg.Process.Cwd = &dir
	var r *run
	// The time must be over once all of them are there, however long that takes.
	for limit := 2 * time.Second; ; limit *= 4 {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		var err error
		if r, err = g.tryStart(t, ctx, msg); err == nil {
			err = r.drain()
		}
		wantCode(t, err, connect.CodeDeadlineExceeded)
		if _, err := os.Stat(filepath.Join(dir, "daemon")); err == nil && r != nil {
			break
		}
		if limit > testPatience {
			t.Fatal("there is no time in which they are all there")
		}
	}
	late := g.connect(t, testContext(t), r.pid)
	end := late.wait()
	if end.GetSignal() != 9 || !end.GetTimedOut() {
		t.Errorf("end is %v", end)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(readFile(t, filepath.Join(dir, "daemon"))))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon is gone", func() bool { return !runs(pid) })
	if left := marked(t, g, r.pid); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// marked lists processes that still have the mark of a started one.
func marked(t *testing.T, g *guestTest, pid uint32) (out []procInfo) {
	t.Helper()
	p, err := g.server.procs.find(byPid(pid), true)
	if err != nil {
		t.Fatal(err)
	}
	all, err := readProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range all {
		if markOf(info.pid) == p.id {
			out = append(out, info)
		}
	}
	return out
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTagsSignalsAndList(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	msg := sh(`trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
	tag := "server"
	msg.Tag = &tag
	r := g.start(t, ctx, msg)
	r.until(&r.stdout, "ready\n")
	list, err := g.Process.List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	got := list.Msg.GetProcesses()
	if len(got) != 1 || got[0].GetTag() != tag || got[0].GetPid() != r.pid || got[0].GetConfig().GetCmd() != "/bin/sh" {
		t.Errorf("list is %v", got)
	}
	if _, err := g.Process.SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{Process: byTag(tag), Signal: process.Signal_SIGNAL_SIGTERM})); err != nil {
		t.Fatal(err)
	}
	if end := r.wait(); end.GetExitCode() != 9 || !strings.HasSuffix(r.stdout.String(), "term\n") {
		t.Errorf("end is %v, output %q", end, r.stdout.String())
	}
	for _, sel := range []*process.ProcessSelector{byTag(tag), byPid(999999), byTag("")} {
		_, err := g.Process.SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{Process: sel, Signal: process.Signal_SIGNAL_SIGKILL}))
		wantCode(t, err, connect.CodeNotFound)
	}
	_, err = g.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{}))
	wantCode(t, err, connect.CodeInvalidArgument)
}

func TestKillTree(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	r := g.start(t, ctx, sh(`for i in 1 2 3; do (for j in 1 2 3; do sleep 1000 & done; wait) & done; (setsid sleep 1000 &); echo ready; wait`))
	r.until(&r.stdout, "ready\n")
	eventually(t, "all run", func() bool { return len(marked(t, g, r.pid)) >= 14 })

	no := false
	res, err := g.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: byPid(r.pid), Signal: int32(unix.SIGCONT), Tree: &no}))
	if err != nil || res.Msg.GetSignalled() != 1 {
		t.Errorf("signalled %v, %v; want the process alone", res, err)
	}
	res, err = g.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: byPid(r.pid)}))
	if err != nil || res.Msg.GetSignalled() < 14 {
		t.Errorf("signalled %v, %v", res, err)
	}
	if left := marked(t, g, r.pid); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if end := r.wait(); end.GetSignal() != 9 {
		t.Errorf("end is %v", end)
	}
}

func TestKillReachesWhatAnEndedProcessLeft(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	r := g.start(t, ctx, sh(`setsid sleep 1000 >/dev/null 2>&1 & exit 0`))
	r.wait()
	eventually(t, "one is left", func() bool { return len(marked(t, g, r.pid)) == 1 })
	res, err := g.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: byPid(r.pid)}))
	if err != nil || res.Msg.GetSignalled() != 1 || len(marked(t, g, r.pid)) != 0 {
		t.Errorf("signalled %v, %v", res, err)
	}
}

func TestForkBombCanBeKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts hundreds of processes")
	}
	g := startGuest(t, Options{})
	ctx := testContext(t)
	// Every generation forks on. The user's own limit keeps the machine, and
	// nothing starts without it.
	bomb := &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c",
		`ulimit -u 200 && [ "$(ulimit -u)" = 200 ] || exit 1; b() { b | b & sleep 0.05; }; echo ready; while :; do b; done`}}}
	r := g.start(t, ctx, bomb, "Authorization", basic("4322"))
	r.until(&r.stdout, "ready\n")
	eventually(t, "it forks", func() bool { return len(marked(t, g, r.pid)) > 100 })
	go func() { _ = r.drain() }()
	if _, err := g.Guest.Kill(ctx, connect.NewRequest(&ravi.KillRequest{Process: byPid(r.pid)})); err != nil {
		t.Fatal(err)
	}
	if left := marked(t, g, r.pid); len(left) > 0 {
		t.Errorf("%d are left", len(left))
	}
}

// What was found is ended though its parent is over meanwhile and nothing else leads to it any more.
func TestFoundIsNotLost(t *testing.T) {
	p := &proc{id: "mark", pid: 100, exited: make(chan struct{})}
	close(p.exited)
	// No such processes are there, so none has a mark.
	all := []procInfo{{pid: 1 << 30, ppid: 1, pgrp: 1 << 30, session: 1 << 30}, {pid: 1<<30 + 1, ppid: 1 << 30}, {pid: 1<<30 + 2, ppid: 1}}
	if got := treeOf(p, all, map[int]bool{1 << 30: true}, map[int]string{}); len(got) != 2 || got[0].pid != 1<<30 || got[1].pid != 1<<30+1 {
		t.Errorf("got %v", got)
	}
}
