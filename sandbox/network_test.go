package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ravi/sandbox"
)

// onLoopback serves each connection to a port of loopback, and closes it.
func onLoopback(t *testing.T, serve func(net.Conn)) (port int) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// echoServer answers on loopback; the host's name for it is localhost, which the guest can only ask its gateway for.
func echoServer(t *testing.T) (port int) {
	t.Helper()
	return onLoopback(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

// client is a program that asks the gateway for localhost, connects there, and echoes lines of its input.
const client = `import socket, struct, sys
q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x09localhost\0\0\1\0\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(100); s.sendto(q, ("192.168.127.1", 53)); a = s.recv(512)
if a[3] & 15: print("no name", flush=True); sys.exit(6)
try: c = socket.create_connection((socket.inet_ntoa(a[-4:]), int(sys.argv[1])), 100)
except OSError as e: print("no connection", flush=True); sys.exit(7)
for line in sys.stdin:
    try:
        c.sendall(line.encode()); got = c.recv(100)
    except OSError: got = b""
    print(got.decode().strip() or "cut", flush=True)
    if not got: sys.exit(8)
`

// netEvents collects what a sandbox's network tells.
type netEvents struct {
	mu  sync.Mutex
	all []sandbox.NetEvent
}

func (n *netEvents) hear(e sandbox.NetEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, e)
}

// await waits until it is told of something: what is told is on its way for a moment.
func (n *netEvents) await(t *testing.T, what string, is func(sandbox.NetEvent) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		n.mu.Lock()
		all := slices.Clone(n.all)
		n.mu.Unlock()
		if slices.ContainsFunc(all, is) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no event tells of %s: %+v", what, all)
		}
	}
}

func networked(t *testing.T, home string, rules []string, opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root there is no network device here")
	}
	cfg := sandbox.Default()
	cfg.AllowNet.Rules = rules
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, "", append(opts, sandbox.WithHome(home))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Close() })
	return sb
}

// talk is a client in the sandbox that keeps its connection.
type talk struct {
	t   *testing.T
	in  io.WriteCloser
	out *lines
	p   *sandbox.Process
}

// lines hands out what is written to it line by line.
type lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	for {
		line, rest, ok := strings.Cut(l.buf.String(), "\n")
		if !ok {
			return len(b), nil
		}
		l.buf.Reset()
		l.buf.WriteString(rest)
		l.more <- line
	}
}

func startTalk(t *testing.T, sb *sandbox.Sandbox, port int) *talk {
	t.Helper()
	r, w := io.Pipe()
	out := &lines{more: make(chan string, 100)}
	p, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"python3", "-c", client, fmt.Sprint(port)}, Stdin: r, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); r.Close() })
	return &talk{t, w, out, p}
}

// say sends a line and returns what comes back.
func (k *talk) say(line string) string {
	k.t.Helper()
	if _, err := fmt.Fprintln(k.in, line); err != nil {
		return err.Error()
	}
	select {
	case got := <-k.out.more:
		return got
	case <-time.After(patience):
		k.t.Fatalf("no answer to %q", line)
		return ""
	}
}

func TestNetworkPolicyIsReplaced(t *testing.T) {
	port := echoServer(t)
	var heard netEvents
	rule := fmt.Sprintf("localhost:%d", port)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	sb := networked(t, t.TempDir(), []string{rule, address}, sandbox.WithNetEvents(heard.hear))
	k := startTalk(t, sb, port)
	if got := k.say("hello"); got != "hello" {
		t.Fatalf("got %q", got)
	}
	if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: []string{"other.test"}}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the connection is cut", func() bool { return k.say("are you there") != "are you there" })
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: []string{"python3", "-c", client, fmt.Sprint(port)}})
	if err != nil || res.ExitCode != 6 {
		t.Errorf("a name that is not allowed any more: %+v %v", res, err)
	}
	if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: []string{rule, address}}); err != nil {
		t.Fatal(err)
	}
	soon(t, "it is allowed again", func() bool {
		return startTalk(t, sb, port).say("hello again") == "hello again"
	})
	heard.await(t, "the connection", func(e sandbox.NetEvent) bool {
		return e.Allowed && e.Name == "localhost" && int(e.Port) == port && e.Proto == "opaque" && e.BytesOut > 0
	})
}

