package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"ravi/internal/backend"
	"ravi/internal/keeper"
	"ravi/internal/network"
	"ravi/internal/network/inject"
	"ravi/internal/network/outlet"
)

// WithBackend has the sandbox made by b, whatever Config says but that it is gVisor's. If b makes sandboxes on another
// machine (backend.Elsewhere), the sandbox sees no folder of this one, but for what WithContext, WithReadOnly and WithInput
// show, which is copied there; it has no checkpoints, and ends with this process.
func WithBackend(b backend.Backend) Option { return func(o *options) { o.backend = b } }

// pick finds the backend: the one that was given, or the one that the configuration names.
func (o options) pick(cfg Config) (backend.Backend, string, error) {
	if o.backend == nil {
		return pick(cfg)
	}
	if cfg.Backend != BackendAuto && cfg.Backend != o.backend.Name() {
		return nil, "", fmt.Errorf("%w: %s was asked for, and a backend given that is %s", backend.ErrUnavailable, cfg.Backend, o.backend.Name())
	}
	return o.backend, o.backend.Name(), nil
}

// checkElsewhere refuses what needs this machine.
func (o options) checkElsewhere(cfg Config, workspace string) error {
	what := ""
	switch {
	case workspace != "":
		what = "the workspace " + workspace + " is a folder of this one"
	case len(cfg.ExtraVolumes) > 0:
		what = "the volume " + cfg.ExtraVolumes[0].Host + " (extra_volumes) is a folder of this one"
	case o.checkpoint != "":
		what = "the checkpoint " + o.checkpoint + " is on this one"
	case o.grace > 0:
		what = "it cannot outlive the process that makes it"
	default:
		return nil
	}
	return fmt.Errorf("%w: the sandbox is made on another machine, and %s", backend.ErrUnsupported, what)
}

// away is what of a sandbox on another machine stays on this one. The methods may be called on a nil away, which is that of
// a sandbox of this machine.
type away struct {
	mode network.Delegation

	mu  sync.Mutex
	out *outlet.Outlet // nil: nothing is delegated, or not yet
}

// sendAway says what leaves from here: what a secret is bound to, or where there is a proxy, everything.
func (s *Sandbox) sendAway() *away {
	a := &away{}
	switch {
	case s.beyond.proxy != nil:
		a.mode = network.DelegateAll
	case len(s.secrets.all) > 0:
		a.mode = network.DelegateBound
	}
	return a
}

// proxyAuth is the file that a backend is told of. What has its way out here does not need it there.
func (s *Sandbox) proxyAuth() string {
	if s.away != nil {
		return ""
	}
	return s.beyond.authFile
}

func (a *away) delegation() network.Delegation {
	if a == nil {
		return network.DelegateNone
	}
	return a.mode
}

func (a *away) delegates() bool { return a.delegation() != network.DelegateNone }

// openAway opens the way out, if there is to be one here. hear is then also for what is decided there.
func (s *Sandbox) openAway(hear func(NetEvent)) (func(NetEvent), error) {
	if !s.away.delegates() {
		return hear, nil
	}
	auth, err := keeper.OpenCredentials(s.beyond.authFile)
	if err != nil {
		return nil, err
	}
	defer auth.Close()
	p, err := s.cfg.AllowNet.Policy()
	if err != nil {
		return nil, err
	}
	var one sync.Mutex
	both := func(e NetEvent) {
		if hear != nil {
			one.Lock()
			defer one.Unlock()
			hear(e)
		}
	}
	out, err := outlet.New(outlet.Options{Config: s.networkOf(p), Auth: io.Reader(auth), Hear: both})
	if err != nil {
		return nil, err
	}
	s.away.mu.Lock()
	defer s.away.mu.Unlock()
	s.away.out = out
	return both, nil
}

func (a *away) outlet() *outlet.Outlet {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out
}

func (a *away) authority() string { return a.outlet().Authority() }

// setPolicy replaces what may be reached by the way out.
func (a *away) setPolicy(c network.Config) error {
	out := a.outlet()
	if out == nil {
		return nil
	}
	return out.SetPolicy(c)
}

// setSecrets replaces the secrets of the way out, and gives what the gateway on the other machine is told of them: all but
// the values.
func (a *away) setSecrets(list []inject.Secret) ([]inject.Secret, error) {
	out := a.outlet()
	if out == nil {
		return nil, fmt.Errorf("%w: the secrets have no way out of this machine", backend.ErrUnavailable)
	}
	if err := out.SetSecrets(list); err != nil {
		return nil, err
	}
	told := make([]inject.Secret, len(list))
	for i, one := range list {
		one.Value = ""
		told[i] = one
	}
	return told, nil
}

// service serves a connection that is delegated.
func (a *away) service(v network.Visit) Service {
	out := a.outlet()
	if out == nil {
		return nil
	}
	return func(ctx context.Context, conn net.Conn) { out.Serve(ctx, conn, v.Host, v.Port) }
}

// close ends the way out, once all that was decided there is heard.
func (a *away) close() error { return a.outlet().Close() }
