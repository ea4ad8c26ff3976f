package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"ravi/internal/audit"
	"ravi/internal/store"
)

const (
	// gatewayAll is the name for all measures of the gateway.
	gatewayAll = "gateway"

	// Who asks.
	byKey      = "with a key"
	byOperator = "operator"
	byWhole    = "all the time"
	byKilled   = "kill -9"
	// constant is the least that an answer can cost: the same listener and client, and a text that is there.
	constant = "constant"
	// atStart and afterCalls are when a daemon's memory is looked at.
	atStart, afterCalls = "at start", "after calls"

	gatewayClients = 64  // at once
	readsARound    = 100 // in turns
	mostStarts     = 10
	mostRates      = 3 // each takes seconds
	readAsk        = "tasks/show"
)

// gatewayMeasures are what Only may name at once as "gateway". They are for a store of a size that takes a while to
// make, and an idle minute, so they are asked for by name.
var gatewayMeasures = []string{"gw_read", "gw_rate", "gw_lost", "gw_inside", "lists", "daemon_start", "daemon_mem", "daemon_cpu"}

type gatewayKey struct{ id, token string }

// gateway is a daemon that is measured, in a home of its own.
type gateway struct {
	*bench
	home    string
	at      *netHost // where the daemon runs; nil: here
	subject subject
	keys    []gatewayKey
}

