package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"ravi/internal/command"
	"ravi/internal/leaktest"
)

// steps runs a fixed story through a progress whose clock moves a second at every look.
func steps(p *progress, end error) {
	at := time.Unix(0, 0)
	p.now = func() time.Time { at = at.Add(time.Second); return at }
	p.Step("first")(nil)
	p.Step("second")
	fmt.Fprint(p.stdout(), "from the command")
	p.Log("said\x1b[2J\nmore")
	done := p.Step("third")
	fmt.Fprint(p.stderr(), "warning\n")
	done(errors.New("x"))
	done(nil)
	p.Step("fourth")
	p.close(end)
}

func TestProgressPlain(t *testing.T) {
	defer leaktest.None(t)
	var out, err bytes.Buffer
	steps(newProgress(&command.Env{Stdout: &out, Stderr: &err}), errors.New("ended"))
	want := "done: first 1.0 s\n" +
		"  said\\x1b[2J\n  more\n" +
		"done: second 1.0 s\n" +
		"warning\n" +
		"failed: third 1.0 s\n" +
		"failed: fourth 1.0 s\n"
	if err.String() != want || out.String() != "from the command" {
		t.Errorf("got\n%s\nwant\n%s\nstdout %q", err.String(), want, out.String())
	}
}

func TestProgressQuiet(t *testing.T) {
	defer leaktest.None(t)
	var out, err bytes.Buffer
	steps(newProgress(&command.Env{Stdout: &out, Stderr: &err, Quiet: true, StderrTerminal: true, StdoutTerminal: true}), nil)
	if err.String() != "warning\n" || out.String() != "from the command" {
		t.Errorf("got %q, stdout %q", err.String(), out.String())
	}
}

// On a terminal every line that stays is one of ours or of the command, whole, however the two mix.
func TestProgressTerminal(t *testing.T) {
	defer leaktest.None(t)
	t.Setenv("NO_COLOR", "1")
	var screen bytes.Buffer
	steps(newProgress(&command.Env{Stdout: &screen, Stderr: &screen, StderrTerminal: true, StdoutTerminal: true}), nil)
	if got, want := settled(screen.String()), []string{"✓ first", "from the command", "  said\\x1b[2J", "  more", "✓ second", "warning", "✗ third", "✓ fourth"}; !equalButTimes(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// settled plays what was written, as far as lines are erased, and gives the lines that stay.
func settled(written string) []string {
	var lines []string
	for _, line := range strings.Split(strings.TrimSuffix(written, "\n"), "\n") {
		if i := strings.LastIndex(line, "\r\x1b[K"); i >= 0 {
			line = line[i+len("\r\x1b[K"):]
		}
		lines = append(lines, line)
	}
	return lines
}

func equalButTimes(got, want []string) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if !strings.HasPrefix(got[i], want[i]) {
			return false
		}
	}
	return true
}

// A real terminal gets colours unless NO_COLOR is set, tables of its own width, and no control sequence of others.
func TestOnATerminal(t *testing.T) {
	for name, c := range map[string]struct {
		noColour string
		colour   bool
	}{"colour": {"", true}, "no colour": {"1", false}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", c.noColour)
			t.Setenv("RAVI_HOME", t.TempDir())
			if err := seed(t.Context()); err != nil {
				t.Fatal(err)
			}
			logs := onTerminal(t, "sandbox", "logs", "runaaa", "--name", "stderr.log")
			if want := `\x1b[31mred\x1b[0m`; !strings.Contains(logs, want) || strings.Contains(logs, "\x1b[31mred") {
				t.Errorf("logs: %q", logs)
			}
			wide := onTerminal(t, "sandbox", "ls")
			if !strings.Contains(wide, "fit/into/eighty/columns/at/all") {
				t.Errorf("a wide terminal: %q", wide)
			}
			failed := onTerminal(t, "sandbox", "inspect", "none\x1b[2J")
			if got := strings.Contains(failed, "\x1b[1;31merror:\x1b[0m"); got != c.colour || strings.Contains(failed, "\x1b[2J") {
				t.Errorf("error: %q", failed)
			}
		})
	}
}

func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Skip("SKIP-FEATURE: no pseudo-terminals here: " + err.Error())
	}
	defer master.Close()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 50, Cols: 160}); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		data, _ := io.ReadAll(master) // ends with EIO when the last slave is closed
		read <- string(data)
	}()
	run(args, os.Stdin, slave, slave, parts{})
	slave.Close()
	return <-read
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", 1500 * time.Millisecond: "1.5 s", 61500 * time.Millisecond: "1m2s", 2 * time.Hour: "2h0m0s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}
