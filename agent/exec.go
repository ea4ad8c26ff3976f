package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ravi/internal/strictjson"
	"ravi/sandbox"
)

const (
	// execTime is how long a command may take that names no time, and mostExec the longest that one may name.
	execTime = 120 * time.Second
	mostExec = 600 * time.Second
	// mostExecOutput is kept of each stream while it runs.
	mostExecOutput = 256 << 10
)

// ExecTool runs shell commands in the hands' sandbox.
type ExecTool struct {
	Hands *Hands
	// Timeout bounds a command that names no time of its own; 0 is two minutes.
	Timeout time.Duration
	// PathAppend are folders of the sandbox in which programs are looked for last.
	PathAppend []string
	// Env is added to the environment of commands.
	Env map[string]string
	// MostOutput bounds the text that comes back, in characters; 0: as much as the loop keeps of any tool's.
	MostOutput int
}

type execArgs struct {
	Command    string `json:"command"`
	WorkingDir string `json:"working_dir"`
	Timeout    int    `json:"timeout"` // seconds
}

// Spec describes the tool to a model.
func (*ExecTool) Spec() Spec {
	return Spec{Name: "exec", Description: "Runs a shell command in the sandbox, in the workspace, and returns what it writes and its exit code. It has no terminal and no input.",
		Schema: json.RawMessage(`{"type":"object","properties":{
			"command":{"type":"string","description":"for bash, or sh where there is no bash"},
			"working_dir":{"type":"string","description":"a folder; relative ones are below the workspace, which is the default"},
			"timeout":{"type":"integer","minimum":1,"maximum":600,"description":"seconds after which it is ended"}},
			"required":["command"],"additionalProperties":false}`)}
}

func (t *ExecTool) args(raw json.RawMessage) (a execArgs, err error) {
	if err := strictjson.Decode(raw, &a); err != nil {
		return a, err
	}
	switch {
	case strings.TrimSpace(a.Command) == "":
		err = errors.New("there is no command")
	case strings.ContainsRune(a.Command, 0), strings.ContainsRune(a.WorkingDir, 0):
		err = errors.New("there is a zero byte in it")
	case a.Timeout < 0 || a.Timeout > int(mostExec/time.Second):
		err = fmt.Errorf("the timeout is not from 1 to %d seconds", mostExec/time.Second)
	}
	return a, err
}

// Shell is the command that a call would run, and where it says that it does, for the gate.
func (t *ExecTool) Shell(raw json.RawMessage) (command, dir string, err error) {
	a, err := t.args(raw)
	return a.Command, a.WorkingDir, err
}

// Folder is where a command runs. Without hands nobody knows.
func (t *ExecTool) Folder(dir string) string {
	sb := t.Hands.Sandbox()
	if sb == nil {
		return ""
	}
	return guestDir(sb, dir)
}

// anyShell runs its first argument by the best shell that there is.
const anyShell = `[ -z "$1" ] || PATH="$PATH:$1"; [ -x /bin/bash ] && exec /bin/bash -c "$0"; exec /bin/sh -c "$0"`

// Do runs the command.
func (t *ExecTool) Do(ctx context.Context, raw json.RawMessage) (Result, error) {
	a, err := t.args(raw)
	if err != nil {
		return refuse("%v", err), nil
	}
	sb := t.Hands.Sandbox()
	if sb == nil {
		return Result{}, errNoHands
	}
	dir := guestDir(sb, a.WorkingDir)
	if sb.WorkspaceOnly() && !inside(dir, sb.Workspace()) && !inside(dir, hostWorkspace) {
		return refuse("the working_dir %s is outside of the workspace, which is %s", a.WorkingDir, sb.Workspace()), nil
	}
	limit := t.Timeout
	if limit <= 0 {
		limit = execTime
	}
	if a.Timeout > 0 {
		limit = time.Duration(a.Timeout) * time.Second
	}
	res, err := sb.Exec(ctx, sandbox.Cmd{
		Args: []string{"/bin/sh", "-c", anyShell, a.Command, strings.Join(t.PathAppend, ":")}, GuestDir: dir,
		Env: t.Env, Timeout: &limit, MaxOutput: mostExecOutput,
	})
	var ended *sandbox.EndError
	switch {
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case errors.As(err, &ended), err != nil && sb.Err() != nil:
		return Result{}, err
	case err != nil: // it did not start, as in a folder that is not there
		return Result{Text: "Error: " + err.Error(), Failed: true}, nil
	}
	return Result{Text: res.Text(cmp.Or(t.MostOutput, -1)), Failed: res.ExitCode != 0}, nil
}

var errNoHands = errors.New("the agent's hands are not there")

// hostWorkspace is what a sandbox on the host takes for its workspace as well.
const hostWorkspace = "/workspace"

// inside says whether a path is, or lies in, a folder, as it is written: where links lead to is for the sandbox to bound.
func inside(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// guestDir is a folder as the sandbox sees it.
func guestDir(sb *sandbox.Sandbox, dir string) string {
	if dir == "" {
		return sb.Workspace()
	}
	return inWorkspace(sb.Workspace(), dir)
}
