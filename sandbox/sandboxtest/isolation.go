package sandboxtest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ravi/sandbox"
)

// Who tries to get out: guest root can do more inside, and must not outside.
var attackers = []string{"user", "root"}

func ownerOf(t testing.TB, path string) (uid, gid uint32) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return sys.Uid, sys.Gid
}

func (s suite) isolation(t *testing.T) {
	if !s.f.Elsewhere {
		t.Run("sockets of the host", s.hostSockets)
		t.Run("files of others", s.canaries)
		t.Run("special files", s.specialFiles)
		t.Run("owners", s.owners)
	}
	r := s.room(t)
	t.Run("what is seen", func(t *testing.T) { s.seen(t, r) })
	t.Run("network", func(t *testing.T) { network(t, r) })
	t.Run("the guest agent", func(t *testing.T) { guestAgent(t, r) })
	t.Run("mounts and devices", func(t *testing.T) { noPowers(t, r) })
}

// hostSockets: a service that listens below a shared folder is out of reach.
func (s suite) hostSockets(t *testing.T) {
	// A unix address holds 108 bytes, which t.TempDir may exceed.
	ws, vol := shortDir(t), shortDir(t)
	asked := make(chan string, 10)
	for _, dir := range []string{ws, vol} {
		l, err := net.Listen("unix", filepath.Join(dir, "host.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if err := os.Chmod(filepath.Join(dir, "host.sock"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(dir, "host.fifo"), 0o666); err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				asked <- dir
				c.Close()
			}
		}()
	}
	r := s.roomOn(t, ws, func(c *sandbox.Config) { c.ExtraVolumes = []sandbox.Volume{{Host: vol, Guest: "/mnt"}} })
	needs(t, r, "python3")
	for _, user := range attackers {
		for _, sock := range []string{"/workspace/host.sock", "/mnt/host.sock"} {
			res := r.run(t, sandbox.Cmd{User: user, Args: []string{"python3", "-c", `
import socket, sys
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET:
    s = socket.socket(socket.AF_UNIX, kind)
    try:
        s.connect(sys.argv[1])
        print("connected")
    except OSError as e:
        print("refused")
`, sock}})
			equal(t, user+" "+sock, res.Stdout+res.Stderr, "refused\nrefused\nrefused\n")
		}
		for _, fifo := range []string{"/workspace/host.fifo", "/mnt/host.fifo"} {
			host := filepath.Join(ws, "host.fifo")
			if strings.HasPrefix(fifo, "/mnt") {
				host = filepath.Join(vol, "host.fifo")
			}
			fd, err := unix.Open(host, unix.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			r.run(t, sandbox.Cmd{User: user, Shell: "timeout 1 sh -c 'echo through > " + fifo + "'"})
			buf := make([]byte, 64)
			if n, _ := unix.Read(fd, buf); n > 0 {
				t.Errorf("%s wrote to a FIFO of the host: %q", user, buf[:n])
			}
			unix.Close(fd)
		}
	}
	select {
	case dir := <-asked:
		t.Errorf("a connection from the sandbox came to the socket in %s", dir)
	default:
	}
	// Sockets that the guest makes itself work, also there.
	equal(t, "a socket of its own", r.run(t, sandbox.Cmd{Args: []string{"python3", "-c", `
import socket
l = socket.socket(socket.AF_UNIX); l.bind("/workspace/own.sock"); l.listen()
c = socket.socket(socket.AF_UNIX); c.connect("/workspace/own.sock"); c.send(b"hi")
print(l.accept()[0].recv(2).decode())
`}}).Stdout, "hi\n")
}

func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// canaries: a file that only another user of the host may read.
func (s suite) canaries(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: only root can make files of other owners")
	}
	const canary = "canary-1f0c"
	ws, vol := t.TempDir(), t.TempDir()
	const owner = 4242
	for _, dir := range []string{ws, vol} {
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	usr, err := os.MkdirTemp("/usr/local/share", "ravi-canary-")
	if err != nil {
		t.Skip("SKIP-FEATURE: /usr/local/share is not writable: ", err)
	}
	t.Cleanup(func() { os.RemoveAll(usr) })
	if err := os.Chmod(usr, 0o755); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for dir, guest := range map[string]string{ws: "/workspace", vol: "/mnt", usr: usr} {
		for _, o := range []struct {
			name     string
			uid, gid int
			mode     os.FileMode
		}{{"root", 0, 0, 0o600}, {"other", 4300, 4300, 0o600}, {"group", 0, 0, 0o640}, {"none", 0, 0, 0o000}} {
			p := filepath.Join(dir, "secret-"+o.name)
			write(t, p, canary, o.mode)
			if err := os.Chown(p, o.uid, o.gid); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, filepath.Join(guest, "secret-"+o.name))
		}
		closed := filepath.Join(dir, "closed")
		if err := os.Mkdir(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(closed, "secret"), canary, 0o644)
		paths = append(paths, filepath.Join(guest, "closed/secret"))
	}
	r := s.roomOn(t, ws, func(c *sandbox.Config) { c.ExtraVolumes = []sandbox.Volume{{Host: vol, Guest: "/mnt"}} })
	overlay := s.roomOn(t, ws, func(c *sandbox.Config) { c.Workspace = sandbox.WorkspaceOverlay })
	try := func(r *room, path string) {
		t.Helper()
		for _, user := range attackers {
			lines := []string{
				"cat $p", "cp $p /tmp/c && cat /tmp/c", "chmod 777 $p; cat $p", "chown $(id -u) $p; cat $p",
				"chmod 777 $(dirname $p); cat $p", "ln $p /tmp/h; cat /tmp/h", "mv $p /tmp/m; cat /tmp/m",
				"dd if=$p status=none", "tar cO $p", `python3 -c "import sys; print(open(sys.argv[1]).read())" $p`,
			}
			res := r.run(t, sandbox.Cmd{User: user, Env: map[string]string{"p": path}, Shell: strings.Join(lines, "\n") + "\necho tried"})
			if strings.Contains(res.Stdout+res.Stderr, canary) || !strings.HasSuffix(res.Stdout, "tried\n") {
				t.Errorf("%s and %s: %s%s", user, path, res.Stdout, res.Stderr)
			}
			if b, err := r.Files().As(user).ReadFile(ctx(t), path, 100); err == nil && strings.Contains(string(b), canary) {
				t.Errorf("%s could read %s by way of the guest agent", user, path)
			}
		}
	}
	for _, p := range paths {
		try(r, p)
		if strings.HasPrefix(p, "/workspace") {
			try(overlay, p)
		}
	}
	// A whole folder, as the agent reads it.
	for _, user := range attackers {
		in, err := r.Files().As(user).Tar(ctx(t), "/workspace")
		if err != nil {
			continue
		}
		b := make([]byte, 1<<20)
		n, _ := readSome(in, b)
		if strings.Contains(string(b[:n]), canary) {
			t.Errorf("%s got a secret in an archive", user)
		}
		in.Close()
	}
	for _, dir := range []string{ws, vol, usr} {
		if b, err := os.ReadFile(filepath.Join(dir, "secret-root")); err != nil || string(b) != canary {
			t.Errorf("a secret on the host was changed: %q %v", b, err)
		}
	}
}

