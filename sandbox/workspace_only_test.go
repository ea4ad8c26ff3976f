package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"ravi/sandbox"
)

// workspaceOnly opens a sandbox that sees its workspace only.
func workspaceOnly(t *testing.T, home, backendName, workspace string, allow sandbox.AllowNet) *sandbox.Sandbox {
	t.Helper()
	cfg := sandbox.Default()
	cfg.Backend, cfg.AllowNet = backendName, allow
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, sandbox.WithHome(home), sandbox.WithWorkspaceOnly())
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

// closedTo tries as a user to write in folders, and returns those in which that went well.
func closedTo(t *testing.T, sb *sandbox.Sandbox, user string, dirs ...string) string {
	t.Helper()
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: append([]string{"sh", "-c", `for d; do (echo x >"$d/mark") 2>/dev/null && echo "$d"; done`, "sh"}, dirs...), User: user})
	if err != nil {
		t.Fatal(err)
	}
	return res.Stdout
}

// Not even root writes anything in there but the workspace, /tmp, the homes and what is Ravi's own, nor gets the right to.
func TestWorkspaceOnly(t *testing.T) {
	// With a network there are certificates to lay down.
	sb := workspaceOnly(t, t.TempDir(), sandbox.BackendGVisor, "", sandbox.AllowNet{Rules: []string{"example.com"}})
	if got := closedTo(t, sb, "root", "/", "/etc", "/usr", "/usr/bin", "/bin", "/opt", "/srv", "/mnt", "/home", "/var", "/var/tmp", "/var/log", "/run", "/dev", "/sys", "/.ravi", "/ravi"); got != "" {
		t.Errorf("root writes in:\n%s", got)
	}
	const open = "/workspace\n/tmp\n/home/user\n/dev/shm\n"
	if got := closedTo(t, sb, "", "/workspace", "/tmp", "/home/user", "/dev/shm", "/root", "/run/ravi", "/var/lib/ravi", "/etc/ravi"); got != open {
		t.Errorf("the user writes in:\n%s", got)
	}
	for _, undo := range []string{
		"mount -o remount,rw /", "mount -o remount,bind,rw /", "mount -t tmpfs none /mnt", "umount /workspace",
		"unshare -m true", "unshare -rm sh -c 'mount -o remount,bind,rw / || mount -o remount,rw /'", "unshare -rm umount -l /tmp",
		"unshare -rm sh -c 'mount --bind / /tmp && echo x >/tmp/etc/mark'",
		"unshare -rm sh -c 'mount --bind / /tmp && mount -o remount,bind,rw /tmp'",
	} {
		if res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: undo, User: "root"}); err != nil || res.ExitCode == 0 {
			t.Errorf("root can %s: %v %s", undo, err, res.Text(0))
		}
	}
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: "sudo -n cat /proc/self/status /proc/1/status | grep ^Cap"})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("sudo: %v %s", err, res.Text(0))
	}
	for line := range strings.Lines(res.Stdout) {
		_, set, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if bits, err := strconv.ParseUint(set, 16, 64); err != nil || bits>>21&1 != 0 {
			t.Errorf("the right to mount is there: %s%v", line, err)
		}
	}
	for _, line := range []string{"echo x >/dev/null", "git init -q /workspace/r", "test -r /etc/ravi/ca.pem", "grep -q ^nameserver /etc/resolv.conf",
		`grep -qF "$(sed -n 2p /etc/ravi/ca.pem)" /etc/ssl/certs/ca-certificates.crt`, "sudo -n true"} {
		if res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: line}); err != nil || res.ExitCode != 0 {
			t.Errorf("%s: %v %s", line, err, res.Text(0))
		}
	}
}

