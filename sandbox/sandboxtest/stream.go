package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ravi/sandbox"
)

// output: what a command wrote arrives byte for byte, or it is told.
func (s suite) output(t *testing.T) {
	r := s.room(t)
	t.Run("three-byte characters", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: `yes '€' | tr -d '\n' | head -c 300000`})
		equal(t, "output", res.Stdout, strings.Repeat("€", 100_000))
		equal(t, "truncated", res.Truncated, false)
	})
	t.Run("a character in pieces", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: `printf '\342'; sleep 0.1; printf '\202'; sleep 0.1; printf '\254'`})
		equal(t, "output", res.Stdout, "€")
	})
	t.Run("every byte on both streams", func(t *testing.T) {
		var all []byte
		for i := range 256 {
			all = append(all, byte(i))
		}
		want := bytes.Repeat(all, 300)
		r.put(t, "bytes", string(want), 0o644)
		res := r.run(t, sandbox.Cmd{Shell: `cat bytes & cat bytes >&2; wait`})
		equal(t, "output", res.Stdout, string(want))
		equal(t, "errors", res.Stderr, string(want))
		equal(t, "bytes of output", res.StdoutBytes, int64(len(want)))
		equal(t, "bytes of errors", res.StderrBytes, int64(len(want)))
	})
	t.Run("20 MB", func(t *testing.T) {
		sum := sha256.New()
		res := r.run(t, sandbox.Cmd{Shell: `head -c 20000000 /dev/urandom > big; sha256sum < big >&2; cat big`, Stdout: sum})
		want, _, _ := strings.Cut(res.Stderr, " ")
		equal(t, "sha256", hex.EncodeToString(sum.Sum(nil)), want)
		equal(t, "bytes", res.StdoutBytes, int64(20_000_000))
	})
	t.Run("bound", func(t *testing.T) {
		const most = 1000
		line := `i=0; while [ $i -lt 1000 ]; do printf '%04d' $i; i=$((i+1)); done`
		var whole strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&whole, "%04d", i)
		}
		res := r.run(t, sandbox.Cmd{Shell: line, MaxOutput: most})
		equal(t, "output", res.Stdout, whole.String()[:most/2]+"\n... (3000 bytes truncated) ...\n"+whole.String()[4000-most/2:])
		equal(t, "truncated", res.Truncated, true)
		equal(t, "bytes", res.StdoutBytes, int64(4000))
		res = r.run(t, sandbox.Cmd{Shell: line, MaxOutput: 4000})
		equal(t, "output that just fits", res.Stdout, whole.String())
		equal(t, "truncated", res.Truncated, false)
	})
	t.Run("the default bound", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: `head -c 3000000 /dev/zero`})
		equal(t, "truncated", res.Truncated, true)
		equal(t, "bytes", res.StdoutBytes, int64(3_000_000))
		if n := strings.Count(res.Stdout, "\x00"); n != 1<<20 {
			t.Errorf("%d bytes kept, want 1 MiB", n)
		}
	})
	t.Run("no end of line", func(t *testing.T) {
		equal(t, "output", r.sh(t, "printf x"), "x")
	})
	t.Run("a grandchild holds the output", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: `sleep 43.7 & echo hi`})
		equal(t, "output", res.Stdout, "hi\n")
		equal(t, "exit code", res.ExitCode, 0)
		equal(t, "truncated", res.Truncated, true)
		if r.alive(t, "sleep 43.7") == "" {
			t.Error("what was started in the background was ended")
		}
	})
	t.Run("it closes its output and goes on", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: `echo a; exec 1>&-; sleep 0.2; echo late >&2; exec 2>&-; sleep 0.2; exit 7`})
		equal(t, "output", res.Stdout, "a\n")
		equal(t, "errors", res.Stderr, "late\n")
		equal(t, "exit code", res.ExitCode, 7)
		equal(t, "truncated", res.Truncated, false)
	})
	t.Run("1,000 orphans", func(t *testing.T) {
		r.sh(t, `i=0; while [ $i -lt 1000 ]; do (: &); i=$((i+1)); done`)
		if s.f.Isolated {
			eventually(t, "no zombie is left", func() bool {
				return r.sh(t, `grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`) == "0\n"
			})
		}
		equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
	})
}

