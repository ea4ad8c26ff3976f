// Package daemon is the process that keeps Ravi going: it serves the gateway on a socket and a port, and brings the world
// to the record every few seconds.
//
// Nothing depends on it for its life: runs are processes of their own, and the operator's commands work without it. So it
// can be killed at any moment, and the next one goes on from the record.
//
// The package touches the state file and the socket in Ravi's home. It knows no command: the gateway is handed to it, and
// so is the hand that sweeps. It must not import the command line.
package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"ravi/internal/guard"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// Names in Ravi's home.
const (
	Socket    = "cli-gateway.sock"
	StateFile = "daemon.json"
	LogFile   = "daemon.log"
)

// serviceName is what clients that know no address call the gateway.
const serviceName = "gateway.ravi.internal"

const (
	sweepEvery = 3 * time.Second
	// keepEvents is how many events those can hear of who come back late.
	keepEvents = 100_000
	trimEvery  = 10 * time.Minute
	// stopBoxes bounds the end of a daemon's sandboxes. What is left then ends by its keeper's grace.
	stopBoxes = 30 * time.Second
	stopBus   = 10 * time.Second
)

// Options say what a daemon is to do.
type Options struct {
	Home    string
	Version string
	// Host and Port are where it listens besides the socket; port 0 is nowhere.
	Host string
	Port int
	TLS  *tls.Config
	// Names are those that clients may call it by on its port, besides the address.
	Names []string
	// Sweep brings the world to the record, and is called every so often; 0 is every 3 s.
	Sweep      func(context.Context) (store.Swept, error)
	SweepEvery time.Duration
	Store      *store.Store
	// Boxes are the sandboxes that it owns; may be nil.
	Boxes Boxes
	// Bus is what it has besides of messages and work; may be nil.
	Bus Bus
	// Keep says, when it has to stop, whether its sandboxes are left for the next one; nil: they are ended.
	Keep func() bool
	// Drain is how long calls may go on once it is to stop.
	Drain time.Duration
	Log   *slog.Logger
	// Ready is called when it accepts calls.
	Ready func()
}

// Boxes are the sandboxes that a daemon owns.
type Boxes interface {
	// TakeOver makes those the daemon's whose own daemon is gone. It is called once, before the first sweep.
	TakeOver(ctx context.Context) error
	// Owned are the ids of those that live.
	Owned() []string
	// Stop ends them all, or with keep lets go of them, so that they live for their grace.
	Stop(ctx context.Context, keep bool) error
}

// Bus is a daemon's bus, with what takes work from it.
type Bus interface {
	// Start starts it, and returns once it takes connections. Only one daemon of a home gets as far as this.
	Start(ctx context.Context) (BusState, error)
	// Now is how it is just now.
	Now() (BusNow, error)
	// Stop ends it. Runs that were started go on.
	Stop(ctx context.Context) error
}

// BusNow is how a bus is just now.
type BusNow struct {
	// Away is why the daemon is not connected to it, and Problem why it stores nothing; empty: nothing is wrong.
	Away    string `json:"away,omitempty"`
	Problem string `json:"problem,omitempty"`
	// Stored is how much is in its streams, and MaxStore its bound, in bytes; of another's server nothing is known.
	Stored   uint64 `json:"stored,omitempty"`
	MaxStore int64  `json:"max_store,omitempty"`
	// Hub is the server that it dials as a leaf node, if any, and HubSays the last complaint about that, which may be over.
	Hub       string `json:"hub,omitempty"`
	HubJoined bool   `json:"hub_joined,omitempty"`
	HubSays   string `json:"hub_says,omitempty"`
}

// BusState is what a bus says of itself.
type BusState struct {
	URL     string   `json:"url"`               // where programs of this machine connect
	Listens []string `json:"listens,omitempty"` // on which addresses; empty: it is another's server
	TLS     bool     `json:"tls"`
}

