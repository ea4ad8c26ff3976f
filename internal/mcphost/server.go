package mcphost

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/sandbox"
)

// How a server that ended is started again: after half a second, then after twice as long each time.
const (
	maxRestarts = 5
	steady      = time.Minute     // after which an end counts as the first
	relist      = time.Second     // between two looks at its tools
	leave       = 5 * time.Second // for a conversation to end in order
)

var firstRestart = 500 * time.Millisecond // less in tests

var (
	errLate     = errors.New("it took too long")
	errNotReady = errors.New("it was not ready within")
)

// server is one server, in one life after another.
type server struct {
	Server
	host  *Host
	slots chan struct{} // one for each call
	kept  chan struct{} // closed when keep has returned

	mu      sync.Mutex
	up      *link         // nil while it does not work
	problem error         // why it does not any more
	change  chan struct{} // closed, and made anew, when either changes
	tools   []Tool
	started time.Duration
}

func newServer(h *Host, conf Server) *server {
	conf.ToolTimeout, conf.StartTimeout = conf.Timeouts()
	return &server{Server: conf, host: h, slots: make(chan struct{}, maxCalls), kept: make(chan struct{}), change: make(chan struct{})}
}

// link is one conversation with a server.
type link struct {
	session *sdk.ClientSession
	tools   []Tool
	began   time.Time
	changed chan struct{} // it says that it has other tools
	over    chan struct{} // closed when the conversation has ended
	// why says why that is, stop ends what belongs to it. It may be called again.
	why   func() error
	ended func() bool // of a program; may be nil
	stop  func(ctx context.Context) error
}

// dead says that the conversation has ended, which may be known before it is dealt with.
func (l *link) dead() bool {
	select {
	case <-l.over:
		return true
	default:
		return l.ended != nil && l.ended()
	}
}

// begin is a server's first start.
func (s *server) begin(ctx context.Context) {
	start := time.Now()
	l, err := s.first(ctx)
	s.mu.Lock()
	s.started = time.Since(start)
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
		close(s.kept)
		return
	}
	s.set(l)
	s.host.work.Go(func() {
		defer close(s.kept)
		s.keep(l)
	})
}

func (s *server) first(ctx context.Context) (*link, error) {
	if s.dead() != nil {
		return nil, s.dead()
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return s.connect(ctx)
}

func (s *server) dead() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// set makes l the conversation; nil: there is none for now.
func (s *server) set(l *link) {
	s.mu.Lock()
	s.up = l
	if l != nil {
		s.tools = l.tools
	}
	close(s.change)
	s.change = make(chan struct{})
	s.mu.Unlock()
	s.host.setTools()
}

// fail gives a server up.
func (s *server) fail(why error) {
	s.mu.Lock()
	again := s.problem != nil
	s.up, s.tools = nil, nil
	s.problem = cmp.Or(s.problem, why)
	close(s.change)
	s.change = make(chan struct{})
	s.mu.Unlock()
	if !again {
		s.host.setTools()
		s.host.say(s.Name, KindFailed, why.Error())
	}
}

// offers are its tools. While it is being started again they stay: a call waits for it.
func (s *server) offers() []Tool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools
}

func (s *server) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Name: s.Name, Transport: s.Kind(), OK: s.up != nil, Tools: len(s.tools), Started: s.started}
	if s.problem != nil {
		st.Problem = safe(s.problem.Error(), 2000)
	}
	if s.up != nil {
		if r := s.up.session.InitializeResult(); r != nil && r.ServerInfo != nil {
			st.Program = safe(r.ServerInfo.Name+" "+r.ServerInfo.Version, 100)
		}
	}
	return st
}