// What serves the network is part of the sandbox: without it there is none.
func TestNetworkPartKilled(t *testing.T) {
	for _, part := range []string{"gateway", "dial"} {
		t.Run(part, func(t *testing.T) {
			home := t.TempDir()
			sb := networked(t, home, []string{"example.test"})
			other := networked(t, home, []string{"example.test"})
			all, err := filepath.Glob("/proc/[0-9]*/cmdline")
			if err != nil {
				t.Fatal(err)
			}
			killed := 0
			for _, name := range all {
				b, err := os.ReadFile(name)
				var pid int
				if err != nil || !bytes.HasPrefix(b, []byte("ravi-gateway\x00"+part+"\x00")) {
					continue
				}
				if _, err := fmt.Sscanf(name, "/proc/%d/", &pid); err == nil && isPartOf(pid, sb.ID) {
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
					killed++
				}
			}
			if killed != 1 {
				t.Fatalf("%d processes are the sandbox's %s", killed, part)
			}
			<-sb.Ended()
			if err := sb.Err(); err == nil || !strings.Contains(err.Error(), "network") {
				t.Errorf("it ended with %v", err)
			}
			nothingRemains(t, home, sb.ID)
			if res, err := other.Exec(t.Context(), sandbox.Cmd{Args: []string{"true"}}); err != nil || res.ExitCode != 0 {
				t.Errorf("another sandbox: %+v %v", res, err)
			}
		})
	}
}

// isPartOf says whether a process writes to the log of this sandbox's keeper.
func isPartOf(pid int, id string) bool {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid))
	return err == nil && strings.Contains(to, id)
}

// The gateway has no network and no rights, the dialer no rights.
func TestNetworkPartsAreConfined(t *testing.T) {
	sb := networked(t, t.TempDir(), []string{"example.test"})
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	seen := map[string]int{}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(b, []byte("ravi-gateway\x00")) {
			continue
		}
		part := strings.Split(string(b), "\x00")[1]
		var pid int
		if _, err := fmt.Sscanf(name, "/proc/%d/", &pid); err != nil || !isPartOf(pid, sb.ID) {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		uid := ""
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); f[0] == "Uid:" {
				uid = f[1]
			}
		}
		for _, want := range []string{"\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("the %s's status does not say %q", part, want)
			}
		}
		if uid == "0" || uid == "" {
			t.Errorf("the %s runs as %q", part, uid)
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		if part == "gateway" {
			if ns == own {
				t.Error("the gateway is in the host's network")
			}
			if list, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid)); err != nil || len(list) > 0 {
				t.Errorf("the gateway's root holds %v %v", list, err)
			}
		}
		seen[part+uid]++
	}
	if len(seen) != 2 {
		t.Errorf("the parts and their users are %v: want two, of different users", seen)
	}
}

// A restored sandbox has a new gateway, and its network works.
func TestNetworkAfterRestore(t *testing.T) {
	port := echoServer(t)
	home, saved := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint")
	rules := []string{fmt.Sprintf("localhost:%d", port), fmt.Sprintf("127.0.0.1:%d", port)}
	sb := networked(t, home, rules)
	if got := startTalk(t, sb, port).say("before"); got != "before" {
		t.Fatalf("got %q", got)
	}
	const ask = `import socket, struct
q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x09localhost\0\0\1\0\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(100); s.sendto(q, ("192.168.127.1", 53)); print(socket.inet_ntoa(s.recv(512)[-4:]))`
	asked, err := sb.Exec(t.Context(), sandbox.Cmd{Args: []string{"python3", "-c", ask}})
	address := strings.TrimSpace(string(asked.Stdout))
	if err != nil || !strings.HasPrefix(address, "198.") {
		t.Fatalf("%+v %v", asked, err)
	}
	if err := sb.Checkpoint(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	if got := startTalk(t, sb, port).say("after saving"); got != "after saving" {
		t.Errorf("got %q", got)
	}
	// An address that was asked for before stands for its name still: programs remember it.
	again := networked(t, home, rules, sandbox.WithCheckpoint(saved))
	res, err := again.Exec(t.Context(), sandbox.Cmd{Args: []string{"python3", "-c", `import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 100); c.sendall(b"known"); print(c.recv(9).decode())`, address, fmt.Sprint(port)}})
	if err != nil || string(res.Stdout) != "known\n" {
		t.Errorf("the address of before: %+v %v", res, err)
	}
	if got := startTalk(t, again, port).say("restored"); got != "restored" {
		t.Errorf("got %q", got)
	}
}
