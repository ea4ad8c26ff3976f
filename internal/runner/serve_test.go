package runner

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/sandbox"
)

func TestPlainSandbox(t *testing.T) {
	g := newRig(t, Options{})
	if err := g.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"lib/*/ravi-kernel", "images/host-*"} {
		if found, _ := filepath.Glob(filepath.Join(g.Runner.home, dir)); len(found) != 1 {
			t.Errorf("prepared is %v", found)
		}
	}
	sb := g.open(t, nil)
	if got := sh(t, sb, "echo hello; pwd"); got != "hello\n/workspace\n" {
		t.Errorf("got %q", got)
	}
	if s := g.Status(); s.Running != 1 || s.Free.CPUs != s.Capacity.CPUs-2 {
		t.Errorf("meanwhile the runner says %+v", s)
	}
	st, err := sb.Stats(t.Context())
	if err != nil || os.Geteuid() == 0 && st.MemoryBytes == 0 {
		t.Errorf("%+v %v", st, err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if e := sb.Err(); !strings.Contains(fmt.Sprint(e), "is closed") {
		t.Errorf("it ended since %v", e)
	}
	if s := g.Status(); s.Running != 0 || s.Free.CPUs != s.Capacity.CPUs {
		t.Errorf("afterwards the runner says %+v", s)
	}
	for _, home := range []string{g.home, g.Runner.home} {
		if left, _ := filepath.Glob(filepath.Join(home, "sandboxes", "*")); len(left) > 0 {
			t.Errorf("there is left: %v", left)
		}
	}
}

// shout answers each line by it in capitals, and goodbye when there are no more.
func shout(_ context.Context, c net.Conn) {
	b, err := io.ReadAll(c) // until the other side has ended its own
	if err == nil {
		fmt.Fprintf(c, "%sbye\n", strings.ToUpper(string(b)))
	}
	c.Close()
}

func TestServices(t *testing.T) {
	g := newRig(t, Options{})
	sb := g.open(t, nil, sandbox.WithService("shout", shout))
	for range 3 {
		if got := sh(t, sb, "python3 -c '"+callShout+"'"); got != "600004 b'HELLO' b'bye\\n'\n" {
			t.Fatalf("got %q", got)
		}
	}
}

const callShout = `import socket
c = socket.create_connection(("shout.ravi.internal", 80))
c.sendall(b"hello " * 100000)
c.shutdown(socket.SHUT_WR)
b = b""
while True:
    p = c.recv(65536)
    if not p: break
    b += p
print(len(b), b[:5], b[-4:])`

// A sandbox that sees its workspace only does so there as well, and a service is reached by TLS, too.
func TestWorkspaceOnlyAndTLS(t *testing.T) {
	needNetwork(t)
	g := newRig(t, Options{})
	sb := g.open(t, nil, sandbox.WithWorkspaceOnly(), sandbox.WithService("hello", sandbox.HTTPService(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s", r.Host)
	}))))
	for _, user := range []string{"user", "root"} {
		r, err := sb.Exec(t.Context(), sandbox.Cmd{User: user, Shell: "touch /usr/x /opt/x /var/x 2>/dev/null; ls /usr/x /opt/x /var/x 2>/dev/null; touch /workspace/" + user + " && echo done"})
		if err != nil || r.Stdout != "done\n" {
			t.Errorf("%s: %+v %v", user, r, err)
		}
	}
	for _, url := range []string{"http://hello.ravi.internal", "https://hello.ravi.internal"} {
		if got := python(t, sb, "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())", url); got != "hello hello.ravi.internal\n" {
			t.Errorf("%s: %q", url, got)
		}
	}
}
