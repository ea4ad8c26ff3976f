package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addAgentsWork(t *command.Table) {
	add(t, command.Spec[agentsWorkInput, agentWork]{
		Group: "agents", Name: "work", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Say how messages to an agent are worked on",
		Long: `From then on a message to a session of the agent (ravi sessions send) becomes a
run, as ravi runs create makes it with these flags: the message is its task, and
what the agent says in the end is the reply. The daemon sees to it, on this
machine or on a runner.

The agent's own program (ravi agents create --program) does the task, or CMD,
which finds it in TASK.md. Given without flags the command shows how it is now;
--off has messages only kept again.`,
		Examples: []command.Example{
			{Line: "ravi agents work anna --repo ~/src/shop"},
			{What: "a command of yours, with a bound", Line: "ravi agents work bob --repo ~/src/app --timeout 5m -- ./my-agent"},
			{What: "for a client, whose work is queued apart from that of others", Line: "ravi agents work anna --repo ~/src/shop --client acme"},
		},
		Handler: setAgentWork, Print: printAgentWork,
	})
}

type agentsWorkInput struct {
	Agent    string            `json:"agent" arg:"AGENT" host:"none" usage:"a name, an id or its beginning"`
	Off      bool              `json:"off" flag:"off" host:"none" usage:"nobody works on messages any more"`
	Client   string            `json:"client" flag:"client" value:"CLIENT" host:"none" usage:"whom it works for; see ravi clients"`
	Repo     string            `json:"repo" flag:"repo" value:"PATH|URL" host:"path" usage:"the repository"`
	Ref      string            `json:"ref" flag:"ref" value:"REF" host:"none" usage:"start from this branch, tag or commit, not from the work tree"`
	Model    string            `json:"model" flag:"model" value:"NAME" host:"none" usage:"the model that the agent program asks for"`
	Tokens   int64             `json:"max_tokens" flag:"max-tokens" value:"N" host:"size" usage:"how many tokens a run may use, in and out"`
	USD      float64           `json:"max_usd" flag:"max-usd" value:"DOLLARS" host:"size" usage:"what the models of a run may cost"`
	Approval *time.Duration    `json:"approval_timeout" flag:"approval-timeout" value:"DURATION" host:"none" usage:"how long a command of the program loop waits for ravi approvals grant (default 0: refused)"`
	Record   bool              `json:"record" flag:"record" host:"size" usage:"keep what the models are asked and answer in models.jsonl"`
	Context  string            `json:"context" flag:"context" value:"none|snapshot" host:"none" usage:"a read-only copy of instructions, memory and conversation in /ravi/context (default: snapshot)"`
	Connect  string            `json:"connect" flag:"connect" value:"none|read|write=GROUP,…" host:"none" usage:"let runs ask Ravi about their own session, task, memory and run, and write to groups of commands"`
	Backend  string            `json:"backend" flag:"backend" value:"NAME" host:"backend" usage:"how sandboxes are made: auto, gvisor, host"`
	Image    string            `json:"image" flag:"image" value:"NAME" host:"image" usage:"the root file system; host is the machine's own tools"`
	CPUs     *float64          `json:"cpus" flag:"cpus" value:"N" host:"size" usage:"processors"`
	Memory   *int              `json:"memory" flag:"memory" value:"MiB" host:"size" usage:"memory"`
	Disk     *int              `json:"disk" flag:"disk" value:"GiB" host:"size" usage:"what a run may write"`
	Timeout  time.Duration     `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"end the command after this time, such as 10m"`
	Env      map[string]string `json:"env" flag:"env" short:"e" value:"NAME=VALUE" host:"secret" usage:"a variable for the command; credentials are refused"`
	Volumes  []string          `json:"volumes" flag:"volume" short:"v" value:"HOST:GUEST[:ro|rw]" host:"volume" usage:"a folder of this machine to see inside; such runs are never on a runner elsewhere"`
	AllowNet []string          `json:"allow_net" flag:"allow-net" value:"none|all|HOST,…" host:"network" usage:"what runs may reach: names, NAME:PORT, *.NAME, @LIST; all is the public internet"`
	Secrets  []string          `json:"secrets" flag:"secret" value:"NAME" host:"secret" usage:"a secret that runs can use without having it; see ravi secrets"`
	Command  []string          `json:"command" arg:"CMD" host:"command" optional:"true" usage:"what does the task, after --"`
}

// create is the run of a task.
func (in agentsWorkInput) create(task, session string) runsCreateInput {
	return runsCreateInput{
		Repo: in.Repo, Ref: in.Ref, Task: task, Session: session, Model: in.Model, Tokens: in.Tokens, USD: in.USD, Approval: in.Approval, Record: in.Record,
		Context: in.Context, Connect: in.Connect, Backend: in.Backend, Image: in.Image, CPUs: in.CPUs, Memory: in.Memory, Disk: in.Disk,
		Timeout: in.Timeout, Env: in.Env, Volumes: in.Volumes, AllowNet: in.AllowNet, Secrets: in.Secrets, Command: in.Command,
	}
}