// What a workspace only sandbox is not, and cannot be made.
func TestWorkspaceOnlyRefusals(t *testing.T) {
	cfg := sandbox.Default()
	cfg.ExtraVolumes = []sandbox.Volume{{Host: t.TempDir(), Guest: "/data"}}
	if _, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithWorkspaceOnly()); err == nil || !strings.Contains(err.Error(), "no volumes") {
		t.Errorf("with a volume: %v", err)
	}
	if _, err := sandbox.Open(t.Context(), sandbox.Default(), "", sandbox.WithHome(t.TempDir()), sandbox.WithWorkspaceOnly(), sandbox.WithCheckpoint(t.TempDir())); err == nil {
		t.Error("a checkpoint is restored")
	}
	if _, err := sandbox.Attach(t.Context(), sandbox.NewID(), sandbox.WithHome(t.TempDir()), sandbox.WithWorkspaceOnly()); err == nil || errors.Is(err, sandbox.ErrNoSandbox) {
		t.Errorf("it is asked of one that is there: %v", err)
	}
}

// On the host the user's files are not there, whoever may read them, and nothing but the workspace and the sandbox's own
// folders can be written.
func TestSealedSeesOnlyItsWorkspace(t *testing.T) {
	const secret = "what-lies-outside"
	user, home, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	beside, err := os.MkdirTemp("/var/tmp", "outside")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(beside) })
	t.Setenv("HOME", user)
	workspace := filepath.Join(elsewhere, "workspace")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{user, home, elsewhere, beside} {
		if err := os.WriteFile(filepath.Join(dir, "canary"), []byte(secret), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	closed := []string{"/", "/etc", "/usr", "/usr/bin", "/opt", "/srv", "/home", "/var", "/var/tmp", "/sys", beside}
	t.Cleanup(func() {
		for _, dir := range closed { // where a failure left one
			_ = os.Remove(filepath.Join(dir, "mark"))
		}
	})
	sb := workspaceOnly(t, home, sandbox.BackendHost, workspace, sandbox.AllowNet{})
	for _, as := range []string{"", "root"} {
		if as == "root" && os.Geteuid() != 0 {
			continue
		}
		for _, dir := range []string{user, home, elsewhere, beside} {
			if res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: []string{"cat", dir + "/canary"}, User: as}); err != nil || res.ExitCode == 0 {
				t.Errorf("it reads in %s: %v %s", dir, err, res.Text(0))
			}
		}
		closedTo(t, sb, as, user, home, elsewhere) // they may be in its /tmp, and nowhere else
		if got := closedTo(t, sb, as, closed...); got != "" {
			t.Errorf("it writes in:\n%s", got)
		}
	}
	if got := closedTo(t, sb, "", workspace, "/tmp"); got != workspace+"\n/tmp\n" {
		t.Errorf("of the workspace and /tmp it writes in:\n%s", got)
	}
	for _, dir := range []string{user, home, elsewhere, beside} {
		if _, err := os.Lstat(filepath.Join(dir, "mark")); err == nil {
			t.Errorf("it wrote in %s", dir)
		}
	}
	if b, err := os.ReadFile(filepath.Join(workspace, "mark")); err != nil || string(b) != "x\n" {
		t.Errorf("what is written in the workspace: %q, %v", b, err)
	}
	// Passwords and keys of the system are closed to root as well.
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Shell: "find /etc -type f ! -perm -004 -readable; cat /etc/shadow 2>/dev/null; head -c0 /etc/passwd || echo passwd"})
	if err != nil || res.Stdout != "" {
		t.Errorf("of /etc it reads: %s%v", res.Stdout, err)
	}
	// The home is its own, and goes with it; so it is for whoever joins.
	joined, err := sandbox.Attach(t.Context(), sb.ID, sandbox.WithHome(home))
	if err != nil {
		t.Fatal(err)
	}
	defer joined.Close()
	for _, s := range []*sandbox.Sandbox{sb, joined} {
		if got := sh(t, s, `echo y >>~/kept && echo "$HOME"`); strings.TrimSpace(got) != filepath.Join(home, "sandboxes", sb.ID, "home") {
			t.Errorf("the home is %s", got)
		}
	}
	if !joined.WorkspaceOnly() {
		t.Error("who joins does not know that it sees its workspace only")
	}
	if got := strings.Join(sb.Notes, " "); !strings.Contains(got, "workspace only") {
		t.Errorf("it is not told what is seen: %s", got)
	}
}
