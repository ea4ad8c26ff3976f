package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/process"
	"ravi/internal/guestapi/process/processconnect"
)

type processService struct{ *Server }

var _ processconnect.ProcessHandler = processService{}

func (s processService) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	res := &process.ListResponse{}
	for _, p := range s.procs.running() {
		info := &process.ProcessInfo{Config: p.config, Pid: uint32(p.pid), User: p.user, Terminal: p.master != nil}
		if p.tag != "" {
			info.Tag = &p.tag
		}
		res.Processes = append(res.Processes, info)
	}
	return connect.NewResponse(res), nil
}

func (s processService) Start(ctx context.Context, req *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	interval, err := keepaliveInterval(req.Header())
	if err != nil {
		return rpcError(err)
	}
	spec, err := s.specOf(req)
	if err != nil {
		return rpcError(err)
	}
	p, reader, err := s.start(spec)
	if err != nil {
		return rpcError(err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		s.endAt(p, deadline)
	}
	return s.stream(ctx, p, reader, interval, func(ev *process.ProcessEvent) error {
		return out.Send(&process.StartResponse{Event: ev})
	})
}

// specOf turns a request into what a process is started with.
func (s processService) specOf(req *connect.Request[process.StartRequest]) (startSpec, error) {
	msg := req.Msg
	if msg.GetProcess() == nil {
		return startSpec{}, fmt.Errorf("%w: no process is given", errBadArgument)
	}
	user, err := s.userOf(req.Header(), "")
	if err != nil {
		return startSpec{}, err
	}
	env, err := s.environment(user, msg.GetProcess().GetEnvs(), msg.GetRawEnvs())
	if err != nil {
		return startSpec{}, err
	}
	cwd, err := s.resolve(msg.GetProcess().GetCwd(), user)
	if err != nil {
		return startSpec{}, err
	}
	spec := startSpec{
		config: msg.GetProcess(),
		tag:    msg.GetTag(),
		user:   user,
		env:    env,
		cwd:    cwd,
		stdin:  msg.Stdin == nil || msg.GetStdin(),
		lane:   msg.GetLane(),
		attach: true,
	}
	if msg.Lane != nil && (spec.lane == 0 || msg.GetPty() != nil) {
		return startSpec{}, fmt.Errorf("%w: a lane has a number above 0, and is no terminal", errBadArgument)
	}
	if msg.GetPty() != nil {
		spec.size = msg.GetPty().GetSize()
		if spec.size == nil {
			spec.size = &process.PTY_Size{}
		}
	}
	return spec, nil
}

// endAt ends a process with its tree when its time is over, whether or not
// its client is still there: the time was given for the process.
func (s *Server) endAt(p *proc, deadline time.Time) {
	s.tasks.Go(func() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-p.exited:
			return
		case <-s.stopped.Done():
			return
		case <-timer.C:
		}
		p.mu.Lock()
		p.timedOut = true
		p.mu.Unlock()
		// Close waits for what is left, should this fail.
		_, _ = s.killTree(s.stopped, p)
	})
}

func (s processService) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest], out *connect.ServerStream[process.ConnectResponse]) error {
	interval, err := keepaliveInterval(req.Header())
	if err != nil {
		return rpcError(err)
	}
	p, err := s.procs.find(req.Msg.GetProcess(), true)
	if err != nil {
		return rpcError(err)
	}
	return s.stream(ctx, p, p.out.attach(), interval, func(ev *process.ProcessEvent) error {
		return out.Send(&process.ConnectResponse{Event: ev})
	})
}

// stream sends the events of p until its end, or until the client is gone.
func (s *Server) stream(ctx context.Context, p *proc, reader *outputReader, interval time.Duration, send func(*process.ProcessEvent) error) error {
	var undelivered *chunk
	defer func() { reader.detach(undelivered) }()
	if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{
		Start: &process.ProcessEvent_StartEvent{Pid: uint32(p.pid)},
	}}); err != nil {
		return err
	}
	quiet := time.NewTimer(interval)
	defer quiet.Stop()
	for {
		c, end, err := reader.next(ctx, quiet.C)
		switch {
		case err != nil:
			return rpcError(err)
		case end != nil:
			if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: end}}); err != nil {
				return err
			}
			p.out.markSeen()
			return nil
		case c != nil:
			if err := send(dataEvent(c)); err != nil {
				undelivered = c
				return err
			}
		default:
			if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{
				Keepalive: &process.ProcessEvent_KeepAlive{},
			}}); err != nil {
				return err
			}
		}
		quiet.Reset(interval)
	}
}

