package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/procid"
)

func addDaemonRestart(t *command.Table) {
	command.Add(t, command.Spec[daemonRestartInput, daemonShown]{
		Group: "daemon", Name: "restart", Access: command.Write, Reach: command.LocalOnly,
		Summary: "End the daemon and start it again",
		Long: `Ends the daemon and starts it again, also if none runs. It reads config.json
anew; if that is wrong, it says so, and ends nothing. Runs go on, and so do its
sandboxes, which the new one takes over. If a service manager runs it, that one
starts it again.

Without --recreate it is started as it was before. With it nothing is kept: it
is this program, with the flags and the environment that ravi daemon start would
give it now; the service manager's file is written anew; and a daemon that does
not end in time is killed, which costs nothing but the calls at work.`,
		Examples: []command.Example{{Line: "ravi daemon restart"}, {What: "after an upgrade, or what ravi doctor says", Line: "ravi daemon restart --recreate"}},
		Defaults: daemonRestartInput{Timeout: 30 * time.Second},
		Handler:  restartDaemon, Print: printDaemon,
	})
}

type daemonRestartInput struct {
	Recreate bool          `json:"recreate" flag:"recreate" host:"none" usage:"as it would be started now, and not as it was"`
	Timeout  time.Duration `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"how long to wait for its end"`
}

func restartDaemon(ctx context.Context, env *command.Env, in daemonRestartInput) (daemonShown, error) {
	none := daemonShown{Version: Version()}
	home, err := env.Home()
	if err != nil {
		return none, err
	}
	// What could keep the new one from starting is said before the old one ends.
	if err := startsDaemon(env); err != nil {
		return none, err
	}
	managed, err := managedBy(ctx, env, home)
	if err != nil {
		return none, err
	}
	if managed != nil {
		return restartManaged(ctx, env, *managed, in)
	}
	var args []string
	if !in.Recreate {
		args = flagsOf(home)
	}
	if err := endDaemon(ctx, env, home, in); err != nil {
		return none, err
	}
	if err := startDaemon(ctx, env, args...); err != nil {
		return none, err
	}
	return showDaemon(ctx, env)
}

// endDaemon ends the daemon, if one runs, and leaves its sandboxes for the next.
func endDaemon(ctx context.Context, env *command.Env, home string, in daemonRestartInput) error {
	s, err := daemon.ReadState(home)
	if errors.Is(err, daemon.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	stopping, cancel := context.WithTimeout(ctx, in.Timeout)
	defer cancel()
	_, err = stopDaemon(stopping, env, daemonStopInput{Timeout: in.Timeout, Keep: true})
	if err == nil || ctx.Err() != nil || !in.Recreate || !procid.Alive(s.Process) {
		return err
	}
	// A new one goes on from the record, whatever became of this one.
	done := env.Progress.Step("Kill the daemon")
	err = procid.Signal(s.Process, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	if err == nil {
		err = procid.Wait(ctx, s.Process)
	}
	done(err)
	return err
}

// flagsOf are the flags that the daemon of a home was started with.
func flagsOf(home string) []string {
	s, err := daemon.ReadState(home)
	if err != nil {
		return nil // there is none whose flags could be kept
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.Process.PID), "cmdline"))
	if err != nil {
		return nil
	}
	args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	if len(args) < 3 || args[1] != "daemon" || args[2] != "run" {
		return nil
	}
	return args[3:]
}

// managedBy is the service manager that runs the daemon of a home; nil: none does.
func managedBy(ctx context.Context, env *command.Env, home string) (*manager, error) {
	s, err := daemon.ReadState(home)
	if runtime.GOOS != "linux" || errors.Is(err, daemon.ErrNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, system := range []bool{false, true} {
		m, err := managerOf(env, system, !system)
		if err != nil {
			continue // without a place for its file there is no such manager
		}
		if there, err := m.ours(); err != nil || !there {
			continue // nobody's, or another's: it is not for us to restart
		}
		line := append(m.systemctl[:len(m.systemctl):len(m.systemctl)], "show", "--property=MainPID", "--value", daemon.UnitName)
		out, err := exec.CommandContext(ctx, line[0], line[1:]...).Output()
		if err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(s.Process.PID) {
			return &m, nil
		}
	}
	return nil, nil
}

// restartManaged has the service manager restart the daemon, and waits until it answers.
func restartManaged(ctx context.Context, env *command.Env, m manager, in daemonRestartInput) (daemonShown, error) {
	home, err := env.Home()
	if err != nil {
		return daemonShown{}, err
	}
	before, err := daemon.ReadState(home)
	if err != nil && !errors.Is(err, daemon.ErrNotRunning) {
		return daemonShown{}, err
	}
	lines := [][]string{append(m.systemctl[:len(m.systemctl):len(m.systemctl)], "restart", daemon.UnitName)}
	if in.Recreate {
		if err := m.write(); err != nil {
			return daemonShown{}, err
		}
		lines = append([][]string{m.begin[0]}, lines...)
	}
	if err := m.call(ctx, env, lines); err != nil {
		return daemonShown{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, in.Timeout, &command.Error{
		Code: command.CodeUnavailable, Message: fmt.Sprintf("the service manager did not bring the daemon back within %v", in.Timeout),
		Hint: strings.Join(append(m.systemctl[:len(m.systemctl):len(m.systemctl)], "status", daemon.UnitName), " "), Exit: command.ExitFailed,
	})
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if s, err := daemon.ReadState(home); err == nil && s.Process != before.Process {
			return showDaemon(ctx, env)
		}
		select {
		case <-ctx.Done():
			return daemonShown{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// staleUnit is the file of a service manager that would start the daemon of a home otherwise than install would have it
// now; empty: there is none.
func staleUnit(program, home string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", nil
	}
	files := []string{filepath.Join("/etc/systemd/system", daemon.UnitName)}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "systemd", "user", daemon.UnitName))
	}
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // there is none, or it is not for this user to see
		}
		text := string(b)
		if !strings.Contains(text, daemon.Mark) || !strings.Contains(text, "RAVI_HOME="+home+`"`) {
			continue // another's, or another home's
		}
		now, err := (daemon.Service{Program: program, Home: home, System: i == 0}).Unit()
		if err != nil {
			return "", err
		}
		if text != now {
			return file, nil
		}
	}
	return "", nil
}
