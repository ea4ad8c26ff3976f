package toolcases

import (
	"strings"
	"testing"

	"ravi/sandbox"
)

const steps = `#include <stdio.h>

static int twice(int x) {
	int y = x * 2;
	return y;
}

int main(void) {
	int sum = 0;
	for (int i = 1; i <= 3; i++)
		sum += twice(i);
	printf("sum %d\n", sum);
	return 0;
}
`

func TestDebuggers(t *testing.T) {
	r := open(t)
	r.needs(t, "gcc")
	r.put(t, "steps.c", steps)
	r.sh(t, "gcc -g -O0 -o steps steps.c")

	t.Run("gdb", func(t *testing.T) {
		r.needs(t, "gdb")
		const session = `gdb -nx -batch -ex 'set confirm off' -ex 'break twice' -ex run -ex next -ex 'print y' \
	-ex continue -ex next -ex 'print y' -ex backtrace -ex 'delete' -ex continue ./steps 2>&1`
		for range 3 {
			contains(t, "the session", r.sh(t, session), "$1 = 2\n", "$2 = 4\n", "main () at steps.c:11", "sum 12", "exited normally")
		}
	})
	t.Run("a watchpoint of gdb's in software", func(t *testing.T) {
		r.needs(t, "gdb")
		out := r.sh(t, `gdb -nx -batch -ex 'set can-use-hw-watchpoints 0' -ex 'break main' -ex run -ex 'watch sum' -ex continue -ex continue ./steps 2>&1`)
		contains(t, "the session", out, "Old value", "New value = 2")
	})
	// As on most hosts, a process may look into its children only; root into all.
	t.Run("attaching", func(t *testing.T) {
		r.needs(t, "gdb")
		const attach = `sleep 300 & p=$!; %gdb -nx -batch -p $p -ex 'info registers rip' 2>&1; kill $p`
		contains(t, "as the user", r.sh(t, strings.ReplaceAll(attach, "%", "")), "Operation not permitted")
		contains(t, "as root", r.sh(t, strings.ReplaceAll(attach, "%", "sudo ")), "rip")
	})
	t.Run("strace", func(t *testing.T) {
		r.needs(t, "strace")
		out := r.sh(t, `strace -f -e trace=execve,exit_group -o trace sh -c 'echo a; (/bin/true); echo b' && cat trace`)
		contains(t, "the trace", out, "a\nb\n", "/bin/true", "exit_group(0)")
		want(t, "calls of execve", r.sh(t, `grep -c 'execve(.*= 0' trace`), "2\n")
	})
	t.Run("a core is not written, the end is told", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Shell: "ulimit -c unlimited; exec sh -c 'kill -SEGV $$'"})
		if res.Signal != 11 || res.ExitCode != 139 {
			t.Errorf("signal %d, exit code %d", res.Signal, res.ExitCode)
		}
		want(t, "cores", r.sh(t, "ls | grep -c core || true"), "0\n")
	})
	t.Run("dlv", func(t *testing.T) {
		r.needs(t, "dlv")
		r.needsGo(t)
		r.put(t, "dbg/go.mod", "module dbg\n\ngo 1.21\n")
		r.put(t, "dbg/main.go", "package main\n\nfunc twice(x int) int {\n\ty := x * 2\n\treturn y\n}\n\nfunc main() {\n\tprintln(twice(21))\n}\n")
		res := r.run(t, sandbox.Cmd{Shell: goEnv + "go build -gcflags='-N -l' -o dbg . && dlv exec --check-go-version=false --allow-non-terminal-interactive ./dbg 2>&1",
			Dir: "dbg", Stdin: strings.NewReader("break main.twice\ncontinue\nnext\nnext\nprint y\ncontinue\nexit\n")})
		contains(t, "the session", res.Stdout, "main.twice", "42", "has exited with status 0")
	})
}
