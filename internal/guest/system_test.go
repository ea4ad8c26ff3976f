package guest

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/filesystem"
	"ravi/internal/guestapi/ravi"
)

func TestAccounts(t *testing.T) {
	a := testAccounts(t, "/home/user")
	for _, tc := range []struct {
		name string
		want account
	}{
		{"root", account{name: "root", home: "/root", shell: "/bin/bash", groups: []uint32{0}}},
		{"user", account{name: "user", uid: 1000, gid: 1000, home: "/home/user", shell: "/bin/sh", groups: []uint32{1000, 2000, 2001}}},
		{"1000", account{name: "user", uid: 1000, gid: 1000, home: "/home/user", shell: "/bin/sh", groups: []uint32{1000, 2000, 2001}}},
		{"nohome", account{name: "nohome", uid: 1001, gid: 1001, home: "/", shell: "/bin/sh", groups: []uint32{1001}}},
		{"7777", account{name: "7777", uid: 7777, gid: 7777, home: "/", shell: "/bin/sh", groups: []uint32{7777}}},
	} {
		got, err := a.lookup(tc.name)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(account{})); err != nil || diff != "" {
			t.Errorf("%s: %v %s", tc.name, err, diff)
		}
	}
	for _, name := range []string{"stranger", "-1", "4294967295", "99999999999", "broken line", " "} {
		if got, err := a.lookup(name); !errors.Is(err, errUnknownUser) {
			t.Errorf("%q gives %v, %v", name, got, err)
		}
	}
	if got, err := (accounts{passwd: "/none", group: "/none"}).lookup("root"); err != nil || got.uid != 0 {
		t.Errorf("root without files: %v, %v", got, err)
	}
	if owner, group := a.names(1000, 2000); owner != "user" || group != "extra" {
		t.Errorf("names are %s, %s", owner, group)
	}
	if owner, group := a.names(5, 6); owner != "5" || group != "6" {
		t.Errorf("names are %s, %s", owner, group)
	}
}

