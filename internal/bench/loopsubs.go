package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ravi/agent"
	"ravi/internal/adapter"
	"ravi/internal/modeltest"
	"ravi/internal/run"
)

const (
	loopSubs    = "loop_subs"
	loopSubsAll = "loop_subs_all"
	loopLost    = "loop_lost"

	subsAtOnce = 20
	mostSubs   = 3 // rounds: each takes a while

)

// subModels is a provider that plays one script for an agent, and another one for its sub-agents.
type subModels struct{ agent, subs *modeltest.Server }

func newSubModels(n int) *subModels {
	spawns := modeltest.Turn{modeltest.Text("I have others look.")}
	for i := range n {
		spawns = append(spawns, modeltest.Call("spawn", map[string]any{"label": fmt.Sprintf("look %d", i+1), "task": "Look what is there."}))
	}
	return &subModels{
		agent: modeltest.New(modeltest.Script{
			Turns: []modeltest.Turn{spawns, {modeltest.Text("I wait.")}},
			Then:  []modeltest.Script{{Turns: []modeltest.Turn{{modeltest.Text("I have heard it.")}}}}, // of each that reports
		}),
		subs: modeltest.New(modeltest.Script{Turns: []modeltest.Turn{
			{modeltest.Shell("cat /etc/hostname; ls -a")},
			{modeltest.Call("finish", map[string]any{"summary": "It was looked at."})},
		}}),
	}
}

// ServeHTTP tells who asks by the tools that are offered: a sub-agent cannot spawn.
func (m *subModels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var asks struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(body, &asks); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if slices.ContainsFunc(asks.Tools, func(t struct{ Name string }) bool { return t.Name == "spawn" }) {
		m.agent.ServeHTTP(w, r)
		return
	}
	m.subs.ServeHTTP(w, r)
}

// serve begins to answer, and says where. What it gives ends that.
func (m *subModels) serve() (url string, end func() error, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: m, ErrorLog: log.New(io.Discard, "", 0)} // what a client does is in the run's outcome
	over := make(chan error, 1)
	go func() { over <- s.Serve(l) }()
	return "http://" + l.Addr().String(), func() error {
		err := errors.Join(s.Close(), m.agent.Close(), m.subs.Close())
		if served := <-over; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}

// loopSubagents measures n sub-agents that work at once, each in a sandbox of its own, as a run has them.
func (b *bench) loopSubagents(ctx context.Context, n int) (err error) {
	home, repo := filepath.Join(b.dir, "subs"), filepath.Join(b.dir, "subs-repo")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	config := fmt.Sprintf(`{"agents":{"defaults":{"max_concurrent_subagents":%d,"max_subagent_spawns_per_hour":%d}}}`, n, n)
	if err := os.WriteFile(filepath.Join(home, "config.json"), []byte(config), 0o600); err != nil {
		return err
	}
	if err := emptyRepo(ctx, repo); err != nil {
		return err
	}
	url, end, err := newSubModels(n).serve()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for range min(b.Runs, mostSubs) {
		all, subs, err := b.spawned(ctx, home, repo, url)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && len(subs) != n {
			err = fmt.Errorf("there were %d sub-agents, not %d", len(subs), n)
		}
		if most := mostAtOnce(subs); err == nil && most != n {
			err = fmt.Errorf("%d sub-agents were at work at once, not %d", most, n)
		}
		if err != nil {
			b.fail(loopSubs, ours, err)
			return nil
		}
		lost := 0
		for _, s := range subs {
			if s.status != agent.SubDone {
				lost++
				b.fail(loopSubs, ours, fmt.Errorf("%s ended: %s: %s", s.id, s.status, s.text))
				continue
			}
			b.addTime(loopSubs, ours, s.end.Sub(s.begin))
		}
		b.add(loopLost, ours, float64(lost))
		if lost == 0 {
			b.addTime(loopSubsAll, ours, all)
		}
	}
	return nil
}

// spawned has the loop do a run that spawns, and gives how long the loop took, and what its sub-agents did.
func (b *bench) spawned(ctx context.Context, home, repo, url string) (time.Duration, []sub, error) {
	cmd := program(ctx, b.Program, "sandbox", "run", "--json", "--quiet", "--backend", ours, "--repo", repo, "--context", "none",
		"--agent", adapter.Loop, "--model", "scripted-1", "--task", "Have others look.")
	cmd.Env = append(turnEnv(os.Environ()), "RAVI_HOME="+home, "ANTHROPIC_API_KEY="+turnKey, "ANTHROPIC_BASE_URL="+url)
	said, err := output(cmd)
	if err != nil {
		return 0, nil, err
	}
	task, err := readRan(said)
	if err != nil {
		return 0, nil, err
	}
	dir := filepath.Join(home, "runs", task.ID)
	events, err := os.ReadFile(filepath.Join(dir, run.EventsFile))
	if err != nil {
		return 0, nil, err
	}
	journal, err := os.ReadFile(filepath.Join(dir, run.JournalFile))
	if err != nil {
		return 0, nil, err
	}
	subs, err := subsIn(events, journal)
	return time.Duration(task.Timings["command"]) * time.Millisecond, subs, err
}

// sub is a sub-agent of a run: from when it has a place until its sandbox is gone.
type sub struct {
	id           string
	begin, end   time.Time
	status, text string
}

// subsIn reads when sub-agents worked from a run's events, and what came of them from its loop's journal.
func subsIn(events, journal []byte) ([]sub, error) {
	var all []sub
	find := func(id string) (*sub, error) {
		i := slices.IndexFunc(all, func(s sub) bool { return s.id == id })
		if i < 0 {
			return nil, fmt.Errorf("the sub-agent %.40q ended, and had not begun", id)
		}
		return &all[i], nil
	}
	for line := range bytes.Lines(events) {
		var kind struct{ Event string }
		if err := json.Unmarshal(line, &kind); err != nil {
			return nil, fmt.Errorf("the run's events: %w", err)
		}
		if kind.Event != "subagent" && kind.Event != "agent" {
			continue // other events have other fields
		}
		var e struct {
			Time  time.Time
			ID    string
			Agent adapter.Event
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("the run's events: %w", err)
		}
		if kind.Event == "subagent" {
			all = append(all, sub{id: e.ID, begin: e.Time})
		} else if e.Agent.Kind == adapter.Note && e.Agent.Parent != "" {
			s, err := find(e.Agent.Parent)
			if err != nil {
				return nil, err
			}
			s.end = e.Time
		}
	}
	for line := range bytes.Lines(journal) {
		var e struct{ Sub *agent.Report }
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("the loop's journal: %w", err)
		}
		if e.Sub == nil {
			continue
		}
		s, err := find(e.Sub.ID)
		if err != nil {
			return nil, err
		}
		s.status, s.text = e.Sub.Status, e.Sub.Text
	}
	for _, s := range all {
		if s.end.IsZero() || s.status == "" {
			return nil, fmt.Errorf("nothing is written down of the end of the sub-agent %.40q", s.id)
		}
	}
	return all, nil
}

// mostAtOnce is how many sub-agents there were at a time.
func mostAtOnce(subs []sub) (most int) {
	for _, s := range subs {
		n := 0
		for _, other := range subs {
			if !other.begin.After(s.begin) && other.end.After(s.begin) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
