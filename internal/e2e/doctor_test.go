package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"ravi/internal/doctor"
)

// diagnosed is what a doctor of the program says.
func (w *world) diagnosed(code int, args ...string) doctor.Report {
	w.t.Helper()
	var r doctor.Report
	if err := json.Unmarshal([]byte(w.ravi(append([]string{"doctor", "--json"}, args...)...).want(code).stdout), &r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// On a fresh machine a doctor finds nothing that is wrong, starts a sandbox, and leaves nothing: before there is a home, and
// with a daemon that has its bus.
func TestDoctorOfAFreshMachine(t *testing.T) {
	w := newWorld(t)
	// Control groups are the machine's: those that other tests leave for a while are no fault of this home.
	all := strings.Join(slices.DeleteFunc(doctor.Names(), func(id string) bool { return id == "leaks.cgroups" }), ",")
	r := w.diagnosed(0, "--strict", "--only", all)
	if r.Summary.Errors+r.Summary.Warns+r.Summary.Failed > 0 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(w.home); err == nil {
		t.Error("it made a home")
	}
	w.ravi("daemon", "start").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	w.run(plain(t), "--", "true").want(0)
	before := snapshot(t, filepath.Join(w.home, "lib"))
	r = w.diagnosed(0, "--strict", "--only", all)
	status := map[string]doctor.Check{}
	for _, c := range r.Checks {
		status[c.ID] = c
		if c.Status == doctor.Fail {
			t.Errorf("%+v: %+v", c, r.Findings)
		}
	}
	for _, id := range []string{"sandbox.gvisor", "gateway.exposure", "bus.exposure", "ports.exposure", "daemon.answers", "daemon.current", "database.whole", "host.user_namespaces", "host.tun"} {
		if status[id].Status != doctor.Pass {
			t.Errorf("%+v", status[id])
		}
	}
	for _, id := range []string{"gateway.exposure", "bus.exposure"} {
		if !strings.HasPrefix(status[id].Said, "loopback_only: ") || !strings.HasSuffix(status[id].Said, ", authentication") {
			t.Errorf("%+v", status[id])
		}
	}
	if after := snapshot(t, filepath.Join(w.home, "lib")); after != before {
		t.Errorf("the programs are others:\n%s\n%s", before, after)
	}
	left, err := filepath.Glob(filepath.Join(w.home, "doctor-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	table, _, _ := strings.Cut(w.ravi("doctor").want(0).stdout, "\n\n")
	for line := range strings.Lines(table) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("more than 80 columns: %s", line)
		}
	}
}

// A sandbox that cannot be made is found, with what mends it.
func TestDoctorWithoutUserNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-ENV: only root takes user namespaces away")
	}
	const limit = "/proc/sys/user/max_user_namespaces"
	if _, err := os.Stat(limit); err != nil {
		t.Skip("SKIP-ENV: this kernel has no such limit")
	}
	w := newWorld(t)
	// In a user namespace of its own the limit is of that one, and of nobody else's sandboxes.
	cmd := w.command("doctor", "--json", "--only", "host.user_namespaces")
	inside := exec.Command("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", "echo 0 >"+limit+` && exec "$@"`, "sh")
	inside.Args = append(inside.Args, cmd.Args...)
	inside.Env, inside.Dir = cmd.Env, cmd.Dir
	out, err := inside.Output()
	var r doctor.Report
	if json.Unmarshal(out, &r) != nil {
		t.Skipf("SKIP-ENV: no such namespace can be made here: %v: %s", err, out)
	}
	if r.OK || len(r.Findings) != 1 || r.Findings[0].ID != "host.no_user_namespaces" || !strings.Contains(r.Findings[0].Fix, "sysctl -w user.max_user_namespaces") {
		t.Errorf("%+v", r)
	}
}

// A daemon that is made anew takes over what it had: a sandbox goes on, with what is in it.
func TestRestartKeepsSandboxes(t *testing.T) {
	w := newWorld(t)
	w.ravi("daemon", "start").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	w.ravi("sandbox", "create", "--name", "kept").want(0)
	w.ravi("sandbox", "exec", "kept", "--", "sh", "-c", "echo here >/tmp/mark").want(0)
	for _, args := range [][]string{{"daemon", "restart"}, {"daemon", "restart", "--recreate"}} {
		w.ravi(args...).want(0)
		eventually(t, "the sandbox has its new owner", func() bool {
			return strings.Contains(w.ravi("daemon", "status", "--json").stdout, `"sbx`)
		})
		if r := w.ravi("sandbox", "exec", "kept", "--", "cat", "/tmp/mark").want(0); r.stdout != "here\n" {
			t.Errorf("after %v it holds %q", args, r.stdout)
		}
	}
	// One that could not start with what config.json says now does not end the one there is.
	before := w.ravi("daemon", "status").want(0).stdout
	must(t, os.WriteFile(filepath.Join(w.home, "config.json"), []byte(`{"bus": {"host": "0.0.0.0"}}`), 0o600))
	for _, args := range [][]string{{"daemon", "restart"}, {"daemon", "restart", "--recreate"}} {
		w.ravi(args...).want(1).says("does not listen on 0.0.0.0", "without TLS", "ravi bus tls")
	}
	must(t, os.Remove(filepath.Join(w.home, "config.json")))
	process := regexp.MustCompile(`runs as process \d+`)
	if after := w.ravi("daemon", "status").want(0).stdout; process.FindString(before) == "" || process.FindString(after) != process.FindString(before) {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	if r := w.diagnosed(0, "--strict", "--only", "leaks.sandboxes,leaks.processes,leaks.mounts,daemon"); len(r.Findings) > 0 {
		t.Errorf("%+v", r.Findings)
	}
}
