package bench_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/bench"
	"ravi/internal/programs"
)

// ravi runs the real program with a home of its own.
func ravi(t *testing.T, args ...string) (home string, cmd *exec.Cmd) {
	t.Helper()
	path := os.Getenv(programs.EnvProgram)
	if path == "" {
		path = filepath.Join("..", "..", "bin", "ravi")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("there is no ravi to measure: run make build (%v)", err)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	home = t.TempDir()
	cmd = exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "RAVI_HOME="+home)
	return home, cmd
}

// A real run of what is cheap gives a sample of each measure, and leaves nothing.
func TestBench(t *testing.T) {
	home, cmd := ravi(t, "bench", "--json", "--runs", "1", "--only", "create,first,exec,spawn", "--only", "version", "--beside", "runsc")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &said)
	}
	var r bench.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	samples := map[string]int{}
	for _, x := range r.Results {
		if x.Failures > 0 {
			t.Errorf("%s by %s: %s", x.Measure, x.By, x.Error)
		}
		samples[x.Measure+" "+x.By] = len(x.Samples)
		for _, s := range x.Samples {
			if s <= 0 {
				t.Errorf("%s by %s: a sample of %v", x.Measure, x.By, s)
			}
		}
	}
	want := map[string]int{"create gvisor": 1, "first gvisor": 1, "first runsc": 1, "exec gvisor": 5, "exec runsc": 5, "version gvisor": 1}
	for what, n := range want {
		if samples[what] != n {
			t.Errorf("%s: %d samples, want %d", what, samples[what], n)
		}
	}
	spawnSkipped := false
	for _, s := range r.Skipped {
		spawnSkipped = spawnSkipped || strings.HasPrefix(s.What, "spawn inside "+"gvisor")
	}
	if samples["spawn gvisor"] != 5 && !spawnSkipped {
		t.Errorf("the spawn inside was neither measured nor skipped: %v", samples)
	}
	nothingLeft(t, home)
}

// nothingLeft says that a benchmark removed all that it made. Who ended a sandbox may have to end itself yet.
func nothingLeft(t *testing.T, home string) {
	t.Helper()
	for _, dir := range []string{"bench", "sandboxes"} {
		if left, err := os.ReadDir(filepath.Join(home, dir)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
	left := running(t, home)
	for end := time.Now().Add(4 * time.Minute); len(left) > 0 && time.Now().Before(end); left = running(t, home) {
		time.Sleep(20 * time.Millisecond)
	}
	if len(left) > 0 {
		t.Errorf("there is left:\n%s", strings.Join(left, "\n"))
	}
}

// running is what runs and is mounted of a home: whatever was started has a path beneath it on its command line.
func running(t *testing.T, home string) (left []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, home) {
			left = append(left, "a mount: "+line)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range lines {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(home)) {
			left = append(left, fmt.Sprintf("%s: %q", file, line))
		}
	}
	return left
}

// Every measure of the network has samples, through the policy and beside it,
// and the bytes that came were all there.
func TestBenchNetwork(t *testing.T) {
	home, cmd := ravi(t, "bench", "--json", "--runs", "1", "--only", "network", "--connections", "10", "--download", "2", "--beside", "none")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &said)
	}
	var r bench.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	samples := map[string]int{}
	for _, x := range r.Results {
		samples[x.Measure+" "+x.By] = len(x.Samples)
	}
	for what, n := range map[string]int{
		"connect gvisor": 10, "connect copied": 1, "kept gvisor": 2000, "kept copied": 2000, "sse gvisor": 200, "sse copied": 200,
		"http gvisor": 1, "http copied": 1, "https1 gvisor": 1, "https1 copied": 1, "https2 gvisor": 1, "https2 copied": 1, "cable stack alone": 1,
	} {
		if samples[what] != n {
			t.Errorf("%s: %d samples, want %d", what, samples[what], n)
		}
	}
	nothingLeft(t, home)
}

// Every measure of the gateway has samples, no answer is without its row, and every list was asked.
func TestBenchGateway(t *testing.T) {
	home, cmd := ravi(t, "bench", "--json", "--runs", "1", "--only", "gateway", "--records", "100", "--seconds", "1", "--kills", "2", "--idle", "1")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &said)
	}
	var r bench.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	samples := map[string][]float64{}
	for _, x := range r.Results {
		samples[x.Measure+" "+x.By] = x.Samples
	}
	for what, n := range map[string]int{
		"gw_read with a key": 100, "gw_read operator": 100, "gw_read constant": 100, "gw_rate with a key": 1, "gw_rate constant": 1,
		"gw_cpu with a key": 1, "gw_lost all the time": 1, "gw_lost kill -9": 2, "gw_inside with a key": 300, "gw_inside constant": 300,
		"daemon_start gvisor": 1, "daemon_start --version": 1, "daemon_mem at start": 1, "daemon_mem after calls": 1, "daemon_cpu gvisor": 1,
		"lists runs.ls": 5, "lists tasks.ls": 5, "lists sessions.transcript": 5, "lists audit.search": 5, "lists sandbox.ls": 5,
	} {
		if len(samples[what]) != n {
			t.Errorf("%s: %d samples, want %d", what, len(samples[what]), n)
		}
	}
	for _, by := range []string{"all the time", "kill -9"} {
		for _, lost := range samples["gw_lost "+by] {
			if lost != 0 {
				t.Errorf("%s: %v answers have no row", by, lost)
			}
		}
	}
	nothingLeft(t, home)
}

