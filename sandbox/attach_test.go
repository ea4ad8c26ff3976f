package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"ravi/internal/leaktest"
	"ravi/sandbox"
)

// gracedOwner begins the stages of owners whose sandboxes outlive them.
const gracedOwner = "graced"

// tools is a service that says who serves it.
func tools(who string) sandbox.Option {
	return sandbox.WithService("tools", sandbox.HTTPService(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, who)
	})))
}

func token(value string) sandbox.Option {
	return sandbox.WithSecrets(sandbox.Secret{Name: "TOKEN", Value: sandbox.SecretValue(value), Hosts: []string{"api.example.com"}})
}

// ownerWithGrace is an owner that is there to be killed.
func ownerWithGrace(stage string, say func(...any)) int {
	ctx := context.Background()
	cfg := sandbox.Default()
	cfg.Backend, cfg.MemoryMiB = sandbox.BackendGVisor, 512
	opts := []sandbox.Option{sandbox.WithGrace(time.Minute), sandbox.WithRecorder(announcer{say})}
	switch stage {
	case "graced network":
		cfg.AllowNet.Rules = []string{"api.example.com"}
		opts = append(opts, tools("the first"), token("the first value"))
	case "graced short":
		opts = append(opts, sandbox.WithGrace(time.Second))
	case "graced opening":
		opts = append(opts, sandbox.WithRecorder(stuck{announcer{say}}))
	}
	sb, err := sandbox.Open(ctx, cfg, "", opts...)
	if err != nil {
		say("error", err)
		return 1
	}
	_, err = sb.Start(ctx, sandbox.Cmd{Tag: "work", Stdout: onFirst(func() { say("running") }),
		Shell: "echo running; until [ -e /tmp/go ]; do sleep 0.02; done; head -c 3000000 /dev/zero; echo; echo later; exit 7"})
	if err != nil {
		say("error", err)
	}
	time.Sleep(10 * time.Minute) // it is killed before
	return 0
}

// stuck never comes back from the last step of opening.
type stuck struct{ announcer }

func (s stuck) Created(ctx context.Context, id string, pid int) error {
	_ = s.announcer.Created(ctx, id, pid) // it cannot fail
	select {}
}

func attach(t *testing.T, home, id string, opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	sb, err := sandbox.Attach(t.Context(), id, append(opts, sandbox.WithHome(home))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Close() })
	return sb
}

func says(t *testing.T, sb *sandbox.Sandbox, line string) string {
	t.Helper()
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: line})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(res.Stdout)
}

