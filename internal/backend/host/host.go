// Package host runs commands on the host itself, as the user who asks. It is no
// sandbox in the sense of the word: nothing is isolated and nothing is bounded,
// and every one of them says so. One that is sealed hides Ravi from its commands,
// so that they are not taken for the operator, and nothing more, unless only the
// workspace is to be seen: then the files of the host's users are hidden as well.
//
// It is for what needs the host and is trusted, and for machines where nothing
// else works. It must be asked for by name; no other backend falls back to it.
// The wires are those of every sandbox, so that all above works the same: the
// guest agent is started by ravi-keeper (package maker) and reached through its
// keeper. Every process carries a mark and descends from the keeper, by which
// all of them are found and ended. The package writes only beneath the
// sandbox's directory.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"ravi/internal/backend"
	"ravi/internal/backend/host/maker"
	"ravi/internal/keeper"
	"ravi/internal/programs"
)

// Names within a sandbox's directory.
const (
	WorkspaceDir = "workspace" // where commands work when no workspace is given
	tmpDir       = "tmp"       // the guest agent's own
)

// The range of user ids for relays, above those of the sandboxes of gVisor.
const (
	relayFirst = 2_143_000_000
	relayCount = 4_000_000
)

// Backend is the host backend.
type Backend struct{}

var _ backend.Backend = Backend{}

// Name is "host".
func (Backend) Name() string { return "host" }

// Create begins to start the guest agent.
func (Backend) Create(ctx context.Context, s backend.Spec) (backend.Instance, error) {
	if err := check(s); err != nil {
		return nil, err
	}
	progs, err := programs.Find(ctx, s.Home)
	if err != nil {
		return nil, err
	}
	env, withheld := Environment(os.Environ())
	guest := maker.Request{
		Guest: progs.Guest, Name: keeper.GuestName(s.ID),
		Env: []string{
			"PATH=" + env["PATH"],
			"TMPDIR=" + filepath.Join(s.Dir, tmpDir),
			keeper.MarkName + "=" + s.ID,
		},
		Dirs: []string{filepath.Join(s.Dir, tmpDir), filepath.Join(s.Dir, WorkspaceDir)},
	}
	if s.Sealed {
		if err := seal(s, env["PATH"], &guest); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("preparing the sandbox: %w", err)
	}
	b, err := json.Marshal(guest)
	if err != nil {
		return nil, err
	}
	plan := keeper.Plan{
		ID: s.ID, Dir: s.Dir,
		Relay: progs.Relay, Maker: progs.Keeper, MakerArgs: []string{"ravi-keeper", maker.Mode}, Request: b,
		KeepMounts: true, Stays: true, SameProcesses: true, Owner: s.Owner,
	}
	if os.Geteuid() == 0 {
		plan.RelayUID = relayID(s.ID)
		plan.RelayGID = plan.RelayUID
	}
	if s.Sealed {
		return startSealed(progs.Keeper, plan, guest.Seal.Cgroup, s.WorkspaceOnly, withheld)
	}
	h, err := keeper.Start(progs.Keeper, plan, nil)
	if err != nil {
		return nil, err
	}
	return &instance{Handle: h, notes: notes(withheld)}, nil
}

// Attached is the instance of a sandbox that was made before.
func Attached(h *keeper.Handle) backend.Instance { return &instance{Handle: h} }

// check refuses what would have to be silently left undone.
func check(s backend.Spec) error {
	if s.Image != "host" {
		return fmt.Errorf("%w: the host backend has no images, so not %q either", backend.ErrUnsupported, s.Image)
	}
	if s.Checkpoint != "" {
		return fmt.Errorf("%w: the host backend has no checkpoints", backend.ErrUnsupported)
	}
	for _, m := range s.Mounts {
		guest, err := filepath.EvalSymlinks(m.Guest)
		switch {
		case err != nil || guest != m.Host:
			return fmt.Errorf("%w: the host backend cannot move folders: %s stays where it is, and cannot be seen at %s", backend.ErrUnsupported, m.Host, m.Guest)
		case m.Overlay:
			return fmt.Errorf("%w: the host backend cannot keep what is written from %s", backend.ErrUnsupported, m.Host)
		case m.ReadOnly && !s.Sealed:
			return fmt.Errorf("%w: the host backend cannot make %s read-only", backend.ErrUnsupported, m.Host)
		}
	}
	if s.WorkspaceOnly && !s.Sealed {
		return fmt.Errorf("%w: on the host only a sealed sandbox sees its workspace only", backend.ErrUnsupported)
	}
	return nil
}

func relayID(id string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(id))
	return relayFirst + h.Sum32()%relayCount
}

// notes are what the user must know.
func notes(withheld []string) []string {
	out := []string{
		"commands run on this host as " + userName() + ", with no isolation: they can read and change what " + userName() + " can, reach the network, and to Ravi are the operator",
		"limits on processors, memory and disk are not enforced on the host",
	}
	return append(out, withheldNote(withheld)...)
}

func withheldNote(withheld []string) []string {
	if len(withheld) == 0 {
		return nil
	}
	return []string{strings.Join(withheld, ", ") + " is not passed on, since it holds a credential"}
}

// userName is the caller's name, or number where that has none.
func userName() string {
	id := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "user " + id
}

// User is the caller in terms of the guest agent. A number always has a user.
func User() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return strconv.Itoa(os.Geteuid())
}

// ErrNotRoot says that commands were to run as another user.
var ErrNotRoot = errors.New("only root can run commands on the host as another user")

// CheckUser refuses a user that commands cannot run as.
func CheckUser(name string) error {
	if os.Geteuid() == 0 || name == "" || name == User() {
		return nil
	}
	if u, err := user.Lookup(name); err == nil && u.Uid == User() {
		return nil
	} else if _, number := strconv.Atoi(name); err != nil && number != nil {
		return nil // the guest agent says that there is no such user
	}
	return fmt.Errorf("%w: this is %s, not %s", ErrNotRoot, userName(), name)
}

// instance is a keeper's handle, less what cannot be done on the host.
type instance struct {
	*keeper.Handle
	notes  []string
	sealed bool
}

var _ backend.Instance = (*instance)(nil)

// Ready waits until the guest agent is started.
func (i *instance) Ready(ctx context.Context) ([]string, error) {
	more, err := i.Handle.Ready(ctx)
	var f *keeper.Failure
	if i.sealed && errors.As(err, &f) {
		return nil, fmt.Errorf("%w: the host's commands cannot be kept apart from Ravi here: %w", backend.ErrUnavailable, err)
	}
	if err != nil {
		return nil, err
	}
	return append(i.notes, more...), nil
}

var errNoFreezing = fmt.Errorf("%w: processes on the host can be neither frozen nor saved", backend.ErrUnsupported)

// Pause is not possible: a stopped process is not a frozen one, since its
// parent sees it stop.
func (i *instance) Pause(context.Context) error { return errNoFreezing }

// Resume is not possible.
func (i *instance) Resume(context.Context) error { return errNoFreezing }

// Checkpoint is not possible.
func (i *instance) Checkpoint(context.Context, string) error { return errNoFreezing }
