package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"ravi/internal/command"
	"ravi/internal/gitbox"
	"ravi/internal/network/policy"
	runs "ravi/internal/run"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxRun(t *command.Table) {
	command.Add(t, command.Spec[runInput, *runs.Task]{
		Group: "sandbox", Name: "run", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Run an agent or a command in a sandbox; a proven patch comes out",
		Long: `Takes the repository as it lies, clones it inside a new sandbox, runs CMD there
and brings out what it changed as a patch that was tried on a clean checkout.
The repository itself is not touched, unless --apply is given. The sandbox sees
nothing of this machine but its tools, and reaches nothing on the network but
what --allow-net names; it is thrown away in the end, and also if this program
is killed. With --secret it can use a credential that it does not get.

With --agent claude (codex, gemini, opencode, pi) an agent program does --task.
It calls its model through Ravi and never has the key, which is taken from
ANTHROPIC_API_KEY (OPENAI_API_KEY, GEMINI_API_KEY) here, or from ravi secrets. A
command of yours gets the same with --agent command. With --resume a program
goes on with its conversation of an earlier run, on the repository as it is now.

With --agent loop Ravi itself asks the model that --model names, out here; only
what it wants done is done in the sandbox. What needs your word waits for it:
ravi approvals ls, in another terminal.

The outcome stays in runs/<id> below Ravi's home: task.json, changes.patch,
TASK.md, events.jsonl and logs/.

The exit code is CMD's own; 124 when its time ran out, 137 when its memory did,
130 after Ctrl-C, and 125 when Ravi could not do its part. task.json says who
decided.`,
		Examples: []command.Example{
			{What: "have Claude Code do a task", Line: `ravi sandbox run --agent claude --task "fix the bug Maria reported"`},
			{What: "and go on with that conversation", Line: `ravi sandbox run --agent claude --resume run01jf --task "add a test"`},
			{What: "have Ravi's own loop do it, with a model of your choice", Line: `ravi sandbox run --agent loop --model NAME --task "fix the login page"`},
			{What: "see what a command would change", Line: "ravi sandbox run -- make fmt"},
			{What: "and take it over", Line: "ravi sandbox run --apply -- make fmt"},
			{What: "another repository, a branch of it, at most ten minutes", Line: "ravi sandbox run --repo ~/src/app --ref main --timeout 10m -- npm test"},
			{What: "let it use a token at the host that the token is for", Line: "ravi sandbox run --secret TOKEN --allow-net api.example.com -- ./my-agent"},
			{What: "about a conversation, with a key to look things up and to report", Line: "ravi sandbox run --session web --connect write=tasks -- ./my-agent"},
			{What: "with a task for the command to read in TASK.md", Line: `ravi sandbox run --task "fix the bug Maria reported" -- ./my-agent`},
		},
		Defaults: runInput{Repo: "."},
		Handler:  runSandbox,
		Print:    printRun,
		Exit:     func(t *runs.Task) int { return t.Exit },
	})
}

