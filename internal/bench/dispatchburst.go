package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"ravi/internal/store"
)

const (
	burstSessions = 20
	mostEach      = 10 // messages of a session
	fleetEach     = 1
	mostFleets    = 2 // rounds: each takes a while
	fleetRunners  = 3
	runnerWait    = 30 * time.Second
)

// echoTask is a command that says what it was asked for.
var echoTask = []string{"cat", "TASK.md"}

// burstSize is how many messages are sent at once.
func (b *bench) burstSize() int { return burstSessions * min(b.Runs, mostEach) }

// bursts measures many messages at once in many sessions.
func (o *office) bursts(ctx context.Context) error {
	failed := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		o.fail(burstRate, atHome, err)
		return nil
	}
	if err := o.works(ctx, echoTask...); err != nil {
		return failed(err)
	}
	got, err := o.burst(ctx, "burst", burstSessions, min(o.Runs, mostEach))
	if err != nil {
		return failed(err)
	}
	o.add(burstRate, atHome, got.rate)
	for _, wait := range got.waits {
		o.add(burstWait, atHome, wait.Seconds())
	}
	o.add(burstWrong, atHome, float64(len(got.wrong)))
	if len(got.wrong) > 0 {
		o.fail(burstWrong, atHome, errors.New(strings.Join(got.wrong, "; ")))
	}
	if err := settle(ctx); err != nil {
		return err
	}
	kb, err := procKB(fmt.Sprintf("/proc/%d/status", o.d.pid()), "VmRSS")
	if err != nil {
		return failed(err)
	}
	o.add(burstMem, atHome, float64(kb)*1024/1e6)
	return nil
}

// burst is what came of many messages.
type burst struct {
	rate  float64 // messages a second, from the first that is sent until the last is over
	waits []time.Duration
	wrong []string       // what was lost, done twice, or not in its order
	on    map[string]int // by runner: how many
}

// burst sends messages over the daemon's socket, in all sessions at once, and waits until all are over.
func (o *office) burst(ctx context.Context, name string, sessions, each int) (out burst, err error) {
	before, err := o.st.CountRuns(ctx, store.RunFilter{})
	if err != nil {
		return out, err
	}
	start := time.Now()
	all, err := o.say(ctx, name, sessions, each)
	if err != nil {
		return out, err
	}
	if err := o.over(ctx); err != nil {
		return out, err
	}
	out.on = map[string]int{}
	last := start
	for s, messages := range all {
		for _, m := range messages {
			w, err := o.st.Work(ctx, m.Work.ID)
			if err != nil {
				return out, err
			}
			if w.Status != store.WorkDone || w.EndedAt == nil || w.StartedAt == nil {
				out.wrong = append(out.wrong, fmt.Sprintf("message %s is %s: %s", m.ID, w.Status, w.Reason))
				continue
			}
			out.on[w.Runner]++
			out.waits = append(out.waits, w.StartedAt.Sub(w.CreatedAt))
			if w.EndedAt.After(last) {
				last = *w.EndedAt
			}
		}
		said, err := o.st.Messages(ctx, messages[0].SessionID, store.MessageFilter{})
		if err != nil {
			return out, err
		}
		out.wrong = append(out.wrong, wrongIn(s, said, each)...)
	}
	after, err := o.st.CountRuns(ctx, store.RunFilter{})
	if n := after - before; err == nil && n != sessions*each {
		out.wrong = append(out.wrong, fmt.Sprintf("%d runs for %d messages", n, sessions*each))
	}
	out.rate = float64(sessions*each) / last.Sub(start).Seconds()
	return out, err
}

// jobSay sends N messages in each of Sessions at once, over a daemon's socket, and prints what is said of them.
const jobSay = "say"

// say has a process of its own do that: it stands where the daemon does.
func (o *office) say(ctx context.Context, name string, sessions, each int) (all [][]sent, err error) {
	spec, err := json.Marshal(job{Do: jobSay, Base: o.d.socket, Body: name, N: each, Sessions: sessions})
	if err != nil {
		return nil, err
	}
	cmd := program(ctx, o.Program, "bench")
	cmd.Env = append(withoutOurs(os.Environ()), EnvClient+"="+string(spec))
	said := ""
	if err := o.at.do(func() (err error) { said, err = output(cmd); return err }); err != nil {
		return nil, err
	}
	return all, json.Unmarshal([]byte(said), &all)
}

