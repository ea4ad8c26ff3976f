// Package runner is the machine's side of sandboxes that are lent to another one: it takes sessions (package remote),
// makes a sandbox for each in a home of its own, and passes on bytes between the two.
//
// Whoever opens a session was let in by a credential, and is trusted with nothing more: what it asks for is bounded by
// this machine's capacity, what it names (an id, a path, a policy) is checked or made up here, and nothing of this machine
// is mounted. What it sends to be shown in a sandbox is unpacked as hostile. The end of a session ends its sandbox, and
// if this process ends, the keepers do.
//
// No key, lease or secret of a run comes here. The package writes beneath its home only, and must not know the bus.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"ravi/internal/backend"
	"ravi/internal/backend/gvisor"
	"ravi/internal/filelock"
	"ravi/internal/keeper"
	"ravi/internal/network/policy"
	"ravi/internal/programs"
	"ravi/internal/rootfs"
)

// Options are of New.
type Options struct {
	// Home is the runner's own: no other process works in it, and none of Ravi's own homes is that.
	Home     string
	Capacity Capacity
	// AlwaysDeny is what sandboxes of this runner never reach by this machine's network, whatever their policy says.
	AlwaysDeny []policy.Rule
	Log        *slog.Logger // nil: nothing is logged

	backend   backend.Backend       // of tests; nil: gVisor
	available func() (int64, error) // of tests: bytes of memory
}

// Runner makes sandboxes for sessions.
type Runner struct {
	home     string
	deny     []policy.Rule
	log      *slog.Logger
	backend  backend.Backend
	roots    string // certificates in place of this machine's own; empty: those
	room     *room
	contents *contents
	lock     *os.File
}

// ErrInUse says that another runner works in the home.
var ErrInUse = errors.New("another runner works in this home")

// Names within the home.
const (
	lockFile     = "runner.lock"
	sandboxesDir = "sandboxes" // as keepers and the backend have it
	contentDir   = "content"
)

// New makes a runner, and removes what a former one left. It must be closed.
func New(ctx context.Context, o Options) (_ *Runner, err error) {
	if err := o.Capacity.fill(); err != nil {
		return nil, err
	}
	if err := (policy.Floor{AlwaysDeny: o.AlwaysDeny}).Validate(); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(o.Home) {
		return nil, fmt.Errorf("the runner's home %q is not an absolute path", o.Home)
	}
	if err := os.MkdirAll(o.Home, 0o700); err != nil {
		return nil, fmt.Errorf("the runner's home: %w", err)
	}
	// What is mounted must not lead over a link.
	home, err := filepath.EvalSymlinks(o.Home)
	if err != nil {
		return nil, fmt.Errorf("the runner's home: %w", err)
	}
	r := &Runner{home: home, deny: o.AlwaysDeny, log: o.Log, backend: o.backend, roots: os.Getenv("SSL_CERT_FILE"), room: newRoom(o.Capacity, o.available)}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.backend == nil {
		r.backend = gvisor.Backend{}
	}
	if r.lock, err = take(filepath.Join(home, lockFile)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.lock.Close()
		}
	}()
	if err := os.MkdirAll(filepath.Join(home, sandboxesDir), 0o700); err != nil {
		return nil, fmt.Errorf("the runner's home: %w", err)
	}
	if err := r.sweep(ctx); err != nil {
		return nil, err
	}
	if r.contents, err = openContents(filepath.Join(home, contentDir)); err != nil {
		return nil, err
	}
	return r, nil
}

// Prepare lays out what sandboxes are made with, which takes seconds the first time: otherwise the first one waits for it.
// An error says that this machine can make none.
func (r *Runner) Prepare(ctx context.Context) error {
	if _, err := programs.Find(ctx, r.home); err != nil {
		return err
	}
	_, err := rootfs.Prepare(r.home, rootfs.HostImage)
	return err
}

// Close lets another runner work in the home. No session may be served any more.
func (r *Runner) Close() error { return r.lock.Close() }

// take locks the home.
func take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the runner's home: %w", err)
	}
	held, err := filelock.Try(f, syscall.LOCK_EX)
	if err == nil && !held {
		err = fmt.Errorf("%w: %s", ErrInUse, filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sweep ends and removes sandboxes of a runner that is gone. Since the home is locked, that is all that there are.
func (r *Runner) sweep(ctx context.Context) error {
	dir := filepath.Join(r.home, sandboxesDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the runner's home: %w", err)
	}
	var all sync.WaitGroup
	errs := make([]error, len(entries))
	for n, e := range entries {
		all.Go(func() {
			if err := end(ctx, filepath.Join(dir, e.Name())); err != nil {
				errs[n] = fmt.Errorf("removing the sandbox %s of a former runner: %w", e.Name(), err)
				return
			}
			r.log.Info("a sandbox of a former runner was removed", "sandbox", e.Name())
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// end ends a sandbox through its keeper, or without one by what its plan says.
func end(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, closeTime, errors.New("it does not end"))
	defer cancel()
	if h, err := keeper.Attach(ctx, dir, false, 0); err == nil {
		return h.EndFor(ctx, keeper.ReasonOwnerGone)
	}
	plan, err := keeper.ReadPlan(dir)
	if errors.Is(err, fs.ErrNotExist) {
		// It ended meanwhile, or never got as far as a plan: nothing but the folder was made.
		return os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	return keeper.Remove(plan)
}

// Status is what a runner has and does.
type Status struct {
	Capacity Capacity `json:"capacity"`
	// Free is what a sandbox can have now: what is not given away, or what the machine has left, if that is less.
	Free     Capacity `json:"free"`
	Running  int      `json:"running"`
	Draining bool     `json:"draining"`
}

// Status says what the runner has and does now.
func (r *Runner) Status() Status { return r.room.status() }

// Drain takes no more sandboxes, and waits until there are none.
func (r *Runner) Drain(ctx context.Context) error { return r.room.drain(ctx) }
