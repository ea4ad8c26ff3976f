package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"ravi/internal/audit"
	"ravi/internal/keeper"
	"ravi/internal/procid"
	"ravi/internal/run"
	"ravi/internal/secret"
	"ravi/internal/store"
	"ravi/sandbox"
)

const (
	// DefaultGrace is how long a sandbox outlives its daemon, so that the next one can take it over.
	DefaultGrace = time.Minute
	// ReasonTime is why a sandbox ended that had only so much time.
	ReasonTime = "timeout"
)

// boxFile, in a sandbox's folder, is what its next daemon must know. A sandbox without it is none of a daemon's.
const boxFile = "daemon.json"

// takeOvers is how many sandboxes are taken over at once.
const takeOvers = 4

// ErrStopping says that the daemon is about to end, and makes no sandbox any more.
var ErrStopping = errors.New("the daemon is about to end")

// Sandboxes are those that a daemon owns: what ravi sandbox create made. Fields are set before it is used.
type Sandboxes struct {
	Home  string
	Store *store.Store
	// AuditHead is the file of the audit's head.
	AuditHead string
	// Vault opens the secrets.
	Vault func() (*secret.Store, error)
	Log   *slog.Logger

	mu      sync.Mutex
	held    map[string]*box
	stopped bool
	keep    bool           // those that are let go of live on
	work    sync.WaitGroup // what is being made, and who waits for the ends
}

// Wanted is a sandbox to be made.
type Wanted struct {
	// Name is what it is called; may be empty. CreatedBy is who asks for it, as in the audit.
	Name, CreatedBy string
	Config          sandbox.Config
	Workspace       string // of the host; empty: none
	// TTL is how long it lives; 0: until it is ended. Grace is how long it outlives its daemon.
	TTL, Grace time.Duration
	// Secrets are names of those of the vault that it can use.
	Secrets []string
	// Options are more of what it is made of: its network.
	Options []sandbox.Option
	// Check is asked once the sandbox is recorded and before it is made; an error of it ends that. May be nil.
	Check func(context.Context) error
}

// box is a sandbox that is held.
type box struct {
	*sandbox.Sandbox
	audit  *run.NetAudit
	leases *leases
	let    context.CancelFunc // of what Open was given
	end    *time.Timer        // nil: it may live on
	over   chan struct{}      // closed when nothing of it is left here
}

// kept is the content of boxFile.
type kept struct {
	Grace   time.Duration `json:"grace_ns"`
	EndsAt  *time.Time    `json:"ends_at,omitempty"`
	Secrets []string      `json:"secrets,omitempty"`
}

var _ Boxes = (*Sandboxes)(nil)

// begin says whether something may still begin.
func (s *Sandboxes) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopping
	}
	s.work.Add(1)
	return nil
}

// Create makes a sandbox, which is recorded before, and gives its record and what there is to tell about it once.
func (s *Sandboxes) Create(ctx context.Context, w Wanted) (row store.Sandbox, notes []string, err error) {
	if err := s.begin(); err != nil {
		return row, nil, err
	}
	defer s.work.Done()
	lent, secrets, err := s.lend(ctx, w.Secrets)
	if err != nil {
		return row, nil, err
	}
	b := &box{leases: lent, audit: s.netAudit(), over: make(chan struct{})}
	// Whoever asks may go away while it is made, which ends that, and afterwards, which does not.
	making, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.let = cancel
	gone := context.AfterFunc(ctx, cancel)
	record := recorder{Recorder: run.Recorder{Store: s.Store, Name: w.Name, CreatedBy: w.CreatedBy, AuditHead: s.AuditHead}, box: b, check: w.Check, lent: s.recordLeases}
	opts := append(slices.Clone(w.Options), sandbox.WithHome(s.Home), sandbox.WithRecorder(record), sandbox.WithNetEvents(b.audit.Add), sandbox.WithGrace(w.Grace))
	if len(secrets) > 0 {
		opts = append(opts, sandbox.WithSecrets(secrets...))
	}
	b.Sandbox, err = sandbox.Open(making, w.Config, w.Workspace, opts...)
	if !gone() && err == nil {
		err = errors.Join(context.Cause(ctx), b.Close())
	}
	k := kept{Grace: w.Grace, Secrets: w.Secrets}
	if w.TTL > 0 {
		at := store.Now().Add(w.TTL)
		k.EndsAt = &at
	}
	if err == nil {
		if err = s.write(b.ID, k); err != nil {
			err = errors.Join(err, b.Close())
		}
	}
	if err != nil {
		cancel()
		return row, nil, errors.Join(err, s.clean(b))
	}
	s.hold(b, k)
	row, err = s.Store.Sandbox(ctx, b.ID)
	return row, b.Notes, err
}

