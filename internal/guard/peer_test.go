package guard

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/keeper"
)

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: namespaces, users and control groups are made by root here")
	}
}

// operatorsSocket is a socket that says who asks.
func operatorsSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(privateDir(t), "s")
	l, err := ListenUnix(path)
	must(t, err)
	serve(t, l, who, Options{HeaderTimeout: time.Minute}) // one who has connected may have to start a process that asks
	return path
}

// told runs a role, and returns what it was told.
func told(t *testing.T, cmd *exec.Cmd, prepare func(pid int)) string {
	t.Helper()
	in, out := begin(t, cmd)
	if prepare != nil {
		prepare(cmd.Process.Pid)
	}
	fmt.Fprintln(in, "go")
	in.Close()
	b, err := io.ReadAll(out)
	must(t, err)
	return strings.TrimSpace(string(b))
}

func TestPeerIsTheOperator(t *testing.T) {
	socket := operatorsSocket(t)
	if got := told(t, roleOf("ask", socket), nil); got != "operator" {
		t.Error(got)
	}
	cmd := roleOf("ask", socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a session of its own makes no other user
	if got := told(t, cmd, nil); got != "operator" {
		t.Error(got)
	}
}

// A process in any namespace of its own is not the operator, be it root there and here.
func TestPeerInAnotherNamespace(t *testing.T) {
	needsRoot(t)
	socket := operatorsSocket(t)
	own := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	for name, c := range map[string]struct {
		flags uintptr
		says  string
	}{
		"process": {syscall.CLONE_NEWPID, "another process namespace"},
		"mount":   {syscall.CLONE_NEWNS, "another mount namespace"},
		"network": {syscall.CLONE_NEWNET, "another network namespace"},
		"user":    {syscall.CLONE_NEWUSER, "another user namespace"},
		"all":     {syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER, "another"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := roleOf("ask", socket)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.flags}
			if c.flags&syscall.CLONE_NEWUSER != 0 {
				cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = own, own
			}
			if got := told(t, cmd, nil); !strings.Contains(got, "not positively the operator") || !strings.Contains(got, c.says) {
				t.Error(got)
			}
		})
	}
}

// A process beneath a sandbox's group is not the operator, in whichever hierarchy it is, at whatever depth, and also
// after it left its session and its family.
func TestPeerInASandboxesGroup(t *testing.T) {
	needsRoot(t)
	socket := operatorsSocket(t)
	name := "ravi/sbxguard" + strconv.Itoa(os.Getpid())
	tried := 0
	try := func(group, role string) {
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Logf("no groups in %s: %v", group, err)
			return
		}
		t.Cleanup(func() { remove(group) })
		got := told(t, roleOf(role, socket), func(pid int) {
			must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644))
		})
		if !strings.Contains(got, "not positively the operator") || !strings.Contains(got, "control group of the sandbox") {
			t.Errorf("%s, %s: %s", group, role, got)
		}
		tried++
	}
	all := hierarchies(t)
	for _, root := range all {
		try(filepath.Join(root, name), "ask")
	}
	if tried == 0 {
		t.Skip("SKIP-FEATURE: no control groups can be made here")
	}
	try(filepath.Join(all[0], name, "deep"), "ask")
	try(filepath.Join(all[0], name, "left"), "fork and ask")
}

// remove removes a group, which the kernel holds for a moment after its last process.
func remove(group string) {
	for range 6000 {
		if err := unix.Rmdir(group); !errors.Is(err, unix.EBUSY) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hierarchies are where control groups can be made.
func hierarchies(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var out []string
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		if strings.HasPrefix(after, "cgroup") && !strings.Contains(after, "cpuset") { // cpuset wants to be told its processors first
			out = append(out, strings.Fields(before)[4])
		}
	}
	return out
}

func TestPeerOfAnotherUser(t *testing.T) {
	needsRoot(t)
	socket := operatorsSocket(t)
	openToAll(t, socket)
	cmd := roleOf("ask plainly", socket)
	cmd.SysProcAttr = asUser(65534)
	if got := told(t, cmd, nil); !strings.Contains(got, "it is of user 65534") {
		t.Error(got)
	}
	if got := told(t, roleOf("ask as two", socket), nil); !strings.Contains(got, "not the rights of user 0 alone") {
		t.Error(got)
	}
}

// openToAll lets other users connect, as no listener of ours does.
func openToAll(t *testing.T, socket string) {
	t.Helper()
	must(t, os.Chmod(socket, 0o777))
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
}

// Root is not the operator of a daemon of another user.
func TestRootIsNobodyElsesOperator(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chmod(dir, 0o755))
	home := filepath.Join(dir, "home")
	must(t, os.Mkdir(home, 0o700))
	must(t, os.Chown(home, 65534, 65534))
	socket := filepath.Join(home, "s")
	cmd := roleOf("serve", socket)
	cmd.SysProcAttr = asUser(65534)
	_, out := begin(t, cmd)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if got := told(t, roleOf("ask plainly", socket), nil); !strings.Contains(got, "it is of user 0, and Ravi runs as user 65534") {
		t.Error(got)
	}
	same := roleOf("ask", socket)
	same.SysProcAttr = asUser(65534)
	if got := told(t, same, nil); got != "operator" {
		t.Errorf("the user himself: %s", got)
	}
}

