package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ravi/internal/procid"
)

// CodeRuns is the code of a daemon that did not start since another runs.
const CodeRuns = "CONFLICT"

// envStarter says, to a daemon in the background, that whoever started it waits at starterFD.
const (
	envStarter = "RAVI_DAEMON_STARTER"
	starterFD  = 3
)

// Starter is who started this process as a daemon in the background, and waits to hear how that went.
type Starter struct{ pipe *os.File }

// StarterOf gives the starter of this process, nil if it was not started as a daemon in the background.
func StarterOf() *Starter {
	if os.Getenv(envStarter) == "" {
		return nil
	}
	os.Unsetenv(envStarter)
	syscall.CloseOnExec(starterFD) // else all that this one starts would keep the starter waiting
	return &Starter{os.NewFile(starterFD, "starter")}
}

// word is what a daemon tells its starter.
type word struct {
	Ready   bool     `json:"ready"`
	Problem *Refusal `json:"problem,omitempty"`
}

// Ready tells that the daemon accepts calls.
func (s *Starter) Ready() { s.tell(word{Ready: true}) }

// Failed tells why there is no daemon.
func (s *Starter) Failed(why Refusal) { s.tell(word{Problem: &why}) }

func (s *Starter) tell(w word) {
	if s == nil {
		return
	}
	// A starter that has gone hears nothing, and the second word is none.
	_ = json.NewEncoder(s.pipe).Encode(w)
	s.pipe.Close()
}

// Ensure is the daemon of a home, which is started if none runs; step shows that.
func Ensure(ctx context.Context, home string, step func(name string) (done func(error)), flags ...string) (State, error) {
	s, err := ReadState(home)
	if errors.Is(err, ErrNotRunning) {
		done := step("Start the daemon")
		s, err = Start(ctx, home, flags...)
		done(err)
	}
	return s, err
}

// Start starts this program as the daemon of a home, in the background, and returns when it accepts calls. If another
// process is quicker, that one is the daemon. A *Refusal says why there is none. flags are those of ravi daemon run.
func Start(ctx context.Context, home string, flags ...string) (s State, err error) {
	program, err := os.Executable()
	if err != nil {
		return s, err
	}
	log, err := OpenLog(filepath.Join(home, LogFile), false)
	if err != nil {
		return s, err
	}
	defer log.Close()
	from, err := log.file.Seek(0, io.SeekEnd)
	if err != nil {
		return s, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return s, err
	}
	defer r.Close()
	cmd := exec.Command(program, append([]string{"daemon", "run"}, flags...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log.file, log.file, []*os.File{w}
	cmd.Env = append(os.Environ(), "RAVI_HOME="+home, envStarter+"=1")
	// A session of its own: neither the terminal's end nor its Ctrl-C reaches the daemon.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return s, fmt.Errorf("cannot start the daemon: %w", err)
	}
	heard := make(chan word, 1)
	go func() {
		var said word
		_ = json.NewDecoder(bufio.NewReader(r)).Decode(&said) // one that died says nothing
		heard <- said
		_ = cmd.Wait() // as long as this process is there
	}()
	select {
	case said := <-heard:
		if said.Ready {
			return ReadState(home)
		}
		if said.Problem != nil && said.Problem.Code == CodeRuns {
			return other(ctx, home, said.Problem)
		}
		if said.Problem != nil {
			return s, said.Problem
		}
	case <-ctx.Done():
		return s, context.Cause(ctx)
	}
	tail := make([]byte, 16<<10)
	n, _ := log.file.ReadAt(tail, from)
	return s, &Refusal{Message: "the daemon ended before it was ready:\n" + strings.TrimSpace(string(tail[:n])), Hint: "see ravi daemon logs"}
}

// other is the daemon that was quicker. It holds the place before it can be reached there.
func other(ctx context.Context, home string, refusal error) (State, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, refusal)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if s, err := ReadState(home); !errors.Is(err, ErrNotRunning) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return State{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// SignalKeep is the signal that ends a daemon and leaves its sandboxes for the next one; SIGTERM ends them as well.
const SignalKeep = syscall.SIGUSR1

// Stop asks the daemon of a home to end, and waits until it has. That none runs is no error.
func Stop(ctx context.Context, home string, keep bool) error {
	s, err := ReadState(home)
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	signal := syscall.SIGTERM
	if keep {
		signal = SignalKeep
	}
	if err := procid.Signal(s.Process, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("the daemon (process %d): %w", s.Process.PID, err)
	}
	return procid.Wait(ctx, s.Process)
}
