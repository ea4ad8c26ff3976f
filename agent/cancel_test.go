package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"ravi/sandbox"
)

// askedForever is an approver who never answers.
type askedForever chan struct{}

func (a askedForever) Ask(ctx context.Context, _ Question) (bool, string, error) {
	close(a)
	<-ctx.Done()
	return false, "", ctx.Err()
}

// Whatever a turn is at, it can be canceled: it ends as that, with all that was under way, and the next one is fine.
func TestCancel(t *testing.T) {
	for name, set := range map[string]func(t *testing.T) (Config, <-chan struct{}){
		"the hands begin": func(t *testing.T) (Config, <-chan struct{}) {
			at, first := make(chan struct{}), true
			return Config{Model: script(t), Hands: NewHands(func(ctx context.Context) (*sandbox.Sandbox, error) {
				if first {
					first = false
					close(at)
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return onHost(t, t.TempDir()), nil
			})}, at
		},
		"the servers begin": func(t *testing.T) (Config, <-chan struct{}) {
			at, first := make(chan struct{}), true
			return Config{Model: script(t), Hands: HandsOf(onHost(t, t.TempDir())).WithServers(func(ctx context.Context, _ *sandbox.Sandbox) (Servers, error) {
				if first {
					first = false
					close(at)
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return servants{specs: func() []Spec { return nil }, closed: func() error { return nil }}, nil
			})}, at
		},
		"the model answers": func(t *testing.T) (Config, <-chan struct{}) {
			at := make(chan struct{})
			return Config{Model: script(t, hangs(at))}, at
		},
		"a tool works": func(t *testing.T) (Config, <-chan struct{}) {
			at := make(chan struct{})
			return Config{Model: script(t, asks(call("look", nil), call("hang", nil))), Tools: []Tool{answers("look", "seen"),
				hand{name: "hang", do: func(ctx context.Context, _ json.RawMessage) (Result, error) {
					close(at)
					<-ctx.Done()
					return Result{}, ctx.Err()
				}}}}, at
		},
		"calls wait for a place": func(t *testing.T) (Config, <-chan struct{}) {
			at := make(chan struct{})
			var places atomic.Int32
			var calls []Call
			for range mostCalls {
				calls = append(calls, call("hang", nil))
			}
			return Config{Model: script(t, asks(calls...)), Tools: []Tool{
				hand{name: "hang", do: func(ctx context.Context, _ json.RawMessage) (Result, error) {
					if places.Add(1) == callsAtOnce { // which is so for one of them
						close(at)
					}
					<-ctx.Done()
					return Result{}, ctx.Err()
				}}}}, at
		},
		"somebody is asked": func(t *testing.T) (Config, <-chan struct{}) {
			at := make(chan struct{})
			return Config{Model: script(t, asks(run(asking))), Tools: []Tool{&shell{}}, Approver: askedForever(at)}, at
		},
		"a sub-agent is waited for": func(t *testing.T) (Config, <-chan struct{}) {
			at := make(chan struct{})
			return Config{Model: script(t, asks(call("spawn", object{"task": "a"})), says("I wait")), Subagents: NewSubagents(func(context.Context, Spawn) (Child, error) {
				return Child{Loop: loopOf(t, Config{Model: script(t, hangs(at))})}, nil
			}, SubLimits{})}, at
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, at := set(t)
			var ear heard
			c.Emit = ear.hear
			l := loopOf(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			end := make(chan Outcome, 1)
			go func() {
				out, err := l.Turn(ctx, "do it")
				if err != nil {
					t.Error(err)
				}
				end <- out
			}()
			await(t, "that place", at)
			cancel()
			if out := await(t, "the turn's end", end); out.Reason != Canceled || out.Why == "" {
				t.Errorf("it ended with %+v", out)
			}
			if ends := ear.of(EventEnd); len(ends) != 1 || ends[0].Reason != Canceled {
				t.Errorf("its end is told as %+v", ends)
			}
			c.Model.(*scripted).steps = nil
			turnOf(t, l, Finished)
			if c.Hands != nil {
				if err := c.Hands.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A command that runs is ended with its turn, and what it started too.
func TestCancelCommand(t *testing.T) {
	dir := t.TempDir()
	m := script(t, asks(call("exec", object{"command": "sleep 1000 & echo $! >child.new; mv child.new child; echo $$ >parent.new; mv parent.new parent; wait"})))
	sb := onHost(t, dir)
	l := loopOf(t, Config{Model: m, Hands: HandsOf(sb)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan Outcome, 1)
	go func() {
		out, err := l.Turn(ctx, "do it")
		if err != nil {
			t.Error(err)
		}
		end <- out
	}()
	pid := func(name string) (n int) {
		eventually(t, "the command", func() bool {
			b, err := os.ReadFile(filepath.Join(dir, name))
			n, _ = strconv.Atoi(strings.TrimSpace(string(b)))
			return err == nil
		})
		return n
	}
	child, parent := pid("child"), pid("parent")
	cancel()
	if out := await(t, "the turn's end", end); out.Reason != Canceled {
		t.Errorf("it ended with %+v", out)
	}
	for _, n := range []int{child, parent} {
		eventually(t, "the end of a process", func() bool {
			_, err := os.Stat(fmt.Sprintf("/proc/%d", n))
			return n > 0 && errors.Is(err, os.ErrNotExist)
		})
	}
	if left, err := sb.Processes(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %+v", err, left)
	}
	turnOf(t, l, Finished)
}

// A turn that has ended is not canceled afterwards, and one that never began says so.
func TestCanceledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := script(t, func(ctx context.Context, _ Request, _ func(string)) (Answer, error) { return Answer{}, ctx.Err() })
	l := loopOf(t, Config{Model: m})
	if out, err := l.Turn(ctx, "do it"); err != nil || out.Reason != Canceled {
		t.Errorf("%+v, %v", out, err)
	}
	turnOf(t, l, Finished)
}