// gateway measures the daemon and its gateway.
func (b *bench) gateway(ctx context.Context) (err error) {
	g := &gateway{bench: b, home: filepath.Join(b.dir, "gateway")}
	if err := os.Mkdir(g.home, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(g.home, "config.json"), []byte(`{"gateway": {"port": 0}, "bus": {"port": 0}}`), 0o600); err != nil {
		return err
	}
	if err := b.step(fmt.Sprintf("a store with %d runs", b.Records), func() error { return g.fill(ctx) }); err != nil {
		return err
	}
	if b.want("daemon_start") {
		if err := g.starts(ctx); err != nil {
			return err
		}
	}
	if !b.wantAny("gw_read", "gw_rate", "gw_lost", "gw_inside", "lists", "daemon_mem", "daemon_cpu") {
		return nil
	}
	d, err := g.startDaemon(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, phase := range []struct {
		step string
		of   []string
		do   func(context.Context, *daemonProcess) error
	}{
		{fmt.Sprintf("an idle daemon, %d s", b.Idle), []string{"daemon_mem", "daemon_cpu"}, g.idle},
		{"lists", []string{"lists"}, g.lists},
		{"one reader", []string{"gw_read"}, g.reads},
		{"a reader in a sandbox", []string{"gw_inside"}, g.inside},
		{fmt.Sprintf("%d readers at once", gatewayClients), []string{"gw_rate"}, g.rates},
		{"the daemon's memory", []string{"daemon_mem"}, func(ctx context.Context, d *daemonProcess) error { return g.rss(ctx, d, afterCalls) }},
	} {
		if !b.wantAny(phase.of...) {
			continue
		}
		if err := b.step(phase.step, func() error { return phase.do(ctx, d) }); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if !b.want("gw_lost") {
		return nil
	}
	if err := d.stop(); err != nil {
		return err
	}
	return b.step("readers, and the daemon is killed", func() error { return g.kills(ctx) })
}

// starts measures from the daemon's start until it answers, and beside it what any start of the program takes.
func (g *gateway) starts(ctx context.Context) error {
	return inTurns(ctx, min(g.Runs, mostStarts), []string{byOperator, besideVersion}, func(by string) error {
		if by == besideVersion {
			start := time.Now()
			err := finish(g.ravi(ctx, "--version"))
			g.addTime("daemon_start", by, time.Since(start))
			return err
		}
		d, err := g.startDaemon(ctx)
		if err != nil {
			return err
		}
		g.addTime("daemon_start", ours, d.took)
		return d.stop()
	}, func(_ string, err error) { g.fail("daemon_start", ours, err) })
}

// besideVersion is the program that only says its version.
const besideVersion = "--version"

// idle measures a daemon that nobody asks for anything.
func (g *gateway) idle(ctx context.Context, d *daemonProcess) error {
	if err := settle(ctx); err != nil {
		return err
	}
	before, err := cpuOf(d.pid())
	if err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-time.After(time.Duration(g.Idle) * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := cpuOf(d.pid())
	if err != nil {
		return err
	}
	g.add("daemon_cpu", ours, 100*float64(after-before)/float64(time.Since(start)))
	return g.rss(ctx, d, atStart)
}

// rss is what of the daemon is in memory: the program's own pages, which others may share, included.
func (g *gateway) rss(ctx context.Context, d *daemonProcess, when string) error {
	if err := settle(ctx); err != nil {
		return err
	}
	kb, err := procKB(fmt.Sprintf("/proc/%d/status", d.pid()), "VmRSS")
	if err != nil {
		return err
	}
	g.add("daemon_mem", when, float64(kb)*1024/1e6)
	return nil
}

// entry is what the registry says of a command.
type entry struct {
	Name, Group, Command, Access string
	Fields                       []struct{ Name, Type string }
}

// lists measures the first page of every command that lists, without a filter and with each that it has. Of each command
// the slowest of these is told.
func (g *gateway) lists(ctx context.Context, d *daemonProcess) error {
	c, err := dialAsker(ctx, d.socket)
	if err != nil {
		return err
	}
	defer c.close()
	text, err := c.ask(request("GET", "_meta/registry", "", nil))
	if err != nil {
		return err
	}
	var registry struct{ Commands []entry }
	if err := json.Unmarshal(text, &registry); err != nil {
		return fmt.Errorf("the registry: %w", err)
	}
	for _, e := range registry.Commands {
		if e.Access != "read" || !slices.ContainsFunc(e.Fields, func(f struct{ Name, Type string }) bool { return f.Name == "limit" }) {
			continue
		}
		var slowest []float64
		var answered error
		for _, in := range g.filters(e) {
			body, err := json.Marshal(in)
			if err != nil {
				return err
			}
			ask := request("POST", e.Group+"/"+e.Command, "", body)
			var took []float64
			for range max(g.Runs, fewSamples) {
				start := time.Now()
				if _, err := c.ask(ask); err != nil {
					if _, isRefusal := errors.AsType[*refused](err); !isRefusal {
						return err
					}
					answered = err
					break // it takes not this filter with no other
				}
				took = append(took, float64(time.Since(start))/float64(time.Millisecond))
			}
			if len(took) > 0 && (slowest == nil || summarize(took, false).P50 > summarize(slowest, false).P50) {
				slowest = took
			}
		}
		if slowest == nil {
			g.fail("lists", e.Name, answered)
		}
		for _, v := range slowest {
			g.add("lists", e.Name, v)
		}
	}
	return nil
}

// filters are the inputs that a list is asked with: each filter alone, beside the object that it is about.
func (g *gateway) filters(e entry) []map[string]any {
	values := map[string]any{
		"agent": g.subject.agent, "session": g.subject.session, "task": g.subject.task, "path": "notes/bench.md", "status": "failed",
		"all": true, "live": true, "denied": true, "decision": string(store.Denied), "caller": audit.Operator, "action": audit.CommandPrefix,
		"object": g.subject.task, "run": "run" + strings.Repeat("0", 25) + "1", "text": "nowhere to be found", "since": "1h", "last": 100,
	}
	has := func(name string) bool {
		return slices.ContainsFunc(e.Fields, func(f struct{ Name, Type string }) bool { return f.Name == name })
	}
	base := map[string]any{}
	switch e.Group {
	case "memory":
		base["agent"] = g.subject.agent
	case "sessions":
		if !has("all") {
			base["session"] = g.subject.session
		}
	}
	if e.Name == "tasks.show" {
		base["task"] = g.subject.task
	}
	if has("path") {
		base["path"] = values["path"]
	}
	out := []map[string]any{base}
	for _, f := range e.Fields {
		v, known := values[f.Name]
		if _, fixed := base[f.Name]; !known || fixed {
			continue
		}
		in := map[string]any{f.Name: v}
		for name, v := range base {
			in[name] = v
		}
		// Some lists give all there is unless told otherwise: this is about pages.
		in["limit"] = 100
		out = append(out, in)
	}
	return out
}

// question is a read of the one task.
func (g *gateway) question(key string) []byte {
	return request("POST", readAsk, key, []byte(`{"task":"`+g.subject.task+`"}`))
}

// reads measures one client that asks again and again.
func (g *gateway) reads(ctx context.Context, d *daemonProcess) (err error) {
	floor, err := g.startConstant(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, floor.close()) }()
	type reader struct {
		by       string
		client   *asker
		requests [][]byte
	}
	var readers []reader
	for _, by := range []string{byKey, byOperator, constant} {
		r := reader{by: by}
		socket := d.socket
		switch by {
		case byKey:
			for _, k := range g.keys { // in turns, since how often one may ask is bounded
				r.requests = append(r.requests, g.question(k.token))
			}
		case constant:
			socket = floor.socket
			fallthrough
		default:
			r.requests = [][]byte{g.question("")}
		}
		if r.client, err = dialAsker(ctx, socket); err != nil {
			return err
		}
		defer r.client.close()
		readers = append(readers, r)
	}
	n := 0
	return inTurns(ctx, g.Runs, readers, func(r reader) error {
		for range readsARound {
			n++
			start := time.Now()
			if _, err := r.client.ask(r.requests[n%len(r.requests)]); err != nil {
				return err
			}
			g.addTime("gw_read", r.by, time.Since(start))
		}
		return nil
	}, func(r reader, err error) { g.fail("gw_read", r.by, err) })
}

// crowdOf has as many clients as there are keys ask for a time, or until the other side is gone, and gives how many
// answers each got.
func (g *gateway) crowdOf(ctx context.Context, socket string, d time.Duration, withKeys bool) (answers []int64, took time.Duration, err error) {
	answers = make([]int64, len(g.keys))
	failed := make([]error, len(g.keys))
	clients := make([]*asker, len(g.keys))
	for i := range clients {
		if clients[i], err = dialAsker(ctx, socket); err != nil {
			return nil, 0, err
		}
		defer clients[i].close()
	}
	var all sync.WaitGroup
	start := time.Now()
	for i, k := range g.keys {
		ask := g.question("")
		if withKeys {
			ask = g.question(k.token)
		}
		all.Go(func() {
			for { // once at least
				if _, failed[i] = clients[i].ask(ask); failed[i] != nil {
					return
				}
				answers[i]++
				if time.Since(start) >= d || ctx.Err() != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return answers, time.Since(start), errors.Join(failed...)
}

// rates measures many clients at once. Every answer that they got has its row in the audit, and no row is of another.
func (g *gateway) rates(ctx context.Context, d *daemonProcess) (err error) {
	floor, err := g.startConstant(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, floor.close()) }()
	during := time.Duration(g.Seconds) * time.Second
	return inTurns(ctx, min(g.Runs, mostRates), []string{byKey, constant}, func(by string) error {
		if by == constant {
			answers, took, err := g.crowdOf(ctx, floor.socket, during, false)
			if err != nil {
				return err
			}
			g.add("gw_rate", by, float64(sum(answers))/took.Seconds())
			return nil
		}
		rows, err := g.rows(ctx)
		if err != nil {
			return err
		}
		before, err := cpuOf(d.pid())
		if err != nil {
			return err
		}
		answers, took, err := g.crowdOf(ctx, d.socket, during, true)
		if err != nil {
			return err
		}
		after, err := cpuOf(d.pid())
		if err != nil {
			return err
		}
		g.add("gw_rate", by, float64(sum(answers))/took.Seconds())
		g.add("gw_cpu", byKey, float64(after-before)/float64(time.Millisecond)/float64(sum(answers)))
		without, more, err := g.withoutRow(ctx, rows, answers)
		if err == nil && more > 0 {
			err = fmt.Errorf("%d rows of the audit are of no answer", more)
		}
		if err == nil {
			g.add("gw_lost", byWhole, float64(without))
		}
		return err
	}, func(by string, err error) { g.fail("gw_rate", by, err) })
}

// kills ends the daemon in the middle of many calls, again and again. What was answered has a row all the same.
func (g *gateway) kills(ctx context.Context) error {
	return inTurns(ctx, g.Kills, []string{byKilled}, func(by string) error {
		rows, err := g.rows(ctx)
		if err != nil {
			return err
		}
		d, err := g.startDaemon(ctx)
		if err != nil {
			return err
		}
		killed := make(chan error, 1)
		timer := time.AfterFunc(time.Duration(g.Seconds)*time.Second/4, func() { killed <- d.kill() })
		answers, _, err := g.crowdOf(ctx, d.socket, time.Hour, true)
		if timer.Stop() {
			return errors.Join(errors.New("the clients ended before the daemon"), err, d.kill())
		}
		if err := <-killed; err != nil {
			return err
		}
		without, _, err := g.withoutRow(ctx, rows, answers)
		if err != nil {
			return err
		}
		if sum(answers) == 0 {
			return errors.New("nothing was answered before the daemon was killed")
		}
		g.add("gw_lost", by, float64(without))
		return nil
	}, func(by string, err error) { g.fail("gw_lost", by, err) })
}

func sum(n []int64) (total int64) {
	for _, v := range n {
		total += v
	}
	return total
}

// rows is how many rows of reads each key has in the audit.
func (g *gateway) rows(ctx context.Context) (map[string]int64, error) {
	s, err := store.Open(ctx, g.home)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	out := map[string]int64{}
	for _, k := range g.keys {
		f := audit.Filter{Caller: k.id, Action: audit.CommandPrefix + "tasks.show", Decision: store.Allowed}
		for {
			page, err := s.Audit(ctx, f)
			if err != nil {
				return nil, err
			}
			for _, r := range page {
				out[k.id] += r.Count
			}
			if len(page) < store.AuditPage {
				break
			}
			f.After = page[len(page)-1].Seq
		}
	}
	return out, nil
}

// withoutRow is how many answers have no row in the audit, and how many rows no answer, since there were so many rows
// before. The audit holds together, or that is the error.
func (g *gateway) withoutRow(ctx context.Context, before map[string]int64, answers []int64) (without, more int64, err error) {
	now, err := g.rows(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i, k := range g.keys {
		rows := now[k.id] - before[k.id]
		without += max(0, answers[i]-rows)
		more += max(0, rows-answers[i])
	}
	s, err := store.Open(ctx, g.home)
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	_, err = audit.Log{Store: s}.Verify(ctx, nil)
	return without, more, err
}
