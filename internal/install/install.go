// Package install has agent programs of other makers at hand: it installs one from npm, in a sandbox that reaches the
// registry and nothing else, at the version that Ravi was tried with and with the content that its lock file names; and
// it finds those that are installed. They lie in agents/<name>/<version> beneath Ravi's home, and runs see them
// read-only.
//
// What a package holds is hostile: nothing of it is run or read outside of a sandbox. It writes beneath agents/ only.
package install

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/network/policy"
	"ravi/sandbox"
)

// locks are a package.json and a package-lock.json a program, which name every package with its hash.
//
//go:embed locks
var locks embed.FS

// ErrMissing says that a program is not installed.
var ErrMissing = errors.New("it is not installed")

const (
	// agentsDir is the folder of the home.
	agentsDir = "agents"
	// manifestFile says what an installation is.
	manifestFile = "ravi.json"
	// mostBytes bounds what an installation may have.
	mostBytes = 4 << 30
	// Registry is where packages come from unless told otherwise.
	Registry = "https://registry.npmjs.org/"
)

// Installed is a program that is there.
type Installed struct {
	Program string    `json:"program"`
	Version string    `json:"version"`
	Path    string    `json:"path"` // of the program, relative to Dir
	At      time.Time `json:"installed_at"`
	Dir     string    `json:"dir"`
}

// Find finds a program at the version that Ravi was tried with, or ErrMissing.
func Find(home string, p adapter.Program) (Installed, error) {
	dir := filepath.Join(home, agentsDir, p.Name, p.Version)
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Installed{}, fmt.Errorf("%s: %w", p.Title, ErrMissing)
	}
	if err != nil {
		return Installed{}, err
	}
	var i Installed
	if err := json.Unmarshal(b, &i); err != nil || i.Program != p.Name || i.Path == "" {
		return Installed{}, fmt.Errorf("%s: %w: its folder %s is damaged", p.Title, ErrMissing, dir)
	}
	i.Dir = dir
	return i, nil
}

// Options are of Install.
type Options struct {
	Home     string
	Registry string // a URL; empty: Registry
	// Step begins a step; the function that it gives ends it.
	Step func(name string) func(error)
	// Note tells something besides.
	Note func(string)
	// Sandbox are further options for the sandbox, such as the operator's network.
	Sandbox []sandbox.Option
}

// Install installs a program anew.
func Install(ctx context.Context, p adapter.Program, o Options) (i Installed, err error) {
	if p.Package == "" {
		return i, fmt.Errorf("%s is not of npm, and cannot be installed", p.Name)
	}
	registry, err := url.Parse(o.Registry)
	if o.Registry == "" {
		registry, err = url.Parse(Registry)
	}
	if err != nil || registry.Hostname() == "" || registry.Scheme != "https" && registry.Scheme != "http" || registry.User != nil {
		return i, fmt.Errorf("the registry %q is no URL such as %s", o.Registry, Registry)
	}
	rules, err := reach(ctx, registry, o.Note)
	if err != nil {
		return i, err
	}
	place := filepath.Join(o.Home, agentsDir, p.Name)
	if err := os.MkdirAll(place, 0o700); err != nil {
		return i, err
	}
	fresh, err := os.MkdirTemp(place, "new-")
	if err != nil {
		return i, err
	}
	defer os.RemoveAll(fresh)
	if err := os.Chmod(fresh, 0o755); err != nil {
		return i, err
	}
	if err := fetch(ctx, p, registry, rules, fresh, o); err != nil {
		return i, err
	}
	i = Installed{Program: p.Name, Version: p.Version, Path: p.Bin, At: time.Now().UTC().Truncate(time.Second)}
	// No link is followed: what is named must be the program itself, as the sandboxes see it.
	if st, err := os.Lstat(filepath.Join(fresh, filepath.FromSlash(p.Bin))); err != nil || st.IsDir() {
		return i, fmt.Errorf("the package %s@%s has no program at %s", p.Package, p.Version, p.Bin)
	}
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return i, err
	}
	if err := os.WriteFile(filepath.Join(fresh, manifestFile), append(b, '\n'), 0o644); err != nil {
		return i, err
	}
	i.Dir = filepath.Join(place, p.Version)
	// Runs that go on see the folder that they began with.
	if err := os.RemoveAll(i.Dir); err != nil {
		return i, err
	}
	return i, os.Rename(fresh, i.Dir)
}