func (s *Sandboxes) netAudit() *run.NetAudit {
	return run.NewNetAudit(audit.Log{Store: s.Store, Head: s.AuditHead}, func(err error) {
		s.Log.Error("the audit of a sandbox's network could not be written, and is tried again", "error", err.Error())
	})
}

// clean gives back what a sandbox had, once it is over.
func (s *Sandboxes) clean(b *box) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.leases.stop()
	return errors.Join(b.audit.Close(ctx), s.giveBack(ctx, b.leases))
}

// hold keeps a sandbox until it ends, and then cleans up after it.
func (s *Sandboxes) hold(b *box, k kept) {
	s.mu.Lock()
	if s.held == nil {
		s.held = map[string]*box{}
	}
	s.held[b.ID] = b
	s.work.Add(1)
	stopped, keep := s.stopped, s.keep
	s.mu.Unlock()
	if k.EndsAt != nil {
		b.end = time.AfterFunc(max(time.Until(*k.EndsAt), 0), func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.End(ctx, b.ID, ReasonTime); err != nil {
				s.Log.Error("a sandbox whose time was over could not be ended", "sandbox", b.ID, "error", err.Error())
			}
		})
	}
	s.renew(b)
	go func() {
		defer s.work.Done()
		defer close(b.over)
		<-b.Ended()
		s.finish(b)
	}()
	if stopped {
		s.letGo(b, keep) // it was made while the daemon began to stop
	}
}

// letGo ends a sandbox, or with keep leaves it to the next daemon.
func (s *Sandboxes) letGo(b *box, keep bool) {
	if keep {
		b.Detach()
		return
	}
	go func() {
		if err := b.Close(); err != nil {
			s.Log.Error("a sandbox could not be ended", "sandbox", b.ID, "error", err.Error())
		}
	}()
}

// finish is the end of a box: of the sandbox, or of the hold on it.
func (s *Sandboxes) finish(b *box) {
	if b.end != nil {
		b.end.Stop()
	}
	s.mu.Lock()
	delete(s.held, b.ID)
	keep := s.keep
	s.mu.Unlock()
	var err error
	if end := new(sandbox.EndError); keep && errors.As(b.Err(), &end) && end.Reason == "detached" {
		// The next daemon gets the values anew; the sandbox keeps what it has.
		b.leases.stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = b.audit.Close(ctx)
	} else {
		err = errors.Join(b.Close(), s.clean(b))
	}
	b.let()
	if err != nil {
		s.Log.Error("not all could be done at the end of a sandbox", "sandbox", b.ID, "error", err.Error())
	}
}

// Get gives the hold on a sandbox that this daemon owns.
func (s *Sandboxes) Get(id string) (*sandbox.Sandbox, bool) {
	b, ok := s.get(id)
	if !ok {
		return nil, false
	}
	return b.Sandbox, true
}

func (s *Sandboxes) get(id string) (*box, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.held[id]
	return b, ok
}

// Owned implements Boxes.
func (s *Sandboxes) Owned() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, slices.Sorted(maps.Keys(s.held))...)
}

// End ends a sandbox for a reason, and returns when nothing of it is left. One that this daemon does not own has ended.
func (s *Sandboxes) End(ctx context.Context, id, reason string) error {
	b, ok := s.get(id)
	if !ok {
		return nil
	}
	h, err := keeper.Attach(ctx, s.dir(id), false, 0)
	if err == nil {
		err = h.EndFor(ctx, reason)
	}
	if err != nil {
		err = b.Close() // which does it without the keeper, if it must
	}
	select {
	case <-b.over:
		return err
	case <-ctx.Done():
		return errors.Join(err, context.Cause(ctx))
	}
}

// Stop implements Boxes.
func (s *Sandboxes) Stop(ctx context.Context, keep bool) error {
	s.mu.Lock()
	s.stopped, s.keep = true, keep
	held := slices.Collect(maps.Values(s.held))
	s.mu.Unlock()
	for _, b := range held {
		s.letGo(b, keep)
	}
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sandboxes that had not ended are left to their keepers: %w", context.Cause(ctx))
	}
}

