package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/sandbox"
)

func (s suite) exec(t *testing.T) {
	r := s.room(t)
	t.Run("arguments", func(t *testing.T) {
		args := []string{"", " ", "a b", `"`, "'", `\`, "$HOME", "*", "--help", "-", "line\nend", "ü€😀", strings.Repeat("x", 100_000)}
		res := r.run(t, sandbox.Cmd{Args: append([]string{"printf", `%s\001`}, args...)})
		equal(t, "arguments", res.Stdout, strings.Join(args, "\x01")+"\x01")
	})
	t.Run("shell", func(t *testing.T) {
		equal(t, "output", r.sh(t, "echo a | tr a b && echo $((1+1))"), "b\n2\n")
	})
	t.Run("not a command", func(t *testing.T) {
		for name, c := range map[string]sandbox.Cmd{
			"neither":   {},
			"both":      {Args: []string{"true"}, Shell: "true"},
			"NUL":       {Args: []string{"echo", "a\x00b"}},
			"not UTF-8": {Args: []string{"echo", "\xff"}},
		} {
			if _, err := r.Exec(ctx(t), c); !errors.Is(err, sandbox.ErrBadCommand) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("exit codes", func(t *testing.T) { exitCodes(t, r) })
	t.Run("signals", func(t *testing.T) { signals(t, r) })
	t.Run("cannot be run", func(t *testing.T) { cannotRun(t, r) })
	t.Run("environment", func(t *testing.T) { environment(t, r) })
	if !s.f.Elsewhere {
		t.Run("folder", func(t *testing.T) { s.folder(t) })
	}
	t.Run("input", func(t *testing.T) { input(t, r) })
	t.Run("user", func(t *testing.T) {
		if _, err := r.Exec(ctx(t), sandbox.Cmd{Shell: "true", User: "nobody-of-this-name"}); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("an unknown user: %v, want ErrNotFound", err)
		}
		if !s.f.Isolated {
			return
		}
		for user, want := range map[string]string{
			"": "1000 1000 user /home/user\n", "user": "1000 1000 user /home/user\n", "root": "0 0 root /root\n",
		} {
			equal(t, "user "+user, r.shAs(t, user, `echo "$(id -u) $(id -g) $(id -un) $HOME"`), want)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		inParallel(t, 100, 100, func(i int) error {
			res, err := r.Exec(ctx(t), sandbox.Cmd{Shell: fmt.Sprintf("read x; echo %d $x", i), Stdin: strings.NewReader(fmt.Sprintf("in%d\n", i))})
			if err == nil && res.Stdout != fmt.Sprintf("%d in%d\n", i, i) {
				err = fmt.Errorf("wrote %q", res.Stdout)
			}
			return err
		})
	})
}

func inParallel(t *testing.T, n, width int, f func(int) error) {
	t.Helper()
	slots := make(chan struct{}, width)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("number %d: %v", i, err)
		}
	}
}

func exitCodes(t *testing.T, r *room) {
	codes := []int{0, 1, 2, 3, 63, 64, 77, 100, 124, 125, 126, 127, 128, 129, 130, 137, 139, 143, 192, 200, 254, 255}
	inParallel(t, len(codes), 4, func(i int) error {
		code := codes[i]
		res, err := r.Exec(ctx(t), sandbox.Cmd{Shell: fmt.Sprint("exit ", code)})
		if err == nil && (res.ExitCode != code || res.Reason != "" || res.Signal != 0) {
			err = fmt.Errorf("came as %d, reason %q, signal %d", res.ExitCode, res.Reason, res.Signal)
		}
		return err
	})
}

func signals(t *testing.T, r *room) {
	for _, c := range []struct {
		line                string
		code, signal        int
		reason, description string
	}{
		{"kill -9 $$", 137, 9, sandbox.ReasonSignal, "killed"},
		{"kill -SEGV $$", 139, 11, sandbox.ReasonSignal, "crashed"},
		{"kill -TERM $$", 143, 15, sandbox.ReasonSignal, "terminated"},
		{"kill -ABRT $$", 134, 6, sandbox.ReasonSignal, "aborted"},
		{"exit 137", 137, 0, "", "its own code 137"},
		{"sh -c 'kill -9 $$'; exit $?", 137, 0, "", "the code of a child"},
	} {
		res := r.run(t, sandbox.Cmd{Shell: c.line})
		if res.ExitCode != c.code || res.Signal != c.signal || res.Reason != c.reason {
			t.Errorf("%s (%s): code %d, signal %d, reason %q", c.line, c.description, res.ExitCode, res.Signal, res.Reason)
		}
	}
}

func cannotRun(t *testing.T, r *room) {
	r.put(t, "plain", "echo hi\n", 0o644)
	r.put(t, "lost", "#!/no/such/interpreter\n", 0o755)
	for _, c := range []struct {
		program string
		code    int
		err     error
	}{
		{"no-such-program", 127, sandbox.ErrCommandNotFound},
		{"./no-such-program", 127, sandbox.ErrCommandNotFound},
		{"./plain", 126, sandbox.ErrNotExecutable},
		{"/", 126, sandbox.ErrNotExecutable},
		{"./lost", 127, sandbox.ErrCommandNotFound},
	} {
		if _, err := r.Exec(ctx(t), sandbox.Cmd{Args: []string{c.program}}); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.program, err, c.err)
		} else if !strings.Contains(err.Error(), c.program) {
			t.Errorf("%s: the error does not name it: %v", c.program, err)
		}
		if c.program == "./lost" {
			continue // shells disagree on this one
		}
		equal(t, "the shell's code for "+c.program, r.run(t, sandbox.Cmd{Shell: c.program}).ExitCode, c.code)
	}
	equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
}

func environment(t *testing.T, r *room) {
	want := map[string]string{
		"PEM":        "-----BEGIN KEY-----\nMIIE=\n" + strings.Repeat("A/+=", 16) + "\n-----END KEY-----\n",
		"EQUALS":     "a=b=c",
		"EMPTY":      "",
		"BLANKS":     "  a\tb ",
		"LARGE":      strings.Repeat("0123456789", 10_000),
		"BYTES":      "\xff\xfe\x80ok",
		"dot.ted":    "dot",
		"PROC_ALIKE": "RAVI_PROC=x",
	}
	res := r.run(t, sandbox.Cmd{Args: []string{"env", "-0"}, Env: want})
	got := map[string]string{}
	for _, kv := range strings.Split(res.Stdout, "\x00") {
		k, v, _ := strings.Cut(kv, "=")
		got[k] = v
	}
	for k, v := range want {
		have, ok := got[k]
		if !ok || have != v {
			t.Errorf("%s (there: %v): got %s, want %s", k, ok, short(have), short(v))
		}
	}
	const secret = "hunter2"
	for name, env := range map[string]map[string]string{
		"NULLED": {"NULLED": secret + "\x00" + secret},
		"A=B":    {"A=B": secret},
		"":       {"": secret},
		"N\x00":  {"N\x00": secret},
	} {
		_, err := r.Exec(ctx(t), sandbox.Cmd{Shell: "true", Env: env})
		switch {
		case !errors.Is(err, sandbox.ErrBadCommand):
			t.Errorf("%q: %v", name, err)
		case strings.Contains(err.Error(), secret):
			t.Errorf("%q: the error holds the value: %v", name, err)
		case !strings.Contains(err.Error(), strings.TrimRight(name, "\x00")):
			t.Errorf("%q: the error does not name it: %v", name, err)
		}
	}
	// The environment of this process is nothing to the sandbox.
	if v, ok := os.LookupEnv("RAVI_PROGRAM"); ok && v != "" {
		equal(t, "a variable of the host", r.sh(t, "echo [$RAVI_PROGRAM]"), "[]\n")
	}
}

func (s suite) folder(t *testing.T) {
	ws, vol, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	for _, d := range []string{ws, filepath.Join(ws, "sub"), filepath.Join(ws, "sub/deep"), vol, filepath.Join(vol, "inner")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(d, "mark"), strings.TrimPrefix(strings.Replace(d, vol, "vol", 1), ws), 0o644)
	}
	link := filepath.Join(elsewhere, "link")
	if err := os.Symlink(ws, link); err != nil {
		t.Fatal(err)
	}
	var change []func(*sandbox.Config)
	if s.f.Isolated {
		change = append(change, func(c *sandbox.Config) {
			c.ExtraVolumes = []sandbox.Volume{{Host: vol, Guest: "/mnt/vol", ReadOnly: true}}
		})
	}
	r := s.roomOn(t, ws, change...)
	cases := map[string]string{ // dir → mark
		"":                              "",
		".":                             "",
		"sub":                           "/sub",
		"sub/../sub/deep":               "/sub/deep",
		ws:                              "",
		filepath.Join(ws, "sub"):        "/sub",
		link:                            "",
		filepath.Join(link, "sub/deep"): "/sub/deep",
	}
	if s.f.Isolated {
		cases["/workspace"], cases["/workspace/sub"] = "", "/sub"
		cases[vol], cases[filepath.Join(vol, "inner")] = "vol", "vol/inner"
		cases["/mnt/vol/inner"] = "vol/inner"
	}
	for dir, mark := range cases {
		res, err := r.Exec(ctx(t), sandbox.Cmd{Args: []string{"cat", "mark"}, Dir: dir})
		if err != nil || res.Stdout != mark || res.ExitCode != 0 {
			t.Errorf("%q: %q %q %v, want the mark %q", dir, res.Stdout, res.Stderr, err, mark)
		}
	}
	for _, dir := range []string{"..", "../x", "sub/../..", elsewhere, "/", "/etc", filepath.Dir(ws), ws + "x", "/workspacex"} {
		if _, err := r.Exec(ctx(t), sandbox.Cmd{Shell: "true", Dir: dir}); !errors.Is(err, sandbox.ErrOutside) {
			t.Errorf("%q: %v, want ErrOutside", dir, err)
		}
	}
	if _, err := r.Exec(ctx(t), sandbox.Cmd{Shell: "true", Dir: "no-such-folder"}); err == nil || !strings.Contains(err.Error(), "no-such-folder") {
		t.Errorf("a folder that is not there: %v", err)
	}
	if s.f.Isolated {
		equal(t, "a folder of the guest", r.run(t, sandbox.Cmd{Shell: "pwd", GuestDir: "/usr/bin"}).Stdout, "/usr/bin\n")
	}
}

func input(t *testing.T, r *room) {
	equal(t, "no input", r.sh(t, "cat; echo end"), "end\n")
	equal(t, "input", r.run(t, sandbox.Cmd{Args: []string{"cat"}, Stdin: strings.NewReader("hello")}).Stdout, "hello")
	equal(t, "empty input", r.run(t, sandbox.Cmd{Args: []string{"cat"}, Stdin: strings.NewReader("")}).Stdout, "")
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(i * 7 >> 3)
	}
	res := r.run(t, sandbox.Cmd{Args: []string{"cat"}, Stdin: bytes.NewReader(big)})
	if res.Stdout != string(big) || res.Truncated {
		t.Errorf("1 MiB through cat: %d bytes came back, equal: %v", len(res.Stdout), res.Stdout == string(big))
	}
	// One that does not read its input ends all the same, and so does the call.
	equal(t, "unread input", r.run(t, sandbox.Cmd{Shell: "exit 3", Stdin: endless{}}).ExitCode, 3)
	// A reader that never ends does not hold up one that reads a line.
	block := make(chan struct{})
	defer close(block)
	equal(t, "silent input", r.run(t, sandbox.Cmd{Shell: "read x; echo $x", Stdin: &lineThenSilence{block: block}}).Stdout, "line\n")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type lineThenSilence struct {
	said  bool
	block chan struct{}
}

func (l *lineThenSilence) Read(p []byte) (int, error) {
	if !l.said {
		l.said = true
		return copy(p, "line\n"), nil
	}
	<-l.block
	return 0, context.Canceled
}

// end: how time-outs and cancellation end a command, with all that it started.
func (s suite) end(t *testing.T) {
	r := s.room(t)
	// Children in the background, in a session of their own, daemons that cut
	// all ties, and one that ignores what can be ignored.
	tree := func(mark string) string {
		return strings.ReplaceAll(`trap '' TERM HUP INT
			echo begin; echo trouble >&2
			sleep MARK1 &
			setsid sleep MARK2 &
			(setsid sh -c 'trap "" TERM HUP; sleep MARK3 & sleep MARK4' </dev/null >/dev/null 2>&1 &) &
			echo started > MARK
			sleep MARK5; echo never`, "MARK", mark)
	}
	gone := func(t *testing.T, mark string) {
		t.Helper()
		if left := r.alive(t, mark); left != "" {
			t.Errorf("still running:\n%s", left)
		}
	}
	// late runs a line whose time is over once it has said something on standard error, however long that takes.
	late := func(t *testing.T, line, said string) (res sandbox.Result, seconds float64) {
		t.Helper()
		for seconds = 2.5; ; seconds *= 4 {
			res = r.run(t, sandbox.Cmd{Shell: line, Timeout: sandbox.After(time.Duration(seconds * float64(time.Second)))})
			if strings.HasPrefix(res.Stderr, said) || seconds > 30 {
				return res, seconds
			}
		}
	}
	t.Run("timeout", func(t *testing.T) {
		res, seconds := late(t, tree("41.1004"), "trouble")
		equal(t, "exit code", res.ExitCode, -1)
		equal(t, "reason", res.Reason, sandbox.ReasonTimeout)
		equal(t, "output", res.Stdout, "begin\n")
		equal(t, "errors", res.Stderr, fmt.Sprintf("trouble\nCommand timed out after %gs", seconds))
		gone(t, "41.1004")
	})
	t.Run("timeout in words", func(t *testing.T) {
		res, seconds := late(t, "printf half >&2; sleep 41", "half")
		equal(t, "errors", res.Stderr, fmt.Sprintf("half\nCommand timed out after %gs", seconds))
	})
	t.Run("no time at all", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: "touch was-run", Timeout: sandbox.After(0)})
		equal(t, "exit code", res.ExitCode, -1)
		equal(t, "reason", res.Reason, sandbox.ReasonTimeout)
		equal(t, "errors", res.Stderr, "Command timed out after 0s")
		if r.there(t, "was-run") {
			t.Error("it ran")
		}
	})
	t.Run("default timeout", func(t *testing.T) {
		r := s.room(t, func(c *sandbox.Config) { c.DefaultTimeout = 1 })
		res := r.run(t, sandbox.Cmd{Shell: "sleep 40"})
		equal(t, "reason", res.Reason, sandbox.ReasonTimeout)
		equal(t, "errors", res.Stderr, "Command timed out after 1s")
	})
	t.Run("within the time", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: "echo ok", Timeout: sandbox.After(time.Minute)})
		equal(t, "result", res.Stdout+res.Reason, "ok\n")
	})
	t.Run("cancelled", func(t *testing.T) {
		c, cancel := context.WithCancel(ctx(t))
		defer cancel()
		go func() {
			for c.Err() == nil {
				if r.there(t, "42.1004") {
					cancel()
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
		res, err := r.Exec(c, sandbox.Cmd{Shell: tree("42.1004")})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "exit code", res.ExitCode, -1)
		equal(t, "reason", res.Reason, sandbox.ReasonCanceled)
		equal(t, "output", res.Stdout, "begin\n")
		gone(t, "42.1004")
	})
	t.Run("input that nobody reads", func(t *testing.T) { unreadInput(t, s.room(t)) })
	t.Run("cancelled before", func(t *testing.T) {
		c, cancel := context.WithCancel(ctx(t))
		cancel()
		if _, err := r.Exec(c, sandbox.Cmd{Shell: "touch was-run"}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func unreadInput(t *testing.T, room *room) {
	r, w := io.Pipe()
	defer w.Close()
	fed := make(chan struct{})
	go func() { // more than all buffers on the way hold
		defer close(fed)
		block := make([]byte, 64<<10)
		for range 256 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}()
	p, err := room.Start(ctx(t), sandbox.Cmd{Args: []string{"sleep", "1005"}, Stdin: r})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // others go on meanwhile
		equal(t, "output of another", room.run(t, sandbox.Cmd{Shell: "wc -c", Stdin: strings.NewReader(strings.Repeat("x", 100_000))}).Stdout, "100000\n")
	}
	if err := p.Kill(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	r.Close()
	<-fed
}

func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
