package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/daemon"
	"ravi/internal/guard"
	"ravi/internal/programs"
	runs "ravi/internal/run"
	"ravi/internal/secret"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// addDaemon adds the group daemon; running is the daemon that this process is, nil in every other.
func addDaemon(t *command.Table, running *daemon.Daemon) {
	t.AddGroup(command.Group{Name: "daemon", Summary: "Keep Ravi going in the background"})
	command.Add(t, command.Spec[daemonRunInput, struct{}]{
		Group: "daemon", Name: "run", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Run the daemon here, until Ctrl-C",
		Long: `Serves the gateway on the socket in Ravi's home and on gateway.host and
gateway.port of config.json (127.0.0.1:7777), and every few seconds ends what a
crash left behind. Runs do not depend on it: they go on if it ends.`,
		Examples: []command.Example{{Line: "ravi daemon run"}},
		Defaults: daemonRunInput{Drain: 10 * time.Second},
		Handler:  runDaemon,
		Print:    func(*command.Env, io.Writer, struct{}) error { return nil },
	})
	command.Add(t, command.Spec[daemonStartInput, daemonShown]{
		Group: "daemon", Name: "start", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Start the daemon in the background",
		Long: `Starts the daemon, and returns once it accepts calls. If it runs already,
nothing is changed.`,
		Examples: []command.Example{{Line: "ravi daemon start"}},
		Handler: func(ctx context.Context, env *command.Env, _ daemonStartInput) (daemonShown, error) {
			if err := startDaemon(ctx, env); err != nil {
				return daemonShown{}, err
			}
			return showDaemon(ctx, env)
		},
		Print: printDaemon,
	})
	command.Add(t, command.Spec[daemonStopInput, daemonShown]{
		Group: "daemon", Name: "stop", Access: command.Write, Reach: command.LocalOnly,
		Summary: "End the daemon",
		Long: `Asks the daemon to end, and waits until it has. Calls at work are let finish for
some seconds; runs go on. The sandboxes of ravi sandbox create end with it,
unless they are kept for the next daemon, which has a minute to come.`,
		Examples: []command.Example{{Line: "ravi daemon stop"}, {What: "for a newer ravi", Line: "ravi daemon stop --keep-sandboxes && ravi daemon start"}},
		Defaults: daemonStopInput{Timeout: 30 * time.Second},
		Handler:  stopDaemon, Print: printDaemon,
	})
	command.Add(t, command.Spec[daemonStatusInput, daemonShown]{
		Group: "daemon", Name: "status", Access: command.Read, Reach: command.LocalOnly,
		Summary:  "Say whether the daemon runs, and how it is",
		Long:     `Shows the daemon and what its last sweep did. It ends with 3 if none runs.`,
		Examples: []command.Example{{Line: "ravi daemon status"}},
		Handler: func(ctx context.Context, env *command.Env, _ daemonStatusInput) (daemonShown, error) {
			return showDaemon(ctx, env)
		},
		Print: printDaemon,
		Exit: func(s daemonShown) int {
			if !s.Running {
				return exitNotRunning
			}
			return command.ExitOK
		},
	})
	command.Add(t, command.Spec[daemonInfoInput, daemonInfo]{
		Group: "daemon", Name: "info", Access: command.Read, Reach: command.OperatorOnly,
		Summary: "What the daemon says of itself",
		Long: `Asked through the gateway, this is the daemon that answers; ravi daemon status
shows it.`,
		Examples: []command.Example{{Line: "ravi daemon status --json"}},
		Handler: func(ctx context.Context, env *command.Env, _ daemonInfoInput) (daemonInfo, error) {
			if running == nil {
				return daemonInfo{}, &command.Error{Code: command.CodeUnavailable, Message: "this is not the daemon", Hint: "ravi daemon status asks it", Status: http.StatusServiceUnavailable, Exit: command.ExitFailed}
			}
			return infoOf(ctx, env, running)
		},
	})
	addDaemonRestart(t)
	addDaemonKeep(t)
	addDaemonLogs(t)
	addDaemonInstall(t)
}

// exitNotRunning is the exit code of daemon status for a daemon that does not run, as of init scripts.
const exitNotRunning = 3

