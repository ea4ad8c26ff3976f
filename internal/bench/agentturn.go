package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/install"
	"ravi/internal/modeltest"
)

const (
	// agentTurn is a small task that a script has an agent program do: two model calls, and one command between them.
	agentTurn = "agent_turn"
	mostTurns = 7 // each takes seconds

	turnFile, turnText = "made-by-bench.txt", "this was made to be measured"
)

// turners are Ravi's own loop and the agent programs that are measured, with the variables of their provider, and the model that they are
// told to ask: codex offers tools to those that it knows in a way that no script speaks.
var turners = []struct{ name, keyEnv, baseEnv, model string }{
	{adapter.Loop, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "scripted-1"},
	{"claude", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ""},
	{"codex", "OPENAI_API_KEY", "OPENAI_BASE_URL", "scripted-1"},
}

// turnBy is how a program's turn is called in the report.
func turnBy(program, where string) string { return program + ", " + where }

// turns are agent programs that are measured, in a home of their own that sees those of the user's.
type turns struct {
	*bench
	home, repo string
	url        string // of the scripted model
}

// turner is one program at one place.
type turner struct {
	adapter.Program
	keyEnv, baseEnv, model string
	path                   string // on this machine
	where                  string // ours or bare
	warm                   bool
}

// agentTurns measures a turn of agent programs in a sandbox, and of the same ones on the host.
func (b *bench) agentTurns(ctx context.Context) (err error) {
	t := &turns{bench: b, home: filepath.Join(b.dir, "turns"), repo: filepath.Join(b.dir, "turned")}
	who, err := b.turners()
	if err != nil {
		return err
	}
	if err := os.Mkdir(t.home, 0o700); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(b.Home, "agents"), filepath.Join(t.home, "agents")); err != nil {
		return err
	}
	if err := emptyRepo(ctx, t.repo); err != nil {
		return err
	}
	model := modeltest.New(modeltest.Script{Turns: []modeltest.Turn{
		{modeltest.Text("I make the file."), modeltest.Shell("echo '" + turnText + "' > " + turnFile)},
		{modeltest.Text("It is made.")},
	}})
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() { over <- model.Serve(l) }()
	defer func() { err = errors.Join(err, model.Close(), <-over) }()
	t.url = "http://" + l.Addr().String()
	return inTurns(ctx, min(b.Runs, mostTurns)+1, who, func(x *turner) error {
		do := t.inSandbox
		if x.where == bare {
			do = t.onHost
		}
		took, err := do(ctx, x)
		if err == nil && x.warm {
			b.addTime(agentTurn, turnBy(x.Name, x.where), took)
		}
		x.warm = true // the first one pays for cold caches, and does not count
		return err
	}, func(x *turner, err error) { b.fail(agentTurn, turnBy(x.Name, x.where), err) })
}

