package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"ravi/agent"
	"ravi/internal/gate"
	"ravi/sandbox"
)

const (
	// loopAll is the name for all measures of Ravi's own agent loop.
	loopAll = "loop"

	loopExec = "loop_exec"
	loopAdds = "loop_adds"
	loopGate = "loop_gate"

	// The ways in which one command is run.
	byTool   = "tool call"    // by the loop: gate, journal and fence included
	byExec   = "sandbox.Exec" // in the same sandbox
	byInside = "inside"       // by a program of the sandbox

	byOrdinary = "ordinary" // commands as agents use them

	loopCommand = "/bin/true"
	gatesARound = 50
)

// loopMeasures are what Only may name at once as "loop". Some need the machine for themselves, or programs that may not be
// here, so they are asked for by name.
var loopMeasures = []string{loopExec, loopMCP, loopSubs, loopGate, agentTurn}

// loop measures Ravi's own agent loop. Its turn is measured beside those of agent programs.
func (b *bench) loop(ctx context.Context) error {
	return b.phases(ctx,
		phase{"a command by the agent loop", loopExec, b.loopExecs},
		phase{"calls of an MCP server", loopMCP, b.loopMCPs},
		phase{fmt.Sprintf("%d sub-agents at once", subsAtOnce), loopSubs, func(ctx context.Context) error { return b.loopSubagents(ctx, subsAtOnce) }},
		phase{"what commands would do", loopGate, b.loopGates},
	)
}

// ourBox is the built-in backend, without which prepare has failed.
func (b *bench) ourBox() *box {
	for _, x := range b.boxes {
		if x.backend == ours {
			return x
		}
	}
	return nil
}

// oneCall is a model that asks for a command, and has the time until it is told what came of that.
type oneCall struct {
	asked time.Time
	took  time.Duration
}

var _ agent.Model = (*oneCall)(nil)

// Next implements agent.Model.
func (m *oneCall) Next(_ context.Context, r agent.Request, _ func(string)) (agent.Answer, error) {
	if last := r.Messages[len(r.Messages)-1]; len(last.Results) > 0 {
		m.took = time.Since(m.asked)
		if last.Results[0].Failed {
			return agent.Answer{}, fmt.Errorf("the command failed: %.400s", last.Results[0].Text)
		}
		return agent.Answer{Message: agent.Message{Text: "done"}}, nil
	}
	args, err := json.Marshal(map[string]string{"command": loopCommand})
	m.asked = time.Now()
	return agent.Answer{Message: agent.Message{Calls: []agent.Call{agent.NewCall("call", "exec", string(args))}}}, err
}

// caller has a loop run the command, in a conversation of its own.
type caller struct {
	loop    *agent.Loop
	model   *oneCall
	journal *agent.Journal
	file    string
}