type daemonRunInput struct {
	Drain time.Duration `json:"drain" flag:"drain" value:"DURATION" host:"size" usage:"how long calls at work may go on at the end"`
	Keep  bool          `json:"keep_sandboxes" flag:"keep-sandboxes" host:"none" usage:"at the end, leave its sandboxes for the next daemon"`
}

type (
	daemonStartInput  struct{}
	daemonStatusInput struct{}
	daemonInfoInput   struct{}
)

type daemonStopInput struct {
	Timeout time.Duration `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"how long to wait for its end"`
	Keep    bool          `json:"keep_sandboxes" flag:"keep-sandboxes" host:"none" usage:"leave its sandboxes for the next daemon"`
}

// daemonInfo is what a daemon says of itself.
type daemonInfo struct {
	State daemon.State   `json:"state"`
	Bus   *daemon.BusNow `json:"bus,omitempty"`
	Swept daemon.Swept   `json:"swept"`
	// Sandboxes are those that it owns.
	Sandboxes []string `json:"sandboxes"`
	Keys      int      `json:"keys"`       // context keys that hold something now
	AuditRows int64    `json:"audit_rows"` // the number of the audit's last row
}

// daemonShown is what can be said of a daemon from outside.
type daemonShown struct {
	Running bool          `json:"running"`
	State   *daemon.State `json:"state,omitempty"`
	Info    *daemonInfo   `json:"info,omitempty"`
	// Version is this program's, which may be another than the daemon's.
	Version string `json:"version"`
	// Problem is why a daemon that runs does not answer.
	Problem string `json:"problem,omitempty"`
}

// newDaemonOptions are a daemon's by config.json.
func newDaemonOptions(ctx context.Context, env *command.Env) (o daemon.Options, err error) {
	if o.Home, err = env.Home(); err != nil {
		return o, err
	}
	file, err := env.Config()
	if err != nil {
		return o, err
	}
	o.Host, o.Port = file.Gateway.Address()
	if file.Gateway.TLSCert != "" || file.Gateway.TLSKey != "" {
		pair, err := tls.LoadX509KeyPair(file.Gateway.TLSCert, file.Gateway.TLSKey)
		if err != nil {
			return o, &command.Error{Code: command.CodeConfig, Message: "gateway.tls_cert and gateway.tls_key: " + err.Error(), Hint: "name a certificate and its key, as PEM, both", Exit: command.ExitFailed, Err: err}
		}
		o.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		// Whoever connects checks that the certificate has the name, so those are the names.
		o.Names = pair.Leaf.DNSNames
		for _, ip := range pair.Leaf.IPAddresses {
			o.Names = append(o.Names, ip.String())
		}
	}
	o.Store, err = env.Store(ctx)
	o.Version = Version()
	return o, err
}

func runDaemon(ctx context.Context, env *command.Env, in daemonRunInput) (none struct{}, err error) {
	var keep atomic.Bool
	keep.Store(in.Keep)
	ctx, stop := endKeeping(ctx, &keep)
	defer stop()
	starter := daemon.StarterOf()
	if err = serveDaemon(ctx, env, in.Drain, keep.Load, starter); err != nil {
		told := command.AsError(err)
		starter.Failed(daemon.Refusal{Code: told.Code, Message: told.Message, Hint: told.Hint})
	}
	return none, err
}