// connect starts a conversation, and what it needs. ctx is for the start alone.
func (s *server) connect(ctx context.Context) (*link, error) {
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() { cancel(ErrClosed) }
	giveUp := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	closing := context.AfterFunc(s.host.life, end)
	late := time.AfterFunc(s.StartTimeout, func() {
		cancel(fmt.Errorf("%w %gs (start_timeout)", errNotReady, s.StartTimeout.Seconds()))
	})
	l := &link{began: time.Now(), changed: make(chan struct{}, 1), over: make(chan struct{})}
	transport, explain, err := s.transport(life, end, l)
	if err == nil {
		err = s.greet(life, transport, l)
	}
	if ready := giveUp() && closing() && late.Stop(); !ready && err == nil {
		err = context.Cause(life)
	}
	if err == nil {
		return l, nil
	}
	ended := life.Err() != nil
	if ended {
		err = context.Cause(life)
	}
	if explain != nil && (!ended || errors.Is(err, errNotReady)) {
		err = explain(err)
	}
	if l.session != nil {
		s.hangUp(context.WithoutCancel(ctx), l)
	} else if l.stop != nil {
		err = errors.Join(err, l.stop(context.WithoutCancel(ctx)))
	}
	end()
	return nil, err
}

// transport makes the way to the server. explain says more of why it failed than the SDK does.
func (s *server) transport(life context.Context, end func(), l *link) (t sdk.Transport, explain func(error) error, err error) {
	if s.Kind() == Stdio {
		p, err := startPipe(life, s.host.sb, s.Server, func(k Kind, text string) { s.host.say(s.Name, k, text) })
		if err != nil {
			return nil, nil, err
		}
		explain = func(err error) error {
			if p.isOver() && p.err != errLeft {
				return p.err
			}
			return p.quoting(err)
		}
		l.ended = p.isOver
		l.why = func() error { return explain(errors.New("the conversation broke off")) }
		l.stop = func(ctx context.Context) error { defer end(); return p.stop(ctx) }
		return p, explain, nil
	}
	c, t, err := overHTTP(life, s.host.sb, s.Server)
	if err != nil {
		return nil, nil, err
	}
	l.why = func() error { return c.explain(errors.New("the conversation broke off")) }
	l.stop = func(context.Context) error { end(); c.stop(); return nil }
	return t, c.explain, nil
}

// greet begins the conversation, and asks for the tools.
func (s *server) greet(life context.Context, t sdk.Transport, l *link) error {
	client := sdk.NewClient(&sdk.Implementation{Name: "ravi", Title: "Ravi", Version: "1"}, &sdk.ClientOptions{
		Capabilities:   &sdk.ClientCapabilities{}, // it offers the server nothing
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			select {
			case l.changed <- struct{}{}:
			default:
			}
		},
	})
	var err error
	if l.session, err = client.Connect(life, t, nil); err != nil {
		l.session = nil
		return err
	}
	go func() {
		defer close(l.over)
		_ = l.session.Wait() // why is asked elsewhere
	}()
	l.tools, err = s.list(life, l)
	return err
}

func (s *server) list(ctx context.Context, l *link) ([]Tool, error) {
	return listTools(ctx, l.session, s.Name, func(text string) { s.host.say(s.Name, KindWarning, text) })
}

// hangUp ends a conversation, then what belongs to it.
func (s *server) hangUp(ctx context.Context, l *link) error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = l.session.Close() // what could not be said of it shows nowhere else
	}()
	wait := time.NewTimer(leave)
	defer wait.Stop()
	select {
	case <-closed:
	case <-wait.C:
	case <-ctx.Done():
	}
	return l.stop(ctx)
}

// keep has a server work until the host is closed or it fails too often.
func (s *server) keep(l *link) {
	restarts := 0
	for {
		if !s.serve(l) {
			return
		}
		why := l.why()
		s.set(nil)
		if err := s.hangUp(s.host.life, l); err != nil {
			s.host.say(s.Name, KindWarning, "what it left behind: "+err.Error())
		}
		if time.Since(l.began) > steady {
			restarts = 0
		}
		for l = nil; l == nil; {
			if s.host.sb.Err() != nil {
				s.fail(s.host.sb.Err())
				return
			}
			if restarts == maxRestarts {
				s.fail(fmt.Errorf("%w; it was started again %d times, and is given up", why, restarts))
				return
			}
			s.host.say(s.Name, KindWarning, why.Error()+"; it is started again")
			select {
			case <-time.After(firstRestart << restarts):
			case <-s.host.life.Done():
				return
			}
			restarts++
			var err error
			if l, err = s.connect(s.host.life); err != nil {
				if s.host.life.Err() != nil {
					return
				}
				why = err
			}
		}
		s.set(l)
		s.host.say(s.Name, KindRestarted, "it works again")
	}
}