func readSome(r interface{ Read([]byte) (int, error) }, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = r.Read(b[n:])
		n += m
	}
	return n, err
}

// specialFiles: nothing is left on a shared folder that would run as its owner
// or open a device, whoever tries and however.
func (s suite) specialFiles(t *testing.T) {
	ws, vol := t.TempDir(), t.TempDir()
	if os.Geteuid() == 0 {
		// One that the host has already: copies of it must be plain.
		write(t, filepath.Join(ws, "host-suid"), "x", 0o755)
		if err := unix.Chmod(filepath.Join(ws, "host-suid"), 0o6755); err != nil {
			t.Fatal(err)
		}
	}
	r := s.roomOn(t, ws, func(c *sandbox.Config) { c.ExtraVolumes = []sandbox.Volume{{Host: vol, Guest: "/mnt"}} })
	for _, user := range attackers {
		for _, dir := range []string{"/workspace", "/mnt"} {
			for i, line := range []string{
				`cp /bin/sh f; chmod u+s f`, `cp /bin/sh f; chmod 6755 f`, `cp /bin/sh f; chmod 2755 f`,
				`cp /bin/sh /tmp/s$$; chmod 4755 /tmp/s$$; cp -p /tmp/s$$ f`, `cp /bin/sh /tmp/t$$; chmod 4755 /tmp/t$$; mv /tmp/t$$ f`,
				`install -m 4755 /bin/sh f`, `cp -p /workspace/host-suid f`, `ln /workspace/host-suid f`,
				`mkdir d; chmod g+s d`, `mkdir -m 2755 d`, `mknod n c 1 3`, `mknod n b 8 0`, `cp -a /dev/null n`,
				`cp /bin/sh /tmp/u; chmod 4755 /tmp/u; tar cf - -C /tmp u | tar xpf -`,
				`python3 -c 'import os; os.close(os.open("f", os.O_CREAT|os.O_WRONLY, 0o4755))'`,
				`umask 0; python3 -c 'import os; os.mkdir("d", 0o2777)'`,
				`setcap cap_net_raw+ep f`,
			} {
				at := fmt.Sprintf("%s/%s-%d", dir, user, i)
				r.run(t, sandbox.Cmd{User: user, Shell: "mkdir " + at + " && cd " + at + " && { " + line + "; } 2>/dev/null"})
			}
		}
	}
	for _, dir := range []string{ws, vol} {
		n := 0
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() == "host-suid" {
				return err
			}
			n++
			info, err := d.Info()
			if err != nil {
				return err
			}
			if m := info.Mode(); m&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeCharDevice) != 0 {
				if m.IsRegular() && hasLinks(info) {
					return nil // another name of what the host itself had put there
				}
				t.Errorf("left on the host: %v %s", m, p)
			}
			if m := info.Mode(); m.IsRegular() {
				if size, err := unix.Getxattr(p, "security.capability", nil); err == nil && size > 0 {
					t.Errorf("left on the host with a capability: %s", p)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n < 2*17 {
			t.Errorf("only %d files and folders in %s: the attempts did not run", n, dir)
		}
	}
}

func hasLinks(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 1
}

// owners: files on a shared folder belong to whom they should.
func (s suite) owners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: an ordinary user's sandbox has one owner only")
	}
	for _, owner := range []int{0, 4242} {
		ws := t.TempDir()
		write(t, filepath.Join(ws, "theirs"), "x", 0o600)
		for _, p := range []string{ws, filepath.Join(ws, "theirs")} {
			if err := os.Chown(p, owner, owner); err != nil {
				t.Fatal(err)
			}
		}
		r := s.roomOn(t, ws)
		equal(t, "the owner's file inside", r.sh(t, "stat -c %U:%G theirs . && cat theirs"), "user:user\nuser:user\nx")
		r.sh(t, "echo y > by-user; mkdir dir-by-user; ln -s x link-by-user")
		for _, name := range []string{"by-user", "dir-by-user", "link-by-user"} {
			if uid, gid := ownerOf(t, filepath.Join(ws, name)); uid != uint32(owner) || gid != uint32(owner) {
				t.Errorf("%s belongs to %d:%d, want %d", name, uid, gid, owner)
			}
		}
		// Guest root may write there (inside it is root), but as nobody whom the host knows.
		r.run(t, sandbox.Cmd{User: "root", Shell: "echo z > by-root; chown 1:1 by-root; true"})
		if _, err := os.Lstat(filepath.Join(ws, "by-root")); err == nil {
			if uid, gid := ownerOf(t, filepath.Join(ws, "by-root")); uid < 1<<20 || gid < 1<<20 {
				t.Errorf("a file of guest root belongs to %d:%d on the host", uid, gid)
			}
		}
		// Giving a file away does not make it the property of a user of the host.
		r.run(t, sandbox.Cmd{User: "root", Shell: "echo z > given; chown 65534:65534 given; chown 0:0 by-user; true"})
		for _, name := range []string{"given", "by-user"} {
			if uid, _ := ownerOf(t, filepath.Join(ws, name)); uid < 1<<20 && uid != uint32(owner) {
				t.Errorf("%s belongs to %d on the host", name, uid)
			}
		}
	}
}

