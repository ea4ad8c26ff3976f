package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxStats(t *command.Table) {
	add(t, command.Spec[statsInput, []boxStats]{
		Group: "sandbox", Name: "stats", Access: command.Read, Scoped: true,
		Summary: "Show what sandboxes use",
		Long: `Shows the memory and processor time that sandboxes use, as this machine counts
it: all of them, their kernels included. Without names it is every one that
lives.`,
		Examples: []command.Example{{Line: "ravi sandbox stats"}, {Line: "ravi sandbox stats try --json"}},
		Handler:  readStats, Print: printStats,
	})
}

type statsInput struct {
	Sandboxes []string `json:"sandboxes" arg:"SANDBOX" optional:"true" host:"none" usage:"ids, their beginnings, or names"`
}

// boxStats is what one sandbox uses.
type boxStats struct {
	ID          string `json:"id"`
	Name        string `json:"name,omitempty"`
	State       string `json:"state"`
	MemoryBytes int64  `json:"memory_bytes"`
	MemoryPeak  int64  `json:"memory_peak_bytes"`
	// MemoryLimit is what is given to it; its kernel's own comes on top.
	MemoryLimit int64 `json:"memory_limit_bytes"`
	CPUMillis   int64 `json:"cpu_ms"`
	Processes   int   `json:"processes"`
	OOMKills    int64 `json:"oom_kills"`
	// Problem is why nothing is known.
	Problem string `json:"problem,omitempty"`
}

const (
	statsTime   = 5 * time.Second // for one sandbox
	statsAtOnce = 8
)

func readStats(ctx context.Context, env *command.Env, in statsInput) ([]boxStats, error) {
	var boxes []store.Sandbox
	for _, typed := range in.Sandboxes {
		b, err := findBoxFor(ctx, env, access.Read, "stats", typed)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, b)
	}
	if len(in.Sandboxes) == 0 {
		st, err := env.Store(ctx)
		if err != nil {
			return nil, err
		}
		see := scopeOf(ctx, env, "sandbox", "stats")
		live, err := st.ListSandboxes(ctx, store.SandboxFilter{Live: true, IDs: see.ids()})
		if err != nil {
			return nil, err
		}
		for _, b := range live {
			if see.showsMade(b.ID, b.CreatedBy) {
				boxes = append(boxes, b)
			}
		}
	}
	home, err := env.Home()
	if err != nil {
		return nil, err
	}
	// One that does not answer takes nothing from the others.
	out := make([]boxStats, len(boxes))
	room := make(chan struct{}, statsAtOnce)
	var work sync.WaitGroup
	for i, b := range boxes {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			out[i] = statsOf(ctx, env, home, b)
		})
	}
	work.Wait()
	return out, ctx.Err()
}

func statsOf(ctx context.Context, env *command.Env, home string, b store.Sandbox) boxStats {
	s := boxStats{ID: b.ID, Name: b.Name, State: itemOf(env, b).state(), MemoryLimit: b.Limits.MemoryMiB << 20}
	if b.Seen.Final() {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, statsTime)
	defer cancel()
	sb, err := sandbox.Attach(ctx, b.ID, sandbox.WithHome(home))
	if err == nil {
		defer sb.Close()
		var now sandbox.Stats
		if now, err = sb.Stats(ctx); err == nil {
			s.MemoryBytes, s.MemoryPeak, s.CPUMillis = now.MemoryBytes, now.MemoryPeakBytes, now.CPUTime.Milliseconds()
			s.Processes, s.OOMKills = now.Processes, now.OOMKills
			return s
		}
	}
	s.Problem = "it does not answer"
	if env.Caller.IsOperator() {
		s.Problem = err.Error()
	}
	return s
}

func printStats(env *command.Env, w io.Writer, all []boxStats) error {
	if env.Quiet {
		return printIDs(w, all, func(s boxStats) string { return s.ID })
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "no sandbox lives")
		return nil
	}
	rows := make([][]string, len(all))
	for i, s := range all {
		rows[i] = []string{s.ID, s.Name, s.State, "", "", "", "", s.Problem}
		if s.Problem == "" {
			copy(rows[i][3:], []string{bytesText(s.MemoryBytes), bytesText(s.MemoryLimit), (time.Duration(s.CPUMillis) * time.Millisecond).Round(10 * time.Millisecond).String(), strconv.Itoa(s.Processes)})
		}
	}
	return printRows(env, w, "sandboxes", []safe.Column{{Title: "ID"}, {Title: "NAME", Flex: true}, {Title: "STATE"}, {Title: "MEMORY", Right: true}, {Title: "LIMIT", Right: true},
		{Title: "CPU", Right: true}, {Title: "PROCESSES", Right: true}, {Title: "PROBLEM", Flex: true}}, rows, "")
}
