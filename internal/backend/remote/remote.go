// Package remote is a backend whose sandboxes are made on another machine, by a runner (package runner).
//
// A runner lends a sandbox and nothing else. What a sandbox is for stays at home, with the process that makes it: keys,
// leases, secrets, the repository. What goes over is what a sandbox is to be (Spec), without a path of this machine, the
// wires of the guest and of its network, and the content of folders that are shown read-only (backend.Mount.Copy).
//
// One session (Session, which package tunnel makes) is one sandbox, and ends with it. Both sides open streams of it, each
// of which begins with a line of JSON; wire.go says which there are. Neither side trusts the other: a runner that lies
// can end the sandbox or spoil what is done in it, and gets nothing but what is sent there; what it says is bounded, and
// is shown to people without control characters.
//
// The package opens no connection, and writes nothing on this machine. It knows no bus, no key and no run.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"ravi/internal/backend"
	"ravi/internal/network"
)

// Session is a connection to a runner on which both sides open streams. Its streams hold what is not read yet in a
// bounded buffer, and have the other side wait.
type Session interface {
	Open(context.Context) (net.Conn, error)
	Accept() (net.Conn, error)
	Close() error
	// Done is closed when the session is over, and Err then says why.
	Done() <-chan struct{}
	Err() error
}

// Errors of Create, besides those of package backend.
var (
	// ErrFull says that the runner has no room for the sandbox now; another one may have.
	ErrFull = errors.New("the runner has no room")
	// ErrDraining says that the runner takes no more sandboxes.
	ErrDraining = errors.New("the runner takes no more sandboxes")
	// ErrRefused says that the runner does not make such a sandbox, now or later.
	ErrRefused = errors.New("the runner refuses the sandbox")
	// ErrLost says that the runner, or the way to it, is gone.
	ErrLost = errors.New("the runner is gone")
)

// Backend makes one sandbox on a runner.
type Backend struct {
	dial func(context.Context) (Session, error)
}

var (
	_ backend.Backend   = (*Backend)(nil)
	_ backend.Elsewhere = (*Backend)(nil)
)

// New makes the one sandbox of a session, which ends with it.
func New(s Session) *Backend {
	return Dial(func(context.Context) (Session, error) { return s, nil })
}

// Dial is New for a session that is opened once the sandbox is found to be one that a runner can make. A Backend that
// makes several sandboxes calls it for each.
func Dial(dial func(context.Context) (Session, error)) *Backend { return &Backend{dial: dial} }

// Name is "gvisor": that is what a runner makes sandboxes with.
func (*Backend) Name() string { return "gvisor" }

// Elsewhere says that no path of this machine leads to the sandboxes, nor the other way round.
func (*Backend) Elsewhere() {}

// Create has the runner make a sandbox. It returns once the runner has taken it, and has what is to be seen in it.
func (b *Backend) Create(ctx context.Context, s backend.Spec) (backend.Instance, error) {
	if err := check(s); err != nil {
		return nil, err
	}
	spec, contents, err := describe(ctx, s)
	if err != nil {
		return nil, err
	}
	session, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	i, err := create(ctx, session, spec, contents)
	if err != nil {
		session.Close()
		return nil, err
	}
	return i, nil
}

// check refuses what would need this machine.
func check(s backend.Spec) error {
	no := func(format string, args ...any) error {
		return fmt.Errorf("%w: the sandbox is made on another machine, and "+format, append([]any{backend.ErrUnsupported}, args...)...)
	}
	switch {
	case s.Checkpoint != "":
		return no("the checkpoint %s is on this one", s.Checkpoint)
	case s.ProxyAuthFile != "":
		return no("the proxy's credentials stay on this one (network.proxy_auth_file)")
	case s.Sealed:
		return no("only a sandbox of the host is sealed")
	}
	for _, m := range s.Mounts {
		if !m.Copy {
			return no("%s is a folder of this one; what is copied there is read-only, and shown by Ravi itself", m.Host)
		}
	}
	if s.Network == nil {
		return nil
	}
	var c network.Config
	if err := json.Unmarshal(s.Network, &c); err != nil {
		return fmt.Errorf("the network's policy: %w", err)
	}
	if c.Proxy != nil {
		return no("network.proxy is a way out of this one")
	}
	return nil
}

