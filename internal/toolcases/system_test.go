package toolcases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ravi/sandbox"
)

func TestTheSystemAround(t *testing.T) {
	r := open(t)
	t.Run("unix sockets", func(t *testing.T) {
		r.needs(t, "python3")
		for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
			want(t, dir, r.sh(t, `python3 -c '
import socket, sys
a = socket.socket(socket.AF_UNIX); a.bind(sys.argv[1] + "/sock"); a.listen()
c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1] + "/sock")
s, _ = a.accept(); c.sendall(b"over"); print(s.recv(9).decode())' `+dir), "over\n")
		}
	})
	t.Run("loopback", func(t *testing.T) {
		r.needs(t, "python3")
		for _, host := range []string{"127.0.0.1", "::1", "localhost"} {
			want(t, host, r.sh(t, `python3 -c '
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
a = socket.create_server((sys.argv[1], 0), family=family)
c = socket.create_connection(a.getsockname()[:2])
s, _ = a.accept(); c.sendall(b"over"); print(s.recv(9).decode())' `+host), "over\n")
		}
	})
	t.Run("FIFOs", func(t *testing.T) {
		for _, dir := range []string{"/workspace", "/tmp"} {
			want(t, dir, r.sh(t, "cd "+dir+" && mkfifo pipe && { echo through > pipe & cat pipe; } && rm pipe"), "through\n")
		}
	})
	t.Run("shared memory", func(t *testing.T) {
		r.needs(t, "python3")
		want(t, "/dev/shm", r.sh(t, `python3 -c '
from multiprocessing import shared_memory, Pool
a = shared_memory.SharedMemory(create=True, size=1 << 20); a.buf[0] = 7
b = shared_memory.SharedMemory(name=a.name); print(b.buf[0]); b.close(); a.close(); a.unlink()
with Pool(2) as p: print(sum(p.map(abs, [-1, -2])))'`), "7\n3\n")
	})
	t.Run("sudo and su", func(t *testing.T) {
		want(t, "user", r.sh(t, "id -un"), "user\n")
		want(t, "sudo", r.sh(t, "sudo id -u"), "0\n")
		want(t, "sudo -n, with a variable", r.sh(t, "sudo -n WORD=x sh -c 'echo $WORD $(id -un)'"), "x root\n")
		want(t, "sudo -u", r.sh(t, "sudo -u nobody id -un"), "nobody\n")
		want(t, "su", r.sh(t, "su -c 'id -un'"), "root\n")
		want(t, "su -", r.sh(t, "sudo su - user -c 'id -un; pwd'"), "user\n/home/user\n")
		want(t, "exit code", r.sh(t, "sudo sh -c 'exit 7'; echo $?"), "7\n")
		want(t, "what root may do", r.sh(t, "sudo sh -c 'echo \"#!/bin/sh\necho made\" > /usr/bin/made && chmod 755 /usr/bin/made' && made"), "made\n")
	})
	t.Run("ps and top", func(t *testing.T) {
		r.needs(t, "ps", "top")
		contains(t, "ps", r.sh(t, "sleep 300 & ps -eo pid=,user=,args= | tr -s ' '; kill $!"), " 1 root ", " user sleep 300")
		contains(t, "top", r.sh(t, "TERM=dumb top -bn1"), "PID", "guest")
	})
	t.Run("locale", func(t *testing.T) {
		contains(t, "locale -a", strings.ToLower(r.sh(t, "locale -a")), "c.utf")
		want(t, "sort and case", r.sh(t, `LC_ALL=C.UTF-8 sh -c "printf '\303\244b\n' | wc -m | tr -d ' '"`), "3\n")
	})
	t.Run("locks", func(t *testing.T) {
		r.needs(t, "flock")
		for _, dir := range []string{"/workspace", "/tmp"} {
			want(t, dir, r.sh(t, "cd "+dir+" && flock lock sh -c 'flock -n lock echo both || echo held'"), "held\n")
		}
	})
	t.Run("time and zone", func(t *testing.T) {
		want(t, "TZ", r.sh(t, "TZ=Europe/Berlin date -d @0 +%H:%M"), "01:00\n")
	})
	t.Run("namespaces of its own", func(t *testing.T) {
		r.needs(t, "unshare")
		want(t, "unshare", r.sh(t, "unshare --user --map-root-user --pid --fork --mount-proc sh -c 'id -u; echo $$'"), "0\n1\n")
	})
	t.Run("tmux or a terminal's size", func(t *testing.T) {
		res := r.run(t, sandbox.Cmd{Args: []string{"stty", "size"}, TTY: &sandbox.Size{Cols: 91, Rows: 33}})
		want(t, "stty size", strings.TrimSpace(res.Stdout), "33 91")
	})
}

