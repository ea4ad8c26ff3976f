package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"ravi/sandbox"
)

// limits: a sandbox gets what it was given, and is told when it wants more.
func (s suite) limits(t *testing.T) {
	t.Run("memory", s.memory)
	t.Run("memory, all at once", s.sudden)
	t.Run("processor", s.processor)
	t.Run("disk", s.disk)
	t.Run("fork bomb", s.forkBomb)
	t.Run("what tools see", s.sizes)
}

func small(c *sandbox.Config) { c.MemoryMiB = 256 }

// eat is a line that takes so many MiB in one process, bit by bit.
func eat(mib int) string {
	return fmt.Sprintf(`exec python3 -c '
b = []
for i in range(%d): b.append(b"x" * (1 << 20))
print("had all")'`, mib)
}

// tooMuch runs a line that takes more memory than there is. On a busy machine it can be faster than whoever watches; then the
// kernel ends the sandbox, which says so, and another one is tried.
func (s suite) tooMuch(t *testing.T, line string) (*room, sandbox.Result) {
	t.Helper()
	var err error
	for range 10 {
		r := s.room(t, small)
		var res sandbox.Result
		if res, err = r.Exec(ctx(t), sandbox.Cmd{Shell: line}); err == nil {
			return r, res
		}
		if end := new(sandbox.EndError); !errors.As(err, &end) || end.Reason != "oom" {
			break
		}
	}
	t.Fatal(err)
	return nil, sandbox.Result{}
}

func (s suite) memory(t *testing.T) {
	needs(t, s.room(t), "python3")
	alive := func(t *testing.T, r *room) {
		t.Helper()
		if st, err := r.Stats(ctx(t)); err == nil && st.MemoryPeakBytes > (256+64+8+1)<<20 { // with the kernel's own room, and some pages more
			t.Errorf("it had %d MiB at its peak", st.MemoryPeakBytes>>20)
		}
		if err := r.Err(); err != nil {
			t.Fatalf("the sandbox ended: %v", err)
		}
		equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
	}
	t.Run("within", func(t *testing.T) {
		r := s.room(t, small)
		equal(t, "output", r.sh(t, eat(80)), "had all\n")
	})
	t.Run("one process", func(t *testing.T) {
		r, res := s.tooMuch(t, "echo begin; "+eat(2000))
		equal(t, "output", res.Stdout, "begin\n")
		equal(t, "reason", res.Reason, sandbox.ReasonOOM)
		equal(t, "exit code", res.ExitCode, 137)
		alive(t, r)
	})
	t.Run("a child", func(t *testing.T) {
		// The largest process is ended, not its parent, which may go on and say so.
		r, res := s.tooMuch(t, "sh -c '"+strings.ReplaceAll(eat(2000), "'", `'\''`)+"'; echo child $?")
		equal(t, "output", res.Stdout, "child 137\n")
		alive(t, r)
	})
	t.Run("many processes", func(t *testing.T) {
		r := s.room(t, small)
		line := fmt.Sprintf(`for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (%s; sleep 60) & done; wait`, strings.Replace(strings.Replace(eat(40), "exec ", "", 1), `print("had all")`, `import time; time.sleep(60)`, 1))
		// A dozen that fill gigabytes a second together can be faster than whoever watches them on a busy machine. Then the
		// sandbox ends, and says why.
		res, err := r.Exec(ctx(t), sandbox.Cmd{Shell: line, Timeout: sandbox.After(20 * time.Second)})
		var end *sandbox.EndError
		if errors.As(err, &end) && end.Reason == "oom" {
			return
		}
		if err != nil || res.Reason != sandbox.ReasonOOM && res.Reason != sandbox.ReasonTimeout {
			t.Errorf("reason %q, code %d, %v", res.Reason, res.ExitCode, err)
		}
		alive(t, r)
	})
	t.Run("shared memory", func(t *testing.T) {
		r := s.room(t, small)
		res := r.run(t, sandbox.Cmd{Shell: `head -c 500000000 /dev/zero > /dev/shm/x; s=$?; rm -f /dev/shm/x; exit $s`})
		if res.ExitCode == 0 {
			t.Error("500 MB fitted into /dev/shm of a sandbox of 256 MiB")
		}
		alive(t, r)
	})
	t.Run("files", func(t *testing.T) {
		r := s.room(t, small)
		// What is cached of files is given back, and is no reason to end anything.
		equal(t, "size", r.sh(t, `head -c 600000000 /dev/zero > /tmp/x && cat /tmp/x | wc -c; rm /tmp/x`), "600000000\n")
		alive(t, r)
	})
}

