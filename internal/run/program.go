package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"ravi/internal/filelock"
	"ravi/sandbox"
)

// holdProgram keeps the folder of the run's agent program there until it is freed: of those that nobody holds, the older
// ones are taken away when a newer one is installed.
func (s *state) holdProgram() (free func(), err error) {
	if s.Agent == nil || s.Agent.Dir == "" {
		return func() {}, nil
	}
	gone := func(err error) error {
		return WithHint(fmt.Errorf("%s was taken away while the run began: %w", s.Agent.Program.Title, err), "start the run again")
	}
	f, err := os.Open(s.Agent.Dir)
	if err != nil {
		return nil, gone(err)
	}
	held, err := filelock.Try(f, syscall.LOCK_SH)
	if err == nil && !held {
		err = errors.New("it is being removed")
	}
	if err == nil {
		err = sameFile(f, s.Agent.Dir)
	}
	if err != nil {
		f.Close()
		return nil, gone(err)
	}
	return func() { f.Close() }, nil
}

// sameFile says whether what is open is still what lies at a path.
func sameFile(f *os.File, path string) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	if err == nil && !os.SameFile(open, there) {
		err = fmt.Errorf("%s is another one now", path)
	}
	return err
}

// checkNode looks inside whether the Node.js that the agent program is a script for is there and new enough.
func (s *state) checkNode(ctx context.Context) error {
	if s.Agent == nil || !s.Agent.CheckNode {
		return nil
	}
	limit := time.Minute
	r, err := s.sb.Exec(ctx, sandbox.Cmd{Args: []string{"node", "--version"}, Timeout: &limit})
	said := ""
	switch {
	case errors.Is(err, sandbox.ErrCommandNotFound):
	case err != nil:
		return &failure{"agent", err}
	case r.ExitCode == 0:
		said = string(r.Stdout)
	}
	if err := s.Agent.Program.CheckNode(said); err != nil {
		hint := fmt.Sprintf("take an image that has it, such as node:%d", s.Agent.Program.Node+2)
		if s.Config.Image == "host" {
			hint = "it is to be installed in /usr of the host: apt-get install -y nodejs"
		}
		return &failure{"agent", WithHint(fmt.Errorf("%w in the image %s", err, s.Config.Image), hint)}
	}
	return nil
}