// What cannot work fails at once, with a code and a text; nothing hangs.
// docs/limits.md has a line and a way out for each.
func TestWhatIsNotThere(t *testing.T) {
	r := open(t)
	for _, c := range []struct {
		name, needs, line string
		says              string // in what it writes; empty: it only has to fail
	}{
		{"installing packages", "apt-get", "sudo apt-get -y install hello", "E: "},
		{"names", "curl", "curl -sS -m 120 https://example.com", "resolve"},
		{"addresses", "curl", "curl -sS -m 120 http://192.0.2.1", "connect"},
		{"a folder of the host's as an address", "curl", "curl -sS -m 120 http://169.254.169.254", "connect"},
		{"mounting", "mount", "sudo mount -t tmpfs none /mnt", "mount"},
		{"docker", "docker", "docker ps", "daemon"},
		{"bubblewrap", "bwrap", "bwrap --unshare-all --ro-bind / / true", "loopback"},
		{"hardware counters", "perf", "perf stat true", "perf_event_open"},
		{"files without a name on a shared folder", "python3", "python3 -c 'import os; os.open(\"/workspace\", os.O_TMPFILE | os.O_RDWR)'", "Operation not supported"},
		{"holes", "fallocate", "truncate -s 1M holes && fallocate -p -o 0 -l 4096 holes", "unsupported"},
		{"set-user-id on a shared folder", "", "touch bit && chmod u+s bit && test -u bit", ""},
		{"device files", "", "sudo mknod /tmp/null c 1 3", ""},
		{"changing the clock", "date", "sudo date -s @0", ""},
		{"the host's name", "hostname", "sudo hostname other", ""},
		{"a raw socket", "python3", "sudo python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'", "ermitted"},
		{"the package database", "dpkg", "dpkg -s bash", "not installed"},
		{"kernel modules", "modprobe", "sudo modprobe loop", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.needs != "" {
				r.needs(t, c.needs)
			}
			res := r.run(t, sandbox.Cmd{Shell: c.line})
			if res.ExitCode == 0 || res.Reason != "" {
				t.Errorf("%s: exit code %d, reason %q: %s%s", c.line, res.ExitCode, res.Reason, res.Stdout, res.Stderr)
			}
			contains(t, c.line, res.Stdout+res.Stderr, c.says)
		})
	}
	// Rare kernel calls: each is refused as unknown, so that programs take the other way.
	t.Run("calls", func(t *testing.T) {
		r.needs(t, "python3")
		want(t, "ENOSYS", r.sh(t, `python3 -c '
import ctypes, platform
if platform.machine() != "x86_64": raise SystemExit
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {"io_uring_setup": 425, "landlock_create_ruleset": 444, "futex_waitv": 449, "userfaultfd": 323, "memfd_secret": 447, "fanotify_init": 300}.items():
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38: print(name, ctypes.get_errno())
'`), "")
	})
	t.Run("files of /proc", func(t *testing.T) {
		want(t, "there are", r.sh(t, `for f in pressure/memory vmstat diskstats sys/kernel/core_pattern sys/fs/inotify/max_user_watches self/smaps_rollup; do
	test ! -e /proc/$f || echo $f; done`), "")
		want(t, "the load", r.sh(t, "cut -d' ' -f1-3 /proc/loadavg"), "0.00 0.00 0.00\n")
	})
	// A sparse file is as large as it looks.
	t.Run("blocks", func(t *testing.T) {
		for _, dir := range []string{"/workspace", "/tmp"} {
			want(t, dir, r.sh(t, "cd "+dir+" && truncate -s 64M sparse && du -m sparse | cut -f1; rm sparse"), "64\n")
		}
	})
	t.Run("renaming without replacing", func(t *testing.T) {
		r.needs(t, "python3")
		for dir, result := range map[string]string{"/tmp": "0\n", "/workspace": "22\n"} {
			want(t, dir, r.sh(t, `python3 -c '
import ctypes, os, sys
os.chdir(sys.argv[1]); open("a", "w").close()
libc = ctypes.CDLL(None, use_errno=True)
print(0 if libc.renameat2(-100, b"a", -100, b"b", 1) == 0 else ctypes.get_errno())' `+dir), result)
		}
	})
	// An endless hang is ended by the time-out and told as such.
	t.Run("a hang", func(t *testing.T) {
		var res sandbox.Result
		bound := 3 * time.Second
		for ; bound < 4*time.Minute; bound *= 8 { // until it has begun before its time is over
			if res = r.run(t, sandbox.Cmd{Shell: "echo begun; exec sleep infinity", Timeout: &bound}); res.Stdout != "" {
				break
			}
		}
		if res.Reason != sandbox.ReasonTimeout || res.ExitCode != -1 || res.Stdout != "begun\n" {
			t.Errorf("%+v", res)
		}
		contains(t, "stderr", res.Stderr, fmt.Sprintf("Command timed out after %gs", bound.Seconds()))
	})
}