// describe is what the runner is told of a sandbox, and the folders that it may ask the content of.
func describe(ctx context.Context, s backend.Spec) (Spec, map[string]string, error) {
	spec := Spec{
		Version: Version, ID: s.ID, Image: s.Image, CPUs: s.CPUs, Memory: s.Memory, Disk: s.Disk, Processes: s.Processes,
		Network: s.Network, WorkspaceOnly: s.WorkspaceOnly,
	}
	contents := map[string]string{}
	for _, m := range s.Mounts {
		sum, size, err := measure(ctx, m.Host)
		if err != nil {
			return spec, nil, fmt.Errorf("reading %s for the runner: %w", m.Host, err)
		}
		contents[sum] = m.Host
		spec.Contents = append(spec.Contents, Content{Guest: m.Guest, Digest: sum, Size: size, Overlay: m.Overlay, Keep: m.Keep})
	}
	return spec, contents, nil
}

// contentTime bounds how long one folder may be on its way.
const contentTime = 10 * time.Minute

// create asks for the sandbox, and sends what the runner lacks.
func create(ctx context.Context, session Session, spec Spec, contents map[string]string) (*instance, error) {
	control, err := open(ctx, session, Head{Kind: KindCreate, Spec: &spec})
	if err != nil {
		return nil, err
	}
	i := newInstance(session, control)
	stop := context.AfterFunc(ctx, func() { control.Close() })
	defer stop()
	failed := func(err error) (*instance, error) {
		control.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	for {
		r, err := i.next()
		switch {
		case err != nil:
			return failed(lost(session, err))
		case r.Error != "":
			return failed(r.failure())
		case r.Event == EventCreated:
			if !stop() {
				return failed(context.Cause(ctx))
			}
			i.begin()
			return i, nil
		case r.Event != EventNeed:
			return failed(errProtocol)
		}
		if len(r.Need) > len(contents) {
			return failed(errProtocol)
		}
		for _, sum := range r.Need {
			dir, ours := contents[sum]
			if !ours {
				return failed(errProtocol)
			}
			delete(contents, sum) // each is asked for once
			if err := sendContent(ctx, session, sum, dir); err != nil {
				return failed(err)
			}
		}
	}
}

// sendContent sends a folder, and waits until the runner has it.
func sendContent(ctx context.Context, session Session, sum, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, contentTime, fmt.Errorf("%s did not get to the runner within %v", dir, contentTime))
	defer cancel()
	c, err := open(ctx, session, Head{Kind: KindContent, Digest: sum})
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	err = pack(ctx, c, dir)
	var r Reply
	if err == nil {
		r, err = readReply(c)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("sending %s to the runner: %w", dir, lost(session, err))
	case r.Error != "":
		return fmt.Errorf("sending %s to the runner: %w", dir, r.failure())
	}
	return nil
}

// open opens a stream and says what it is for.
func open(ctx context.Context, s Session, h Head) (net.Conn, error) {
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(b) >= MaxHead {
		return nil, fmt.Errorf("what a runner is to be told has %d bytes, more than %d", len(b), MaxHead)
	}
	c, err := s.Open(ctx)
	if err != nil {
		return nil, lost(s, err)
	}
	c = Wire(c)
	deadline, ok := ctx.Deadline()
	if most := time.Now().Add(headTime); !ok || deadline.After(most) {
		deadline = most
	}
	_ = c.SetWriteDeadline(deadline)
	if _, err := c.Write(append(b, '\n')); err != nil {
		c.Close()
		return nil, lost(s, err)
	}
	_ = c.SetWriteDeadline(time.Time{})
	return c, nil
}

// lost says of an error whether it is that the session is over.
func lost(s Session, err error) error {
	select {
	case <-s.Done():
		if why := s.Err(); why != nil {
			return fmt.Errorf("%w: %w", ErrLost, why)
		}
		return ErrLost
	default:
		return err
	}
}
