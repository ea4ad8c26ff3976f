package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/adapter"
	"ravi/internal/config"
	"ravi/internal/daemon"
	"ravi/internal/install"
	"ravi/internal/store"
)

// Options say who is examined, and hand over what the checks need of the rest of Ravi.
type Options struct {
	// Home is Ravi's home, whether it is there or not, and Program this program's file.
	Home, Program string
	// Version is this program's.
	Version string
	// Only are the checks to make, by their ids or what is before the dot; none is all.
	Only []string
	// Config is config.json, or ConfigErr why it is none. CheckConfig reads also what its blocks say to others.
	Config      *config.Config
	ConfigErr   error
	CheckConfig func(*store.Store) error
	// AuditHead is the file of the audit's head; empty: where it is unless told otherwise.
	AuditHead string
	// Endpoints are the listeners that the configuration gives, by the daemon's own view of them. They are asked for once
	// the daemon was found.
	Endpoints func(*View) []Endpoint
	// StaleUnit is the unit of a service manager that is not what would be written now; empty: there is none, or it is.
	StaleUnit func() (file string, err error)
	// LooksSecret says why a variable looks like a credential, or "".
	LooksSecret func(name, value string) string
	// Interfaces gives the addresses to dial; nil: Interfaces.
	Interfaces Enumerate
	// Step shows that a check is made.
	Step func(name string) (done func(error))
}

// View is the daemon as it shows itself.
type View struct {
	State daemon.State
	// Err is why it does not answer, though its process is there.
	Err error
	// Info is all that it said: the JSON of daemon/info.
	Info []byte
}

// patient is what is examined: the home, and the machine as it can be replaced by tests.
type patient struct {
	Options
	store    *store.Store // nil if there is none, or it cannot be read
	storeErr error
	schema   store.Schema
	view     *View // nil if no daemon runs
	viewErr  error

	proc      string
	tun       string
	now       func() time.Time
	statfs    func(path string, s *unix.Statfs_t) error
	adjtimex  func(*unix.Timex) (int, error)
	userns    func(context.Context) error
	cgroups   func() ([]hierarchy, error)
	mountinfo string
	tryGVisor func(context.Context) error
	nodeSays  func(context.Context) string
	settling  time.Duration
	orphan    func(pid int) bool // nobody of another program is above it
	installed func(program string) bool
}

func newPatient(ctx context.Context, o Options) (*patient, error) {
	p := &patient{
		Options: o, proc: procRoot, tun: "/dev/net/tun", now: time.Now, statfs: unix.Statfs, adjtimex: unix.Adjtimex,
		userns: tryUserNamespace, mountinfo: "/proc/self/mountinfo", nodeSays: nodeSays, settling: settling, orphan: reaper,
	}
	p.cgroups = func() ([]hierarchy, error) { return hierarchies(p.mountinfo) }
	p.tryGVisor = func(ctx context.Context) error { return trySandbox(ctx, o.Home) }
	p.installed = func(name string) bool {
		program, ok := adapter.Lookup(name)
		if ok {
			_, err := install.Find(o.Home, program)
			ok = err == nil
		}
		return ok
	}
	if p.Interfaces == nil {
		p.Interfaces = Interfaces
	}
	if p.Options.LooksSecret == nil {
		return nil, errors.New("a doctor has to be told what looks like a secret")
	}
	p.store, p.schema, p.storeErr = store.Look(ctx, o.Home)
	p.look(ctx)
	return p, nil
}

// look finds the daemon, and asks it about itself.
func (p *patient) look(ctx context.Context) {
	s, err := daemon.ReadState(p.Home)
	if errors.Is(err, daemon.ErrNotRunning) {
		return
	}
	if err != nil {
		p.viewErr = err
		return
	}
	p.view = &View{State: s}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var said rawJSON
	if p.view.Err = daemon.Ask(ctx, filepath.Join(p.Home, daemon.Socket), "daemon/info", nil, &said); p.view.Err == nil {
		p.view.Info = said
	}
}

// rawJSON keeps JSON as it is.
type rawJSON []byte

func (r *rawJSON) UnmarshalJSON(b []byte) error {
	*r = append((*r)[:0], b...)
	return nil
}

func (p *patient) close() {
	if p.store != nil {
		p.store.Close() // it was only read
	}
}

func (p *patient) step(name string) func(error) {
	if p.Step == nil {
		return func(error) {}
	}
	return p.Step(name)
}

// noStore is why the database cannot be asked; nil if it can.
func (p *patient) noStore() *result {
	var r result
	switch {
	case errors.Is(p.storeErr, fs.ErrNotExist):
		r = skipped("there is no database yet")
	case p.storeErr != nil:
		r = skipped("the database cannot be read")
	case p.schema.Has != p.schema.Knows:
		r = skipped("the database is of another version: see database.schema")
	default:
		return nil
	}
	return &r
}

// quote writes a path as a word of a shell.
func quote(path string) string {
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r))
	}) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

func ownerOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