// newCaller makes one whose hands are a sandbox. Close it.
func newCaller(sb *sandbox.Sandbox, file string) (*caller, error) {
	j, err := agent.OpenJournal(file)
	if err != nil {
		return nil, err
	}
	c := &caller{model: &oneCall{}, journal: j, file: file}
	if c.loop, err = agent.New(agent.Config{Model: c.model, Hands: agent.HandsOf(sb), Journal: j}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *caller) close() error { return errors.Join(c.journal.Close(), os.Remove(c.file)) }

// call gives how long the command took: from the model's answer that asks for it until the model is asked again.
func (c *caller) call(ctx context.Context) (time.Duration, error) {
	end, err := c.loop.Turn(ctx, "Run it.")
	if err == nil && end.Reason != agent.Finished {
		err = fmt.Errorf("the turn ended by %s: %s", end.Reason, end.Why)
	}
	return c.model.took, err
}

// loopPairs runs the command n times by the loop and n times without it, in turns, and calls each with how long both took.
func loopPairs(ctx context.Context, n int, sb *sandbox.Sandbox, file string, plain func() (time.Duration, error), each func(called, without time.Duration)) (err error) {
	c, err := newCaller(sb, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	ways := []func() (time.Duration, error){func() (time.Duration, error) { return c.call(ctx) }, plain}
	for turn := range n {
		var took [2]time.Duration
		for i := range ways {
			at := (turn + i) % len(ways)
			if took[at], err = ways[at](); err != nil {
				return err
			}
		}
		each(took[0], took[1])
	}
	return nil
}

// loopExecs measures a command by the loop, the same by sandbox.Exec, and by a program inside, in one sandbox.
func (b *bench) loopExecs(ctx context.Context) (err error) {
	for _, by := range []string{byTool, byExec, byInside} {
		b.result(loopExec, by) // so that they are shown in this order
	}
	failed := func(by string, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.fail(loopExec, by, err)
		return nil
	}
	x := b.ourBox()
	sb, err := x.sandbox(ctx)
	if err != nil {
		return failed(byTool, err)
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	shell := []string{"/bin/bash", "-c", loopCommand}
	if _, err := os.Stat(shell[0]); err != nil { // the image is this machine's
		shell[0] = "/bin/sh" // as the tool does
	}
	plain := func() (time.Duration, error) {
		start := time.Now()
		res, err := sb.Exec(ctx, sandbox.Cmd{Args: shell})
		took := time.Since(start)
		if err == nil && res.ExitCode != 0 {
			err = fmt.Errorf("the command ended with %d: %s", res.ExitCode, res.Text(400))
		}
		return took, err
	}
	inside := &boxSession{sb, x.record.keeper(sb.ID)}
	spawns := true
	for round := range b.Runs + 1 { // the first one pays for cold caches, and does not count
		err := loopPairs(ctx, execsARound, sb, filepath.Join(b.dir, "loop.jsonl"), plain, func(called, without time.Duration) {
			if round > 0 {
				b.addTime(loopExec, byTool, called)
				b.addTime(loopExec, byExec, without)
				b.addTime(loopAdds, byTool, called-without)
			}
		})
		if err != nil {
			return failed(byTool, err)
		}
		if !spawns || round == 0 {
			continue
		}
		took, err := inside.spawns(ctx, execsARound, shell...)
		if errors.Is(err, errNoPython) {
			b.skip(loopExec+", "+byInside, err)
			spawns = false
			continue
		}
		if err != nil {
			return failed(byInside, err)
		}
		for _, d := range took {
			b.addTime(loopExec, byInside, d)
		}
	}
	return nil
}

// ordinary are commands as agents use them. The gate allows them all.
var ordinary = []string{
	"ls -la",
	"cat go.mod && head -50 README.md",
	"git status --short && git diff --stat",
	"git log --oneline -20 -- internal/store | cat",
	"grep -rn 'func New' --include='*.go' . | head -40",
	"find . -name '*_test.go' -not -path './vendor/*' -print0 | xargs -0 wc -l | sort -n | tail -5",
	"go build ./... && go vet ./... && go test -count=1 ./internal/store 2>&1 | tail -30",
	"python3 -m pytest tests/test_api.py -x -q 2>&1 | tail -20",
	"cd web && npm test -- --run src/app.test.ts",
	"make test CC=clang -j\"$(nproc)\"",
	"sed -i 's/old_name/new_name/g' src/main.c src/util.c && git diff",
	"for f in src/*.py; do python3 -m py_compile \"$f\" || echo \"bad: $f\"; done",
	"if [ -f package.json ]; then node -e 'console.log(require(\"./package.json\").version)'; else echo none; fi",
	"cat > notes.txt <<'END'\nwhat was found\nis written down\nEND\nwc -l notes.txt",
	"mkdir -p build && cd build && cmake .. -DCMAKE_BUILD_TYPE=Debug > cmake.log 2>&1; tail -3 cmake.log",
	"diff <(sort a.txt) <(sort b.txt) | sed -n '1,20p'",
	"count=0; while read -r line; do count=$((count + 1)); done < list.txt; echo \"$count\"",
	"awk -F, 'NR > 1 { s += $3 } END { print s }' data.csv",
	"tar -czf /tmp/out.tgz src && ls -l /tmp/out.tgz",
	"ps aux | grep -v grep | grep server; echo $?",
}

// loopGates measures how long the gate takes to say what a command would do: a sample is the mean of all of them.
func (b *bench) loopGates(context.Context) error {
	g, err := gate.New(gate.Options{})
	if err != nil {
		return err
	}
	for round := range b.Runs*gatesARound + 1 { // the first one does not count
		start := time.Now()
		for _, command := range ordinary {
			v := g.Judge(command, "/workspace")
			if v.Decision != gate.Allow {
				b.fail(loopGate, byOrdinary, fmt.Errorf("the gate says %s of %.100q: %s", v.Decision, command, v.Reason))
				return nil
			}
		}
		if took := time.Since(start); round > 0 {
			b.add(loopGate, byOrdinary, float64(took)/float64(time.Microsecond)/float64(len(ordinary)))
		}
	}
	return nil
}
