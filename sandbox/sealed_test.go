package sandbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

// served is a service that tells that it was reached.
var served = sandbox.HTTPService(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "served\n")
}))

// sealed opens a sandbox on the host that is sealed, since it has a service.
func sealed(t *testing.T, home, workspace string, opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, append(opts, sandbox.WithHome(home), sandbox.WithService("gateway", served))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return sb
}

func TestSealedHost(t *testing.T) {
	home := t.TempDir()
	sandboxtest.Run(t, sandboxtest.Factory{
		Home: home,
		Open: func(t testing.TB, cfg sandbox.Config, workspace string, opts ...sandbox.Option) *sandbox.Sandbox {
			t.Helper()
			cfg.Backend = sandbox.BackendHost
			sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, append(opts, sandbox.WithHome(home), sandbox.WithService("gateway", served))...)
			if err != nil {
				t.Fatal(err)
			}
			return sb
		},
	})
}

const asUserEnv = "RAVI_TEST_AS_USER"

// TestSealedAsUser does the tests of this file again, as an ordinary user.
func TestSealedAsUser(t *testing.T) {
	if os.Geteuid() != 0 || os.Getenv(asUserEnv) != "" {
		t.Skip("this is an ordinary user: the other tests are this one")
	}
	if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || strings.TrimSpace(string(b)) == "0" {
		t.Skip("SKIP-FEATURE: an ordinary user can make no user namespaces here")
	}
	const user = 1000
	dir, err := os.MkdirTemp("/tmp", "ravi-user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "test")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err == nil {
		err = os.Chown(dir, user, user)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.v", "-test.run=^TestSealed(Attack|Hides|Leaves|SeesOnly)")
	cmd.Dir = dir
	cmd.Env = []string{asUserEnv + "=1", "HOME=" + dir, "TMPDIR=" + dir, "PATH=/usr/local/bin:/usr/bin:/bin", "RAVI_PROGRAM=" + os.Getenv("RAVI_PROGRAM")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestSealedHides") {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}

// askService is the command that asks it.
func askService(sb *sandbox.Sandbox) string {
	path := strings.TrimPrefix(sb.ServiceURL("gateway"), "unix:")
	return "cd " + filepath.Dir(path) + " && curl -s --unix-socket " + filepath.Base(path) + " http://gateway/"
}

// outside makes what a sealed sandbox must not reach, in a home.
func outside(t *testing.T, home string) target {
	t.Helper()
	a := target{Home: home, Secret: "what-nobody-in-there-may-see", Mark: "4711.2904"}
	other := sealed(t, home, "")
	if err := other.Files().Write(t.Context(), "/workspace/f", strings.NewReader(a.Secret)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ravi.db", "config.json", "secrets/one", "runs/run1/task.json"} {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(a.Secret), 0o600); err != nil {
			t.Fatal(err)
		}
		a.Files = append(a.Files, path)
	}
	a.Files = append(a.Files, filepath.Join(other.Workspace(), "f"))
	socket := filepath.Join(home, "cli-gateway.sock")
	l, err := listenLong(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	dir := filepath.Dir(other.Workspace())
	a.Sockets = []string{socket, filepath.Join(dir, "control.sock"), filepath.Join(dir, "link.sock"), strings.TrimPrefix(other.ServiceURL("gateway"), "unix:")}
	for _, s := range a.Sockets {
		c, err := dialLong(s)
		if err != nil {
			t.Fatalf("it cannot be reached from outside either: %v", err)
		}
		c.Close()
	}
	daemon := exec.Command("sleep", a.Mark)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	a.PID = daemon.Process.Pid
	var st unix.Stat_t
	if err := unix.Stat(home, &st); err != nil {
		t.Fatal(err)
	}
	a.Disk = st.Dev
	if os.Geteuid() == 0 {
		a.Elsewhere = elsewhere(t, home)
		// Where even root may not open the disk, another device stands for it.
		null, dir := unix.Mkdev(1, 3), t.TempDir()
		for node, device := range map[string]uint64{filepath.Join(dir, "disk"): a.Disk, filepath.Join(dir, "null"): null, fmt.Sprintf("/dev/ravi-test-%d", os.Getpid()): null} {
			kind := uint32(unix.S_IFCHR)
			if device == a.Disk {
				kind = unix.S_IFBLK
			}
			if err := unix.Mknod(node, kind|0o600, int(device)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove(node) })
			a.Disks = append(a.Disks, node)
		}
	}
	return a
}

func listenLong(path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))})
	if err == nil {
		l.SetUnlinkOnClose(false)
	}
	return l, err
}

