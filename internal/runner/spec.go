package runner

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"ravi/internal/backend/remote"
	"ravi/internal/network"
	"ravi/sandbox"
)

// Bounds of what may be asked for.
const (
	leastMemory  = 64 << 20
	mostContents = 16
	mostPolicy   = 512 << 10 // bytes; a keeper takes no more
	mostServices = 64
	mostSeed     = 128
	mostPath     = 1024
)

var (
	sandboxID   = regexp.MustCompile(`^sbx[0-9a-z]{26}$`)
	serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
)

// hidden are places of a sandbox that no content may lie in, nor above: what it is made of.
var hidden = []string{"/proc", "/sys", "/dev", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/run", "/tmp", "/workspace"}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{remote.ErrRefused}, args...)...)
}

// check refuses what no sandbox of this runner may be, and says what its network may do.
func (r *Runner) check(s *remote.Spec) (policy json.RawMessage, err error) {
	switch {
	case s.Version != remote.Version:
		return nil, refuse("it speaks the version %d, and was told of the version %d: run the same version of ravi on both machines", remote.Version, s.Version)
	case !sandboxID.MatchString(s.ID):
		return nil, refuse("%.60q is no sandbox's id", s.ID)
	case !(s.CPUs > 0):
		return nil, refuse("%g processors are none", s.CPUs)
	case s.Memory < leastMemory || s.Memory > 1<<50:
		return nil, refuse("%d bytes of memory are not what a sandbox can have", s.Memory)
	case s.Disk <= 0 || s.Disk > r.room.capacity.DiskMiB<<20:
		return nil, refuse("a sandbox may write %d MiB here, and %d MiB were asked for", r.room.capacity.DiskMiB, s.Disk>>20)
	case s.Processes <= 0 || s.Processes > sandbox.MaxProcesses:
		return nil, refuse("%d processes are not between 1 and %d", s.Processes, sandbox.MaxProcesses)
	case len(s.Contents) > mostContents:
		return nil, refuse("%d folders are more than %d", len(s.Contents), mostContents)
	}
	for i, c := range s.Contents {
		if err := checkContent(c); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(s.Contents[:i], func(o remote.Content) bool { return overlap(o.Guest, c.Guest) }) {
			return nil, refuse("two folders lie at %s", c.Guest)
		}
	}
	if s.Network == nil {
		return nil, nil
	}
	return r.checkNetwork(s.Network)
}

func checkContent(c remote.Content) error {
	if b, err := hex.DecodeString(c.Digest); err != nil || len(b) != 32 || hex.EncodeToString(b) != c.Digest {
		return refuse("%.80q is no digest", c.Digest)
	}
	if c.Size <= 0 || c.Size > remote.MaxContent+remote.MaxEntries*2048 {
		return refuse("a folder of %d bytes is not sent", c.Size)
	}
	if len(c.Guest) > mostPath || !path.IsAbs(c.Guest) || path.Clean(c.Guest) != c.Guest || strings.ContainsRune(c.Guest, 0) {
		return refuse("%.80q is no path for a folder", c.Guest)
	}
	for _, h := range hidden {
		if overlap(c.Guest, h) {
			return refuse("a folder at %.80q would hide %s", c.Guest, h)
		}
	}
	return nil
}

// overlap says whether one path is, or lies in, the other. Both are clean and absolute.
func overlap(a, b string) bool {
	return a == b || a == "/" || b == "/" || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// checkNetwork makes of a policy that came what a keeper is told: what is known of it, and what is always denied here.
func (r *Runner) checkNetwork(raw json.RawMessage) (json.RawMessage, error) {
	var c network.Config
	if len(raw) > mostPolicy {
		return nil, refuse("a network policy of %d bytes is more than %d", len(raw), mostPolicy)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, refuse("the network's policy: %v", err)
	}
	if err := c.Floor.Validate(); err != nil {
		return nil, refuse("the network's floor: %v", err)
	}
	switch {
	case c.Proxy != nil:
		return nil, refuse("the network has a proxy, which is another machine's")
	case len(c.Services) > mostServices:
		return nil, refuse("%d services are more than %d", len(c.Services), mostServices)
	case len(c.Seed) > mostSeed:
		return nil, refuse("the network's seed is too long")
	case !c.Delegate.Valid():
		return nil, refuse("%.40q is no way to delegate connections", c.Delegate)
	}
	for _, name := range c.Services {
		if !serviceName.MatchString(name) {
			return nil, refuse("%.60q is no service's name", name)
		}
	}
	var err error
	if c.ExtraCAs, err = network.ExtraCAs(c.ExtraCAs); err != nil {
		return nil, refuse("the network's extra_cas: %v", err)
	}
	c.Floor.AlwaysDeny = append(slices.Clone(r.deny), c.Floor.AlwaysDeny...)
	return json.Marshal(c)
}