// say does jobSay.
func (j job) say(ctx context.Context) ([][]sent, error) {
	all := make([][]sent, j.Sessions)
	failed := make([]error, j.Sessions)
	var sending sync.WaitGroup
	for i := range all {
		sending.Go(func() { all[i], failed[i] = j.sayIn(ctx, fmt.Sprintf("%s-%d", j.Body, i)) })
	}
	sending.Wait()
	return all, errors.Join(failed...)
}

func (j job) sayIn(ctx context.Context, session string) (all []sent, err error) {
	c, err := dialAsker(ctx, j.Base)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for i := range j.N {
		body, err := json.Marshal(map[string]string{"session": session, "text": fmt.Sprint(i), "agent": officeAgent})
		if err != nil {
			return nil, err
		}
		text, err := c.ask(request("POST", "sessions/send", "", body))
		if err != nil {
			return nil, err
		}
		var m sent
		if err := json.Unmarshal(text, &m); err != nil || m.Work == nil {
			return nil, fmt.Errorf("nobody works on the message: %.300q: %w", text, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// wrongIn says what of a session was not answered, answered twice, or not in the order in which it was asked.
func wrongIn(session int, said []store.Message, n int) (wrong []string) {
	next := 0
	for _, m := range said {
		if m.Role == store.RoleUser {
			continue
		}
		if text := strings.TrimSpace(m.Text); text != fmt.Sprint(next) {
			wrong = append(wrong, fmt.Sprintf("session %d was answered %.60q, not %d", session, text, next))
		}
		next++
	}
	if next != n {
		wrong = append(wrong, fmt.Sprintf("session %d has %d answers to %d messages", session, next, n))
	}
	return wrong
}

// fleet is work for runners, and what is measured with it.
type fleet struct {
	measure string
	task    []string
	lends   int   // sandboxes that each runner has room for
	ways    []int // how many runners; 0: this machine, without any
}

// busyFleet is work that does nothing but use processors, of which there are no more with more runners on one machine;
// waitingFleet is work that waits, as most agents do for their model, so that what there is room for is what bounds it.
var (
	busyFleet    = fleet{fleetRate, echoTask, 2 * runtime.NumCPU(), []int{0, 1, 2, 3}}
	waitingFleet = fleet{fleetWait, []string{"sh", "-c", "sleep 4; cat TASK.md"}, 2, []int{1, 2, 3}}
)

// fleet measures messages a second on this machine without runners, and with some that make all sandboxes. As root each is
// a host of its own, in a network namespace, and the bus has TLS; otherwise all is on loopback. They share this machine's
// processors in any case.
func (o *office) fleet(ctx context.Context, f fleet) (err error) {
	far, lan, err := o.elsewhere(ctx, f.measure)
	if err != nil {
		o.fail(f.measure, runnersBy(1), err)
		return ctx.Err()
	}
	defer func() { err = errors.Join(err, far.close(), lan.close()) }()
	for _, at := range []*office{o, far} {
		if err := at.works(ctx, f.task...); err != nil {
			return err
		}
	}
	for _, n := range f.ways {
		o.result(f.measure, runnersBy(n)) // so that they are shown in this order
	}
	round := 0
	return inTurns(ctx, min(o.Runs, mostFleets), f.ways, func(n int) error {
		round++
		at := o
		if n > 0 {
			at = far
			stop, err := far.lend(ctx, lan, n, f.lends)
			if err != nil {
				return err
			}
			defer stop()
		}
		got, err := at.burst(ctx, fmt.Sprintf("%s-%d", f.measure, round), burstSessions, fleetEach)
		if err != nil {
			return err
		}
		if len(got.wrong) > 0 {
			return errors.New(strings.Join(got.wrong, "; "))
		}
		if n > 0 && len(got.on) != n {
			return fmt.Errorf("%d of %d runners had work: %v", len(got.on), n, got.on)
		}
		o.add(f.measure, runnersBy(n), got.rate)
		return nil
	}, func(n int, err error) { o.fail(f.measure, runnersBy(n), err) })
}

func runnersBy(n int) string {
	switch n {
	case 0:
		return atHome
	case 1:
		return "1 runner"
	}
	return fmt.Sprintf("%d runners", n)
}

// elsewhere is an office that makes no sandboxes itself, with a credential for each runner. Close both.
func (b *bench) elsewhere(ctx context.Context, name string) (*office, *lan, error) {
	l, err := b.newLAN()
	if err != nil {
		return nil, nil, err
	}
	far, err := b.officeIn(ctx, l, name)
	if err != nil {
		return nil, nil, errors.Join(err, l.close())
	}
	return far, l, nil
}

func (b *bench) officeIn(ctx context.Context, l *lan, name string) (far *office, err error) {
	settings := map[string]any{"dispatch": map[string]any{"runs": -1}}
	if l.home != nil {
		g := &gateway{bench: b, home: filepath.Join(b.dir, name)}
		if err := os.Mkdir(g.home, 0o700); err != nil {
			return nil, err
		}
		said, err := g.call(ctx, "bus", "tls", l.home.addr, "--json")
		if err != nil {
			return nil, err
		}
		var made struct {
			Cert string `json:"tls_cert"`
			Key  string `json:"tls_key"`
			CA   string `json:"ca"`
		}
		if err := json.Unmarshal([]byte(said), &made); err != nil {
			return nil, err
		}
		l.ca = made.CA
		settings["bus"] = map[string]any{"host": l.home.addr, "port": lanPort, "tls_cert": made.Cert, "tls_key": made.Key}
	}
	if far, err = b.newOffice(ctx, name, l.home, settings); err != nil {
		return nil, err
	}
	for n := range fleetRunners {
		if err == nil {
			err = far.issue(ctx, n)
		}
	}
	if err == nil {
		l.url, err = far.busURL(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, far.close())
	}
	return far, nil
}

// issue makes the credential of the n-th runner.
func (o *office) issue(ctx context.Context, n int) error {
	_, err := o.call(ctx, "bus", "creds", "issue", "--runner", runnerName(n), "--out", o.creds(n))
	return err
}

func (o *office) creds(n int) string { return filepath.Join(o.home, runnerName(n)+".creds") }

func runnerName(n int) string { return fmt.Sprint("runner-", n+1) }

// busURL is where the daemon's bus is.
func (o *office) busURL(ctx context.Context) (string, error) {
	said, err := o.call(ctx, "daemon", "status", "--json")
	if err != nil {
		return "", err
	}
	var s struct {
		State struct{ Bus struct{ URL string } }
	}
	if err := json.Unmarshal([]byte(said), &s); err != nil || s.State.Bus.URL == "" {
		return "", fmt.Errorf("the daemon does not say where its bus is: %.300q: %w", said, err)
	}
	return s.State.Bus.URL, nil
}

// lend starts runners with room for so many sandboxes each, which are ready when it returns, until stop.
func (o *office) lend(ctx context.Context, l *lan, n, room int) (stop func(), err error) {
	since := time.Now()
	var all []*runnerProcess
	stop = func() {
		for _, r := range all {
			r.stop()
		}
	}
	for i := range n {
		r, err := o.startRunner(ctx, l, i, room)
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, r)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, runnerWait, fmt.Errorf("the runners were not heard of within %v", runnerWait))
	defer cancel()
	for {
		heard, err := o.st.ListRunners(ctx)
		ready := 0
		for _, r := range heard {
			if r.SeenAt.After(since) {
				ready++
			}
		}
		if err == nil && ready >= n {
			return stop, nil
		}
		for _, r := range all {
			select {
			case <-r.ended:
				err = fmt.Errorf("a runner ended: %s", r.said.b)
			default:
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			stop()
			return nil, err
		}
	}
}