// stream: commands that are used while they run, and may have lanes.
func (s suite) stream(t *testing.T, lane bool) {
	r := s.room(t)
	r.lane = lane
	t.Run("conversation", func(t *testing.T) {
		out := newBuffer()
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `while read x; do echo "<$x>"; done; echo end`, Stdin: never(t), Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"one", "two", "three"} {
			if err := p.Write(ctx(t), []byte(word+"\n")); err != nil {
				t.Fatal(err)
			}
			out.waitFor(t, "<"+word+">")
		}
		if err := p.CloseStdin(ctx(t)); err != nil {
			t.Fatal(err)
		}
		wait(t, p, sandbox.Status{})
		equal(t, "output", out.String(), "<one>\n<two>\n<three>\nend\n")
	})
	t.Run("signal", func(t *testing.T) {
		out := newBuffer()
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.05; done`, Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "ready")
		if err := p.Signal(ctx(t), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		wait(t, p, sandbox.Status{ExitCode: 5})
		equal(t, "output", out.String(), "ready\ngot it\n")
		if err := p.Signal(ctx(t), syscall.SIGTERM); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("a signal to one that has ended: %v, want ErrNotFound", err)
		}
	})
	t.Run("kill", func(t *testing.T) {
		// Some of those that leave its session do so while it is being killed. A lane is for one process, and there are few.
		times := 20
		if lane {
			times = 1
		}
		for range times {
			out := newBuffer()
			p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `sleep 45.2 & for i in 1 2 3 4 5; do setsid sleep 45.2 & done; echo ready; wait`, Stdout: out})
			if err != nil {
				t.Fatal(err)
			}
			out.waitFor(t, "ready")
			if err := p.Kill(ctx(t)); err != nil {
				t.Fatal(err)
			}
			wait(t, p, sandbox.Status{ExitCode: 137, Signal: 9, Reason: sandbox.ReasonSignal})
			if left := r.alive(t, "sleep 45.2"); left != "" {
				t.Errorf("still running: %s", left)
			}
		}
	})
	t.Run("a slow reader", func(t *testing.T) {
		// More than all buffers on the way hold together.
		const total = 128 << 20
		slow := &gate{open: make(chan struct{}), first: make(chan struct{})}
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: fmt.Sprintf(`head -c %d /dev/zero; echo written > finished`, total), Stdout: slow})
		if err != nil {
			t.Fatal(err)
		}
		<-slow.first
		// Only one direction can fail wrongly: waiting longer finds more, never less.
		for range 50 {
			if r.there(t, "finished") {
				t.Fatal("the command wrote all though nobody read it")
			}
			time.Sleep(10 * time.Millisecond)
		}
		// Others are not held up meanwhile.
		equal(t, "another command", r.sh(t, "echo ok"), "ok\n")
		close(slow.open)
		wait(t, p, sandbox.Status{})
		equal(t, "bytes", slow.total, int64(total))
		if !r.there(t, "finished") {
			t.Error("the command did not get to its end")
		}
	})
	t.Run("a writer that fails", func(t *testing.T) {
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `yes 46.3`, Stdout: failing{}})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := p.Wait(); err == nil && st.Reason != sandbox.ReasonCanceled {
			t.Errorf("got %+v", st)
		}
		eventually(t, "the command is ended", func() bool { return r.alive(t, "yes 46.3") == "" })
	})
	t.Run("no reader", func(t *testing.T) {
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: `head -c 5000000 /dev/zero; exit 4`})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, p, sandbox.Status{ExitCode: 4})
	})
	t.Run("the caller goes away", func(t *testing.T) {
		c, cancel := context.WithCancel(ctx(t))
		out := newBuffer()
		p, err := r.Start(c, sandbox.Cmd{Shell: "echo ready; sleep 47.9", Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "ready")
		cancel()
		wait(t, p, sandbox.Status{ExitCode: -1, Reason: sandbox.ReasonCanceled, Signal: 9})
	})
}

// terminal: commands that have a terminal.
func (s suite) terminal(t *testing.T) {
	r := s.room(t)
	start := func(t *testing.T, line string, size sandbox.Size) (*sandbox.Process, *buffer) {
		t.Helper()
		out := newBuffer()
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: line, TTY: &size, Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		return p, out
	}
	t.Run("the first size", func(t *testing.T) {
		p, out := start(t, "stty size; test -t 0 && test -t 1 && test -t 2 && echo terminal", sandbox.Size{Cols: 132, Rows: 50})
		wait(t, p, sandbox.Status{})
		equal(t, "output", out.String(), "50 132\r\nterminal\r\n")
	})
	t.Run("every change of size", func(t *testing.T) {
		p, out := start(t, `trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done`, sandbox.Size{Cols: 80, Rows: 24})
		out.waitFor(t, "ready")
		sizes := []sandbox.Size{{Cols: 0, Rows: 0}, {Cols: 65535, Rows: 65535}, {Cols: 1, Rows: 1}}
		for i := range uint16(20) {
			sizes = append(sizes, sandbox.Size{Cols: 90 + i, Rows: 30 + i})
		}
		for _, size := range sizes {
			if err := p.Resize(ctx(t), size); err != nil {
				t.Fatalf("%v: %v", size, err)
			}
			out.waitFor(t, fmt.Sprintf("\n%d %d\r\n", size.Rows, size.Cols))
		}
		if err := p.Kill(ctx(t)); err != nil {
			t.Fatal(err)
		}
		_, _ = p.Wait()
	})
	t.Run("odd first sizes", func(t *testing.T) {
		for _, size := range []sandbox.Size{{}, {Cols: 65535, Rows: 65535}} {
			p, out := start(t, "stty size", size)
			wait(t, p, sandbox.Status{})
			equal(t, "output", out.String(), fmt.Sprintf("%d %d\r\n", size.Rows, size.Cols))
		}
	})
	t.Run("input and interruption", func(t *testing.T) {
		p, out := start(t, `trap 'echo interrupted; exit 9' INT; stty -echo; echo ready; read x; echo "<$x>"; while :; do sleep 0.02; done`, sandbox.Size{Cols: 80, Rows: 24})
		out.waitFor(t, "ready")
		if err := p.Write(ctx(t), []byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "<hello>")
		if err := p.Write(ctx(t), []byte{3}); err != nil {
			t.Fatal(err)
		}
		wait(t, p, sandbox.Status{ExitCode: 9})
		equal(t, "output", strings.ReplaceAll(out.String(), "^C", ""), "ready\r\n<hello>\r\ninterrupted\r\n")
	})
	t.Run("exact output", func(t *testing.T) {
		var all []byte
		for i := range 256 {
			all = append(all, byte(i))
		}
		want := bytes.Repeat(all, 400)
		r.put(t, "bytes", string(want), 0o644)
		p, out := start(t, "stty raw -echo; cat bytes", sandbox.Size{Cols: 80, Rows: 24})
		wait(t, p, sandbox.Status{})
		equal(t, "output", out.String(), string(want))
	})
	t.Run("no terminal", func(t *testing.T) {
		p, err := r.Start(ctx(t), sandbox.Cmd{Shell: "sleep 48"})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Resize(ctx(t), sandbox.Size{Cols: 1, Rows: 1}); err == nil {
			t.Error("a command without a terminal was given a size")
		}
		if err := p.Kill(ctx(t)); err != nil {
			t.Fatal(err)
		}
		_, _ = p.Wait()
	})
}

func wait(t testing.TB, p *sandbox.Process, want sandbox.Status) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatal("the command does not end")
	}
	got, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", got, want)
}

// buffer collects output and can be waited on.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

func newBuffer() *buffer { return &buffer{more: make(chan struct{}, 1)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Write(p)
	select {
	case b.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) waitFor(t testing.TB, text string) {
	t.Helper()
	limit := time.After(patience)
	for !strings.Contains(b.String(), text) {
		select {
		case <-b.more:
		case <-limit:
			t.Fatalf("%q did not come; what came: %s", text, short(b.String()))
		}
	}
}

// gate blocks its writer until it is opened.
type gate struct {
	open, first chan struct{}
	once        sync.Once
	total       int64
}

func (g *gate) Write(p []byte) (int, error) {
	g.once.Do(func() { close(g.first) })
	<-g.open
	g.total += int64(len(p))
	return len(p), nil
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("this writer is full") }

// never is an input that says nothing until the test ends.
func never(t testing.TB) *lineThenSilence {
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	return &lineThenSilence{said: true, block: block}
}
