package cli

import (
	"context"

	"ravi/internal/command"
	"ravi/internal/daemon"
)

// parts are what a command line is put together from, so that a test can put it together otherwise.
type parts struct {
	// newSweeper makes the hand that ends sandboxes.
	newSweeper func(context.Context, *command.Env) (command.Sweeper, error)
	// register adds the commands that stand on the packages below.
	register []func(*command.Table)
	// daemon is what this process is, if it is the daemon.
	daemon *daemon.Daemon
	// boxes are the sandboxes of the daemon that this process is.
	boxes *daemon.Sandboxes
	// bus is that of the daemon that this process is.
	bus *daemonBus
}

// program is the command line of the ravi program.
func program() parts {
	return parts{newSweeper: newSweeper, register: []func(*command.Table){addSandboxRun, addRunsCreate, addBench}}
}
