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
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/filelock"
	"ravi/internal/network/policy"
	"ravi/sandbox"
)

// locks are a package.json and a package-lock.json a program, which name every package with its hash.
//
//go:embed locks
var locks embed.FS

var (
	// ErrMissing says that a program is not installed.
	ErrMissing = errors.New("it is not installed")
	// ErrDamaged says besides that there is something, which does not count.
	ErrDamaged = errors.New("what is there is damaged")
	// ErrRegistry says that what was named as the registry is none. It is not repeated: there may be a password in it.
	ErrRegistry = errors.New("the registry is no URL such as " + Registry + ", or has a user in it")
)

const (
	// agentsDir is the folder of the home.
	agentsDir = "agents"
	// manifestFile says what an installation is.
	manifestFile = "ravi.json"
	// lockFile is held while a program is installed, so that two first runs at once install it once.
	lockFile = "lock"
	// freshPrefix begins the names of folders that are not whole.
	freshPrefix = "new-"
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
	err = json.Unmarshal(b, &i)
	if err == nil && (i.Program != p.Name || i.Version != p.Version || i.Path != p.Bin) {
		err = fmt.Errorf("%s is of another program", manifestFile)
	}
	if err == nil {
		err = checkBin(dir, p)
	}
	if err != nil {
		return Installed{}, fmt.Errorf("%s: %w: %w: %s: %w", p.Title, ErrMissing, ErrDamaged, dir, err)
	}
	i.Dir = dir
	return i, nil
}

// checkBin says whether the program lies in a folder: it itself, as no link is followed out of there.
func checkBin(dir string, p adapter.Program) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := root.Lstat(filepath.FromSlash(p.Bin))
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || p.Node == 0 && st.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is no program, but %s", p.Bin, st.Mode())
	}
	return nil
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
	// Again has it installed also where it is. Runs that use the one that is there lose it.
	Again bool

	locks fs.FS // of tests; nil: those of Ravi
}

// Install installs a program, unless it is there.
func Install(ctx context.Context, p adapter.Program, o Options) (i Installed, err error) {
	if p.Package == "" {
		return i, fmt.Errorf("%s is not of npm, and cannot be installed", p.Name)
	}
	registry, err := url.Parse(o.Registry)
	if o.Registry == "" {
		registry, err = url.Parse(Registry)
	}
	if err != nil || registry.Hostname() == "" || registry.Scheme != "https" && registry.Scheme != "http" || registry.User != nil {
		return i, ErrRegistry
	}
	if o.locks == nil {
		o.locks = locks
	}
	if err := checkLock(o.locks, p); err != nil {
		return i, err
	}
	place := filepath.Join(o.Home, agentsDir, p.Name)
	if err := os.MkdirAll(place, 0o700); err != nil {
		return i, err
	}
	free, err := hold(ctx, filepath.Join(place, lockFile), o.Note)
	if err != nil {
		return i, err
	}
	defer free()
	if found, err := Find(o.Home, p); err == nil && !o.Again {
		return found, nil
	}
	way, err := reach(ctx, registry, o.Note)
	if err != nil {
		return i, err
	}
	// While the lock is held, these are of installations that were killed.
	left, err := filepath.Glob(filepath.Join(place, freshPrefix+"*"))
	if err != nil {
		return i, err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return i, err
		}
	}
	fresh, err := os.MkdirTemp(place, freshPrefix)
	if err != nil {
		return i, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }()
	if err := fetch(ctx, p, way, fresh, o); err != nil {
		return i, err
	}
	if err := readable(fresh); err != nil {
		return i, err
	}
	if err := checkBin(fresh, p); err != nil {
		return i, fmt.Errorf("the package %s@%s has no program at %s: %w", p.Package, p.Version, p.Bin, err)
	}
	i = Installed{Program: p.Name, Version: p.Version, Path: p.Bin, At: time.Now().UTC().Truncate(time.Second)}
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return i, err
	}
	if err := os.WriteFile(filepath.Join(fresh, manifestFile), append(b, '\n'), 0o644); err != nil {
		return i, err
	}
	i.Dir = filepath.Join(place, p.Version)
	if err := os.RemoveAll(i.Dir); err != nil {
		return i, err
	}
	if err := os.Rename(fresh, i.Dir); err != nil {
		return i, err
	}
	if err := removeOlder(place, p.Version); err != nil && o.Note != nil {
		o.Note("an older version of it is still there, and could not be removed: " + err.Error())
	}
	return i, nil
}

