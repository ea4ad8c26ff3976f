package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/term"
)

// Report is all that a run found.
type Report struct {
	Version string     `json:"version"`
	Machine Machine    `json:"machine"`
	Started time.Time  `json:"started"`
	Seconds float64    `json:"seconds"`
	Load    [2]float64 `json:"load"` // the one-minute average before and after
	Runs    int        `json:"runs"`
	Results []Result   `json:"results"`
	Goals   []Goal     `json:"goals"`
	Skipped []Skip     `json:"skipped"`
}

// Result is one thing that was measured of one contender.
type Result struct {
	Measure string `json:"measure"`
	By      string `json:"by"`
	Unit    string `json:"unit"`
	Better  string `json:"better"` // lower or higher
	Summary
	Samples []float64 `json:"samples"`
	// Failures is how many tries gave no sample, and Error why the first one
	// did not.
	Failures int    `json:"failures"`
	Error    string `json:"error,omitempty"`
}

// Skip is what was not measured, and why.
type Skip struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Goal is what a number is meant to reach, against what it was in this run.
type Goal struct {
	Name  string  `json:"name"`
	Found float64 `json:"found"`
	Bound float64 `json:"bound"`
	Least bool    `json:"least"` // the bound is a lower one
	Unit  string  `json:"unit"`
	Met   bool    `json:"met"`
}

// Failed says whether anything of Ravi's own could not be measured.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Results, func(x Result) bool { return x.Failures > 0 && isOurs(x.By) })
}

func (r *Report) find(measure, by string) *Result {
	for i := range r.Results {
		if x := &r.Results[i]; x.Measure == measure && x.By == by {
			return x
		}
	}
	return nil
}

// slowest is the result of a measure whose middle is the largest, nil if there is none.
func (r *Report) slowest(measure string) (out *Result) {
	for i := range r.Results {
		if x := &r.Results[i]; x.Measure == measure && (out == nil || x.P50 > out.P50) {
			out = x
		}
	}
	return out
}

// finish fills in what follows from the samples.
func (r *Report) finish() {
	order := func(x Result) int {
		return slices.IndexFunc(measures, func(m measure) bool { return m.name == x.Measure })
	}
	slices.SortStableFunc(r.Results, func(a, b Result) int { return order(a) - order(b) })
	for i := range r.Results {
		x := &r.Results[i]
		x.Summary = summarize(x.Samples, x.Better == "higher")
	}
	r.Goals = r.goals()
}