// agentWork is how messages to an agent are worked on.
type agentWork struct {
	Agent   string `json:"agent"`
	Client  string `json:"client"`
	Program string `json:"program,omitempty"`
	// Work is what was said of its runs; null: messages are kept, and nobody works on them.
	Work json.RawMessage `json:"work"`
}

func setAgentWork(ctx context.Context, env *command.Env, in agentsWorkInput) (out agentWork, err error) {
	a, err := agentKind.get(ctx, env, in.Agent)
	if err != nil {
		return out, err
	}
	typed, client := in.Agent, in.Client
	off := in.Off
	in.Agent, in.Client, in.Off = "", "", false
	given := !reflect.DeepEqual(in, agentsWorkInput{})
	switch {
	case off && given:
		return out, command.Usage("--off is given with flags that say how to work", "give one of them")
	case off:
		a, err = changeAgent(ctx, env, typed, func(a *store.Agent) { a.Work = nil })
	case given:
		var text json.RawMessage
		if text, err = checkWork(ctx, env, a, in); err == nil {
			a, err = changeAgent(ctx, env, typed, func(a *store.Agent) { a.Work = text })
		}
	}
	if err == nil && client != "" {
		if _, err = clientKind.get(ctx, env, client); err == nil {
			a, err = changeAgent(ctx, env, typed, func(a *store.Agent) { a.Client = client })
		}
	}
	return agentWork{Agent: a.Name, Client: a.Client, Program: a.Program, Work: a.Work}, err
}

// checkWork holds what was said to what a run may be, so that what cannot work is refused here and not with every message.
func checkWork(ctx context.Context, env *command.Env, a store.Agent, in agentsWorkInput) (json.RawMessage, error) {
	if in.Repo == "" {
		return nil, command.Usage("it is not said which repository the agent works on", "add --repo PATH")
	}
	if a.Program == "" && len(in.Command) == 0 {
		return nil, command.Usage(fmt.Sprintf("the agent %s has no program, and no command is given", a.Name),
			fmt.Sprintf("say which program it is: ravi agents edit %s --program claude, or add a command after --", a.Name))
	}
	var err error
	if in.Repo, err = absoluteRepo(in.Repo, env); err != nil {
		return nil, err
	}
	for i, v := range in.Volumes {
		// The run's process stands elsewhere.
		if in.Volumes[i], err = absoluteVolume(v); err != nil {
			return nil, err
		}
	}
	create := in.create("a task", "")
	create.Agent = a.Name
	if _, err := runOptions(ctx, env, create.run(), sources{models: modelsOf}); err != nil {
		return nil, err
	}
	return json.Marshal(in)
}

// workOf is what was said of an agent's runs.
func workOf(a store.Agent) (in agentsWorkInput, err error) {
	if len(a.Work) == 0 {
		return in, notWorkedOn(a)
	}
	if err := json.Unmarshal(a.Work, &in); err != nil { // it was checked when it was written, here
		return in, fmt.Errorf("how the agent %s works cannot be read: %w", a.Name, err)
	}
	return in, nil
}

func notWorkedOn(a store.Agent) error {
	return command.Usage(fmt.Sprintf("nobody works on messages to the agent %s", a.Name),
		fmt.Sprintf("say how it works: ravi agents work %s --repo PATH", a.Name))
}

func printAgentWork(_ *command.Env, w io.Writer, a agentWork) error {
	printLine(w, "agent", safe.Safe(a.Agent))
	printLine(w, "client", a.Client)
	printLine(w, "program", a.Program)
	if len(a.Work) == 0 {
		printLine(w, "work", "none: messages are only kept")
		return nil
	}
	var said map[string]any
	if err := json.Unmarshal(a.Work, &said); err != nil {
		return errors.Join(fmt.Errorf("how the agent %s works cannot be read", a.Agent), err)
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		switch v := said[name].(type) {
		case nil:
		case string:
			printLine(w, name, safe.Safe(v))
		case []any:
			var parts []string
			for _, p := range v {
				parts = append(parts, safe.Safe(fmt.Sprint(p)))
			}
			printLine(w, name, strings.Join(parts, " "))
		case bool:
			if v {
				printLine(w, name, "yes")
			}
		case float64:
			if v != 0 && name == "timeout" {
				printLine(w, name, time.Duration(v).String())
			} else if v != 0 {
				printLine(w, name, fmt.Sprint(v))
			}
		}
	}
	return nil
}

// absoluteVolume makes the host's part of a volume absolute.
func absoluteVolume(v string) (string, error) {
	host, rest, _ := strings.Cut(v, ":")
	host, err := filepath.Abs(host)
	return host + ":" + rest, err
}
