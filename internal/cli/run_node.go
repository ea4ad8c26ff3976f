package cli

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/command"
	runs "ravi/internal/run"
	"ravi/sandbox"
)

// checkNode looks whether the Node.js that an agent program is a script for is there and new enough, before anything is
// installed or made. It can be asked here if the image has this machine's tools, and for the operator alone: for a
// holder of a key nothing of this machine is started. Else the run asks inside.
func checkNode(ctx context.Context, env *command.Env, p adapter.Program, a *runs.Agent, o *runs.Options) error {
	if p.Node == 0 {
		return nil
	}
	if !env.Caller.IsOperator() || !hostTools(o) {
		a.CheckNode = true
		return nil
	}
	said := ""
	if at, ok := inImage("node", o.Config.Backend); ok {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, at, "--version")
		cmd.Env = []string{} // options for it in a variable do not go into the sandbox either
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("asking %s for its version: %w", at, err)
		}
		said = string(out)
	}
	err := p.CheckNode(said)
	if err == nil {
		return nil
	}
	where := "in /usr of this machine"
	if o.Config.Backend == sandbox.BackendHost {
		where = "on this machine"
	}
	return &command.Error{Code: command.CodeUnavailable, Message: fmt.Sprintf("%v %s", err, where), Exit: command.ExitRavi, Err: err,
		Hint: "apt-get install -y nodejs; where that is older: https://nodejs.org/en/download has packages for /usr"}
}

// hostTools says whether a run's programs are this machine's.
func hostTools(o *runs.Options) bool {
	return o.Config.Backend == sandbox.BackendHost || o.Config.Image == "host"
}
