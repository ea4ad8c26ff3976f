package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"ravi/internal/strictjson"
)

// Names of backends.
const (
	BackendAuto    = "auto"    // the best that there is: gvisor
	BackendGVisor  = "gvisor"  // the kernel that is built in
	BackendHost    = "host"    // no isolation at all
	BackendNone    = "none"    // the same as host
	BackendMicroVM = "microvm" // to come, as are the following
	BackendBoxlite = "boxlite"
	BackendDocker  = "docker"
	BackendE2B     = "e2b"
)

// How the workspace is seen in the sandbox.
const (
	// WorkspaceShared: what the guest writes is written on the host.
	WorkspaceShared = "shared"
	// WorkspaceOverlay: what the guest writes stays in the sandbox.
	WorkspaceOverlay = "overlay"
)

// Config says what a sandbox is to be. The zero Config is not valid: begin
// with Default. As JSON it is the block tools.sandbox of config.json; keys are
// snake_case or camelCase, unknown ones are refused.
type Config struct {
	Backend string `json:"backend"`
	// Image is the root file system; "host" is the host's own tools.
	Image string `json:"image"`
	// CPUs is how many processors' time the sandbox gets.
	CPUs float64 `json:"cpus"`
	// MemoryMiB is how much memory it gets. What its kernel itself needs comes
	// on top, bounded: 64 MiB and a thirty-second part.
	MemoryMiB int `json:"memory_mib"`
	// DiskSizeGB bounds what it may write outside shared folders; nil means 4.
	DiskSizeGB *int     `json:"disk_size_gb"`
	AllowNet   AllowNet `json:"allow_net"`
	// Workspace is WorkspaceShared or WorkspaceOverlay.
	Workspace    string   `json:"workspace"`
	ExtraVolumes []Volume `json:"extra_volumes"`

	// DefaultTimeout is for commands that name none, in seconds.
	DefaultTimeout int `json:"default_timeout"`
	// VerifyTimeout is how long a new sandbox may take to answer, in seconds.
	VerifyTimeout int `json:"verify_timeout"`
	// CreateTimeout is how long making it may take, in seconds.
	CreateTimeout int   `json:"create_timeout"`
	Debug         Debug `json:"debug"`
}

// Debug configures the debug socket of a program that embeds this package: on it
// `ravi sandbox ls|exec|shell --socket PATH` see the sandboxes that the program has
// opened with it, and run commands in them. Who connects is the same user, outside
// of any sandbox, and nobody else. It is there while such a sandbox is open. Each
// program needs a socket of its own: Open fails with ErrInUse where there is one.
type Debug struct {
	Enabled bool `json:"enabled"`
	// Socket is its path; relative means beneath Ravi's home. Its folder must be
	// closed to others, and is made if there is none.
	Socket string `json:"socket"`
	// MaxMessageBytes bounds each request, and each line of an answer.
	MaxMessageBytes int `json:"max_message_bytes"`
}

// Default is the configuration that applies where none is given.
func Default() Config {
	return Config{
		Backend:        BackendAuto,
		Image:          "host",
		CPUs:           2,
		MemoryMiB:      2048,
		Workspace:      WorkspaceShared,
		DefaultTimeout: 120,
		VerifyTimeout:  30,
		CreateTimeout:  300,
		Debug:          Debug{Socket: "sandbox/debug.sock", MaxMessageBytes: 1 << 20},
	}
}

// UnmarshalJSON reads a configuration; what it does not name has its default.
// The result is valid.
func (c *Config) UnmarshalJSON(b []byte) error {
	type plain Config
	p := plain(Default())
	if err := strictjson.Decode(b, &p); err != nil {
		return err
	}
	fresh := Config(p)
	if err := fresh.Validate(); err != nil {
		return err
	}
	*c = fresh
	return nil
}

// AllowNet says what the sandbox may reach on the network: nothing (the zero
// value), the public internet (All), or what the rules name. A rule is a word,
// such as "pypi.org" or "db.example.com:5432", or an object as JSON text; see
// docs/network.md.
type AllowNet struct {
	All   bool
	Rules []string
}

// UnmarshalJSON reads false, true or a list of rules.
func (a *AllowNet) UnmarshalJSON(b []byte) error {
	var all bool
	if err := json.Unmarshal(b, &all); err == nil {
		*a = AllowNet{All: all}
		return nil
	}
	var rules []json.RawMessage
	if err := json.Unmarshal(b, &rules); err != nil {
		return errors.New("allow_net is false, true or a list of names such as [\"pypi.org\"]")
	}
	if len(rules) == 0 {
		return errEmptyRules
	}
	var texts []string
	for _, raw := range rules {
		text := string(raw) // an object stays as it is
		if text != "" && text[0] == '"' {
			if err := json.Unmarshal(raw, &text); err != nil {
				return err
			}
		}
		if _, err := parseRule(text); err != nil {
			return fmt.Errorf("allow_net: %w", err)
		}
		texts = append(texts, text)
	}
	*a = AllowNet{Rules: texts}
	return nil
}

var errEmptyRules = errors.New("allow_net: [] is ambiguous: use false for no network, or true for the public internet")

// MarshalJSON writes what UnmarshalJSON reads.
func (a AllowNet) MarshalJSON() ([]byte, error) {
	if len(a.Rules) > 0 {
		var rules []json.RawMessage
		for _, text := range a.Rules {
			raw := json.RawMessage(text)
			if !strings.HasPrefix(text, "{") {
				raw, _ = json.Marshal(text)
			}
			rules = append(rules, raw)
		}
		return json.Marshal(rules)
	}
	return json.Marshal(a.All)
}

