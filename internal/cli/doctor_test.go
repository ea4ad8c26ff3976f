package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/doctor"
	"ravi/internal/porttest"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// clinic is a home with a daemon, and a ravi in the PATH of a shell, in which what mends a finding is typed as it stands.
type clinic struct {
	daemonHome
	bin string
}

func newClinic(t *testing.T, gateway map[string]any) clinic {
	t.Helper()
	c := clinic{newDaemonHome(t, gateway), t.TempDir()}
	c.installProgram("")
	t.Setenv("PATH", c.bin+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(c.bin, "config"))
	return c
}

// installProgram makes ravi a script that starts this test program, or the file at path, in this home.
func (c clinic) installProgram(path string) {
	c.t.Helper()
	if path == "" {
		var err error
		if path, err = os.Executable(); err != nil {
			c.t.Fatal(err)
		}
	}
	script := "#!/bin/sh\nexport " + asRaviEnv + "=1 RAVI_HOME='" + c.dir + "' HOME='" + filepath.Dir(c.dir) + "'\nexec '" + path + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(c.bin, "ravi"), []byte(script), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// shell types a line.
func (c clinic) shell(line string) string {
	c.t.Helper()
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// look examines, and gives what was found. No line says more than names of secrets.
func (c clinic) look(only string) doctor.Report {
	c.t.Helper()
	code, stdout, stderr := c.ravi("doctor", "--json", "--only", only)
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != command.ExitOK && code != command.ExitFailed || (code == command.ExitOK) != r.OK {
		c.t.Fatalf("doctor ended with %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, canary) {
		c.t.Errorf("it shows a secret:\n%s", stdout)
	}
	return r
}

// canary is the value of a secret, which nobody may show.
const canary = "canary-4f1b2c"

func (c clinic) finds(only, id string, s doctor.Severity) doctor.Finding {
	c.t.Helper()
	r := c.look(only)
	for _, f := range r.Findings {
		if f.ID == id || strings.HasPrefix(f.ID, id+":") {
			if f.Severity != s || f.Fix == "" {
				c.t.Errorf("%+v", f)
			}
			return f
		}
	}
	c.t.Fatalf("%s is not found: %+v", id, r)
	return doctor.Finding{}
}

func (c clinic) well(only, id string) {
	c.t.Helper()
	for _, f := range c.look(only).Findings {
		if f.ID == id || strings.HasPrefix(f.ID, id+":") {
			c.t.Errorf("it is still found: %+v", f)
		}
	}
}

func (c clinic) store(f func(*store.Store) error) {
	c.t.Helper()
	s, err := store.Open(c.t.Context(), c.dir)
	if err == nil {
		err = errors.Join(f(s), s.Close())
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// gone is a process that has ended.
func goneProcess(t *testing.T) procid.ID {
	t.Helper()
	id, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	id.Start++ // the number is this process's, and was another's
	return id
}

// What a daemon that is not what would be started now is found by goes when what is said is typed.
func TestDoctorMendsTheDaemon(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	file := filepath.Join(c.dir, daemon.StateFile)
	change := func(f func(map[string]any)) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s map[string]any
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		f(s)
		if b, err = json.Marshal(s); err == nil {
			err = os.WriteFile(file, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const answers, current = "daemon.answers", "daemon.current"

	t.Run("no daemon", func(t *testing.T) {
		r := c.look("daemon")
		if r.Summary.Skipped != 3 || len(r.Findings) != 0 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("its file", func(t *testing.T) {
		if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.shell(c.finds(answers, "daemon.state_file", doctor.Error).Fix)
		c.well(answers, "daemon.state_file")
	})
	t.Run("another version", func(t *testing.T) {
		change(func(s map[string]any) { s["version"] = "0.1" })
		c.shell(c.finds(current, "daemon.version", doctor.Warn).Fix)
		c.well(current, "daemon.version")
	})
	t.Run("it does not answer", func(t *testing.T) {
		stopped := c.state().Process
		if err := procid.Signal(stopped, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		c.shell(c.finds(answers, "daemon.silent", doctor.Error).Fix + " --timeout 100ms")
		if procid.Alive(stopped) {
			t.Error("it lives")
		}
		c.well(answers, "daemon.silent")
	})
	t.Run("another answers", func(t *testing.T) {
		other := exec.Command("sleep", "600")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := other.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = other.Wait() // it was killed
		}()
		id, err := procid.Of(other.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		real := c.state().Process
		change(func(s map[string]any) { s["process"] = id })
		f := c.finds(answers, "daemon.another", doctor.Error)
		kill, rest, _ := strings.Cut(f.Fix, "; ")
		c.shell(kill)
		if err := procid.Wait(t.Context(), real); err != nil {
			t.Fatal(err)
		}
		c.shell(rest)
		c.well(answers, "daemon.another")
	})
	t.Run("config.json is newer", func(t *testing.T) {
		port := porttest.Free(t)
		c.shell("ravi config set gateway.port " + strconv.Itoa(port))
		c.finds(current, "daemon.config_newer", doctor.Warn)
		c.finds("gateway", "gateway.silent", doctor.Error)
		c.shell(c.finds(current, "gateway.stale", doctor.Error).Fix)
		c.well(current, "gateway.stale")
		c.well(current, "daemon.config_newer")
		c.well("gateway", "gateway.silent")
		c.shell("ravi config set gateway.port 0 && ravi daemon restart")
	})
	t.Run("other flags", func(t *testing.T) {
		c.shell("ravi daemon stop")
		run := exec.Command(filepath.Join(c.bin, "ravi"), "daemon", "run", "--drain", "1s")
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() { over <- run.Wait() }()
		eventually(t, func() bool { _, err := daemon.ReadState(c.dir); return err == nil })
		f := c.finds(current, "daemon.flags", doctor.Warn)
		if !strings.Contains(f.Summary, "--drain 1s") {
			t.Errorf("%s", f.Summary)
		}
		c.shell("ravi daemon restart")
		if err := <-over; err != nil {
			t.Error(err)
		}
		c.finds(current, "daemon.flags", doctor.Warn) // a restart keeps them
		c.shell(f.Fix)
		c.well(current, "daemon.flags")
	})
	t.Run("another program", func(t *testing.T) {
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(c.bin, "older")
		c.shell("cp '" + program + "' '" + other + "'")
		c.shell("ravi daemon stop")
		c.installProgram(other)
		c.shell("ravi daemon start")
		c.installProgram("")
		c.finds(current, "daemon.program", doctor.Warn)
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
		c.shell(c.finds(current, "daemon.program_replaced", doctor.Warn).Fix)
		c.well(current, "daemon.program")
		c.well(current, "daemon.program_replaced")
	})
	t.Run("a secret in its environment", func(t *testing.T) {
		t.Setenv("EXAMPLE_API_KEY", canary)
		c.shell("ravi daemon restart")
		f := c.finds("daemon.environment", "daemon.secrets", doctor.Warn)
		if !strings.Contains(f.Summary, "EXAMPLE_API_KEY") {
			t.Errorf("%+v", f)
		}
		c.shell(f.Fix)
		c.well("daemon.environment", "daemon.secrets")
	})
}

// eventually waits for something that another process does.
func eventually(t *testing.T, there func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		if there() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("it did not come to be")
}

// A unit that is not what install would write is found, and --recreate writes it anew and has the service manager restart
// the daemon; without it the manager restarts it as the unit says.
func TestDoctorMendsTheUnit(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	unit := filepath.Join(c.bin, "config", "systemd", "user", daemon.UnitName)
	// A service manager that starts what the unit says, in this home.
	script := `#!/bin/sh
shift
echo "$*" >>` + c.bin + `/calls
case "$1" in
show) sed -n 's/^.*"pid": *\([0-9]*\).*$/\1/p' '` + c.dir + `/daemon.json' | head -n 1 ;;
restart) ravi daemon stop --keep-sandboxes -q && eval "exec env ` + asRaviEnv + `=1 RAVI_HOME='` + c.dir + `' $(sed -n 's/^ExecStart=//p' '` + unit + `')" >/dev/null 2>&1 </dev/null & ;;
esac
`
	if err := os.WriteFile(filepath.Join(c.bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c.shell("ravi daemon install && ravi daemon start")
	c.well("daemon.current", "daemon.unit_stale")
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	older := strings.Replace(string(text), "daemon run --keep-sandboxes", "daemon run --drain 1s", 1)
	if err := os.WriteFile(unit, []byte(older), 0o644); err != nil {
		t.Fatal(err)
	}
	f := c.finds("daemon.current", "daemon.unit_stale", doctor.Warn)
	before := c.state().Process
	c.shell("ravi daemon restart")
	if c.state().Process == before {
		t.Error("it was not restarted")
	}
	c.finds("daemon.current", "daemon.unit_stale", doctor.Warn)
	c.finds("daemon.current", "daemon.flags", doctor.Warn)
	c.shell(f.Fix)
	c.well("daemon.current", "daemon.unit_stale")
	c.well("daemon.current", "daemon.flags")
	calls, err := os.ReadFile(filepath.Join(c.bin, "calls"))
	if err != nil || !strings.HasSuffix(string(calls), "daemon-reload\nrestart ravi.service\n") {
		t.Errorf("called:\n%s%v", calls, err)
	}
	c.shell("ravi daemon stop")
}

// What is wrong in the record is mended by what is typed.
func TestDoctorMendsTheRecord(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	ctx := t.Context()
	c.store(func(s *store.Store) error {
		return audit.Log{Store: s}.Append(ctx, audit.Record{Caller: audit.Operator, Action: "test", Decision: store.Allowed})
	})
	t.Run("the audit has no head", func(t *testing.T) {
		if err := os.Remove(filepath.Join(c.dir, audit.HeadFile)); err != nil {
			t.Fatal(err)
		}
		f := c.finds("audit", "audit.no_head", doctor.Warn)
		_, line, _ := strings.Cut(f.Fix, "next row: ")
		c.shell(line)
		c.well("audit", "audit.no_head")
	})
	t.Run("a sandbox of nobody", func(t *testing.T) {
		c.store(func(s *store.Store) error {
			_, err := s.InsertSandbox(ctx, store.Sandbox{Owner: goneProcess(t), Seen: store.SeenRunning})
			return err
		})
		if err := os.MkdirAll(filepath.Join(c.dir, "sandboxes", "sbxleft"), 0o700); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(c.dir, "sandboxes", "sbxleft"), old, old); err != nil {
			t.Fatal(err)
		}
		f := c.finds("leaks.sandboxes", "leaks.sandbox", doctor.Warn)
		if len(f.Evidence) != 2 {
			t.Errorf("%+v", f)
		}
		c.shell(f.Fix)
		c.well("leaks.sandboxes", "leaks.sandbox")
	})
	hash := func(text string) string { sum := sha256.Sum256([]byte(text)); return hex.EncodeToString(sum[:]) }
	t.Run("a key that is expired", func(t *testing.T) {
		c.store(func(s *store.Store) error {
			_, err := s.InsertKey(ctx, store.Key{Hash: hash("1"), Label: "bot", CreatedAt: time.Now().Add(-2 * time.Hour), ExpiresAt: time.Now().Add(-time.Hour), CreatedBy: "operator"}, nil)
			return err
		})
		f := c.finds("keys.expired", "keys.expired", doctor.Info)
		c.shell(f.Fix)
		c.well("keys.expired", "keys.expired")
	})
	t.Run("a key that nobody uses", func(t *testing.T) {
		c.store(func(s *store.Store) error {
			long := time.Now().Add(-30 * 24 * time.Hour)
			used, err := s.InsertKey(ctx, store.Key{Hash: hash("2"), CreatedAt: long, ExpiresAt: time.Now().Add(time.Hour), CreatedBy: "operator"}, nil)
			if err != nil {
				return err
			}
			if _, err := s.InsertKey(ctx, store.Key{Hash: hash("3"), Label: "old laptop", CreatedAt: long, ExpiresAt: time.Now().Add(time.Hour), CreatedBy: "operator"}, nil); err != nil {
				return err
			}
			if _, err := s.InsertKey(ctx, store.Key{Hash: hash("4"), ExpiresAt: time.Now().Add(time.Hour), CreatedBy: "operator"}, nil); err != nil {
				return err
			}
			return audit.Log{Store: s}.Append(ctx, audit.Record{Caller: used.ID, Action: "command.tasks.ls", Decision: store.Allowed})
		})
		f := c.finds("keys.unused", "keys.unused", doctor.Warn)
		if len(f.Evidence) != 1 || !strings.Contains(f.Evidence[0], "old laptop") {
			t.Errorf("%+v", f)
		}
		c.shell(f.Fix)
		c.well("keys.unused", "keys.unused")
	})
	t.Run("a key of a run that is over", func(t *testing.T) {
		c.store(func(s *store.Store) error {
			run, err := s.InsertRun(ctx, store.Run{CreatedBy: "operator"})
			if err != nil {
				return err
			}
			if _, err := s.InsertKey(ctx, store.Key{Hash: hash("5"), Kind: store.KeyRun, RunID: run.ID, ExpiresAt: time.Now().Add(time.Hour)}, nil); err != nil {
				return err
			}
			_, err = s.UpdateRun(ctx, run.ID, func(r *store.Run) error { r.Status = store.RunError; return nil })
			return err
		})
		c.shell(c.finds("keys.expired", "keys.run_over", doctor.Warn).Fix)
		c.well("keys.expired", "keys.run_over")
	})
	t.Run("a secret in a run's environment", func(t *testing.T) {
		cmd := exec.Command("sleep", "600")
		cmd.Env = append(os.Environ(), "EXAMPLE_API_KEY="+canary)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		id, err := procid.Of(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		c.store(func(s *store.Store) error {
			_, err := s.InsertRun(ctx, store.Run{CreatedBy: "operator", Owner: id})
			return err
		})
		f := c.finds("daemon.environment", "run.secrets", doctor.Info)
		if !strings.Contains(f.Fix, "env -u EXAMPLE_API_KEY ravi") {
			t.Errorf("%+v", f)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		c.well("daemon.environment", "run.secrets")
	})
	t.Run("config.json", func(t *testing.T) {
		file := filepath.Join(c.dir, "config.json")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// Each block is read as its owner does.
		if err := os.WriteFile(file, []byte(`{"tools": {"sandbox": {"memory_mib": -1}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		f := c.finds("config", "config.invalid", doctor.Error)
		if !strings.Contains(f.Summary, "memory_mib") || !strings.Contains(f.Fix, file) {
			t.Errorf("%+v", f)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c.well("config", "config.invalid")
	})
}
