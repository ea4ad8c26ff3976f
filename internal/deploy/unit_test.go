package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// setting is what a unit says of a key, in all its lines.
func setting(unit, key string) (out []string) {
	for line := range strings.Lines(unit) {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			out = append(out, strings.Fields(value)...)
		}
	}
	return out
}

func TestRunnersUnit(t *testing.T) {
	unit := read(t, "systemd/ravi-runner.service")
	t.Run("systemd takes it", func(t *testing.T) {
		analyze := need(t, "systemd-analyze")
		file := write(t, filepath.Join(t.TempDir(), "ravi-runner.service"), replace(t, unit, "/usr/local/bin/ravi", "/bin/true"))
		out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), "ravi-runner.service") { // what it does not know is a warning
			t.Errorf("%v %s", err, out)
		}
	})
	t.Run("its command is one", func(t *testing.T) {
		words := setting(unit, "ExecStart")
		help := ravi(t, filepath.Join(t.TempDir(), "home"), words[1], "--help")
		for _, w := range words[2:] {
			if strings.HasPrefix(w, "--") && !strings.Contains(help, w+" ") {
				t.Errorf("ravi %s knows no %s", words[1], w)
			}
		}
	})
	t.Run("what ends it", func(t *testing.T) {
		// With systemd's usual mode the sandboxes would be told to end along with the runner, which could not drain.
		if got := setting(unit, "KillMode"); !slices.Equal(got, []string{"mixed"}) {
			t.Error(got)
		}
	})
	t.Run("sandboxes work under it", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root takes rights away")
		}
		caps := "-all"
		for _, c := range setting(unit, "CapabilityBoundingSet") {
			caps += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
		}
		dir := t.TempDir()
		// ProtectSystem=full and ProtectHome=tmpfs, as systemd.exec(5) has them; NoNewPrivileges.
		script := `set -e
mount --make-rprivate /
for d in /usr /boot /etc; do [ ! -d $d ] || { mount --bind $d $d && mount -o remount,bind,ro $d; }; done
for d in /home /root /run/user; do [ ! -d $d ] || mount -t tmpfs -o ro none $d; done
exec setpriv --inh-caps=-all --bounding-set="$1" --no-new-privs "${@:2}"`
		// The network's device is the part that wants the most rights.
		sandboxRun(t, dir, "unshare", "--mount", "bash", "-c", script, "bash", caps)
	})
}

// sandboxRun makes a sandbox that has a network, with what goes before the program.
func sandboxRun(t *testing.T, dir string, before ...string) {
	t.Helper()
	// What is in /home and /root is not to be seen, so the program is copied.
	bin := filepath.Join(dir, "ravi")
	if out, err := exec.Command("cp", program(t), bin).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	src := filepath.Join(dir, "repo")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	repo(t, src)
	args := append(before, bin, "sandbox", "run", "--allow-net", "example.com", "--repo", src, "--", "sh", "-c", "echo more >> README.md; cat /proc/net/dev")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "RAVI_HOME=" + filepath.Join(dir, "home")}
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil || !regexp.MustCompile(`patch: 1 files?, \+1 -0, proven`).Match(out) || !strings.Contains(string(out), "eth0") {
		t.Errorf("%v\n%s", err, out)
	}
}

// What compose and Kubernetes leave a container is enough for sandboxes: an ordinary user, no capability, none to be had, and
// user namespaces.
func TestSandboxesInAContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root takes rights away")
	}
	const user = 1000
	// A folder that this user can reach: those of tests are below one of root's own.
	dir, err := os.MkdirTemp("/var/tmp", "ravi-deploy-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Flags&syscall.MS_NOEXEC != 0 {
		t.Skip("nothing can be started in /var/tmp: ", err)
	}
	script := fmt.Sprintf(`set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /mnt
mknod -m 666 /mnt/tun c 10 200
mount --bind /mnt/tun /dev/net/tun
chown -R %[1]d:%[1]d %[2]s
exec setpriv --reuid %[1]d --regid %[1]d --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$@"`, user, dir)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("this machine has no network devices for users: ", err)
	}
	sandboxRun(t, dir, "unshare", "--mount", "--pid", "--ipc", "--fork", "--mount-proc", "bash", "-c", script, "bash")
}
