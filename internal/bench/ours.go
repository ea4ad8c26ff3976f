package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ravi/internal/run"
	"ravi/sandbox"
)

// ours is the backend that is built in, and that the goals are for.
const ours = sandbox.BackendGVisor

func isOurs(by string) bool {
	return by == sandbox.BackendGVisor || by == sandbox.BackendHost+" backend" || slices.Contains([]string{byKey, byOperator, byWhole, byKilled, atStart, afterCalls, byBroker, unrecorded, bigBody, byTool, byExec, byInside, byOrdinary, fromSend, bySandbox, atHome, busAdds, onRunner, runnersBy(1), runnersBy(2), runnersBy(3)}, by) || strings.HasSuffix(by, turnBy("", ours))
}

// box is a backend of ours as a contender.
type box struct {
	backend string
	home    string
	record  *recorder
}

func (x *box) by() string {
	if x.backend == sandbox.BackendHost {
		return x.backend + " backend" // "host" alone would sound like the bare host
	}
	return x.backend
}

// sandbox makes one, with the defaults that a user gets.
func (x *box) sandbox(ctx context.Context, opts ...sandbox.Option) (*sandbox.Sandbox, error) {
	cfg := sandbox.Default()
	cfg.Backend = x.backend
	return sandbox.Open(ctx, cfg, "", append(opts, sandbox.WithHome(x.home), sandbox.WithRecorder(x.record))...)
}

// cold makes a sandbox, runs one command in it and ends it.
func (x *box) cold(ctx context.Context) (c cold, err error) {
	start := time.Now()
	sb, err := x.sandbox(ctx)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	c.create = time.Since(start)
	out := &stamp{start: start}
	p, err := sb.Start(ctx, sandbox.Cmd{Args: []string{"/bin/echo", strings.TrimSpace(word)}, Stdout: out})
	if err != nil {
		return c, err
	}
	if err := ended(p.Wait()); err != nil {
		return c, err
	}
	if out.text.String() != word {
		return c, errNoWord
	}
	c.first = out.first
	return c, nil
}

func (x *box) open(ctx context.Context) (session, error) {
	sb, err := x.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	return &boxSession{sb, x.record.keeper(sb.ID)}, nil
}

type boxSession struct {
	sb     *sandbox.Sandbox
	keeper int
}

func (s *boxSession) exec(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	p, err := s.sb.Start(ctx, sandbox.Cmd{Args: []string{"/bin/true"}})
	if err != nil {
		return 0, err
	}
	err = ended(p.Wait())
	return time.Since(start), err
}

func (s *boxSession) pid() int { return s.keeper }

func (s *boxSession) close(context.Context) error { return s.sb.Close() }

// errNoPython says that the spawn inside cannot be measured.
var errNoPython = errors.New("there is no python3 in the sandbox to measure it with")

// spawnLoop starts a command the way that most programs start others, so often,
// and prints how long each took, in seconds.
const spawnLoop = `import os, sys, time
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    _, status = os.waitpid(os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ), 0)
    took = time.perf_counter() - start
    if status != 0:
        sys.exit("%s: status %d" % (sys.argv[2], status))
    print(took)
`

// spawns measures n times a command that is started by a program inside.
func (s *boxSession) spawns(ctx context.Context, n int, argv ...string) ([]time.Duration, error) {
	res, err := s.sb.Exec(ctx, sandbox.Cmd{Args: append([]string{"python3", "-c", spawnLoop, strconv.Itoa(n)}, argv...)})
	if errors.Is(err, sandbox.ErrCommandNotFound) {
		return nil, errNoPython
	}
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 {
		return nil, fmt.Errorf("python3: %s", res.Text(400))
	}
	return parseSpawns(res.Stdout, n)
}

func parseSpawns(text string, n int) ([]time.Duration, error) {
	var out []time.Duration
	for field := range strings.FieldsSeq(text) {
		seconds, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, fmt.Errorf("python3 was to print times, and printed %q", field)
		}
		out = append(out, time.Duration(seconds*float64(time.Second)))
	}
	if len(out) != n {
		return nil, fmt.Errorf("python3 printed %d times, not %d", len(out), n)
	}
	return out, nil
}

// ended makes an error of a command that did not end well.
func ended(st sandbox.Status, err error) error {
	if err == nil && (st.ExitCode != 0 || st.Reason != "") {
		err = fmt.Errorf("the command ended with %d %s", st.ExitCode, st.Reason)
	}
	return err
}

// stamp keeps what is written to it, and when the first byte came.
type stamp struct {
	start time.Time
	first time.Duration
	text  bytes.Buffer
}

func (s *stamp) Write(p []byte) (int, error) {
	if s.first == 0 {
		s.first = time.Since(s.start)
	}
	return s.text.Write(p)
}

// recorder writes every sandbox of the benchmark down like any other, so that
// a sweep finds what a crash leaves. It also remembers the keepers.
type recorder struct {
	run.Recorder

	mu      sync.Mutex
	keepers map[string]int
}

var _ sandbox.Recorder = (*recorder)(nil)

func (r *recorder) keeper(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keepers[id]
}

// Created implements sandbox.Recorder.
func (r *recorder) Created(ctx context.Context, id string, pid int) error {
	r.mu.Lock()
	r.keepers[id] = pid
	r.mu.Unlock()
	return r.Recorder.Created(ctx, id, pid)
}
