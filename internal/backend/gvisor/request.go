package gvisor

// Request is what the driver asks the maker for: one sandbox, in terms of the
// host. It is written by Ravi only; nothing in it comes from a guest.
type Request struct {
	ID string `json:"id"`
	// Dir is the sandbox's own directory. Below it the maker keeps the kernel's
	// state and the storage of the overlay.
	Dir string `json:"dir"`
	// Image is the directory that the root file system begins with, and Host
	// are the directories of the host laid into it, such as /usr.
	Image string   `json:"image"`
	Host  []string `json:"host"`
	// Hidden are directories below Host that are shown empty.
	Hidden []string `json:"hidden"`
	// Guest is the guest agent's program on the host.
	Guest string `json:"guest"`
	// Env is the guest agent's environment.
	Env []string `json:"env"`
	// Mounts are the workspace and the extra volumes.
	Mounts []Mount `json:"mounts"`

	CPUs      float64 `json:"cpus"`
	Memory    int64   `json:"memory"`    // bytes
	Overhead  int64   `json:"overhead"`  // bytes on top, for gVisor itself
	Disk      int64   `json:"disk"`      // bytes that the overlay may hold
	Processes int64   `json:"processes"` // host threads
	Cgroup    string  `json:"cgroup"`    // path below the hierarchies' roots; empty: none
	IDBase    uint32  `json:"id_base"`   // first host id of the sandbox's range
	IDCount   uint32  `json:"id_count"`  // ids in the range
	Rootless  bool    `json:"rootless"`  // the maker is root of a user namespace only
	// MayMount says that the guest agent has the right to mount, which it gives up
	// before it starts anything.
	MayMount bool `json:"may_mount,omitempty"`
	// Debug is a directory for the kernel's own logs; empty: none.
	Debug string `json:"debug,omitempty"`
	// Network says that the sandbox has a network, whose namespace the maker is
	// given as its descriptor 6.
	Network bool `json:"network,omitempty"`
	// LinkToken divides the link into sessions.
	LinkToken string `json:"link_token"`
	// Lanes is how many lanes the guest is born with. The maker is given its ends
	// as the descriptors that follow.
	Lanes int `json:"lanes,omitempty"`
	// Checkpoint is where to restore from.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// Mount is a directory or file of the host that is seen in the sandbox.
type Mount struct {
	Host     string `json:"host"`
	Guest    string `json:"guest"`
	ReadOnly bool   `json:"read_only"`
	// Overlay hides the guest's writes in the sandbox's overlay: they never
	// reach the host.
	Overlay bool `json:"overlay"`
	// OwnerUID and OwnerGID are the ids on the host that the guest's user
	// (1000) stands for on this mount.
	OwnerUID uint32 `json:"owner_uid"`
	OwnerGID uint32 `json:"owner_gid"`
	// Mapped says whether that translation is wanted; without it the mount is
	// seen by the user namespace's own rules: as nobody's, world-readable only.
	Mapped bool `json:"mapped"`
	// Real refuses a path with a symbolic link in it.
	Real bool `json:"real"`
}

// GuestUser is the uid and gid of the guest's ordinary user.
const GuestUser = 1000

// GuestPath is where the guest agent's program is seen inside.
const GuestPath = "/.ravi/guest"
