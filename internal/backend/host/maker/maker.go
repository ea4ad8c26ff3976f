// Package maker turns a process of the keeper's into the guest agent of a
// sandbox on the host itself.
//
// It runs in ravi-keeper, started by the supervisor. It reads one request,
// which only Ravi writes, and replaces itself with the guest agent. For a sealed
// sandbox it makes the namespaces that this one lives in, and stays beside it to
// tell its end. It must stay small, and must not know of anything but that
// request.
package maker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"ravi/internal/keeper"
)

// Mode is the argument that makes ravi-keeper a maker.
const Mode = "host"

// SealHint is for whoever wanted a sealed sandbox where none can be had.
const SealHint = `use the backend "gvisor"; on the host, without these namespaces, a command is the operator`

// Request is what the backend asks for.
type Request struct {
	// Guest is the guest agent's program, and Name what it is called.
	Guest string `json:"guest"`
	Name  string `json:"name"`
	// Env is its whole environment.
	Env []string `json:"env"`
	// Dirs are folders that it needs, made for the caller alone.
	Dirs []string `json:"dirs"`
	// Seal has it run in namespaces of its own; nil: among the host's processes.
	Seal *Seal `json:"seal,omitempty"`
}

// The descriptors that a maker is born with: its supervisor, and the guest's end
// of the link, which the guest agent has one number lower.
const (
	supervisorFD = 3
	linkRead     = 4
	linkWrite    = 5
)

// Run makes the sandbox. It returns only with an error.
func Run() error {
	conn := os.NewFile(supervisorFD, "supervisor")
	guest, err := prepare(conn)
	var sealed *exec.Cmd
	var reply keeper.MakerReply
	if err == nil && guest.Seal != nil {
		if sealed, err = guest.Seal.start(guest); err != nil {
			reply.Hint = SealHint
		}
	}
	if err != nil {
		reply.Error = err.Error()
	}
	if aerr := json.NewEncoder(conn).Encode(reply); err != nil || aerr != nil {
		return errors.Join(err, aerr)
	}
	if sealed != nil {
		conn.Close()
		return fmt.Errorf("the guest agent ended: %v", sealed.Wait())
	}
	// This closes the connection to the supervisor, and the copy has no mark
	// that would close it as well.
	if err := errors.Join(unix.Dup3(linkRead, linkRead-1, 0), unix.Dup3(linkWrite, linkWrite-1, 0)); err != nil {
		return fmt.Errorf("handing over the link: %w", err)
	}
	unix.CloseOnExec(linkWrite)
	err = syscall.Exec(guest.Guest, []string{guest.Name}, guest.Env)
	return fmt.Errorf("starting %s: %w", guest.Guest, err)
}

func prepare(conn *os.File) (r Request, err error) {
	var req keeper.MakerRequest
	if err := json.NewDecoder(conn).Decode(&req); err != nil {
		return r, fmt.Errorf("reading the request: %w", err)
	}
	if req.Op != "make" {
		return r, fmt.Errorf("unknown request %q", req.Op)
	}
	if err := json.Unmarshal(req.Request, &r); err != nil {
		return r, fmt.Errorf("reading the request: %w", err)
	}
	for _, d := range r.Dirs {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return r, err
		}
	}
	// Once it was said that all is well, a failure could only end the sandbox.
	if err := unix.Access(r.Guest, unix.X_OK); err != nil {
		return r, fmt.Errorf("%s cannot be executed: %w", r.Guest, err)
	}
	return r, nil
}