// sudden: faster than the agent can watch. Either the process is ended, or the
// kernel ends the sandbox, and then its end says so.
func (s suite) sudden(t *testing.T) {
	r := s.room(t, small)
	needs(t, r, "python3")
	res, err := r.Exec(ctx(t), sandbox.Cmd{Args: []string{"python3", "-c", `
import mmap, threading
def take():
    m = mmap.mmap(-1, 1 << 30)
    for i in range(0, 1 << 30, 4096): m[i] = 1
ts = [threading.Thread(target=take) for _ in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
`}})
	if err == nil {
		equal(t, "reason", res.Reason, sandbox.ReasonOOM)
		equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
		return
	}
	var end *sandbox.EndError
	if !errors.As(err, &end) || end.Reason != "oom" {
		t.Fatalf("got %v, want the end for want of memory", err)
	}
	if !strings.Contains(err.Error(), "256 MiB") {
		t.Errorf("the error does not name the limit: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("closing it: %v", err)
	}
}

func (s suite) processor(t *testing.T) {
	r := s.room(t, func(c *sandbox.Config) { c.CPUs = 1 })
	before, err := r.Stats(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	line := `while :; do :; done`
	r.run(t, sandbox.Cmd{Shell: line + " & " + line + " & " + line, Timeout: sandbox.After(3 * time.Second)})
	after, err := r.Stats(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	used, wall := after.CPUTime-before.CPUTime, time.Since(start)
	if used.Seconds()/wall.Seconds() > 1.3 {
		t.Errorf("three busy loops used %v of processor time within %v, with one processor", used, wall)
	}
	if used <= 0 {
		t.Error("busy loops used no time")
	}
}

func (s suite) disk(t *testing.T) {
	r := s.room(t, func(c *sandbox.Config) { n := 1; c.DiskSizeGB = &n })
	t.Run("a command", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: `head -c 1300000000 /dev/zero > /tmp/x`})
		if res.ExitCode == 0 || !strings.Contains(res.Stderr, "No space left") {
			t.Errorf("code %d: %s", res.ExitCode, res.Stderr)
		}
		r.sh(t, "rm -f /tmp/x && echo ok > /tmp/y && cat /tmp/y")
	})
	t.Run("a file written from outside", func(t *testing.T) {
		if testing.Short() {
			t.Skip("moves 1.3 GiB")
		}
		err := r.Files().Write(ctx(t), "/tmp/half", &counting{left: 1300 << 20})
		if !errors.Is(err, sandbox.ErrDiskFull) {
			t.Errorf("got %v, want ErrDiskFull", err)
		}
		equal(t, "what is left", r.shAs(t, "root", "find /tmp -type f -size +1M"), "")
		if err := r.Files().Write(ctx(t), "/tmp/small", strings.NewReader("fits")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
	t.Run("an archive", func(t *testing.T) {
		if testing.Short() {
			t.Skip("moves 1.3 GiB")
		}
		err := r.Files().Untar(ctx(t), "/tmp/in", bigTar(1300<<20))
		if !errors.Is(err, sandbox.ErrDiskFull) {
			t.Errorf("got %v, want ErrDiskFull", err)
		}
		equal(t, "what is left", r.shAs(t, "root", "find /tmp -type f -size +1M"), "")
	})
	t.Run("output while the disk is full", func(t *testing.T) {
		r.run(t, sandbox.Cmd{Shell: `head -c 1300000000 /dev/zero > /tmp/x`})
		equal(t, "bytes", r.run(t, sandbox.Cmd{Shell: "head -c 30000000 /dev/zero"}).StdoutBytes, int64(30_000_000))
		r.sh(t, "rm /tmp/x")
	})
	equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
}

// bigTar is an archive with one file of that size.
func bigTar(size int64) io.Reader {
	head := make([]byte, 512)
	copy(head, "large")
	copy(head[100:], "0000644\x00")
	copy(head[108:], "0000000\x00")
	copy(head[116:], "0000000\x00")
	copy(head[124:], fmt.Sprintf("%011o\x00", size))
	copy(head[136:], "00000000000\x00")
	copy(head[148:], "        ")
	head[156] = '0'
	copy(head[257:], "ustar\x0000")
	sum := 0
	for _, b := range head {
		sum += int(b)
	}
	copy(head[148:], fmt.Sprintf("%06o\x00 ", sum))
	return io.MultiReader(strings.NewReader(string(head)), &counting{left: size}, strings.NewReader(strings.Repeat("\x00", 1024)))
}

func (s suite) forkBomb(t *testing.T) {
	r := s.room(t, func(c *sandbox.Config) { c.MemoryMiB = 512 })
	res, err := r.Exec(ctx(t), sandbox.Cmd{Args: []string{"bash", "-c", `b() { b | b & }; b; sleep 60`}, Timeout: sandbox.After(5 * time.Second)})
	if err == nil && res.ExitCode == 0 {
		t.Errorf("it ended well: %+v", res)
	}
	if err != nil && !errors.Is(err, sandbox.ErrEnded) {
		t.Errorf("got %v", err)
	}
	if err == nil && r.Err() == nil {
		eventually(t, "commands run again", func() bool {
			res, err := r.Exec(ctx(t), sandbox.Cmd{Shell: "echo ok", Timeout: sandbox.After(10 * time.Second)})
			return err != nil || res.Stdout == "ok\n"
		})
	}
	if err := r.Close(); err != nil {
		t.Errorf("closing it: %v", err)
	}
	// The host, and other sandboxes, are as before.
	equal(t, "another sandbox", s.room(t).sh(t, "echo ok"), "ok\n")
}

// sizes: tools choose how many workers and how large a heap by what they see.
func (s suite) sizes(t *testing.T) {
	r := s.room(t, func(c *sandbox.Config) { c.CPUs, c.MemoryMiB = 1, 512 })
	// gVisor shows two processors at least, whatever the share of their time.
	shown := func(what, text string) {
		t.Helper()
		if n, err := strconv.Atoi(strings.TrimSpace(text)); err != nil || n < 1 || n > 2 {
			t.Errorf("%s says %q with one processor", what, text)
		}
	}
	shown("nproc", r.sh(t, "nproc"))
	kb, err := strconv.Atoi(strings.TrimSpace(r.sh(t, `sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo`)))
	if err != nil {
		t.Fatal(err)
	}
	if kb > 512<<10 || kb < 384<<10 {
		t.Errorf("MemTotal is %d kB, with a limit of 512 MiB", kb)
	}
	if r.run(t, sandbox.Cmd{Shell: "command -v node"}).ExitCode == 0 {
		shown("node", r.sh(t, `node -p 'require("os").availableParallelism()'`))
	}
}