// State is what a daemon says of itself in its file: who it is, and where it can be reached.
type State struct {
	Process procid.ID `json:"process"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Socket  string    `json:"socket"`
	Address string    `json:"address,omitempty"` // host:port, if it listens on one
	Bus     *BusState `json:"bus,omitempty"`
}

// Swept is what the last sweep did.
type Swept struct {
	At       time.Time   `json:"at"`
	Took     float64     `json:"ms"`
	Problem  string      `json:"problem,omitempty"`   // it could not be done
	TakeOver string      `json:"take_over,omitempty"` // sandboxes of the daemon before that could not be taken over
	Report   store.Swept `json:"report"`
	Sweeps   int64       `json:"sweeps"`
	Problems int64       `json:"problems"` // how many sweeps had any
}

// Daemon is a daemon.
type Daemon struct {
	opts  Options
	state State

	mu    sync.Mutex
	swept Swept
}

// New makes a daemon, which does nothing before Run.
func New(o Options) *Daemon { return &Daemon{opts: o} }

// Run serves handler on the socket and the port until ctx ends. An error before it is ready says why it cannot.
func (d *Daemon) Run(ctx context.Context, handler http.Handler) (err error) {
	o := d.opts
	// The lock beside the socket makes this the only daemon of its home.
	unix, err := guard.ListenUnix(filepath.Join(o.Home, Socket), serviceName)
	if err != nil {
		return err
	}
	listeners := []*guard.Listener{unix}
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	self, err := procid.Self()
	if err != nil {
		return err
	}
	d.state = State{Process: self, Version: o.Version, Since: store.Now(), Socket: filepath.Join(o.Home, Socket)}
	if o.Port != 0 {
		tcp, err := guard.ListenTCP(net.JoinHostPort(o.Host, strconv.Itoa(o.Port)), o.TLS, o.Names...)
		if err != nil {
			return err
		}
		listeners = append(listeners, tcp)
		d.state.Address = tcp.Addr().String()
	}
	if o.Bus != nil {
		s, err := o.Bus.Start(ctx)
		if err != nil {
			return err
		}
		d.state.Bus = &s
		defer func() {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBus)
			defer cancel()
			err = errors.Join(err, o.Bus.Stop(ending))
		}()
	}
	if err := d.writeState(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.removeState()) }()
	return d.serve(ctx, handler, listeners)
}

func (d *Daemon) serve(ctx context.Context, handler http.Handler, listeners []*guard.Listener) error {
	server := guard.New(handler, guard.Options{Log: d.opts.Log})
	served := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { served <- server.Serve(l) }()
	}
	d.opts.Log.Info("ready", "pid", d.state.Process.PID, "socket", d.state.Socket, "address", d.state.Address, "version", d.opts.Version)
	if d.opts.Ready != nil {
		d.opts.Ready()
	}
	sweeping, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { d.sweep(sweeping) })
	var err error
	left := len(listeners)
	select {
	case <-ctx.Done():
	case err = <-served: // one that ends by itself ends all: half a daemon is none
		left--
		err = errors.Join(errors.New("a listener ended by itself"), err)
	}
	stop()
	keep := d.opts.Keep != nil && d.opts.Keep()
	d.opts.Log.Info("stopping", "drain", d.opts.Drain.String(), "keep_sandboxes", keep)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.Drain)
	defer cancel()
	if cut := server.Shutdown(ending); cut != nil {
		d.opts.Log.Warn("stopping", "cut", cut.Error()) // that was the bound's meaning, so it is no failure
	}
	for range left {
		err = errors.Join(err, <-served)
	}
	work.Wait()
	if d.opts.Boxes != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBoxes)
		defer cancel()
		err = errors.Join(err, d.opts.Boxes.Stop(ending, keep))
	}
	d.opts.Log.Info("stopped")
	return err
}

// sweep brings the world to the record, again and again. What cannot be mended now is told, and tried again.
func (d *Daemon) sweep(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(d.opts.SweepEvery, sweepEvery))
	defer tick.Stop()
	var trimmed time.Time
	if d.opts.Boxes != nil {
		// First of all: they wait for their new owner, and not forever.
		if err := d.opts.Boxes.TakeOver(ctx); err != nil && ctx.Err() == nil {
			d.opts.Log.Error("not all sandboxes could be taken over", "error", err.Error())
			d.mu.Lock()
			d.swept.TakeOver = err.Error()
			d.mu.Unlock()
		}
	}
	for {
		start := time.Now()
		report, err := d.opts.Sweep(ctx)
		if err == nil && time.Since(trimmed) > trimEvery {
			trimmed = start
			err = d.opts.Store.TrimEvents(ctx, keepEvents)
		}
		if ctx.Err() != nil {
			return
		}
		d.note(start, report, err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (d *Daemon) note(start time.Time, report store.Swept, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.swept
	d.swept = Swept{At: store.Now(), Took: float64(time.Since(start).Microseconds()) / 1000, Report: report, Sweeps: before.Sweeps + 1, Problems: before.Problems, TakeOver: before.TakeOver}
	if err != nil {
		d.swept.Problem = err.Error()
	}
	if err != nil || len(report.Problems) > 0 {
		d.swept.Problems++
		if d.swept.Problem != before.Problem || !slices.Equal(before.Report.Problems, report.Problems) {
			d.opts.Log.Error("the sweep could not do all", "error", d.swept.Problem, "problems", report.Problems)
		}
	}
	if len(report.Ended) > 0 || report.Dirs > 0 {
		d.opts.Log.Info("swept", "ended", report.Ended, "folders", report.Dirs)
	}
}

// State says who the daemon is.
func (d *Daemon) State() State { return d.state }

// Owned are the ids of the daemon's sandboxes.
func (d *Daemon) Owned() []string {
	if d.opts.Boxes == nil {
		return []string{}
	}
	return d.opts.Boxes.Owned()
}

// Bus says how the daemon's bus is just now; nil: it has none.
func (d *Daemon) Bus() (*BusNow, error) {
	if d.opts.Bus == nil {
		return nil, nil
	}
	now, err := d.opts.Bus.Now()
	if err != nil {
		return nil, err
	}
	return &now, nil
}

// Swept says what the last sweep did.
func (d *Daemon) Swept() Swept {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.swept
}

func (d *Daemon) writeState() error {
	b, err := json.MarshalIndent(d.state, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(d.opts.Home, StateFile)
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("cannot write the daemon's state: %w", err)
	}
	return os.Rename(path+".tmp", path)
}

// removeState removes the file, unless it is another daemon's by now.
func (d *Daemon) removeState() error {
	if s, err := ReadState(d.opts.Home); err == nil && s.Process != d.state.Process {
		return nil
	}
	err := os.Remove(filepath.Join(d.opts.Home, StateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ErrNotRunning says that there is no daemon.
var ErrNotRunning = errors.New("no daemon runs")

// ReadState is what the daemon of a home says of itself, or ErrNotRunning.
func ReadState(home string) (State, error) {
	var s State
	b, err := os.ReadFile(filepath.Join(home, StateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNotRunning
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("the daemon's state: %w", err)
	}
	if !procid.Alive(s.Process) {
		return s, ErrNotRunning
	}
	return s, nil
}
