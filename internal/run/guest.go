package run

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/gitbox"
	"ravi/sandbox"
)

// guest lets gitbox work in a sandbox.
type guest struct{ sb *sandbox.Sandbox }

var _ gitbox.Guest = guest{}

// Run runs a command of gitbox's.
func (g guest) Run(ctx context.Context, c gitbox.Command) (int, string, error) {
	env := map[string]string{}
	for _, kv := range c.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return 0, "", fmt.Errorf("the variable %q has no value", kv)
		}
		env[k] = v
	}
	errs := &lastBytes{most: 8 << 10}
	p, err := g.sb.Start(ctx, sandbox.Cmd{Args: c.Args, GuestDir: c.Dir, User: c.User, Env: env, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: errs})
	if err != nil {
		return 0, "", err
	}
	st, err := p.Wait()
	if err != nil {
		return 0, errs.String(), err
	}
	if ctx.Err() != nil {
		return 0, errs.String(), context.Cause(ctx)
	}
	return st.ExitCode, errs.String(), nil
}

// PutTar lays out an archive.
func (g guest) PutTar(ctx context.Context, user, dir string, r io.Reader) error {
	return putMoving(ctx, r, func(ctx context.Context, r io.Reader) error { return g.sb.Files().As(user).Untar(ctx, dir, r) })
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	most int
	b    []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if over := len(l.b) - l.most; over > 0 {
		l.b = append(l.b[:0], l.b[over:]...)
	}
	return len(p), nil
}

func (l *lastBytes) String() string { return string(l.b) }

// layout says where the repository is in the sandbox. On the host itself that
// is the sandbox's own directory, and there is only the caller to be anybody.
func (s *state) layout() gitbox.Layout {
	if s.sb.Backend() != sandbox.BackendHost {
		return gitbox.DefaultLayout
	}
	work := s.sb.Workspace()
	return gitbox.Layout{Work: work, Private: filepath.Join(filepath.Dir(work), "private"), User: s.sb.User(), Root: s.sb.User()}
}

// enterWithin bounds the way of a repository into the sandbox: whatever holds it up in there, the run ends and says so.
const enterWithin = 30 * time.Minute

func (s *state) enterInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, enterWithin, fmt.Errorf("the repository was not in the sandbox within %v", enterWithin))
	defer cancel()
	return s.enter(ctx)
}

func (s *state) enter(ctx context.Context) error {
	if err := s.base.Enter(ctx, guest{s.sb}, s.layout()); err != nil {
		return err
	}
	if s.Task == "" {
		return nil
	}
	return s.sb.Files().Write(ctx, s.layout().Work+"/"+TaskTextFile, strings.NewReader(s.Task))
}
