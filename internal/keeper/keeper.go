// Package keeper owns the wires and the end of one sandbox.
//
// A keeper is two small processes, one pair a sandbox:
//
//   - The supervisor (Supervise, the program ravi-keeper) has the rights that
//     making and removing a sandbox needs. It reads what its owner sends over
//     the control socket, starts the maker that builds the sandbox, and ends
//     and removes everything when the owner is gone. It never reads a byte that
//     comes from inside the sandbox: of a lane, which leads from one process in
//     there to the owner, it only hands on the end.
//   - The relay (package relay, the program ravi-relay) has no rights at all:
//     its own user, an empty root directory, a short list of system calls, a
//     bound on memory. It holds the link to the guest agent, parses what the
//     guest sends, and passes decoded and bounded messages on to the owner over
//     link.sock.
//
// The relay is PID 1 of a process namespace in which everything that belongs
// to the sandbox lives, so the end of the relay, for whatever reason, is the
// end of the sandbox, and nothing can be left running.
//
// A sandbox on the host itself (Plan.SameProcesses) has no such namespace. Its
// supervisor then finds and ends its processes one by one.
//
// The package may start and end processes, and remove the control groups and
// the directory that the plan names. It must not import a backend, read
// configuration or hold secrets of any run but its own. Nor may it import HTTP
// or the guest's protocol: the supervisor starts before anything else of a
// sandbox can, so it is small, and knows no format that a guest writes.
package keeper

import (
	"encoding/json"
	"errors"
	"time"
)

// Names within a sandbox's directory.
const (
	ControlSocket = "control.sock" // the owner talks to the supervisor
	LinkSocket    = "link.sock"    // the owner talks to the guest, through the relay
	NetSocket     = "net.sock"     // the network gateway tells what it decides
	MakerLog      = "maker.log"    // what the maker said on its standard error
	PlanFile      = "plan.json"    // the plan, for whoever must clean up later
	OwnerFile     = "owner.json"   // what another owner must know (Plan.Owner)
)

// Plan is all that a supervisor is told: how to make the sandbox, and what to
// remove in the end. The owner writes it; nothing in it comes from a guest.
type Plan struct {
	ID string `json:"id"`
	// Dir is the sandbox's own directory (absolute, mode 0700, exists). It is
	// removed with the sandbox.
	Dir string `json:"dir"`
	// Maker is the program that builds the sandbox, with its arguments; it is
	// started inside the sandbox's process namespace and, unless KeepMounts is
	// set, in a mount namespace of its own.
	Maker     string   `json:"maker"`
	MakerArgs []string `json:"maker_args"`
	// Relay is the program ravi-relay.
	Relay      string `json:"relay"`
	KeepMounts bool   `json:"keep_mounts,omitempty"`
	// Stays says that the maker is the sandbox: it does not end once it has
	// reported that all is made.
	Stays bool `json:"stays,omitempty"`
	// SameProcesses says that the sandbox is among the host's own processes.
	// The maker must see to it that each of its processes carries MarkName and
	// that its guest agent is called GuestName.
	SameProcesses bool `json:"same_processes,omitempty"`
	// Request is handed to the maker as it is.
	Request json.RawMessage `json:"request"`
	// Cgroup is the path below each cgroup hierarchy's root that the maker
	// puts the sandbox in, such as "/ravi/<id>"; empty means none.
	Cgroup string `json:"cgroup,omitempty"`
	// RelayUID and RelayGID are the identity of the relay; zero means that the
	// supervisor cannot change identity, and the relay keeps its own.
	RelayUID uint32 `json:"relay_uid"`
	RelayGID uint32 `json:"relay_gid"`
	// LinkToken divides the link into sessions (link.Sessions); Resume says
	// that the guest was restored and remembers a session.
	LinkToken string `json:"link_token,omitempty"`
	Resume    bool   `json:"resume,omitempty"`
	// Lanes is how many lanes (link.NewLane) the guest is born with. One that
	// was restored must have as many as it had, and they are of no use.
	Lanes int `json:"lanes,omitempty"`
	// Network is the sandbox's network; nil: it has none.
	Network *Network `json:"network,omitempty"`
	// Grace is how long a sandbox outlives its owner; within it another owner
	// may attach. Zero: it ends with its owner.
	Grace time.Duration `json:"grace"`
	// Owner is what whoever attaches must know. It lies beside the plan, in
	// OwnerFile; the supervisor never sees it.
	Owner []byte `json:"-"`
}

