package bench

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/term"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sampleReport has everything that a report can show.
func sampleReport() *Report {
	b := &bench{Options: Options{Runs: 20, Only: Measures()}, report: &Report{
		Version: "v1", Runs: 20, Seconds: 83.4, Load: [2]float64{0.31, 1.5}, Started: time.Unix(1_700_000_000, 0).UTC(),
		Machine: Machine{CPU: "A Processor With A Name That Goes On And On 9000 16-Core", Cores: 16, MemoryMB: 67_000, Kernel: "6.18.44", Root: true},
		Results: []Result{}, Skipped: []Skip{},
	}}
	several := func(name, by string, values ...float64) {
		for _, v := range values {
			b.add(name, by, v)
		}
	}
	// Not in the order in which they are shown.
	several("version", ours, 30, 31, 30, 32, 33)
	several("storm", ours, 1200, 2400, 12_345.6)
	several("storm_all", ours, 12_346)
	several("memory", ours, 41.2, 41.3, 41.1, 41.2)
	several("create", ours, 120, 121, 119, 122, 125)
	several("first", ours, 130, 131, 129, 133, 135)
	several("first", besideRunsc, 150, 151, 152, 490, 153)
	several("first", besideDocker, 425.4)
	several("exec", ours, 2.61, 2.62, 2.6, 2.7, 2.75)
	several("exec", besideRunsc, 27)
	several("spawn", ours, 1.5, 1.6, 1.55, 1.52, 1.51)
	several("output", ours, 410, 395.5, 420, 401, 399)
	several("write", ours, 1234.5)
	several("read", ours, 0.25)
	several("clone", ours, 800)
	several("clone", bare, 420)
	several("connect", ours, 12.1, 12.2, 12, 12.3, 40)
	several("connect", copied, 10, 10.1, 10.2, 9.9, 10)
	several("kept", ours, 1.31)
	several("kept", copied, 1)
	several("sse", ours, 3)
	several("sse", copied, 0.9)
	several("http", ours, 161)
	several("http", copied, 200)
	several("https1", ours, 81)
	several("https1", copied, 200)
	several("https2", ours, 79)
	several("https2", copied, 200)
	several("cable", stackAlone, 193)
	several("netmem", atRest, 18.7)
	several(netCrowd, ours, 100, 100, 500)
	b.fail("first", besideDocker, errors.New("docker: exit status 125:\nno room\x1b[31m"))
	b.fail("output", "host backend", errors.New("it did not work"))
	b.skip(besidePodman, errMissing)
	b.report.finish()
	return b.report
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	if err := Print(&out, 80, sampleReport()); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if term.Width(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	file := filepath.Join("testdata", "report.golden")
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestGoals(t *testing.T) {
	r := sampleReport()
	met := map[string]bool{}
	for _, g := range r.Goals {
		met[g.Name] = g.Met
	}
	want := map[string]bool{
		"first output, as plain runsc": true, "exec, as 1.3 spawns inside and 2 ms": true,
		"output": true, "memory, idle": false, "ravi --version": true,
		"new connection, as 1.3 copied": true, "new connection, p99, as 3 p50": false, "new connection, the worst: no stall": true,
		"kept request, as 1.3 copied": false, "a first event, as copied and 2 ms": false, "HTTP, as 0.8 of what is copied": true,
		"HTTP/1.1 in TLS, as 0.4 of the same copied": true, "HTTP/2 in TLS, as 0.4 of the same copied": false, "idle cable": true,
		"100 receive, the slowest, as 3 means": true,
	}
	if diff := cmp.Diff(want, met); diff != "" {
		t.Error(diff)
	}

	// A goal of which some tries failed is not met, and one without its counterpart is not there.
	r.find("output", ours).Failures = 1
	r.find("first", besideRunsc).By = besideBwrap
	for _, g := range r.goals() {
		if g.Name == "output" && g.Met {
			t.Error("a goal is met although tries failed")
		}
		if strings.HasPrefix(g.Name, "first") {
			t.Error("first output is compared with nothing")
		}
	}
}

func TestFailedIsOursOnly(t *testing.T) {
	for by, want := range map[string]bool{ours: true, "host backend": true, besideDocker: false, bare: false} {
		r := &Report{Results: []Result{{Measure: "first", By: by, Failures: 1}}}
		if r.Failed() != want {
			t.Errorf("%s: %v", by, r.Failed())
		}
	}
}

// Every measure fits the table beside the widest name of a contender.
func TestTitlesFit(t *testing.T) {
	for _, m := range measures {
		if len(m.title) > 19 {
			t.Errorf("%q is wider than 19", m.title)
		}
		if !strings.HasSuffix(m.title, ", "+m.unit) && !strings.HasSuffix(m.title, " "+m.unit) {
			t.Errorf("%q does not end with its unit %s", m.title, m.unit)
		}
	}
}