// dialLong connects to a socket whose path may be longer than an address holds.
func dialLong(path string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// elsewhere mounts the file system of the home, and a part of that, once more.
func elsewhere(t *testing.T, home string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, of := range map[string]string{"all": filepath.Dir(home), "part": filepath.Join(home, "secrets"), "file": filepath.Join(home, "ravi.db")} {
		at := filepath.Join(dir, name)
		var err error
		if name == "file" {
			err = os.WriteFile(at, nil, 0o600)
		} else {
			err = os.Mkdir(at, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(of, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	out := []string{filepath.Join(dir, "all", filepath.Base(home), "ravi.db"), filepath.Join(dir, "part", "one"), filepath.Join(dir, "file")}
	for _, path := range out {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// ownersKey puts a key in the keyring that this thread's children get.
func ownersKey(t *testing.T) int {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if _, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 {
		t.Logf("SKIP-FEATURE: no keyrings here: %v", errno)
		return 0
	}
	key, err := unix.AddKey("user", "ravi-test", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestSealedHides(t *testing.T) {
	home := filepath.Join(t.TempDir(), "above", "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	a := outside(t, home)
	a.Key = ownersKey(t)
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "f"), []byte("given"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	cfg.ExtraVolumes = []sandbox.Volume{{Host: volume, Guest: volume, ReadOnly: true}}
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, "", sandbox.WithHome(home), sandbox.WithService("gateway", served))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	dir := filepath.Dir(sb.Workspace())
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := sh(t, sb, "ls "+dir)
	if seen != "bin\nprivate\nservices\ntmp\nworkspace\n" || len(entries) < 7 {
		t.Errorf("of %v it sees %q", entries, seen)
	}
	for _, name := range []string{"control.sock", "link.sock"} {
		a.Sockets = append(a.Sockets, filepath.Join(dir, name))
	}
	programs, err := filepath.Glob(filepath.Join(home, "lib", "*"))
	if err != nil || len(programs) == 0 {
		t.Fatal(programs, err)
	}
	a.ReadOnly = append(programs, filepath.Join(dir, "services"), filepath.Join(dir, "bin"), volume)
	given, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// As a daemon would: in a session of its own, its parents gone.
	res, err := sb.Exec(t.Context(), sandbox.Cmd{
		Shell: `(setsid sh -c '"$0" -test.run=^TestSealedAttack$ >report.new 2>&1; mv report.new report' ` + test + ` &) &
			until [ -e report ]; do sleep 0.1; done; cat report`, Timeout: sandbox.After(10 * time.Minute),
		Env: map[string]string{attackEnv: string(given), "RAVI_PROGRAM": "unused"}, MaxOutput: 4 << 20,
	})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v, %s", err, res.Text(0))
	}
	for line := range strings.Lines(res.Stdout) {
		if strings.HasPrefix(line, "GOT") {
			t.Error(line)
		}
	}
	tried := regexp.MustCompile(`(?m)^tried (\d+)$`).FindAllStringSubmatch(res.Stdout, -1)
	if len(tried) != 3 {
		t.Fatalf("it did not come to its end in three namespaces:\n%s", res.Stdout)
	}
	for _, n := range tried {
		t.Logf("%s attempts", n[1])
		if n, err := strconv.Atoi(n[1]); err != nil || n < 150 {
			t.Errorf("it tried only %d things", n)
		}
	}
	if out := sh(t, sb, "cat "+volume+"/f"); out != "given" {
		t.Errorf("what it was given reads %q", out)
	}
	if err := syscall.Kill(a.PID, 0); err != nil {
		t.Errorf("the process outside is gone: %v", err)
	}
	// It works all the same.
	if out := sh(t, sb, "echo x >f && git init -q . && git -c user.name=a -c user.email=a@b add f && git -c user.name=a -c user.email=a@b commit -qm m && git log --format=%s"); out != "m\n" {
		t.Errorf("git says %q", out)
	}
	if out := sh(t, sb, askService(sb)); out != "served\n" {
		t.Errorf("the service says %q", out)
	}
	if out := sh(t, sb, "readlink $(command -v ravi)"); !strings.HasSuffix(out, "/ravi-guest\n") {
		t.Errorf("ravi is %q", out)
	}
}