// fetch has npm put the packages into dir, by way of a sandbox.
func fetch(ctx context.Context, p adapter.Program, registry *url.URL, rules []string, dir string, o Options) (err error) {
	lock, err := locks.ReadFile(path.Join("locks", p.Name, "package-lock.json"))
	if err != nil {
		return fmt.Errorf("there is no lock file for %s", p.Name)
	}
	about, err := locks.ReadFile(path.Join("locks", p.Name, "package.json"))
	if err != nil {
		return err
	}
	cfg := sandbox.Default()
	cfg.Debug.Enabled = false
	cfg.AllowNet = sandbox.AllowNet{Rules: rules}
	cfg.MemoryMiB = max(cfg.MemoryMiB, 2048)
	disk := 8
	cfg.DiskSizeGB = &disk
	end := o.Step("Start a sandbox")
	sb, err := sandbox.Open(ctx, cfg, "", append([]sandbox.Option{sandbox.WithHome(o.Home)}, o.Sandbox...)...)
	end(err)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	const at = "/home/user/install"
	files := sb.Files()
	if err := files.MakeDir(ctx, at); err != nil {
		return err
	}
	for name, content := range map[string][]byte{"package.json": about, "package-lock.json": lock} {
		if err := files.Write(ctx, at+"/"+name, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	end = o.Step("Install " + p.Package + "@" + p.Version)
	err = npm(ctx, sb, at, registry)
	end(err)
	if err != nil {
		return err
	}
	end = o.Step("Take it over")
	err = files.CopyOutMost(ctx, at+"/node_modules", filepath.Join(dir, "node_modules"), mostBytes)
	end(err)
	return err
}

// npm installs what the lock file says, and runs none of the packages' scripts.
func npm(ctx context.Context, sb *sandbox.Sandbox, at string, registry *url.URL) error {
	timeout := 15 * time.Minute
	r, err := sb.Exec(ctx, sandbox.Cmd{
		Args:     []string{"npm", "ci", "--fetch-retry-mintimeout", "1000", "--fetch-retry-maxtimeout", "5000", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--registry", registry.String()},
		GuestDir: at, Timeout: &timeout, Env: map[string]string{"npm_config_update_notifier": "false", "npm_config_cache": "/tmp/npm"},
	})
	if errors.Is(err, sandbox.ErrCommandNotFound) {
		return fmt.Errorf("%w: installing needs npm, and this machine has none in /usr: install Node.js (apt-get install -y nodejs npm)", err)
	}
	if err != nil {
		return err
	}
	if r.ExitCode != 0 {
		return fmt.Errorf("npm could not install it (exit code %d):\n%s", r.ExitCode, strings.TrimSpace(string(r.Stderr)))
	}
	return nil
}

// reach are the rules for reaching a registry. It was named by the operator, so also an address that is otherwise closed
// is opened, if that is where its name leads.
func reach(ctx context.Context, registry *url.URL, note func(string)) ([]string, error) {
	host, port := registry.Hostname(), registry.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[registry.Scheme]
	}
	rules := []string{net.JoinHostPort(host, port)}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("the registry %s: %w", host, err)
	}
	for _, a := range found {
		a = a.Unmap()
		rule := a.String()
		if a.Is6() {
			rule = "[" + rule + "]"
		}
		if why, shut := policy.Closed(a); shut && !slices.Contains(rules, rule+":"+port) {
			rules = append(rules, rule+":"+port)
			if note != nil {
				note(fmt.Sprintf("the registry %s is at %s, %s; it is opened for this", host, a, why))
			}
		}
	}
	return rules, nil
}