// Volume is a file or folder of the host that is seen in the sandbox.
type Volume struct {
	Host, Guest string
	ReadOnly    bool
}

// UnmarshalJSON reads [host, guest, "ro"|"rw"].
func (v *Volume) UnmarshalJSON(b []byte) error {
	var parts []string
	if err := json.Unmarshal(b, &parts); err != nil || len(parts) != 3 || (parts[2] != "ro" && parts[2] != "rw") {
		return fmt.Errorf("invalid volume %s: it is [host path, guest path, 'ro'|'rw']", strings.TrimSpace(string(b)))
	}
	*v = Volume{Host: parts[0], Guest: parts[1], ReadOnly: parts[2] == "ro"}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (v Volume) MarshalJSON() ([]byte, error) {
	return json.Marshal([]string{v.Host, v.Guest, v.Mode()})
}

// Mode is "ro" or "rw".
func (v Volume) Mode() string {
	if v.ReadOnly {
		return "ro"
	}
	return "rw"
}

// Bounds on what can be asked for; beyond them something is mistyped.
const (
	minMemoryMiB = 64
	maxMemoryMiB = 1 << 20
	maxCPUs      = 1024
	maxDiskGB    = 1 << 14
	maxTimeout   = 7 * 24 * 3600 // seconds
)

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	switch c.Backend {
	case BackendAuto, BackendGVisor, BackendHost, BackendNone, BackendMicroVM, BackendBoxlite, BackendDocker, BackendE2B:
	default:
		return fmt.Errorf("backend: unknown backend %q: it is auto, gvisor, host, none, microvm, boxlite, docker or e2b", c.Backend)
	}
	if c.Image == "" {
		return errors.New(`image: is empty: use "host" for the host's own tools`)
	}
	if !(c.CPUs > 0 && c.CPUs <= maxCPUs) || math.IsNaN(c.CPUs) {
		return fmt.Errorf("cpus: %v is not between 0 (exclusive) and %d", c.CPUs, maxCPUs)
	}
	if c.MemoryMiB < minMemoryMiB || c.MemoryMiB > maxMemoryMiB {
		return fmt.Errorf("memory_mib: %d is not between %d and %d", c.MemoryMiB, minMemoryMiB, maxMemoryMiB)
	}
	if c.DiskSizeGB != nil && (*c.DiskSizeGB < 1 || *c.DiskSizeGB > maxDiskGB) {
		return fmt.Errorf("disk_size_gb: %d is not between 1 and %d", *c.DiskSizeGB, maxDiskGB)
	}
	if c.AllowNet.Rules != nil && len(c.AllowNet.Rules) == 0 {
		return errEmptyRules
	}
	if c.Workspace != WorkspaceShared && c.Workspace != WorkspaceOverlay {
		return fmt.Errorf("workspace: %q is neither %s nor %s", c.Workspace, WorkspaceShared, WorkspaceOverlay)
	}
	for _, t := range []struct {
		name  string
		value int
		least int
	}{
		{"default_timeout", c.DefaultTimeout, 0}, {"verify_timeout", c.VerifyTimeout, 1}, {"create_timeout", c.CreateTimeout, 1},
	} {
		if t.value < t.least || t.value > maxTimeout {
			return fmt.Errorf("%s: %d s is not between %d and %d", t.name, t.value, t.least, maxTimeout)
		}
	}
	if c.Debug.MaxMessageBytes <= 0 {
		return errors.New("debug.max_message_bytes: must be > 0")
	}
	seen := map[string]bool{}
	for i, v := range c.ExtraVolumes {
		if err := v.validate(); err != nil {
			return fmt.Errorf("extra_volumes[%d]: %w", i, err)
		}
		if guest := filepath.Clean(v.Guest); seen[guest] {
			return fmt.Errorf("extra_volumes[%d]: there are two volumes at %s", i, guest)
		} else {
			seen[guest] = true
		}
	}
	return nil
}

// reserved are guest paths that a volume must neither be, hold, nor lie in:
// the workspace, and what the sandbox itself is made of.
var reserved = []string{guestWorkspace, "/proc", "/sys", "/dev", "/.ravi", "/ravi", "/etc", "/bin", "/sbin", "/lib", "/lib64"}

func (v Volume) validate() error {
	switch {
	case !filepath.IsAbs(v.Host):
		return fmt.Errorf("volume host path must be absolute: %s", v.Host)
	case !filepath.IsAbs(v.Guest):
		return fmt.Errorf("volume guest path must be absolute: %s", v.Guest)
	case strings.ContainsRune(v.Host+v.Guest, 0):
		return errors.New("volume path holds a NUL byte")
	}
	guest := filepath.Clean(v.Guest)
	if guest == "/" || guest == "/usr" {
		return fmt.Errorf("volume guest path %s would hide the sandbox's own files", v.Guest)
	}
	for _, r := range reserved {
		if overlaps(guest, r) {
			return fmt.Errorf("volume guest path %s would hide %s", v.Guest, r)
		}
	}
	return nil
}

// overlaps says whether one path is, or lies in, the other.
func overlaps(a, b string) bool { return within(a, b) || within(b, a) }

// within says whether path is dir or lies in it. Both are clean and absolute.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
