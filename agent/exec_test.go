package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// done has one tool of the hands' called, and gives what came of it, out of its fence.
func done(t testing.TB, c Config, name string, args object) (text string, failed bool) {
	t.Helper()
	m := script(t, asks(call(name, args)))
	c.Model = m
	turnOf(t, loopOf(t, c), Finished)
	r := m.told(1).Results[0]
	if r.Trusted {
		return r.Text, r.Failed
	}
	inside, _ := inFence(t, r.Text)
	return inside, r.Failed
}

func TestExec(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "sub/here", "")
	put(t, dir, "bin/ravi-own-program", "#!/bin/sh\necho mine $GREETING\n")
	put(t, dir, "bin/ls", "#!/bin/sh\necho not this one\n")
	for _, name := range []string{"bin/ravi-own-program", "bin/ls"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	hands := HandsOf(onHost(t, dir))
	long := strings.Repeat("x", 64<<10)
	for name, c := range map[string]struct {
		args   object
		tool   ExecTool
		failed bool
		has    []string
		hasNot string
	}{
		"a command":          {object{"command": "pwd; echo out; echo err >&2"}, ExecTool{}, false, []string{dir + "\n", "out", "STDERR:\nerr", "Exit code: 0"}, ""},
		"it fails":           {object{"command": "echo so; exit 7"}, ExecTool{}, true, []string{"so", "Exit code: 7"}, ""},
		"a script":           {object{"command": "for i in 1 2; do\n  echo \"$i $0\"\ndone"}, ExecTool{}, false, []string{"1 ", "2 "}, ""},
		"a folder":           {object{"command": "ls", "working_dir": "sub"}, ExecTool{}, false, []string{"here"}, ""},
		"an absolute folder": {object{"command": "ls", "working_dir": dir + "/sub"}, ExecTool{}, false, []string{"here"}, ""},
		"no folder":          {object{"command": "ls", "working_dir": "none"}, ExecTool{}, true, []string{"none"}, "Exit code"},
		"a file for it":      {object{"command": "ls", "working_dir": "sub/here"}, ExecTool{}, true, []string{"sub/here"}, "Exit code"},
		"no input":           {object{"command": "cat; echo end"}, ExecTool{}, false, []string{"end"}, ""},
		"time":               {object{"command": "echo begun; sleep 1000", "timeout": 5}, ExecTool{}, true, []string{"begun", "timed out after 5s"}, ""},
		"the tool's time":    {object{"command": "sleep 1000"}, ExecTool{Timeout: time.Millisecond}, true, []string{"timed out after 0.001s"}, ""},
		"its own for longer": {object{"command": "echo end", "timeout": 600}, ExecTool{Timeout: time.Nanosecond}, false, []string{"end"}, ""},
		"too much time":      {object{"command": "ls", "timeout": 601}, ExecTool{}, true, []string{"not from 1 to 600"}, "Exit code"},
		"time that wraps":    {object{"command": "ls", "timeout": int64(18446744074)}, ExecTool{}, true, []string{"not from 1 to 600"}, "Exit code"},
		"negative time":      {object{"command": "ls", "timeout": -1}, ExecTool{}, true, []string{"not from 1 to 600"}, "Exit code"},
		"half a second":      {object{"command": "ls", "timeout": 0.5}, ExecTool{}, true, []string{"timeout"}, "Exit code"},
		"no command":         {object{"command": " \n"}, ExecTool{}, true, []string{"no command"}, "Exit code"},
		"a zero byte":        {object{"command": "ls\x00 -l"}, ExecTool{}, true, []string{"zero byte"}, "Exit code"},
		"one in the folder":  {object{"command": "ls", "working_dir": "sub\x00"}, ExecTool{}, true, []string{"zero byte"}, "Exit code"},
		"unknown argument":   {object{"command": "ls", "user": "root"}, ExecTool{}, true, []string{"user"}, "Exit code"},
		"much":               {object{"command": "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end"}, ExecTool{}, false, []string{"xxx", "left out", "the end", "Exit code: 0"}, ""},
		"much, bounded":      {object{"command": "echo begin; head -c 30000 /dev/zero | tr '\\0' x; echo the end"}, ExecTool{MostOutput: 100}, false, []string{"begin", "truncated", "Exit code: 0"}, strings.Repeat("x", 101)},
		"other programs":     {object{"command": "ravi-own-program; ls sub"}, ExecTool{PathAppend: []string{"/nowhere", dir + "/bin"}, Env: map[string]string{"GREETING": "hello"}}, false, []string{"mine hello", "here"}, "not this one"},
		"bash":               {object{"command": "[[ $BASH ]] && echo is bash"}, ExecTool{}, false, []string{"is bash"}, ""},
		"a long one":         {object{"command": "echo " + long[:60<<10]}, ExecTool{}, false, []string{"xxx", "Exit code: 0"}, ""},
		"too long to judge":  {object{"command": "echo " + long}, ExecTool{}, true, []string{"approval"}, "Exit code"},
		"not to be done":     {object{"command": "rm -rf /"}, ExecTool{}, true, []string{"not allowed"}, "Exit code"},
	} {
		t.Run(name, func(t *testing.T) {
			text, failed := done(t, Config{Hands: hands, Exec: c.tool}, "exec", c.args)
			if failed != c.failed || c.hasNot != "" && strings.Contains(text, c.hasNot) {
				t.Errorf("%v: %.1000q", failed, text)
			}
			mentions(t, text, c.has...)
			if len(text) > 10_000 {
				t.Errorf("%d bytes came back", len(text))
			}
		})
	}
}

// Commands of one message run beside each other in the one sandbox.
func TestExecAtOnce(t *testing.T) {
	dir := t.TempDir()
	wait := func(mine, other string) Call {
		return call("exec", object{"command": fmt.Sprintf("touch %s; until [ -e %s ]; do sleep 0.05; done; echo met", mine, other), "timeout": 60})
	}
	m := script(t, asks(wait("a", "b"), wait("b", "a")))
	turnOf(t, loopOf(t, Config{Model: m, Hands: HandsOf(onHost(t, dir))}), Finished)
	for _, r := range m.told(1).Results {
		mentions(t, r.Text, "met")
	}
}

// A change of a file comes after what was asked for before it in the same message, and before what was asked for after it.
func TestChangesInOrder(t *testing.T) {
	dir := t.TempDir()
	cat := func() Call { return call("exec", object{"command": "cat file"}) }
	var calls []Call
	for i := range 8 {
		if i == 0 {
			calls = append(calls, call("write", object{"path": "file", "content": "at 0\n"}))
		} else {
			calls = append(calls, call("edit", object{"path": "file", "old": fmt.Sprint("at ", i-1), "new": fmt.Sprint("at ", i)}))
		}
		calls = append(calls, cat(), cat())
	}
	m := script(t, asks(calls...))
	turnOf(t, loopOf(t, Config{Model: m, Hands: HandsOf(onHost(t, dir))}), Finished)
	results := m.told(1).Results
	for i := range 8 {
		mentions(t, results[3*i+1].Text, fmt.Sprint("at ", i))
		mentions(t, results[3*i+2].Text, fmt.Sprint("at ", i))
	}
}
