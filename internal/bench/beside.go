package bench

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Names of what can be measured beside Ravi's own sandboxes.
const (
	besideRunsc  = "runsc"
	besideDocker = "docker"
	besidePodman = "podman"
	besideBwrap  = "bwrap"
)

// bare is what runs on the host itself.
const bare = "bare"

// errMissing says that what was to be measured is not here, which is no failure.
var errMissing = errors.New("not here")

// engine is another way to run a command apart from the host, by a program
// that is started for each command.
type engine struct {
	label string
	// run starts what it makes, under a name, with a command in it; exec runs
	// another command in it, and is nil where there is no such thing.
	run  func(ctx context.Context, name string, argv ...string) *exec.Cmd
	exec func(ctx context.Context, name string, argv ...string) *exec.Cmd
	// end makes sure that what has the name is gone; close removes everything
	// that was made.
	end   func(ctx context.Context, name string) error
	close func(ctx context.Context) error
	// whole says that all the memory it takes is that of the started program
	// and its descendants.
	whole bool
	count int
}

func (e *engine) by() string { return e.label }

func (e *engine) name() string {
	e.count++
	return fmt.Sprintf("%s-%d-%d", containerPrefix, os.Getpid(), e.count)
}

const containerPrefix = "ravi-bench"

func (e *engine) cold(ctx context.Context) (cold, error) {
	name := e.name()
	took, err := firstByte(e.run(ctx, name, "/bin/echo", strings.TrimSpace(word)))
	if err != nil {
		err = errors.Join(err, e.ended(ctx, name))
	}
	return cold{first: took}, err
}

func (e *engine) ended(ctx context.Context, name string) error {
	if e.end == nil {
		return nil
	}
	ctx, cancel := cleaning(ctx)
	defer cancel()
	return e.end(ctx, name)
}

// open starts one that lives, to run commands in.
func (e *engine) open(ctx context.Context) (session, error) {
	name := e.name()
	b, err := startBackground(ctx, func(ctx context.Context) *exec.Cmd {
		return e.run(ctx, name, "/bin/sh", "-c", "echo "+strings.TrimSpace(word)+"; exec sleep 86400")
	})
	if err != nil {
		return nil, errors.Join(err, e.ended(ctx, name))
	}
	return &engineSession{e: e, name: name, background: b}, nil
}

type engineSession struct {
	e          *engine
	name       string
	background *background
}

func (s *engineSession) exec(ctx context.Context) (time.Duration, error) {
	cmd := s.e.exec(ctx, s.name, "/bin/true")
	start := time.Now()
	err := finish(cmd)
	return time.Since(start), err
}

func (s *engineSession) pid() int { return s.background.cmd.Process.Pid }

func (s *engineSession) close(ctx context.Context) error {
	s.background.close()
	return s.e.ended(ctx, s.name)
}

// newRunsc is the kernel of Ravi's own sandboxes, as plain runsc.
func newRunsc(dir, kernel string, image image) *engine {
	state := filepath.Join(dir, "runsc")
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		flags := []string{"--root=" + state, "--platform=systrap", "--network=none", "--ignore-cgroups"}
		if os.Geteuid() != 0 {
			flags = append(flags, "--rootless")
		}
		cmd := program(ctx, kernel, append(flags, args...)...)
		cmd.Args[0] = "runsc"
		return cmd
	}
	e := &engine{
		label: besideRunsc, whole: true,
		exec: func(ctx context.Context, name string, argv ...string) *exec.Cmd {
			return command(ctx, append([]string{"exec", name}, argv...)...)
		},
	}
	e.run = func(ctx context.Context, name string, argv ...string) *exec.Cmd {
		// What to run stands in the bundle, so there is one for each command.
		bundle := filepath.Join(dir, name)
		cmd := command(ctx, "run", "--bundle", bundle, name)
		if err := image.bundle(bundle, argv); err != nil {
			cmd.Err = err
		}
		return cmd
	}
	e.end = func(ctx context.Context, name string) error {
		known, err := output(command(ctx, "list", "--quiet"))
		if err != nil {
			return err
		}
		for id := range strings.FieldsSeq(known) {
			if id == name {
				return finish(command(ctx, "delete", "--force", name))
			}
		}
		return nil
	}
	return e
}

