// Package backend says what a way to make sandboxes must offer. The ways
// themselves are the packages beneath. A backend knows nothing of runs, keys
// or the bus; it must not read configuration.
package backend

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"ravi/internal/keeper"
	"ravi/internal/network"
)

// Spec describes one sandbox to a backend. All paths are absolute and of the
// host, unless said otherwise.
type Spec struct {
	// ID names the sandbox: lower-case letters and digits.
	ID string
	// Dir is the sandbox's own directory. The backend makes it, closed to
	// others, just before what is made in it; it is removed with the sandbox.
	// The directory above exists.
	Dir string
	// Home is Ravi's home, for what sandboxes share.
	Home  string
	Image string

	CPUs      float64
	Memory    int64 // bytes
	Disk      int64 // bytes of files that the sandbox may write
	Processes int64 // host threads

	Mounts []Mount
	// Network is what its network may do (network.Config, as JSON); nil: it has
	// no network.
	Network json.RawMessage
	// ProxyAuthFile holds the credentials for an upstream proxy of Network; empty:
	// there are none.
	ProxyAuthFile string
	// RootsFile holds the certificates that servers may lead to, in place of the
	// host's own; empty: those.
	RootsFile string
	// Owner is what another owner must know; it is laid into Dir, for those who
	// have that.
	Owner []byte
	// Sealed has the host backend hide Ravi from what runs there, or fail with
	// ErrUnavailable. The others always do.
	Sealed bool
	// WorkspaceOnly has nothing but the workspace, and folders of the sandbox's own,
	// be writable in there, for nobody; on the host backend, which is Sealed then,
	// the files of the host's users are not seen either. There are no mounts but the
	// workspace and read-only ones.
	WorkspaceOnly bool
	// Checkpoint is a directory to restore the sandbox from; empty: start anew.
	Checkpoint string
}

// Mount is a file or directory of the host that the sandbox sees.
type Mount struct {
	Host, Guest string
	ReadOnly    bool
	// Overlay keeps what the guest writes in the sandbox.
	Overlay bool
	// Own shows the files of the host directory's owner as the guest user's,
	// and what that user makes as the owner's.
	Own bool
	// Real says that Host has no symbolic link in it. If it has one when the sandbox is made, somebody put it there
	// since the path was checked, and it is refused.
	Real bool
	// Copy says that what lies there may be copied to where the sandbox is: it is of Ravi's own making, the guest writes
	// nothing to it, and nobody changes it while the sandbox lives. Keep says besides that it is worth to be kept there.
	Copy, Keep bool
}

// Instance is one sandbox. Its methods may be called by several goroutines.
type Instance interface {
	// Ready waits until the sandbox is made, and returns what the user should
	// be told once.
	Ready(ctx context.Context) ([]string, error)
	// Dial connects to what serves the guest agent's protocol (guestapi).
	Dial(ctx context.Context) (net.Conn, error)
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Checkpoint(ctx context.Context, dir string) error
	Stats(ctx context.Context) (keeper.Stats, error)
	// DialEvents connects to what tells of the network's decisions
	// (network.Message, a line of JSON each).
	DialEvents(ctx context.Context) (net.Conn, error)
	// SetPolicy replaces what the network may do.
	SetPolicy(ctx context.Context, policy json.RawMessage) error
	// Ended is closed when the sandbox and all that was made for it is gone;
	// End then says why.
	Ended() <-chan struct{}
	End() keeper.Reply
	// Close ends the sandbox, from any state, and waits until it is gone.
	Close(ctx context.Context) error
	// SetGrace has the sandbox outlive its owner, which this must be. Until then
	// it ends with that.
	SetGrace(ctx context.Context, grace time.Duration) error
	// Detach lets go of the sandbox, which lives on for its grace.
	Detach()
	// PID is the process on the host that stands for the sandbox.
	PID() int
}

var _ Instance = (*keeper.Handle)(nil)

// Visited is an Instance that brings the connections to services itself, since they cannot come as descriptors on a
// connection of DialEvents.
type Visited interface {
	// Visits has them come from now on. The function waits for the next one, until ctx or the sandbox ends.
	Visits(ctx context.Context) (next func(context.Context) (network.Visit, net.Conn, error), err error)
}

// Laned is an Instance that may have ways of their own to the input and output of single commands, as descriptors.
type Laned interface {
	// Lane takes one, which serves one command; keeper.ErrNoLane, with the reason, if there is none left.
	Lane(ctx context.Context) (keeper.Lane, error)
}

var _ Laned = (*keeper.Handle)(nil)

// Elsewhere is what a Backend has besides if its sandboxes are on another machine: no path of this one means anything to
// them, no other process can take hold of one, and they end with the process that made them.
type Elsewhere interface{ Elsewhere() }

// Backend makes sandboxes.
type Backend interface {
	Name() string
	// Create begins to make a sandbox; Ready says when it is made.
	Create(ctx context.Context, spec Spec) (Instance, error)
}

// ErrUnavailable says that a backend cannot work here.
var ErrUnavailable = errors.New("backend not available")

// ErrUnsupported says that a backend cannot do this.
var ErrUnsupported = errors.New("not supported by this backend")