// hold waits for a lock, and gives what lets go of it.
func hold(ctx context.Context, name string, note func(string)) (free func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	waiting := func() {
		if note != nil {
			note("it is being installed by another ravi; waiting for that")
		}
	}
	if err := filelock.Wait(ctx, f, syscall.LOCK_EX, 100*time.Millisecond, waiting); err != nil {
		f.Close()
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

// readable lets every user of a sandbox read an installation, whatever modes its packages and this process's umask gave it.
func readable(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir() || st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0:
			return root.Chmod(name, 0o755)
		case st.Mode().IsRegular():
			return root.Chmod(name, 0o644)
		}
		return nil
	})
}

// checkLock says whether a program's lock file has its program for this machine.
func checkLock(locks fs.FS, p adapter.Program) error {
	b, err := fs.ReadFile(locks, path.Join("locks", p.Name, lockName))
	if err != nil {
		return fmt.Errorf("there is no lock file for %s", p.Name)
	}
	var lock struct {
		Packages map[string]json.RawMessage `json:"packages"`
	}
	if err := json.Unmarshal(b, &lock); err != nil {
		return fmt.Errorf("the lock file of %s: %w", p.Name, err)
	}
	for name := range lock.Packages {
		if name != "" && strings.HasPrefix(p.Bin, name+"/") {
			return nil
		}
	}
	return fmt.Errorf("%s %s cannot be installed on linux/%s: npm had none for it when this Ravi was made", p.Title, p.Version, runtime.GOARCH)
}

// lockName is npm's name of a lock file.
const lockName = "package-lock.json"

// fetch has npm put the packages into dir, by way of a sandbox.
func fetch(ctx context.Context, p adapter.Program, w way, dir string, o Options) (err error) {
	lock, err := fs.ReadFile(o.locks, path.Join("locks", p.Name, lockName))
	if err != nil {
		return err
	}
	about, err := fs.ReadFile(o.locks, path.Join("locks", p.Name, "package.json"))
	if err != nil {
		return err
	}
	cfg := sandbox.Default()
	cfg.Debug.Enabled = false
	cfg.AllowNet = sandbox.AllowNet{Rules: w.rules}
	cfg.MemoryMiB = max(cfg.MemoryMiB, 2048)
	disk := 8
	cfg.DiskSizeGB = &disk
	end := o.Step("Start a sandbox")
	sb, err := sandbox.Open(ctx, cfg, "", slices.Concat([]sandbox.Option{sandbox.WithHome(o.Home)}, o.Sandbox, w.options)...)
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
	for name, content := range map[string][]byte{"package.json": about, lockName: lock} {
		if err := files.Write(ctx, at+"/"+name, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	end = o.Step("Install " + p.Package + "@" + p.Version)
	err = npm(ctx, sb, at, w.npm)
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
func npm(ctx context.Context, sb *sandbox.Sandbox, at string, registry []string) error {
	timeout := 15 * time.Minute
	r, err := sb.Exec(ctx, sandbox.Cmd{
		Args:     append([]string{"npm", "ci", "--fetch-retry-mintimeout", "1000", "--fetch-retry-maxtimeout", "5000", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"}, registry...),
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

// way is how the sandbox reaches a registry.
type way struct {
	rules   []string         // of its network
	options []sandbox.Option // of the sandbox
	npm     []string         // what npm is told
}

// service is what a registry on this machine's loopback is called inside, where loopback is the sandbox's own.
const service = "registry"

// reach finds the way to a registry. It was named by the operator, so also an address that is otherwise closed is opened,
// if that is where its name leads.
func reach(ctx context.Context, registry *url.URL, note func(string)) (w way, err error) {
	host, port := registry.Hostname(), registry.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[registry.Scheme]
	}
	if addr, err := netip.ParseAddr(host); strings.EqualFold(host, "localhost") || err == nil && addr.IsLoopback() {
		inside := url.URL{Scheme: "http", Host: service + ".ravi.internal", Path: registry.Path}
		// Packages too are taken from there, whatever address of them the registry gives: it knows itself by another name.
		w.npm = []string{"--registry", inside.String(), "--replace-registry-host", "always"}
		w.options = []sandbox.Option{sandbox.WithService(service, sandbox.HTTPService(&httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: registry.Scheme, Host: registry.Host}) },
			Transport: &http.Transport{DisableKeepAlives: true}, ErrorLog: log.New(io.Discard, "", 0),
		}))}
		return w, nil
	}
	w.npm = []string{"--registry", registry.String()}
	w.rules = []string{net.JoinHostPort(host, port)}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return w, fmt.Errorf("the registry %s: %w", host, err)
	}
	for _, a := range found {
		a = a.Unmap()
		rule := net.JoinHostPort(a.String(), port)
		if why, shut := policy.Closed(a); shut && !slices.Contains(w.rules, rule) {
			w.rules = append(w.rules, rule)
			if note != nil {
				note(fmt.Sprintf("the registry %s is at %s, %s; it is opened for this", host, a, why))
			}
		}
	}
	return w, nil
}