// Request is one line that an owner sends to the supervisor.
type Request struct {
	// Op is one of attach, watch, pause, resume, checkpoint, stats, network,
	// lane, end. Attach makes the one who asks the owner, if there is none; watch only
	// has it told what becomes of the sandbox.
	Op string `json:"op"`
	// Dir is where a checkpoint goes.
	Dir string `json:"dir,omitempty"`
	// Policy replaces that of the network.
	Policy json.RawMessage `json:"policy,omitempty"`
	// Reason is why the sandbox is ended.
	Reason string `json:"reason,omitempty"`
	// Grace replaces the plan's grace, when attaching. An owner may attach
	// once more for that.
	Grace *time.Duration `json:"grace,omitempty"`
}

// Reply is one line from the supervisor: the answer to a request, or one of
// the events wired (calls to the guest are taken, though it may not be there
// yet), ready, failed and ended.
type Reply struct {
	Event string `json:"event,omitempty"`
	Op    string `json:"op,omitempty"`
	// Error is why the request, or the making of the sandbox, failed.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// Reason says why the sandbox ended; see the Reason constants. Detail is
	// what the keeper's processes had to say, for those who look for a fault.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	Stats  *Stats `json:"stats,omitempty"`
	// Notes are things about this sandbox that the owner should be told once.
	Notes []string `json:"notes,omitempty"`
	// Lane is the number of the lane whose two descriptors come with this answer.
	Lane uint32 `json:"lane,omitempty"`
	// RelayPID and RelayStart are which process the relay is, with the event
	// wired and the answer to attach: an owner whose supervisor is killed must
	// end it.
	RelayPID   int    `json:"relay_pid,omitempty"`
	RelayStart uint64 `json:"relay_start,omitempty"`
}

// Why a sandbox ended.
const (
	ReasonClosed    = "closed"       // its owner asked for it
	ReasonOwnerGone = "owner_gone"   // its owner vanished
	ReasonOOM       = "oom"          // the kernel killed it at its memory limit
	ReasonDied      = "sandbox_died" // its kernel or its PID 1 ended
	ReasonViolation = "violation"    // the guest broke the protocol of the link
	ReasonRelay     = "keeper_died"  // the relay ended by itself
	ReasonNetwork   = "network_died" // what serves its network ended by itself
	ReasonFailed    = "not_made"     // it was never made

	// ReasonRunner is of a sandbox on another machine: the runner that had it, or the way there, is gone.
	ReasonRunner = "runner_gone"
	// ReasonDetached is of a hold that was let go of: the sandbox may live on.
	ReasonDetached = "detached"
)

// reasonOwned is of a Reply that refuses to attach.
const reasonOwned = "owned"

// Stats is what the host sees of a sandbox.
type Stats struct {
	// MemoryBytes is charged to the sandbox's control group; 0 without one.
	MemoryBytes int64 `json:"memory_bytes"`
	// MemoryPeakBytes is the most that was ever charged.
	MemoryPeakBytes int64 `json:"memory_peak_bytes"`
	// CPUTime is the processor time used.
	CPUTime time.Duration `json:"cpu_time"`
	// Processes is how many host processes belong to it.
	Processes int `json:"processes"`
	// OOMKills is how often the kernel ended something at the memory limit.
	OOMKills int64 `json:"oom_kills"`
}

// MakerReply is what the maker writes to its descriptor 3 when it is done.
type MakerReply struct {
	Error string   `json:"error,omitempty"`
	Hint  string   `json:"hint,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// MakerRequest is what the maker reads from its descriptor 3. When Op is
// "make", descriptors 4 and 5 are the guest's end of the link, to read and to
// write, and 6 is the network namespace of a sandbox that has one. The ends of
// the plan's lanes follow.
type MakerRequest struct {
	// Op is one of make, pause, resume, checkpoint.
	Op      string          `json:"op"`
	Dir     string          `json:"dir,omitempty"`
	Request json.RawMessage `json:"request"`
}

// How a relay ends, as its exit status. With another one it was killed, or
// found itself at a bound.
const (
	RelayLinkClosed = 0 // the guest's end of the link is gone
	RelayViolation  = 3 // the guest broke the protocol
)

// ErrGone says that the supervisor, and with it the sandbox, is not there.
var ErrGone = errors.New("the sandbox's keeper is gone")

// ErrOwned says that a sandbox cannot be taken over, since its owner lives.
var ErrOwned = errors.New("the sandbox has an owner that lives")

// maxLine bounds one line on the control socket and from the maker.
const maxLine = 1 << 20
