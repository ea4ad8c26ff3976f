package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ravi/internal/daemon"
)

// The service manager is told in the right order, and a file of another's is left alone.
func TestDaemonInstall(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIP-FEATURE: this is about systemd")
	}
	h := newDaemonHome(t, map[string]any{"port": 0})
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	script := "#!/bin/sh\necho \"$*\" >>" + calls + "\ntest ! -e " + bin + "/broken || { echo no bus >&2; exit 1; }\n"
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(bin, "config"))
	unit := filepath.Join(bin, "config", "systemd", "user", daemon.UnitName)
	called := func(want string) {
		t.Helper()
		b, err := os.ReadFile(calls)
		if err != nil && want != "" || string(b) != want {
			t.Errorf("called %q, want %q, %v", b, want, err)
		}
		if err := os.RemoveAll(calls); err != nil {
			t.Fatal(err)
		}
	}

	shown, _ := h.want(0, "daemon", "install", "--print")
	called("")
	if !strings.Contains(shown, "RAVI_HOME="+h.dir) {
		t.Errorf("printed: %s", shown)
	}
	h.want(0, "daemon", "uninstall")
	called("")
	for range 2 {
		h.want(0, "daemon", "install")
		called("--user daemon-reload\n--user enable --now ravi.service\n")
	}
	if b, err := os.ReadFile(unit); err != nil || string(b) != shown {
		t.Errorf("the unit is not what was shown: %v\n%s", err, b)
	}
	h.want(0, "daemon", "uninstall")
	called("--user disable --now ravi.service\n--user daemon-reload\n")
	if _, err := os.Stat(unit); err == nil {
		t.Error("the unit is left")
	}

	if err := os.WriteFile(unit, []byte("[Service]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"install", "uninstall"} {
		if _, stderr := h.want(1, "daemon", command); !strings.Contains(stderr, "was not written by") {
			t.Errorf("%s over a file of another's: %s", command, stderr)
		}
	}
	called("")
	if b, err := os.ReadFile(unit); err != nil || string(b) != "[Service]\n" {
		t.Errorf("the file of another's became %q, %v", b, err)
	}
	if err := os.Remove(unit); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(bin, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr := h.want(1, "daemon", "install"); !strings.Contains(stderr, "no bus") || !strings.Contains(stderr, "ravi daemon start") {
		t.Errorf("a manager that does not answer: %s", stderr)
	}
	if err := os.Remove(unit); err != nil {
		t.Fatal(err)
	}
	h.want(0, "daemon", "start")
	if _, stderr := h.want(1, "daemon", "install"); !strings.Contains(stderr, "ravi daemon stop") {
		t.Errorf("beside a daemon that runs: %s", stderr)
	}
	h.want(2, "daemon", "install", "--user", "--system", "--print")
}
