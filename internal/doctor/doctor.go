// Package doctor finds what is wrong with Ravi on this machine, and names for each finding the command that mends it.
//
// It looks, and changes nothing: no record, no file of Ravi's, no setting of the machine. Two checks make something to be
// able to tell, and remove it again: a sandbox in a folder of its own, and a process in a user namespace. It dials
// addresses of this machine and no other. No value of a secret is in what it says; names of variables are.
//
// What the checks need of the rest of Ravi is handed to them (Options). The package knows no command line, and must not
// import it.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity is how bad a finding is.
type Severity string

// The severities, from the worst. What is only worth knowing (Info) fails no check.
const (
	Error Severity = "error"
	Warn  Severity = "warn"
	Info  Severity = "info"
)

// Status is how a check ended.
type Status string

// A check that could not be made is skipped, never passed.
const (
	Pass Status = "pass"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Finding is something that is not as it should be.
type Finding struct {
	// ID is what kind of finding it is, such as bus.exposed, and after a colon what it is about where there can be more
	// than one.
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Check is the check that found it.
	Check string `json:"check"`
	// Summary is a sentence for people.
	Summary string `json:"summary"`
	// Fix is the command, or the edit, that mends it.
	Fix      string   `json:"fix"`
	Evidence []string `json:"evidence,omitempty"`
}

// Check is one thing that was looked at.
type Check struct {
	ID     string `json:"id"`
	Title  string `json:"title"`
	Status Status `json:"status"`
	// Said is what was found, or why it could not be looked at.
	Said       string   `json:"said"`
	Findings   []string `json:"findings"`
	DurationMS float64  `json:"duration_ms"`
}

// Summary counts.
type Summary struct {
	Errors  int `json:"errors"`
	Warns   int `json:"warns"`
	Infos   int `json:"infos"`
	Checks  int `json:"checks"`
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
}

// Report is what a doctor has to say. It is OK if no finding is an error.
type Report struct {
	GeneratedAt time.Time `json:"generated_at"`
	OK          bool      `json:"ok"`
	Summary     Summary   `json:"summary"`
	Findings    []Finding `json:"findings"` // the worst first
	Checks      []Check   `json:"checks"`   // in the order in which they were made
}

// ErrNoCheck says that there is no check of a name.
var ErrNoCheck = errors.New("there is no such check")

// checkTime bounds one check.
const checkTime = 60 * time.Second

// result is what a check gives.
type result struct {
	said     string
	skip     bool
	findings []Finding
}

func pass(format string, args ...any) result { return result{said: fmt.Sprintf(format, args...)} }

// skipped is a check that could not be made.
func skipped(format string, args ...any) result {
	return result{said: fmt.Sprintf(format, args...), skip: true}
}

// find adds a finding. object is what it is about where several can be, empty where there is one at most.
func (r *result) find(s Severity, kind, object, fix, format string, args ...any) {
	id := kind
	if object != "" {
		id += ":" + object
	}
	r.findings = append(r.findings, Finding{ID: id, Severity: s, Summary: fmt.Sprintf(format, args...), Fix: fix})
}

// check is a check as it is declared.
type check struct {
	id, title string
	run       func(context.Context, *patient) result
	slow      bool // it is shown while it is made
}

// checks are all of them, in their order: what others stand on comes first.
var checks = []check{
	{"home.modes", "The state directory is yours alone", homeModes, false},
	{"home.filesystem", "The state directory is on a local disk", homeFilesystem, false},
	{"home.disk", "There is room on the disk", homeDisk, false},
	{"host.clock", "The clock is right", hostClock, false},
	{"config.valid", "config.json is in order", configValid, false},
	{"database.schema", "The database is of this version", databaseSchema, false},
	{"database.whole", "The database is whole", databaseWhole, true},
	{"audit.chain", "The audit's newest rows are whole", auditChain, false},
	{"daemon.answers", "The daemon answers", daemonAnswers, false},
	{"daemon.current", "The daemon is what would be started now", daemonCurrent, false},
	{"daemon.environment", "No secret is in an environment", daemonEnvironment, false},
	{"gateway.exposure", "Who reaches the gateway", gatewayExposure, false},
	{"bus.exposure", "Who reaches the bus", busExposure, false},
	{"bus.works", "The bus stores and is joined", busWorks, false},
	{"ports.exposure", "Who reaches other ports of the daemon", portsExposure, false},
	{"host.user_namespaces", "User namespaces can be made", hostUserNamespaces, false},
	{"host.cgroups", "Control groups can be made", hostCgroups, false},
	{"host.tun", "Network devices can be made", hostTun, false},
	{"sandbox.gvisor", "A sandbox starts", sandboxGVisor, true},
	{"leaks.sandboxes", "No sandbox is left over", leakedSandboxes, false},
	{"leaks.processes", "No process or network is left over", leakedProcesses, false},
	{"leaks.cgroups", "No control group is left over", leakedCgroups, false},
	{"leaks.mounts", "No mount is left over", leakedMounts, false},
	{"keys.expired", "No key is expired and still recorded as live", keysExpired, false},
	{"keys.unused", "Every key is used", keysUnused, false},
	{"agents.node", "Node.js is there for agents", agentsNode, false},
}

// Names are the ids of all checks.
func Names() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.id
	}
	return names
}

