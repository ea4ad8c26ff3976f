package run

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/yamux"

	"ravi/internal/backend/remote"
	"ravi/internal/keeper"
	"ravi/internal/runner"
	"ravi/internal/store"
	"ravi/sandbox"
)

// memory is a session within this process.
type memory struct{ *yamux.Session }

func (m memory) Open(context.Context) (net.Conn, error) { return m.Session.Open() }
func (m memory) Done() <-chan struct{}                  { return m.CloseChan() }
func (m memory) Err() error                             { return nil }

// lender is a runner, and the last session to it.
type lender struct {
	*runner.Runner
	home string
	last memory
}

func newLender(t *testing.T) *lender {
	t.Helper()
	l := &lender{home: t.TempDir()}
	var err error
	l.Runner, err = runner.New(t.Context(), runner.Options{Home: l.home, Capacity: runner.Capacity{CPUs: 64, MemoryMiB: 64 << 10}})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// dial is for Options.Elsewhere.
func (l *lender) dial(t *testing.T, work *sync.WaitGroup) func(context.Context) (remote.Session, error) {
	return func(context.Context) (remote.Session, error) {
		a, b := net.Pipe()
		c := yamux.DefaultConfig()
		c.LogOutput, c.EnableKeepAlive = io.Discard, false
		ours, err := yamux.Client(a, c)
		if err != nil {
			return nil, err
		}
		theirs, err := yamux.Server(b, c)
		if err != nil {
			return nil, err
		}
		work.Go(func() { _ = l.Serve(context.Background(), memory{theirs}, t.Name()) })
		l.last = memory{ours}
		return l.last, nil
	}
}

// A run is the same wherever its sandbox is: what it needs gets there, what it changed comes back and is proven here.
func TestRunElsewhere(t *testing.T) {
	l := newLender(t)
	var work sync.WaitGroup
	defer work.Wait()
	o := onHost(t, `set -e; test -s "$RAVI_CONTEXT_DIR/README"; echo two >>a; echo new >b; echo said`)
	o.Config = sandbox.Default()
	o.Config.MemoryMiB = 512
	o.Elsewhere = l.dial(t, &work)
	o.Snapshot = true
	task, err := Run(t.Context(), o)
	must(t, err)
	if task.Status != store.RunSucceeded || task.Patch == nil || task.Patch.Files != 2 {
		t.Errorf("%+v", task)
	}
	out, err := os.ReadFile(filepath.Join(task.Dir, LogsDir, "stdout.log"))
	if err != nil || !strings.HasSuffix(string(out), "said\n") {
		t.Errorf("it said %q %v", out, err)
	}
	if s := l.Status(); s.Running != 0 {
		t.Errorf("the runner still has %+v", s)
	}
	boxes, err := o.Store.ListSandboxes(t.Context(), store.SandboxFilter{RunID: task.ID})
	if err != nil || len(boxes) != 1 || !boxes[0].Seen.Final() || boxes[0].Backend != sandbox.BackendGVisor {
		t.Errorf("its sandboxes are recorded as %+v %v", boxes, err)
	}
}

// A runner that is lost ends the run, with what was saved until then, and says why.
func TestRunLosesItsRunner(t *testing.T) {
	l := newLender(t)
	var work sync.WaitGroup
	defer work.Wait()
	o := onHost(t, `echo started; sleep 1000`)
	o.Config = sandbox.Default()
	o.Config.MemoryMiB = 512
	o.Elsewhere = l.dial(t, &work)
	o.Stdout = onWrite(func() {
		// From here it can only be ended with its run.
		boxes, err := o.Store.ListSandboxes(t.Context(), store.SandboxFilter{Live: true})
		if err != nil || len(boxes) != 1 {
			t.Errorf("its sandboxes are %+v %v", boxes, err)
		} else if err := (Sweeper{Home: o.Home, Store: o.Store}).Kill(t.Context(), boxes[0]); err == nil || l.Status().Running != 1 {
			t.Errorf("killing it from here: %v", err)
		}
		l.last.Close()
	})
	task, err := Run(t.Context(), o)
	if task == nil || task.Status == store.RunSucceeded || task.Reason != keeper.ReasonRunner {
		t.Errorf("%+v %v", task, err)
	}
	var end *sandbox.EndError
	if err != nil && !errors.As(err, &end) {
		t.Errorf("the error is %v", err)
	}
}

type onWrite func()

func (f onWrite) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}