func TestParseStat(t *testing.T) {
	const fields = " S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 321 18446744073709551615"
	for name, want := range map[string]procInfo{
		"5 (sh)" + fields:               {pid: 5, comm: "sh", state: 'S', ppid: 7, pgrp: 8, session: 9, rssPages: 321},
		"5 (a) Z 1 1 1 (b)" + fields:    {pid: 5, comm: "a) Z 1 1 1 (b", state: 'S', ppid: 7, pgrp: 8, session: 9, rssPages: 321},
		"5 (new\nline)" + fields + " 1": {pid: 5, comm: "new\nline", state: 'S', ppid: 7, pgrp: 8, session: 9, rssPages: 321},
	} {
		got, ok := parseStat(5, []byte(name))
		if !ok || got != want {
			t.Errorf("%q gives %+v, %v", name, got, ok)
		}
	}
	for _, bad := range []string{"", "5", "5 (sh", "5 (sh) S", ")(", "5 (sh) S x 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 321"} {
		if got, ok := parseStat(5, []byte(bad)); ok {
			t.Errorf("%q gives %+v", bad, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("5 (sh) S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 321"))
	f.Fuzz(func(t *testing.T, stat []byte) { parseStat(1, stat) })
}

func TestParseMeminfo(t *testing.T) {
	m := parseMeminfo([]byte("MemTotal:  1000 kB\nMemAvailable: 400 kB\nHugePages_Total:   3\nodd\nBad: x kB\n"))
	if m["MemTotal"] != 1000<<10 || m["HugePages_Total"] != 3 || m.used() != 600<<10 || len(m) != 3 {
		t.Errorf("got %v", m)
	}
}

func TestMetrics(t *testing.T) {
	g := startGuest(t, Options{MemoryLimit: 1 << 40, memoryUsed: func() (uint64, error) { return 5 << 20, nil }})
	_, _, body := call(t, g.HTTP, "GET", g.URL+"/metrics", nil)
	var m metrics
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	if m.CPUCount < 1 || m.CPUUsedPct < 0 || m.CPUUsedPct > 100 || m.MemTotal != 1<<40 || m.MemUsed != 5<<20 || m.MemUsedMB != 5 ||
		m.DiskTotal == 0 || m.DiskUsed > m.DiskTotal || m.Timestamp == 0 {
		t.Errorf("metrics are %s", body)
	}
}

func TestInit(t *testing.T) {
	g := startGuest(t, Options{})
	post := func(body string) int {
		t.Helper()
		status, _, _ := call(t, g.HTTP, "POST", g.URL+"/init", strings.NewReader(body))
		return status
	}
	for body, want := range map[string]int{
		"{":                                  400,
		`{"envVars":{"A=":"x"}}`:             400,
		`{"defaultUser":"stranger"}`:         401,
		`{"volumeMounts":[],"caBundle":"x"}`: 204,
		"":                                   204,
	} {
		if got := post(body); got != want {
			t.Errorf("%q gives %d, want %d", body, got, want)
		}
	}
	if post(`{"timestamp":"2026-01-02T00:00:00Z","envVars":{"A":"new"},"defaultWorkdir":"/tmp"}`) != 204 ||
		post(`{"timestamp":"2026-01-01T00:00:00Z","envVars":{"A":"old"}}`) != 204 {
		t.Error("refused")
	}
	if _, _, body := call(t, g.HTTP, "GET", g.URL+"/envs", nil); strings.TrimSpace(string(body)) != `{"A":"new"}` {
		t.Errorf("envs are %s: an older request won", body)
	}
	r := g.start(t, testContext(t), sh("pwd"))
	if r.wait(); r.stdout.String() != "/tmp\n" {
		t.Errorf("the directory is %q", r.stdout.String())
	}
	if e, err := g.Filesystem.Stat(testContext(t), connect.NewRequest(&filesystem.StatRequest{})); err != nil || e.Msg.GetEntry().GetPath() != "/tmp" {
		t.Errorf("%v, %v", e, err)
	}
}

// nextEvent takes events until one is wanted.
func nextEvent(t *testing.T, s *connect.ServerStreamForClient[ravi.Event], want func(*ravi.Event) bool) *ravi.Event {
	t.Helper()
	for s.Receive() {
		if want(s.Msg()) {
			return s.Msg()
		}
	}
	t.Fatalf("the stream ended: %v", s.Err())
	return nil
}

func TestMemoryWatchEndsTheLargest(t *testing.T) {
	// Too much is seen for a while: what the one process that is ended for it held is not given back at once.
	var looks atomic.Int64
	g := startGuest(t, Options{Version: "v1", MemoryLimit: 1 << 30, memoryUsed: func() (uint64, error) {
		if looks.Add(-1) >= 0 {
			return 1<<30 - 1, nil
		}
		return 0, nil
	}})
	ctx := testContext(t)
	s, err := g.Guest.Events(ctx, connect.NewRequest(&ravi.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() || s.Msg().GetReady().GetVersion() != "v1" {
		t.Fatalf("the first event is %v, %v", s.Msg(), s.Err())
	}
	// A child of the started one holds much, and waits.
	tag := "hog"
	msg := sh(`mkfifo wait; exec 3<>wait; echo ready; head -c 150000000 /dev/zero | tail -c 150000000 >&3; sleep 0.5; echo over`)
	msg.Tag = &tag
	msg.Process.Cwd = &g.home
	r := g.start(t, ctx, msg)
	r.until(&r.stdout, "ready\n")
	p, err := g.server.procs.find(byPid(r.pid), false)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is the largest", func() bool {
		procs, err := readProcs()
		if err != nil {
			t.Fatal(err)
		}
		largest, owner := g.server.largest(procs)
		return owner == p && largest.pid != p.pid && largest.rssPages*4096 > 140<<20
	})
	looks.Store(5)
	ev := nextEvent(t, s, func(ev *ravi.Event) bool { return ev.GetOutOfMemory() != nil }).GetOutOfMemory()
	if ev.GetCmd() != "tail" || ev.GetProcessPid() != r.pid || ev.GetProcessTag() != tag || ev.GetLimitBytes() != 1<<30 || ev.GetRssBytes() < 140<<20 {
		t.Errorf("event is %v", ev)
	}
	if end := r.wait(); !end.GetOom() || !strings.HasSuffix(r.stdout.String(), "over\n") {
		t.Errorf("end is %v, output %q", end, r.stdout.String())
	}
	// Who comes later hears of it too.
	again, err := g.Guest.Events(ctx, connect.NewRequest(&ravi.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	nextEvent(t, again, func(ev *ravi.Event) bool { return ev.GetOutOfMemory().GetPid() == 0 && ev.GetReady() != nil })
	nextEvent(t, again, func(ev *ravi.Event) bool { return ev.GetOutOfMemory() != nil && ev.GetSeq() > 0 })
}

// Many processes that each hold little: their whole tree goes.
func TestMemoryWatchEndsATree(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	r := g.start(t, ctx, sh(`for i in 1 2 3 4 5 6; do (head -c 20000000 /dev/zero | tail -c 20000000 | sleep 1000) & done; echo ready; wait`))
	r.until(&r.stdout, "ready\n")
	p, err := g.server.procs.find(byPid(r.pid), false)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "they hold memory", func() bool {
		procs, err := readProcs()
		if err != nil {
			t.Fatal(err)
		}
		tree, sum := g.server.largestTree(procs)
		return tree == p && sum.rssPages*4096 > 100<<20
	})
	g.server.relieve(ctx, 1<<30, 1<<30, true)
	if end := r.wait(); !end.GetOom() || end.GetSignal() != int32(unix.SIGKILL) {
		t.Errorf("end is %v", end)
	}
	if left := marked(t, g, r.pid); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWhenMemoryIsLookedAt(t *testing.T) {
	for _, limit := range []uint64{64 << 20, 512 << 20, 2 << 30, 64 << 30} {
		mark := memoryMark(limit)
		if mark < limit/2 || mark > limit*23/24 || limit-mark < min(memoryHeadroom, limit/2) {
			t.Errorf("limit %d MiB: acts at %d MiB", limit>>20, mark>>20)
		}
		for used := uint64(0); used < limit; used += limit / 50 {
			d := nextLook(used, mark)
			if d < fastestLook || d > slowestLook {
				t.Errorf("looks after %v", d)
			}
			// Between two looks the limit cannot be reached.
			if d > fastestLook && used+uint64(d.Seconds()*assumedGrowth) > mark+1<<20 {
				t.Errorf("limit %d MiB, used %d MiB: looks after %v only", limit>>20, used>>20, d)
			}
		}
	}
}

func TestDiskWatchTellsOnce(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=100m"); err != nil {
		t.Skipf("SKIP-FEATURE: mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	var d diskWatch
	look := func() bool {
		d.looked = time.Time{}
		return d.look(dir) != nil
	}
	if look() {
		t.Error("an empty disk is told to be low")
	}
	if err := os.WriteFile(dir+"/f", make([]byte, 97<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if !look() || look() {
		t.Error("a low disk is not told once")
	}
	if err := os.Remove(dir + "/f"); err != nil {
		t.Fatal(err)
	}
	if look() {
		t.Error("an empty disk is told to be low")
	}
}

func TestSudoArguments(t *testing.T) {
	for _, tc := range []struct {
		args string
		want switchCall
		err  string
	}{
		{"id -u", switchCall{user: "root", command: []string{"id", "-u"}}, ""},
		{"-n -E -H id", switchCall{user: "root", keepEnv: true, command: []string{"id"}}, ""},
		{"-nEH -u user -- id -n", switchCall{user: "user", keepEnv: true, command: []string{"id", "-n"}}, ""},
		{"-uuser A=1 B=x=y id C=3", switchCall{user: "user", vars: []string{"A=1", "B=x=y"}, command: []string{"id", "C=3"}}, ""},
		{"--user=user --preserve-env=PATH id", switchCall{user: "user", keepEnv: true, command: []string{"id"}}, ""},
		{"-p prompt -S -k id", switchCall{user: "root", command: []string{"id"}}, ""},
		{"-i", switchCall{user: "root", login: true}, ""},
		{"-s", switchCall{user: "root", shell: true}, ""},
		{"-D /tmp -g extra pwd", switchCall{user: "root", dir: "/tmp", group: "extra", command: []string{"pwd"}}, ""},
		{"-v", switchCall{user: "root", nothing: true}, ""},
		{"-K", switchCall{user: "root", nothing: true}, ""},
		{"", switchCall{}, "no command"},
		{"-u", switchCall{}, "needs a value"},
		{"-e /etc/passwd", switchCall{}, "-e is not supported"},
		{"--edit x", switchCall{}, "--edit"},
	} {
		got, err := parseSudo(strings.Fields(tc.args))
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: %v", tc.args, err)
			}
			continue
		}
		if len(got.command) == 0 {
			got.command = nil
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(switchCall{})); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", tc.args, err, diff)
		}
	}
}

func TestSuArguments(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want switchCall
		err  string
	}{
		{nil, switchCall{user: "root", shell: true, su: true}, ""},
		{[]string{"-"}, switchCall{user: "root", shell: true, su: true, login: true}, ""},
		{[]string{"-", "user", "-c", "id; id"}, switchCall{user: "user", shell: true, su: true, login: true, command: []string{"-c", "id; id"}}, ""},
		{[]string{"-l", "-s", "/bin/sh", "user"}, switchCall{user: "user", shell: true, su: true, login: true, program: "/bin/sh"}, ""},
		{[]string{"-m", "user", "--command=id"}, switchCall{user: "user", shell: true, su: true, keepEnv: true, command: []string{"-c", "id"}}, ""},
		{[]string{"user", "-c"}, switchCall{}, "needs a value"},
		{[]string{"-X"}, switchCall{}, "not supported"},
	} {
		got, err := parseSu(tc.args)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: %v", tc.args, err)
			}
			continue
		}
		if len(got.command) == 0 {
			got.command = nil
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(switchCall{})); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", tc.args, err, diff)
		}
	}
}

