package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ravi/internal/procid"
	"ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

// stageEnv makes this test program a daemon: of the home that it names, and with so many sandboxes to make.
const stageEnv = "RAVI_TEST_DAEMON"

func init() {
	if stage := os.Getenv(stageEnv); stage != "" {
		if err := beDaemon(stage); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// mark is a file in a sandbox, which holds its id.
const mark = "/tmp/mark"

func beDaemon(stage string) error {
	var home string
	var count int
	if _, err := fmt.Sscan(stage, &home, &count); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := store.Open(ctx, home)
	if err != nil {
		return err
	}
	defer s.Close()
	log := NewLogger(os.Stderr, true)
	boxes := &Sandboxes{Home: home, Store: s, Log: log}
	sweeper := run.Sweeper{Home: home, Store: s}
	var said sync.Mutex
	say := func(words ...any) {
		said.Lock()
		defer said.Unlock()
		fmt.Println(words...)
	}
	swept := false
	var making sync.WaitGroup
	d := New(Options{
		Home: home, Store: s, Boxes: boxes, Drain: time.Second, Log: log, SweepEvery: 100 * time.Millisecond,
		Sweep: func(ctx context.Context) (store.Swept, error) {
			r, err := sweeper.Prune(ctx)
			if err == nil && len(r.Problems) == 0 && !swept {
				swept = true
				say("swept")
			}
			return r, err
		},
		Ready: func() {
			room := make(chan struct{}, 4)
			for range count {
				making.Go(func() {
					room <- struct{}{}
					defer func() { <-room }()
					c := sandbox.Default()
					c.Backend, c.MemoryMiB = sandbox.BackendGVisor, 256
					row, _, err := boxes.Create(ctx, Wanted{CreatedBy: "operator", Config: c, Grace: time.Minute})
					if err == nil {
						held, ok := boxes.Get(row.ID)
						if !ok {
							err = errors.New("it is not held")
						} else {
							err = held.Files().Write(ctx, mark, strings.NewReader(row.ID))
						}
					}
					if err != nil {
						say("error", err)
						return
					}
					say("made", row.ID)
				})
			}
			say("ready")
		},
	})
	err = d.Run(ctx, http.NotFoundHandler())
	making.Wait()
	return err
}

// daemonOf starts this program as the daemon of a home. next gives what it says, word after word.
func daemonOf(t *testing.T, home string, count int) (id procid.ID, next func() string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", stageEnv, home, count))
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if id, err = procid.Of(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, if all went well
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	return id, func() string {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		if strings.HasPrefix(line, "error") {
			t.Error(line)
		}
		return strings.TrimSpace(line)
	}
}

// A daemon is killed while some of its sandboxes run and others are being made. The next one has those that ran, with what
// is in them, and ends the others; and when it is asked to end, nothing is left of any.
func TestKilledAmongItsSandboxes(t *testing.T) {
	if err := sandboxtest.UseProgram(); err != nil {
		t.Fatal(err)
	}
	h := home(t)
	s := open(t, h)
	first, next := daemonOf(t, h, 10)
	made := map[string]bool{}
	for len(made) < 5 {
		word := next()
		if word == "" {
			t.Fatal("it ended by itself")
		}
		if id, ok := strings.CutPrefix(word, "made "); ok {
			made[id] = true
		}
	}
	if err := procid.Signal(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for word := next(); word != ""; word = next() { // it may have made more
		if id, ok := strings.CutPrefix(word, "made "); ok {
			made[id] = true
		}
	}
	recorded, err := s.ListSandboxes(t.Context(), store.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("killed with %d made, %d recorded", len(made), len(recorded))

	second, next := daemonOf(t, h, 0)
	for word := next(); word != "swept"; word = next() {
		if word == "" {
			t.Fatal("the next one did not start")
		}
	}
	for id := range made {
		b, err := s.Sandbox(t.Context(), id)
		if err != nil || b.Owner != second || b.Seen != store.SeenRunning {
			t.Errorf("%s, which ran: %+v, %v", id, b, err)
			continue
		}
		held, err := sandbox.Attach(t.Context(), id, sandbox.WithHome(h))
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		res, err := held.Exec(t.Context(), sandbox.Cmd{Args: []string{"cat", mark}})
		if err != nil || res.Stdout != id {
			t.Errorf("what is in %s: %+v, %v", id, res, err)
		}
		if err := held.Close(); err != nil {
			t.Error(err)
		}
	}
	// Every other is the next one's as well, or over.
	until(t, func() (left []string) {
		live, err := s.ListSandboxes(t.Context(), store.SandboxFilter{Live: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range live {
			if b.Owner != second {
				left = append(left, fmt.Sprintf("%s is %s, of %s", b.ID, b.Seen, b.Owner))
			}
		}
		return left
	})
	if err := procid.Signal(second, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for next() != "" {
	}
	until(t, func() []string { return remains(t, s, h) })
}

// until waits until nothing is left.
func until(t *testing.T, look func() []string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute) // a grace may have to end first
	for left := look(); len(left) > 0; left = look() {
		if time.Now().After(deadline) {
			t.Fatalf("left:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// remains is what is on this machine of all sandboxes that were ever recorded.
func remains(t *testing.T, s *store.Store, home string) (left []string) {
	t.Helper()
	all, err := s.ListSandboxes(t.Context(), store.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, b := range all {
		ids = append(ids, b.ID)
		if !b.Seen.Final() {
			left = append(left, b.ID+" is recorded as "+string(b.Seen))
		}
		if procid.Alive(b.Keeper) {
			left = append(left, "the keeper of "+b.ID)
		}
		if strings.Contains(string(mounts), b.ID) {
			left = append(left, "a mount of "+b.ID)
		}
		for _, pattern := range []string{filepath.Join(home, "sandboxes", b.ID), "/sys/fs/cgroup/ravi/" + b.ID, "/sys/fs/cgroup/*/ravi/" + b.ID} {
			found, _ := filepath.Glob(pattern) // the pattern is well-formed
			left = append(left, found...)
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, p := range processes {
		cgroup, _ := os.ReadFile(p + "/cgroup") // it may have ended since
		cmdline, _ := os.ReadFile(p + "/cmdline")
		about := string(cgroup) + string(cmdline)
		if slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(about, id) }) {
			left = append(left, fmt.Sprintf("%s %q", p, cmdline))
		}
	}
	return left
}
