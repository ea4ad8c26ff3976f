package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"ravi/sandbox"
)

// Servers are tools of others that run beside the hands, such as MCP servers. What they answer is hostile.
type Servers interface {
	// Specs are the tools that there are now; it may change.
	Specs() []Spec
	Call(ctx context.Context, name string, args json.RawMessage) (text string, failed bool, err error)
	Close(ctx context.Context) error
}

// Hands are a sandbox, and the servers in it, that are there once they are needed.
type Hands struct {
	open  func(context.Context) (*sandbox.Sandbox, error)
	serve func(context.Context, *sandbox.Sandbox) (Servers, error)

	lent bool // the sandbox is somebody else's

	mu      sync.Mutex
	sb      *sandbox.Sandbox
	servers Servers
}

// NewHands makes hands of a sandbox that open opens, and Close closes.
func NewHands(open func(context.Context) (*sandbox.Sandbox, error)) *Hands { return &Hands{open: open} }

// HandsOf makes hands of a sandbox that is there, and that Close leaves there.
func HandsOf(sb *sandbox.Sandbox) *Hands {
	return &Hands{lent: true, open: func(context.Context) (*sandbox.Sandbox, error) { return sb, sb.Err() }}
}

// WithServers has serve start servers each time that the sandbox was opened. One that returns an error returns no servers.
func (h *Hands) WithServers(serve func(context.Context, *sandbox.Sandbox) (Servers, error)) *Hands {
	h.serve = serve
	return h
}

// Start opens the sandbox, then its servers, unless they are there. After a failure nothing is there, and it may be tried
// again.
func (h *Hands) Start(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sb != nil {
		if err := h.sb.Err(); err != nil {
			return fmt.Errorf("the sandbox of the agent's hands has ended: %w", err)
		}
		return nil
	}
	sb, err := h.open(ctx)
	if err != nil {
		return err
	}
	if h.serve != nil {
		if h.servers, err = h.serve(ctx, sb); err != nil {
			h.servers = nil
			if h.lent {
				return err
			}
			return errors.Join(err, sb.Close())
		}
	}
	h.sb = sb
	return nil
}

// Sandbox is the sandbox, or nil if there is none now.
func (h *Hands) Sandbox() *sandbox.Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sb
}

func (h *Hands) running() Servers {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.servers
}

// Close ends the servers, then the sandbox, of which they are a part. It may be called more than once, and hands that were
// closed may be started again.
func (h *Hands) Close(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	if h.servers != nil {
		errs = append(errs, h.servers.Close(ctx))
	}
	if h.sb != nil && !h.lent {
		errs = append(errs, h.sb.Close())
	}
	h.servers, h.sb = nil, nil
	return errors.Join(errs...)
}

// served is a tool of a server.
type served struct {
	hands *Hands
	spec  Spec
}

func (s served) Spec() Spec { return s.spec }

func (s served) Do(ctx context.Context, args json.RawMessage) (Result, error) {
	now := s.hands.running()
	if now == nil {
		return refuse("the server of %s is not running", s.spec.Name), nil
	}
	text, failed, err := now.Call(ctx, s.spec.Name, args)
	return Result{Text: text, Failed: failed}, err
}
