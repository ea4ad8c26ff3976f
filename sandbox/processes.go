package sandbox

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"ravi/internal/guestapi/process"
)

// ProcessInfo is a command that runs in a sandbox: one that was started by Exec
// or Start, whoever called it. What these started in turn is not listed.
type ProcessInfo struct {
	PID  int
	Args []string
	// Tag is what Cmd.Tag was.
	Tag  string
	User string
	// TTY says that it has a terminal.
	TTY bool
}

// Processes lists the commands that run, by their number.
func (s *Sandbox) Processes(ctx context.Context) ([]ProcessInfo, error) {
	res, err := s.client.Process.List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	var all []ProcessInfo
	for _, p := range res.Msg.GetProcesses() {
		all = append(all, ProcessInfo{
			PID: int(p.GetPid()), Args: append([]string{p.GetConfig().GetCmd()}, p.GetConfig().GetArgs()...),
			Tag: p.GetTag(), User: p.GetUser(), TTY: p.GetTerminal(),
		})
	}
	return all, nil
}

// ProcessRef names a command: by its number or, if that is 0, by its tag. Of
// several with one tag the last that runs is meant.
type ProcessRef struct {
	PID int
	Tag string
}

// Reconnect follows a command that this process or another started; ErrNotFound if
// there is none. How one ended that is over can be learned for some minutes. Of one
// with a lane, only what it writes on standard error comes, and the end.
//
// Of c the streams and Timeout count, and TTY, which must be set for a command with
// a terminal, and gives that its size. Its output comes from now on. What it wrote
// while nobody was connected comes first: the sandbox keeps 64 MiB of it, after
// which the command waits. Lost is what was on its way to a process that was
// killed, or got it and did not live to use it.
//
// When ctx ends, the command goes on, and Wait returns the reason; when Timeout
// does, or by Kill, it is ended as one of Start's.
func (s *Sandbox) Reconnect(ctx context.Context, to ProcessRef, c Cmd) (*Process, error) {
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: to.Tag}}
	switch {
	case len(c.Args) > 0 || c.Shell != "" || c.Dir != "" || c.GuestDir != "" || c.Env != nil || c.User != "" || c.Tag != "" || c.Lane:
		return nil, fmt.Errorf("%w: a command that runs already gets only streams, a timeout and a terminal's size", ErrBadCommand)
	case to.PID < 0 || to.PID > 1<<31-1 || to.PID == 0 && to.Tag == "" || to.PID != 0 && to.Tag != "":
		return nil, fmt.Errorf("%w: name the running command by its number or its tag", ErrBadCommand)
	case to.PID > 0:
		sel.Selector = &process.ProcessSelector_Pid{Pid: uint32(to.PID)}
	}
	streamCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	stream, err := s.client.Process.Connect(streamCtx, connect.NewRequest(&process.ConnectRequest{Process: sel}))
	if err != nil {
		stop()
		return nil, s.explain(ctx, err)
	}
	p := &Process{sb: s, stop: stop, done: make(chan struct{}), over: make(chan struct{}), tty: c.TTY != nil, borrowed: true}
	if err := p.follow(ctx, eventsOf(stream, (*process.ConnectResponse).GetEvent), c); err != nil {
		return nil, s.explain(ctx, err)
	}
	if c.TTY != nil {
		if err := p.Resize(ctx, *c.TTY); err != nil {
			select {
			case <-p.done: // it is over, and needs no size
			default:
				stop()
				return nil, err
			}
		}
	}
	return p, nil
}