func (s suite) seen(t *testing.T, r *room) {
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		t.Fatal(err)
	}
	if name := strings.TrimSpace(r.sh(t, "uname -n")); name == unix.ByteSliceToString(host.Nodename[:]) {
		t.Errorf("it has the host's name %s", name)
	}
	if kernel := strings.TrimSpace(r.sh(t, "uname -rv")); kernel == unix.ByteSliceToString(host.Release[:])+" "+unix.ByteSliceToString(host.Version[:]) {
		t.Errorf("it has the host's kernel %s", kernel)
	}
	for _, user := range attackers {
		// Few processes: the agent, and what asks.
		if list := r.shAs(t, user, `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; echo; done 2>/dev/null`); strings.Count(list, "\n") > 12 ||
			strings.Contains(list, os.Args[0]) {
			t.Errorf("%s sees processes that are not the sandbox's:\n%s", user, list)
		}
		for _, dir := range []string{s.f.Home, "/home/*/.ssh", "/root/.*rc", "/var/lib/dpkg/info", "/boot/*", "/run/*.sock", "/run/systemd", "/sys/kernel/debug/*", "/var/log/*log", "/opt/*", "/usr/local/etc/*"} {
			if got := r.shAs(t, user, "ls -d "+dir+" 2>/dev/null; true"); got != "" {
				t.Errorf("%s sees %s", user, got)
			}
		}
		if got := r.shAs(t, user, "ls -A /home /root 2>/dev/null | grep -v -e : -e '^$' -e '^user$'; true"); got != "" && user == "user" {
			t.Errorf("%s sees homes: %s", user, got)
		}
		if got := r.shAs(t, user, "cat /etc/shadow /etc/sudoers /etc/ssh/*key /etc/machine-id 2>/dev/null | grep -v '^0*$'; true"); got != "" {
			t.Errorf("%s sees secrets of /etc: %s", user, got)
		}
		// Where the sandbox's parts lie on the host is not its business.
		if got := r.shAs(t, user, "cat /proc/mounts /proc/self/mountinfo /proc/cmdline /proc/1/cgroup /proc/self/cgroup 2>/dev/null; true"); strings.Contains(got, s.f.Home) || r.ws != "" && strings.Contains(got, r.ws) {
			t.Errorf("%s sees a path of the host: %s", user, got)
		}
	}
	equal(t, "who it is in passwd", r.sh(t, "getent passwd user root | cut -d: -f1"), "user\nroot\n")
}