// A process that ended and left its connection to a child vouches for it no more.
func TestPeerThatLeftItsConnection(t *testing.T) {
	socket := operatorsSocket(t)
	cmd := roleOf("leave a child", socket)
	in, out := begin(t, cmd)
	waited, err := cmd.Process.Wait() // the pipes stay, for the child
	must(t, err)
	if !waited.Success() {
		t.Fatal(waited)
	}
	fmt.Fprintln(in, "go")
	b, err := io.ReadAll(out)
	must(t, err)
	if !strings.Contains(string(b), "it has ended") {
		t.Errorf("%s", b)
	}
}

// A process that ended, and whose number another has now, is not that other.
func TestPeerWhoseNumberIsAnothers(t *testing.T) {
	needsRoot(t)
	cmd := roleOf("reuse", filepath.Join(privateDir(t), "s"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	_, out := begin(t, cmd)
	b, err := io.ReadAll(out)
	must(t, err)
	got := string(b)
	if strings.Contains(got, "SKIP-FEATURE") {
		t.Skip(got)
	}
	for _, want := range []string{"first: operator\n", "number is given again\n", "waiting: ", "accepted: ", "over\n"} {
		if !strings.Contains(got, want) {
			t.Fatalf("no %q in %s", want, got)
		}
	}
	for line := range strings.Lines(got) {
		if (strings.HasPrefix(line, "waiting") || strings.HasPrefix(line, "accepted")) && !strings.Contains(line, "it has ended") {
			t.Error(line)
		}
	}
}

// Who listens in a process namespace of his own does not see the others, and lets none of them in.
func TestPeerFromOutside(t *testing.T) {
	needsRoot(t)
	socket := filepath.Join(privateDir(t), "s")
	cmd := roleOf("serve", socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	_, out := begin(t, cmd)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if got := told(t, roleOf("ask", socket), nil); !strings.Contains(got, "another process namespace") {
		t.Error(got)
	}
}

func TestNoPeer(t *testing.T) {
	var p *Peer
	if err := p.SameWorld(); !errors.Is(err, ErrNotOperator) {
		t.Errorf("got %v", err)
	}
	if err := (&Peer{UID: uint32(os.Geteuid()), PID: os.Getpid()}).SameWorld(); !errors.Is(err, ErrNotOperator) {
		t.Errorf("got %v", err)
	}
}

// A connection that was closed has no peer any more, and its descriptor is not asked again.
func TestClosedPeer(t *testing.T) {
	proc, err := openProcess(os.Getpid(), -1)
	must(t, err)
	p := &Peer{UID: uint32(os.Geteuid()), PID: os.Getpid(), proc: proc}
	must(t, p.SameWorld())
	p.close()
	if err := p.SameWorld(); !errors.Is(err, ErrNotOperator) || !strings.Contains(err.Error(), "its connection is closed") {
		t.Errorf("got %v", err)
	}
}

func TestSelfIsOperator(t *testing.T) {
	if err := SelfIsOperator(); err != nil {
		t.Errorf("got %v", err)
	}
	needsRoot(t)
	for _, root := range hierarchies(t) {
		group := filepath.Join(root, "ravi/sbxself"+strconv.Itoa(os.Getpid()))
		if err := os.MkdirAll(group, 0o755); err != nil {
			continue
		}
		cmd := roleOf("self when told", "")
		got := told(t, cmd, func(pid int) {
			must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644))
		})
		remove(group)
		if !strings.Contains(got, "control group of the sandbox") {
			t.Errorf("%s: %s", group, got)
		}
		break
	}
	// In a process namespace whose /proc is the outer one, this process is not the one that is shown.
	cmd := roleOf("self when told", "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if got := told(t, cmd, nil); !strings.Contains(got, "not positively the operator") {
		t.Error(got)
	}
}

// A guest agent as the first process makes a sandbox, whatever its environment shows.
func TestFirstProcess(t *testing.T) {
	id := "sbx0"
	for name, c := range map[string]struct {
		cmdline, environ string
		sandbox          bool
	}{
		"the host's guest agent": {keeper.GuestName(id) + "\x00", "", true},
		"gVisor's guest agent":   {"/.ravi/ravi-guest\x00--x\x00", "PATH=/bin\x00", true},
		"a sealed host's relay":  {"ravi-relay\x00--x\x00", "", true},
		"its mark":               {"sh\x00", "A=b\x00" + keeper.MarkName + "=" + id + "\x00", true},
		"systemd":                {"/sbin/init\x00splash\x00", "HOME=/\x00", false},
		"a container's":          {"sh\x00-c\x00ravi-guest\x00", "X" + keeper.MarkName + "=1\x00", false},
		"ravi itself":            {"/usr/bin/ravi\x00daemon\x00", "", false},
		"nothing":                {"", "", false},
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "cmdline"), []byte(c.cmdline), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, "environ"), []byte(c.environ), 0o600))
		if err := checkFirst(dir); (err != nil) != c.sandbox {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkFirst(filepath.Join(t.TempDir(), "hidden")); err != nil {
		t.Errorf("hidden: %v", err)
	}
}

