package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"ravi/internal/command"
	"ravi/internal/daemon"
	safe "ravi/internal/term"
)

func addDaemonInstall(t *command.Table) {
	command.Add(t, command.Spec[daemonInstallInput, daemonInstalled]{
		Group: "daemon", Name: "install", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Have the service manager run the daemon",
		Long: `Writes a unit for systemd (on macOS a property list for launchd), and has it
started now and whenever you log in; with --system whenever the machine starts.
It runs this program, in the home that this command uses.

For a user's daemon to go on after logout: loginctl enable-linger.`,
		Examples: []command.Example{{Line: "ravi daemon install"}, {What: "only look at it", Line: "ravi daemon install --print"}},
		Handler:  installDaemon,
		Print: func(env *command.Env, w io.Writer, i daemonInstalled) error {
			switch {
			case i.File == "":
				_, err := io.WriteString(w, i.Text)
				return err
			case !env.Quiet:
				fmt.Fprintf(w, "%s, which runs the daemon from now on\n", safe.Safe(i.File))
			}
			return nil
		},
	})
	command.Add(t, command.Spec[daemonUninstallInput, daemonInstalled]{
		Group: "daemon", Name: "uninstall", Access: command.Write, Reach: command.LocalOnly,
		Summary: "End what install did",
		Long: `Has the service manager end the daemon, and removes the file that ravi daemon
install wrote. If there is none, nothing is changed.`,
		Examples: []command.Example{{Line: "ravi daemon uninstall"}},
		Handler:  uninstallDaemon,
		Print: func(env *command.Env, w io.Writer, i daemonInstalled) error {
			if i.File != "" && !env.Quiet {
				fmt.Fprintf(w, "removed %s\n", safe.Safe(i.File))
			}
			return nil
		},
	})
}

type daemonInstallInput struct {
	System bool `json:"system" flag:"system" host:"none" usage:"for the machine, not for your time there; needs root"`
	User   bool `json:"user" flag:"user" host:"none" usage:"for your time there, which is what happens by itself"`
	Print  bool `json:"print" flag:"print" host:"none" usage:"only print the file"`
}

type daemonUninstallInput struct {
	System bool `json:"system" flag:"system" host:"none" usage:"of the machine"`
	User   bool `json:"user" flag:"user" host:"none" usage:"of your time there, which is what happens by itself"`
}

type daemonInstalled struct {
	File string `json:"file,omitempty"` // empty: nothing was changed
	Text string `json:"text,omitempty"`
}

// manager is a service manager: where its file of ours is, and the commands that take notice of it.
type manager struct {
	file string
	text string
	// systemctl is how systemd's is called; nil with another.
	systemctl []string
	begin     [][]string
	end       [][]string
	forget    [][]string // after the file is gone
	install   string     // the command that installs, for hints
}

func managerOf(env *command.Env, system, user bool) (m manager, err error) {
	if system && user {
		return m, command.Usage("--system and --user are two things", "leave one out")
	}
	home, err := env.Home()
	if err != nil {
		return m, err
	}
	program, err := os.Executable()
	if err != nil {
		return m, err
	}
	service := daemon.Service{Program: program, Home: home, System: system}
	m.install = "ravi daemon install"
	if system {
		m.install += " --system"
	}
	if runtime.GOOS == "darwin" {
		return launchd(m, service)
	}
	systemctl := []string{"systemctl", "--user"}
	dir := "/etc/systemd/system"
	if system {
		systemctl = systemctl[:1]
	} else {
		config, err := os.UserConfigDir()
		if err != nil {
			return m, &command.Error{Code: command.CodeConfig, Message: "cannot tell where your configuration is: " + err.Error(), Hint: "set HOME", Exit: command.ExitFailed, Err: err}
		}
		dir = filepath.Join(config, "systemd", "user")
	}
	call := func(args ...string) []string { return append(systemctl[:len(systemctl):len(systemctl)], args...) }
	m.file, m.systemctl = filepath.Join(dir, daemon.UnitName), systemctl
	m.begin = [][]string{call("daemon-reload"), call("enable", "--now", daemon.UnitName)}
	m.end = [][]string{call("disable", "--now", daemon.UnitName)}
	m.forget = [][]string{call("daemon-reload")}
	m.text, err = service.Unit()
	return m, err
}

