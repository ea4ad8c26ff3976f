package command

import (
	"context"
	"io"
	"strings"
	"sync"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/config"
	"ravi/internal/store"
)

// Env is what a command works in. Nothing is opened before a command asks for it, so a command that needs no state
// leaves no trace.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Which of the three are a terminal.
	StdinTerminal, StdoutTerminal, StderrTerminal bool

	// Caller is who asks; without one nothing runs.
	Caller access.Caller
	// Auditor writes down what was decided. Without one, what the operator only reads leaves no record, and all else
	// is refused.
	Auditor Auditor
	// Scrub gives what takes secret values out of what is written down, with the secrets that there are now; may be nil.
	Scrub func() func(string) string
	// Found is what the access check of the call looked up, for whoever needs it next; nil if nothing was, or it was taken.
	Found any
	// ForAgent says that the result is read by an agent: texts of others are fenced as data.
	ForAgent bool

	JSON     bool // the result is printed as JSON
	Quiet    bool // no progress, only what was asked for
	Progress Progress

	// NewSweeper makes the hand that ends sandboxes; it belongs to the packages that make them.
	NewSweeper func(context.Context, *Env) (Sweeper, error)

	mu     sync.Mutex
	home   string
	store  *store.Store
	shared bool // the store is another's to close
	config *config.Config
}

// In makes an Env of a home whose store is open, and stays so. It has no streams, and shows no progress.
func In(home string, s *store.Store) *Env {
	return &Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Progress: silent{}, home: home, store: s, shared: true}
}

// silent is progress that nobody looks at.
type silent struct{}

func (silent) Step(string) func(error) { return func(error) {} }
func (silent) Log(string)              {}

// Auditor writes down what was decided. Of refusals that come in a flood it may keep the number only.
type Auditor interface {
	Append(ctx context.Context, records ...audit.Record) error
	Denied(ctx context.Context, r audit.Record) error
}

// Progress shows what is being done, and how long each step took.
type Progress interface {
	// Step begins a step, and ends the one before it. The function that it gives ends the step; an error marks it
	// as failed (and is told elsewhere).
	Step(name string) (done func(error))
	// Log says something beside the steps.
	Log(line string)
}

// Sweeper ends what was recorded.
type Sweeper interface {
	// Kill ends one sandbox and everything that was made for it. It is idempotent, from any state.
	Kill(context.Context, store.Sandbox) error
	// Prune brings the world to the record: it ends sandboxes whose owner is gone, and removes what belongs to none.
	Prune(context.Context) (PruneReport, error)
}

// PruneReport is what a sweep found and removed.
type PruneReport = store.Swept

// Home is Ravi's home directory.
func (e *Env) Home() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.homeLocked()
}

func (e *Env) homeLocked() (string, error) {
	if e.home == "" {
		home, err := config.Home()
		if err != nil {
			return "", err
		}
		e.home = home
	}
	return e.home, nil
}

// Store is the record, opened at the first call.
func (e *Env) Store(ctx context.Context) (*store.Store, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.store == nil {
		home, err := e.homeLocked()
		if err != nil {
			return nil, err
		}
		s, err := store.Open(ctx, home)
		if err != nil {
			return nil, err
		}
		e.store = s
	}
	return e.store, nil
}

// Config is config.json, read at the first call.
func (e *Env) Config() (*config.Config, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.config == nil {
		home, err := e.homeLocked()
		if err != nil {
			return nil, err
		}
		c, err := config.Load(home)
		if err != nil {
			return nil, err
		}
		e.config = c
	}
	return e.config, nil
}

// Sweeper makes the hand that ends sandboxes.
func (e *Env) Sweeper(ctx context.Context) (Sweeper, error) {
	if e.NewSweeper == nil {
		return nil, &Error{Code: CodeUnavailable, Message: "this program cannot end sandboxes", Hint: "use the ravi that made them"}
	}
	return e.NewSweeper(ctx, e)
}

// Close closes what was opened.
func (e *Env) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.store == nil || e.shared {
		return nil
	}
	err := e.store.Close()
	e.store = nil
	return err
}