// goals compares the built-in backend with what it is meant to reach. A goal
// whose numbers were not measured is left out.
func (r *Report) goals() []Goal {
	out := []Goal{}
	one := func(name string, x *Result, found func(Summary) float64, unit string, least bool, bound func() (float64, bool)) {
		if x == nil || x.N == 0 {
			return
		}
		if b, ok := bound(); ok {
			g := Goal{Name: name, Found: found(x.Summary), Bound: b, Least: least, Unit: unit}
			g.Met = (g.Found <= b || least) && (g.Found >= b || !least) && x.Failures == 0
			out = append(out, g)
		}
	}
	middle := func(s Summary) float64 { return s.P50 }
	add := func(name, measure, unit string, least bool, bound func() (float64, bool)) {
		one(name, r.find(measure, ours), middle, unit, least, bound)
	}
	fixed := func(v float64) func() (float64, bool) { return func() (float64, bool) { return v, true } }
	of := func(measure, by string, f func(float64) float64) func() (float64, bool) {
		return func() (float64, bool) {
			x := r.find(measure, by)
			if x == nil || x.N == 0 {
				return 0, false
			}
			return f(x.P50), true
		}
	}
	add("first output, as plain runsc", "first", "ms", false, of("first", besideRunsc, func(v float64) float64 { return v }))
	add("exec, as 1.3 spawns inside and 2 ms", "exec", "ms", false, of("spawn", ours, func(v float64) float64 { return 1.3*v + 2 }))
	add("output", "output", "MB/s", true, fixed(200))
	add("memory, idle", "memory", "MB", false, fixed(35))
	add("ravi --version", "version", "ms", false, fixed(50))

	times := func(f float64) func(float64) float64 { return func(v float64) float64 { return f * v } }
	connects, crowd := r.find("connect", ours), r.find(netCrowd, ours)
	add("new connection, as 1.3 copied", "connect", "ms", false, of("connect", copied, times(1.3)))
	one("new connection, p99, as 3 p50", connects, func(s Summary) float64 { return s.P99 }, "ms", false, of("connect", ours, times(3)))
	one("new connection, the worst: no stall", connects, func(s Summary) float64 { return s.Worst }, "ms", false, fixed(1000))
	add("kept request, as 1.3 copied", "kept", "ms", false, of("kept", copied, times(1.3)))
	add("a first event, as copied and 2 ms", "sse", "ms", false, of("sse", copied, func(v float64) float64 { return v + 2 }))
	add("HTTP, as 0.8 of what is copied", "http", "MB/s", true, of("http", copied, times(0.8)))
	// Beside the same protocol: what TLS and HTTP/2 cost inside the sandbox is the
	// same with and without a policy.
	add("HTTP/1.1 in TLS, as 0.4 of the same copied", "https1", "MB/s", true, of("https1", copied, times(0.4)))
	add("HTTP/2 in TLS, as 0.4 of the same copied", "https2", "MB/s", true, of("https2", copied, times(0.4)))
	one("idle cable", r.find("cable", stackAlone), middle, "KB", false, fixed(300))
	for _, by := range []string{byKey, byOperator} {
		one("a read through the gateway, "+by, r.find("gw_read", by), middle, "ms", false, fixed(2))
	}
	one("64 readers at once", r.find("gw_rate", byKey), middle, "1/s", true, fixed(5000))
	worst := func(s Summary) float64 { return s.Worst }
	for _, by := range []string{byWhole, byKilled} {
		one("answers without a row in the audit, "+by, r.find("gw_lost", by), worst, "rows", false, fixed(0))
	}
	one("a read from inside a sandbox", r.find("gw_inside", byKey), middle, "ms", false, fixed(5))
	if x := r.slowest("lists"); x != nil {
		one("the slowest list, "+x.By, x, middle, "ms", false, fixed(50))
	}
	add("the daemon's start", "daemon_start", "ms", false, fixed(300))
	one("the idle daemon's memory", r.find("daemon_mem", atStart), worst, "MB", false, fixed(80))
	add("the idle daemon's time", "daemon_cpu", "%", false, fixed(0.5))
	for _, by := range []string{byBroker, unrecorded} {
		added := r.find("model_first", by)
		one("added to a model's first byte, "+by, added, middle, "ms", false, fixed(1))
		one("added to a model's first byte, p99, "+by, added, func(s Summary) float64 { return s.P99 }, "ms", false, fixed(3))
	}
	if x := r.find("model_streams", direct); x != nil && x.N > 0 {
		one("200 streams, the longest pause", r.find("model_streams", byBroker), worst, "ms", false, fixed(x.Worst+stallMS))
	}
	one("a stream's memory", r.find("model_mem", byBroker), middle, "KB", false, fixed(100))
	one("added to a command by the loop", r.find(loopAdds, byTool), middle, "ms", false, fixed(10))
	for _, server := range []string{ownServer, nodeServer} {
		one("MCP call, "+server+", as 1.5 runsc exec", r.find(loopMCP, turnBy(server, ours)), middle, "ms", false, of(loopMCP, turnBy(server, besideRunsc), times(1.5)))
	}
	one("20 sub-agents at once, not done", r.find(loopLost, ours), worst, "n", false, fixed(0))
	one("a turn of the loop, as one of claude", r.find(agentTurn, turnBy(adapter.Loop, ours)), middle, "ms", false, of(agentTurn, turnBy("claude", ours), times(1)))
	one("a turn of claude, as 2.0 on the host", r.find(agentTurn, turnBy("claude", ours)), middle, "ms", false, of(agentTurn, turnBy("claude", bare), times(2)))
	one("a message's command is run, from its send", r.find(msgBegin, fromSend), middle, "ms", false, fixed(400))
	one("messages lost, doubled or out of order", r.find(burstWrong, atHome), worst, "n", false, fixed(0))
	one("memory that the bus adds", r.find(busMem, busAdds), worst, "MB", false, fixed(25))
	one("100 receive, the slowest, as 3 means", crowd, func(s Summary) float64 { return s.Worst }, "ms", false,
		func() (float64, bool) { return 3 * mean(crowd.Samples), true })
	return out
}