type runInput struct {
	Repo     string            `json:"repo" flag:"repo" value:"PATH|URL" host:"path" usage:"the repository"`
	Ref      string            `json:"ref" flag:"ref" value:"REF" host:"none" usage:"start from this branch, tag or commit, not from the work tree"`
	Task     string            `json:"task" flag:"task" value:"TEXT" host:"none" usage:"what is to be done; the command finds it in TASK.md"`
	TaskFile string            `json:"task_file" flag:"task-file" value:"FILE" host:"path" usage:"the same, from a file"`
	Agent    string            `json:"agent" flag:"agent" value:"AGENT" host:"none" usage:"a program that does the task: claude, codex, gemini, opencode, pi, loop (Ravi's own), or command with CMD; or an agent of ravi agents that it is for"`
	Resume   string            `json:"resume" flag:"resume" value:"RUN" host:"none" usage:"have the agent program go on with its conversation of that run, which has ended"`
	Model    string            `json:"model" flag:"model" value:"NAME" host:"none" usage:"the model that the agent program asks for"`
	Tokens   int64             `json:"max_tokens" flag:"max-tokens" value:"N" host:"size" usage:"how many tokens it may use, in and out"`
	USD      float64           `json:"max_usd" flag:"max-usd" value:"DOLLARS" host:"size" usage:"what its models may cost; needs prices in models of config.json"`
	Record   bool              `json:"record" flag:"record" host:"size" usage:"keep what its models are asked and answer in models.jsonl"`
	Approval *time.Duration    `json:"approval_timeout" flag:"approval-timeout" value:"DURATION" host:"none" usage:"how long a command of --agent loop waits for ravi approvals grant (default: 10m on a terminal, else 0: refused)"`
	Session  string            `json:"session" flag:"session" value:"SESSION" host:"none" usage:"the conversation that it is about"`
	TaskID   string            `json:"task_id" flag:"task-id" value:"TASK" host:"none" usage:"a task of ravi tasks to work on"`
	Context  string            `json:"context" flag:"context" value:"none|snapshot" host:"none" usage:"a read-only copy of instructions, memory and conversation in /ravi/context (default: snapshot if there is an agent, session or task)"`
	Connect  string            `json:"connect" flag:"connect" value:"none|read|write=GROUP,…" host:"none" usage:"let it ask Ravi about its own session, task, memory and run, and write to groups of commands"`
	Backend  string            `json:"backend" flag:"backend" value:"NAME" host:"backend" usage:"how the sandbox is made: auto, gvisor, host"`
	Image    string            `json:"image" flag:"image" value:"NAME" host:"image" usage:"its root file system; host is this machine's own tools"`
	CPUs     *float64          `json:"cpus" flag:"cpus" value:"N" host:"size" usage:"processors"`
	Memory   *int              `json:"memory" flag:"memory" value:"MiB" host:"size" usage:"memory"`
	Disk     *int              `json:"disk" flag:"disk" value:"GiB" host:"size" usage:"what it may write"`
	Timeout  time.Duration     `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"end the command after this time, such as 10m"`
	Env      map[string]string `json:"env" flag:"env" short:"e" value:"NAME=VALUE" host:"secret" usage:"a variable for the command; credentials are refused"`
	Volumes  []string          `json:"volumes" flag:"volume" short:"v" value:"HOST:GUEST[:ro|rw]" host:"volume" usage:"a folder of this machine to see inside, read-only unless :rw"`
	AllowNet []string          `json:"allow_net" flag:"allow-net" value:"none|all|HOST,…" host:"network" usage:"what it may reach: names, NAME:PORT, *.NAME, @LIST; all is the public internet"`
	Secrets  []string          `json:"secrets" flag:"secret" value:"NAME" host:"secret" usage:"a secret that it can use without having it; see ravi secrets"`
	NetLog   bool              `json:"net_log" flag:"net-log" host:"none" usage:"show what the network decides, as it does"`
	Keep     bool              `json:"keep" flag:"keep" host:"none" usage:"leave the sandbox there in the end"`
	Out      string            `json:"out" flag:"out" short:"o" value:"DIR" host:"path" usage:"copy the outcome there"`
	Apply    bool              `json:"apply" flag:"apply" host:"none" usage:"lay the patch onto the work tree in the end"`
	Yes      bool              `json:"yes" flag:"yes" short:"y" host:"none" usage:"do not ask about changed files that programs would execute"`
	Command  []string          `json:"command" arg:"CMD" host:"command" optional:"true" usage:"what to run, after --"`
}

func runSandbox(ctx context.Context, env *command.Env, in runInput) (*runs.Task, error) {
	o, err := runOptions(ctx, env, in, sources{models: modelsOf, install: true})
	if err != nil {
		return nil, err
	}
	if in.Apply && runs.IsAddress(in.Repo) {
		return nil, command.Usage("--apply needs a repository on this machine", "give its path with --repo")
	}
	task, err := runs.Run(ctx, o)
	if task == nil {
		return nil, ravis(err)
	}
	if err != nil && task.Error == "" {
		return nil, ravis(err)
	}
	return task, nil
}

// ravis is an error of Ravi's own part in a run, which has its own exit code.
func ravis(err error) error {
	told := *command.AsError(err)
	if told.Code == command.CodeInternal || told.Exit == command.ExitFailed {
		told.Exit = command.ExitRavi
	}
	return &told
}

