package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/daemon"
	"ravi/internal/guard"
	"ravi/internal/procid"
	runs "ravi/internal/run"
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
		Long: `Starts the daemon, and returns once it accepts calls. If it runs already, nothing
is changed.`,
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
some seconds; runs go on.`,
		Examples: []command.Example{{Line: "ravi daemon stop"}},
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
				return daemonInfo{}, &command.Error{Code: command.CodeUnavailable, Message: "this is not the daemon", Hint: "ravi daemon status asks it", Status: 503, Exit: command.ExitFailed}
			}
			return daemonInfo{State: running.State(), Swept: running.Swept()}, nil
		},
	})
}

// exitNotRunning is the exit code of daemon status for a daemon that does not run, as of init scripts.
const exitNotRunning = 3

type daemonRunInput struct {
	Drain time.Duration `json:"drain" flag:"drain" value:"DURATION" host:"size" usage:"how long calls at work may go on at the end"`
}

type (
	daemonStartInput  struct{}
	daemonStatusInput struct{}
	daemonInfoInput   struct{}
)

type daemonStopInput struct {
	Timeout time.Duration `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"how long to wait for its end"`
}

// daemonInfo is what a daemon says of itself.
type daemonInfo struct {
	State daemon.State `json:"state"`
	Swept daemon.Swept `json:"swept"`
}

// daemonShown is what can be said of a daemon from outside.
type daemonShown struct {
	Running bool          `json:"running"`
	State   *daemon.State `json:"state,omitempty"`
	Swept   *daemon.Swept `json:"swept,omitempty"`
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
	}
	o.Store, err = env.Store(ctx)
	o.Version = Version()
	return o, err
}

func runDaemon(ctx context.Context, env *command.Env, in daemonRunInput) (none struct{}, err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	o, err := newDaemonOptions(ctx, env)
	if err != nil {
		return none, err
	}
	o.Drain = in.Drain
	o.Log = slog.New(slog.NewJSONHandler(env.Stderr, nil))
	o.Ready = readiness()
	sweeper := runs.Sweeper{Home: o.Home, Store: o.Store}
	o.Sweep = func(ctx context.Context) (store.Swept, error) { return sweeper.Prune(ctx) }
	head, err := auditHead(env)
	if err != nil {
		return none, err
	}
	writer := audit.NewWriter(audit.Log{Store: o.Store, Head: head})
	d := daemon.New(o)
	s := newGateway(env, o.Home, o.Store, writer, nil)
	s.Table = newTable(parts{newSweeper: newSweeper, register: program().register, daemon: d})
	return none, errors.Join(daemonError(d.Run(ctx, s.Handler(contextkey.Wire{}))), writer.Close())
}

// daemonError tells why a daemon could not start.
func daemonError(err error) error {
	var g *guard.Error
	if !errors.As(err, &g) {
		return err
	}
	told := &command.Error{Code: command.CodeUnavailable, Message: err.Error(), Hint: g.Hint, Exit: command.ExitFailed, Err: err}
	switch {
	case errors.Is(err, guard.ErrExposed):
		told.Code, told.Hint = command.CodeConfig, "set gateway.tls_cert and gateway.tls_key in config.json, or gateway.host to 127.0.0.1"
	case errors.Is(err, guard.ErrInUse) && strings.Contains(err.Error(), "cannot listen on"):
		told.Hint = "end what listens there, or set gateway.port in config.json to another (0 is none)"
	case errors.Is(err, guard.ErrInUse):
		told.Code, told.Message, told.Hint = command.CodeConflict, "a daemon runs already in this home", "see ravi daemon status"
	}
	return told
}

// envReady is the descriptor on which a daemon says that it is ready.
const envReady = "RAVI_DAEMON_READY"

// readiness is what tells whoever started this daemon that it is ready.
func readiness() func() {
	if os.Getenv(envReady) == "" {
		return nil
	}
	os.Unsetenv(envReady)
	pipe := os.NewFile(3, "ready")
	return func() {
		fmt.Fprintln(pipe, "ready")
		pipe.Close()
	}
}

// startDaemon starts the daemon in the background, unless it runs.
func startDaemon(ctx context.Context, env *command.Env) error {
	home, err := env.Home()
	if err != nil {
		return err
	}
	if _, err := daemon.ReadState(home); !errors.Is(err, daemon.ErrNotRunning) {
		return err
	}
	done := env.Progress.Step("Start the daemon")
	err = spawnDaemon(ctx, home)
	done(err)
	return err
}

func spawnDaemon(ctx context.Context, home string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(home, daemon.LogFile), os.O_CREATE|os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(program, "daemon", "run")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{w}
	cmd.Env = append(os.Environ(), "RAVI_HOME="+home, envReady+"=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("cannot start the daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ready := make(chan bool, 1)
	go func() {
		line, _ := bufio.NewReader(r).ReadString('\n')
		ready <- line == "ready\n"
	}()
	select {
	case ok := <-ready:
		if ok {
			return nil
		}
		<-ended
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Another one may have been quicker.
	if _, err := daemon.ReadState(home); err == nil {
		return nil
	}
	said := make([]byte, 16<<10)
	n, _ := log.ReadAt(said, from)
	return &command.Error{
		Code: command.CodeUnavailable, Message: "the daemon did not start:\n" + strings.TrimSpace(string(said[:n])), Hint: "see " + log.Name(), Status: 503, Exit: command.ExitFailed,
	}
}

func stopDaemon(ctx context.Context, env *command.Env, in daemonStopInput) (daemonShown, error) {
	home, err := env.Home()
	if err != nil {
		return daemonShown{}, err
	}
	s, err := daemon.ReadState(home)
	if errors.Is(err, daemon.ErrNotRunning) {
		return daemonShown{}, nil
	}
	if err != nil {
		return daemonShown{}, err
	}
	done := env.Progress.Step("Stop the daemon")
	err = procid.Signal(s.Process, syscall.SIGTERM)
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, in.Timeout, fmt.Errorf("the daemon (process %d) did not end within %v", s.Process.PID, in.Timeout))
		defer cancel()
		err = procid.Wait(ctx, s.Process)
	}
	done(err)
	return daemonShown{}, err
}

func showDaemon(ctx context.Context, env *command.Env) (daemonShown, error) {
	home, err := env.Home()
	if err != nil {
		return daemonShown{}, err
	}
	s, err := daemon.ReadState(home)
	if errors.Is(err, daemon.ErrNotRunning) {
		return daemonShown{}, nil
	}
	if err != nil {
		return daemonShown{}, err
	}
	shown := daemonShown{Running: true, State: &s}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var info daemonInfo
	if err := daemon.Ask(ctx, s.Socket, "daemon/info", nil, &info); err != nil {
		shown.Problem = err.Error()
		return shown, nil
	}
	shown.State, shown.Swept = &info.State, &info.Swept
	return shown, nil
}

func printDaemon(env *command.Env, w io.Writer, s daemonShown) error {
	if !s.Running {
		fmt.Fprintln(w, "no daemon runs")
		return nil
	}
	if env.Quiet {
		fmt.Fprintln(w, s.State.Process.PID)
		return nil
	}
	printLine(w, "daemon", fmt.Sprintf("runs as process %d, since %s", s.State.Process.PID, moment(s.State.Since)))
	printLine(w, "version", s.State.Version)
	if s.State.Version != Version() {
		fmt.Fprintf(w, "%14sthis is ravi %s: ravi daemon stop && ravi daemon start\n", "", safe.Safe(Version()))
	}
	printLine(w, "socket", s.State.Socket)
	printLine(w, "address", s.State.Address)
	printLine(w, "problem", s.Problem)
	if s.Swept != nil && s.Swept.Sweeps > 0 {
		printLine(w, "last sweep", fmt.Sprintf("%s, %.0f ms", moment(s.Swept.At), s.Swept.Took))
		printLine(w, "", s.Swept.Problem)
		for _, p := range s.Swept.Report.Problems {
			printLine(w, "not removed", p)
		}
	}
	return nil
}
