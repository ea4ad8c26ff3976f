package sandbox_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"ravi/internal/backend"
	"ravi/sandbox"
)

// parentOf is the process that a process is the child of.
func parentOf(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	parent, err := strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// keepers are the processes of a sealed sandbox that are not commands.
func keepers(t *testing.T, sb *sandbox.Sandbox) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, p := range running(t, "ravi-guest:"+sb.ID) {
		pid, err := strconv.Atoi(strings.Split(p, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		out["guest agent"], out["maker"] = pid, parentOf(t, pid)
		out["supervisor"] = parentOf(t, out["maker"])
	}
	for _, p := range running(t, "ravi-relay") {
		// Another sandbox's may be gone by now, and has no parent then.
		if pid, err := strconv.Atoi(strings.Split(p, "/")[2]); err == nil && slices.Contains(children(out["supervisor"]), pid) {
			out["relay"] = pid
		}
	}
	if len(out) != 4 {
		t.Fatalf("found only %v", out)
	}
	return out
}

// namespacesWith lists the processes in whose mount namespace something of the
// sandbox is mounted.
func namespacesWith(t *testing.T, id string) (out []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(id)) {
			out = append(out, name)
		}
	}
	return out
}

func TestSealedLeavesNothing(t *testing.T) {
	other := bystander(t)
	for name, mark := range map[string]string{"": "4711.1004", "supervisor": "4712.1004", "relay": "4713.1004", "maker": "4714.1004", "guest agent": "4715.1004"} {
		t.Run("end of "+name, func(t *testing.T) {
			home := t.TempDir()
			sb := sealed(t, home, "")
			sh(t, sb, strings.ReplaceAll(daemons, "MARK", mark))
			if n := len(running(t, mark)); n < 5 {
				t.Fatalf("only %d daemons run", n)
			}
			if st, err := sb.Stats(t.Context()); err != nil || st.Processes < 6 || st.MemoryBytes < 1<<20 {
				t.Errorf("stats: %+v, %v", st, err)
			}
			if len(namespacesWith(t, sb.ID)) < 5 {
				t.Error("nothing of it is mounted anywhere")
			}
			if pids := keepers(t, sb); name != "" {
				if err := syscall.Kill(pids[name], syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				soon(t, "the sandbox ends by itself", func() bool { return sb.Err() != nil })
			}
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
			if left := running(t, mark); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if left := namespacesWith(t, sb.ID); len(left) > 0 {
				t.Errorf("it is still mounted: %v", left)
			}
			if left, err := os.ReadDir(filepath.Join(home, "sandboxes")); err != nil || len(left) > 0 {
				t.Errorf("left: %v %v", left, err)
			}
			groups, err := filepath.Glob("/sys/fs/cgroup/*/ravi/" + sb.ID)
			if more, _ := filepath.Glob("/sys/fs/cgroup/ravi/" + sb.ID); err != nil || len(groups)+len(more) > 0 {
				t.Errorf("left: %v %v %v", groups, more, err)
			}
			if !other() {
				t.Error("a process that was not the sandbox's was touched")
			}
		})
	}
}

// Where there is no way to hide Ravi, a sandbox that wants it hidden is not made.
func TestSealedOrRefused(t *testing.T) {
	home := t.TempDir()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user cannot arrange that there is no way")
	}
	// What is mounted in the home and holds it cannot be hidden.
	inner := filepath.Join(home, "inner")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("/", inner, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(inner, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	for _, wants := range []sandbox.Option{sandbox.WithService("gateway", served), sandbox.WithWorkspaceOnly()} {
		_, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(home), wants)
		var ie *sandbox.InitError
		if !errors.As(err, &ie) || !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(ie.Hint, "is the operator") {
			t.Errorf("got %v, want an InitError with a hint", err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(home, "sandboxes")); len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// A service that many connect to, or that nobody serves any more, does not hold
// its owner up.
func TestSealedServices(t *testing.T) {
	home := t.TempDir()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	hang := make(chan struct{})
	stuck := sandbox.HTTPService(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-hang:
		}
	}))
	sb, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(home), sandbox.WithService("gateway", served), sandbox.WithService("stuck", stuck))
	if err != nil {
		t.Fatal(err)
	}
	defer close(hang)
	path := strings.TrimPrefix(sb.ServiceURL("stuck"), "unix:")
	sh(t, sb, `cd `+filepath.Dir(path)+`; for i in $(seq 20); do setsid curl -s --unix-socket stuck.sock http://stuck/ >/dev/null 2>&1 & done; sleep 0.3`)
	if out := sh(t, sb, askService(sb)); out != "served\n" {
		t.Errorf("the other service says %q", out)
	}
	for _, c := range []struct{ path, mode string }{{path, "srw-------"}, {filepath.Dir(path), "drwx------"}} {
		if st, err := os.Stat(c.path); err != nil || !strings.HasSuffix(strings.ToLower(st.Mode().String()), c.mode[1:]) {
			t.Errorf("%s: %v %v", c.path, st.Mode(), err)
		}
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}
