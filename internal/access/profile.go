package access

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Profile is what the operator lets keyed callers ask of a sandbox. What it does not list is refused; its zero value
// refuses everything.
type Profile struct {
	// Backends and Images are names.
	Backends []string `json:"backends"`
	Images   []string `json:"images"`
	// Repos are folders of the host, which allow what is in them as well, and beginnings of addresses up to a slash.
	Repos []string `json:"repos"`
	// Volumes are folders of the host with :ro or :rw behind them, which allow what is in them as well.
	Volumes []string `json:"volumes"`
	Secrets []string `json:"secrets"`
	// Networks are none, all, and rules as --allow-net takes them, each to be asked for as it stands.
	Networks []string `json:"networks"`
	// Programs are the agent programs of other makers that may be named.
	Programs []string `json:"programs"`
	// Models are patterns, provider/model with * for any part of either, of what a run may ask; none: no model at all.
	Models []string `json:"models"`

	CPUs      float64 `json:"cpus"`
	MemoryMiB int     `json:"memory_mib"`
	DiskGB    int     `json:"disk_gb"`
	// Timeout is the longest that a run may take, in seconds.
	Timeout int `json:"timeout"`
	// Sandboxes is how many the holders of one key, and of its children, may have at once.
	Sandboxes int `json:"sandboxes"`
}

// DefaultName is the profile of a key for which none was named.
const DefaultName = "default"

// DefaultProfile is the profile of that name, as long as the operator did not set it: a closed sandbox of the built-in
// kind, without anything of the host's.
func DefaultProfile() Profile {
	return Profile{
		Backends: []string{"gvisor"}, Images: []string{"host"}, Networks: []string{"none"},
		CPUs: 2, MemoryMiB: 2048, DiskGB: 4, Timeout: 3600, Sandboxes: 4,
	}
}

// Validate says what is wrong with a profile.
func (p Profile) Validate() error {
	for _, r := range p.Repos {
		if isAddress(r) {
			if !strings.HasSuffix(r, "/") {
				return fmt.Errorf("repos: %s is an address, and must end with / to say where it ends", r)
			}
			continue
		}
		if !filepath.IsAbs(r) || filepath.Clean(r) != r {
			return fmt.Errorf("repos: %q is neither a clean absolute path nor an address", r)
		}
	}
	for _, v := range p.Volumes {
		path, mode, _ := cutMode(v)
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || mode != "ro" && mode != "rw" {
			return fmt.Errorf("volumes: %q is not an absolute path with :ro or :rw behind it", v)
		}
	}
	for _, name := range p.Programs {
		if !programForm.MatchString(name) {
			return fmt.Errorf("programs: %q is no name of an agent program, such as claude", name)
		}
	}
	for _, m := range p.Models {
		if !modelForm.MatchString(m) {
			return fmt.Errorf("models: %q is no pattern of a provider and a model, such as anthropic/claude-*", m)
		}
	}
	if p.CPUs < 0 || p.MemoryMiB < 0 || p.DiskGB < 0 || p.Timeout < 0 || p.Sandboxes < 0 {
		return errors.New("a size is negative")
	}
	return nil
}

var (
	programForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	modelForm   = regexp.MustCompile(`^([a-z0-9][a-z0-9-]{0,31}|\*)/[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}$`)
)

func isAddress(s string) bool { return strings.Contains(s, "://") }

func cutMode(v string) (path, mode string, ok bool) {
	i := strings.LastIndexByte(v, ':')
	if i < 0 {
		return v, "", false
	}
	return v[:i], v[i+1:], true
}

// Wish is what a caller asks of a sandbox, with all defaults filled in.
type Wish struct {
	Backend  string // never auto: what it stands for
	Image    string
	Repo     string // a path or an address; empty: none
	Volumes  []Volume
	Secrets  []string
	Networks []string // none, all, or the rules
	Program  string   // of an agent; empty: none

	CPUs      float64
	MemoryMiB int
	DiskGB    int
	Timeout   time.Duration // 0 is no bound
	// Sandboxes is how many the caller has already.
	Sandboxes int
}