func FuzzSwitchArguments(f *testing.F) {
	f.Add("-u user -- id")
	f.Add("- user -c id")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		if c, err := parseSudo(args); err == nil && !c.nothing && !c.login && !c.shell && len(c.command) == 0 {
			t.Errorf("%q: nothing to run", line)
		}
		_, _ = parseSu(args)
	})
}

func TestSwitchEnvironment(t *testing.T) {
	caller, to := account{name: "user", uid: 1000, gid: 1000}, account{name: "root", home: "/root", shell: "/bin/bash"}
	old := []string{"PATH=/p", "TERM=xterm", "LC_ALL=C", "FOO=bar", "HOME=/home/user", "RAVI_PROC=m", "RAVI_SWITCHING=1", "HTTPS_PROXY=x"}
	for _, tc := range []struct {
		name string
		call switchCall
		want []string
	}{
		{"sudo", switchCall{command: []string{"id", "-u"}, vars: []string{"A=1"}}, []string{
			"A=1", "HOME=/root", "HTTPS_PROXY=x", "LC_ALL=C", "LOGNAME=root", "PATH=/p", "RAVI_PROC=m", "SHELL=/bin/bash",
			"SUDO_COMMAND=id -u", "SUDO_GID=1000", "SUDO_UID=1000", "SUDO_USER=user", "TERM=xterm", "USER=root",
		}},
		{"su", switchCall{su: true, shell: true}, []string{
			"FOO=bar", "HOME=/root", "HTTPS_PROXY=x", "LC_ALL=C", "LOGNAME=root", "PATH=/p", "RAVI_PROC=m", "SHELL=/bin/bash", "TERM=xterm", "USER=root",
		}},
		{"su -", switchCall{su: true, shell: true, login: true}, []string{
			"HOME=/root", "HTTPS_PROXY=x", "LC_ALL=C", "LOGNAME=root", "PATH=" + defaultPath, "RAVI_PROC=m", "SHELL=/bin/bash", "TERM=xterm", "USER=root",
		}},
	} {
		if diff := cmp.Diff(tc.want, tc.call.environment(caller, to, old)); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
	if got := (switchCall{keepEnv: true}).environment(caller, to, old); !slices.Contains(got, "FOO=bar") || !slices.Contains(got, "HOME=/home/user") {
		t.Errorf("kept are %q", got)
	}
}

func TestSwitchQuotesForTheShell(t *testing.T) {
	c := switchCall{login: true, command: []string{"echo", "a b", "it's", "", "$HOME"}}
	got := c.argv(account{shell: "/bin/sh"}, nil)
	if want := []string{"/bin/sh", "-c", `echo 'a b' 'it'\''s' '' $HOME`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