// An owner is killed while a command runs. Others hold its sandbox before, one of two takes it over, and what runs inside
// notices nothing.
func TestTakeOver(t *testing.T) {
	stage := "graced network"
	network := os.Geteuid() == 0
	if !network {
		stage = "graced"
	}
	home := t.TempDir()
	leaks := goleak.IgnoreCurrent()
	cmd, until := startOwner(t, stage, home)
	id := until("creating")
	until("running")

	// While the owner lives.
	guest, other := attach(t, home, id), attach(t, home, id)
	if got := says(t, guest, "echo hello; id -un"); got != "hello\n"+guest.User() {
		t.Errorf("a command of another process: %q", got)
	}
	wedged := make(chan struct{})
	stop, cancel := context.WithCancel(t.Context())
	p, err := other.Start(stop, sandbox.Cmd{Shell: "head -c 50000000 /dev/zero", Stdout: blocking(wedged)})
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, guest, "echo beside"); got != "beside" {
		t.Errorf("beside a command that nobody reads: %q", got)
	}
	cancel()
	close(wedged)
	if _, err := p.Wait(); err != nil {
		t.Errorf("the wedged command: %v", err)
	}
	list, err := guest.Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].Tag != "work" || list[0].PID == 0 || list[0].User != guest.User() || list[0].TTY || list[0].Args[0] != "/bin/sh" {
		t.Fatalf("the commands: %+v %v", list, err)
	}
	if st, err := other.Stats(t.Context()); err != nil || network && st.Processes == 0 {
		t.Errorf("what it uses: %+v %v", st, err)
	}
	if err := other.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := guest.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"the network":  guest.SetAllowNet(t.Context(), sandbox.AllowNet{All: true}),
		"a secret":     guest.SetSecret(t.Context(), "TOKEN", "x"),
		"a checkpoint": guest.Checkpoint(t.Context(), t.TempDir()),
	} {
		if !errors.Is(err, sandbox.ErrNotOwner) {
			t.Errorf("%s, by one who does not own it: %v", what, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Errorf("letting go: %v", err)
	}
	if err := other.Err(); !errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrEnded) {
		t.Errorf("after letting go: %v", err)
	}
	if _, err := sandbox.Attach(t.Context(), id, sandbox.WithHome(home), sandbox.WithTakeOver(time.Minute)); !errors.Is(err, sandbox.ErrOwned) {
		t.Errorf("taking over from an owner that lives: %v", err)
	}

	// One that is stopped lives as well.
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.Attach(t.Context(), id, sandbox.WithHome(home), sandbox.WithTakeOver(time.Minute)); !errors.Is(err, sandbox.ErrOwned) {
		t.Errorf("taking over from an owner that is stopped: %v", err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	unserved, since := make(chan string, 1), time.Time{}
	asked, stopAsking := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stopAsking()
	if network {
		// Nobody serves now; who asks is told, and one who asks just before the takeover is served.
		res, err := guest.Exec(asked, sandbox.Cmd{Shell: "curl -si http://tools.ravi.internal/x"})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"503 Service Unavailable", "Retry-After: 5\r\n", "Content-Type: application/json\r\n", `{"error":{"code":"UNAVAILABLE",`} {
			if !strings.Contains(res.Stdout, want) {
				t.Errorf("no %q in the answer of a service that nobody serves: %q", want, res.Stdout)
			}
		}
		since = time.Now()
		go func() {
			res, err := guest.Exec(asked, sandbox.Cmd{Shell: "curl -s http://tools.ravi.internal/"})
			unserved <- fmt.Sprint(res.Stdout, err)
		}()
	}

	// Two at once.
	var events netEvents
	opts := []sandbox.Option{sandbox.WithHome(home), sandbox.WithTakeOver(time.Minute), sandbox.WithNetEvents(events.hear)}
	if network {
		opts = append(opts, tools("the second"))
	}
	var both sync.WaitGroup
	holds, errs := make([]*sandbox.Sandbox, 2), make([]error, 2)
	for i := range 2 {
		both.Go(func() { holds[i], errs[i] = sandbox.Attach(t.Context(), id, opts...) })
	}
	both.Wait()
	took := time.Since(since)
	won := slices.IndexFunc(errs, func(err error) bool { return err == nil })
	if won < 0 || !errors.Is(errs[1-won], sandbox.ErrOwned) {
		t.Fatalf("two take over at once: %v", errs)
	}
	sb := holds[won]

	var out bytes.Buffer
	p, err = sb.Reconnect(t.Context(), sandbox.ProcessRef{Tag: "work"}, sandbox.Cmd{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if p.PID() != list[0].PID {
		t.Errorf("it is process %d now, and was %d", p.PID(), list[0].PID)
	}
	says(t, sb, "touch /tmp/go")
	st, err := p.Wait()
	if err != nil || st.ExitCode != 7 {
		t.Errorf("the command ended with %+v %v", st, err)
	}
	if want := strings.Repeat("\x00", 3000000) + "\nlater\n"; out.String() != want {
		t.Errorf("its later output has %d bytes, want %d", out.Len(), len(want))
	}
	if network {
		// An owner is awaited for ten seconds, and has told of its services a moment after it was attached.
		if got := <-unserved; got != "the second<nil>" && took < 5*time.Second {
			t.Errorf("asked of the service before there was an owner, for %v: %q", took, got)
		}
		placeholder := says(t, sb, "echo $TOKEN")
		if placeholder == "" || sb.Placeholders()["TOKEN"] != placeholder {
			t.Errorf("the placeholder is %q inside, and %q here", placeholder, sb.Placeholders()["TOKEN"])
		}
		if err := sb.SetSecret(t.Context(), "TOKEN", "x"); err == nil {
			t.Error("the value of a secret is replaced by one who was not given the secrets")
		}
		if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: []string{"other.example.com"}}); err != nil {
			t.Errorf("the network's rules: %v", err)
		}
		says(t, sb, "curl -s http://elsewhere.example.com/")
		eventually(t, func() bool {
			events.mu.Lock()
			defer events.mu.Unlock()
			return slices.ContainsFunc(events.all, func(e sandbox.NetEvent) bool { return e.Name == "elsewhere.example.com" && !e.Allowed })
		})

		// It lets go, and the next one brings the secrets.
		sb.Detach()
		sb, err = sandbox.Attach(t.Context(), id, append(opts, token("another value"))...)
		if err != nil {
			t.Fatal(err)
		}
		if sb.Placeholders()["TOKEN"] != placeholder {
			t.Errorf("the placeholder is %q, and was %q", sb.Placeholders()["TOKEN"], placeholder)
		}
		if err := sb.SetSecret(t.Context(), "TOKEN", "a third value"); err != nil {
			t.Errorf("the value of a secret: %v", err)
		}
	}
	if err := sb.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	<-guest.Ended()
	if err := guest.Err(); !errors.Is(err, sandbox.ErrEnded) || !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("another is told: %v", err)
	}
	guest.Close()
	nothingRemains(t, home, id)
	leaktest.None(t, leaks)
	if _, err := sandbox.Attach(t.Context(), id, sandbox.WithHome(home)); !errors.Is(err, sandbox.ErrNoSandbox) {
		t.Errorf("attaching to one that has ended: %v", err)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// blocking is a writer that does not write until its channel is closed.
type blocking chan struct{}

func (b blocking) Write(p []byte) (int, error) {
	<-b
	return len(p), nil
}

// What others do not take over in time ends, and so does what is not wholly open.
func TestNotTakenOver(t *testing.T) {
	for _, stage := range []string{"graced short", "graced opening"} {
		t.Run(stage, func(t *testing.T) {
			home := t.TempDir()
			cmd, until := startOwner(t, stage, home)
			id := until("creating")
			until("created")
			var guest *sandbox.Sandbox
			if stage == "graced short" {
				until("running")
				guest = attach(t, home, id) // which keeps nothing alive
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			nothingRemains(t, home, id)
			if guest != nil {
				<-guest.Ended()
				if err := guest.Err(); err == nil || !strings.Contains(err.Error(), "its owner was gone") {
					t.Errorf("the guest is told: %v", err)
				}
			}
		})
	}
}

// A new owner cleans up as the first one would, when the keeper is killed.
func TestKeeperKilledAfterTakeOver(t *testing.T) {
	home := t.TempDir()
	cmd, until := startOwner(t, "graced", home)
	id := until("creating")
	until("running")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	keep := &pidKeeper{}
	sb := attach(t, home, id, sandbox.WithTakeOver(time.Minute), sandbox.WithRecorder(keep))
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", keep.pid)); err != nil || !bytes.HasPrefix(b, []byte("ravi-keeper")) {
		t.Fatalf("the recorder was told of process %d: %q %v", keep.pid, b, err)
	}
	if err := unix.Kill(keep.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-sb.Ended()
	if err := sb.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	nothingRemains(t, home, id)
	if keep.reason != "keeper_died" {
		t.Errorf("the recorder was told of the end: %q", keep.reason)
	}
}

// What one who attaches must not give, and whom it does not find.
func TestAttachRefused(t *testing.T) {
	home := t.TempDir()
	id := sandbox.NewID()
	for _, bad := range []string{"", "sbx", "../" + id, id + "/", id + "x", strings.ToUpper(id), "sbx/../" + id[:20], ".", id} {
		if _, err := sandbox.Attach(t.Context(), bad, sandbox.WithHome(home)); !errors.Is(err, sandbox.ErrNoSandbox) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for what, o := range map[string]sandbox.Option{
		"a recorder": sandbox.WithRecorder(&pidKeeper{}), "events": sandbox.WithNetEvents(func(sandbox.NetEvent) {}),
		"secrets": token("x"), "services": tools("x"),
	} {
		if _, err := sandbox.Attach(t.Context(), id, sandbox.WithHome(home), o); !errors.Is(err, sandbox.ErrNotOwner) {
			t.Errorf("%s, without taking over: %v", what, err)
		}
	}
	for what, o := range map[string]sandbox.Option{
		"a grace": sandbox.WithGrace(time.Second), "a checkpoint": sandbox.WithCheckpoint("/x"), "a context": sandbox.WithContext("/x"),
		"a folder": sandbox.WithInput("/x"), "a floor": sandbox.WithNetworkFloor([]byte("{}")), "a proxy": sandbox.WithNetworkProxy(sandbox.NetworkProxy{}),
	} {
		if _, err := sandbox.Attach(t.Context(), id, sandbox.WithHome(home), sandbox.WithTakeOver(0), o); err == nil || errors.Is(err, sandbox.ErrNoSandbox) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The context is there to be read, by the sandbox's user whoever owns it on the host, and written by nobody.
func TestContext(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "memory"), 0o755), os.WriteFile(filepath.Join(dir, "memory", "a.md"), []byte("as it was"), 0o644),
		os.WriteFile(filepath.Join(dir, "own"), []byte("own"), 0o600)); err != nil {
		t.Fatal(err)
	}
	mapped := os.Geteuid() == 0
	if mapped {
		for _, name := range []string{"", "memory", "memory/a.md", "own"} {
			if err := os.Chown(filepath.Join(dir, name), 12345, 12345); err != nil {
				t.Fatal(err)
			}
		}
	}
	sb := openAt(t, t.TempDir(), "", sandbox.WithContext(dir))
	if sb.ContextDir() != "/ravi/context" {
		t.Errorf("it is at %q", sb.ContextDir())
	}
	if got := says(t, sb, "cat /ravi/context/memory/a.md"); got != "as it was" {
		t.Errorf("it reads %q", got)
	}
	if got := says(t, sb, "cat /ravi/context/own; stat -c %U /ravi/context/own"); mapped && got != "own"+sb.User() {
		t.Errorf("what is its owner's alone reads %q", got)
	}
	for _, user := range []string{"", "root"} {
		res, err := sb.Exec(t.Context(), sandbox.Cmd{User: user, GuestDir: "/", Shell: `cd /ravi/context
			echo x >memory/a.md; echo x >new; rm -f memory/a.md; mkdir m; mv memory moved; chmod 777 memory; chown 0 memory; ln -s /etc/passwd link; touch own
			mount -o remount,rw /ravi/context; mount -o remount,bind,rw /ravi/context; echo x >memory/a.md; echo x >new2; setfattr -n user.x -v y own
			python3 -c 'import os
for p in ("memory/a.md", "own"):
    for f in (os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        try: os.write(os.open(p, f), b"x"); print("written")
        except OSError: pass
'; true`})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(res.Stdout, "written") {
			t.Errorf("as %q it was written", user)
		}
	}
	var names []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if info, ierr := d.Info(); err == nil && ierr == nil {
			names = append(names, fmt.Sprintf("%s %v", strings.TrimPrefix(p, dir), info.Mode()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{" " + modeOf(t, dir), "/memory drwxr-xr-x", "/memory/a.md -rw-r--r--", "/own -rw-------"}
	if !slices.Equal(names, want) {
		t.Errorf("on the host there is %q, want %q", names, want)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "memory", "a.md")); err != nil || string(b) != "as it was" {
		t.Errorf("on the host it reads %q %v", b, err)
	}
	t.Run("ports", func(t *testing.T) { ports(t, sb) })
}

func modeOf(t *testing.T, path string) string {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode().String()
}

// A context is a folder, and no volume comes where it is.
func TestContextRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, file + "/none", filepath.Join(t.TempDir(), "none")} {
		var ie *sandbox.InitError
		if _, err := sandbox.Open(t.Context(), sandbox.Default(), "", sandbox.WithHome(t.TempDir()), sandbox.WithContext(dir)); !errors.As(err, &ie) || ie.Stage != "workspace" {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for _, at := range []string{"/ravi", "/ravi/context", "/ravi/context/x", "/ravi/../ravi/x"} {
		cfg := sandbox.Default()
		cfg.ExtraVolumes = []sandbox.Volume{{Host: filepath.Dir(file), Guest: at}}
		if err := cfg.Validate(); err == nil {
			t.Errorf("a volume at %s is taken", at)
		}
	}
}

// servers listens inside on three ports of loopback.
const servers = `import socket, threading, sys
def serve(family, host, port, what):
    l = socket.socket(family); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind((host, port)); l.listen(200)
    def loop():
        while True:
            c, _ = l.accept()
            threading.Thread(target=what, args=(c,), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start()
def echo(c):
    while True:
        b = c.recv(65536)
        if not b: break
        c.sendall(b)
    c.sendall(b"end"); c.close()
def cut(c):
    c.recv(1); c.sendall(b"part")
    import struct
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); c.close()
serve(socket.AF_INET, "127.0.0.1", 4001, echo)
serve(socket.AF_INET6, "::1", 4002, echo)
serve(socket.AF_INET, "127.0.0.1", 4003, cut)
print("running", flush=True)
sys.stdin.read()
`

// ports are reached over the private link alone, a bounded number at once.
func ports(t *testing.T, sb *sandbox.Sandbox) {
	running := make(chan struct{})
	hold, holder := io.Pipe()
	defer holder.Close()
	if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"python3", "-c", servers}, Stdin: hold, Stdout: onFirst(func() { close(running) })}); err != nil {
		t.Fatal(err)
	}
	<-running
	if _, err := holder.Write([]byte("\n")); err != nil { // once it is read, all that feeds the process is there, and belongs to before
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	for _, port := range []int{4001, 4002} {
		c, err := sb.DialPort(ctx, port)
		if err != nil {
			t.Fatal(err)
		}
		cancel() // which is for the connecting alone
		ctx, cancel = context.WithCancel(t.Context())
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
		go func() {
			_, _ = c.Write(sent) // what is missing shows in the reading
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, append(sent, "end"...)) {
			t.Errorf("port %d: %d bytes of %d came back: %v", port, len(got), len(sent), err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	defer cancel()

	c, err := sb.DialPort(ctx, 4001)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read that takes too long: %v", err)
	}
	c.Close()
	if c, err = sb.DialPort(ctx, 4003); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err == nil {
		t.Errorf("a connection that was cut ends in order, after %q", got)
	}
	c.Close()
	if _, err := sb.DialPort(ctx, 4999); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a port on which nobody listens: %v", err)
	}
	for _, port := range []int{0, -1, 65536} {
		if _, err := sb.DialPort(ctx, port); err == nil {
			t.Errorf("port %d is dialled", port)
		}
	}

	const most = 64
	var all []io.Closer
	var last error
	defer func() {
		if len(all) < most {
			t.Logf("%d are open; the next one: %v", len(all), last)
		} else if t.Failed() && last != nil {
			t.Log(last)
		}
	}()
	eventually(t, func() bool { // once those from before are over; what is open stays so, or each try would be in the next one's way
		for len(all) < most {
			c, err := sb.DialPort(ctx, 4001)
			if last = err; err != nil {
				return false
			}
			all = append(all, c)
		}
		return true
	})
	if c, err := sb.DialPort(ctx, 4001); err == nil {
		c.Close()
		t.Errorf("more than %d are open", most)
	} else if !strings.Contains(err.Error(), "64") {
		t.Errorf("one too many: %v", err)
	}
	for _, c := range all {
		c.Close()
	}
	// So many calls may have been given a second connection to the relay, which is kept for the next ones.
	eventually(t, func() bool {
		sb.Client().CloseIdleConnections()
		last = goleak.Find(before)
		return last == nil
	})
}
