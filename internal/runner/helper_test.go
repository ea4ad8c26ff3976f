package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"ravi/internal/backend/remote"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if home := os.Getenv(runnerEnv); home != "" {
		os.Exit(runAlone(home))
	}
	os.Exit(m.Run())
}

// runnerEnv has this program be a runner with that home, whose one session is its descriptor 3.
const runnerEnv = "RAVI_TEST_RUNNER"

func runAlone(home string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	r, err := New(context.Background(), Options{Home: home, Capacity: Capacity{CPUs: 64, MemoryMiB: 64 << 10}})
	if err != nil {
		return fail(err)
	}
	c, err := net.FileConn(os.NewFile(3, "session"))
	if err != nil {
		return fail(err)
	}
	s, err := yamux.Server(c, config())
	if err != nil {
		return fail(err)
	}
	if err := r.Serve(context.Background(), memory{s}, "alone"); err != nil {
		return fail(err)
	}
	return 0
}

// memory is a session within this machine.
type memory struct{ *yamux.Session }

func (m memory) Open(ctx context.Context) (net.Conn, error) {
	c, err := m.Session.Open()
	if err == nil && ctx.Err() != nil {
		c.Close()
		err = context.Cause(ctx)
	}
	return c, err
}

func (m memory) Done() <-chan struct{} { return m.CloseChan() }

func (m memory) Err() error {
	select {
	case <-m.CloseChan():
		return errors.New("the wire was cut")
	default:
		return nil
	}
}

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = io.Discard
	c.EnableKeepAlive = false
	return c
}

// session makes one of a connection; home opened it.
func session(t testing.TB, c net.Conn, home bool) remote.Session {
	t.Helper()
	make := yamux.Server
	if home {
		make = yamux.Client
	}
	s, err := make(c, config())
	if err != nil {
		t.Fatal(err)
	}
	return memory{s}
}

// wire are the two ends of a connection.
func wire(t testing.TB) (home, runner net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "wire")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return ends[0], ends[1]
}

// rig is a runner, and sessions to it.
type rig struct {
	*Runner
	home string // of the sandboxes' owner

	mu   sync.Mutex
	last net.Conn // home's end of the last session
	tap  func(net.Conn) net.Conn
	via  func(testing.TB) remote.Session // nil: within this machine
	work sync.WaitGroup
}

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	if o.Home == "" {
		o.Home = t.TempDir()
	}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if o.Capacity == (Capacity{}) {
		o.Capacity = Capacity{CPUs: 64, MemoryMiB: 64 << 10}
	}
	r, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{Runner: r, home: t.TempDir()}
	t.Cleanup(func() {
		g.work.Wait()
		if n := r.Status().Running; n != 0 {
			t.Errorf("the runner still has %d sandboxes", n)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// dial opens a session.
func (g *rig) dial(t testing.TB) remote.Session {
	if g.via != nil {
		return g.via(t)
	}
	a, b := wire(t)
	g.mu.Lock()
	g.last = a
	if g.tap != nil {
		a = g.tap(a)
	}
	g.mu.Unlock()
	g.work.Go(func() { _ = g.Serve(context.Background(), session(t, b, false), "test") })
	return session(t, a, true)
}

func (g *rig) backend(t testing.TB) *remote.Backend {
	return remote.Dial(func(context.Context) (remote.Session, error) { return g.dial(t), nil })
}

// open opens a sandbox on the runner, which the test closes.
func (g *rig) open(t testing.TB, change func(*sandbox.Config), opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	sb, err := g.tryOpen(t, change, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("closing the sandbox: %v", err)
		}
	})
	return sb
}

func (g *rig) tryOpen(t testing.TB, change func(*sandbox.Config), opts ...sandbox.Option) (*sandbox.Sandbox, error) {
	cfg := sandbox.Default()
	cfg.MemoryMiB = 512
	if change != nil {
		change(&cfg)
	}
	return sandbox.Open(context.WithoutCancel(t.Context()), cfg, "", append(opts, sandbox.WithHome(g.home), sandbox.WithBackend(g.backend(t)))...)
}

// sh runs a line that must succeed.
func sh(t testing.TB, sb *sandbox.Sandbox, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the test hangs"))
	defer cancel()
	r, err := sb.Exec(ctx, sandbox.Cmd{Shell: line})
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("%s: %v, exit code %d\n%s%s", line, err, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