func launchd(m manager, service daemon.Service) (_ manager, err error) {
	dir, domain := "/Library/LaunchDaemons", "system"
	if !service.System {
		home, err := os.UserHomeDir()
		if err != nil {
			return m, err
		}
		dir, domain = filepath.Join(home, "Library", "LaunchAgents"), "gui/"+strconv.Itoa(os.Getuid())
	}
	m.file = filepath.Join(dir, daemon.PlistName+".plist")
	m.begin = [][]string{{"launchctl", "bootstrap", domain, m.file}}
	m.end = [][]string{{"launchctl", "bootout", domain + "/" + daemon.PlistName}}
	m.text, err = service.Plist()
	return m, err
}

func installDaemon(ctx context.Context, env *command.Env, in daemonInstallInput) (daemonInstalled, error) {
	m, err := managerOf(env, in.System, in.User)
	if err != nil || in.Print {
		return daemonInstalled{Text: m.text}, err
	}
	none := daemonInstalled{}
	home, err := env.Home()
	if err != nil {
		return none, err
	}
	there, err := m.ours()
	if err != nil {
		return none, err
	}
	if s, err := daemon.ReadState(home); err == nil && !there {
		return none, &command.Error{
			Code: command.CodeConflict, Message: fmt.Sprintf("a daemon runs already in %s: process %d", home, s.Process.PID),
			Hint: "ravi daemon stop --keep-sandboxes && " + m.install, Exit: command.ExitFailed,
		}
	}
	if err := m.write(); err != nil {
		return none, err
	}
	return daemonInstalled{File: m.file}, m.call(ctx, env, m.begin)
}

// write puts the file in its place.
func (m manager) write() error {
	if err := os.MkdirAll(filepath.Dir(m.file), 0o755); err != nil {
		return m.failed(err)
	}
	tmp := m.file + ".new"
	if err := os.WriteFile(tmp, []byte(m.text), 0o644); err != nil {
		return m.failed(err)
	}
	if err := os.Rename(tmp, m.file); err != nil {
		return m.failed(err)
	}
	return nil
}

func uninstallDaemon(ctx context.Context, env *command.Env, in daemonUninstallInput) (none daemonInstalled, err error) {
	m, err := managerOf(env, in.System, in.User)
	if err != nil {
		return none, err
	}
	if there, err := m.ours(); err != nil || !there {
		return none, err
	}
	if err := m.call(ctx, env, m.end); err != nil {
		return none, err
	}
	if err := os.Remove(m.file); err != nil {
		return none, m.failed(err)
	}
	return daemonInstalled{File: m.file}, m.call(ctx, env, m.forget)
}

// ours says whether the file is there. One that this program did not write is refused.
func (m manager) ours() (bool, error) {
	b, err := os.ReadFile(m.file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, m.failed(err)
	}
	if !strings.Contains(string(b), daemon.Mark) {
		return true, &command.Error{Code: command.CodeConflict, Message: m.file + " was not written by ravi daemon install", Hint: "move it away", Exit: command.ExitFailed}
	}
	return true, nil
}

func (m manager) failed(err error) error {
	hint := "ravi daemon install --print shows what it would hold"
	if errors.Is(err, fs.ErrPermission) {
		hint = "only root may: sudo " + m.install
	}
	return &command.Error{Code: command.CodeUnavailable, Message: err.Error(), Hint: hint, Exit: command.ExitFailed, Err: err}
}

func (m manager) call(ctx context.Context, env *command.Env, lines [][]string) error {
	for _, line := range lines {
		shown := strings.Join(line, " ")
		done := env.Progress.Step(shown)
		out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
		done(err)
		if err != nil {
			said := strings.TrimSpace(string(out))
			if said == "" {
				said = err.Error()
			}
			return &command.Error{
				Code: command.CodeUnavailable, Message: fmt.Sprintf("%s: %s", shown, said), Exit: command.ExitFailed, Err: err,
				Hint: "the file is " + m.file + "; where no service manager runs, use ravi daemon start",
			}
		}
	}
	return nil
}
