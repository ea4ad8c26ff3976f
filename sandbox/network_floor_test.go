package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ravi/internal/backend"
	"ravi/sandbox"
)

// peers are servers on the host's loopback that say their number to whoever asks, and the rules that name them: a
// name that leads to a closed address needs both. What is 127.0.0.1 for the guest is its own.
func peers(t *testing.T, n int) (ports, rules []string) {
	t.Helper()
	for i := range n {
		port := strconv.Itoa(onLoopback(t, func(c net.Conn) {
			if _, err := c.Read(make([]byte, 10)); err == nil {
				fmt.Fprintf(c, "peer %d\n", i)
			}
		}))
		ports, rules = append(ports, port), append(rules, "localhost:"+port, "127.0.0.1:"+port)
	}
	return ports, rules
}

// visitor asks the gateway for localhost, which the guest's own files answer otherwise, and prints which of the peers
// at the ports in its arguments answer.
const visitor = `import socket, struct, sys
q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x09localhost\0\0\1\0\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(100); s.sendto(q, ("192.168.127.1", 53)); a = s.recv(512)
if a[3] & 15: sys.exit(0)
for port in sys.argv[1:]:
    try:
        c = socket.create_connection((socket.inet_ntoa(a[-4:]), int(port)), 100); c.settimeout(100); c.sendall(b"who?\n")
        got = c.recv(100).decode().split()
        if got: print(got[1])
    except OSError: pass
`

// reached are those of the peers that a sandbox gets an answer from.
func reached(t *testing.T, sb *sandbox.Sandbox, ports []string) (out []int) {
	t.Helper()
	res, err := sb.Exec(t.Context(), sandbox.Cmd{Args: append([]string{"python3", "-c", visitor}, ports...)})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v, %+v", err, res)
	}
	for _, word := range strings.Fields(res.Stdout) {
		out = append(out, int(word[0]-'0'))
	}
	return out
}

// What the operator decided holds whatever a sandbox is given, when it is made and later.
func TestNetworkFloor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root there is no network device here")
	}
	ports, p := peers(t, 3)
	raw := func(floor map[string]any) json.RawMessage {
		b, err := json.Marshal(floor)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	everyone := sandbox.AllowNet{Rules: p}
	for name, c := range map[string]struct {
		floor                 map[string]any
		open, later           sandbox.AllowNet
		wantOpened, wantLater []int
	}{
		"none":              {open: sandbox.AllowNet{Rules: p[:2]}, wantOpened: []int{0}, later: everyone, wantLater: []int{0, 1, 2}},
		"denied":            {floor: map[string]any{"always_deny": p[2:3]}, open: everyone, wantOpened: []int{0, 2}, later: everyone, wantLater: []int{0, 2}},
		"denied address":    {floor: map[string]any{"always_deny": p[3:4]}, open: everyone, wantOpened: []int{0, 2}, later: everyone, wantLater: []int{0, 2}},
		"denied to all":     {floor: map[string]any{"always_deny": []string{"127.0.0.0/8"}}, open: everyone, later: everyone},
		"bounded":           {floor: map[string]any{"max": p[:2]}, open: everyone, wantOpened: []int{0}, later: sandbox.AllowNet{Rules: p[2:]}},
		"no network at all": {floor: map[string]any{"max": false}, open: everyone, later: everyone},
		"always allowed": {
			floor: map[string]any{"always_allow": p[4:], "always_deny": p[:1], "max": false},
			open:  sandbox.AllowNet{}, wantOpened: []int{2}, later: everyone, wantLater: []int{2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sandbox.Default()
			cfg.AllowNet = c.open
			var opts []sandbox.Option
			if c.floor != nil {
				opts = append(opts, sandbox.WithNetworkFloor(raw(c.floor)))
			}
			sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, "", append(opts, sandbox.WithHome(t.TempDir()))...)
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			if got := reached(t, sb, ports); !slices.Equal(got, c.wantOpened) {
				t.Errorf("opened, it reaches %v, want %v", got, c.wantOpened)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := sb.SetAllowNet(ctx, c.later); err != nil {
				t.Fatal(err)
			}
			if got := reached(t, sb, ports); !slices.Equal(got, c.wantLater) {
				t.Errorf("later, it reaches %v, want %v", got, c.wantLater)
			}
			if err := sb.SetAllowNet(ctx, sandbox.AllowNet{}); err != nil {
				t.Fatal(err)
			}
			var always []int
			if c.floor["always_allow"] != nil {
				always = c.wantOpened
			}
			if got := reached(t, sb, ports); !slices.Equal(got, always) {
				t.Errorf("closed, it reaches %v, want %v", got, always)
			}
		})
	}
}

// A floor that cannot be read, or cannot be held, is no reason to go on without it.
func TestNetworkFloorRefusals(t *testing.T) {
	for name, c := range map[string]struct{ backend, floor, says string }{
		"not JSON":         {"gvisor", `{`, "not valid JSON"},
		"an unknown key":   {"gvisor", `{"always_denied":[]}`, "did you mean always_deny?"},
		"no rule":          {"gvisor", `{"always_deny":["a b"]}`, "always_deny"},
		"a bounded denial": {"gvisor", `{"always_deny":[{"host":"a.example","methods":["GET"]}]}`, "a denial names"},
		"an empty bound":   {"gvisor", `{"max":[]}`, "[] is ambiguous"},
		"on the host":      {"host", `{"always_deny":["a.example"]}`, "on the host the network is open"},
		"a bound there":    {"host", `{"max":["a.example"]}`, "on the host the network is open"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sandbox.Default()
			cfg.Backend = c.backend
			_, err := sandbox.Open(t.Context(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithNetworkFloor(json.RawMessage(c.floor)))
			var ie *sandbox.InitError
			if !errors.As(err, &ie) || ie.Stage != "config" || ie.Hint == "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want a config error with a hint that says %q", err, c.says)
			}
			if c.backend == "host" && !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("got %v", err)
			}
		})
	}
}