// endKeeping gives a context that daemon.SignalKeep ends, and notes that it was that.
func endKeeping(ctx context.Context, keep *atomic.Bool) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, daemon.SignalKeep)
	go func() {
		select {
		case <-signals:
			keep.Store(true)
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}

func serveDaemon(ctx context.Context, env *command.Env, drain time.Duration, keep func() bool, starter *daemon.Starter) error {
	look := newLookout(ctx, env)
	defer look.done()
	o, err := newDaemonOptions(ctx, env)
	if err != nil {
		return daemonError(o.Home, err)
	}
	o.Drain, o.Keep, o.Log = drain, keep, daemon.NewLogger(env.Stderr, env.StderrTerminal)
	if starter != nil {
		log, err := daemon.OpenLog(filepath.Join(o.Home, daemon.LogFile), true)
		if err != nil {
			return err
		}
		defer log.Close()
		o.Log, o.Ready = daemon.NewLogger(log, false), starter.Ready
	}
	o.Ready = look.onceReady(o)
	programs.LayOutApart()
	debug.SetGCPercent(300) // it holds little, and makes much that is of use for one call
	head, err := auditHead(env)
	if err != nil {
		return err
	}
	sweeper := runs.Sweeper{Home: o.Home, Store: o.Store, AuditHead: head}
	o.Sweep = func(ctx context.Context) (store.Swept, error) { return sweeper.Prune(ctx) }
	scrub, err := newScrubber(ctx, env, func(err error) { o.Log.Error("secrets that were changed are not known to the audit", "error", err) })
	if err != nil {
		return err
	}
	boxes := &daemon.Sandboxes{Home: o.Home, Store: o.Store, AuditHead: head, Vault: func() (*secret.Store, error) { return secretStore(env) }, Log: o.Log}
	o.Boxes = boxes
	writer := audit.NewWriter(audit.Log{Store: o.Store, Head: head})
	s := newGateway(env, o.Home, o.Store, writer, scrub.Now)
	file, err := env.Config()
	if err != nil {
		return err
	}
	var own *daemonBus
	if !file.Bus.Off() {
		own = &daemonBus{home: o.Home, file: file, st: o.Store, log: o.Log, audit: audit.Log{Store: o.Store, Head: head}, newEnv: s.NewEnv}
		o.Bus = own
	}
	d := daemon.New(o)
	s.Table = newTable(parts{newSweeper: newSweeper, register: program().register, daemon: d, boxes: boxes, bus: own})
	return errors.Join(daemonError(o.Home, d.Run(ctx, s.Handler(contextkey.Wire{}))), writer.Close())
}

// daemonError tells why a daemon could not start.
func daemonError(home string, err error) error {
	if err == nil || errors.As(err, new(*command.Error)) {
		return err
	}
	told := &command.Error{Code: command.CodeUnavailable, Message: err.Error(), Exit: command.ExitFailed, Err: err}
	var g *guard.Error
	if errors.As(err, &g) {
		told.Hint = g.Hint
	}
	switch {
	case errors.Is(err, store.ErrDiskFull), errors.Is(err, syscall.ENOSPC), g == nil && noRoom(home):
		told.Message, told.Hint = "the daemon cannot work: the disk of "+home+" is full ("+err.Error()+")", "make room there, or set RAVI_HOME to a folder on another disk"
	case errors.Is(err, guard.ErrExposed) && strings.Contains(err.Error(), "without TLS"):
		told.Code, told.Hint = command.CodeConfig, "set gateway.tls_cert and gateway.tls_key in config.json, or gateway.host to 127.0.0.1"
	case errors.Is(err, guard.ErrExposed):
		told.Code = command.CodeConfig
	case errors.Is(err, guard.ErrInUse) && !strings.Contains(err.Error(), daemon.Socket):
		told.Hint = "end what listens there, or set gateway.port in config.json to another (0 is none)"
	case errors.Is(err, guard.ErrInUse):
		told.Code, told.Message, told.Hint = daemon.CodeRuns, "a daemon runs already in "+home, "see ravi daemon status"
		if s, err := daemon.ReadState(home); err == nil {
			told.Message += fmt.Sprintf(": process %d", s.Process.PID)
		}
	case g == nil:
		return err
	}
	return told
}

// noRoom says whether the disk of a folder is full. What the database says then is not always that.
func noRoom(dir string) bool {
	var disk syscall.Statfs_t
	return syscall.Statfs(dir, &disk) == nil && disk.Bavail == 0
}

// startDaemon starts the daemon in the background, unless it runs. That it is of another version is told.
func startDaemon(ctx context.Context, env *command.Env, flags ...string) error {
	home, err := env.Home()
	if err != nil {
		return err
	}
	s, err := daemon.Ensure(ctx, home, env.Progress.Step, flags...)
	var refusal *daemon.Refusal
	if errors.As(err, &refusal) {
		return &command.Error{
			Code: cmp.Or(refusal.Code, command.CodeUnavailable), Message: "the daemon did not start: " + refusal.Message, Hint: refusal.Hint,
			Status: http.StatusServiceUnavailable, Exit: command.ExitFailed, Err: err,
		}
	}
	if err == nil && s.Version != Version() {
		env.Progress.Log(skew(s.Version))
	}
	return err
}

// skew says that the daemon is of another version than this program.
func skew(version string) string {
	return fmt.Sprintf("the daemon is ravi %s, this is ravi %s: ravi daemon restart --recreate", safe.Safe(version), safe.Safe(Version()))
}

func stopDaemon(ctx context.Context, env *command.Env, in daemonStopInput) (daemonShown, error) {
	shown := daemonShown{Version: Version()}
	home, err := env.Home()
	if err != nil {
		return shown, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, in.Timeout, &command.Error{
		Code: command.CodeUnavailable, Message: fmt.Sprintf("the daemon did not end within %v", in.Timeout), Hint: "wait longer with --timeout, or see ravi daemon logs", Exit: command.ExitFailed,
	})
	defer cancel()
	done := env.Progress.Step("Stop the daemon")
	err = daemon.Stop(ctx, home, in.Keep)
	done(err)
	return shown, err
}

// infoOf is what the daemon says of itself.
func infoOf(ctx context.Context, env *command.Env, d *daemon.Daemon) (i daemonInfo, err error) {
	i = daemonInfo{State: d.State(), Swept: d.Swept(), Sandboxes: d.Owned()}
	if i.Bus, err = d.Bus(); err != nil {
		return i, err
	}
	st, err := env.Store(ctx)
	if err == nil {
		i.Keys, err = st.CountKeys(ctx, store.KeyFilter{Live: true})
	}
	if err == nil {
		i.AuditRows, err = st.AuditEnd(ctx)
	}
	return i, err
}

func showDaemon(ctx context.Context, env *command.Env) (daemonShown, error) {
	shown := daemonShown{Version: Version()}
	home, err := env.Home()
	if err != nil {
		return shown, err
	}
	s, err := daemon.ReadState(home)
	if errors.Is(err, daemon.ErrNotRunning) {
		return shown, nil
	}
	if err != nil {
		return shown, err
	}
	shown.Running, shown.State = true, &s
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var info daemonInfo
	if err := daemon.Ask(ctx, s.Socket, "daemon/info", nil, &info); err != nil {
		shown.Problem = err.Error()
		return shown, nil
	}
	shown.State, shown.Info = &info.State, &info
	return shown, nil
}

func printDaemon(env *command.Env, w io.Writer, s daemonShown) error {
	switch {
	case !s.Running && env.Quiet:
		return nil
	case !s.Running:
		fmt.Fprintln(w, "no daemon runs")
		return nil
	case env.Quiet:
		fmt.Fprintln(w, s.State.Process.PID)
		return nil
	}
	printLine(w, "daemon", fmt.Sprintf("runs as process %d, since %s", s.State.Process.PID, moment(s.State.Since)))
	printLine(w, "version", s.State.Version)
	if s.State.Version != Version() {
		printLine(w, "", skew(s.State.Version))
	}
	printLine(w, "socket", s.State.Socket)
	printLine(w, "address", cmp.Or(s.State.Address, "none"))
	printLine(w, "problem", s.Problem)
	if s.Info == nil {
		return nil
	}
	if b := s.Info.Bus; b != nil {
		printLine(w, "problem", b.Away)
		printLine(w, "problem", b.Problem)
		if b.Hub != "" && !b.HubJoined {
			printLine(w, "problem", "the hub of the bus is not joined: ravi doctor --only bus says more")
		}
	}
	printLine(w, "sandboxes", strconv.Itoa(len(s.Info.Sandboxes)))
	printLine(w, "keys", strconv.Itoa(s.Info.Keys))
	printLine(w, "audit", fmt.Sprintf("%d rows", s.Info.AuditRows))
	swept := s.Info.Swept
	if swept.Sweeps == 0 {
		return nil
	}
	printLine(w, "last sweep", fmt.Sprintf("%s, %.0f ms", moment(swept.At), swept.Took))
	printLine(w, "problem", swept.Problem)
	printLine(w, "problem", swept.TakeOver)
	for _, p := range swept.Report.Problems {
		printLine(w, "not removed", p)
	}
	return nil
}