func TestParseStatus(t *testing.T) {
	good := "Name:\tsh\nState:\tS (sleeping)\nTgid:\t12\nNgid:\t0\nUid:\t7\t7\t7\t7\nGid:\t0\t0\t0\t0\nNSpid:\t12\n"
	if err := parseStatus([]byte(good), 12, 7); err != nil {
		t.Errorf("got %v", err)
	}
	for name, c := range map[string]struct{ old, new, says string }{
		"zombie":               {"S (sleeping)", "Z (zombie)", "ended"},
		"dead":                 {"S (sleeping)", "X (dead)", "ended"},
		"no state":             {"S (sleeping)", "", "ended"},
		"another process":      {"Tgid:\t12", "Tgid:\t13", "another process"},
		"a process beneath":    {"NSpid:\t12", "NSpid:\t12\t1", "another process namespace"},
		"a real user":          {"7\t7\t7\t7", "8\t7\t7\t7", "rights"},
		"an effective user":    {"7\t7\t7\t7", "7\t8\t7\t7", "rights"},
		"a saved user":         {"7\t7\t7\t7", "7\t7\t8\t7", "rights"},
		"a file user":          {"7\t7\t7\t7", "7\t7\t7\t8", "rights"},
		"no users":             {"Uid:\t7\t7\t7\t7\n", "", "complete"},
		"no number":            {"NSpid:\t12\n", "", "complete"},
		"cut in the middle":    {"Gid:\t0\t0\t0\t0\nNSpid:\t12\n", "", "complete"},
		"no state line":        {"State:\tS (sleeping)\n", "", "complete"},
		"a name that pretends": {"Uid:\t7\t7\t7\t7", "Uid:\t0\t0\t0\t0", "rights"},
	} {
		if err := parseStatus([]byte(strings.Replace(good, c.old, c.new, 1)), 12, 7); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseGroups(t *testing.T) {
	for in, says := range map[string]string{
		"0::/\n": "",
		"9:name=systemd:/user.slice/user-1000.slice\n0::/user.slice\n": "",
		"0::/lxc/ravi/init.scope\n":                                    "", // a container that is called so
		"0::/ravi/other\n":                                             "",
		"0::/xravi/sbx1\n":                                             "",
		"":                                                             "",
		"0::/ravi/sbx1\n":                                              "sandbox",
		"0::/ravi/sbx1":                                                "sandbox",
		"0::/ravi/sbx1 (deleted)\n":                                    "sandbox",
		"0::/ravi/sbx1/a/b\n":                                          "sandbox",
		"0::/docker/abc/ravi/sbx1\n":                                   "sandbox",
		"0::/../../ravi/sbx1\n":                                        "sandbox",
		"2:cpu,cpuacct:/\n1:name=x:/ravi/sbx1\n0::/\n":                 "sandbox",
		"2:cpu:/ravi/sbx1\n0::/\n":                                     "sandbox",
		"0::/ravi/ravi/sbx1\n":                                         "sandbox",
		"0::\n":                                                        "cannot be told",
		"0:/\n":                                                        "cannot be told",
		"\n":                                                           "cannot be told",
		"0::ravi/sbx1\n":                                               "cannot be told",
	} {
		err := parseGroups([]byte(in))
		if (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte("0::/ravi/sbx1\n"))
	f.Add([]byte("State:\tS\nTgid:\t1\nUid:\t0\t0\t0\t0\nNSpid:\t1\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		_ = parseStatus(in, 1, 0)
		if err := parseGroups(in); err == nil && strings.Contains(string(in), "/ravi/sbx") {
			t.Errorf("%q passes", in)
		}
	})
}

func BenchmarkSameWorld(b *testing.B) {
	proc, err := openProcess(os.Getpid(), -1)
	if err != nil {
		b.Fatal(err)
	}
	p := &Peer{UID: uint32(os.Geteuid()), PID: os.Getpid(), proc: proc}
	defer p.close()
	for b.Loop() {
		if err := p.SameWorld(); err != nil {
			b.Fatal(err)
		}
	}
}
