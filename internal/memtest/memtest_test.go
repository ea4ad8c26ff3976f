package memtest

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What a process has in its memory, and in a file in memory that it does not map, is found; nothing else is.
func TestHolds(t *testing.T) {
	cmd := exec.Command("python3", "-c", `
import os, sys
held = "".join(["in-the-", "memory-of", "-python"]) * 2
f = os.memfd_create("unnamed")
if os.fork() == 0: # so that it is in the file alone
    os.pwrite(f, b"-".join([b"in", b"a", b"file", b"of", b"it"]), (1 << 30) - 7)
    os._exit(0)
os.wait()
print("ready", flush=True)
sys.stdin.read()
`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	here, file, nowhere := strings.Repeat("in-the-memory-of-python", 2), "in-a-file-of-it", "not-in-python-at-all"
	found, err := Holds(cmd.Process.Pid, here, file, nowhere)
	if err != nil || !found[here] || !found[file] || found[nowhere] {
		t.Errorf("%v %v", found, err)
	}
	if parts, err := Family(os.Getpid()); err != nil || !strings.Contains(parts[cmd.Process.Pid], "python3 -c ") || !strings.HasPrefix(parts[os.Getpid()], os.Args[0]) {
		t.Errorf("%v %v", parts, err)
	}
	if _, err := Holds(1<<22+1, here); err != nil {
		t.Errorf("a process that is gone: %v", err)
	}
}