// turners finds who can do a turn here, and where.
func (b *bench) turners() (who []*turner, err error) {
	for _, x := range turners {
		p, ok := adapter.Lookup(x.name)
		if !ok {
			return nil, fmt.Errorf("there is no agent program %s", x.name)
		}
		places, at := []string{ours}, "" // the loop is in the program itself, and its hands are in a sandbox
		if x.name != adapter.Loop {
			places = append(places, bare)
			at, err = findTurner(b.Home, p)
		}
		if errors.Is(err, install.ErrMissing) {
			b.skip(agentTurn+", "+x.name, fmt.Errorf("%w; it is with: ravi agents install %s", err, x.name))
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, where := range places {
			b.result(agentTurn, turnBy(p.Name, where)) // so that they are shown in this order
			who = append(who, &turner{Program: p, keyEnv: x.keyEnv, baseEnv: x.baseEnv, model: x.model, path: at, where: where})
		}
	}
	return who, nil
}

// findTurner finds a program as a run does: installed by Ravi, or a tool of /usr, which sandboxes have too.
func findTurner(home string, p adapter.Program) (string, error) {
	i, err := install.Find(home, p)
	if err == nil {
		return filepath.Join(i.Dir, filepath.FromSlash(i.Path)), nil
	}
	if !errors.Is(err, install.ErrMissing) || errors.Is(err, install.ErrDamaged) {
		return "", err
	}
	at, missing := exec.LookPath(p.Name)
	if missing != nil {
		return "", err
	}
	if real, linked := filepath.EvalSymlinks(at); linked != nil || !strings.HasPrefix(at, "/usr/") || !strings.HasPrefix(real, "/usr/") {
		return "", err
	}
	return at, nil
}

// inSandbox has a program do the turn as a user has it done, and gives what the program itself took.
func (t *turns) inSandbox(ctx context.Context, x *turner) (time.Duration, error) {
	args := []string{"sandbox", "run", "--json", "--quiet", "--backend", ours, "--repo", t.repo, "--context", "none", "--agent", x.Name, "--task", turnTask}
	if x.model != "" {
		args = append(args, "--model", x.model)
	}
	cmd := program(ctx, t.Program, args...)
	cmd.Env = append(turnEnv(os.Environ()), "RAVI_HOME="+t.home, x.keyEnv+"="+turnKey, x.baseEnv+"="+t.url)
	said, err := output(cmd)
	if err != nil {
		return 0, err
	}
	return turnTook(said)
}

// ran is what a run says of itself.
type ran struct {
	ID      string
	Timings map[string]int64
	Patch   struct{ Insertions int }
}

// readRan reads it: the last of what a run writes.
func readRan(said string) (task ran, err error) {
	in := json.NewDecoder(strings.NewReader(said))
	for {
		var value json.RawMessage
		err := in.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = json.Unmarshal(value, &task)
		}
		if err != nil {
			return task, fmt.Errorf("the run's outcome: %w in %.300q", err, said)
		}
	}
	return task, nil
}

// turnTook is how long the program took in a run that made the file.
func turnTook(said string) (time.Duration, error) {
	task, err := readRan(said)
	if err != nil {
		return 0, err
	}
	ms, ok := task.Timings["command"]
	if !ok || task.Patch.Insertions != 1 {
		return 0, fmt.Errorf("the run has no time of its command, or not one new line: %.300q", said)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

const (
	turnTask = "Make the file " + turnFile + "."
	turnKey  = "sk-bench-opens-nothing"
)

// turnEnv is an environment in which no setting of the user's decides what an agent program asks.
func turnEnv(env []string) []string {
	var out []string
	for _, v := range withoutOurs(env) {
		foreign := false
		for _, maker := range []string{"ANTHROPIC_", "CLAUDE_", "OPENAI_", "CODEX_", "GEMINI_", "GOOGLE_"} {
			foreign = foreign || strings.HasPrefix(v, maker)
		}
		if !foreign {
			out = append(out, v)
		}
	}
	return out
}

// onHost has a program do the turn without a sandbox and a broker, in a home and a copy of the repository of its own.
func (t *turns) onHost(ctx context.Context, x *turner) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(t.dir, "host-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, removeTree(dir)) }()
	home, work := filepath.Join(dir, "home"), filepath.Join(dir, "workspace")
	if err := git(ctx, nil, "clone", "-q", t.repo, work); err != nil {
		return 0, err
	}
	launch, err := x.Launch(adapter.Setup{Prompt: turnTask, BaseURL: t.url, Token: turnKey, Model: x.model, Path: x.path, Home: home})
	if err != nil {
		return 0, err
	}
	for _, f := range launch.Files {
		name := path.Join(home, f.Path)
		if err := os.MkdirAll(path.Dir(name), 0o700); err != nil {
			return 0, err
		}
		if err := os.WriteFile(name, []byte(f.Content), 0o600); err != nil { // without a context there are no links
			return 0, err
		}
	}
	cmd := program(ctx, launch.Args[0], launch.Args[1:]...)
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
	for name, value := range launch.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	start := time.Now()
	if err := finish(cmd); err != nil {
		return 0, err
	}
	took = time.Since(start)
	made, err := os.ReadFile(filepath.Join(work, turnFile))
	if err == nil && string(made) != turnText+"\n" {
		err = fmt.Errorf("%s has %.100q in it", turnFile, made)
	}
	return took, err
}