// TakeOver implements Boxes.
func (s *Sandboxes) TakeOver(ctx context.Context) error {
	live, err := s.Store.ListSandboxes(ctx, store.SandboxFilter{Live: true})
	if err != nil {
		return err
	}
	var wait sync.WaitGroup
	var failed []error
	var mu sync.Mutex
	room := make(chan struct{}, takeOvers)
	for _, row := range live {
		// One without a keeper is over, and for the sweep.
		if row.RunID != "" || procid.Alive(row.Owner) || !procid.Alive(row.Keeper) {
			continue
		}
		k, err := s.read(row.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		room <- struct{}{}
		wait.Go(func() {
			defer func() { <-room }()
			if err == nil {
				err = s.takeOver(ctx, row.ID, k)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Errorf("sandbox %s: %w", row.ID, err))
			}
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}

func (s *Sandboxes) takeOver(ctx context.Context, id string, k kept) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.work.Done()
	b := &box{audit: s.netAudit(), over: make(chan struct{}), let: func() {}}
	b.audit.Of(id)
	record := recorder{Recorder: run.Recorder{Store: s.Store}, box: b}
	opts := []sandbox.Option{sandbox.WithHome(s.Home), sandbox.WithTakeOver(k.Grace), sandbox.WithRecorder(record), sandbox.WithNetEvents(b.audit.Add)}
	lent, secrets, err := s.lend(ctx, k.Secrets)
	if err != nil {
		// It goes on with the values that it has. That nobody renews them is told.
		s.Log.Error("the secrets of a sandbox cannot be renewed", "sandbox", id, "error", err.Error())
		lent, secrets = &leases{}, nil
	}
	if b.leases = lent; len(secrets) > 0 {
		opts = append(opts, sandbox.WithSecrets(secrets...))
	}
	if err = s.recordLeases(ctx, id, lent); err == nil {
		b.Sandbox, err = sandbox.Attach(ctx, id, opts...)
	}
	if err != nil {
		err = errors.Join(err, s.clean(b))
		if errors.Is(err, sandbox.ErrOwned) || errors.Is(err, sandbox.ErrNoSandbox) {
			return nil // somebody else was quicker, or it has ended meanwhile
		}
		return err
	}
	s.hold(b, k)
	s.Log.Info("taken over", "sandbox", id)
	return nil
}

func (s *Sandboxes) dir(id string) string { return filepath.Join(s.Home, "sandboxes", id) }

func (s *Sandboxes) write(id string, k kept) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir(id), boxFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// read reads what the daemon before wrote.
func (s *Sandboxes) read(id string) (k kept, err error) {
	const most = 1 << 20
	f, err := os.OpenFile(filepath.Join(s.dir(id), boxFile), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return k, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err == nil && k.Grace < 0 {
		err = errors.New("its grace is negative")
	}
	return k, err
}

// recorder writes a daemon's sandbox down.
type recorder struct {
	run.Recorder
	box   *box
	check func(context.Context) error
	lent  func(ctx context.Context, id string, l *leases) error
}

// Creating implements sandbox.Recorder.
func (r recorder) Creating(ctx context.Context, i sandbox.Info) error {
	r.box.audit.Of(i.ID)
	if err := r.Recorder.Creating(ctx, i); err != nil {
		return err
	}
	err := r.lent(ctx, i.ID, r.box.leases)
	if err == nil && r.check != nil {
		err = r.check(ctx)
	}
	if err != nil {
		_, uerr := r.Store.UpdateSandboxState(context.WithoutCancel(ctx), i.ID, store.SeenFailed, "refused")
		err = errors.Join(err, uerr)
	}
	return err
}

// Created implements sandbox.Recorder. It is also called when the sandbox was taken over.
func (r recorder) Created(ctx context.Context, id string, pid int) error {
	keeper, err := procid.Of(pid)
	if err != nil {
		return err
	}
	self, err := procid.Self()
	if err != nil {
		return err
	}
	_, err = r.Store.UpdateSandbox(ctx, id, func(b *store.Sandbox) error {
		b.Owner, b.Keeper = self, keeper
		if b.Seen != store.SeenPaused {
			b.Seen = store.SeenRunning
		}
		if b.StartedAt == nil {
			now := store.Now()
			b.StartedAt = &now
		}
		return nil
	})
	return err
}