func network(t *testing.T, r *room) {
	host, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inside := r.sh(t, "cat /proc/net/dev; ip -o addr 2>/dev/null; true")
	for _, i := range host {
		if i.Name == "lo" {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			ip, _, _ := strings.Cut(a.String(), "/")
			if strings.Contains(inside, ip) {
				t.Errorf("it sees the host's address %s", ip)
			}
		}
	}
	needs(t, r, "python3")
	for _, user := range attackers {
		res := r.run(t, sandbox.Cmd{User: user, Args: []string{"python3", "-c", `
import socket, sys
for host, port in ("127.0.0.1", int(sys.argv[1])), ("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 80):
    try:
        socket.create_connection((host, port), 2)
        print("connected to", host)
    except OSError:
        pass
for family, kind in (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW):
    try:
        socket.socket(family, kind, 1)
        print("a raw socket")
    except OSError:
        pass
print("end")
`, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)}})
		equal(t, user, res.Stdout+res.Stderr, "end\n")
	}
}

func guestAgent(t *testing.T, r *room) {
	// The ordinary user cannot get at PID 1, which holds the link.
	for _, line := range []string{
		"ls -l /proc/1/fd/3", "cat /proc/1/environ", "cat /proc/1/mem", "echo x > /proc/1/fd/3", "cat /proc/1/maps", "kill -9 1", "kill -STOP 1",
		"dd if=/proc/1/fd/3 bs=1 count=1", "ls /proc/1/fd/ | grep 3",
	} {
		if res := r.run(t, sandbox.Cmd{Shell: "timeout 5 sh -c '" + line + "'"}); res.ExitCode == 0 && (res.Stdout != "" || strings.Contains(line, "kill") || strings.Contains(line, "echo")) {
			t.Errorf("possible: %s: %q", line, res.Stdout)
		}
	}
	if res := r.run(t, sandbox.Cmd{Args: []string{"python3", "-c", `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno())
`}}); res.ExitCode == 0 {
		equal(t, "ptrace of PID 1", res.Stdout, "-1 1\n")
	}
	// Descriptor 3 does not come down to what the agent starts.
	equal(t, "descriptors of a command", r.sh(t, "ls /proc/self/fd | tr '\n' ' '"), "0 1 2 3 ")
	equal(t, "environment", r.sh(t, "env | grep -c -e RAVI_MEMORY -e TOKEN || true"), "0\n")
	equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
}

// noPowers: what even guest root must not have.
func noPowers(t *testing.T, r *room) {
	for _, line := range []string{
		"mount -t tmpfs x /mnt", "mount --bind / /mnt", "mknod /tmp/sda b 8 0 && head -c1 /tmp/sda", "chroot /proc/1/root/.. true && false",
		"hostname stolen", "modprobe dummy", "echo 1 > /proc/sys/kernel/panic", "echo b > /proc/sysrq-trigger", "date -s 2001-01-01", "swapon /tmp/x",
		"echo x > /usr/bin/new-file-of-the-host/..", "ip link add dummy0 type dummy", "iptables -L",
	} {
		if res := r.run(t, sandbox.Cmd{User: "root", Shell: "timeout 5 sh -c '" + line + "'"}); res.ExitCode == 0 {
			t.Errorf("guest root could: %s\n%s", line, res.Stdout)
		}
	}
	// The host's own programs are seen, and what is done to them stays in the sandbox.
	name := "/usr/bin/ravi-sandboxtest-new"
	r.run(t, sandbox.Cmd{User: "root", Shell: "echo x > " + name + "; rm -f /usr/bin/env"})
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is on the host", name)
		os.Remove(name)
	}
	if _, err := os.Stat("/usr/bin/env"); err != nil {
		t.Errorf("a program of the host is gone: %v", err)
	}
}

// needs says loudly what the machine lacks.
func needs(t *testing.T, r *room, program string) {
	t.Helper()
	if r.run(t, sandbox.Cmd{Shell: "command -v " + program}).ExitCode != 0 {
		t.Skip("SKIP-FEATURE: this host has no " + program)
	}
}
