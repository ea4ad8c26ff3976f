package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ravi/internal/backend"
	"ravi/internal/programs"
	"ravi/internal/rootfs"
	"ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Options say what to measure, and how often.
type Options struct {
	Home    string
	Store   *store.Store
	Program string // the program ravi
	Version string
	Runs    int
	// Connects is how many new connections are made, and Download how many MB
	// are moved at once, to measure the network.
	Connects, Download int
	// Records is how many runs are in the store of a measured daemon, Seconds how long many clients ask it at once, Kills
	// how often it is killed meanwhile, and Idle how many seconds nobody asks it anything.
	Records, Seconds, Kills, Idle int
	// Only are the measures to take, and Beside the programs to compare with;
	// nil means all, and an empty Beside none.
	Only, Beside []string
	// Step begins a step that is shown to the user; what it gives ends it.
	Step func(name string) (done func(error))
}

// measure is one kind of number.
type measure struct {
	name, title, unit string
	higherIsBetter    bool
}

// measures are all there are, in the order in which they are shown.
var measures = []measure{
	{name: "create", title: "create, ms", unit: "ms"},
	{name: "first", title: "first output, ms", unit: "ms"},
	{name: "exec", title: "exec /bin/true, ms", unit: "ms"},
	{name: "spawn", title: "spawn inside, ms", unit: "ms"},
	{name: "output", title: "20 MB output, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "write", title: "write 64 MB, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "read", title: "read 64 MB, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "clone", title: "clone 5k files, ms", unit: "ms"},
	{name: "memory", title: "idle memory, MB", unit: "MB"},
	{name: "storm", title: "50 at once, each ms", unit: "ms"},
	{name: "storm_all", title: "50 at once, all ms", unit: "ms"},
	{name: "connect", title: "new connection, ms", unit: "ms"},
	{name: "kept", title: "kept request, ms", unit: "ms"},
	{name: "sse", title: "first event, ms", unit: "ms"},
	{name: "http", title: "HTTP, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "https1", title: "TLS, HTTP/1.1, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "https2", title: "TLS, HTTP/2, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "gatecpu", title: "gateway CPU, ms/MB", unit: "ms/MB"},
	{name: "allcpu", title: "all CPU, ms/MB", unit: "ms/MB"},
	{name: "cable", title: "idle cable, KB", unit: "KB"},
	{name: "netmem", title: "gateway, dialer, MB", unit: "MB"},
	{name: netCrowd, title: "100 receive, ms", unit: "ms"},
	{name: "gw_read", title: "gateway read, ms", unit: "ms"},
	{name: "gw_rate", title: "64 readers, 1/s", unit: "1/s", higherIsBetter: true},
	{name: "gw_cpu", title: "CPU of a read, ms", unit: "ms"},
	{name: "gw_lost", title: "answers lost, rows", unit: "rows"},
	{name: "gw_inside", title: "read in sandbox, ms", unit: "ms"},
	{name: "lists", title: "first page, ms", unit: "ms"},
	{name: "daemon_start", title: "daemon start, ms", unit: "ms"},
	{name: "daemon_mem", title: "daemon memory, MB", unit: "MB"},
	{name: "daemon_cpu", title: "idle daemon, %", unit: "%"},
	{name: "model_first", title: "broker adds, ms", unit: "ms"},
	{name: "model_call", title: "a model call, ms", unit: "ms"},
	{name: "model_streams", title: "longest pause, ms", unit: "ms"},
	{name: "model_mem", title: "one stream, KB", unit: "KB"},
	{name: loopExec, title: "loop's exec, ms", unit: "ms"},
	{name: loopAdds, title: "loop adds, ms", unit: "ms"},
	{name: loopMCP, title: "an MCP call, ms", unit: "ms"},
	{name: loopSubs, title: "20 agents, each ms", unit: "ms"},
	{name: loopSubsAll, title: "20 agents, all ms", unit: "ms"},
	{name: loopLost, title: "agents not done, n", unit: "n"},
	{name: loopGate, title: "gate, µs", unit: "µs"},
	{name: agentTurn, title: "agent's turn, ms", unit: "ms"},
	{name: msgBegin, title: "message runs, ms", unit: "ms"},
	{name: msgSteps, title: "its steps, ms", unit: "ms"},
	{name: burstRate, title: "messages, 1/s", unit: "1/s", higherIsBetter: true},
	{name: burstWait, title: "a message waits, s", unit: "s"},
	{name: burstWrong, title: "lost, doubled, n", unit: "n"},
	{name: burstMem, title: "daemon after it, MB", unit: "MB"},
	{name: fleetRate, title: "with runners, 1/s", unit: "1/s", higherIsBetter: true},
	{name: fleetWait, title: "that wait, 1/s", unit: "1/s", higherIsBetter: true},
	{name: busMem, title: "idle daemon, MB", unit: "MB"},
	{name: busCPU, title: "idle daemon, %", unit: "%"},
	{name: farExec, title: "exec there, ms", unit: "ms"},
	{name: farWrite, title: "write there, MB/s", unit: "MB/s", higherIsBetter: true},
	{name: "version", title: "ravi --version, ms", unit: "ms"},
}

// groups are names for several measures at once.
var groups = []struct {
	name     string
	measures []string
}{{netAll, netMeasures}, {gatewayAll, gatewayMeasures}, {modelsAll, modelMeasures}, {loopAll, loopMeasures}, {dispatchAll, dispatchMeasures}}

// comesWith says of measures that come with another, with which.
var comesWith = map[string]string{"storm_all": "storm", "gw_cpu": "gw_rate", "model_call": "model_first", "model_mem": "model_streams", loopAdds: loopExec, loopSubsAll: loopSubs, loopLost: loopSubs,
	msgSteps: msgBegin, burstWait: burstRate, burstWrong: burstRate, burstMem: burstRate, busCPU: busMem}

func titleOf(name string) string {
	for _, m := range measures {
		if m.name == name {
			return m.title
		}
	}
	return name
}

// Measures are the names for Options.Only.
func Measures() []string {
	var out []string
	for _, m := range measures {
		if _, comes := comesWith[m.name]; !comes {
			out = append(out, m.name)
		}
	}
	return out
}

// Groups are names for several measures at once.
func Groups() []string {
	var out []string
	for _, g := range groups {
		out = append(out, g.name)
	}
	return out
}

// Besides are the names for Options.Beside.
func Besides() []string { return []string{besideRunsc, besideDocker, besidePodman, besideBwrap} }

// ErrOptions says that the options make no sense.
var ErrOptions = errors.New("nothing to measure like that")

// Validate says what is wrong with the options, or nil.
func (o Options) Validate() error {
	if o.Runs < 1 || o.Runs > 10_000 {
		return fmt.Errorf("%w: %d runs: it is 1 to 10000", ErrOptions, o.Runs)
	}
	if o.Connects < 1 || o.Connects > mostConnects {
		return fmt.Errorf("%w: %d connections: it is 1 to %d", ErrOptions, o.Connects, mostConnects)
	}
	if o.Download < 1 || o.Download > mostDownload {
		return fmt.Errorf("%w: downloads of %d MB: it is 1 to %d", ErrOptions, o.Download, mostDownload)
	}
	for _, x := range []struct {
		what     string
		n, least int
		most     int
	}{{"runs in the store", o.Records, 10, 1_000_000}, {"seconds of many clients", o.Seconds, 1, 600}, {"kills", o.Kills, 1, 100}, {"idle seconds", o.Idle, 1, 3600}} {
		if x.n < x.least || x.n > x.most {
			return fmt.Errorf("%w: %d %s: it is %d to %d", ErrOptions, x.n, x.what, x.least, x.most)
		}
	}
	if o.Only != nil && len(o.Only) == 0 {
		return fmt.Errorf("%w: no measure is named: it is %s", ErrOptions, strings.Join(Measures(), ", "))
	}
	for _, x := range []struct {
		what         string
		given, known []string
	}{{"measure", o.Only, append(Groups(), Measures()...)}, {"program to compare with", o.Beside, Besides()}} {
		for _, name := range x.given {
			if !slices.Contains(x.known, name) {
				return fmt.Errorf("%w: there is no %s %q: it is %s", ErrOptions, x.what, name, strings.Join(x.known, ", "))
			}
		}
	}
	return nil
}

// cold is how long it took from nothing until something was there. A create of
// 0 means that only the first output can be seen.
type cold struct{ create, first time.Duration }

// contender is a way to run a command apart from the host.
type contender interface {
	by() string
	// cold makes one, runs a command in it, and ends it.
	cold(context.Context) (cold, error)
	// open makes one that lives.
	open(context.Context) (session, error)
}

// session is one that lives. Closing it must work after the end of a context.
type session interface {
	exec(context.Context) (time.Duration, error)
	pid() int // the ancestor of all processes that it needs
	close(context.Context) error
}

var (
	_ contender = (*box)(nil)
	_ contender = (*engine)(nil)
	_ session   = (*boxSession)(nil)
	_ session   = (*engineSession)(nil)
)

// bench is one run.
type bench struct {
	Options
	dir     string
	image   image
	report  *Report
	boxes   []*box
	engines []*engine
}

// Run measures. It removes all that it made, also when ctx ends.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Only = expand(o.Only)
	b := &bench{Options: o, report: &Report{Version: o.Version, Started: time.Now().UTC(), Runs: o.Runs, Results: []Result{}, Skipped: []Skip{}}}
	if b.report.Machine, err = thisMachine(); err != nil {
		return nil, err
	}
	if b.report.Load[0], err = load(); err != nil {
		return nil, err
	}
	dir, err := newWorkDir(o.Home)
	if err != nil {
		return nil, fmt.Errorf("making a place for the benchmark: %w", err)
	}
	b.dir = dir.path
	defer func() {
		clean, cancel := cleaning(ctx)
		defer cancel()
		err = errors.Join(err, b.close(clean), dir.remove())
	}()
	if err := b.measure(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err() // what failed then, failed by that
		}
		return nil, err
	}
	if b.report.Load[1], err = load(); err != nil {
		return nil, err
	}
	b.report.Seconds = time.Since(b.report.Started).Seconds()
	b.report.finish()
	return b.report, nil
}

