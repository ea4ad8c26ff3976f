package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// program is a command of the host. It is kept from the terminal's signals,
// which are for the benchmark alone, and dies with it.
func program(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second // a child that holds the output must not hold up the run
	return cmd
}

// finish runs a command whose output is of no interest unless it fails.
func finish(cmd *exec.Cmd) error {
	var said tail
	if cmd.Stdout == nil {
		cmd.Stdout = &said
	}
	cmd.Stderr = &said
	return said.explain(cmd, cmd.Run())
}

// output runs a command and gives what it wrote.
func output(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	err := finish(cmd)
	return strings.TrimSpace(out.String()), err
}

// tail keeps the last part of what a program says, for an error.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-most):]
	return len(p), nil
}

func (t *tail) explain(cmd *exec.Cmd, err error) error {
	if err == nil {
		return nil
	}
	if said := strings.TrimSpace(string(t.b)); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return fmt.Errorf("%s: %w", cmd.Args[0], err)
}

// word is what the measured commands print.
const word = "ready\n"

var errNoWord = errors.New("the command did not print what it was to print")

// firstByte starts a command that prints word, and gives the time from its
// start to its first byte. It returns when the command has ended.
func firstByte(cmd *exec.Cmd) (time.Duration, error) {
	var said tail
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var first [1]byte
	n, readErr := io.ReadFull(out, first[:])
	took := time.Since(start)
	rest, restErr := io.ReadAll(io.LimitReader(out, 1<<10))
	if err := said.explain(cmd, cmd.Wait()); err != nil {
		return 0, err
	}
	if err := errors.Join(readErr, restErr); err != nil || string(first[:n])+string(rest) != word {
		return 0, fmt.Errorf("%s: %w", cmd.Args[0], errNoWord)
	}
	return took, nil
}

// background is a command that goes on running once it has printed word.
type background struct {
	cmd  *exec.Cmd
	stop context.CancelFunc
}

func startBackground(ctx context.Context, make func(context.Context) *exec.Cmd) (*background, error) {
	ctx, stop := context.WithCancel(ctx)
	cmd := make(ctx)
	var said tail
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		stop()
		return nil, err
	}
	got := [len(word)]byte{}
	if _, err := io.ReadFull(out, got[:]); err != nil || string(got[:]) != word {
		if ctx.Err() != nil {
			stop()
			_ = cmd.Wait()
			return nil, ctx.Err()
		}
		stop()
		return nil, errors.Join(fmt.Errorf("%s: %w", cmd.Args[0], errNoWord), said.explain(cmd, cmd.Wait()))
	}
	return &background{cmd, stop}, nil
}

// close ends the command. That it was killed is what was wanted.
func (b *background) close() {
	b.stop()
	_ = b.cmd.Wait()
}
