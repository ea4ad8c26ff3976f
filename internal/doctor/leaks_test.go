package doctor

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/daemon"
	"ravi/internal/keeper"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// wait waits for what another process does.
func wait(t *testing.T, there func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		if there() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("it did not come to be")
}

// fakeKeeper lays out a program that is none of Ravi's under the name of one, and starts it, with nobody above it.
func fakeKeeper(b *bed) procid.ID {
	b.t.Helper()
	sleep, err := exec.LookPath("sleep")
	b.must(err)
	text, err := os.ReadFile(sleep)
	b.must(err)
	b.must(os.MkdirAll(b.path("lib/0000"), 0o700))
	program := b.path("lib/0000/ravi-keeper")
	b.must(os.WriteFile(program, text, 0o700))
	out, err := exec.Command("sh", "-c", "'"+program+"' 600 >/dev/null 2>&1 & echo $!").Output()
	b.must(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	b.must(err)
	var id procid.ID
	wait(b.t, func() bool {
		exe, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
		id, err = procid.Of(pid)
		return err == nil && exe == program
	})
	b.t.Cleanup(func() {
		if procid.Alive(id) {
			b.must(procid.Signal(id, unix.SIGKILL))
		}
	})
	return id
}

// A keeper that nobody knows is found; one that is recorded, and one that answers in a folder, is not.
func TestLeakedProcesses(t *testing.T) {
	const check, found = "leaks.processes", "leaks.process"
	b := newBed(t)
	b.machine = func(p *patient) { p.settling, p.orphan = 0, func(int) bool { return true } }
	id := fakeKeeper(b)
	f, ok := find(b.examine(check), found)
	if !ok || !strings.Contains(f.Evidence[0], strconv.Itoa(id.PID)) {
		t.Fatalf("%+v", f)
	}
	var row store.Sandbox
	b.with(func(s *store.Store) (err error) {
		row, err = s.InsertSandbox(t.Context(), store.Sandbox{Keeper: id, Seen: store.SeenRunning})
		return err
	})
	if f, ok := find(b.examine(check), found); ok {
		t.Errorf("it is recorded: %+v", f)
	}
	b.with(func(s *store.Store) error {
		_, err := s.UpdateSandboxState(t.Context(), row.ID, store.SeenEnded, "test")
		return err
	})
	b.machine = func(p *patient) { p.settling = time.Hour }
	if f, ok := find(b.examine(check), found); ok {
		t.Errorf("it may be about to be recorded: %+v", f)
	}
	b.machine = func(p *patient) { p.settling, p.orphan = 0, func(int) bool { return false } }
	if f, ok := find(b.examine(check), found); ok {
		t.Errorf("its maker lives: %+v", f)
	}
	b.machine = func(p *patient) { p.settling, p.orphan = 0, func(int) bool { return true } }
	f, ok = find(b.examine(check), found)
	if !ok {
		t.Fatal("it is over by the record, and lives")
	}
	b.shell(f)
	b.must(procid.Wait(t.Context(), id))
	if f, ok := find(b.examine(check), found); ok {
		t.Errorf("it has ended: %+v", f)
	}
}

// Who listens at a folder's control socket is its keeper, and the folder is no leak.
func TestAFolderWhoseKeeperAnswers(t *testing.T) {
	b := newBed(t)
	dir := b.path("sandboxes/sbxlive")
	b.must(os.MkdirAll(dir, 0o700))
	l, err := net.Listen("unix", filepath.Join(dir, keeper.ControlSocket))
	b.must(err)
	b.must(os.Chtimes(dir, time.Time{}, time.Now().Add(-time.Hour)))
	if pid := keeperOf(dir); pid != os.Getpid() {
		t.Errorf("its keeper is process %d", pid)
	}
	if r := b.examine("leaks.sandboxes"); len(r.Findings) > 0 {
		t.Errorf("%+v", r)
	}
	b.must(l.Close())
	b.must(os.Chtimes(dir, time.Time{}, time.Now().Add(-time.Hour)))
	if _, ok := find(b.examine("leaks.sandboxes"), "leaks.sandbox"); !ok {
		t.Error("nobody answers, and it is not found")
	}
}

// A control group of a sandbox that is over, with a process in it, is found as such; one of another home, with processes,
// is nobody's business.
func TestBusyCgroup(t *testing.T) {
	b := newBed(t)
	b.machine = fakeCgroups(b)
	var row store.Sandbox
	b.with(func(s *store.Store) (err error) {
		row, err = s.InsertSandbox(t.Context(), store.Sandbox{Seen: store.SeenEnded})
		return err
	})
	cmd := exec.Command("sleep", "600")
	b.must(cmd.Start())
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	for _, id := range []string{row.ID, "sbxother"} {
		b.must(os.MkdirAll(b.path("cgroup/ravi/"+id), 0o700))
		b.must(os.WriteFile(b.path("cgroup/ravi/"+id+"/cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600))
	}
	r := b.examine("leaks.cgroups")
	f, ok := find(r, "leaks.cgroup_busy")
	if !ok || len(r.Findings) != 1 || len(f.Evidence) != 1 {
		t.Fatalf("%+v", r)
	}
	b.shell(f)
	<-over // it was killed
	// The kernel takes it off the list; here that is for the test.
	for _, id := range []string{row.ID, "sbxother"} {
		b.must(os.RemoveAll(b.path("cgroup/ravi/" + id)))
	}
	if r := b.examine("leaks.cgroups"); len(r.Findings) > 0 {
		t.Errorf("%+v", r)
	}
}

// A port of the daemon that config.json knows nothing of is found by its process, and dialled as well.
func TestOtherPorts(t *testing.T) {
	b := newBed(t)
	self, err := procid.Self()
	b.must(err)
	b.machine = func(p *patient) { p.view = &View{State: daemon.State{Process: self}} }
	before := b.examine("ports.exposure")
	if len(before.Findings) > 0 {
		t.Skipf("SKIP-ENV: this process listens already: %+v", before.Findings)
	}
	l, err := net.Listen("tcp", "0.0.0.0:0")
	b.must(err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") // whatever is asked
			c.Close()
		}
	}()
	name := "port_" + strconv.Itoa(int(portOf(t, l.Addr())))
	r := b.examine("ports.exposure")
	if _, wide := find(r, name+".wide"); !wide {
		if f, ok := find(r, name+".exposed"); !ok || f.Severity == Info {
			t.Errorf("%+v", r)
		}
	}
	b.must(l.Close())
	if r := b.examine("ports.exposure"); len(r.Findings) > 0 {
		t.Errorf("%+v", r)
	}
}

// An agent program that is installed and lacks its Node.js is a warning.
func TestInstalledWithoutNode(t *testing.T) {
	b := newBed(t)
	b.machine = func(p *patient) {
		p.nodeSays = func(context.Context) string { return "v1.0.0" }
		p.installed = func(name string) bool { return name == "pi" }
	}
	f, ok := find(b.examine("agents.node"), "agents.node_missing")
	if !ok || f.Severity != Warn || f.ID != "agents.node_missing:pi" {
		t.Errorf("%+v", f)
	}
	b.machine = nodeIs("v99.0.0")
	if r := b.examine("agents.node"); len(r.Findings) > 0 {
		t.Errorf("%+v", r)
	}
}

// A check that does not come to its end is skipped, and not passed.
func TestACheckThatHangs(t *testing.T) {
	b := newBed(t)
	p, err := newPatient(t.Context(), b.options())
	b.must(err)
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	r := examine(ctx, p, []check{{"a.hangs", "It hangs", func(ctx context.Context, _ *patient) result {
		cancel()
		<-ctx.Done()
		return skipped("%v", context.Cause(ctx))
	}, false}, {"b.next", "It is not made", func(context.Context, *patient) result { t.Error("it was made"); return pass("") }, false}})
	if len(r.Checks) != 1 || r.Checks[0].Status != Skip || r.Summary.Skipped != 1 {
		t.Errorf("%+v", r)
	}
}

// What somebody owns who lives, or may still be at, is no leak: not its record, its folder, its control group or its mount.
func TestWhatLivesIsNoLeak(t *testing.T) {
	b := newBed(t)
	self, err := procid.Self()
	b.must(err)
	var row store.Sandbox
	b.with(func(s *store.Store) (err error) {
		row, err = s.InsertSandbox(t.Context(), store.Sandbox{Owner: self, Seen: store.SeenRunning})
		return err
	})
	b.must(os.MkdirAll(b.path("sandboxes/"+row.ID), 0o700))
	b.must(os.Chtimes(b.path("sandboxes/"+row.ID), time.Time{}, time.Now().Add(-time.Hour)))
	b.must(os.MkdirAll(b.path("sandboxes/sbxbegun"), 0o700)) // a moment ago, and not recorded yet
	b.must(os.MkdirAll(b.path("cgroup/ravi/"+row.ID), 0o700))
	b.write("mountinfo", "1 2 0:1 / "+b.path("sandboxes/"+row.ID)+"/work rw - tmpfs ravi rw\n", 0o600)
	b.machine = func(p *patient) {
		fakeCgroups(b)(p)
		p.mountinfo = b.path("mountinfo")
	}
	for _, check := range []string{"leaks.sandboxes", "leaks.cgroups", "leaks.mounts"} {
		if r := b.examine(check); len(r.Findings) > 0 || r.Checks[0].Status != Pass {
			t.Errorf("%+v", r)
		}
	}
	b.with(func(s *store.Store) error {
		_, err := s.UpdateSandboxState(t.Context(), row.ID, store.SeenEnded, "test")
		return err
	})
	for check, id := range map[string]string{"leaks.sandboxes": "leaks.sandbox", "leaks.cgroups": "leaks.cgroup", "leaks.mounts": "leaks.mount"} {
		r := b.examine(check)
		if f, ok := find(r, id); !ok || !strings.Contains(f.Evidence[0], row.ID) || len(f.Evidence) != 1 {
			t.Errorf("it is over, and what is left of it is not found: %+v", r)
		}
	}
}
