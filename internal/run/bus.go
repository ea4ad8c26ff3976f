package run

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"ravi/internal/redact"
	"ravi/sandbox"
)

// Bus lets what runs in the sandbox speak on the bus: by a credential of its own, which may publish and hear what is the
// run's and nothing else, over the sandbox's own wire.
type Bus struct {
	// Serve passes one connection on to the bus.
	Serve func(ctx context.Context, conn net.Conn) error
	// Credential is that of the sandbox, as a file of credentials has it.
	Credential string
	// Secrets are the parts of it that nothing of the run may show.
	Secrets []string
	// Renew gives the credential with a longer life.
	Renew func(ctx context.Context) (string, error)
}

// BusService is the name of the service that runs reach the bus by.
const BusService = "bus"

// What a run finds of the bus in its environment.
const (
	EnvBusURL   = "RAVI_BUS_URL"
	EnvBusCreds = "RAVI_BUS_CREDS"
	// EnvBusPrefix begins the run's subjects: it publishes below PREFIX.up, and hears what is below PREFIX.down.
	EnvBusPrefix = "RAVI_BUS_PREFIX"
)

const (
	// busCreds is the file of the credential inside: of the user's, in a folder in which only root can put another in its place.
	busCreds     = "/run/ravi/bus/creds"
	busSlide     = 10 * time.Minute
	mostBusTold  = 20
	busCredsName = "the run's credential for the bus"
)

// busOptions have the run's bus be a service of its sandboxes.
func (s *state) busOptions() []sandbox.Option {
	if s.Bus == nil {
		return nil
	}
	for _, secret := range s.Bus.Secrets {
		s.Redact.Add(redact.Pair{Secret: secret, Instead: "[" + busCredsName + "]", Name: busCredsName})
	}
	return []sandbox.Option{sandbox.WithService(BusService, s.serveBus())}
}

// serveBus serves connections of the sandbox. It connects as often as it likes, and the file of events does not grow by that.
func (s *state) serveBus() sandbox.Service {
	var told atomic.Int64
	return func(ctx context.Context, conn net.Conn) {
		if err := s.Bus.Serve(ctx, conn); err != nil && ctx.Err() == nil && told.Add(1) <= mostBusTold {
			s.dir.event("bus_not_reached", map[string]any{"error": err.Error()})
		}
	}
}

// giveBus lays the credential into the sandbox, and anew before it ends, until stop.
func (s *state) giveBus(ctx context.Context) (stop func(), err error) {
	if s.Bus == nil {
		return func() {}, nil
	}
	if s.sb.Backend() == sandbox.BackendHost {
		s.note("on the host there is no bus for the run")
		s.Bus = nil
		return func() {}, nil
	}
	if err := s.layBusCreds(ctx, s.Bus.Credential); err != nil {
		return nil, fmt.Errorf("laying the credential for the bus into the sandbox: %w", err)
	}
	slide := begin(context.WithoutCancel(ctx), busSlide, func(ctx context.Context) {
		text, err := s.Bus.Renew(ctx)
		if err == nil {
			err = s.layBusCreds(ctx, text)
		}
		if err != nil && ctx.Err() == nil {
			s.dir.event("bus_credential_not_extended", map[string]any{"error": err.Error()})
		}
	})
	return slide.end, nil
}

// layBusCreds replaces the file as a whole: whoever connects anew reads it.
func (s *state) layBusCreds(ctx context.Context, text string) error {
	const script = `umask 077 && mkdir -p -m 755 "${1%/*}" && cat >"$1.new" && chown "$2" "$1.new" && mv "$1.new" "$1"`
	res, err := s.sb.Exec(ctx, sandbox.Cmd{Args: []string{"/bin/sh", "-c", script, "sh", busCreds, s.sb.User()}, User: "root", GuestDir: "/", Stdin: strings.NewReader(text)})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("status %d: %s", res.ExitCode, bytes.TrimSpace([]byte(res.Text(500))))
	}
	return err
}

// busEnv is what the command finds of the bus in its environment.
func (s *state) busEnv() map[string]string {
	if s.Bus == nil {
		return nil
	}
	return map[string]string{EnvBusURL: "nats://" + BusService + ".ravi.internal:4222", EnvBusCreds: busCreds, EnvBusPrefix: "run." + s.task.ID}
}