// runOptions checks the input, before anything is made.
func runOptions(ctx context.Context, env *command.Env, in runInput, from sources) (o runs.Options, err error) {
	if in.TaskFile != "" {
		if in.Task != "" {
			return o, command.Usage("--task and --task-file are both given", "give one of them")
		}
		b, err := readTask(env, in.TaskFile)
		if err != nil {
			return o, command.Usage("cannot read the task: "+err.Error(), "")
		}
		in.Task = string(b)
	}
	if len(in.Command) == 0 && in.Agent == "" && in.Session == "" && in.TaskID == "" {
		return o, nothingToRun(in.Task)
	}
	if len(in.Command) > 0 && in.Command[0] == "" {
		return o, command.Usage("the command is empty", "")
	}
	if in.Timeout < 0 {
		return o, command.Usage("--timeout is negative", "leave it out for no bound")
	}
	if err := checkEnv(in.Env); err != nil {
		return o, err
	}
	home, err := env.Home()
	if err != nil {
		return o, err
	}
	file, err := env.Config()
	if err != nil {
		return o, err
	}
	cfg := sandbox.Default()
	if err := file.Sandbox(&cfg); err != nil {
		return o, err
	}
	cfg.Debug.Enabled = false // it is for programs that embed the package; these sandboxes are reached by their keepers
	own, err := networkOf(file)
	if err != nil {
		return o, err
	}
	if err := overrideConfig(&cfg, in, own.list); err != nil {
		return o, err
	}
	extraCAs, err := own.extraCAs()
	if err != nil {
		return o, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return o, err
	}
	o = runs.Options{
		Home: home, Store: st, Repo: in.Repo, Ref: in.Ref, Task: in.Task, Command: in.Command, Config: cfg,
		Timeout: in.Timeout, Env: in.Env, Keep: in.Keep, Out: in.Out, Apply: in.Apply,
		NetworkFloor: own.floor(), NetworkProxy: own.proxy(), ExtraCAs: extraCAs,
		Decide: func(paths []gitbox.RiskyPath) error { return decide(env, in.Yes, paths) },
		Step:   env.Progress.Step, Note: env.Progress.Log,
	}
	if o.AuditHead, err = auditHead(env); err != nil {
		return o, err
	}
	if o.SaveEvery, err = saveEvery(); err != nil {
		return o, err
	}
	if err := runSecrets(ctx, env, in, &o); err != nil {
		return o, err
	}
	if err := runAgent(ctx, env, &in, &o); err != nil {
		return o, err
	}
	if err := boundRun(ctx, env, &o); err != nil {
		return o, err
	}
	if err := runResume(ctx, env, in, &o); err != nil {
		return o, err
	}
	if err := runModels(ctx, env, in, from, &o); err != nil {
		return o, err
	}
	if err := runContext(ctx, env, in, &o); err != nil {
		return o, err
	}
	if in.NetLog {
		o.Network = func(e sandbox.NetEvent) { showNetwork(env.Stderr, e) }
	}
	if o.Agent != nil {
		o.Agent.Tell = newAgentView(env)
	}
	if !env.JSON {
		// To a terminal goes only what a terminal may be told; elsewhere every byte.
		o.Stdout, o.Stderr = env.Stdout, env.Stderr
		if env.StdoutTerminal {
			o.Stdout = safe.NewWriter(env.Stdout)
		}
		if env.StderrTerminal {
			o.Stderr = safe.NewWriter(env.Stderr)
		}
	}
	return o, nil
}

// saveEvery is how often the work is saved while the command runs, if the
// environment says so. The default is good for all but tests and tight disks,
// so there is no flag.
func saveEvery() (time.Duration, error) {
	text := os.Getenv("RAVI_SAVE_EVERY")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 100*time.Millisecond {
		return 0, command.Usage(fmt.Sprintf("RAVI_SAVE_EVERY: %q is not a duration of at least 100ms", text), "use one such as 30s, or unset it")
	}
	return d, nil
}