// Volume is a folder of the host inside a sandbox.
type Volume struct {
	Host     string
	ReadOnly bool
}

// Check says whether a wish is within the profile. The wish comes back with the paths as they are after every symbolic
// link is followed: these are what was checked, and what must be used. The error is a *Denied.
func (p Profile) Check(name string, w Wish) (Wish, error) {
	deny := func(what string) (Wish, error) {
		return Wish{}, &Denied{Caller: "the profile " + name, Missing: what}
	}
	if !slices.Contains(p.Backends, w.Backend) {
		return deny("the backend " + w.Backend)
	}
	if !slices.Contains(p.Images, w.Image) {
		return deny("the image " + w.Image)
	}
	if w.Repo != "" {
		repo, ok := p.repo(w.Repo)
		if !ok {
			return deny("the repository " + w.Repo)
		}
		w.Repo = repo
	}
	var volumes []Volume
	for _, v := range w.Volumes {
		host, ok := p.volume(v)
		if !ok {
			return deny(fmt.Sprintf("the volume %s:%s", v.Host, v.mode()))
		}
		volumes = append(volumes, Volume{host, v.ReadOnly})
	}
	w.Volumes = volumes
	for _, s := range w.Secrets {
		if !slices.Contains(p.Secrets, s) {
			return deny("the secret " + s)
		}
	}
	for _, n := range w.Networks {
		// A sandbox without a network is always less than one with it.
		if n != "none" && !slices.Contains(p.Networks, n) && !slices.Contains(p.Networks, "all") {
			return deny("the network " + n)
		}
	}
	if w.Program != "" && !slices.Contains(p.Programs, w.Program) {
		return deny("the agent program " + w.Program)
	}
	if w.CPUs > p.CPUs {
		return deny(fmt.Sprintf("%g processors (of at most %g)", w.CPUs, p.CPUs))
	}
	for _, size := range []struct {
		what       string
		want, most int
	}{
		{"%d MiB of memory (of at most %d)", w.MemoryMiB, p.MemoryMiB}, {"%d GB of disk (of at most %d)", w.DiskGB, p.DiskGB},
		{"one more sandbox than %d (of at most %d)", w.Sandboxes, p.Sandboxes - 1},
	} {
		if size.want > size.most {
			return deny(fmt.Sprintf(size.what, size.want, max(size.most, 0)))
		}
	}
	if longest := time.Duration(p.Timeout) * time.Second; w.Timeout <= 0 || w.Timeout > longest {
		return deny(fmt.Sprintf("a time of %v (of at most %v)", w.Timeout, longest))
	}
	return w, nil
}

// AllowsRepo says whether a repository of the host, or an address, is one that the profile lists.
func (p Profile) AllowsRepo(asked string) bool {
	_, ok := p.repo(asked)
	return ok
}

func (p Profile) repo(asked string) (string, bool) {
	if isAddress(asked) {
		// What stands before the path decides where it leads, so no part of it is left to what a program makes of it.
		if strings.Contains(asked, "..") || strings.ContainsAny(asked, "@\\%?#\x00 \t\r\n") {
			return "", false
		}
		return asked, slices.ContainsFunc(p.Repos, func(r string) bool { return isAddress(r) && strings.HasPrefix(asked, r) && len(asked) > len(r) })
	}
	return within(p.Repos, asked)
}

func (p Profile) volume(v Volume) (string, bool) {
	var roots []string
	for _, have := range p.Volumes {
		if path, mode, _ := cutMode(have); mode == "rw" || v.ReadOnly {
			roots = append(roots, path)
		}
	}
	return within(roots, v.Host)
}

func (v Volume) mode() string {
	if v.ReadOnly {
		return "ro"
	}
	return "rw"
}

// within resolves a path and says whether it lies in one of the roots, themselves resolved.
func within(roots []string, path string) (string, bool) {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", false
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", false // whether it is there is nothing that a caller should learn
	}
	return real, slices.ContainsFunc(roots, func(root string) bool {
		root, err := filepath.EvalSymlinks(root)
		return err == nil && (real == root || root == "/" || strings.HasPrefix(real, root+"/"))
	})
}