// Every measure of the loop has samples, every sub-agent did its task, and nothing is left.
func TestBenchLoop(t *testing.T) {
	home, cmd := ravi(t, "bench", "--json", "--runs", "1", "--only", "loop", "--beside", "runsc")
	servers := []string{"own"}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Log("SKIP-FEATURE: there is no npm on this machine, so its server is not measured")
	} else {
		servers = append(servers, "node")
		prefix := t.TempDir()
		if out, err := exec.Command("npm", "install", "--global", "--prefix", prefix, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
			"@modelcontextprotocol/server-everything@2026.8.31").CombinedOutput(); err != nil {
			t.Fatalf("npm install: %v: %s", err, out)
		}
		cmd.Env = append(cmd.Env, "npm_config_prefix="+prefix)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &said)
	}
	var r bench.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	samples := map[string][]float64{}
	for _, x := range r.Results {
		samples[x.Measure+" "+x.By] = x.Samples
	}
	want := map[string]int{
		"loop_exec tool call": 5, "loop_exec sandbox.Exec": 5, "loop_adds tool call": 5, "loop_gate ordinary": 50,
		"loop_subs gvisor": 20, "loop_subs_all gvisor": 1, "loop_lost gvisor": 1, "agent_turn loop, gvisor": 1,
	}
	for _, server := range servers {
		want["loop_mcp "+server+", gvisor"], want["loop_mcp "+server+", runsc"] = 20, 20
	}
	for what, n := range want {
		if len(samples[what]) != n {
			t.Errorf("%s: %d samples, want %d", what, len(samples[what]), n)
		}
	}
	if lost := samples["loop_lost gvisor"]; len(lost) == 1 && lost[0] != 0 {
		t.Errorf("%v sub-agents did not do their task", lost)
	}
	insideSkipped := false
	for _, s := range r.Skipped {
		insideSkipped = insideSkipped || s.What == "loop_exec, inside"
	}
	if len(samples["loop_exec inside"]) != 5 && !insideSkipped {
		t.Errorf("the command inside was neither measured nor skipped: %v", samples)
	}
	nothingLeft(t, home)
}

// Ctrl-C in the middle of things ends a run that leaves nothing either.
func TestBenchInterrupted(t *testing.T) {
	home, cmd := ravi(t, "bench", "--runs", "10000", "--only", "first,exec", "--beside", "runsc")
	steps, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(steps)
	for said.Scan() {
		// All were tried; now the rounds, of which there are too many to end, go on.
		if strings.Contains(said.Text(), "trying runsc") {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("ended with %v", err)
	}
	nothingLeft(t, home)
}

func TestBenchRefuses(t *testing.T) {
	for _, args := range [][]string{{"--runs", "0"}, {"--only", "speed"}, {"--only", ","}, {"--connections", "0"}, {"--download", "0"}, {"--records", "9"}, {"--seconds", "0"}, {"--kills", "0"}, {"--idle", "0"}, {"--beside", "lxc"}} {
		_, cmd := ravi(t, append([]string{"bench"}, args...)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "hint:") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// A message's way and a sandbox on a runner have samples, and nothing is left.
func TestBenchDispatch(t *testing.T) {
	home, cmd := ravi(t, "bench", "--json", "--runs", "1", "--idle", "1", "--only", "msg_begin,bus_mem,far_exec,far_write", "--beside", "none")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &said)
	}
	var r bench.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	samples := map[string]int{}
	for _, x := range r.Results {
		if x.Failures > 0 {
			t.Errorf("%s by %s: %s", x.Measure, x.By, x.Error)
		}
		samples[x.Measure+" "+x.By] = len(x.Samples)
	}
	for what, n := range map[string]int{
		"msg_begin from send": 1, "msg_begin from its commit": 1, "msg_begin sandbox run": 1, "msg_steps 5 command": 1,
		"bus_mem added by it": 1, "far_exec gvisor": 5, "far_exec on a runner": 5, "far_write on a runner": 1,
	} {
		if samples[what] != n {
			t.Errorf("%s: %d samples, want %d", what, samples[what], n)
		}
	}
	nothingLeft(t, home)
}
