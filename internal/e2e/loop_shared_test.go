package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"ravi/agent"
	"ravi/sandbox"
)

// toggler is a model that replaces one letter by another in a file, several times at once, for some rounds.
type toggler struct {
	from, to string
	rounds   int
}

func (m *toggler) Next(_ context.Context, r agent.Request, _ func(string)) (agent.Answer, error) {
	if m.rounds--; m.rounds < 0 {
		return agent.Answer{Message: agent.Message{Text: "It is done."}}, nil
	}
	var calls []agent.Call
	for i := range 4 {
		calls = append(calls, agent.NewCall(fmt.Sprint(m.rounds, i), "edit", `{"path": "shared.txt", "old": "`+m.from+`", "new": "`+m.to+`", "all": true}`))
	}
	return agent.Answer{Message: agent.Message{Calls: append(calls, agent.NewCall("read", "read", `{"path": "shared.txt", "limit": 1}`))}}, nil
}

// Two loops whose sandboxes share a workspace write the same file: both work, and nobody ever sees half of one.
func TestLoopsShareAWorkspace(t *testing.T) {
	t.Setenv("RAVI_PROGRAM", program)
	for _, backend := range []string{sandbox.BackendGVisor, sandbox.BackendHost} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t)
			must(t, os.MkdirAll(w.home, 0o700))
			dir := realpath(t, t.TempDir())
			const size = 1 << 20
			file := filepath.Join(dir, "shared.txt")
			must(t, os.WriteFile(file, bytes.Repeat([]byte("a"), size), 0o666))
			cfg := sandbox.Default()
			cfg.Backend = backend
			edits := func(from, to string) int {
				sb, err := sandbox.Open(t.Context(), cfg, dir, sandbox.WithHome(w.home))
				if err != nil {
					t.Error(err)
					return 0
				}
				defer func() {
					if err := sb.Close(); err != nil {
						t.Error(err)
					}
				}()
				var mu sync.Mutex
				done := 0
				loop, err := agent.New(agent.Config{Model: &toggler{from, to, 8}, Hands: agent.HandsOf(sb), Emit: func(e agent.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.Kind == agent.EventResult && e.Tool == "edit" && !e.Failed {
						done++
					}
				}})
				if err != nil {
					t.Error(err)
					return 0
				}
				if out, err := loop.Turn(t.Context(), "go"); err != nil || out.Reason != agent.Finished {
					t.Errorf("%+v %v", out, err)
				}
				return done
			}
			var both sync.WaitGroup
			both.Go(func() {
				if edits("a", "b") == 0 {
					t.Error("one of them did nothing")
				}
			})
			both.Go(func() { edits("b", "a") })
			over := make(chan struct{})
			go func() { both.Wait(); close(over) }()
			looks := 0
			for looking := true; looking; looks++ {
				select {
				case <-over:
					looking = false
				default:
				}
				b, err := os.ReadFile(file)
				must(t, err)
				if len(b) != size || bytes.Count(b, b[:1]) != size {
					t.Fatalf("half a file: %d bytes, %d of %q", len(b), bytes.Count(b, b[:1]), b[:1])
				}
			}
			t.Logf("looked at %d times", looks)
			left, err := os.ReadDir(dir)
			must(t, err)
			if len(left) != 1 {
				t.Errorf("left in the workspace: %v", left)
			}
		})
	}
}