// cleaning is a context to clean up in, whatever became of ctx.
func cleaning(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

func (b *bench) close(ctx context.Context) error {
	var errs []error
	for _, e := range b.engines {
		if e.close != nil {
			errs = append(errs, e.close(ctx))
		}
	}
	return errors.Join(errs...)
}

func (b *bench) measure(ctx context.Context) error {
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, phase := range []struct {
		step  string
		of    []string
		phase func(context.Context) error
	}{
		{"from nothing to the first output", []string{"create", "first"}, b.coldStarts},
		{"commands in a running sandbox", []string{"exec", "spawn"}, b.execs},
		{"output, and files in and out", []string{"output", "write", "read"}, b.streams},
		{"cloning a repository", []string{"clone"}, b.clones},
		{"memory", []string{"memory"}, b.memory},
		{fmt.Sprintf("%d sandboxes at once", stormSize), []string{"storm"}, b.storm},
		{"the network of a sandbox", netMeasures, b.network},
		{fmt.Sprintf("%d sandboxes that receive at once", crowdSize), []string{netCrowd}, b.crowd},
		{"", gatewayMeasures, b.gateway}, // in steps of its own
		{"", loopMeasures, b.loop},
		{"", modelMeasures, b.models},
		{"", dispatchMeasures, b.dispatch},
		{"the program's own start", []string{"version"}, b.versions},
	} {
		if !b.wantAny(phase.of...) {
			continue
		}
		if err := b.step(phase.step, func() error { return phase.phase(ctx) }); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// step shows what is done; without a name it is done without a word.
func (b *bench) step(name string, do func() error) error {
	if name == "" {
		return do()
	}
	done := b.Step(name)
	err := do()
	done(err)
	return err
}

// want says whether a measure is to be taken. The crowd needs a machine for
// itself for minutes, a gateway a full store and an idle minute, models and the
// loop programs that may not be here, messages minutes: these are asked for by name.
func (b *bench) want(name string) bool {
	if with, comes := comesWith[name]; comes {
		name = with
	}
	if b.Only == nil {
		return name != netCrowd && !slices.Contains(gatewayMeasures, name) && !slices.Contains(modelMeasures, name) && !slices.Contains(loopMeasures, name) && !slices.Contains(dispatchMeasures, name)
	}
	return slices.Contains(b.Only, name)
}

// alone says whether all that is measured needs no sandbox that is made here.
func (b *bench) alone() bool {
	return b.Only != nil && !slices.ContainsFunc(b.Only, func(name string) bool {
		if slices.Contains(dispatchMeasures, name) {
			return name == farExec || name == farWrite
		}
		return name != "version" && name != loopSubs && name != loopGate && !slices.Contains(modelMeasures, name) && (name == "gw_inside" || !slices.Contains(gatewayMeasures, name))
	})
}

func (b *bench) wantAny(names ...string) bool { return slices.ContainsFunc(names, b.want) }

// prepare finds out who can be measured here. Each makes one that does not
// count: the first of anything pays for cold caches.
func (b *bench) prepare(ctx context.Context) error {
	if b.alone() {
		return nil
	}
	root, err := rootfs.Prepare(b.Home, rootfs.HostImage)
	if err != nil {
		return err
	}
	b.image = image{dir: filepath.Join(b.dir, "image"), host: root.Host}
	if err := os.CopyFS(b.image.dir, os.DirFS(root.Dir)); err != nil {
		return fmt.Errorf("copying the image: %w", err)
	}
	record := b.recorder()
	for _, name := range []string{sandbox.BackendGVisor, sandbox.BackendHost} {
		x := &box{backend: name, home: b.Home, record: record}
		err := b.try(ctx, x.by(), func() error { _, err := x.cold(ctx); return err })
		if err != nil && name == ours {
			return err
		}
		if !b.skipped(x.by()) {
			b.boxes = append(b.boxes, x)
		}
	}
	if !b.wantAny("first", "exec", "memory") {
		return ctx.Err() // nothing in which others take part
	}
	for _, name := range Besides() {
		if b.Beside != nil && !slices.Contains(b.Beside, name) {
			continue
		}
		// That it cannot be compared with is in the report, and no failure.
		_ = b.try(ctx, name, func() error {
			e, err := b.engine(ctx, name)
			if err == nil {
				b.engines = append(b.engines, e)
				_, err = e.cold(ctx)
			}
			return err
		})
	}
	return ctx.Err()
}

// recorder writes the benchmark's sandboxes down.
func (b *bench) recorder() *recorder {
	return &recorder{Recorder: run.Recorder{Store: b.Store}, keepers: map[string]int{}}
}

// try finds out whether somebody can be measured here, and notes why not.
func (b *bench) try(ctx context.Context, by string, do func() error) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	done := b.Step("trying " + by)
	if err = do(); err != nil {
		b.skip(by, err)
	}
	if errors.Is(err, errMissing) || errors.Is(err, backend.ErrUnavailable) {
		done(nil)
		return err
	}
	done(err)
	return err
}

func (b *bench) engine(ctx context.Context, name string) (*engine, error) {
	switch name {
	case besideRunsc:
		parts, err := programs.Find(ctx, b.Home)
		if err != nil {
			return nil, err
		}
		return newRunsc(b.dir, parts.Kernel, b.image), nil
	case besideBwrap:
		return newBwrap(b.image)
	}
	return newContainers(ctx, name, b.image)
}

func (b *bench) skip(what string, why error) {
	b.report.Skipped = append(b.report.Skipped, Skip{What: what, Why: why.Error()})
}

// skipped says whether a contender did not even do for a trial.
func (b *bench) skipped(by string) bool {
	return slices.ContainsFunc(b.report.Skipped, func(s Skip) bool { return s.What == by })
}

// contenders are all that can be measured here; ours come first.
func (b *bench) contenders() []contender {
	var out []contender
	for _, x := range b.boxes {
		out = append(out, x)
	}
	for _, e := range b.engines {
		if !b.skipped(e.label) {
			out = append(out, e)
		}
	}
	return out
}

// result is where samples of one contender go.
func (b *bench) result(name, by string) *Result {
	if x := b.report.find(name, by); x != nil {
		return x
	}
	x := Result{Measure: name, By: by, Better: "lower", Samples: []float64{}}
	for _, m := range measures {
		if m.name == name {
			x.Unit = m.unit
			if m.higherIsBetter {
				x.Better = "higher"
			}
		}
	}
	b.report.Results = append(b.report.Results, x)
	return &b.report.Results[len(b.report.Results)-1]
}

func (b *bench) add(name, by string, value float64) {
	if b.want(name) {
		x := b.result(name, by)
		x.Samples = append(x.Samples, value)
	}
}

func (b *bench) addTime(name, by string, d time.Duration) {
	b.add(name, by, float64(d)/float64(time.Millisecond))
}

// addRate adds a rate in MB a second.
func (b *bench) addRate(name, by string, bytes int, d time.Duration) {
	b.add(name, by, float64(bytes)/1e6/d.Seconds())
}

// fail notes that a try gave nothing.
func (b *bench) fail(name, by string, err error) {
	x := b.result(name, by)
	x.Failures++
	if x.Error == "" {
		x.Error = err.Error()
	}
}