func readTask(env *command.Env, path string) ([]byte, error) {
	const most = 1 << 20
	var r io.Reader = env.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

func overrideConfig(cfg *sandbox.Config, in runInput, lists func(string) ([]policy.Rule, error)) error {
	if in.Backend != "" {
		cfg.Backend = in.Backend
	}
	if in.Image != "" {
		cfg.Image = in.Image
	}
	if in.CPUs != nil {
		cfg.CPUs = *in.CPUs
	}
	if in.Memory != nil {
		cfg.MemoryMiB = *in.Memory
	}
	if in.Disk != nil {
		cfg.DiskSizeGB = in.Disk
	}
	for _, v := range in.Volumes {
		parts := strings.Split(v, ":")
		vol := sandbox.Volume{ReadOnly: true}
		switch {
		case len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw"):
			vol.ReadOnly = parts[2] == "ro"
		case len(parts) != 2:
			return command.Usage(fmt.Sprintf("--volume %s: it is HOST:GUEST, with :ro or :rw behind it", v), "")
		}
		host, err := filepath.Abs(parts[0])
		if err != nil {
			return err
		}
		vol.Host, vol.Guest = host, parts[1]
		cfg.ExtraVolumes = append(cfg.ExtraVolumes, vol)
	}
	if len(in.AllowNet) > 0 {
		var err error
		if cfg.AllowNet, err = allowNet(in.AllowNet, lists); err != nil {
			return command.Usage("--allow-net: "+err.Error(), "see docs/network.md for what a rule looks like")
		}
	}
	if err := cfg.Validate(); err != nil {
		return command.Usage(err.Error(), "see ravi sandbox run --help")
	}
	return nil
}

// allowNet reads the values of --allow-net; lists expands a named list.
func allowNet(values []string, lists func(string) ([]policy.Rule, error)) (a sandbox.AllowNet, err error) {
	p, err := policy.ParseFlag(values, lists)
	if err != nil {
		return a, err
	}
	a.All = p.Everything()
	for _, r := range p.Rules() {
		a.Rules = append(a.Rules, r.String())
	}
	return a, nil
}

// checkEnv refuses what cannot be a variable, and what looks like a
// credential. Values are never repeated in an error.
func checkEnv(env map[string]string) error {
	for name, value := range env {
		if strings.ContainsAny(name, "\x00") || !utf8.ValidString(name) {
			return command.Usage(fmt.Sprintf("--env: %q is not a name for a variable", name), "")
		}
		if strings.ContainsRune(value, 0) {
			return command.Usage(fmt.Sprintf("--env %s: the value holds a NUL byte", name), "")
		}
		if why := runs.LooksSecret(name, value); why != "" {
			return command.Usage(fmt.Sprintf("--env %s: %s; what is in a sandbox can be stolen", name, why),
				"let it use one without having it (ravi secrets set NAME --host HOST, then --secret NAME), or do the step that needs it outside")
		}
	}
	return nil
}

// decide asks about files that something will execute.
func decide(env *command.Env, yes bool, paths []gitbox.RiskyPath) error {
	if yes || len(paths) == 0 {
		return nil
	}
	var b strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&b, "  %s (%s)\n", safe.Safe(p.Path), safe.Safe(p.Why))
	}
	refused := runs.WithHint(
		errors.New("the patch was not applied: it changes files that programs of yours would execute or obey:\n"+b.String()),
		"read changes.patch, then lay it on with git apply, or have a run do so unasked with --apply --yes")
	if !env.StdinTerminal || !env.StderrTerminal || env.JSON {
		return refused
	}
	fmt.Fprintf(env.Stderr, "The patch changes files that programs of yours would execute or obey:\n%sApply it? [y/N] ", b.String())
	line, err := bufio.NewReader(env.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	return refused
}

func printRun(env *command.Env, w io.Writer, t *runs.Task) error {
	if t.Error != "" {
		fmt.Fprintf(env.Stderr, "error: %s\n", indentAfterFirst(safe.SafeText(t.Error)))
		if t.Hint != "" {
			fmt.Fprintf(env.Stderr, "hint: %s\n", indentAfterFirst(safe.SafeText(t.Hint)))
		}
	}
	if env.Quiet {
		return nil
	}
	how := string(t.Status)
	if t.ExitCode != nil {
		how += fmt.Sprintf(", exit code %d", *t.ExitCode)
	}
	fmt.Fprintf(env.Stderr, "%s: %s\n", t.ID, how)
	if p := t.Patch; p != nil {
		proven := "proven on a clean checkout"
		if !p.Applies {
			proven = "NOT proven"
		}
		if p.Files == 0 {
			fmt.Fprintln(env.Stderr, "patch: nothing was changed")
		} else {
			fmt.Fprintf(env.Stderr, "patch: %d files, +%d -%d, %s\n", p.Files, p.Insertions, p.Deletions, proven)
		}
		if p.Partial {
			fmt.Fprintln(env.Stderr, "patch: it is what was saved before, not the last state")
		}
	}
	if m := t.Models; m != nil {
		cost := ""
		if m.Priced {
			cost = fmt.Sprintf(", %.2f USD", float64(m.MicroUSD)/1e6)
		}
		first := ""
		if m.Requests > 0 {
			first = fmt.Sprintf(", the first after %.1f s", float64(m.FirstMS)/1000)
		}
		fmt.Fprintf(env.Stderr, "models: %d calls%s, %d tokens in, %d out%s\n", m.Requests, first, m.Input+m.CacheRead+m.CacheWrite, m.Output, cost)
	}
	if n := len(t.Applied); n > 0 {
		fmt.Fprintf(env.Stderr, "applied: %d files in %s\n", n, safe.Safe(t.Repo))
	}
	_, err := fs.Stat(os.DirFS(t.Dir), runs.TaskFile)
	if err == nil {
		fmt.Fprintf(env.Stderr, "files: %s\n", t.Dir)
	}
	return nil
}

var _ command.Sweeper = runs.Sweeper{}

// newSweeper makes the hand that ends sandboxes.
func newSweeper(ctx context.Context, env *command.Env) (command.Sweeper, error) {
	home, err := env.Home()
	if err != nil {
		return nil, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return nil, err
	}
	head, err := auditHead(env)
	if err != nil {
		return nil, err
	}
	return runs.Sweeper{Home: home, Store: st, AuditHead: head}, nil
}