// choose picks checks by their ids, or by what stands before the dot; none is all.
func choose(only []string) ([]check, error) {
	if len(only) == 0 {
		return checks, nil
	}
	wanted := map[string]bool{}
	for _, name := range only {
		found := false
		for _, c := range checks {
			if c.id == name || strings.HasPrefix(c.id, name+".") {
				wanted[c.id], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("%w: %.40q", ErrNoCheck, name)
		}
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return !wanted[c.id] }), nil
}

// Examine makes the checks. An error means that none was made: what goes wrong in a check is its finding, or why it was
// skipped.
func Examine(ctx context.Context, o Options) (Report, error) {
	chosen, err := choose(o.Only)
	if err != nil {
		return Report{}, err
	}
	p, err := newPatient(ctx, o)
	if err != nil {
		return Report{}, err
	}
	defer p.close()
	return examine(ctx, p, chosen), ctx.Err()
}

func examine(ctx context.Context, p *patient, chosen []check) Report {
	r := Report{GeneratedAt: p.now().UTC().Truncate(time.Millisecond), Findings: []Finding{}, Checks: []Check{}}
	for _, c := range chosen {
		if ctx.Err() != nil {
			break
		}
		done := func(error) {}
		if c.slow {
			done = p.step(c.title)
		}
		start := time.Now()
		got := bounded(ctx, p, c)
		took := time.Since(start)
		done(nil)
		made := Check{ID: c.id, Title: c.title, Said: got.said, Status: Pass, Findings: []string{}, DurationMS: float64(took.Microseconds()) / 1000}
		if got.skip {
			made.Status = Skip
		}
		for _, f := range got.findings {
			f.Check = c.id
			made.Findings = append(made.Findings, f.ID)
			if f.Severity != Info {
				made.Status = Fail
			}
			r.Findings = append(r.Findings, f)
		}
		r.Checks = append(r.Checks, made)
	}
	r.count()
	return r
}

// bounded makes a check, for so long as a check may take.
func bounded(ctx context.Context, p *patient, c check) result {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("it was not done within %v", checkTime))
	defer cancel()
	return c.run(ctx, p)
}

func (r *Report) count() {
	rank := map[Severity]int{Error: 0, Warn: 1, Info: 2}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return rank[a.Severity] - rank[b.Severity] })
	r.Summary = Summary{Checks: len(r.Checks)}
	for _, f := range r.Findings {
		switch f.Severity {
		case Error:
			r.Summary.Errors++
		case Warn:
			r.Summary.Warns++
		case Info:
			r.Summary.Infos++
		}
	}
	for _, c := range r.Checks {
		switch c.Status {
		case Pass:
			r.Summary.Passed++
		case Fail:
			r.Summary.Failed++
		case Skip:
			r.Summary.Skipped++
		}
	}
	r.OK = r.Summary.Errors == 0
}