// Print writes the report for people, within width cells.
func Print(w io.Writer, width int, r *Report) error {
	var b strings.Builder
	fmt.Fprintln(&b, term.Truncate(term.Safe(r.Machine.CPU), width))
	fmt.Fprintln(&b, term.Safe(r.Machine.rest()))
	fmt.Fprintf(&b, "load average %.2f before, %.2f after; %s in %s\n\n", r.Load[0], r.Load[1], rounds(r.Runs),
		time.Duration(r.Seconds*float64(time.Second)).Round(time.Second))
	if err := term.Table(&b, width, columns, rows(r.Results)); err != nil {
		return err
	}
	fmt.Fprint(&b, `
p95: 95 of 100 samples are at least this good (below 100 samples, the p99 is
the worst). spread: p95 against p50; noisy: the machine was busy, measure again.
`)
	for _, line := range legend(r.Results) {
		fmt.Fprintln(&b, line)
	}
	if len(r.Goals) > 0 {
		fmt.Fprintln(&b)
		var lines [][]string
		for _, g := range r.Goals {
			bound, met := "at most ", "met"
			if g.Least {
				bound = "at least "
			}
			if !g.Met {
				met = "NOT met"
			}
			lines = append(lines, []string{g.Name, number(g.Found), bound + number(g.Bound), g.Unit, met})
		}
		if err := term.Table(&b, width, []term.Column{{Title: "GOAL (P50 UNLESS IT SAYS MORE)", Flex: true}, {Title: "FOUND", Right: true}, {Title: "BOUND"}, {Title: "UNIT"}, {Title: ""}}, lines); err != nil {
			return err
		}
	}
	var ends []string
	for _, x := range r.Results {
		if x.Failures > 0 {
			ends = append(ends, fmt.Sprintf("FAILED: %s, %s: %d of %d: %s", x.Measure, x.By, x.Failures, x.Failures+len(x.Samples), oneLine(x.Error)))
		}
	}
	for _, s := range r.Skipped {
		ends = append(ends, fmt.Sprintf("not measured: %s: %s", s.What, oneLine(s.Why)))
	}
	if len(ends) > 0 {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(ends, "\n"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var columns = []term.Column{
	{Title: "", Flex: true}, {Title: "BY"}, {Title: "N", Right: true}, {Title: "BEST", Right: true}, {Title: "P50", Right: true},
	{Title: "P95", Right: true}, {Title: "P99", Right: true}, {Title: "SPREAD"},
}

func rows(results []Result) [][]string {
	var out [][]string
	last := ""
	for _, x := range results {
		title := ""
		if x.Measure != last {
			title = titleOf(x.Measure)
		}
		last = x.Measure
		row := []string{title, x.By, fmt.Sprint(x.N)}
		if x.N == 0 {
			out = append(out, append(row, "-", "-", "-", "-", "failed"))
			continue
		}
		spread := "-"
		if x.Spread > 0 {
			spread = fmt.Sprintf("%.2f", x.Spread)
		}
		if x.Noisy {
			spread += " noisy"
		}
		out = append(out, append(row, number(x.Best), number(x.P50), number(x.P95), number(x.P99), spread))
	}
	return out
}

// legend says who the contenders in the results are.
func legend(results []Result) []string {
	var out []string
	for _, c := range []struct{ by, text string }{
		{ours, "Ravi's own sandbox"},
		{besideRunsc, "the kernel of Ravi's sandbox, as plain runsc"},
		{bare, "without any sandbox"},
		{byBroker, "a model by Ravi's broker, which writes each call down as a run's does"},
		{unrecorded, "the same broker, which writes nothing down"},
		{bigBody, "the broker, asked with as much as agents ask with"},
		{direct, "the same model without a broker"},
		{byTool, "a command that a model asks the agent loop for, gate and journal included"},
		{byExec, "the same command in the same sandbox, by package sandbox"},
		{byInside, "the same command, started by a program inside"},
		{turnBy(ownServer, ours), "an MCP server of Ravi's own in a sandbox, called as by the loop"},
		{turnBy(ownServer, besideRunsc), "the same server by runsc exec, called by its pipes"},
		{turnBy(nodeServer, ours), "MCP's server-everything, by node, in a sandbox"},
		{byOrdinary, "commands as agents use them"},
		{constant, "the same listener and client, and an answer that was there"},
		{besideVersion, "the program that only says its version"},
		{fromSend, "ravi sessions send of a message, from its start until the command is run that works on it"},
		{fromCommit, "the same, from when the message was written down"},
		{bySandbox, "ravi sandbox run of the same command, from its start until the command is run"},
		{runnersBy(1), "a daemon without sandboxes, and runners; they share the processors with what is at home"},
		{busAdds, "what the daemon has more with the bus than one without it"},
		{onRunner, "a sandbox on a runner, over a bus on loopback"},
		{copied, "Ravi's sandbox and network, but nothing looked at that passes"},
	} {
		if slices.ContainsFunc(results, func(x Result) bool { return x.By == c.by }) {
			out = append(out, c.by+": "+c.text+".")
		}
	}
	return out
}

// number has as many digits as are worth reading.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func rounds(n int) string {
	if n == 1 {
		return "1 round"
	}
	return fmt.Sprintf("%d rounds", n)
}

// oneLine is an error on one line, which it cannot leave.
func oneLine(s string) string {
	const most = 300
	return term.Truncate(term.Safe(strings.Join(strings.Fields(s), " ")), most)
}