func dataEvent(c *chunk) *process.ProcessEvent {
	data := &process.ProcessEvent_DataEvent{}
	switch c.stream {
	case stdout:
		data.Output = &process.ProcessEvent_DataEvent_Stdout{Stdout: c.data}
	case stderr:
		data.Output = &process.ProcessEvent_DataEvent_Stderr{Stderr: c.data}
	case terminal:
		data.Output = &process.ProcessEvent_DataEvent_Pty{Pty: c.data}
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: data}}
}

const (
	keepaliveHeader  = "Keepalive-Ping-Interval"
	defaultKeepalive = 90 * time.Second
)

// keepaliveInterval is how often a quiet stream shows that it lives.
func keepaliveInterval(h http.Header) (time.Duration, error) {
	v := h.Get(keepaliveHeader)
	if v == "" {
		return defaultKeepalive, nil
	}
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: %s must be a number of seconds above 0", errBadArgument, keepaliveHeader)
	}
	return time.Duration(n) * time.Second, nil
}

func (s processService) Update(_ context.Context, req *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	p, err := s.procs.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, rpcError(err)
	}
	if size := req.Msg.GetPty().GetSize(); size != nil {
		if p.master == nil {
			return nil, rpcError(fmt.Errorf("%w: process %d has no terminal", errBadState, p.pid))
		}
		if err := setSize(p.master, size); err != nil {
			return nil, rpcError(err)
		}
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

func (s *Server) input(ctx context.Context, p *proc, in *process.ProcessInput) error {
	switch in := in.GetInput().(type) {
	case *process.ProcessInput_Stdin:
		return s.inputOf(ctx, p, in.Stdin, false)
	case *process.ProcessInput_Pty:
		return s.inputOf(ctx, p, in.Pty, true)
	}
	return fmt.Errorf("%w: the input is empty", errBadArgument)
}

func (s *Server) inputOf(ctx context.Context, p *proc, data []byte, toTerminal bool) error {
	err := p.writeInput(data, toTerminal, ctx.Done())
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (s processService) SendInput(ctx context.Context, req *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	p, err := s.procs.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, rpcError(err)
	}
	if err := s.input(ctx, p, req.Msg.GetInput()); err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

func (s processService) StreamInput(ctx context.Context, in *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	var p *proc
	for in.Receive() {
		switch ev := in.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			var err error
			if p, err = s.procs.find(ev.Start.GetProcess(), false); err != nil {
				return nil, rpcError(err)
			}
		case *process.StreamInputRequest_Data:
			if p == nil {
				return nil, rpcError(fmt.Errorf("%w: input before the start event", errBadArgument))
			}
			if err := s.input(ctx, p, ev.Data.GetInput()); err != nil {
				return nil, rpcError(err)
			}
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

// goneSoon bounds how long SendSignal waits to see a killed tree gone.
const goneSoon = 5 * time.Second

func (s processService) SendSignal(ctx context.Context, req *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	p, err := s.procs.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, rpcError(err)
	}
	switch req.Msg.GetSignal() {
	case process.Signal_SIGNAL_SIGTERM:
		s.reaper.alive(p.pid, func() { err = unix.Kill(p.pid, unix.SIGTERM) })
	case process.Signal_SIGNAL_SIGKILL:
		ctx, cancel := context.WithTimeout(ctx, goneSoon)
		defer cancel()
		_, err = s.killTree(ctx, p)
	default:
		err = fmt.Errorf("%w: signal %d cannot be sent by this call", errBadArgument, req.Msg.GetSignal())
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

func (s processService) CloseStdin(_ context.Context, req *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	p, err := s.procs.find(req.Msg.GetProcess(), false)
	if err == nil {
		err = p.closeStdin()
	}
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}