// newContainers is docker, or podman, whose commands are the same.
func newContainers(ctx context.Context, label string, image image) (*engine, error) {
	if _, err := exec.LookPath(label); err != nil {
		return nil, fmt.Errorf("%w: it is not installed", errMissing)
	}
	asking, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	info := program(asking, label, "info")
	info.Stdout = io.Discard
	if err := finish(info); err != nil {
		return nil, fmt.Errorf("%w: not running: %w", errMissing, err)
	}
	tag := fmt.Sprintf("%s:%d", containerPrefix, os.Getpid())
	load := program(ctx, label, "import", "-", tag)
	r, w := io.Pipe()
	go func() { w.CloseWithError(image.tar(w)) }()
	load.Stdin = r
	err := finish(load)
	r.Close()
	if err != nil {
		return nil, err
	}
	mine := fmt.Sprintf("%s=%d", containerPrefix, os.Getpid())
	return &engine{
		label: label,
		run: func(ctx context.Context, name string, argv ...string) *exec.Cmd {
			args := []string{"run", "--rm", "--network", "none", "--name", name, "--label", mine}
			for _, h := range image.host {
				args = append(args, "--volume", h+":"+h+":ro")
			}
			return program(ctx, label, append(append(args, tag), argv...)...)
		},
		exec: func(ctx context.Context, name string, argv ...string) *exec.Cmd {
			return program(ctx, label, append([]string{"exec", name}, argv...)...)
		},
		end: func(ctx context.Context, name string) error { return removeContainers(ctx, label, "name=^"+name+"$") },
		close: func(ctx context.Context) error {
			return errors.Join(removeContainers(ctx, label, "label="+mine), finish(program(ctx, label, "rmi", "--force", tag)))
		},
	}, nil
}

// removeContainers removes what a filter finds; one that is on its way out by
// itself is no error.
func removeContainers(ctx context.Context, label, filter string) error {
	list := func() (string, error) {
		return output(program(ctx, label, "ps", "--all", "--quiet", "--filter", filter))
	}
	ids, err := list()
	if err != nil || ids == "" {
		return err
	}
	err = finish(program(ctx, label, append([]string{"rm", "--force"}, strings.Fields(ids)...)...))
	if left, listErr := list(); listErr == nil && left == "" {
		return nil
	}
	return err
}

// newBwrap is bubblewrap: namespaces only, with the host's own kernel.
func newBwrap(image image) (*engine, error) {
	if _, err := exec.LookPath(besideBwrap); err != nil {
		return nil, fmt.Errorf("%w: it is not installed", errMissing)
	}
	return &engine{
		label: besideBwrap,
		run: func(ctx context.Context, _ string, argv ...string) *exec.Cmd {
			args := []string{"--unshare-all", "--die-with-parent", "--ro-bind", image.dir, "/"}
			for _, h := range image.host {
				args = append(args, "--ro-bind", h, h)
			}
			args = append(args, "--proc", "/proc", "--dev", "/dev")
			return program(ctx, besideBwrap, append(args, argv...)...)
		},
	}, nil
}

// image is the root file system that all contenders get: a small folder, and
// folders of the host laid into it.
type image struct {
	dir  string
	host []string
	// from is laid, read-only, over to; empty: nothing is.
	from, to string
}

// with has something of the host laid into the image of runsc.
func (i image) with(from, to string) image {
	i.from, i.to = from, to
	return i
}

// tar writes the folder as an archive.
func (i image) tar(w io.Writer) error {
	t := tar.NewWriter(w)
	if err := t.AddFS(os.DirFS(i.dir)); err != nil {
		return err
	}
	return t.Close()
}
