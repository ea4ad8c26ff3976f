package runner

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"ravi/internal/network/policy"
	"ravi/sandbox"
)

// echoServer answers on this machine's loopback, whose name the guest can only ask its gateway for.
func echoServer(t *testing.T) (port int) {
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
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// lookUp is a program that asks the gateway for localhost, whose address is then a.
const lookUp = `import socket, struct, sys
def address():
    q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x09localhost\0\0\1\0\1"
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(120); s.sendto(q, ("192.168.127.1", 53)); a = s.recv(512)
    if a[3] & 15: print("no name"); sys.exit(6)
    return socket.inet_ntoa(a[-4:])
`

const client = lookUp + `
try: c = socket.create_connection((address(), int(sys.argv[1])), 120); c.sendall(b"hello"); print(c.recv(100).decode() or "cut")
except OSError as e: print("no connection"); sys.exit(7)
`

// heard collects what a sandbox's network tells.
type heard struct {
	mu  sync.Mutex
	all []sandbox.NetEvent
}

func (h *heard) hear(e sandbox.NetEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, e)
}

func (h *heard) count(f func(sandbox.NetEvent) bool) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.all {
		if f(e) {
			n++
		}
	}
	return n
}

func python(t testing.TB, sb *sandbox.Sandbox, program string, args ...string) string {
	t.Helper()
	r, err := sb.Exec(t.Context(), sandbox.Cmd{Args: append([]string{"python3", "-c", program}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	return r.Stdout + r.Stderr
}

func rules(port int) []string {
	return []string{fmt.Sprintf("localhost:%d", port), fmt.Sprintf("127.0.0.1:%d", port)}
}

func needNetwork(t testing.TB) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root there is no network device here")
	}
}

func TestNetwork(t *testing.T) {
	needNetwork(t)
	networkHolds(t, newRig(t, Options{}))
}

func networkHolds(t *testing.T, g *rig) {
	port := echoServer(t)
	var events heard
	sb := g.open(t, func(c *sandbox.Config) { c.AllowNet.Rules = rules(port) }, sandbox.WithNetEvents(events.hear))
	if got := python(t, sb, client, fmt.Sprint(port)); got != "hello\n" {
		t.Errorf("what is allowed: %q", got)
	}
	if got := python(t, sb, client, "1"); got != "no connection\n" {
		t.Errorf("what is not: %q", got)
	}
	flows := func(allowed bool, port int) int {
		return events.count(func(e sandbox.NetEvent) bool {
			return e.Kind == "flow" && e.Allowed == allowed && int(e.Port) == port && e.Name == "localhost"
		})
	}
	// A connection that is over in the sandbox need not be over outside of it.
	eventually(t, "both connections are told of", func() bool { return flows(true, port) > 0 && flows(false, 1) > 0 })
	if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: []string{"example.com"}}); err != nil {
		t.Fatal(err)
	}
	if got := python(t, sb, client, fmt.Sprint(port)); got != "no name\n" {
		t.Errorf("what is not allowed any more: %q", got)
	}
	// What is told last is heard as well, when the sandbox ends.
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if flows(true, port) != 1 || flows(false, 1) != 1 {
		t.Errorf("heard: %+v", events.all)
	}
	if n := events.count(func(e sandbox.NetEvent) bool { return e.Kind == "dns" && !e.Allowed && e.Name == "localhost" }); n != 1 {
		t.Errorf("%d refused names were heard of: %+v", n, events.all)
	}
}

// What the runner's operator denies is denied, whatever a session says, now or later.
func TestRunnerDenies(t *testing.T) {
	needNetwork(t)
	port := echoServer(t)
	rule, err := policy.ParseRule("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	g := newRig(t, Options{AlwaysDeny: []policy.Rule{rule}})
	all := rules(port)
	sb := g.open(t, func(c *sandbox.Config) { c.AllowNet.Rules = all }, sandbox.WithNetworkFloor([]byte(`{"always_allow": ["`+strings.Join(all, `", "`)+`"]}`)))
	for range 2 {
		if got := python(t, sb, client, fmt.Sprint(port)); got != "cut\n" && got != "no connection\n" {
			t.Errorf("the sandbox reached it: %q", got)
		}
		if err := sb.SetAllowNet(t.Context(), sandbox.AllowNet{Rules: all}); err != nil {
			t.Fatal(err)
		}
	}
}
