package sandbox

import (
	"fmt"

	"ravi/internal/backend"
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
	case o.proxy != nil:
		what = "network.proxy is a way out of this one"
	case len(o.secrets) > 0:
		what = "the secret " + o.secrets[0].Name + " stays on this one"
	default:
		return nil
	}
	return fmt.Errorf("%w: the sandbox is made on another machine, and %s", backend.ErrUnsupported, what)
}