// serve looks after a conversation until it is over; false: until the host is closed.
func (s *server) serve(l *link) bool {
	for {
		select {
		case <-s.host.life.Done():
			return false
		case <-l.over:
			return true
		case <-l.changed:
		}
		ctx, cancel := context.WithTimeout(s.host.life, s.StartTimeout)
		tools, err := s.list(ctx, l)
		cancel()
		if err == nil {
			s.mu.Lock()
			other := !reflect.DeepEqual(s.tools, tools)
			s.tools = tools
			s.mu.Unlock()
			if other {
				s.host.setTools()
				s.host.say(s.Name, KindLog, fmt.Sprintf("it offers %d tools now", len(tools)))
			}
		} else if s.host.life.Err() == nil {
			s.host.say(s.Name, KindWarning, err.Error())
		}
		// One that changes all the time is not asked all the time.
		select {
		case <-time.After(relist):
		case <-s.host.life.Done():
			return false
		case <-l.over:
			return true
		}
	}
}

// close ends the server; the host's life has ended.
func (s *server) close(ctx context.Context) error {
	<-s.kept
	s.mu.Lock()
	l := s.up
	s.up = nil
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	if err := s.hangUp(ctx, l); err != nil {
		return fmt.Errorf("ending the MCP server %s: %w", s.Name, err)
	}
	return nil
}

// await is the conversation, when there is one.
func (s *server) await(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, problem, change := s.up, s.problem, s.change
		s.mu.Unlock()
		if problem != nil {
			return nil, problem
		}
		if l != nil && !l.dead() {
			return l, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// call calls a tool.
func (s *server) call(ctx context.Context, tool string, args json.RawMessage) (text string, failed bool, err error) {
	if args = bytes.TrimSpace(args); len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	switch {
	case len(args) > maxArgs:
		return fmt.Sprintf("(the arguments have %d bytes, more than the %d that an MCP tool takes)", len(args), maxArgs), true, nil
	case args[0] != '{' || !json.Valid(args):
		return "(the arguments of an MCP tool must be a JSON object)", true, nil
	}
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	closing := context.AfterFunc(s.host.life, func() { cancel(ErrClosed) })
	defer closing()
	late := time.AfterFunc(s.ToolTimeout, func() { cancel(errLate) })
	defer late.Stop()
	res, err := s.ask(within, tool, args)
	switch {
	case err == nil:
		text, failed = textOf(res)
		return text, failed, nil
	case ctx.Err() != nil:
		return "", false, context.Cause(ctx)
	case s.host.life.Err() != nil:
		return "", false, ErrClosed
	case within.Err() != nil:
		return fmt.Sprintf("(MCP tool call timed out after %gs)", s.ToolTimeout.Seconds()), true, nil
	}
	var refused *jsonrpc.Error
	if errors.As(err, &refused) {
		return "(MCP tool call failed: " + middle(refused.Message, maxText) + ")", true, nil
	}
	return "(MCP tool call failed: " + bounded(err.Error(), 4000) + ")", true, nil
}

func (s *server) ask(ctx context.Context, tool string, args json.RawMessage) (*sdk.CallToolResult, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l, err := s.await(ctx)
	if err != nil {
		return nil, err
	}
	res, err := l.session.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
	if err == nil || ctx.Err() != nil || errors.As(err, new(*jsonrpc.Error)) {
		return res, err
	}
	return nil, l.explain(err)
}

// explain is why a call failed, if that is since the conversation ended.
func (l *link) explain(err error) error {
	if errors.Is(err, sdk.ErrConnectionClosed) || errors.Is(err, sandbox.ErrEnded) {
		return fmt.Errorf("the server ended: %w", l.why())
	}
	return err
}
